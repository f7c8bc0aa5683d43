"""Scalars of u64 in ops: numbers from 2^63 on reach the kernel whole on every path, and others are refused.

PyTorch's schemas have signed integers of 64 bits; the stub refuses any other, as PyTorch does.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import tilec
from tests.ops import prebuilt
from tests.ops.copying_driver import CopyingDriver
from tests.ops.fake_torch import FakeTorch
from tilec.runtime import LaunchError

NUMBERS = (0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)
REFUSED = (-1, -(2**63), 2**64, 2**64 + 1, True, 1.0)


def op_of(folder: Path, checks: list[dict[str, Any]]) -> Any:
    source = folder / "rows.py"
    source.write_text(prebuilt.ROWS.replace("i32", "u64").replace("def rows", "def high_rows"))
    manifest = prebuilt.rows("high_rows", "u64") | {"launch_checks": checks}
    return tilec.op(source, prebuilt=prebuilt.write(folder / "build", manifest))


@pytest.fixture(params=[False, True], ids=["free", "named"])
def op(request: pytest.FixtureRequest, torch: FakeTorch, tmp_path: Path) -> Any:
    """An op whose contract names the scalar, or does not: then a later launch takes another path."""
    checks = [{"condition": [">=", "n", 0], "text": "n is not negative"}] if request.param else []
    return op_of(tmp_path, checks)


def sent(driver: CopyingDriver) -> int:
    return struct.unpack("<Q", driver.sent[-1][4])[0]


def test_plain_calls(torch: FakeTorch, driver: CopyingDriver, op: Any) -> None:
    x = torch.empty(4, 8, dtype="bfloat16")
    for number in (*NUMBERS, *NUMBERS[::-1]):
        op(x, number)
        assert sent(driver) == number
    assert torch.operators["tilec::high_rows"].calls == 0


@pytest.mark.parametrize("path", ["compiling", "modes"])
def test_calls_through_the_dispatcher(torch: FakeTorch, driver: CopyingDriver, op: Any, path: str) -> None:
    x = torch.empty(4, 8, dtype="bfloat16")
    setattr(torch, path, 1)
    for number in NUMBERS:
        op(x, number)
        assert sent(driver) == number
    assert torch.operators["tilec::high_rows"].calls == len(NUMBERS)


@pytest.mark.parametrize(
    ("path", "number"),
    [(path, number) for path in ("", "compiling", "modes", "meta") for number in REFUSED
     if path != "compiling" or type(number) is int],
)  # fmt: skip
def test_what_is_no_number_of_the_dtype_is_refused(
    torch: FakeTorch, driver: CopyingDriver, op: Any, path: str, number: Any
) -> None:
    """In compiled code PyTorch's schema decides on numbers of another type."""
    x = torch.empty(4, 8, dtype="bfloat16", device="meta" if path == "meta" else "cuda")
    if path not in ("", "meta"):
        setattr(torch, path, 1)
    with pytest.raises(LaunchError, match="E0912"):
        op(x, number)
    assert not driver.launches


def test_contracts_of_fake_tensors_see_the_number(torch: FakeTorch, tmp_path: Path) -> None:
    """A clause that the source states is checked of the scalar, not of the integer of the schema."""
    op = op_of(tmp_path, [])
    x = torch.empty(4, 8, dtype="bfloat16", device="meta")
    for number in NUMBERS:
        assert op(x, number).shape == (4, 8)
        bits = struct.unpack("<q", struct.pack("<Q", number))[0]
        assert torch.operators["tilec::high_rows"](x, bits).shape == (4, 8)


def test_a_backward_formula_sees_the_number(torch: FakeTorch, op: Any) -> None:
    seen: list[int] = []
    op.register_autograd(lambda ctx, grad: (None, None), setup_context=lambda ctx, inputs, output: seen.append(inputs[1]))
    x = torch.empty(4, 8, dtype="bfloat16")
    torch.grad, x.requires_grad = True, True
    torch.operators["tilec::high_rows"](x, -1)
    op(x, 2**64 - 2)
    assert seen == [2**64 - 1, 2**64 - 2]
