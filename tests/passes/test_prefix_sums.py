"""Compaction: elements that satisfy a condition are written side by side, at places that a prefix sum counts. The prover knows
that the sums rise by the elements that are summed; every verdict is compared with running all blocks at small sizes."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests import campaign
from tests.soundness.arithmetic import Tile, evaluate
from tests.soundness.verdict import Verdict, examine_function
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Function, Value
from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.declared_facts import consistency
from tilec.passes.prover.prefix_sums import PrefixSums
from tilec.passes.prover.prove import prove

HEAD = '''"""Compaction."""
from typing import Literal
import tilec
from tilec import (Dim, In, InOut, arange, bid, cumsum, f32, flip, full, grid, i8, i32, load, minimum, requires, scan, scatter,
                   store, values, where)
class B(Dim): """blocks"""
class T(Dim): """places"""
@tilec.function
def plus(a, b):
    """Their sum."""
    return a + b
@tilec.kernel
'''
COMPACT = """def kernel(x: In[i32, B, 16], starts: In[i32, Literal["B + 1"]], out: InOut[i32, T]):
    grid(B)
    values(starts, 0, T + 1, sorted=True)
    begin, end = load(starts, bid(0)), load(starts, bid(0) + 1)
    v = load(x, (bid(0), 0), shape=(1, 16)).reshape(16)
    kept = v > 0
    place = begin + cumsum(where(kept, 1, 0), 0, exclusive=True)
    scatter(out, where((begin <= place) & (place < end) & kept, place, T), v, mask=True)
"""
COUNTS = """def kernel(x: In[i8, B, 16], starts: In[i32, Literal["B + 1"]], out: InOut[i8, T]):
    grid(B)
    values(starts, 0, T + 1, sorted=True)
    values(x, 0, 4)
    begin, end = load(starts, bid(0)), load(starts, bid(0) + 1)
    v = load(x, (bid(0), 0), shape=(1, 16)).reshape(16)
    count = minimum(v.astype(i32) & 127, 3)
    place = begin + cumsum(count, 0, exclusive=True)
    scatter(out, where((place < end) & (count > 0), place, T), v, mask=True)
"""
ROWS = """def kernel(x: In[f32, B, 4, 16], out: InOut[f32, B, 4, 16]):
    grid(B)
    v = load(x, (bid(0), 0, 0), shape=(1, 4, 16)).reshape((4, 16))
    kept = v > 0
    place = cumsum(where(kept, 1, 0), 1, exclusive=True)
    row = arange(4).reshape((4, 1)).broadcast_to((4, 16))
    scatter(out, (bid(0), row, where(kept, place, 16)), v, mask=True)
"""
LOOP = """def kernel(x: In[f32, B, 16], starts: In[i32, B], out: InOut[f32, T]):
    grid(1)
    requires(B <= 1024)
    values(starts, 0, T)
    for i in range(B):
        v = load(x, (i, 0), shape=(1, 16)).reshape(16)
        kept = v > 0
        place = load(starts, i) + cumsum(where(kept, 1, 0), 0, exclusive=True)
        scatter(out, where(kept, place, T), v, mask=True)
"""
TEXTS = {"compact": COMPACT, "counts": COUNTS, "rows": ROWS, "loop": LOOP}
EXCLUSIVE = "cumsum(where(kept, 1, 0), 0, exclusive=True)"
INCLUSIVE = "cumsum(where(kept, 1, 0), 0)"
WRITE = "scatter(out, where((begin <= place) & (place < end) & kept"
DOWN = f"where(kept, {EXCLUSIVE}, 4)"
COLUMN = "arange(16).reshape((1, 16)).broadcast_to((4, 16))"

ACCEPTED = {
    "exclusive": ("compact", "", ""),
    "inclusive less one": ("compact", EXCLUSIVE, f"{INCLUSIVE} - 1"),
    "inclusive": ("compact", EXCLUSIVE, INCLUSIVE),
    "inclusive, from one before": ("compact", "begin + cumsum", "begin - 1 + cumsum"),
    "inclusive, up to the end": ("compact", f"{EXCLUSIVE}\n", f"{INCLUSIVE}\n    end = end + 1\n"),
    "inside the bounds alone": ("compact", "begin + cumsum", "cumsum"),
    "in reverse": ("compact", EXCLUSIVE, "cumsum(where(kept, 1, 0), 0, exclusive=True, reverse=True)"),
    "from the end": ("compact", f"begin + {EXCLUSIVE}", f"end - {INCLUSIVE}"),
    "a sum by the author": ("compact", EXCLUSIVE, "scan(plus, where(kept, 1, 0), 0) - 1"),
    "fewer than are counted": ("compact", "< end) & kept", "< end) & (v > 2)"),
    "two places for each": ("compact", "where(kept, 1, 0)", "where(kept, 2, 0)"),
    "the mask in reverse": ("compact", "kept = v > 0\n", "kept = flip(where(v > 0, 1, 0), 0) > 0\n"),
    "a cast": ("compact", "where(kept, 1, 0)", "kept.astype(i32)"),
    "wide places": ("compact", "where(kept, 1, 0)", "where(kept, 1, 0) + where(kept, 1, 0)"),
    "eight elements": ("compact", "16", "8"),
    "64 elements": ("compact", "16", "64"),
    "counts": ("counts", "", ""),
    "rows": ("rows", "", ""),
    "columns": ("rows", "(bid(0), row, where(kept, place, 16))", f"(bid(0), {DOWN}, {COLUMN})"),
    "a comparison of floats, twice": ("rows", "where(kept, place, 16)", "where(v > 0, place, 16)"),
    "loop": ("loop", "", ""),
}
REFUSED = {
    "up to the end and more": ("compact", "(place < end)", "(place <= end)", "E0401"),
    "inclusive, no end": (
        "compact",
        f"{EXCLUSIVE}\n    {WRITE}",
        f"{INCLUSIVE}\n    {WRITE}".replace("(place < end) & ", ""),
        "E0401",
    ),
    "no end": ("compact", "& (place < end) ", "", "E0401"),
    "not sorted": ("compact", ", sorted=True", "", "E0401"),
    "another mask is written": ("compact", "< end) & kept", "< end) & (v > -2)", "E0404"),
    "all lanes are written": ("compact", "(place < end) & kept", "(place < end)", "E0404"),
    "the others are written": ("compact", "(place < end) & kept", "(place < end) & (v <= 0)", "E0404"),
    "another mask is summed": ("compact", "where(kept, 1, 0)", "where(v > 2, 1, 0)", "E0404"),
    "numbers that may fall": ("compact", "where(kept, 1, 0)", "where(kept, 1, -1)", "E0404"),
    "the mask in reverse": ("compact", "where(kept, 1, 0)", "flip(where(kept, 1, 0), 0)", "E0404"),
    "sums in reverse order": ("compact", EXCLUSIVE, f"flip({EXCLUSIVE}, 0)", "E0404"),
    "half of the place": ("compact", EXCLUSIVE, f"{EXCLUSIVE} // 2", "E0404"),
    "a bit of the place": ("compact", EXCLUSIVE, f"({EXCLUSIVE} & 14)", "E0404"),
    "less its position": ("compact", EXCLUSIVE, f"{EXCLUSIVE} - arange(16)", "E0404"),
    "counts that may be 0": ("counts", "(count > 0)", "(count >= 0)", "E0404"),
    "another comparison of floats": ("rows", "where(kept, place, 16)", "where(v >= 0, place, 16)", "E0404"),
    "another number": ("rows", "where(kept, place, 16)", "where(v > -1, place, 16)", "E0404"),
    "another tile": ("rows", "where(kept, place, 16)", "where(-v > 0, place, 16)", "E0404"),
    "the wrong axis": ("rows", "1, exclusive=True)", "0, exclusive=True)", "E0404"),
    "a row for all": ("rows", "arange(4)", "(arange(4) // 2)", "E0404"),
}


def function_of(folder: Path, text: str) -> Function:
    path = folder / "author.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_kernel(path, {})


def verdict_of(folder: Path, name: str, old: str, new: str) -> Verdict:
    assert old in TEXTS[name]
    return examine_function(function_of(folder, TEXTS[name].replace(old, new)))


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_and_nothing_goes_wrong(tmp_path: Path, name: str) -> None:
    verdict = verdict_of(tmp_path, *ACCEPTED[name])
    assert verdict.kind == "accepted", verdict.diagnostics or verdict.fault
    assert verdict.launches


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused(tmp_path: Path, name: str) -> None:
    *edit, code = REFUSED[name]
    verdict = verdict_of(tmp_path, *edit)
    assert verdict.kind == "refused_confirmed", verdict
    assert verdict.codes == (code,) or (code == "E0404" and verdict.codes == ("E0306",)), verdict.codes


MASKS = ("where(kept, 1, 0)", "where(v > 1, 1, 0)", "where(v >= 0, 1, 0)", "where(kept, 1, -1)", "where(kept, 3, 1)",
         "where((v > 0) | (v < -2), 1, 0)", "where(kept, 1, 0) * (arange(16) & 1)", "flip(where(kept, 1, 0), 0)")  # fmt: skip
WRITTEN = ("kept", "(v > 1)", "(v >= 0)", "(kept & (v < 3))", "(arange(16) < 8)", "(v == v)", "(kept | (v == -1))")
WORDS = ("", ", exclusive=True", ", reverse=True", ", exclusive=True, reverse=True")
FORMS = ("begin + {}", "begin + {} - 1", "end - {}", "end - 1 - {}", "begin + {} * 2", "begin + {} + arange(16)",
         "begin + ({} ^ 1)", "begin + flip({}, 0)")  # fmt: skip
BOUNDS = (
    "(begin <= place) & (place < end) & ",
    "(begin <= place) & (place <= end) & ",
    "(place < end) & ",
    "(begin <= place) & ",
)


def random_compaction(r: random.Random) -> str:
    """A compaction, with pieces that often are wrong."""

    def one(choices: tuple[str, ...]) -> str:
        return choices[0] if r.random() < 0.4 else r.choice(choices)

    position = one(FORMS).format(f"cumsum({one(MASKS)}, 0{r.choice(WORDS)})")
    text = COMPACT.replace(f"begin + {EXCLUSIVE}", position).replace("< end) & kept", f"< end) & {one(WRITTEN)}")
    return text.replace("(begin <= place) & (place < end) & ", one(BOUNDS))


@pytest.mark.parametrize("seed", campaign.first(3, range(20)))
def test_no_accepted_compaction_writes_an_element_twice(tmp_path: Path, seed: int) -> None:
    r = random.Random(f"compaction {seed}")
    kinds = list[str]()
    for _ in range(8):
        text = random_compaction(r)
        verdict = examine_function(function_of(tmp_path, text), seed, launches=40)
        assert verdict.kind != "false_accept", (text, verdict.fault)
        kinds.append(verdict.kind)
    assert "accepted" in kinds and "refused_confirmed" in kinds


def all_scans(shape: tuple[int, int], axis: int) -> str:
    """A kernel of the four sums of a tile along an axis, two of them written by the author too."""
    scans = [f"cumsum(v, {axis}{words})" for words in WORDS]
    scans += [f"scan(plus, v, {axis}{words})" for words in ("", ", reverse=True")]
    return f"""def kernel(x: In[i32, {shape[0]}, {shape[1]}], out: InOut[i32, {shape[0]}, {shape[1]}]):
    grid(1)
    values(x, 0, 100)
    v = load(x, (0, 0), shape={shape}).permute((1, 0)).permute((1, 0))
    store(out, (0, 0), {" + ".join(scans)})
"""


def evaluated(function: Function, r: random.Random) -> dict[Value, Tile]:
    """Every value of a kernel without control, for drawn contents of memory."""
    values = dict[Value, Tile]()
    for op in function.body.ops:
        if isinstance(op, ops.Load):
            values[op.result] = [r.randrange(100) for _ in range(op.result.tile.size)]
        elif op.results:
            values[op.result] = evaluate(op, [values[operand] for operand in op.operands])
    return values


@pytest.mark.parametrize("extent", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_are_found_and_are_what_they_are_called(tmp_path: Path, extent: int, axis: int) -> None:
    """Each of the four scans of a tile is found, and every value that is called a prefix sum is one."""
    shape = (4, extent) if axis else (extent, 4)
    function = function_of(tmp_path, all_scans(shape, axis))
    values, kinds = evaluated(function, random.Random(extent)), set[tuple[bool, bool]]()
    for value, one in PrefixSums().find(function).sums.items():
        assert values[value] == by_definition(values[one.tile], one.tile.tile.shape, one.axis, one.reverse, one.own)
        if one.tile.tile.shape == shape and one.axis == axis:
            kinds.add((one.reverse, one.own))
    assert len(kinds) == 4


def test_sums_have_one_number_if_they_are_of_one_tile_in_one_direction(tmp_path: Path) -> None:
    """Also where a value is the sum of several tiles, which are each other's reshapes."""
    function = function_of(
        tmp_path,
        """def kernel(x: In[i32, 2, 8], out: InOut[i32, 8]):
    grid(1)
    values(x, 0, 100)
    a, b = load(x, (0, 0), shape=(1, 8)).reshape((8,)), load(x, (1, 0), shape=(1, 8)).reshape((8,))
    again = a.reshape((2, 4)).reshape((8,))
    store(out, 0, cumsum(again, 0, exclusive=True) + cumsum(b, 0, exclusive=True) + cumsum(b, 0) + cumsum(b, 0, reverse=True))
""",
    )
    tiles = dict[int, set[tuple[Value, int, bool]]]()
    for one in PrefixSums().find(function).sums.values():
        tiles.setdefault(one.number, set()).add((one.tile, one.axis, one.reverse))
    assert len(tiles) >= 3 and all(len(same) == 1 for same in tiles.values())


def by_definition(tile: Tile, shape: tuple[int, ...], axis: int, reverse: bool, own: bool) -> Tile:
    at = dict(zip(itertools.product(*map(range, shape)), tile, strict=True))
    found = Tile()
    for position in at:
        others = range(position[axis] + 1, shape[axis]) if reverse else range(position[axis])
        summed = [*others, position[axis]] if own else others
        found.append(sum(at[(*position[:axis], other, *position[axis + 1 :])] for other in summed))
    return found


@pytest.mark.parametrize("wrong", ["reduce max", "a bit"])
def test_a_tree_with_a_mistake_is_no_sum(tmp_path: Path, wrong: str) -> None:
    """The additions of a scan of 16, with another maximum, or another bit of the position: the whole is not called a sum."""
    function = function_of(tmp_path, COMPACT)
    whole = max(PrefixSums().find(function).sums, key=lambda value: value.tile.rank == 1)
    assert whole.tile.shape == (16,)
    for op in function.body.walk():
        if wrong == "reduce max" and isinstance(op, ops.Reduce):
            op.kind = "sum"
        if wrong == "a bit" and isinstance(op, ops.Butterfly) and op.mask == 1:
            op.mask = 0
    assert whole not in PrefixSums().find(function).sums


@pytest.mark.parametrize(("least", "largest"), [(0, 1), (0, 2), (-1, 1)])
def test_facts_about_sums_hold_for_every_tile(least: int, largest: int) -> None:
    """All rows of three elements: the facts are true of their sums, and of no other numbers."""
    atoms = Atoms()
    own = [terms.of(atoms.make(position, terms.Kind.OPAQUE, "m", (least, largest))) for position in range(3)]
    label, ends, bounds = f"{terms.SUMS}0", (terms.const(least), terms.const(largest)), (2 * least, 2 * largest)
    sums = [atoms.loaded(label, (terms.const(position), *ends, own[position]), bounds) for position in range(3)]
    facts = consistency([terms.Formula("ge", terms.of(atom)) for atom in sums])
    mask = [poly.atom for poly in own]
    for elements in itertools.product(range(least, largest + 1), repeat=3):
        real = [sum(elements[:position]) for position in range(3)]
        for numbers in itertools.product(range(2 * least, 2 * largest + 1), repeat=3):
            values = dict(zip([*mask, *sums], [*elements, *numbers], strict=True))
            holds = all(terms.holds(fact, lambda atom, known=values: known[atom]) for fact in facts)
            assert holds == (list(numbers) == real)


def test_sums_of_two_rows_have_nothing_to_do_with_each_other() -> None:
    atoms = Atoms()
    one, label = terms.ONE, f"{terms.SUMS}0"
    sums = [atoms.loaded(label, (terms.const(row), terms.const(2), terms.ZERO, one, one), (0, 2)) for row in range(2)]
    facts = consistency([terms.Formula("ge", terms.of(atom)) for atom in sums])
    for numbers in itertools.product(range(3), repeat=2):
        values = dict(zip(sums, numbers, strict=True))
        assert all(terms.holds(fact, lambda atom, known=values: known[atom]) for fact in facts)


def test_a_sum_that_may_wrap_is_not_used(tmp_path: Path) -> None:
    """Counts of any size: their sum may leave i32, which is refused as for any other index."""
    text = COUNTS.replace("minimum(v.astype(i32) & 127, 3)", "load(x, (bid(0), 0), shape=(1, 16)).reshape(16)")
    text = (
        text.replace("In[i8", "In[i32").replace("InOut[i8", "InOut[i32").replace("    values(x, 0, 4)\n", "").replace("16", "8")
    )
    with pytest.raises(CompileError):
        prove(function_of(tmp_path, text))


NO_END = ("begin, end = load(starts, bid(0)), load(starts, bid(0) + 1)", "begin = load(starts, bid(0))")
HINTS = {
    "no end": (("& (place < end) ", ""), NO_END, "where(i < load(starts, b + 1), i, T)", ""),
    "not sorted": ((", sorted=True", ""), ("", ""), "values(starts, 0, T + 1, sorted=True)", "sorted=True"),
    "one too many": (("(place < end)", "(place <= end)"), ("", ""), "one-to-one", ""),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_states_what_is_missing(tmp_path: Path, name: str) -> None:
    """It is never `distinct`: the places from two different first places on may be the same."""
    first, second, words, fix = HINTS[name]
    text = COMPACT
    for old, new in (first, second):
        assert old in text
        text = text.replace(old, new) if old else text
    with pytest.raises(CompileError) as caught:
        prove(function_of(tmp_path, text))
    (found,) = caught.value.diagnostics
    assert words in found.hint and "distinct" not in found.hint
    assert [one.text for one in found.fixes] == ([fix] if fix else [])
