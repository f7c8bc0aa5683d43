"""A project of small kernels in a temporary folder, and a build of it with `fake_stages`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.project import fake_stages
from tilec.cache import Store, store_root
from tilec.project.build.driver import BuildResult, build_project
from tilec.project.read.buildfile import read_build_file

KERNEL = '''"""Copy."""
import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """Elements."""


@tilec.kernel
def {name}(x: In[f32, N], out: Out[f32, N], *, BLOCK: Const):
    grid(N // BLOCK)
    store(out, bid(0), load(x, bid(0), shape=BLOCK))
'''
TOOLCHAIN = {"torch-mlir": "1", "llvmlite": "2 sha256:aa", "cuda-bindings": "13", "nvidia-nvjitlink": "13"}


def make(root: Path, names: tuple[str, ...] = ("copy_a", "copy_b"), arch: str = '"sm_90", "sm_100"') -> Path:
    """Writes a project of these kernels with two specialisations each."""
    (root / "kernels_src").mkdir(parents=True)
    lines = [f'[build]\nkernels = "kernels_src"\narch = [{arch}]\n']
    for name in names:
        (root / "kernels_src" / f"{name}.py").write_text(KERNEL.format(name=name))
        lines.append(f'[[kernel]]\nname = "{name}"\nconstants = {{ BLOCK = [128, 256] }}\n')
    (root / "build.toml").write_text("\n".join(lines))
    return root


def build(
    root: Path, *, jobs: int = 2, toolchain: dict[str, str] = TOOLCHAIN, kernels: tuple[str, ...] = (), aligned: bool = False
) -> BuildResult:  # fmt: skip
    """Builds with fake stages."""
    with contextlib.closing(Store(store_root())) as store:
        return build_with(root, store, jobs=jobs, toolchain=toolchain, kernels=kernels, aligned=aligned)


def build_with(
    root: Path, store: Store, *, jobs: int = 2, toolchain: dict[str, str] = TOOLCHAIN, kernels: tuple[str, ...] = (),
    aligned: bool = False,
) -> BuildResult:  # fmt: skip
    """Builds with fake stages and a store."""
    file = read_build_file(root / "build.toml")
    entries = tuple(entry for entry in file.entries if not kernels or entry.name in kernels)
    return build_project(
        file, entries, None, store, toolchain, jobs=jobs, runner=fake_stages.run, preload=(), aligned=aligned
    )  # fmt: skip


def statuses(result: BuildResult) -> list[str]:
    """Status of every artifact, in order."""
    return [item.status for item in result.results]
