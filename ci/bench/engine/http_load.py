"""A server's process that gets loads over HTTP from another process, and the processors' time that it takes for them.

Both processes are on this machine: what a load shows includes what the client takes of its processors.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.http_job import Job
from ci.bench.engine.ledger import refuse_shared_card
from ci.evidence import ROOT

LAST_SECONDS: Final = 120.0
"""How long a server may take to end."""
CLIENT: Final = "ci.bench.engine.http_client"
SERVER: Final = ("-m", "engine", "serve")


class ServerFailed(RuntimeError):
    """The server ended before it was ready, or not as it should."""


@contextmanager
def serving(folder: Path, options: dict[str, Any], server: Sequence[str] = SERVER) -> Generator[tuple[int, dict[str, Any]]]:
    """A server of a model folder on a free port, until the block ends: its process id, and the `ready` of its log. ServerFailed
    if there is none, or if it does not end in good order."""
    words = [word for name, value in {**options, "port": 0}.items() for word in (f"--{name}", str(value))]
    with subprocess.Popen(
        [sys.executable, *server, str(folder), *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=_environment(),
        cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            event, last = dict[str, Any](), b""
            while event.get("event") != "ready":
                last, before = process.stderr.readline(), last
                if not last:
                    refuse_shared_card(before.decode(errors="replace"))
                    raise ServerFailed(f"the server ended: {before.decode(errors='replace').strip()}")
                event = json.loads(last) if last.startswith(b"{") else event
            reading = threading.Thread(target=deque, args=(process.stderr, 0), daemon=True)  # a full pipe would stop the server
            reading.start()
            yield process.pid, event
            process.send_signal(signal.SIGTERM)
            if status := process.wait(LAST_SECONDS):
                raise ServerFailed(f"the server ended with status {status}")
        finally:
            process.kill()


def client(job: bytes) -> dict[str, Any]:
    """What a client's process saw of a server; RuntimeError if it failed."""
    done = subprocess.run([sys.executable, "-m", CLIENT], input=job, stdout=subprocess.PIPE, env=_environment(), cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"the client ended with status {done.returncode}")
    return json.loads(done.stdout)


def over_http(folder: Path, options: dict[str, Any], job: Job, server: Sequence[str] = SERVER) -> dict[str, Any]:
    """What a client sees of a server of a model folder that gets the loads of `job`, whose port and rows are set here, and the
    microseconds of a processor that the server's process took for each token, requests included."""
    with serving(folder, options, server) as (process, ready):
        before = processor_seconds(process)
        found = client(replace(job, port=ready["port"], rows=ready["rows"]).line())
        spent = processor_seconds(process) - before
    return found | {"server_us_of_a_token": round(1e6 * spent / found["tokens"], 1)}


def processor_seconds(process: int) -> float:
    """Seconds for which a process's threads ran, in it and in the kernel for it (Linux, proc(5): fields 14 and 15)."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _environment() -> dict[str, str]:
    """That of this process, in which the repository is importable."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
