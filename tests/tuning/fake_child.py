"""Prints what the measuring process would print, for candidates that `modes.json` declares wrong, hung or dead. No GPU, no
tilec.

Usage: fake_child.py FOLDER; `FOLDER/jobs` has a line for each requested job.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

folder = Path(sys.argv[1])
modes: dict[str, Any] = json.loads((folder / "modes.json").read_text())


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def send(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if "greeting" in modes:
    send(modes["greeting"])
    sys.exit(1)
send({"device": "Fake H200", "driver": "1.2.3", "arch": "sm_90a", "multiprocessors": 132})
text = sys.stdin.readline()
if not text:
    sys.exit(0)
job: dict[str, Any] = json.loads(text)
blocks = {name: int(re.findall(r"BLOCK=(\d+)", path)[0]) for name, path in job["artifacts"].items()}
with open(folder / "jobs", "a") as file:
    asked = [[dict(shape)["N"], [blocks[name] for name in names]] for shape, names in job["time"]]
    file.write(json.dumps({"check": [blocks[name] for name in job["check"]], "time": asked}) + "\n")
out = set[str]()
for name in job["check"]:
    send({"at": name})
    mode = modes.get(f"check {blocks[name]}", "")
    if mode == "hangs":
        (folder / "hung").touch()
        time.sleep(600)
    if mode == "dies":
        sys.exit(9)
    out |= {name} if mode else set()
    send({"checked": name, "wrong": mode})
for shape, names in job["time"]:
    n = dict(shape)["N"]
    if modes.get(f"shape {n}") == "dies":
        send({"at": ""})
        sys.exit(9)
    turns = {name: cdiv(cdiv(n, blocks[name]), 132) for name in names if name not in out}
    us = {name: 2.0 + turn * (0.3 + blocks[name] * 0.01) for name, turn in turns.items()}
    send({"shape": shape, "us": {name: [taken] * 3 for name, taken in us.items()}, "wrong": {}})
