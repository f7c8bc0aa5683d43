"""A line that was permitted once permits no line with another word."""

from __future__ import annotations

import pytest

from tests.lowering.test_total import FLOATS
from tilec.ir.verifier import VerifyError
from tilec.lowering.total import check


def with_lines(*lines: str) -> str:
    """The module of `test_total` with these lines."""
    return FLOATS.replace("LINE", "\n".join(lines))


def test_a_permitted_attribute_permits_no_other() -> None:
    permitted, forbidden = (
        f"%{n} = llvm.load %b ^{word} : !llvm.ptr<1> -> i32" for n, word in ((901, "invariant"), (902, "volatile"))
    )
    check(with_lines(permitted))
    with pytest.raises(VerifyError):
        check(with_lines(forbidden))
    with pytest.raises(VerifyError):
        check(with_lines(permitted, forbidden))
