"""Campaigns against the compiler and what reads its files: `python ci/bench/judges.py CASE`; `--help` lists the cases."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parents[1]), *(path for path in sys.path if Path(path or ".").resolve() != HERE)]

from ci.bench import front  # noqa: E402
from ci.bench.judges import CASES  # noqa: E402

if __name__ == "__main__":
    sys.exit(front.run("judges", CASES, sys.argv[1:]))
