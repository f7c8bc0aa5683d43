"""Creates a project: one kernel, its reference, a test and a build file that work unchanged, or a copy of the shipped kernels.

In: a folder and a name. Out: the complete folder, or the folder as it was before.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tilec.shipped import project_folder, shipped_files
from tilec.untrusted.output_tree import write_tree

FILES: Final[dict[str, str]] = {
    "build.toml": """[build]
arch = ["sm_90", "sm_100", "sm_120"]

# One artifact for each combination of the constants. A row has N elements, all of which one block holds.
[[kernel]]
name = "NAME"
constants = { E = ["bf16", "f16"], N = [1000, 4096] }
budget = { spill_bytes = 0 }
""",
    "kernels_src/NAME.py": '''"""Softmax of each row."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def NAME(x: tl.In[E, T, N], out: tl.Out[E, T, N], *, E: tl.Const, N: tl.Const):
    """`out[t] = exp(x[t] - max(x[t])) / sum(exp(x[t] - max(x[t])))`; one row per block, in f32, rounded once."""
    tl.grid(T)
    row = tl.bid(0)
    v = tl.load(x, (row, 0), shape=(1, N)).astype(tl.f32)
    weights = tl.exp(v - tl.max(v, axis=1)[:, None])
    tl.store(out, (row, 0), tl.astype(weights / tl.sum(weights, axis=1)[:, None], E))
''',
    "kernels_src/reference.py": '''"""What the kernels compute, in float64: what `tilec run` and `tilec test` compare with.

Parameters are named like the kernel's inputs, scalars, dims or constants; it returns what the kernel writes.
"""

import numpy as np


def NAME(x):
    wide = x.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
''',
    "kernels_src/baseline.py": '''"""Baselines of `tilec bench`: functions of torch tensors, by kernel name."""

import torch


def NAME(x):
    return torch.softmax(x, dim=1)
''',
    "tests/test_kernels.py": '''"""Every kernel is proven, and computes what its reference says. Run: pytest"""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_kernels_are_right():
    subprocess.run([sys.executable, "-P", "-m", "tilec", "test", "--project", str(PROJECT)], check=True)
''',
    "README.md": """# NAME

    tilec check --proofs      # prove it safe, for every architecture of build.toml
    tilec run NAME            # run it at small sizes and compare with its reference
    tilec test                # several sizes of every specialisation
    tilec bench NAME          # time it on a GPU, compared with torch and the roofline; without a GPU, its minimum time
    tilec build               # CUBINs and launch contracts, in artifacts/build

On a machine with the GPU and no compiler:

    import torch
    from tilec.runtime import load

    kernel = load("artifacts/build/sm_90a/NAME-E=bf16-N=4096.json")
    x = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    kernel({"x": x, "out": out}, stream=torch.cuda.current_stream())
""",
    ".gitignore": "artifacts/\n__pycache__/\n",
}
"""The files of a new project by path; `NAME` in paths and texts stands for the kernel's name."""


def names_used() -> set[str]:
    """Names that the files of a new project use or define, which its kernel therefore cannot have."""
    nodes = [node for path, text in FILES.items() if path.endswith(".py") for node in ast.walk(ast.parse(text))]
    found = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.arg for node in nodes if isinstance(node, ast.arg)
    }
    found |= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    found |= {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {Path(path).stem for path in FILES if path.endswith(".py")}
    return found - {"NAME"}


def scaffold(folder: Path, name: str) -> list[str]:
    """Write a project into `folder`, which must be missing or empty. Returns the files, in order. OSError if writing fails."""
    return _write(folder, {path.replace("NAME", name): text.replace("NAME", name) for path, text in FILES.items()})


def copy_shipped(folder: Path) -> list[str]:
    """Like `scaffold`, with the project that tilec ships."""
    source = project_folder()
    return _write(folder, {str(name): (source / name).read_text(encoding="utf-8") for name in shipped_files(source)})


def _write(folder: Path, files: Mapping[str, str]) -> list[str]:
    write_tree(folder, {path: text.encode() for path, text in files.items()})
    return list(files)
