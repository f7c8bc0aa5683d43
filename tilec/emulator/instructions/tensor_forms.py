"""The syntax of `tcgen05.mma`: an instruction in, its operands as sources out.

PTX ISA, "tcgen05.mma", "tcgen05.mma.ws". Hints for the collector buffers have no effect here. Sparse products, `.ashift` and
the mask of zero columns of `.ws` are not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.emulator.instructions.tensor_operands import group
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Source
from tilec.emulator.matrices.instruction_descriptors import DEPTH
from tilec.emulator.ptx.syntax import Address, Vector

SCALES: Final[dict[tuple[str, str], int]] = {
    ("mxf8f6f4", ""): 1, ("mxf8f6f4", "block32"): 1, ("mxf8f6f4", "scale_vec::1X"): 1,
    ("mxf4", ""): 2, ("mxf4", "block32"): 2, ("mxf4", "scale_vec::2X"): 2,
    ("mxf4nvf4", "block32"): 2, ("mxf4nvf4", "scale_vec::2X"): 2,
    ("mxf4nvf4", "block16"): 4, ("mxf4nvf4", "scale_vec::4X"): 4,
}  # fmt: skip
"""Scale factors of a row in one instruction, by kind and size of the scaled vectors."""


@dataclass(slots=True)
class Form:
    """A decoded mma. `left` is a descriptor, or an address if `from_tensor`; `masks`: lanes of D that are not written;
    `halvings`: the exponent of `scale-input-d`; `scales`: scale factors of a row (0: none), at `scale_a` and `scale_b`."""

    kind: str
    pair: bool
    weight: bool
    result: Source
    left: Source
    from_tensor: bool
    right: Source
    descriptor: Source
    accumulate: Source
    masks: list[Source]
    halvings: int
    scales: int
    scale_a: Source | None
    scale_b: Source | None

    @property
    def depth(self) -> int:
        """Elements along K."""
        return DEPTH[self.kind]


def form(d: Decoder) -> Form:
    """Decodes what follows `tcgen05.mma`."""
    weight = d.flag("ws")
    if d.flag("sp"):
        raise d.unsupported("sparse products")
    pair = group(d)
    kind = d.need(*(f"kind::{name}" for name in DEPTH)).removeprefix("kind::")
    scaled = d.flag("block_scale")
    if scaled != kind.startswith("mx") or (weight and (scaled or pair)):
        raise d.unsupported(f".kind::{kind} with these modifiers")
    vector = d.take("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32") if scaled else None
    if scaled and (kind, vector or "") not in SCALES:
        raise d.unsupported(f".kind::{kind} with this size of scaled vectors")
    if d.flag("ashift"):
        raise d.unsupported(".ashift")
    if d.left and d.left[0].startswith("collector::"):
        d.left.pop(0)
    d.finish()
    rest = list(d.operands[4:])
    scale_a = scale_b = None
    masks: list[Source] = []
    if scaled and len(rest) == 3 and isinstance(rest[0], Address) and isinstance(rest[1], Address):
        scale_a, scale_b = d.address_source(rest[0]), d.address_source(rest[1])
        rest = rest[2:]
    elif rest and isinstance(rest[0], Vector):
        masks = [d.source(item, "b32") for item in d.vector(rest.pop(0), 8 if pair else 4)]
    if len(rest) not in (1, 2) or (scaled and (len(rest) == 2 or scale_a is None)):
        raise d.unsupported("the operands of this tcgen05.mma")
    halvings = 0
    if len(rest) == 2:
        if weight or kind not in ("f16", "tf32"):
            raise d.unsupported("a mask of zero columns, or scale-input-d for this kind")
        halvings = int(d.source(rest[1], "u32").constant)
        if not 0 <= halvings <= 15:
            raise d.unsupported(f"scale-input-d {halvings}, which is 0 to 15")
    from_tensor = isinstance(d.operands[1], Address)
    left = d.address_source(d.address(1)) if from_tensor else d.source(1, "b64")
    return Form(
        kind, pair, weight, d.address_source(d.address(0)), left, from_tensor, d.source(2, "b64"), d.source(3, "b32"),
        d.source(rest[0], "pred"), masks, halvings, SCALES[kind, vector or ""] if scaled else 0, scale_a, scale_b,
    )  # fmt: skip
