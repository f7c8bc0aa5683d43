"""What the audit says of quotients holds of all small integers."""

from __future__ import annotations

from itertools import product

import pytest

from tilec.audit import smt
from tilec.audit.definitions import Definitions
from tilec.audit.smt import Budget

SMALL = range(-4, 5)


def test_facts_of_quotients_hold_of_small_integers() -> None:
    """Of `left // right`, where `tiles * right` and `right * left` are products of the same launch."""
    smt.fresh()
    left, right, tiles = (smt.unknown(name) for name in ("left", "right", "tiles"))
    definitions = Definitions("u")
    definitions.product(tiles, right)
    definitions.product(right, left)
    quotient, rest = definitions.divided(left, right, False, None)
    facts = smt.every(definitions.facts)
    for values in product(SMALL, repeat=3):
        a, d, _ = values
        expected = divmod(a, d) if d else (0, 0)
        pairs = [*zip((left, right, tiles), values, strict=True), *zip((quotient, rest), expected, strict=True)]
        assigned = smt.replaced(facts, [(term, smt.integer(value)) for term, value in pairs])
        assert smt.check([assigned], Budget()).verdict == "found", values


@pytest.mark.parametrize("swapped", [False, True])
def test_a_block_is_in_a_tile_below_the_number_of_tiles(swapped: bool) -> None:
    """`b < tiles * columns => b // columns < tiles`, and no smaller bound."""
    smt.fresh()
    block, tiles, columns = (smt.unknown(name) for name in ("block", "tiles", "columns"))
    definitions = Definitions("u")
    blocks = definitions.product(columns, tiles) if swapped else definitions.product(tiles, columns)
    quotient, _ = definitions.divided(block, columns, False, None)
    inside = [block >= 0, block < blocks, columns >= 1]
    assert smt.check([*inside, *definitions.facts, quotient >= tiles], Budget(steps=100_000)).verdict == "none"
    assert smt.check([*inside, *definitions.facts, quotient >= smt.sub(tiles, smt.integer(1))], Budget()).verdict == "found"
