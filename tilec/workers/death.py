"""A process that dies with its parent (Linux, prctl(2), PR_SET_PDEATHSIG).

The kernel sends the signal when the thread that made the process ends, for whatever reason, SIGKILL included; what was made
before a parent died is told by its parent's id. Elsewhere than on Linux nothing happens here, and the end of the pipe to the
parent has to do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PARENT_DIED: Final = signal.SIGUSR1
"""What the kernel tells the server when the command dies, and the command when it wants no more."""
_PR_SET_PDEATHSIG = 1


def die_with(parent: int, told: int) -> None:
    """Send this process the signal `told` when its parent dies; ends it where `parent` is no longer its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, told, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
