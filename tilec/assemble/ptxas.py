"""PTX to CUBIN through ptxas, in a process of its own, for what nvJitLink leaves out.

nvJitLink assembles for linking. There it takes no notice of `setmaxnreg` ("ignored to maintain compatibility across compilation
units"), and makes a call of the rare path of a division, beside which products of warpgroups run one by one ("due to the
presence of Extern calls"). ptxas writes the names that it is called with into the CUBIN: it runs in a folder of its own, on
names without a path, so that equal PTX gives equal bytes on any machine with the same ptxas.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tilec.toolchain import find_ptxas

MOST_SECONDS: Final = 600
"""Processor seconds of one kernel, far above any: whether it is assembled does not depend on what else a machine does. A build
stops its workers earlier, and this is for what they leave behind."""


def run(ptx: bytes, arch: str) -> tuple[bytes | None, str]:
    """The CUBIN of a module, None where it is refused, and the report."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel").write_bytes(ptx)
        command = [find_ptxas(), f"-arch={arch}", "-O3", "-v", "kernel", "-o", "cubin"]
        with subprocess.Popen(
            command, cwd=folder, env={}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            said = process.communicate()[1]
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return None, f"{said}ptxas was ended after {MOST_SECONDS} s of processor time, or by somebody else"
        made = Path(folder, "cubin")
        return (made.read_bytes() if process.returncode == 0 and made.is_file() else None), said
