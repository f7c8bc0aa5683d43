"""PTX to CUBIN in process (`assemble`), and disassembly of the result (`sass.disassemble`)."""

from __future__ import annotations

from tilec.assemble.jit_link import Assembled, assemble

__all__ = ["Assembled", "assemble"]
