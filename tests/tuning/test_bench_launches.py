"""What `tilec bench` counts of a launch, bytes and products, and the sizes that it launches where none are named."""

from __future__ import annotations

import numpy as np
import pytest

from tests.files import ROOT
from tests.shipped import load
from tilec.cost_model.cards import CARDS
from tilec.frontend import load_kernel
from tilec.passes.prover import prove
from tilec.project.trial.launches import Contract, large_launch, span_of
from tilec.tuning.roofline import PRODUCTS, PUBLISHED, work


def test_bytes_and_products_are_those_of_the_launch() -> None:
    function = load("matmul", {"BM": 64, "BN": 128, "E": "bf16"})
    contract = Contract.of_function(function, prove(function))
    values = dict.fromkeys(contract.names, 512)
    found = work(contract, values, function)
    assert found.bytes == 3 * 512 * 512 * 2
    assert found.products == 2 * 512**3
    rates = PUBLISHED["h200"]
    assert found.floor(rates.bytes_per_second, rates.products_per_second) == pytest.approx(3 * 512 * 512 * 2 / 4.8e6)
    assert found.floor(1e30, 1e12) == pytest.approx(2 * 512**3 / 1e6)
    assert work(contract, values, None).products is None
    residual = load("add_rms_norm")
    moved = work(Contract.of_function(residual, prove(residual)), {"T": 3, "eps": 1e-6}, residual)
    hidden = int(residual.constants["H"])
    assert moved.bytes == 2 * hidden * (3 + 2 * 3 + 1 + 3) and moved.products == 0


@pytest.mark.parametrize("name", CARDS)
def test_published_rates_are_those_of_the_model_of_time(name: str) -> None:
    """The datasheet counts with a clock that its card may exceed by a tenth; it is rounded."""
    card, rates = CARDS[name], PUBLISHED[name]
    assert (rates.bytes_per_second, rates.products_per_second) == (card.memory, card.products)
    assert 0.9 < card.products / (PRODUCTS[card.arch] * card.multiprocessors * card.clock) < 1.01


def test_products_of_a_batch_of_matrices_are_counted() -> None:
    """Each block multiplies 16 rows with 8 columns (2 of which are tokens), the depth split over a batch of 2."""
    function = load("scaled_matvec_rows", {"B": 2, "K": 1024, "ROWS": 16, "SPLIT": 2, "BLOCK": 64, "E": "bf16"})
    contract = Contract.of_function(function, prove(function))
    assert work(contract, {"N": 512}, function).products == 2 * 512 * 1024 * 8


def test_large_launches_stay_below_a_limit_and_keep_the_contract() -> None:
    for name in ("add", "embedding", "topk_blocks", "advance_rows"):
        function = load(name)
        contract = Contract.of_function(function, prove(function))
        found = large_launch(contract, {}, most=1 << 26)
        env = {key: int(value) for key, value in found.items()}
        assert all(check.condition.evaluate(env) for check in contract.launch_checks)
        size = sum(span_of(spec, env) * np.dtype(np.float16).itemsize for spec in contract.tensors)
        assert 1 << 20 < size <= 1 << 26, (name, found)
    assert large_launch(Contract.of_function(load("add"), prove(load("add"))), {"N": 77}) == {"N": 77}


def test_a_large_launch_is_not_of_one_long_extent_and_a_short_one() -> None:
    path = ROOT / "examples/kernels/cross_entropy.py"
    function = load_kernel(path, {"E": "bf16", "BLOCK": 4096}, root=path.parent)
    assert large_launch(Contract.of_function(function, prove(function)), {}) == {"T": 8192, "V": 8192}
