"""Executes the MLIR text that `tilec.lowering.lower` emits on NumPy arrays, all threads of a block in lockstep.

It is stricter than a GPU: every division, remainder or shift must be defined in LLVM; every access must be aligned and inside
its tensor; between a write of a byte by one thread and an access by another there must be a barrier; asynchronous copies arrive
only when they are waited for; all threads must reach a barrier; and no tensor may be accessed before the grid dependency wait.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

import fragment_machine
import numpy as np
from block_memory import SHARED, SPACE, BlockMemory
from mlir_steps import (
    APPROXIMATE,
    BINARY,
    CASTS,
    COMPARE,
    INTRINSICS,
    NUMBERS,
    PARTIAL,
    TYPES,
    Array,
    Step,
    convert_8_bit_floats,
    is_undefined,
    multiply_high,
    numpy_type,
    parse,
    to_integer,
)
from numpy.typing import NDArray
from warpgroup_machine import Warpgroups

from tilec.emulator.machine.rounding import fused
from tilec.ir.core import Function
from tilec.lowering import Lowered


class BlockMachine(BlockMemory):
    """One launch of a lowered kernel. `arrays` are C-contiguous and change in place; dims and scalars come by name."""

    def __init__(
        self, lowered: Lowered, arrays: dict[str, Array], scalars: dict[str, float], resident: Collection[str] = ()
    ) -> None:
        lines = [line for line in lowered.mlir.strip().splitlines() if not line.startswith("//")]
        start = next(i for i, line in enumerate(lines) if line.startswith("llvm.func"))
        self.steps = parse(lines[start + 1 :][::-1])
        super().__init__(lowered.num_threads, lowered.dynamic_shared_bytes)
        self.lane = np.arange(self.threads) % 32
        self.arguments: dict[str, Array] = {}
        types = dict(re.findall(r"%(\w+): (i32|i64|f32|f16|bf16|i1|i8|i16)\b", lines[start]))
        for slot in lowered.abi:
            if slot.kind == "pointer":
                self.arguments[f"%{slot.name}"] = self.all(len(self.memory) << SPACE, np.dtype(np.int64))
                if f"%{slot.name}: !llvm.ptr<1> {{llvm.noalias, llvm.readonly}}" in lines[start]:
                    self.read_only.add(len(self.memory))
                if slot.name in resident:
                    self.resident.add(len(self.memory))
                self.memory.append(arrays[slot.name].reshape(-1).view(np.uint8))
            else:
                self.arguments[f"%{slot.name}"] = self.all(scalars[slot.name], TYPES[types[slot.name]])

    def all(self, value: float, dtype: np.dtype) -> Array:
        """The same value for every thread."""
        return np.full(self.threads, value).astype(dtype)

    def run(self, grid: tuple[int, ...]) -> None:
        """Runs every block, one after the other."""
        for block_index in itertools.product(*map(range, (*grid, 1, 1)[:3])):
            self.block, self.grid = block_index, (*grid, 1, 1)[:3]
            self.values = dict(self.arguments)
            self.begin_block()
            self.warpgroups = Warpgroups(self.threads, self.matrix_bytes)
            with np.errstate(all="ignore"):
                self.execute(self.steps, np.ones(self.threads, bool))

    def execute(self, steps: list[Step], active: NDArray[np.bool_]) -> list[Array]:
        """Executes steps for the active threads; returns the operands of the last one."""
        for step in steps:
            operands = [self.values[name] for name in step.operands if name in self.values]
            if step.name in ("scf.yield", "scf.condition"):
                return operands
            if step.name == "block":
                continue
            if step.name == "scf.if":
                results = self.branch(step, active)
            elif step.name == "scf.for":
                results = self.loop(step, active)
            elif step.name == "scf.while":
                results = self.loop_while(step, active)
            else:
                results = self.compute(step, operands, active)
            self.values |= zip(step.results, results, strict=True)
            if len(step.results) == 1 and step.results[0].endswith("#0"):  # one result has two names
                self.values[step.results[0].removesuffix("#0")] = results[0]
        return []

    def branch(self, step: Step, active: NDArray[np.bool_]) -> list[Array]:
        condition = self.values[step.operands[0]].astype(bool)
        types = re.search(r"-> \((.*)\) \{", step.text)
        results = [self.all(0, numpy_type(text)[0]) for text in re.split(r",\s*", types[1])] if types else []
        for region, mask in zip(step.regions, (active & condition, active & ~condition), strict=False):
            if mask.any():
                yielded = self.execute(region, mask)
                results = [np.where(mask, new, old).astype(old.dtype) for new, old in zip(yielded, results, strict=True)]
        return results

    def loop(self, step: Step, active: NDArray[np.bool_]) -> list[Array]:
        names = re.match(r"scf.for (%\w+) = (%[\w#]+) to (%[\w#]+) step (%[\w#]+)", step.text)
        assert names
        lower, upper, stride = (self.uniform(self.values[name], active) for name in names.groups()[1:])
        pairs = re.search(r"iter_args\((.*?)\)", step.text)
        carried = [pair.split(" = ") for pair in pairs[1].split(", ")] if pairs else []
        current = [self.values[initial] for _, initial in carried]
        for index in range(lower, upper, stride):
            self.values[names[1]] = self.all(index, np.dtype(np.int32))
            self.values |= zip([name for name, _ in carried], current, strict=True)
            current = self.execute(step.regions[0], active)
        return current

    def loop_while(self, step: Step, active: NDArray[np.bool_]) -> list[Array]:
        """Iterations as long as the condition of the first region is true, which must be the same in all active threads."""
        pairs = re.search(r"scf.while \((.*?)\) :", step.text)
        assert pairs
        names = [pair.split(" = ") for pair in pairs[1].split(", ")]
        current, (test, body) = [self.values[initial] for _, initial in names], step.regions
        while True:
            self.values |= zip([name for name, _ in names], current, strict=True)
            condition, *current = self.execute(test, active)
            if not self.uniform(condition, active):
                return current
            self.values |= zip(body[0].results, current, strict=True)
            current = self.execute(body, active)

    def uniform(self, value: Array, active: NDArray[np.bool_]) -> int:
        (single,) = set(value[active].tolist())
        return single

    def compute(self, step: Step, inputs: list[Array], active: NDArray[np.bool_]) -> list[Array]:
        name = step.name.removeprefix("llvm.")
        if name in BINARY:
            assert name not in PARTIAL or not is_undefined(name, inputs[0], inputs[1])[active].any(), f"no value: {step.text}"
            return [BINARY[name](inputs[0], inputs[1]).astype(inputs[0].dtype, copy=False)]
        if name in CASTS:
            return [CASTS[name](inputs[0], numpy_type(step.text.rsplit(" to ", 1)[1]))]
        match name:
            case "return":
                return []
            case "mlir.constant":
                step.constant = step.constant or [self.constant(step.text)]
                return step.constant
            case "mlir.zero":
                dtype, count = numpy_type(step.text.rsplit(" : ", 1)[1])
                return [np.zeros((self.threads, count), dtype)]
            case "mlir.addressof":
                return [self.all(SHARED, np.dtype(np.int64))]
            case "nvvm.read.ptx.sreg.tid.x":
                return [np.arange(self.threads, dtype=np.int32)]
            case "icmp" | "fcmp":
                kind = re.search(r'"(\w+)"', step.text)
                assert kind
                return [COMPARE[kind[1]](inputs[0], inputs[1])]
            case "fneg":
                return [-inputs[0]]
            case "select":
                return [np.where(inputs[0], inputs[1], inputs[2])]
            case "ptrtoint" | "inttoptr":
                return [inputs[0]]
            case "getelementptr":
                immediate = re.search(r"\[(-?\d+)\]", step.text)
                return [inputs[0] + (int(immediate[1]) if immediate else inputs[1].astype(np.int64))]
            case "extractelement":
                return [np.take_along_axis(inputs[0], inputs[1][:, None].astype(np.int64), 1)[:, 0]]
            case "insertelement":
                result = inputs[1].copy()
                result[np.arange(self.threads), inputs[2]] = inputs[0]
                return [result]
            case "extractvalue":
                field_index = re.search(r"\[(\d+)\]", step.text)
                assert field_index
                return [inputs[0][int(field_index[1])]]
            case "load":
                return [self.load(step, inputs[0], active)]
            case "store":
                self.store(step, inputs[0], inputs[1], active)
                return []
            case "inline_asm" if ".relaxed.gpu.global." in step.text or ".relaxed.cta.shared." in step.text:
                return self.atomics(step.text.split('"')[1], inputs, active)
            case "inline_asm" if "griddepcontrol" in step.text:
                self.waited |= "griddepcontrol.wait" in step.text
                return []
            case "inline_asm" if "mma.sync" in step.text:
                assert active.all()
                return [fragment_machine.multiply(step.text, inputs)]  # pyright: ignore[reportReturnType]
            case "inline_asm" if "cvt.rna.tf32" in step.text:
                return [fragment_machine.to_tf32(inputs[0])]
            case "inline_asm" if "wgmma.mma_async" in step.text:
                assert active.all()
                return [self.warpgroups.start(step.text.split('"')[1], inputs)]  # pyright: ignore[reportReturnType]
            case "inline_asm" if "wgmma.wait_group" in step.text:
                assert active.all()
                self.warpgroups.wait(int(step.text.split('"')[1].rstrip(";").split()[-1]))
                return [inputs]  # pyright: ignore[reportReturnType]
            case "inline_asm" if "fence.proxy.async" in step.text:
                assert active.all()
                self.unfenced[:] = False
                return []
            case "inline_asm" if "cp.async" in step.text:
                vector = int(step.text.split("[$1], ")[1].split(",")[0])
                self.copy(vector, [*inputs[:2], np.where(inputs[2], vector, 0)], active)
                return []
            case "inline_asm" if found := re.search(r"@\$(\d) ld.global", step.text):
                pointer, condition, *padding = inputs
                assert int(found[1]) == len(padding) + 1
                results = [word.copy() for word in padding]
                if (valid := active & condition.astype(bool)).any():
                    loaded = self.load_words(step.text, pointer, valid)
                    for result, word in zip(results, loaded[0] if len(results) > 1 else loaded, strict=True):
                        result[valid] = word[valid]
                return [results] if len(results) > 1 else results  # pyright: ignore[reportReturnType]
            case "inline_asm" if "ld.global" in step.text:
                return self.load_words(step.text, inputs[0], active)
            case "inline_asm" if "st.global" in step.text:
                self.store_words(inputs[0], inputs[1:], active)
                return []
            case "inline_asm" if "e4m3x2" in step.text or "e5m2x2" in step.text:
                return [convert_8_bit_floats(step.text, inputs)]
            case "inline_asm" if "min.u64 most" in step.text:
                amount = np.minimum(inputs[1].view(np.uint64), np.uint64(64))
                valid = np.where(amount < 64, amount, 0).astype(np.uint64)
                value = inputs[0].view(np.uint64)
                shifted = value << valid if "shl.b64" in step.text else value >> valid
                return [np.where(amount < 64, shifted, 0).astype(np.uint64).view(np.int64)]
            case "inline_asm" if "mov.b64" in step.text or '"mov.b32 $0, $1;"' in step.text:
                return [inputs[0]]
            case "ptrtoint" | "inttoptr":
                return [inputs[0]]
            case "inline_asm" if "mul.hi" in step.text:
                return [multiply_high(step.text, *inputs)]
            case "inline_asm" if "cvt.rzi" in step.text:
                return [to_integer(step.text, inputs[0])]
            case "inline_asm":
                kind = re.search(r'"(\w+)\.approx', step.text)
                assert kind, step.text
                return [APPROXIMATE[kind[1]](inputs[0]).astype(np.float32)]
            case "nvvm.shfl.sync":
                assert active.all() and step.text.startswith("nvvm.shfl.sync bfly")
                return [inputs[1][np.arange(self.threads) ^ inputs[2]]]
            case "nvvm.barrier":
                assert active.all(), "a barrier that some threads skip"
                for accessors in (*self.writer, *self.reader):
                    accessors[:] = -1
                self.combined[:] = False
                return []
            case "nvvm.cp.async.commit.group":
                self.groups.append(self.group)
                self.group = []
                return []
            case "nvvm.cp.async.wait.group":
                self.wait(int(step.text.split()[-1]))
                return []
            case "call_intrinsic" if "llvm.fma.f32" in step.text:
                return [fused(*inputs)]
            case "call_intrinsic" if "mumnum" in step.text:
                return [NUMBERS[step.text.split('"')[1]](inputs[0], inputs[1]).astype(np.float32)]
            case "call_intrinsic":
                return self.intrinsic(step.text, inputs, active)
            case _:
                if name.startswith("intr."):
                    return [INTRINSICS[name.removeprefix("intr.")](*inputs).astype(inputs[0].dtype)]
                special = re.fullmatch(r"nvvm\.read\.ptx\.sreg\.(n?)ctaid\.(\w)", name)
                assert special, step.text
                return [self.all((self.grid if special[1] else self.block)["xyz".index(special[2])], np.dtype(np.int32))]

    def constant(self, text: str) -> Array:
        match = re.search(r"constant\((\S+)(?: : \w+)?\) : (\w+)", text)
        assert match, text
        dtype = TYPES[match[2]]
        if match[1] in ("true", "false"):
            return self.all(match[1] == "true", dtype)
        if dtype.kind == "f":
            return np.full(self.threads, int(match[1], 16), np.uint32).view(np.float32)
        return self.all(int(match[1]), dtype)

    def intrinsic(self, text: str, inputs: list[Array], active: NDArray[np.bool_]) -> list[Array]:
        match = re.search(r'"llvm\.nvvm\.([\w.]+)"', text)
        assert match, text
        name = match[1]
        if name.startswith("cp.async"):
            self.copy(int(name.split(".")[5]), inputs, active)
            return []
        assert active.all(), text
        if name.startswith("ldmatrix"):
            return [self.matrices(int(name.split(".x")[1][0]), ".trans" in name, inputs[0])]  # pyright: ignore[reportReturnType]
        assert name.startswith("mma.m16n8k16.row.col"), text
        dtype = TYPES["bf16"] if name.endswith("bf16") else TYPES["f16"]
        return [self.multiply(inputs, dtype)]  # pyright: ignore[reportReturnType]

    def multiply(self, inputs: list[Array], dtype: np.dtype) -> list[Array]:
        """`mma.m16n8k16`, with fragments as in the PTX ISA."""
        warps = self.threads // 32
        lane = np.arange(32)
        group, pair = lane >> 2, lane % 4
        halves = [np.ascontiguousarray(value).view(dtype).reshape(warps, 32, 2) for value in inputs[:6]]
        a, b, c = np.zeros((warps, 16, 16)), np.zeros((warps, 16, 8)), np.zeros((warps, 16, 8))
        for i in range(8):
            row = group if i in (0, 1, 4, 5) else group + 8
            a[:, row, pair * 2 + (i & 1) + (8 if i >= 4 else 0)] = halves[i // 2][:, :, i & 1]
        for i in range(4):
            b[:, pair * 2 + (i & 1) + (8 if i >= 2 else 0), group] = halves[4 + i // 2][:, :, i & 1]
            c[:, group + (8 if i >= 2 else 0), pair * 2 + (i & 1)] = inputs[6 + i].reshape(warps, 32)
        sums = a @ b + c
        positions = [(group + (8 if i >= 2 else 0), pair * 2 + (i & 1)) for i in range(4)]
        return [sums[:, row, column].reshape(-1).astype(np.float32) for row, column in positions]


def launch(function: Function, lowered: Lowered, arrays: dict[str, Array], scalars: dict[str, float]) -> None:
    """Runs a lowered kernel; `scalars` are its dims, strides and scalar parameters, which determine the grid."""
    env = {name: int(value) for name, value in scalars.items()}
    resident = {one.tensor for one in function.residents}
    BlockMachine(lowered, arrays, scalars, resident).run(tuple(extent.evaluate(env) for extent in function.grid))
