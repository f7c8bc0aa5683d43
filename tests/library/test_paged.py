"""Attention over a cache in pages: results at odd sizes, wrong tables and lengths, machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.campaign import first
from tests.clean import check_clean
from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import SOURCE, entries, is_prebuilt, request
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.lowering import lower
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import choose, prepare
from tilec.project.read.python_file import execute
from tilec.project.trial.trial import trials
from tilec.target.schedule import merged
from tilec.target.targets import SM_90A

reference: Any = execute(SOURCE / "reference_paged.py", "reference")
ALL = 1 << 24
PAGES = (16, 32, 64, 128)


@pytest.mark.parametrize("seed", first(3, range(8)))
def test_parts_are_those_of_the_reference(seed: int) -> None:
    constants = {
        "E": ("bf16", "f16")[seed % 2],
        "D": (64, 128)[seed // 4],
        "PAGE": PAGES[seed % 4],
        "BN": min(PAGES[seed % 4], 32),
    }
    launch: dict[str, float] = {
        "B": 3, "PAGES": 7, "MAX": 3, "HKV": 2, "G": (1, 3, 9)[seed % 3], "PARTS": (1, 3)[seed % 2],
        "window": (ALL, 50)[seed // 4], "scale": 0.1,
    }  # fmt: skip
    (trial,) = trials(request("paged_attention", constants, launch, seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("parts", [1, 9, 128])
def test_merged_parts_are_those_of_the_reference(parts: int) -> None:
    (trial,) = trials(request("paged_merge", {"E": "f16", "D": 64, "ROWS": 8}, {"B": 3, "HKV": 2, "G": 2, "PARTS": parts}))
    assert trial.right, trial


def _case(seed: int, page: int, size: int = 64) -> dict[str, Any]:
    """Three sequences, one of them empty, whose pages are in any order; 9 heads of queries for each of keys."""
    random = np.random.default_rng(seed)
    cache = (8, page, 2, size)
    table = random.permutation(8)[:6].reshape(3, 2)
    return {
        "q": tensor(random.normal(size=(3, 18, size)), np.float16),
        "k_pages": tensor(random.normal(size=cache), np.float16),
        "v_pages": tensor(random.normal(size=cache), np.float16),
        "table": tensor(table, np.int32),
        "lengths": tensor([page + 3, 0, 2 * page], np.int32),
    }


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("window", [None, 5])
def test_the_function_is_attention_of_each_sequence(page: int, window: int | None) -> None:
    given_tensors = _case(page, page)
    with interpreted() as library:
        out = library.module.paged_attention(**given_tensors, window=window)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    expected = np.zeros(out.shape)
    for b, length in enumerate(given_tensors["lengths"]):
        keys, values = (
            given_tensors[name][given_tensors["table"][b]].reshape(-1, 2, 64)[:length].astype(np.float64)
            for name in ("k_pages", "v_pages")
        )
        begin = 0 if window is None else max(length - window, 0)
        for head in range(18):
            scores = keys[begin:, head // 9] @ given_tensors["q"][b, head].astype(np.float64) / 8
            weights = np.exp(scores - scores.max(initial=-1e30))
            if length:
                expected[b, head] = weights @ values[begin:, head // 9] / weights.sum()
    np.testing.assert_allclose(out.astype(np.float64), expected, atol=4e-3)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=9, max_size=9))
def test_wrong_pages_and_lengths_reach_no_other_memory(numbers: list[int]) -> None:
    """The interpreter refuses an access outside of a tensor, and each result is a mean of some values, or 0."""
    given_tensors = _case(0, 16)
    given_tensors["v_pages"][...] = 1
    given_tensors["table"][...] = np.reshape(numbers[:6], (3, 2))
    given_tensors["lengths"][...] = numbers[6:]
    with interpreted() as library:
        out = library.module.paged_attention(**given_tensors)
    np.testing.assert_allclose(
        out.astype(np.float64), (np.array(numbers[6:]) > 0)[:, None, None] * np.ones(out.shape), rtol=2e-3
    )


def test_nothing_and_wrong_arguments() -> None:
    given_tensors = _case(0, 16)
    with interpreted() as library:
        attention = library.module.paged_attention
        none = {name: given_tensors[name][:0] for name in ("q", "table", "lengths")}
        assert attention(**{**given_tensors, **none}).shape == (0, 18, 64)
        for changed, text in (
            ({"table": given_tensors["table"][:2]}, r"`table` and `lengths` are \[2, 2\] and \[3\]"),
            ({"k_pages": given_tensors["k_pages"][:, ::2], "v_pages": given_tensors["v_pages"][:, ::2]}, "they have 16, 32"),
            ({"k_pages": np.repeat(given_tensors["k_pages"], 2, axis=0)[::2]}, "`k_pages` has gaps"),
            ({"q": given_tensors["q"][:, :3]}, "`q` has 3 heads"),
            ({"window": 0}, "`window` is 0"),
        ):
            with pytest.raises(ValueError, match=text):
                attention(**{**given_tensors, **changed})


@pytest.mark.parametrize("page", first(2, PAGES))
def test_emulated_launches_are_those_of_the_interpreter(page: int) -> None:
    """Pages are copied some tiles ahead of the products that read them."""
    (entry,) = [entry for entry in entries("paged_attention") if page in np.atleast_1d(entry.constants["PAGE"])]
    constants: dict[str, Any] = {"E": "bf16", "D": 64, "PAGE": page, "BN": min(page, 32)}
    path, overrides = SOURCE / "paged_attention.py", merged(entry.overrides(constants), SM_90A)

    def written() -> Any:
        return load_kernel(path, constants, root=SOURCE)

    schedule = choose(written(), SM_90A, overrides)
    assert [loop.stages for loop in schedule.pipelines] == [overrides.stages]
    scheduled = written()
    positive = frozenset(op.operands[1] for op in positive_divisions(scheduled))
    lowered = lower(prepare(scheduled, SM_90A, overrides, positive=positive), SM_90A, min_blocks=schedule.blocks)
    ptx = to_ptx(lowered.mlir, SM_90A)
    assert "cp.async.cg.shared.global" in ptx and "mma.sync" in ptx
    dims = {"B": 2, "PAGES": 7, "MAX": 5, "HKV": 2, "G": 3, "PARTS": 2, "PAGE": page, "D": 64}
    values: dict[str, Any] = {name: dims[name] for name in written().dims}
    inputs = reference.paged_attention_inputs(np.random.default_rng(page), dims)
    inputs["lengths"][0], inputs["table"][0, 0] = 4 * page + 3, -(2**31)
    scalars = {"window": 3 * page + 1, "scale": 0.1}
    arrays: dict[str, Any] = {}
    for name in ("q", "k_pages", "v_pages"):
        arrays[name] = inputs[name].astype("bfloat16")
    arrays |= {name: inputs[name] for name in ("table", "lengths")}
    shape = (2, 2, 2, 3)
    arrays |= {"partial": np.zeros((*shape, 64), np.float32)} | {n: np.zeros(shape, np.float32) for n in ("maxima", "sums")}
    report = launch.emulate(ptx, manifest(written(), lowered, SM_90A, schedule), arrays, values | scalars)
    check_clean(report)
    run(written(), arrays, scalars, dims=values)
    for name in ("partial", "maxima", "sums"):
        np.testing.assert_allclose(report.tensors[name], arrays[name], rtol=1e-2, atol=1e-2)


def test_every_entry_forbids_spills() -> None:
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries("paged_attention", "paged_merge"))
