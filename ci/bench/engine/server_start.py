"""Starts servers in new processes, and times each from its start to the first text that it streams over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.ledger import refuse_shared_card
from ci.evidence import ROOT

SECONDS: Final = 120.0
"""How long a server may be silent, or take to end."""
BODY: Final = {"prompt": "Hello", "max_tokens": 16, "temperature": 0, "stream": True, "ignore_eos": True}


def starts(model: Path, bundle: Path, runs: int, longest: int) -> dict[str, Any]:
    """The seconds of `runs` servers after one that is not counted, by name, and what was wrong."""
    found = [started(command(model, bundle, longest)) for _ in range(runs + 1 if runs else 0)][1:]
    whole = [one for one in found if "fault" not in one]
    texts = {one["text"] for one in whole}
    faults = [str(one["fault"]) for one in found if "fault" in one]
    if len(texts) > 1:
        faults.append("servers streamed different texts for one prompt")
    return {"runs": [{key: value for key, value in one.items() if key != "text"} for one in whole], "faults": faults}


def command(model: Path, bundle: Path, longest: int) -> list[str]:
    """The command line of a server on a free port."""
    options = {"bundle": str(bundle), "port": "0", "max-seq-len": str(longest)}
    return [sys.executable, "-m", "engine", "serve", str(model), *(w for k, v in options.items() for w in (f"--{k}", v))]


def started(line: Sequence[str]) -> Mapping[str, Any]:
    """One server: seconds from the start of its process until it was `ready`, as its log says, and until its `first_text`; the
    text that it streamed. In place of them a `fault` if it failed."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            event, last = dict[str, Any](), b""
            while event.get("event") != "ready":
                last, before = process.stderr.readline(), last
                if not last:
                    refuse_shared_card(before.decode(errors="replace"))
                    return {"fault": f"the server ended: {before.decode(errors='replace').strip()}"}
                event = json.loads(last) if last.startswith(b"{") else event
            ready = time.perf_counter() - began
            first, text = streamed(event["port"], began)
            process.send_signal(signal.SIGTERM)
            status = process.wait(SECONDS)
        finally:
            process.kill()
    if status or not text:
        return {"fault": f"the server streamed {text!r} and ended with status {status}"}
    phases = {
        f"{process} {name}": seconds
        for process in ("server", "engine")
        for name, seconds in event.get(f"{process}_phases", {}).items()
    }
    return {"ready": ready, "load": event["load_seconds"], "first_text": first, **phases, "text": text}


def streamed(port: int, began: float) -> tuple[float, str]:
    """Seconds from `began` to the first text of a stream, and the whole text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("POST", "/v1/completions", json.dumps(BODY), {"content-type": "application/json"})
    response, first, text = connection.getresponse(), 0.0, ""
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        text += "".join(choice["text"] for choice in json.loads(line[6:]).get("choices", ()))
        if text and not first:
            first = time.perf_counter() - began
    connection.close()
    return first, text


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each of the seconds."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]} if runs else {}
