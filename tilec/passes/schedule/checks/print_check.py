"""Check that scheduling keeps what a kernel prints.

In: the prints of the function before any pass, and the scheduled function. Out: nothing, or a VerifyError. Every `print` is
still there, with its values, and none is new; all threads that hold its elements execute it, so it is in no role of a single
thread (`verify`), and of several roles only one has it. Passes may copy it with the code around it, into versions of a block
and into peeled iterations. What a launch writes is compared by the audit, `tilec emulate` and the tests of random programs.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, VerifyError
from tilec.ir.ops import Print, prints
from tilec.ir.ops.sync_ops import Roles
from tilec.passes.schedule.checks.op_location import at

Written = frozenset[tuple[str, str]]


def written(function: Function) -> Written:
    """What the prints of a function say: place and text of each, with the types of its values."""
    return frozenset(_shown(op) for op in prints(function))


def check(function: Function, before: Written) -> None:
    """Raise VerifyError if a print is lost, new, or in several roles."""
    for op in prints(function):
        if _shown(op) not in before:
            raise VerifyError(f"{at(op)} is no print of the kernel")
    lost = before - written(function)
    if lost:
        raise VerifyError(f"{function.name}: the print {min(lost)} is lost")
    for op in function.body.ops:
        if isinstance(op, Roles):
            _check_roles(op)


def _shown(op: Print) -> tuple[str, str]:
    types = ", ".join(str(value.type) for value in op.operands)
    return str(op.loc), f"{op.text!r} of {types}"


def _check_roles(roles: Roles) -> None:
    seen: dict[tuple[str, str], Block] = {}
    for region in roles.regions:
        for op in region.walk():
            if isinstance(op, Print) and seen.setdefault(_shown(op), region) is not region:
                raise VerifyError(f"{at(op)} is in two roles")
