"""Products of 8 bits and of tf32 in the model of time: their multiply-adds, the rates at which tensor cores make them, and what
a roofline counts."""

from __future__ import annotations

import pytest

from tests.cost_model.planned_launches import launch, product, work
from tests.narrow_products import Case, function_of, made
from tilec.cost_model.cards import CARDS
from tilec.cost_model.cycles import TENSOR
from tilec.cost_model.demand import PRODUCTS
from tilec.cost_model.estimate import estimate
from tilec.passes.prover import prove
from tilec.project.trial.launches import Contract
from tilec.target.targets import SM_90A, SM_100A, SM_120A, Target
from tilec.tuning.roofline import work as counted

FED = (("copy", "tma"),)
H200, B200, RTX = CARDS["h200"], CARDS["b200"], CARDS["rtx5090"]


@pytest.mark.parametrize(
    ("name", "target", "wanted", "unit"),
    [
        ("bf16", SM_90A, FED, "tensor"), ("i8", SM_90A, FED, "tensor_i8"), ("f8e4m3", SM_90A, (), "tensor_f8"),
        ("f32", SM_90A, FED, "mma_tf32"), ("u8", SM_100A, FED, "tensor_i8"), ("f8e5m2", SM_100A, (), "mma_f8"),
        ("i8", SM_120A, FED, "mma_i8"), ("f8e4m3", SM_120A, (), "mma_f8"), ("f32", SM_120A, (), "mma_tf32"),
    ],
)  # fmt: skip
def test_multiply_adds_are_counted_by_their_kind(
    name: str, target: Target, wanted: tuple[tuple[str, str], ...], unit: str
) -> None:
    depth = {"bf16": 64, "f32": 32}.get(name, 128)
    kernel = made(Case(name, name, (128, 64, depth), wanted=wanted), target)
    found = work((kernel.prepared, kernel.schedule), product(256, 128, 512))
    assert {one: found.total(one) for one in PRODUCTS if found.total(one)} == {unit: 256 * 128 * 512}
    assert (found.total("alu") > 0) >= (name == "f32"), "f32 is rounded"


def test_rates_are_those_of_the_datasheets() -> None:
    """Dense, in TFLOP/s or TOP/s, a multiply-add as two: FP8, INT8 and TF32."""
    for card, f8, i8, tf32 in ((H200, 1979e12, 1979e12, 494.5e12), (RTX, 419e12, 838e12, 104.8e12)):
        kind = "tensor" if card is H200 else "mma"
        assert card.products * card.speed(f"{kind}_f8") == pytest.approx(f8, rel=0.01)
        assert card.products * card.speed(f"{kind}_i8") == pytest.approx(i8, rel=0.01)
        assert card.products * card.speed("mma_tf32") == pytest.approx(tf32, rel=0.01)
    assert B200.products * B200.speed("tensor_f8") == pytest.approx(4500e12)
    assert H200.speed("tensor") == H200.speed("mma") == H200.speed("mma_f8") == 1


@pytest.mark.parametrize(("card", "target"), [(H200, SM_90A), (B200, SM_100A), (RTX, SM_120A)])
def test_products_of_8_bits_take_at_most_half_the_time_on_the_tensor_cores(card: object, target: Target) -> None:
    known = next(one for one in CARDS.values() if one is card)
    took: dict[str, float] = {}
    for name, depth in (("bf16", 64), ("i8", 128), ("f8e4m3", 128)):
        kernel = made(Case(name, name, (128, 64, depth), wanted=FED), target)
        ready = launch((kernel.prepared, kernel.schedule), product(4096, 4096, 4096), known)
        took[name] = estimate(ready, known).parts[TENSOR]
    assert took["i8"] <= 0.51 * took["bf16"] and took["f8e4m3"] <= 0.51 * took["bf16"]


@pytest.mark.parametrize(("name", "share"), [("bf16", 1.0), ("i8", 0.5), ("f8e4m3", 0.5), ("f32", 2.0)])
def test_a_roofline_counts_operations_of_bf16(name: str, share: float) -> None:
    function = function_of(Case(name, name, (64, 64, 64)))
    found = counted(Contract.of_function(function, prove(function)), {"M": 128, "N": 64, "K": 256}, function)
    assert found.products == share * 2 * 128 * 64 * 256
