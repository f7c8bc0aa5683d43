"""What a refused declaration of an op asks for, works when it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilec.frontend.interface import read_interface
from tilec.ops.declaration import declare
from tilec.runtime import LaunchError

KERNEL = '''"""An `Out` of its own dtype and extent."""

import tilec as tl


class N(tl.Dim):
    """elements"""


class M(tl.Dim):
    """results"""


class O(tl.Element):
    """the dtype of the results"""


@tl.kernel
def k(x: tl.In[tl.f32, N], out: tl.Out[O, M], *, O: tl.Const):
    tl.grid(M)
    tl.store(out, tl.bid(0), 0)
'''


def allocated(folder: Path, constants: dict[str, Any], dims: dict[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Dtype and shape of what a call with 64 numbers allocates."""
    path = folder / "k.py"
    path.write_text(KERNEL, encoding="utf-8")
    declaration = declare(read_interface(path), (), constants, lambda _: dims)
    return declaration.shapes(declaration.outputs, declaration.known({"x": ("f32", (64,))}, {}))


def test_a_dtype_is_a_constant_and_an_extent_a_dim(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r'E0919.*determines `O`; required `constants=\{"O": "bf16"\}` where the op is made'):
        allocated(tmp_path, {}, {"M": 8})
    with pytest.raises(LaunchError, match=r'E0919.*determines `M`; required `dims=lambda known: \{"M": ...\}` where the op'):
        allocated(tmp_path, {"O": "bf16"}, {})
    assert allocated(tmp_path, {"O": "bf16"}, {"M": 8}) == [("bf16", (8,))]
