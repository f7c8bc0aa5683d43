"""Masks of boxes whose offset consists of shifts, casts and masks at the edges of dtypes are kept if they are needed.

`ci/bench/judges.py edge_programs` runs thousands.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import campaign
from tests.programs.edge_programs import examine
from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary
from tilec.passes.schedule.simplify import in_range, versioning

SHARE = 15


@pytest.mark.parametrize("part", campaign.first(1, range(8)))
def test_accessed_and_stored_elements_stay_the_same(part: int, tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    for number in range(part * SHARE, (part + 1) * SHARE):
        outcome = examine(number, tmp_path, machine=number % 10 == 0)
        assert outcome.kind in ("equal", "refused"), (number, outcome)
        kinds[outcome.kind] += 1
        kinds["a mask is dropped"] += outcome.dropped
    assert kinds["equal"] > SHARE // 3 and kinds["a mask is dropped"]


def test_a_mask_that_is_dropped_wrongly_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treats every masked access as in bounds."""

    def nowhere(*_: object) -> list[versioning.Edge]:
        return []

    monkeypatch.setattr(versioning, "_edges", nowhere)
    assert any(examine(number, tmp_path, machine=False).kind == "wrong" for number in range(8))


def test_a_guard_that_is_dropped_wrongly_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treats every division and shift as in range."""

    def always(op: Op, facts: dict[Value, object]) -> bool:
        assert isinstance(op, Binary) and facts
        return op.kind in ("floordiv", "mod", "shl", "shr")

    monkeypatch.setattr(in_range, "_in_range", always)
    assert any(examine(number, tmp_path, machine=False).kind == "wrong" for number in range(30))
