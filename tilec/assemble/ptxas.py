"""PTX to CUBIN through ptxas, in a separate process, for PTX that nvJitLink does not handle well.

nvJitLink compiles for linking. It ignores `setmaxnreg` ("ignored to maintain compatibility across compilation units"), and
turns the slow path of a division into a call, which serializes `wgmma` ("due to the presence of Extern calls"). ptxas writes
its file arguments into the CUBIN, so it runs in a temporary folder on names without a path: equal PTX gives equal bytes on any
machine with the same ptxas.
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
"""Processor seconds allowed per kernel, far above what any needs. Processor time, unlike wall time, does not depend on the load
of the machine. A build stops its workers earlier; this limit is for processes that outlive them."""


def run(ptx: bytes, arch: str) -> tuple[bytes | None, str]:
    """The CUBIN of a module (None if it is rejected) and ptxas's report."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel").write_bytes(ptx)
        command = [find_ptxas(), f"-arch={arch}", "-O3", "-v", "kernel", "-o", "cubin"]
        with subprocess.Popen(
            command, cwd=folder, env={}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            output = process.communicate()[1]
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return None, f"{output}ptxas was ended after {MOST_SECONDS} s of processor time, or by somebody else"
        cubin = Path(folder, "cubin")
        return (cubin.read_bytes() if process.returncode == 0 and cubin.is_file() else None), output
