"""What one operation of a scheduled kernel asks of the units of a multiprocessor.

In: an operation, and the warps that run it. Out: `Demand`, amounts by unit. The amounts do not depend on the card: bytes,
multiply-adds, lane operations. `tilec.cost_model.cards` has how many of them a multiprocessor does in a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tilec.ir.core import Op, Value
from tilec.ir.layouts.butterflies import parts_of, words
from tilec.ir.ops import (
    Binary,
    Butterfly,
    Cast,
    Compare,
    Exp2InParts,
    Gather,
    Iota,
    KeptMaximum,
    Load,
    Mma,
    Reduce,
    Scatter,
    Select,
    Store,
    Take,
    Unary,
)
from tilec.ir.ops.butterfly_ops import ButterflyLoad, ButterflyStore
from tilec.ir.ops.memory import AtomicScatter, AtomicUpdate
from tilec.ir.ops.private_ops import PrivateFill, PrivateFlush, PrivateUpdate
from tilec.ir.ops.reduction_ops import ReduceCombine, ReduceStore
from tilec.ir.ops.staging_ops import (
    AsyncCopy,
    GroupMma,
    PackPairs,
    RegisterGroupMma,
    ScratchLoad,
    ScratchStore,
    SharedLoad,
    TensorCopy,
)
from tilec.ir.ops.store_ops import ScratchStoreRows, TensorStore
from tilec.ir.ops.take_ops import TakeLoad
from tilec.ir.ops.tmem_chain_ops import TmemFill, TmemOperandMma, TmemScale, TmemStore, TmemTileMma
from tilec.ir.ops.tmem_ops import ThreadProduct, TmemAccess, TmemLoad, TmemMma
from tilec.ir.ops.values import EXP2_GROUP, UNARY_KINDS
from tilec.ir.types import TMEM_LANES, DType

LANES: Final = 32
GROUP_ROWS: Final = 64
"""M of one `wgmma` (PTX ISA, "wgmma.mma_async"): each 64 rows read operand B from shared memory anew."""
ACCUMULATOR_BYTES: Final = 4
POLYNOMIAL: Final = {"fma": 9.0, "alu": 3.0}
"""Operations on an element whose exp2 is a polynomial (`tilec/atoms/exponentials.py`). A packed instruction counts as two."""
CONVERTED_PAIR: Final = 2
"""Floats that one conversion instruction rounds to 16 bits (PTX ISA, `cvt.rn.bf16x2.f32`)."""
SPECIAL: Final = frozenset({"sqrt"} | {kind for kind in UNARY_KINDS if kind.startswith("fast_")})
"""Functions that the special function unit computes."""
ERF_STEPS: Final = 15
"""Multiplications and additions of one `erf` (`tilec/atoms/error_function.py`), next to one `ex2`."""
STEPS: Final[dict[str, tuple[int, int, int]]] = {
    "exp": (13, 11, 0), "exp2": (14, 11, 0), "log": (17, 14, 0), "log2": (24, 15, 0), "rsqrt": (0, 0, 2),
    "sigmoid": (20, 17, 1), "tanh": (23, 20, 1), "sin": (27, 14, 0), "cos": (27, 11, 0), "pow": (60, 59, 1),
}  # fmt: skip
"""Multiplications and additions, other operations, and roots and divisions of one accurate function (`tilec.ir.functions`), for
arguments that a reduction by floats is enough for."""
DIVISION: Final = 8
"""Multiplications and additions of one division or root, next to one approximation."""
PRODUCTS: Final = ("tensor", "tensor_f8", "tensor_i8", "mma", "mma_f8", "mma_i8", "mma_tf32")
"""The keys of a `Demand` that are multiply-adds."""
UNITS: Final = (*PRODUCTS, "shared", "tmem", "fma", "alu", "special", "shuffle", "copies")
"""Keys of a `Demand`. `tensor`: multiply-adds of instructions whose operands are in shared or tensor memory; `mma`: of those
whose operands are in registers; of operands that are not of 16 bits, with their kind. `shared`, `tmem`: bytes that shared
memory and tensor memory move. `fma`, `alu`, `special`, `shuffle`: operations of lanes on floats, on integers and conversions,
of the special function unit, between lanes. `copies`: those that one thread starts."""
READ_AND_WRITTEN: Final = 2
"""An atomic moves its element twice."""
Demand = dict[str, float]


def demand(op: Op, warps: int, without: frozenset[Op] = frozenset()) -> Demand:
    """What one execution of `op` by a role of `warps` warps asks for; empty if it costs next to nothing, as those `without`
    cost (`free`)."""
    if op in without:
        return {}
    match op:
        case GroupMma():
            left = op.operands[0].shared
            return _group_product(left.shape[0], op.right_shape[0], left.shape[1], left.dtype, reads_left=True)
        case RegisterGroupMma():
            (columns, depth), dtype = op.right_shape, op.operands[1].shared.dtype
            return _group_product(op.operands[0].tile.shape[0], columns, depth, dtype, reads_left=False)
        case TmemMma() | TmemTileMma() | TmemOperandMma():  # of a pair, what each of its blocks does
            return _thread_product(op)
        case TmemLoad() | TmemStore() | TmemFill() | TmemScale():
            return _tensor_memory(op)
        case Mma():
            (rows, depth), columns = op.operands[0].tile.shape[-2:], op.operands[1].tile.shape[-1]
            batch = op.result.tile.size // (rows * columns)
            dtype = op.operands[0].tile.dtype
            made = {_unit("mma", dtype): float(batch * rows * columns * depth)}
            if dtype.bits == 32:  # each element is rounded to tf32
                made["alu"] = sum(_lanes(value, warps) for value in op.operands[:2])
            return made
        case TensorCopy():
            return {"shared": float(box_bytes(op.buffer)), "copies": 1.0}
        case AsyncCopy():
            return {"shared": float(box_bytes(op.buffer)), "alu": box_bytes(op.buffer) / op.vector}
        case SharedLoad() | ScratchLoad() | ButterflyLoad() | TakeLoad():
            return {"shared": _moved(op.result, warps)}
        case ScratchStore() | ScratchStoreRows() | ButterflyStore():
            return {"shared": _stored_to_scratch(op, warps)}
        case TensorStore():
            size = op.rows * op.columns * op.target.tensor.dtype.bytes
            return {"shared": float(size)}
        case Load() | Store() | Gather() | Scatter() | AtomicUpdate() | AtomicScatter():
            tile = op.tile
            return {"alu": _lanes(tile, warps) * tile.tile.dtype.bytes / max(op.vector, tile.tile.dtype.bytes)}
        case PrivateFill():
            return {"shared": float(op.part.scratch.bytes)}
        case PrivateUpdate():
            return {"alu": _lanes(op.tile, warps), "shared": READ_AND_WRITTEN * _moved(op.tile, warps)}
        case PrivateFlush():
            return {"alu": float(op.slots), "shared": float(op.part.scratch.bytes)}
        case _:
            return _computed(op, warps)


def box_bytes(buffer: Value) -> int:
    """Bytes of one stage of a buffer, without padding."""
    rows, columns = buffer.shared.shape
    return rows * columns * buffer.shared.dtype.bytes


def _unit(unit: str, dtype: DType) -> str:
    """The key of multiply-adds of operands of a dtype."""
    if dtype.bits == 16:
        return unit
    return f"{unit}_tf32" if dtype.bits == 32 else f"{unit}_{'f8' if dtype.is_float else 'i8'}"


def _group_product(rows: int, columns: int, depth: int, dtype: DType, *, reads_left: bool) -> Demand:
    groups = -(-rows // GROUP_ROWS)
    read = groups * columns * depth + (groups * GROUP_ROWS * depth if reads_left else 0)
    return {_unit("tensor", dtype): float(groups * GROUP_ROWS * columns * depth), "shared": float(read * dtype.bytes)}


def _thread_product(op: ThreadProduct) -> Demand:
    """A product of one thread. Each 128 rows read operand B anew, and operand A once unless it is in tensor memory; fewer rows
    take as long as 128."""
    right = op.operands[2].shared
    depth = right.shape[0 if isinstance(op, TmemOperandMma) else 1]
    rows, columns = op.accumulator.tmem.shape
    rows = rows if isinstance(op, TmemMma) else TMEM_LANES
    groups = -(-rows // TMEM_LANES)
    read = groups * right.shape[0] * right.shape[1] + (0 if isinstance(op, TmemOperandMma) else rows * depth)
    unit = _unit("tensor", right.dtype)
    return {unit: float(groups * TMEM_LANES * columns * depth), "shared": float(read * right.dtype.bytes)}


def _tensor_memory(op: TmemAccess) -> Demand:
    """Accesses of threads. Rows are scaled as if no warp left its own as they are (but see `free`)."""
    rows, columns = op.buffer.tmem.shape
    match op:
        case TmemStore():
            return {"tmem": float(op.matrix.tile.size * op.matrix.tile.dtype.bytes)}
        case TmemScale():
            return {"tmem": 2.0 * ACCUMULATOR_BYTES * rows * columns, "fma": float(rows * columns)}
        case _:
            return {"tmem": float(ACCUMULATOR_BYTES * rows * columns)}


def _stored_to_scratch(op: ScratchStore | ScratchStoreRows | ButterflyStore, warps: int) -> float:
    if isinstance(op, ScratchStoreRows):
        return float(op.tile.tile.shape[0] * op.columns * op.tile.tile.dtype.bytes)
    return _moved(op.operands[1], warps)


def _computed(op: Op, warps: int) -> Demand:
    """Operations on the elements of tiles."""
    if not op.results or op.results[0].layout is None or not op.results[0].layout.lanes:
        return {}
    lanes = _lanes(op.results[0], warps)
    match op:
        case Exp2InParts():
            share = op.polynomial / EXP2_GROUP
            return {"special": lanes * (1 - share)} | {unit: lanes * share * one for unit, one in POLYNOMIAL.items()}
        case Unary():
            if op.kind in SPECIAL:
                return {"special": lanes}
            if op.kind == "erf":
                return {"special": lanes, "fma": ERF_STEPS * lanes, "alu": 5 * lanes}
            return _function(op.kind, lanes) if op.kind in STEPS else {"fma": lanes}
        case Binary():
            if op.kind == "pow":
                return _function(op.kind, lanes)
            if op.kind in ("div", "fast_pow"):
                return {"special": lanes, "fma": DIVISION * lanes}
            if not op.result.tile.dtype.is_float:
                return {"alu": lanes}
            return {"alu" if op.kind in ("min", "max") else "fma": lanes}
        case Compare() | Select() | Iota():
            return {"alu": lanes}
        case Cast():
            pair = op.result.tile.dtype.bits == 16
            return {"alu": lanes / CONVERTED_PAIR if pair else lanes}
        case PackPairs():
            return {"alu": lanes}
        case Reduce():
            return _reduced(op, warps)
        case Butterfly():
            return _shuffled(op, warps)
        case Take():
            return {"shared": _moved(op.operands[0], warps) + _moved(op.result, warps)}
        case ReduceStore() | ReduceCombine():
            return {"shared": lanes * 8}
        case _:
            return {}


def _function(kind: str, lanes: float) -> Demand:
    fma, alu, divisions = STEPS[kind]
    return {"fma": (fma + DIVISION * divisions) * lanes, "alu": alu * lanes, "special": divisions * lanes}


def free(ops: Iterable[Op]) -> frozenset[Op]:
    """Operations among `ops` that cost next to nothing. A product whose only uses are sums becomes a part of each sum (`fma`,
    which `tilec.lowering.arithmetic` allows). Where a maximum is kept until it has grown, hardly any iteration scales rows."""
    users: dict[Value, list[Op]] = {}
    products: list[Binary] = []
    scales: list[Op] = []
    keeps = False
    for op in ops:
        for value in op.operands:
            users.setdefault(value, []).append(op)
        if isinstance(op, Binary) and op.kind == "mul":
            products.append(op)
        keeps |= isinstance(op, KeptMaximum)
        scales += [op] if isinstance(op, TmemScale) else []
    fused = [op for op in products if (used := users.get(op.result)) and all(map(_is_sum, used))]
    return frozenset([*fused, *(scales if keeps else ())])


def _is_sum(op: Op) -> bool:
    return isinstance(op, Binary) and op.kind in ("add", "sub")


def _reduced(op: Reduce, warps: int) -> Demand:
    source = op.operands[0]
    lanes = _lanes(source, warps)
    layout = source.layout
    assert layout is not None
    steps = sum(digit.extent.bit_length() - 1 for digit in layout.lanes if digit.axis == op.axis)
    shuffled = _lanes(op.result, warps) * steps
    unit = "alu" if op.kind in ("max", "min") else "fma"
    return {unit: lanes + shuffled, "shuffle": shuffled}


def _shuffled(op: Butterfly, warps: int) -> Demand:
    layout = op.result.layout
    assert layout is not None
    passes = parts_of(layout, op.axis, op.mask).lanes
    return {"shuffle": float(words(layout, op.result.tile.dtype) * LANES * warps)} if passes else {}


def _lanes(value: Value, warps: int) -> float:
    """Elements of a tile that all lanes of a role have, copies included."""
    layout = value.layout
    return float(layout.num_registers * LANES * warps) if layout is not None else float(value.tile.size)


def _moved(value: Value, warps: int) -> float:
    return _lanes(value, warps) * value.tile.dtype.bytes
