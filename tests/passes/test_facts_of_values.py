"""What `values(..., sorted=True, distinct=True)` says of each element, in one declaration or in two: integers that rise leave
room for those around them, and different ones are no more than their dtype has. Enumeration agrees, and shown counterexamples
go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soundness.verdict import examine_function
from tilec.frontend import load_kernel

KERNEL = """import tilec
from tilec import Dim, In, InOut, Out, bid, f32, grid, i32, load, requires, store, u8, values

class B(Dim):
    pass

class T(Dim):
    pass

@tilec.kernel
def k(c: In[{dtype}, B], x: In[f32, {room}], out: Out[f32, B]):
    requires({required})
    grid(B)
    values(c, {range}{flags})
    {also}
    b = bid(0)
    store(out, b, load(x, {index}))
"""
RISING = ", sorted=True, distinct=True"
RIGHT = {
    "before": {"index": "load(c, b) - b"},
    "after": {"index": "load(c, b) + (B - 1 - b)"},
    "shifted": {"index": "load(c, b) - b - 3", "range": "3, T + 3"},
    "apart": {"index": "load(c, b) - b", "flags": ", sorted=True", "also": "values(c, 0, T, distinct=True)"},
    "apart_in_a_wider_range": {
        "index": "load(c, b) - b",
        "flags": ", distinct=True",
        "also": "values(c, 0, 2 * T, sorted=True)",
    },
    "before_the_end": {
        "index": "load(c, B - 1) - 1",
        "flags": ", sorted=True, ends=True",
        "also": "values(c, 0, T, distinct=True)",
    },
    "bytes": {"required": "B >= 2", "dtype": "u8", "room": "256", "range": "0, 1000", "flags": ", distinct=True", "index": "b"},
    "bytes_from_56": {
        "required": "B >= 2",
        "dtype": "u8",
        "room": "200",
        "range": "56, 1000",
        "flags": ", distinct=True",
        "index": "b",
    },
}
WRONG = {
    "one_less": {"index": "load(c, b) - b - 1"},
    "one_more": {"index": "load(c, b) + (B - 1 - b) + 1"},
    "equal": {"index": "load(c, b) - b", "flags": ", sorted=True"},
    "unsorted": {"index": "load(c, b) - b", "flags": ", distinct=True"},
    "apart_and_one_less": {"index": "load(c, b) - b - 1", "flags": ", sorted=True", "also": "values(c, 0, T, distinct=True)"},
    "apart_by_the_narrower_range": {
        "index": "load(c, b) + (B - 1 - b)",
        "range": "0, T + 1",
        "flags": ", sorted=True",
        "also": "values(c, -5, T + 2, distinct=True)",
    },
    "another_start": {"index": "load(c, b) - b - 3", "range": "2, T + 3"},
    "a_byte_less": {
        "required": "B >= 2",
        "dtype": "u8",
        "room": "255",
        "range": "0, 1000",
        "flags": ", distinct=True",
        "index": "b",
    },
    "repeated_bytes": {"required": "B >= 2", "dtype": "u8", "room": "256", "range": "0, 1000", "flags": "", "index": "b"},
}


def kinds(folder: Path, parts: dict[str, str]) -> tuple[str, ...]:
    """The codes with which a kernel is refused, after enumeration."""
    path = folder / "k.py"
    path.write_text(
        KERNEL.format(
            **(
                {"required": "T <= 1 << 29, B >= 2", "dtype": "i32", "room": "T", "range": "0, T", "flags": RISING, "also": ""}
                | parts
            )
        )
    )
    verdict = examine_function(load_kernel(path, {}, root=folder), launches=8)
    assert verdict.kind != "false_accept" and not verdict.wrong_examples, verdict
    return tuple(sorted(verdict.codes))


@pytest.mark.parametrize("name", RIGHT)
def test_room_around_an_element_is_used(tmp_path: Path, name: str) -> None:
    assert kinds(tmp_path, RIGHT[name]) == ()


@pytest.mark.parametrize("name", WRONG)
def test_a_step_further_is_refused(tmp_path: Path, name: str) -> None:
    assert kinds(tmp_path, WRONG[name]) == ("E0301",)
