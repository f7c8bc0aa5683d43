"""PTX to CUBIN through ptxas, in a process of its own, for what nvJitLink leaves out.

nvJitLink assembles for linking. There it takes no notice of `setmaxnreg` ("ignored to maintain compatibility across compilation
units"), and makes a call of the rare path of a division, beside which products of warpgroups run one by one ("due to the
presence of Extern calls"). ptxas writes the names that it is called with into the CUBIN: it runs in a folder of its own, on
names without a path, so that equal PTX gives equal bytes on any machine with the same ptxas.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tilec.output import Output
from tilec.toolchain import find_ptxas

MOST_SECONDS: Final = 600
"""Of one kernel, far above any; a build stops its workers earlier, and this is for what they leave behind."""


def run(ptx: bytes, arch: str) -> tuple[bytes | None, str]:
    """The CUBIN of a module, None where it is refused, and the report."""
    with tempfile.TemporaryDirectory() as folder:
        Output(Path(folder), None).write("kernel", ptx, durable=False)
        command = [find_ptxas(), f"-arch={arch}", "-O3", "-v", "kernel", "-o", "cubin"]
        try:
            done = subprocess.run(
                command, cwd=folder, env={}, capture_output=True, text=True, errors="replace", check=False, timeout=MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            return None, f"ptxas was still at work after {MOST_SECONDS} s"
        made = Path(folder, "cubin")
        return (made.read_bytes() if done.returncode == 0 and made.is_file() else None), done.stderr
