"""A tensor with elements must have memory: address 0, and invalid addresses, are refused before launch."""

from __future__ import annotations

import pytest

from tilec.artifact.records import AbiSlot, Manifest, Resources, TensorSpec
from tilec.ir.expr import sym
from tilec.runtime.contract import check_launch
from tilec.runtime.errors import LaunchError
from tilec.runtime.tensors import TensorView

MANIFEST = Manifest(
    kernel="k", entry="k", arch="sm_90a", constants={}, tensors=(TensorSpec("x", "inout", "f32", (sym("N"),), None, 16),),
    scalars=(), abi=(AbiSlot("pointer", "x"), AbiSlot("dim", "N")), grid=(sym("N"),), block=32, cluster=1,
    dependent_launch=False, launch_checks=(), value_checks=(), no_alias=(), resources=Resources(0, 0, 0, 0, 0), obligations=(),
    unsafe=(), digests={}, toolchain={},
)  # fmt: skip


@pytest.mark.parametrize("pointer", [0, -256, 2**64])
def test_invalid_addresses_are_refused(pointer: int) -> None:
    with pytest.raises(LaunchError, match="no memory"):
        check_launch(MANIFEST, {"x": TensorView(pointer, "f32", (4,), (1,))})
    assert check_launch(MANIFEST, {"x": TensorView(256, "f32", (4,), (1,))}).grid == (4, 1, 1)
