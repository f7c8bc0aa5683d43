"""Attention over pages: right for any table, the same bits for a row in any company and for a prompt in any chunks, and nothing
outside of its tensors whatever integers a launch finds on the device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import shipped
from tests.clean import check_clean
from tests.emulator import shipped_run
from tests.shipped_launches import reference
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import Accesses, InterpreterError, run
from tilec.ir.core import Function
from tilec.passes.prover import prove

Array = NDArray[Any]
BF16 = ml_dtypes.bfloat16
PAGE, CHUNK, D, SCALE = 16, 32, 32, 0.2
DECODE = {"E": "bf16", "D": D, "PAGE": PAGE, "CHUNK": CHUNK, "BN": 16, "ROWS": 16}
MERGE = {  # of more than eight query heads of a key head, and more than four: constants of the kernel that merges
    (True, True): {"E": "bf16", "D": D, "ROWS": 4},
    (False, True): {"E": "bf16", "D": D, "ROWS": 4, "HEADS": 8},
    (False, False): {"E": "bf16", "D": D, "ROWS": 4, "HEADS": 4},
}
OF_EACH_ROWS = (0, 2)
"""Launches of `paged_decode_attention` in `shipped_launches.SIZES`, of one dtype, for each number of rows it is built for."""
FLASH = {"E": "bf16", "D": D, "BM": 16, "BN": 16}


@cache
def kernel(name: str, **constants: Any) -> Function:
    """A kernel of `kernels_src` with constants of a test."""
    return load_kernel(shipped.source(name), constants, root=shipped.ROOT)


def launched(name: str, constants: dict[str, Any], arrays: dict[str, Array], **scalars: float) -> None:
    """Run a kernel; AssertionError if blocks share an element or leave one of an `Out` unwritten."""
    function = kernel(name, **constants)
    accesses = Accesses(function, arrays)
    run(function, arrays, scalars, accesses=accesses)
    assert accesses.problems() == []


def unwritten(*shape: int, dtype: Any = BF16) -> Array:
    """What memory may hold: no number, or an integer that is no index."""
    return np.full(shape, -(2**31) if dtype == np.int32 else np.nan, dtype)


def pool(rng: np.random.Generator, lengths: list[int], heads: int, most: int) -> dict[str, Array]:
    """Rows' keys and values in pages of their own, in any order, between pages of nobody with large numbers."""
    used = [-(-length // PAGE) for length in lengths]
    count = sum(used) + 3
    order = rng.permutation(count)
    found = {name: (100 * rng.standard_normal((count, PAGE, heads, D))).astype(BF16) for name in ("k_pages", "v_pages")}
    table = rng.integers(0, count, (len(lengths), most)).astype(np.int32)  # what follows a row's pages is not followed
    at = 0
    for b, pages in enumerate(used):
        table[b, :pages] = order[at : at + pages]
        at += pages
        for cache_ in found.values():
            cache_[table[b, :pages]] = rng.standard_normal((pages, PAGE, heads, D)).astype(BF16)
    return {**found, "table": table, "lengths": np.array(lengths, np.int32)}


def decoded(t: dict[str, Array], *, blocks: int, spare: int = 0) -> Array:
    """A step's attention: `chunk_starts`, `paged_decode_attention`, `paged_merge`, or those of more than eight query heads."""
    rows, heads, group, _ = t["q"].shape
    starts = unwritten(rows + 1, dtype=np.int32)
    launched("chunk_starts", {"CHUNK": CHUNK, "BLOCK": 16}, {"lengths": t["lengths"], "starts": starts})
    items = int(starts[-1]) + spare
    parts = {
        name: unwritten(items, heads, group, *width, dtype=np.float32)
        for name, width in (("partial", (D,)), ("maxima", ()), ("sums", ()))
    }
    wide = "_wide" if group > 8 else ""
    launched(f"paged_decode_attention{wide}", DECODE, {**t, "starts": starts, **parts}, blocks=blocks, scale=SCALE)
    for part in parts.values():
        assert np.isfinite(part[: starts[-1]]).all()
        assert np.isnan(part[starts[-1] :]).all()
    out = unwritten(rows, heads, group, D)
    launched(f"paged_merge{wide}", MERGE[group > 8, group > 4], {**parts, "starts": starts, "out": out})
    return out


def alone(t: dict[str, Array], b: int) -> dict[str, Array]:
    """The launch's inputs of one row, with the same pages elsewhere in a smaller pool."""
    length = int(t["lengths"][b])
    pages = t["table"][b, : -(-length // PAGE)]
    found = {name: t[name][pages][::-1].copy() for name in ("k_pages", "v_pages")}
    return {
        "q": t["q"][b : b + 1],
        **found,
        "table": np.arange(len(pages))[None, ::-1].astype(np.int32),
        "lengths": t["lengths"][b : b + 1],
    }


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5 * CHUNK), min_size=1, max_size=8),
    group=st.sampled_from((1, 2, 4, 5, 8, 11, 16)),
    heads=st.integers(1, 2),
    blocks=st.integers(1, 9),
    spare=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_a_row_has_the_bits_that_it_has_alone(
    lengths: list[int], group: int, heads: int, blocks: int, spare: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    t = pool(rng, lengths, heads, 5 * CHUNK // PAGE)
    t["q"] = rng.standard_normal((len(lengths), heads, group, D)).astype(BF16)
    together = decoded(t, blocks=blocks, spare=spare)
    for b, length in enumerate(lengths):
        np.testing.assert_array_equal(decoded(alone(t, b), blocks=1), together[b : b + 1])
        exact = reference("paged_flash_attention")(
            t["q"][b : b + 1], t["k_pages"], t["v_pages"], t["table"][b], length - 1, SCALE
        )
        assert np.abs(together[b] - exact[0]).max() <= 2.0**-6 * np.abs(exact).max()


def prompt(seed: int, tokens: int, heads: int = 1, group: int = 2) -> dict[str, Array]:
    """A prompt's queries, and its keys and values in pages."""
    rng = np.random.default_rng(seed)
    t = pool(rng, [tokens], heads, -(-tokens // PAGE) + 1)
    return {
        "q": rng.standard_normal((tokens, heads, group, D)).astype(BF16),
        **{name: t[name] for name in ("k_pages", "v_pages")},
        "table": t["table"][0],
    }


def in_chunks(t: dict[str, Array], ends: list[int], *, gathered: bool) -> Array:
    """Attention of a prompt whose chunks end at these tokens, over pages or over the slots that `paged_gather` fills."""
    out = unwritten(*t["q"].shape)
    pages = {name: t[name] for name in ("k_pages", "v_pages", "table")}
    slots = len(t["table"]) * PAGE
    caches = {name: np.zeros((slots, *t["k_pages"].shape[2:]), BF16) for name in ("k_cache", "v_cache")}
    for begin, end in zip([0, *ends], ends, strict=False):
        part = {"q": t["q"][begin:end], "out": unwritten(*t["q"][begin:end].shape)}
        if gathered:
            launched("paged_gather", {"E": "bf16", "D": D, "PAGE": PAGE}, {**pages, **caches}, filled=end)
            launched("flash_attention", FLASH, {**part, **caches}, past=begin, scale=SCALE)
        else:
            launched("paged_flash_attention", {**FLASH, "PAGE": PAGE}, {**part, **pages}, past=begin, scale=SCALE)
        out[begin:end] = part["out"]
    return out


@pytest.mark.parametrize("gathered", [False, True])
@settings(max_examples=25, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 90), seed=st.integers(0, 99))
def test_a_prompt_has_the_same_bits_in_any_chunks(gathered: bool, data: st.DataObject, tokens: int, seed: int) -> None:
    t = prompt(seed, tokens)
    ends = sorted({*data.draw(st.lists(st.integers(1, tokens), max_size=6)), tokens})
    whole = in_chunks(t, [tokens], gathered=gathered)
    np.testing.assert_array_equal(in_chunks(t, ends, gathered=gathered), whole)
    exact = reference("paged_flash_attention")(t["q"], t["k_pages"], t["v_pages"], t["table"], 0, SCALE)
    assert np.abs(whole - exact).max() <= 2.0**-6 * np.abs(exact).max()


def test_gathered_slots_give_the_bits_of_pages() -> None:
    t = prompt(1, 75)
    np.testing.assert_array_equal(in_chunks(t, [75], gathered=True), in_chunks(t, [75], gathered=False))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_the_machine_code_of_an_item_has_the_same_bits(arch: str) -> None:
    """A row of two chunks after another one, by three blocks, and alone, by one; with ROWS of each size of batches."""
    machines = [shipped_run.compiled("paged_decode_attention", number, arch) for number in OF_EACH_ROWS]
    assert sorted(int(machine.env["ROWS"]) for machine in machines) == [32, 256]
    rng, heads, group, size = np.random.default_rng(3), 1, 4, 64
    lengths, pages = np.array([70, 256 + 41], np.int32), rng.permutation(9)
    t = {
        "q": rng.standard_normal((2, heads, group, 128)).astype(BF16),
        **{name: rng.standard_normal((9, size, heads, 128)).astype(BF16) for name in ("k_pages", "v_pages")},
        "table": np.array([[*pages[:2], 0, 0, 0], pages[4:]], np.int32),
    }

    def items(compiled: shipped_run.Compiled, rows: slice, blocks: int) -> list[Array]:
        own = {**t, "q": t["q"][rows], "table": t["table"][rows], "lengths": lengths[rows]}
        own["starts"] = reference("chunk_starts")(own["lengths"], 256)
        count = int(own["starts"][-1])
        for name, width in (("partial", (128,)), ("maxima", ()), ("sums", ())):
            own[name] = unwritten(count, heads, group, *width, dtype=np.float32)
        sizes = {"T": len(own["q"]), "HKV": heads, "G": group, "PAGES": 9, "MAX": 5, "ITEMS": count, "blocks": blocks}
        report = shipped_run.emulate(replace(compiled, env={**compiled.env, **sizes}), own)
        check_clean(report)
        return [report.tensors[name] for name in ("partial", "maxima", "sums")]

    alone = items(machines[0], slice(1, 2), 1)
    for compiled in machines:
        for among, by_itself in zip(items(compiled, slice(2), 3), alone, strict=True):
            assert np.isfinite(among).all()
            np.testing.assert_array_equal(among[1:], by_itself)


@settings(max_examples=40, deadline=None)
@given(starts=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4), seed=st.integers(0, 9))
def test_wrong_starts_reach_nothing_outside(starts: list[int], seed: int) -> None:
    """`starts` come from the device and are not trusted: any are clamped to the items, rows and table that there are."""
    rng = np.random.default_rng(seed)
    t = pool(rng, [40, 1, 70], 1, 5)
    t["q"] = rng.standard_normal((3, 1, 2, D)).astype(BF16)
    parts = {
        "partial": np.zeros((4, 1, 2, D), np.float32),
        "maxima": np.zeros((4, 1, 2), np.float32),
        "sums": np.ones((4, 1, 2), np.float32),
    }
    given_starts = {"starts": np.array(starts, np.int32)}
    launched("paged_decode_attention", DECODE, {**t, **given_starts, **parts}, blocks=3, scale=SCALE)
    out = unwritten(3, 1, 2, D)
    launched("paged_merge", MERGE[False, False], {**parts, **given_starts, "out": out})
    assert not np.isnan(out.astype(np.float32)).any()


@pytest.mark.parametrize(
    ("name", "size", "tensor", "value"),
    [("paged_decode_attention", (1, 5), "table", 9), ("paged_decode_attention", (1, 5), "table", -1),
     ("paged_decode_attention", (3,), "lengths", 81), ("paged_decode_attention", (3,), "lengths", 0)],
)  # fmt: skip
def test_integers_outside_of_the_contract_are_refused(name: str, size: tuple[int, ...], tensor: str, value: int) -> None:
    rng = np.random.default_rng(0)
    t = pool(rng, [40, 1, 70], 1, 5)
    t["q"] = rng.standard_normal((3, 1, 2, D)).astype(BF16)
    t[tensor][(0,) * t[tensor].ndim] = value if tensor == "lengths" or value < 0 else len(t["k_pages"])
    parts = {
        "partial": np.zeros((6, 1, 2, D), np.float32),
        "maxima": np.zeros((6, 1, 2), np.float32),
        "sums": np.ones((6, 1, 2), np.float32),
    }
    starts = np.array([0, 2, 3, 6], np.int32)
    with pytest.raises(InterpreterError, match=tensor):
        launched(name, DECODE, {**t, "starts": starts, **parts}, blocks=3, scale=SCALE)


MISTAKES: list[tuple[str, str, str, str]] = [
    ("paged_decode_attention", "    tl.values(table, 0, PAGES)\n", "", "E0306"),
    ("paged_decode_attention", "tl.values(table, 0, PAGES)", "tl.values(table, 0, PAGES + 1)", "E0306"),
    ("paged_decode_attention", "first // PAGE + i, MAX - 1)", "first // PAGE + i, MAX)", "E0301"),
    ("paged_decode_attention", "tl.store(sums, (item, head, 0)", "tl.store(sums, (b, head, 0)", "E0401"),
    ("paged_decode_attention", "min(max(tl.load(starts, T), 0), ITEMS)", "max(tl.load(starts, T), 0)", "E0304"),
    ("paged_decode_attention", "items * HKV, tl.num_blocks(0))", "items * HKV)", "E0306"),
    ("paged_decode_attention", "0)) - 1, 0), T - 1)", "0)) - 1, 0), T)", "E0301"),
    ("paged_decode_attention_wide", "tl.values(table, 0, PAGES)", "tl.values(table, 0, PAGES + 1)", "E0306"),
    ("paged_decode_attention_wide", "tl.store(sums, (item, head, 0)", "tl.store(sums, (b, head, 0)", "E0401"),
    ("paged_flash_attention", "past + T <= MAX * PAGE, ", "", "E0301"),
    ("paged_flash_attention", "tl.values(table, 0, PAGES)", "tl.values(table, 0, PAGES + 1)", "E0301"),
    ("paged_gather", "(i, head, 0), k.reshape", "(page, head, 0), k.reshape", "E0401"),
    ("paged_merge_wide", "tl.grid(T, HKV)", "tl.grid(T, HKV - 1)", "E0403"),
    ("paged_merge", "tl.grid(T, HKV)", "tl.grid(T, HKV - 1)", "E0403"),
    ("chunk_starts", "T < BLOCK", "T <= BLOCK", "E0403"),
]
"""Of a kernel: a piece of its text, what a mistake puts there, and the error."""


@pytest.mark.parametrize(("name", "right", "wrong", "code"), MISTAKES)
def test_a_mistake_is_refused(name: str, right: str, wrong: str, code: str, tmp_path: Any) -> None:
    folder = shipped.ROOT / "kernels_src"
    for needed in ("dims.py", "paged_dims.py"):
        (tmp_path / needed).write_text((folder / needed).read_text())
    text = (folder / f"{name}.py").read_text()
    assert text.count(right) == 1
    path = tmp_path / f"{name}.py"
    path.write_text(text.replace(right, wrong))
    _, constants = shipped.specialisation(name, {})
    with pytest.raises(CompileError) as refused:
        prove(load_kernel(path, constants, root=tmp_path))
    assert code in {one.code for one in refused.value.diagnostics}
