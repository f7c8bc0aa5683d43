"""When scalars of two roles are equal, though each role computes its own.

In: roles. Out: for each value something that is equal for values that are: the expression that makes it, of what is computed in
front of the roles and of the number of the tile. Roles go through the same tiles, each by a loop of its own, so what follows
from a tile's number alone is the same for the same tile.
"""

from __future__ import annotations

from collections.abc import Hashable

from tilec.ir.core import Block, Effect, Value, attribute_text
from tilec.ir.ops import For
from tilec.ir.ops_sync import Roles


class Meanings:
    """What values of some roles stand for."""

    def __init__(self, roles: Roles) -> None:
        self._loops = {loop.regions[0]: loop for region in roles.regions for loop in region.ops if isinstance(loop, For)}
        self._inside = {op for region in roles.regions for op in region.walk()}
        self._known: dict[Value, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}  # of expressions, so that none is as large as what it is made of

    def of(self, value: Value) -> Hashable:
        """What a value stands for; itself where it cannot be told."""
        found = self._known.get(value)
        if found is None:
            made = self._expression(value)
            found = self._known[value] = value if made is None else self._numbers.setdefault(made, len(self._numbers))
        return found

    def _expression(self, value: Value) -> Hashable | None:
        owner = value.owner
        if isinstance(owner, Block):
            loop = self._loops.get(owner)
            return None if loop is None or value is not owner.arguments[0] else ("turn", *map(self.of, loop.operands[:3]))
        if owner not in self._inside or owner.effect is not Effect.NONE or owner.regions or len(owner.results) > 1:
            return None
        attributes = tuple((name, attribute_text(given)) for name, given in sorted(owner.attributes().items()))
        return (owner.opcode, attributes, str(value.type), *map(self.of, owner.operands))
