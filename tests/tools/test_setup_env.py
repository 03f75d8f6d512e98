"""The set-up says what is wrong in words: old Python, no space, no network; and is done once."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup_env(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "tools" / "setup_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    for name, value in (("ROOT", ""), ("VENV", ".venv"), ("LOG", ".venv/log"), ("STATE", ".venv/installed.json")):
        monkeypatch.setattr(module, name, str(tmp_path / value))
    return module


def fails(capsys, call) -> str:
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_an_old_python_is_told_what_to_do(setup_env, capsys, monkeypatch):
    monkeypatch.setattr(setup_env.sys, "version_info", (3, 8, 1))
    assert "expected Python 3.10 or newer, found 3.8.1" in fails(capsys, setup_env.check_python)


def test_a_full_disk_is_told_before_the_download(setup_env, capsys, monkeypatch):
    monkeypatch.setattr(setup_env.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1.5e9}))
    assert "found 1.5 GB on the disk" in fails(capsys, setup_env.check_space)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("WARNING: ... NewConnectionError: refused\nERROR: No matching distribution found", "cannot reach"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No matching distribution found for torch", "no build for this Python"),
        ("something else", "pip failed"),
    ],
)
def test_a_failed_install_names_its_reason_and_the_logs_end(setup_env, capsys, log, reason):
    Path(setup_env.LOG).write_text(log)
    message = fails(capsys, setup_env.explain_failure)
    assert reason in message
    assert log.splitlines()[-1] in message


def test_what_is_installed_is_reused_until_the_project_changes(setup_env, capsys, monkeypatch):
    Path(setup_env.python_of_venv()).touch()
    Path(setup_env.STATE).write_text(json.dumps({"key": setup_env.state_key(), "extras": ["lint", "test"]}))
    monkeypatch.setattr(sys, "argv", ["setup_env.py", "test"])
    setup_env.main()
    assert "ready" in capsys.readouterr().out
    installed = []
    monkeypatch.setattr(setup_env, "install", installed.append)
    (Path(setup_env.ROOT) / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
    setup_env.main()
    assert installed == [["test"]]
    monkeypatch.setattr(sys, "argv", ["setup_env.py", "lint"])
    setup_env.main()
    assert installed[-1] == ["lint", "test"]


@pytest.mark.parametrize("words", [["--help"], ["test", "-h"]])
def test_help_shows_the_usage_and_installs_nothing(setup_env, capsys, monkeypatch, words):
    monkeypatch.setattr(setup_env.sys, "argv", ["setup_env.py", *words])
    with pytest.raises(SystemExit) as stop:
        setup_env.main()
    assert stop.value.code == 0
    assert "setup_env.py [EXTRA ...]" in capsys.readouterr().out
    assert not Path(setup_env.LOG).exists()


def test_an_unknown_option_is_named_and_nothing_is_installed(setup_env, capsys, monkeypatch):
    monkeypatch.setattr(setup_env.sys, "argv", ["setup_env.py", "lint", "--test"])
    assert "found the option --test; see" in fails(capsys, setup_env.main)
    assert not Path(setup_env.LOG).exists()
