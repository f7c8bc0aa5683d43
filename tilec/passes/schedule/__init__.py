"""Decides how the threads of a block run a proven kernel: pipelines, versions of loops, layouts, conversions, meetings, roles.

`choose` makes the schedule, a value; `prepare` says the order of the passes that follow it; each pass has a file, and
`verify` judges the result, with `meeting_check` and `ring_check`.
"""

from __future__ import annotations

from tilec.passes.schedule.choose import choose
from tilec.passes.schedule.prepare import prepare

__all__ = ["choose", "prepare"]
