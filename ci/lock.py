"""Write `requirements.lock` anew: one version of every distribution that an install brings, with the digests of its files; and
`constraints.txt`, the same versions without digests, for an install of the checkout, which has no digest to compare.

    python ci/lock.py [--upgrade NAME ...]

In: the ranges of pyproject.toml (the extras `compiler` and `test`, and the build requirements), the package index configured
for pip and uv, and the versions in the current lock, which are kept if the ranges still allow them and `--upgrade` does not
name them. Out: the lock, for Linux and every version of Python that pyproject.toml allows, and the constraints; neither names
an index. Needs `uv` (`pip install uv`) and an index; nothing is installed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("compiler", "test")
LOCK, CONSTRAINTS = ROOT / "requirements.lock", ROOT / "constraints.txt"


def constraints(lock: str) -> str:
    """The versions of a lock without digests: given any digest, pip would require one of everything, the checkout too."""
    return re.sub(r" \\\n +--hash=\S+", "", lock)


def main() -> int:
    """Run the resolver; returns its exit status, 2 if it is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", nargs="+", default=[], metavar="NAME", help="distributions to take the newest version of")
    arguments = parser.parse_args()
    uv = shutil.which("uv")
    if uv is None:
        print("error: `uv` is not installed; run `pip install uv`", file=sys.stderr)
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lowest = project["project"]["requires-python"].removeprefix(">=")
    with tempfile.TemporaryDirectory() as folder:
        builders = Path(folder) / "build.in"
        builders.write_text("\n".join(project["build-system"]["requires"]) + "\n", encoding="utf-8")
        command = [uv, "pip", "compile", "pyproject.toml", str(builders), "--universal", "--python-version", lowest]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        command += [word for extra in EXTRAS for word in ("--extra", extra)]
        command += [word for name in arguments.upgrade for word in ("--upgrade-package", name)]
        status = subprocess.run([*command, "--quiet", "--output-file", LOCK.name], cwd=ROOT).returncode
    if status == 0:
        CONSTRAINTS.write_text(constraints(LOCK.read_text(encoding="utf-8")), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
