"""Kernels of tests that are given as texts: read from a file, as a user's are, and examined."""

from __future__ import annotations

from pathlib import Path

from tests.soundness.verdict import Verdict, examine_function
from tilec.frontend import load_kernel
from tilec.ir.core import Function


def function_of(folder: Path, text: str) -> Function:
    """The kernel of a text, which is written to a file of `folder`."""
    path = folder / "k.py"
    path.write_text(text, encoding="utf-8")
    return load_kernel(path, {})


def verdict_of(folder: Path, text: str, seed: int = 0) -> Verdict:
    """The prover's verdict on the kernel of a text, and what running all blocks shows; `seed` draws the launches."""
    return examine_function(function_of(folder, text), seed)
