"""The router chooses the experts with the largest logits, whatever these are: ties, infinities, NaN, any number of experts."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import shipped
from tests.emulator import shipped_run
from tests.emulator.shipped_run import compiled
from tests.shipped_launches import NUMPY, reference
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.passes.prover.prove import prove

Array = NDArray[Any]
KERNEL: Final = shipped.ROOT / "kernels_src" / "route_experts.py"
NEAR: Final = 2.0**-15
"""Of fast exponentials, whose arguments are at most 126 and rounded to f32, and of their sum."""


@cache
def router(X: int, C: int, normalize: bool, E: str) -> Function:
    constants = {"E": E, "X": X, "C": C, "NORMALIZE": normalize, "EXPERTS": 1 << (X - 1).bit_length()}
    return load_kernel(KERNEL, constants, root=shipped.ROOT)


def routed(logits: Array, C: int, normalize: bool, E: str) -> tuple[Array, Array]:
    tokens, X = logits.shape
    arrays: dict[str, Any] = {
        "logits": logits,
        "experts": np.full((tokens, C), -1, np.int32),
        "weights": np.full((tokens, C), 7, np.float32),
    }
    run(router(X, C, normalize, E), arrays, {})
    return arrays["experts"], arrays["weights"]


def check(logits: Array, C: int, normalize: bool, found: tuple[Array, Array]) -> None:
    """Experts are those of the reference, in its order, and no two of a token are equal; weights are near."""
    experts, weights = found
    right, exact = reference("route_experts")(logits, C, normalize)
    assert np.array_equal(experts, right)
    assert ((experts >= 0) & (experts < logits.shape[1])).all()
    assert all(len(set(row)) == C for row in experts.tolist())
    assert np.array_equal(np.isnan(weights), np.isnan(exact))
    assert np.allclose(weights, exact, rtol=NEAR, atol=2.0**-126, equal_nan=True)


NUMBERS: Final = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**-24, -(2.0**-24)]),
    st.floats(-8, 8, width=16),
)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 33)),
    part=st.integers(1, 33),
    normalize=st.booleans(),
    E=st.sampled_from(["bf16", "f16"]),
    data=st.data(),
)
def test_any_logits(shape: tuple[int, int], part: int, normalize: bool, E: str, data: st.DataObject) -> None:
    count = shape[0] * shape[1]
    logits = np.array(data.draw(st.lists(NUMBERS, min_size=count, max_size=count))).reshape(shape).astype(NUMPY[E])
    C = min(part, shape[1])
    check(logits, C, normalize, routed(logits, C, normalize, E))


def adversaries(X: int, E: str) -> Array:
    """Rows of logits: all equal, zeros of both signs, all -inf, all inf, all NaN, one NaN of either sign, one expert far above
    all others, the last ones tied, falling, rising, and each number twice."""
    nan = np.array([0x7FC1, 0xFFC1], np.uint16).view(ml_dtypes.bfloat16).astype(NUMPY[E])
    rows = np.zeros((12, X), NUMPY[E])
    rows[0], rows[1, ::2], rows[2], rows[3], rows[4] = 3.0, -0.0, -np.inf, np.inf, np.nan
    rows[5, X // 2], rows[6, X - 1] = nan[0], nan[1]
    rows[7, X - 1], rows[8, X // 2 :] = 200.0, 1.0
    rows[9], rows[10], rows[11] = -np.arange(X), np.arange(X), np.arange(X) // 2
    return rows


@pytest.mark.parametrize("E", ["bf16", "f16"])
@pytest.mark.parametrize(("X", "C"), [(128, 8), (128, 1), (60, 4), (5, 5), (8, 8), (1, 1)])
def test_adversarial_routers(X: int, C: int, E: str) -> None:
    logits = adversaries(X, E)
    for normalize in (True, False):
        found = routed(logits, C, normalize, E)
        check(logits, C, normalize, found)
        assert np.isnan(found[1][4:7]).all()


@pytest.mark.parametrize(("number", "E", "normalize"), [(0, "bf16", True), (1, "f16", False)])
def test_machine_code_of_adversarial_routers(number: int, E: str, normalize: bool) -> None:
    kernel = compiled("route_experts", number, "sm_90a")
    assert kernel.function.constants["NORMALIZE"] is normalize
    logits = adversaries(128, E)
    given_arrays = {
        "logits": logits, "experts": np.full((len(logits), 8), -1, np.int32), "weights": np.zeros((len(logits), 8), np.float32),
    }  # fmt: skip
    kernel.env["T"] = len(logits)
    after = shipped_run.emulated(kernel, given_arrays)
    check(logits, 8, normalize, (after["experts"], after["weights"]))


@pytest.mark.parametrize("E", ["bf16", "f16"])
@pytest.mark.parametrize(("X", "C"), [(128, 8), (128, 128), (60, 4), (60, 60), (3, 2), (1, 1), (513, 8)])
def test_the_router_promises_the_range_of_experts_and_that_those_of_a_token_differ(X: int, C: int, E: str) -> None:
    """For any number of experts: that of a power of two is not padded, others are."""
    function = router(X, C, True, E)
    (promise,) = function.promises
    assert (promise.tensor, promise.low.evaluate({}), promise.high.evaluate({})) == ("experts", 0, X)
    assert promise.flags == ("distinct_in_rows",)
    shown = [one.subject for one in prove(function).obligations if one.property == "values"]
    assert "store to `experts`, distinct in each row" in shown


@pytest.mark.parametrize("E", ["bf16", "f16"])
def test_the_least_logits_are_no_experts_of_nobody(E: str) -> None:
    """Where X is padded: the lowest numbers of a dtype, next to -inf, are larger than what pads it, and stay as they are."""
    logits = np.full((3, 5), -np.inf, np.float64)
    lowest = float(ml_dtypes.finfo(NUMPY[E]).min)
    logits[0, 3], logits[1] = lowest, [lowest, lowest / 2, lowest, -np.inf, lowest]
    for C in (1, 4, 5):
        check(logits.astype(NUMPY[E]), C, True, routed(logits.astype(NUMPY[E]), C, True, E))


PADDED = "        rising = tl.where(place < X, tl.maximum(rising, least), least)\n"


@pytest.mark.parametrize(
    ("old", "new", "X", "C"),
    [
        ("tl.minimum(EXPERTS - 1 - ", "tl.minimum(EXPERTS - 2 - ", 60, 4),
        ("(keys % EXPERTS)", "(keys % (EXPERTS // 2))", 128, 8),
        ("(keys % EXPERTS)", "(keys // 2 % EXPERTS)", 128, 8),
        ("(EXPERTS - 1 - place).astype(tl.u32)", "(EXPERTS - 1 - place // 2).astype(tl.u32)", 128, 8),
        ("rising * 65536 + (EXPERTS - 1 - place).astype(tl.u32)", "rising * 65536", 128, 8),
        ("X - 1), mask", "X - 2), mask", 128, 8),
        ("(keys % EXPERTS).astype(tl.i32), X - 1)", "(keys % EXPERTS).astype(tl.i32), X - 1) * 0 + t % X", 128, 8),
        (PADDED, "", 60, 4),
        (PADDED, PADDED.replace("maximum(rising, least)", "minimum(rising, least)"), 60, 4),
        (PADDED, PADDED.replace(", least)\n", ", least + 1)\n"), 60, 4),
        (PADDED, PADDED.replace("place < X", "place <= X"), 60, 4),
        ("1, descending=True", "1", 60, 4),
        ("assert C <= X and", "assert", 60, 61),
    ],
)  # fmt: skip
def test_a_router_that_may_break_its_promise_is_refused(old: str, new: str, X: int, C: int, tmp_path: Any) -> None:
    """Numbers out of range, cut off or clamped, keys that tie, and experts of nobody among those that are chosen."""
    (tmp_path / "kernels_src").mkdir()
    for name in ("dims", "experts_dims", "route_experts"):
        text = (KERNEL.parent / f"{name}.py").read_text()
        if name == "route_experts":
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / "kernels_src" / f"{name}.py").write_text(text)
    constants = {"E": "bf16", "X": X, "C": C, "NORMALIZE": True, "EXPERTS": 1 << (X - 1).bit_length()}
    function = load_kernel(tmp_path / "kernels_src" / "route_experts.py", constants, root=tmp_path)
    with pytest.raises(CompileError) as refused:
        prove(function)
    assert {d.code for d in refused.value.diagnostics} <= {
        "E0306",
        "E0406",
    }  # mostly undecided: no run computes what floats choose
