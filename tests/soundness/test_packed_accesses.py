"""Random accesses to packed tensors: the prover accepts a kernel only if counting finds no fault at any small size.

The counting shares no code with the compiler: it lists the elements that each block reads and writes, and the bytes that they
are in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.packed_kernels import kernel
from tilec.diagnostics.diagnostic import CompileError


@dataclass(frozen=True)
class Accesses:
    """Block `b` of a row of `K` elements, which has `K // step` blocks or as many rounded up, reads `read_extent` elements from
    `step * b + read` on and writes `write_extent` from `step * b + write` on."""

    access: str
    step: int
    rounded_up: bool
    read: int
    read_extent: int
    write: int
    write_extent: int
    pad: bool
    mask: bool
    multiple: int

    def body(self, size: int | None) -> str:
        """The kernel, for `K` of the launch or a number."""
        k = "K" if size is None else str(size)
        blocks = f"tl.cdiv({k}, {self.step})" if self.rounded_up else f"{k} // {self.step}"
        source, second = ("out", "") if self.access == "InOut" else ("w", f"w: tl.In[tl.i4, {k}], ")
        at, padded = f"{self.step} * b + {self.read}", ", pad=0" * self.pad
        requires = f"    tl.requires(K % {self.multiple} == 0)\n" if size is None else ""
        return (f"def k({second}x: tl.In[tl.f32, {k}], out: tl.{self.access}[tl.i4, {k}]):\n{requires}    tl.grid({blocks})\n"
                f"    b = tl.bid(0)\n"
                f"    t = tl.load({source}, offset={at}, shape={self.read_extent}{padded})\n"
                f"    u = tl.full({self.write_extent}, tl.max(t.astype(tl.i32), 0), tl.i32).astype(tl.i4)\n"
                f"    tl.store(out, u, offset={self.step} * b + {self.write}{', mask=True' * self.mask})\n")  # fmt: skip

    def fault(self, size: int) -> str:
        """What goes wrong at a size; an empty string for nothing."""
        blocks = -(-size // self.step) if self.rounded_up else size // self.step
        reads = [range(self.step * b + self.read, self.step * b + self.read + self.read_extent) for b in range(blocks)]
        writes = [range(self.step * b + self.write, self.step * b + self.write + self.write_extent) for b in range(blocks)]
        inside = range(size)
        if not self.pad and any(e not in inside for one in reads for e in one):
            return "reads outside"
        if not self.mask and any(e not in inside for one in writes for e in one):
            return "writes outside"
        read_bytes, written = ([{e // 2 for e in one if e in inside} for one in boxes] for boxes in (reads, writes))
        if any(a & b for a, b in combinations(written, 2)):
            return "a race of stores"
        if self.access == "InOut" and any(read_bytes[a] & written[b] for a in range(blocks) for b in range(blocks) if a != b):
            return "a race of a load"
        if self.access == "Out" and set().union(*written) != set(range(size // 2)):
            return "not written"
        return ""


@st.composite
def accesses(draw: Any) -> Accesses:
    step = 2 * draw(st.integers(1, 4))
    write = 2 * draw(st.sampled_from([0, 0, 0, 1, -1]))
    return Accesses(
        draw(st.sampled_from(["Out", "InOut"])), step, draw(st.booleans()), draw(st.integers(-2, 3)), draw(st.integers(1, 9)),
        write, draw(st.sampled_from([step, step, step, step + 2, 2])), draw(st.booleans()), draw(st.booleans()),
        draw(st.sampled_from([2, step, step, 2 * step])),
    )  # fmt: skip


def accepted(body: str) -> bool:
    try:
        kernel(body)
    except CompileError as error:
        codes = {one.code for one in error.diagnostics}
        assert not any(code.startswith(("E01", "E02")) for code in codes), (body, str(error))
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(one=accesses(), half=st.integers(1, 12))
def test_of_a_known_size_the_verdict_is_that_of_counting(one: Accesses, half: int) -> None:
    size = 2 * half
    if not one.rounded_up and size < one.step:
        return  # no block
    assert accepted(one.body(size)) == (one.fault(size) == ""), (one.body(size), one.fault(size))


@settings(max_examples=60, deadline=None)
@given(one=accesses())
def test_what_is_accepted_has_no_fault_at_any_small_size(one: Accesses) -> None:
    sizes = [size for size in range(2, 50, 2) if size % one.multiple == 0 and (one.rounded_up or size >= one.step)]
    if accepted(one.body(None)):
        assert not any(map(one.fault, sizes)), one.body(None)


@pytest.mark.parametrize(
    ("access", "extent", "fault"), [("Out", 6, "a race of stores"), ("Out", 4, ""), ("InOut", 4, "a race of a load")]
)
def test_counting_finds_faults(access: str, extent: int, fault: str) -> None:
    """Neither verdict of counting is vacuous."""
    one = Accesses(access, 4, False, 1, 4, 0, extent, True, True, 4)
    assert one.fault(16) == fault and accepted(one.body(None)) == (not fault)


NARROW = """def k(w: tl.In[tl.i4, 2 * H], ids: tl.In[tl.{dtype}, H], out: tl.Out[tl.i32, H, 2]):
    {values}
    tl.grid(H)
    t = tl.load(w, offset={offset}, shape=2, pad=0)
    tl.store(out, (tl.bid(0), 0), t.astype(tl.i32)[None, :])
"""


@pytest.mark.parametrize("offset", ["tl.load(ids, tl.bid(0)) * 2", "tl.load(ids, tl.bid(0)) * 2 + 4"])
@pytest.mark.parametrize(("dtype", "inside"), [("u8", 100), ("i8", 50), ("u16", 30000), ("u32", 1 << 30)])
def test_an_even_offset_that_wraps_in_its_dtype_is_refused(dtype: str, inside: int, offset: str) -> None:
    """As one of a tensor of bytes is: twice 200 is 144 in u8, whose half is not byte 200."""
    assert not accepted(narrow(dtype, offset, None))
    assert accepted(narrow(dtype, offset, inside))


def narrow(dtype: str, offset: str, below: int | None) -> str:
    stated = "pass" if below is None else f"tl.values(ids, 0, {below})"
    return NARROW.format(dtype=dtype, offset=offset, values=stated)
