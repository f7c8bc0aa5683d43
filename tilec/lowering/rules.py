"""What a rule may call to lower the operations inside its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.ir.core import Op

Lower = Callable[[Sequence[Op]], None]
