"""Maps a proven kernel to the threads of a block: pipelines, loop versions, layouts, layout conversions, barriers, roles.

`choose` computes the `Schedule`, and `prepare` runs `PASSES`, one file each, which apply it. A pass changes a function in
place. Its folder says what it does: `simplify` rewrites operations, `pipelining` makes copies and iterations overlap,
`specialization` gives warps roles, `layouts` distributes tiles over threads, `sync` orders accesses, `launch_overlap` lets a
launch begin early. `checks` verifies the result and changes nothing.
"""

from __future__ import annotations

from tilec.passes.schedule.choose import choose
from tilec.passes.schedule.passes import PASSES
from tilec.passes.schedule.prepare import prepare

__all__ = ["PASSES", "choose", "prepare"]
