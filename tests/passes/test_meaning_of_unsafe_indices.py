"""What an index in an `unsafe` block proves: its writes count as coverage only as far as the arithmetic certainly is exact.

Nothing shows that such an index does not wrap or divide by zero, so its value is known only if ranges show it.
"""

from __future__ import annotations

from tests.passes.builder import Access, Kernel, binary, const, sym
from tilec.ir.core import Parameter, Value
from tilec.ir.types import TileType, i32
from tilec.passes.prover import prove


def scalar(k: Kernel, name: str) -> Value:
    value = k.body.add_argument(TileType(i32), name)
    k.function.parameters.append(Parameter(name, value, None))
    return value


def coverage(k: Kernel, index: Value) -> str:
    """The rung on which the only write, an `unsafe` one, is shown to reach every element."""
    (out,) = (parameter.value for parameter in k.function.parameters if parameter.access is Access.OUT)
    k.store(out, index, shape=(1,)).unsafe = 0
    (found,) = (one for one in prove(k.function).obligations if one.property == "coverage")
    return found.rung


def test_a_sum_that_fits_is_known_in_an_unsafe_block() -> None:
    k = Kernel(8, 4)
    k.tensor("out", Access.OUT, 32)
    assert coverage(k, k.add(k.mul(k.bid(0), 4), k.bid(1))) == "set"


def test_a_sum_that_may_wrap_is_trusted() -> None:
    k = Kernel("N")
    k.tensor("out", Access.OUT, "N")
    shift = scalar(k, "shift")
    k.requires(binary("==", sym("shift"), const(0)))
    assert coverage(k, k.add(k.bid(), shift)) == "unsafe"


def test_a_quotient_by_a_number_that_may_be_negative_is_trusted() -> None:
    """At a divisor of 1 every element is written, but what a division by 0 or a negative number gives is not known."""
    k = Kernel("N")
    k.tensor("out", Access.OUT, "N")
    divisor = scalar(k, "divisor")
    k.requires(binary("<=", sym("divisor"), const(1)))
    assert coverage(k, k.div(k.bid(), divisor)) == "unsafe"
