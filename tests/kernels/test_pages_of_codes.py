"""Attention over pages of e4m3 codes: right for any table, the same bits for a row in any company, and mistakes are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import shipped
from tests.campaign import first
from tests.clean import check_clean
from tests.emulator import shipped_run
from tests.kernels.test_paged_attention import BF16, CHUNK, DECODE, MERGE, PAGE, SCALE, D, launched, pool, unwritten
from tests.shipped_launches import reference
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import Accesses, InterpreterError, run
from tilec.ir.core import Function
from tilec.passes.prover import prove

Array = NDArray[Any]
E4M3 = ml_dtypes.float8_e4m3fn
CODES = {**DECODE, "SLOTS": 8}
PARTS = ("partial", "maxima", "sums")
FOLDER = shipped.ROOT / "kernels_src"


def codes(rng: np.random.Generator, t: dict[str, Array]) -> dict[str, Array]:
    """Pages of 16 bits as codes with scales, which are no numbers where no row has a token."""
    shape = t["k_pages"].shape[:-1]
    of_nobody = np.ones(shape[:2], np.bool_)
    for row, length in zip(t["table"], t["lengths"], strict=True):
        at = np.arange(length)
        of_nobody[row[at // PAGE], at % PAGE] = False
    found = dict(t)
    for name in "kv":
        values = t[f"{name}_pages"].astype(np.float32) * np.exp2(rng.integers(-4, 5, shape)).astype(np.float32)[..., None]
        scale = np.abs(values).max(axis=-1) / np.float32(448)
        found[f"{name}_pages"], found[f"{name}_scales"] = (values / scale[..., None]).astype(E4M3), scale
        scale[of_nobody] = rng.choice([np.nan, np.inf, 1e30])
    return found


def items_of(function: Function, t: dict[str, Array], *, blocks: int, spare: int = 0) -> dict[str, Array]:
    """What `paged_decode_attention_c8` leaves, with the `starts` that it took."""
    _, heads, group, _ = t["q"].shape
    starts = reference("chunk_starts")(t["lengths"], CHUNK)
    parts = {
        name: unwritten(int(starts[-1]) + spare, heads, group, *width, dtype=np.float32)
        for name, width in zip(PARTS, ((D,), (), ()), strict=True)
    }
    arrays = {**t, "starts": starts, **parts}
    accesses = Accesses(function, arrays)
    run(function, arrays, {"blocks": blocks, "scale": SCALE}, accesses=accesses)
    assert accesses.problems() == []
    for part in parts.values():
        assert np.isfinite(part[: starts[-1]]).all() and np.isnan(part[starts[-1] :]).all()
    return {**parts, "starts": starts}


def attended(function: Function, t: dict[str, Array], **launch: int) -> Array:
    """A step's attention of its rows."""
    rows, heads, group, _ = t["q"].shape
    out = unwritten(rows, heads, group, D)
    launched("paged_merge", MERGE[False, group > 4], {**items_of(function, t, **launch), "out": out})
    return out


def alone(t: dict[str, Array], b: int) -> dict[str, Array]:
    """The launch's inputs of one row, with the same pages elsewhere in a smaller pool."""
    own = t["table"][b, : -(-int(t["lengths"][b]) // PAGE)]
    pages = {name: t[name][own][::-1].copy() for name in ("k_pages", "k_scales", "v_pages", "v_scales")}
    table = np.arange(len(own))[None, ::-1].astype(np.int32)
    return {"q": t["q"][b : b + 1], **pages, "table": table, "lengths": t["lengths"][b : b + 1]}


def exact(t: dict[str, Array], b: int) -> Array:
    """A row's attention in float64, from its codes and scales."""
    own = t["table"][b, : -(-int(t["lengths"][b]) // PAGE)]
    keys, values = (t[f"{name}_pages"][own].astype(np.float64) * t[f"{name}_scales"][own][..., None] for name in "kv")
    last = int(t["lengths"][b]) - 1
    keys, values = (one.reshape(-1, *one.shape[2:])[None, : last + 1] for one in (keys, values))
    return reference("paged_flash_attention")(t["q"][b : b + 1], keys, values, np.zeros(1, np.int32), last, SCALE)[0]


def rows(seed: int, lengths: list[int], group: int = 4, heads: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    t = pool(rng, lengths, heads, 5 * CHUNK // PAGE)
    t["q"] = rng.standard_normal((len(lengths), heads, group, D)).astype(BF16)
    return codes(rng, t)


def kernel(**others: Any) -> Function:
    return load_kernel(FOLDER / "paged_decode_attention_c8.py", CODES | others, root=shipped.ROOT)


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5 * CHUNK), min_size=1, max_size=8),
    group=st.sampled_from((1, 2, 4, 5, 8)),
    blocks=st.integers(1, 9),
    spare=st.integers(0, 3),
    tile=st.sampled_from((8, 16)),
    seed=st.integers(0, 99),
)
def test_a_row_has_the_bits_that_it_has_alone(
    lengths: list[int], group: int, blocks: int, spare: int, tile: int, seed: int
) -> None:
    """Among others, in other pages, by other blocks; slots of nobody have NaN and infinities as scales."""
    function, t = kernel(BN=tile), rows(seed, lengths, group)
    together = attended(function, t, blocks=blocks, spare=spare)
    for b in range(len(lengths)):
        np.testing.assert_array_equal(attended(function, alone(t, b), blocks=1), together[b : b + 1])
        expected = exact(t, b)
        assert np.abs(together[b] - expected).max() <= 2.0**-7 * np.abs(expected).max()


def test_gathered_tokens_are_codes_times_scales_rounded_once() -> None:
    t = rows(3, [75], heads=3)
    table, slots = t["table"][0], 6 * PAGE
    for dtype in (BF16, np.float16):
        caches = {name: np.full((slots, 3, D), 7, dtype) for name in ("k_cache", "v_cache")}
        pages = {name: t[name] for name in ("k_pages", "k_scales", "v_pages", "v_scales")}
        constants = {"E": "f16" if dtype is np.float16 else "bf16", "D": D, "PAGE": PAGE}
        launched("paged_gather_c8", constants, {**pages, "table": table, **caches}, filled=75)
        for name in "kv":
            wide = t[f"{name}_pages"][table].astype(np.float32) * t[f"{name}_scales"][table][..., None]
            with np.errstate(over="ignore", invalid="ignore"):
                expected = wide.reshape(-1, 3, D).astype(dtype)
            assert caches[f"{name}_cache"][:75].tobytes() == expected[:75].tobytes()
            assert (caches[f"{name}_cache"][5 * PAGE :] == 7).all()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_the_machine_code_of_an_item_has_the_same_bits(arch: str) -> None:
    """A row of two chunks after another one, by three blocks, and alone, by one."""
    compiled = shipped_run.compiled("paged_decode_attention_c8", 0, arch)
    rng, heads, group, size = np.random.default_rng(3), 1, 4, 64
    lengths, pages = np.array([70, 256 + 41], np.int32), rng.permutation(9)
    t = {
        "q": rng.standard_normal((2, heads, group, 128)).astype(BF16),
        "table": np.array([[*pages[:2], 0, 0, 0], pages[4:]], np.int32),
    }
    for name in "kv":
        t[f"{name}_pages"] = rng.standard_normal((9, size, heads, 128)).astype(E4M3)
        t[f"{name}_scales"] = rng.uniform(0.1, 2, (9, size, heads)).astype(np.float32)

    def items(rows: slice, blocks: int) -> list[Array]:
        own = {**t, "q": t["q"][rows], "table": t["table"][rows], "lengths": lengths[rows]}
        own["starts"] = reference("chunk_starts")(own["lengths"], 256)
        count = int(own["starts"][-1])
        for name, width in zip(PARTS, ((128,), (), ()), strict=True):
            own[name] = unwritten(count, heads, group, *width, dtype=np.float32)
        sizes = {"T": len(own["q"]), "HKV": heads, "G": group, "PAGES": 9, "MAX": 5, "ITEMS": count, "blocks": blocks}
        report = shipped_run.emulate(replace(compiled, env={**compiled.env, **sizes}), own)
        check_clean(report)
        return [report.tensors[name] for name in PARTS]

    for among, by_itself in zip(items(slice(2), 3), items(slice(1, 2), 1), strict=True):
        assert np.isfinite(among).all()
        np.testing.assert_array_equal(among[1:], by_itself)


@settings(max_examples=8, deadline=None)
@given(starts=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4))
def test_wrong_starts_reach_nothing_outside(starts: list[int]) -> None:
    """`starts` come from the device and are not trusted."""
    t = rows(1, [40, 1, 70], 2, 1)
    parts = {name: np.ones((4, 1, 2, *width), np.float32) for name, width in zip(PARTS, ((D,), (), ()), strict=True)}
    arrays = {**t, "starts": np.array(starts, np.int32), **parts}
    launched("paged_decode_attention_c8", CODES, arrays, blocks=3, scale=SCALE)


@pytest.mark.parametrize(("tensor", "value"), [("table", 1 << 20), ("table", -1), ("lengths", 81), ("lengths", 0)])
def test_integers_outside_of_the_contract_are_refused(tensor: str, value: int) -> None:
    t = rows(0, [40, 1, 70], 2, 1)
    t["table"] = t["table"][:, :5].copy()
    t[tensor].reshape(-1)[0] = value
    parts = {name: np.ones((6, 1, 2, *width), np.float32) for name, width in zip(PARTS, ((D,), (), ()), strict=True)}
    arrays = {**t, "starts": np.array([0, 2, 3, 6], np.int32), **parts}
    with pytest.raises(InterpreterError, match=tensor):
        launched("paged_decode_attention_c8", CODES, arrays, blocks=3, scale=SCALE)


def mistaken(name: str, right: str, wrong: str, folder: Path) -> Path:
    """The file of a kernel with a piece of its text replaced, next to what it imports."""
    for needed in ("dims.py", "paged_dims.py", "cache_codes.py"):
        (folder / needed).write_text((FOLDER / needed).read_text())
    text = (FOLDER / f"{name}.py").read_text()
    assert text.count(right) == 1
    (folder / f"{name}.py").write_text(text.replace(right, wrong))
    return folder / f"{name}.py"


UNSAFE = first(6, [
    ("paged_gather_c8", "tl.values(table, 0, PAGES)", "tl.values(table, 0, PAGES + 1)", "E0301"),
    ("paged_gather_c8", "tl.load(v_scales, (page, 0, head)", "tl.load(v_scales, (page, 0, head + 1)", "E0301"),
    ("paged_gather_c8", "(i, head, 0), tl.astype(k ", "(page, head, 0), tl.astype(k ", "E0401"),
    ("paged_decode_attention_c8", "first // PAGE + i, MAX - 1)", "first // PAGE + i, MAX)", "E0301"),
    ("paged_decode_attention_c8", "page, head, tile * BN, BN", "page, head, (tile + 1) * BN, BN", "E0301"),
    ("paged_decode_attention_c8", "tl.store(sums, (item, head, 0)", "tl.store(sums, (b, head, 0)", "E0401"),
    ("paged_decode_attention_c8", "    tl.values(table, 0, PAGES)\n", "", "E0306"),
    ("paged_decode_attention_c8", "tl.values(table, 0, PAGES)", "tl.values(table, 0, PAGES + 1)", "E0306"),
    ("paged_decode_attention_c8", "min(max(tl.load(starts, T), 0), ITEMS)", "max(tl.load(starts, T), 0)", "E0304"),
    ("paged_decode_attention_c8", "items * HKV, tl.num_blocks(0))", "items * HKV)", "E0306"),
])  # fmt: skip
"""Of a kernel: a piece of its text, what a mistake puts there, and the error."""


@pytest.mark.parametrize(("name", "right", "wrong", "code"), UNSAFE)
def test_an_unsafe_mistake_is_refused(name: str, right: str, wrong: str, code: str, tmp_path: Path) -> None:
    _, constants = shipped.specialisation(name, {})
    with pytest.raises(CompileError) as refused:
        prove(load_kernel(mistaken(name, right, wrong, tmp_path), constants, root=tmp_path))
    assert code in {one.code for one in refused.value.diagnostics}


WRONG = [
    ("first + j * BN,", "j * BN,"),  # tiles of later chunks seem filled
    ("length, of_queries", "length + 1, of_queries"),  # a slot past the row's end
    ("k_pages, k_scales, v_pages, v_scales, page, head, tile", "k_pages, v_scales, v_pages, v_scales, page, head, tile"),
    ("min(j + 1, tiles - 1)", "min(j, tiles - 1)"),  # a tile twice, and the last one never
    ("following % (PAGE // BN)", "0"),
    ("page = pages[i] if own == i else page", "page = pages[i] if own > i else page"),
    ("(b, head, 0, 1), shape=(1, 1, 8", "(b, head, 0, 0), shape=(1, 1, 8"),  # half of a query twice
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong"), WRONG)
def test_a_mistake_that_is_safe_is_found_by_its_results(right: str, wrong: str, tmp_path: Path) -> None:
    path = mistaken("paged_decode_attention_c8", right, wrong, tmp_path)
    function, t = load_kernel(path, CODES | {"BN": 8}, root=tmp_path), rows(5, [70, 3, 2 * CHUNK])
    try:
        found = attended(function, t, blocks=2)
    except AssertionError:
        return  # not finite: it met what no row has
    expected = np.stack([exact(t, b) for b in range(3)])
    assert np.abs(found - expected).max() > 2.0**-5 * np.abs(expected).max()
