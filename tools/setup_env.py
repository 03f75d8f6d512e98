"""Create .venv and install the project into it, once; say in plain words what goes wrong.

    python3 tools/setup_env.py [EXTRA ...]        extras of pyproject.toml, for example: test lint

Needs the standard library alone and runs on any Python, also on one that is too old (then it says so).
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys

MINIMUM = (3, 10)
NEEDED_GB = 9.0  # torch's CUDA build and its libraries, unpacked
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
LOG = os.path.join(VENV, "install.log")
STATE = os.path.join(VENV, "installed.json")
NETWORK_SIGNS = ("Temporary failure in name resolution", "Could not resolve", "Connection refused", "ProxyError",
                 "NewConnectionError", "Network is unreachable", "Max retries exceeded", "ConnectTimeoutError",
                 "ReadTimeoutError")  # fmt: skip


def fail(message):
    sys.stderr.write("error: " + message + "\n")
    sys.exit(2)


def check_python():
    if sys.version_info[:2] < MINIMUM:
        found = ".".join(str(part) for part in sys.version_info[:3])
        fail("expected Python 3.10 or newer, found %s (%s); install one, then run: PYTHON=python3.12 make quickstart"
             % (found, sys.executable))  # fmt: skip


def check_space():
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEEDED_GB:
        fail("expected %.0f GB free for .venv, found %.1f GB on the disk of %s; free some space and run again"
             % (NEEDED_GB, free, ROOT))  # fmt: skip


def python_of_venv():
    return os.path.join(VENV, "Scripts" if os.name == "nt" else "bin", "python")


def state_key():
    """Changes when pyproject.toml, the folder or Python does: then the installation is done again."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as stream:
        content = stream.read()
    return hashlib.sha256(content + ROOT.encode() + ("%d.%d" % sys.version_info[:2]).encode()).hexdigest()


def installed_extras():
    """Extras in the present .venv, or None if it must be installed (again)."""
    try:
        with open(STATE) as stream:
            state = json.load(stream)
    except (OSError, ValueError):
        return None
    return set(state["extras"]) if state.get("key") == state_key() and os.path.exists(python_of_venv()) else None


def make_venv():
    if os.path.exists(python_of_venv()):
        return
    print("creating .venv with Python %d.%d.%d" % sys.version_info[:3], flush=True)
    result = subprocess.run([sys.executable, "-m", "venv", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        fail("could not create .venv (on Debian and Ubuntu: apt install python3-venv):\n" + result.stdout.decode())


def install(extras):
    target = "." + ("[%s]" % ",".join(extras) if extras else "")
    print(
        "installing %s into .venv: about 3 GB to download the first time; log: .venv/install.log" % target, flush=True
    )
    command = [python_of_venv(), "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--no-compile", "--editable", target]  # Python compiles what is imported, then
    with open(LOG, "w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
        )
        for line in process.stdout or ():
            log.write(line)
            if line.startswith(("Collecting torch", "Installing collected", "Successfully installed")):
                print("  " + line.strip()[:100], flush=True)
        code = process.wait()
    if code:
        explain_failure()


def explain_failure():
    with open(LOG) as log:
        text = log.read()
    tail = "\n".join("  " + line for line in text.splitlines()[-6:])
    if any(sign in text for sign in NETWORK_SIGNS):
        reason = "pip cannot reach a package index; connect to a network (or set PIP_INDEX_URL to a mirror)"
    elif "No space left on device" in text:
        reason = "the disk is full; free about %.0f GB" % NEEDED_GB
    elif "No matching distribution" in text or "requires a different Python" in text:
        reason = "a package has no build for this Python or platform; try another: PYTHON=python3.12 make quickstart"
    else:
        reason = "pip failed"
    fail("%s, then run the same command again. The end of .venv/install.log:\n%s" % (reason, tail))


def main():
    options = [word for word in sys.argv[1:] if word.startswith("-")]
    if {"-h", "--help"} & set(options):
        print(__doc__.strip())
        sys.exit(0)
    if options:
        fail("expected names of extras, found the option %s; see python3 tools/setup_env.py --help" % options[0])
    check_python()
    wanted, present = set(sys.argv[1:]), installed_extras()
    if present is not None and wanted <= present:
        print(".venv is ready", flush=True)
        return
    if not os.path.exists(python_of_venv()):
        check_space()
    make_venv()
    extras = sorted(wanted | (present or set()))
    install(extras)
    with open(STATE, "w") as stream:
        json.dump({"key": state_key(), "extras": extras}, stream)


if __name__ == "__main__":
    main()
