"""PTX to CUBIN in process, and a look at the machine code: `assemble`, `sass.disassemble`."""

from __future__ import annotations

from tilec.assemble.jit_link import Assembled, assemble

__all__ = ["Assembled", "assemble"]
