"""A hanging process is ended, and a process that waits for a busy machine is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count

import pytest

from tests.processor_time import ENDED, OVER, STOOD, STOPPED, TICK, Use, finish


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_one_that_computes_for_ever_is_over_its_processor_time() -> None:
    why, output, used = finish(start("print('on', flush=True)\nwhile True: pass"), 0.3)
    assert (why, output) == (OVER, "on\n")
    assert used > 0.3


def test_children_count() -> None:
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"
    assert finish(start(code), 0.3)[0] == OVER


def test_one_that_waits_for_ever_stands_still() -> None:
    assert finish(start("import signal\nsignal.pause()"), 60, still=0.6)[0] == STOOD


def test_one_that_does_not_get_the_processor_does_not_stand_still() -> None:
    """A process that is stopped from outside stands in for it: it is not asleep."""
    process = start("while True: pass")
    os.kill(process.pid, signal.SIGSTOP)
    assert finish(process, 60, still=0.1, until=time.monotonic() + 2.5)[0] == STOPPED


def test_the_clock_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is an hour after the previous one."""
    hours = count()
    monkeypatch.setattr(time, "monotonic", lambda: 3600.0 * next(hours))
    process = subprocess.Popen(
        [sys.executable, "-c", "import time\nfor _ in range(20): time.sleep(0.1); sum(range(10 ** 5))"], start_new_session=True
    )
    use = Use(process.pid, 60.0, 30.0)  # sixty looks; the process lives for a few
    while process.poll() is None:
        assert use.look() == ""
        time.sleep(TICK)
    assert process.returncode == 0
    assert finish(start("print('done')"), 60)[:2] == (ENDED, "done\n")
