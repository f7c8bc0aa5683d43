"""Kernels on a GPU, checked and timed: `python ci/bench/kernels.py CASE`; `--help` lists the cases."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parents[1]), *(path for path in sys.path if Path(path or ".").resolve() != HERE)]

from ci.bench import front  # noqa: E402
from ci.bench.kernels import CASES  # noqa: E402

if __name__ == "__main__":
    sys.exit(front.run("kernels", CASES, sys.argv[1:]))
