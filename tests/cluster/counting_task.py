"""A task that counts to N, ten a second, saves at SIGTERM and goes on from there; then writes its record once.

python counting_task.py FOLDER RESULTS WEIGHTS NAME N [fail]
"""

import json
import signal
import sys
import time
from pathlib import Path

folder, results, weights, name, last = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5])
folder.mkdir(parents=True, exist_ok=True)
saved, trace = folder / "count", folder / "trace"
count = int(saved.read_text()) if saved.exists() else 0
stopped: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
print(f"beginning at {count}", flush=True)
while count < last:
    with open(trace, "a") as stream:
        stream.write(f"{time.time():.2f} {count}\n")
    time.sleep(0.1)
    count += 1
    if count % 20 == 0:
        print(f"count: {count}/{last} in {count / 10:.0f} s", flush=True)
    if stopped:
        saved.write_text(str(count))
        print(f"saved at {count}", flush=True)
        sys.exit(143)
if "fail" in sys.argv:
    sys.exit("error: this task was asked to fail")
record = {"format": 1, "task": f"count/{name}", "metric": "top1", "value": float(last), "trial": 0, "seed": 0}
record |= {"protocol": "counting", "checkpoint": {"name": weights, "sha256": "0"}, "network": "", "dataset": ""}
record |= {"config": "", "engine": "", "versions": {}, "command": "", "time": "2026-11-22T00:00:00+00:00"}
before = results.read_text().splitlines() if results.exists() else []
if json.dumps(record) not in before:  # as the tools do: an attempt may be killed between its record and its end
    with open(results, "a") as stream:
        stream.write(json.dumps(record) + "\n")
