"""Every operation of the tile IR has exactly one lowering rule to MLIR."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import OPS
from tilec.ir.ops.sync_ops import Roles
from tilec.lowering.rules import RULES

STRUCTURED = {
    "for": "lowered with its region by tilec.lowering.control",
    "decreases": "removed by tilec.passes.schedule.simplify.canonicalize",
    "invariant": "removed by tilec.passes.schedule.simplify.canonicalize",
    "if": "lowered with its regions by tilec.lowering.control",
    "roles": "lowered with its regions by tilec.lowering.control",
    "sort": "replaced by tilec.passes.schedule.simplify.networks",
    "take": "replaced by tilec.passes.schedule.layouts.shared_conversions",
    "yield": "read by the loop or branch that it ends",
}
"""Operations without a rule, and why."""


def test_every_operation_has_a_rule_or_a_reason() -> None:
    assert {kind.opcode for kind in RULES} | STRUCTURED.keys() == OPS.keys()
    assert not {kind.opcode for kind in RULES} & STRUCTURED.keys()
    assert all(OPS[kind.opcode] is kind and callable(rule) for kind, rule in RULES.items())
    assert {OPS[name] for name in STRUCTURED} == {
        ops.Decreases,
        ops.For,
        ops.If,
        ops.Invariant,
        ops.Sort,
        ops.Take,
        ops.Yield,
        Roles,
    }
