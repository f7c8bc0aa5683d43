"""Maps a proven kernel to the threads of a block: pipelines, loop versions, layouts, layout conversions, barriers, roles.

`choose` computes the `Schedule`, and `prepare` runs `PASSES`, one file each, which apply it. `verify` checks the result with
`barrier_check`, `ring_check`, `store_check` and `persistent_check`.
"""

from __future__ import annotations

from tilec.passes.schedule.choose import choose
from tilec.passes.schedule.passes import PASSES
from tilec.passes.schedule.prepare import prepare

__all__ = ["PASSES", "choose", "prepare"]
