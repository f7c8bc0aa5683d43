"""Ends a process when its parent dies (Linux, prctl(2), PR_SET_PDEATHSIG).

The operating system sends the signal when the thread that forked the process ends for any reason, SIGKILL included. A parent
that died before the call is detected by the parent's process id. On other systems only that check is made, and a process
notices its parent's death at the end of the pipe to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PARENT_DIED: Final = signal.SIGUSR1
"""The signal that the operating system sends to the server when the command dies, and that the command sends to stop it."""
_PR_SET_PDEATHSIG = 1


def die_with(parent: int, death_signal: int) -> None:
    """Have the signal `death_signal` sent to this process when its parent dies; exits if `parent` is no longer its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
