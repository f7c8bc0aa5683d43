"""Data that a single block reads is loaded with a hint that does not allocate in L1; data that blocks share is loaded without
it."""

from __future__ import annotations

import re

import pytest

from tests import shipped
from tilec.ir.ops import Load
from tilec.lowering import lower
from tilec.lowering.block_dependence import block_dependent_values
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

HINT = ".L1::no_allocate.L2::128B"
VECTOR = re.compile(r"ld\.global((?:\.nc)?)((?:\.L1::no_allocate\.L2::128B)?)\.v4\.b32")


def vectors(name: str, target: Target = SM_90A) -> list[tuple[bool, bool]]:
    """For every load of a whole vector: whether it uses the read-only path, and whether it has the hint."""
    text = lower(shipped.as_chosen(name, target), target).mlir
    return [(bool(path), bool(hint)) for path, hint in VECTOR.findall(text)]


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
@pytest.mark.parametrize("name", ["scaled_matvec", "matvec_add_scaled_rows"])
def test_weights_are_streamed_and_activations_are_not(name: str, target: Target) -> None:
    found = vectors(name, target)
    assert any(hint for _, hint in found)
    assert any(not hint for _, hint in found)
    assert all(hint for read_only, hint in found if read_only)  # after the wait; before it only weights are loaded


@pytest.mark.parametrize("name", ["rms_norm", "add", "matvec_argmax"])
def test_tensors_that_are_written_or_shared_by_blocks_are_not_streamed(name: str) -> None:
    assert not any(hint for _, hint in vectors(name))


def test_offsets_depend_on_the_block_through_scalars_and_loops() -> None:
    function = shipped.load("matvec_argmax", {})
    dependent = block_dependent_values(function)
    loads = {function.parameter_of(op.source).name: op for op in function.body.walk() if isinstance(op, Load)}
    assert not dependent.isdisjoint(loads["w"].offsets)  # a loop that starts at the block's id
    assert dependent.isdisjoint(loads["x"].offsets)
