"""A loop over constants or a tuple builds what its repetitions, written one by one, build."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.frontend_kernels import compile_text, text_of
from tilec.ir.text.printer import print_function

LOAD = "grid(1)\nv = load(x, 0, shape=4, pad=0)\n"
SAME = {
    "numbers": ("for i in tilec.static_range(1, 6, 2):\n    v = v * i", "v = v * 1\nv = v * 3\nv = v * 5"),
    "numbers that fall": ("for i in tilec.static_range(2, 0, -1):\n    v = v + i", "v = v + 2\nv = v + 1"),
    "no numbers": ("for i in tilec.static_range(0):\n    v = v + i", ""),
    "a tuple": ("for a in (v, 2.0, v * v):\n    v = v + a", "a, b, c = v, 2.0, v * v\nv = v + a\nv = v + b\nv = v + c"),
    "pairs": ("for a, b in ((1, v), (2, v)):\n    v = a * b", "c = v\nv = 1 * v\nv = 2 * c"),
    "a name that changes its type": (
        "a = 1\nfor i in tilec.static_range(2):\n    a = a * v\nv = a",
        "a = 1\na = a * v\na = a * v\nv = a",
    ),
    "a tuple that grows": (
        "a = ()\nfor i in tilec.static_range(3):\n    a = (*a, v + i)\nv = a[2] - a[-3]",
        "a = v + 0\nb = v + 1\nc = v + 2\nv = c - a",
    ),
    "a tuple put together": (
        "a = (1, 2) + (3, 4)\nfor b in a[1::2] + a[:1]:\n    v = v * b",
        "v = v * 2\nv = v * 4\nv = v * 1",
    ),
    "its last number": (
        "for i in tilec.static_range(3):\n    v = v + i\nv = v * i",
        "v = v + 0\nv = v + 1\nv = v + 2\nv = v * 2",
    ),
    "an exit": (
        "for i in tilec.static_range(9):\n    if i == 1:\n        continue\n    if i == 3:\n        break\n    v = v + i",
        "v = v + 0\nv = v + 2",
    ),
    "in a loop of the kernel": (
        "for j in range(N):\n    for i in tilec.static_range(2):\n        v = v + i",
        "for j in range(N):\n    v = v + 0\n    v = v + 1",
    ),
    "around a loop of the kernel": (
        "for i in tilec.static_range(2):\n    for j in range(N):\n        v = v + i",
        "for j in range(N):\n    v = v + 0\nfor j in range(N):\n    v = v + 1",
    ),
    "a launch fact": ("for i in tilec.static_range(1, 3):\n    requires(N > i)", "requires(N > 1)\nrequires(N > 2)"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_operations(tmp_path: Path, name: str) -> None:
    found, expected = (_built(tmp_path, body) for body in SAME[name])
    assert found == expected


def _built(tmp_path: Path, body: str) -> str:
    return print_function(compile_text(tmp_path, text_of(LOAD + body + "\nstore(out, 0, v, mask=True)")))


Item = str | tuple[int, int, int, list[Any]]
"""A statement, or a loop at compile time: its bounds, its step, its body."""
_BODIES = st.recursive(
    st.sampled_from(["v = v + {0}", "v = v * v", "a = {0}", "if {0} > 1:\n    v = v + a\nelse:\n    a = a + {0}"]),
    lambda inner: st.tuples(st.integers(-2, 2), st.integers(-2, 3), st.integers(1, 2), st.lists(inner, min_size=1, max_size=2)),
    max_leaves=4,
)


def _looped(item: Item, depth: int) -> str:
    """The text of an item with loops at compile time."""
    if isinstance(item, str):
        return item.format("i0" if depth == 0 else f"i{depth}")
    start, stop, step, inner = item
    lines = "\n".join(_looped(one, depth + 1) for one in inner)
    return f"for i{depth + 1} in tilec.static_range({start}, {stop}, {step}):\n" + textwrap.indent(lines, "    ")


def _written(item: Item, number: int) -> str:
    """The same without loops."""
    if isinstance(item, str):
        return item.format(number)
    start, stop, step, inner = item
    return "\n".join(_written(one, i) for i in range(start, stop, step) for one in inner)


@settings(max_examples=60, deadline=None)
@given(items=st.lists(_BODIES, min_size=1, max_size=3))
def test_random_nests(tmp_path_factory: pytest.TempPathFactory, items: list[Item]) -> None:
    folder = tmp_path_factory.mktemp("nests")
    start = "i0, a = 0, 1\n"
    found = _built(folder, start + "\n".join(_looped(one, 0) for one in items))
    assert found == _built(folder, start + "\n".join(_written(one, 0) for one in items))
