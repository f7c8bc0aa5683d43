"""Products in tensor memory as text: what each role does, in which order, one tile and persistent."""

from __future__ import annotations

import pytest

from tests.tensor_products import source
from tilec.ir.core import Function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_100A

SETUP = ["ring", "shared_alloc", "shared_alloc", "ring", "tmem_reserve", "proxy_fence", "barrier", "tmem_alloc", "roles"]
CONSUMER = ["wait", "if", "tmem_load", "warp_barrier", "release"]
PRODUCER = ["for", "acquire", "tensor_copy", "tensor_copy", "commit"]
MULTIPLIER = ["acquire", "for", "wait", "tmem_mma", "release_mma", "commit_mma"]


SHOWN = {*SETUP, *CONSUMER, *PRODUCER, *MULTIPLIER, "tmem_free"}


def shown(function: Function) -> list[str]:
    """The operations on rings and tensor memory in order, with the control flow around them; without those of the store, which
    follow the release."""
    found = [op.opcode for op in function.body.walk() if op.opcode in SHOWN]
    first, tiles = found.index("release") + 1, found.count("for") > 2
    end = found.index("acquire", first) - (2 if tiles else 1)  # the loops of the producer
    return [*found[:first], *found[end:]]


@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (128, 160), (128, 192)])
@pytest.mark.parametrize("persistent", [False, True])
def test_roles_of_a_product(element: str, rows: int, columns: int, persistent: bool) -> None:
    wanted = Overrides(copy="tma", stages=2, persistent=persistent)
    function = prepare(source(element, rows, columns), SM_100A, wanted)
    text = print_function(function)
    loop = ["for"] if persistent else []
    assert shown(function) == [*SETUP, *loop, *CONSUMER, *loop, *PRODUCER, *loop, *MULTIPLIER, "tmem_free"]
    stages = 2 if persistent else 1
    assert f": tmem<f32, [{rows}, {columns}], stages {stages}>" in text
    assert f"expected = {2 * 64 * (rows + columns)}" in text and "expected = 0" in text
    assert text.count("readers = 8") == text.count("readers = 1,") == 1
