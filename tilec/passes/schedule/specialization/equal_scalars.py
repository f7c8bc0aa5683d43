"""Global value numbering across roles: scalars of two roles that are equal although each role computes its own.

In: a `roles` operation, and the tensors that nobody writes while the kernel runs. Out: for each value a key; equal keys imply
equal values. The key is the expression that defines the value, over values from outside of the roles and the tile loop's
variable. Roles iterate over the same tiles, each in its own loop, so a value computed from the tile index alone is the same in
all roles for the same tile. So is an element that such an index names, of a tensor that nobody writes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from tilec.ir.core import Block, Effect, Value, attribute_text
from tilec.ir.ops import For, Load
from tilec.ir.ops.sync_ops import Roles


class ScalarNumbering:
    """Value numbers of the scalars of some roles."""

    def __init__(self, roles: Roles, constant: Collection[Value] = ()) -> None:
        """`constant`: tensors whose elements do not change."""
        self._constant = constant
        self._loops = {loop.regions[0]: loop for region in roles.regions for loop in region.ops if isinstance(loop, For)}
        self._inside = {op for region in roles.regions for op in region.walk()}
        self._known: dict[Value, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}  # of expressions: nested keys stay small

    def of(self, value: Value) -> Hashable:
        """The value's key; the value itself if its definition is not followed."""
        found = self._known.get(value)
        if found is None:
            expression = self._expression(value)
            found = self._known[value] = (
                value if expression is None else self._numbers.setdefault(expression, len(self._numbers))
            )
        return found

    def _expression(self, value: Value) -> Hashable | None:
        owner = value.owner
        if isinstance(owner, Block):
            loop = self._loops.get(owner)
            return None if loop is None or value is not owner.arguments[0] else ("turn", *map(self.of, loop.operands[:3]))
        if owner not in self._inside or owner.regions or len(owner.results) > 1:
            return None
        if owner.effect is not Effect.NONE and not (isinstance(owner, Load) and owner.source in self._constant):
            return None
        attributes = tuple((name, attribute_text(attribute)) for name, attribute in sorted(owner.attributes().items()))
        return (owner.opcode, attributes, str(value.type), *map(self.of, owner.operands))
