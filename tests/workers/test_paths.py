"""Folders are data: modules next to `build.toml`, or in the current folder, are not run by any process of tilec or the
engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.audit import samples
from tests.campaign import chosen
from tests.project import project

ROOT = Path(__file__).resolve().parents[2]
PLANTED = """
__future__ argparse ast base64 bisect click contextlib copy ctypes cuda dataclasses diskcache enum fcntl functools hashlib
heapq importlib inspect islpy itertools json linecache llvmlite logging math ml_dtypes mlir mmap multiprocessing networkx
numpy operator pathlib pickle pkgutil platform queue random re rich runpy secrets select selectors shutil signal sitecustomize
socket sqlite3 string struct subprocess tempfile threading time token tomllib torch_mlir traceback types typing usercustomize
uuid warnings weakref z3 zlib tests kernels_src
""".split()  # noqa: SIM905
"""Most of what tilec or Python imports, so that any import from the folder finds one."""
KERNEL = '''"""Copy."""
import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store


class N(Dim):
    """Elements."""


@tilec.kernel
def copy_a(x: In[f32, N], out: Out[f32, N], *, BLOCK: Const):
    grid(cdiv(N, BLOCK))
    store(out, bid(0), load(x, bid(0), shape=BLOCK, pad=0), mask=True)
'''
SCRIPT = "import sys\nfrom tilec.__main__ import main\nsys.exit(main())\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a kernel, a bundle, and a trap for every module."""
    root = project.make(tmp_path_factory.mktemp("hostile") / "p", names=("copy_a",), arch='"sm_90"')
    path = root / "build.toml"
    path.write_text(path.read_text().replace("[128, 256]", "[128]"))
    (root / "kernels_src" / "copy_a.py").write_text(KERNEL)
    (root / "a.bundle").write_bytes(samples.bundle({"add": samples.text("add")}))
    trap = f"open({str(root.parent / 'ran')!r}, 'a').write(__name__ + '\\n')\nraise ImportError('a trap')\n"
    for name in PLANTED:
        if name != "kernels_src":
            (root / f"{name}.py").write_text(trap)
        (root / "kernels_src" / f"{name}.py").write_text(trap)
    scripts = root.parent / "bin"
    scripts.mkdir()
    (scripts / "tilec").write_text(SCRIPT)
    return root


def run(folder: Path, *command: str, env: dict[str, str] | None = None, python: str = sys.executable) -> str:
    """Runs a Python command in the folder; returns its output. Fails if a trap ran."""
    ran = folder.parent / "ran"
    ran.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(folder.parent / "store")} | (env or {})
    done = subprocess.run([python, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    assert not ran.exists(), ran.read_text()
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(folder: Path) -> str:
    return str(folder.parent / "bin" / "tilec")


COMMANDS = (
    "check --proofs",
    "build",
    "dump copy_a --stage ptx",
    "graph copy_a -o x.svg",
    "emulate copy_a --dims N=200",
    "explain E0301",
    "cache size",
    "cache verify",
    "bundle list a.bundle",
    "bundle verify a.bundle",
    "audit a.bundle --launches 0 --no-rebuild -j 2",
)


LIKE_OTHERS = ("emulate", "graph", "dump", "audit")
"""Commands that start their workers as `check` and `build` do; excluded from the default run."""


@pytest.mark.parametrize("command", chosen(COMMANDS, lambda command: command.split()[0] not in LIKE_OTHERS))
def test_no_command_runs_what_lies_in_the_folder(folder: Path, command: str) -> None:
    assert run(folder, script(folder), *command.split())


@pytest.mark.parametrize("command", ["check --json -j 2", "explain E0301"])
def test_python_m_tilec(folder: Path, command: str) -> None:
    assert run(folder, "-m", "tilec", *command.split())


def test_python_m_engine(folder: Path) -> None:
    assert "--model" in run(folder, "-m", "engine", "--help")


def test_another_checkout_runs_no_worker_of_this_one(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("*.bundle"))
    (other / "tilec").mkdir()
    (other / "tilec" / "__init__.py").write_text((folder / "random.py").read_text())
    store = {"TILEC_CACHE_DIR": str(tmp_path / "store")}
    ran = folder.parent / "ran"
    ran.unlink(missing_ok=True)
    done = run(other, script(folder), "check", "--json", env=store)
    assert '"proven"' in done and not ran.exists()
    assert '"proven"' in run(other, "-P", "-m", "tilec", "check", "--json", env=store) and not ran.exists()


@cache
def others() -> tuple[str, ...]:
    """This Python, and the other installed versions that tilec supports."""
    found = [sys.executable]
    for version in ("3.11", "3.12", "3.13"):
        path = shutil.which(f"python{version}")
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            found.append(path)
    return tuple(found)


ASK = """
import os, sys
from prog import startup
print(os.getcwd() in sys.path, sys.path[0])
"""


@pytest.mark.parametrize("python", others())
@pytest.mark.parametrize(
    ("command", "given", "clean"),
    [
        (("-m", "prog"), "{good}", True),
        (("-mprog",), "{good}", True),
        (("-Bm", "prog", "-m", "x"), "{good}", True),
        (("-P", "-m", "prog"), "{good}", True),
        (("-m", "prog"), ":{good}", True),
        (("-P", "-m", "prog"), ".:{good}", True),
        (("-m", "prog"), "{here}:{good}", False),  # an explicitly named folder is intended
        (("-m", "other"), "{good}", False),  # a third-party program, which only imports this one
    ],
)
def test_how_a_program_forgets_the_folder(
    tmp_path: Path, python: str, command: tuple[str, ...], given: str, clean: bool
) -> None:
    good, folder_here = tmp_path / "good", tmp_path / "here"
    (good / "prog").mkdir(parents=True)
    folder_here.mkdir()
    shutil.copy(ROOT / "tilec" / "startup.py", good / "prog")
    (good / "prog" / "__init__.py").write_text("from prog import startup\nstartup.forget_current_folder('prog')\n")
    (good / "prog" / "__main__.py").write_text(ASK)
    (good / "other").mkdir()
    (good / "other" / "__init__.py").write_text("import prog\n")
    (good / "other" / "__main__.py").write_text(ASK)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = given.format(good=good, here=folder_here)
    done = subprocess.run([python, *command], cwd=folder_here, env=environment, capture_output=True, text=True)
    assert done.stdout.split()[:1] == [str(not clean)], done.stderr


WORKERS = """
import os, sys
from tilec.workers.call import call
print(call(os.getppid, what="x") != os.getpid(), call(sys.path.copy, what="x").count(os.getcwd()), call(os.getcwd, what="x"))
"""


@pytest.mark.parametrize("python", others())
def test_workers_of_every_python(folder: Path, tmp_path: Path, python: str) -> None:
    (tmp_path / "ask.py").write_text(WORKERS)
    printed = run(folder, str(tmp_path / "ask.py"), python=python)
    assert printed.split() == ["True", "0", str(folder)]
