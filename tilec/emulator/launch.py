"""Launches: `run` for any entry with given arguments, `emulate` for a kernel of this compiler with its manifest.

In: a module, or PTX text with a manifest, tensors and launch values. Out: a `Report`. Launch values become arguments in the
order of the manifest's ABI: pointers, dims (i32), strides (i64), scalars.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import OF_RANKS, AbiSlot, Manifest, TensorMapSpec, TensorSpec
from tilec.emulator.errors import Limits, Report, StopLaunch, UnsupportedPtx
from tilec.emulator.instructions import families
from tilec.emulator.machine import finish
from tilec.emulator.machine.cluster_shape import cluster_shape, clusters, problems
from tilec.emulator.machine.execution import Execution
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.memory import Allocation, Memory
from tilec.emulator.matrices.tensor_maps import TensorMap
from tilec.emulator.ptx import targets
from tilec.emulator.ptx.parser import parse
from tilec.emulator.ptx.syntax import Module, Parameter
from tilec.target.dtypes import DTYPES, numpy_dtype

Block = tuple[int, int, int]
Argument = int | float | bytes | Allocation
families.register()
PERSISTENT_BLOCKS: Final = (2, 3, 16)
"""Grid sizes of a persistent kernel, in clusters: with 2 or 3 each processes several tiles, an even or an odd number; with 16
many process one or none."""
SHARED_BYTES: Final = {
    70: 98304, 72: 98304, 75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 103: 232448,
    110: 232448, 120: 101376, 121: 101376,
}  # fmt: skip
"""The most bytes of shared memory of a block, static and dynamic, by the number of the module's target (CUDA programming guide,
"Compute capabilities": maximum amount of shared memory per thread block)."""
_SCALARS: Final[dict[str, str]] = {"bool": "u1", "index": "i4"}


def run(
    module: Module,
    entry: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Argument],
    memory: Memory,
    *,
    dynamic_shared_bytes: int = 0,
    seed: int = 0,
    limits: Limits | None = None,
    blocks: Sequence[Block] | None = None,
    cluster: Sequence[int] | None = None,
    overlaps: bool = False,
    replicating: Collection[int] = (),
    others: Sequence[Sequence[Argument]] = (),
) -> Report:
    """Runs `entry` on a grid of `grid` blocks (only those in `blocks`, if given) of `block` threads, in clusters of
    `cluster` blocks (default: those of the kernel's `.reqnctapercluster`, or one). Arguments are numbers, pointers
    (allocations of `memory`) or the bytes of a parameter. `replicating`: PTX line numbers of stores that write one
    value from several threads by design, in addition to those marked in the text (`replicas`). The report's tensors are those
    of `memory`, by name. With `others`, the arguments of further devices, these run the same blocks at the same time, on the
    same memory. A launch that the module or its target forbids is a fault. Raises UnsupportedPtx if the program uses
    an unsupported construct."""
    function = module.functions.get(entry)
    if function is None:
        raise UnsupportedPtx(f"no entry {entry}")
    targets.check(module.target, function.instructions)
    limits = limits or Limits()
    began = time.perf_counter()
    shape = (_three(grid), _three(block), cluster_shape(function, cluster))
    with np.errstate(all="ignore"):
        launch = LaunchState(
            module, function, *shape, dynamic_shared_bytes=dynamic_shared_bytes, seed=seed, limits=limits,
            overlaps=overlaps, replicating=replicating,
            explicit_cluster=cluster is not None or "reqnctapercluster" in function.directives, devices=1 + len(others),
        )  # fmt: skip
        machine = Machine(launch, memory)
        _check_shape(machine)
        for of_device in (arguments, *others):
            _store_parameters(machine, of_device)
        execution = Execution(machine)
        execution.program.decode()
        if not _refused(machine):
            machine.pending.fill(clusters(launch, blocks))
            _run_waves(execution)
        return finish.report(machine, execution.program, execution.steps_done, time.perf_counter() - began)


def _refused(machine: Machine) -> bool:
    """Whether the clusters of the launch are impossible, which is a fault."""
    found = list(problems(machine.launch))
    for text in found:
        machine.faults.add("launch", text, None, distinct=text)
    return bool(found)


def _run_waves(execution: Execution) -> None:
    machine = execution.machine
    mark = machine.memory.mark()
    while machine.pending.clusters:
        machine.memory.release_after(mark)
        machine.start(*machine.pending.next_wave())
        try:
            execution.run()
        except StopLaunch:
            return


def _three(sizes: Sequence[int]) -> Block:
    padded = (*(int(size) for size in sizes), 1, 1, 1)[:3]
    if any(size < 1 for size in padded):
        raise ValueError(f"a launch of {tuple(sizes)}")
    return padded[0], padded[1], padded[2]


def _check_shape(machine: Machine) -> None:
    launch, shared_size = machine.launch, machine.windows.shared_size
    directives, shape = launch.function.directives, launch.block_shape
    required, most = directives.get("reqntid"), directives.get("maxntid")
    if required and (*required, 1, 1)[:3] != shape:
        machine.faults.add("launch", f"blocks of {shape} threads where the kernel demands {required}", None)
    if most and launch.threads > int(np.prod(most)):
        machine.faults.add("launch", f"blocks of {launch.threads} threads, more than .maxntid", None)
    number = re.match(r"sm_(\d+)", launch.module.target)
    limit = SHARED_BYTES.get(int(number[1])) if number else None
    if limit is not None and shared_size > limit:
        text = f"blocks of {shared_size} bytes of shared memory, more than the {limit} of {launch.module.target}"
        machine.faults.add("launch", text, None, distinct="shared")


def _store_parameters(machine: Machine, arguments: Sequence[Argument]) -> None:
    function = machine.launch.function
    parameters = function.parameters
    if len(arguments) != len(parameters):
        raise ValueError(f"{function.name} takes {len(parameters)} arguments, not {len(arguments)}")
    size = max((p.offset + p.size for p in parameters), default=0)
    align = max((p.align for p in parameters), default=1)
    allocation = machine.memory.reserve("parameters", "param", size, align=max(align, 256), writable=False, tracked=False)
    for parameter, argument in zip(parameters, arguments, strict=True):
        start = allocation.start + parameter.offset
        data = np.frombuffer(_bytes(parameter, argument), np.uint8)
        machine.memory.data[start : start + parameter.size] = data
        machine.memory.poison[start : start + parameter.size] = 0
    machine.windows.parameters.append(allocation)


def _bytes(parameter: Parameter, argument: Argument) -> bytes:
    if isinstance(argument, Allocation):
        argument = argument.address
    if isinstance(argument, (bytes, bytearray)):
        if len(argument) != parameter.size:
            raise ValueError(f"{parameter.name} has {parameter.size} bytes, not {len(argument)}")
        return bytes(argument)
    if isinstance(argument, float):
        if parameter.type[0] not in "fb" or parameter.size not in (4, 8):
            raise ValueError(f"a float for {parameter.name} of type .{parameter.type}")
        return (np.float32(argument) if parameter.size == 4 else np.float64(argument)).tobytes()
    return (int(argument) & ((1 << 8 * parameter.size) - 1)).to_bytes(parameter.size, "little")


def emulate(
    ptx: str | Module,
    manifest: Manifest,
    tensors: Mapping[str, NDArray[Any]],
    values: Mapping[str, int | float],
    *,
    seed: int = 0,
    blocks: Sequence[Block] | None = None,
    limits: Limits | None = None,
) -> Report:
    """Launches the kernel that `manifest` describes. `tensors`: one array per tensor parameter, of its dtype's size; out and
    scratch tensors start uninitialised. `values`: dims, strides and scalars by name. `seed` also selects a persistent
    kernel's grid size from PERSISTENT_BLOCKS. The given arrays are not modified; the report has new ones. Raises
    UnsupportedPtx, and ValueError for missing or ill-sized arguments."""
    module = parse(ptx) if isinstance(ptx, str) else ptx
    if any(spec.access in OF_RANKS for spec in manifest.tensors):
        raise UnsupportedPtx("a launch that meets other ranks, alone (`tilec.emulator.ranks` runs all)")
    memory = Memory((limits or Limits()).memory_bytes)
    pointers: dict[str, Allocation] = {}
    env = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    for spec in manifest.tensors:
        if spec.name not in tensors:
            raise ValueError(f"no array for tensor `{spec.name}`")
        pointers[spec.name] = memory.allocate(
            spec.name,
            tensors[spec.name],
            writable=spec.access != "in",
            initialised=spec.access not in ("out", "scratch"),
            align=spec.align,
            checked=spec.access == "out",
            required=_elements(spec, tensors[spec.name], env) if spec.access == "out" else None,
            resident=spec.resident,
        )
    dtypes = {spec.name: spec.dtype for spec in manifest.scalars}
    maps = iter(tensor_map(spec, manifest, pointers, env) for spec in manifest.tensor_maps)
    arguments = [
        next(maps) if slot.kind == "tensor_map" else argument_of(slot, pointers, values, dtypes) for slot in manifest.abi
    ]
    grid = [axis.evaluate(env) for axis in manifest.grid]
    grid[0] *= manifest.cluster
    if manifest.schedule.get("persistent"):  # the kernel is correct for any grid size
        width = cluster_shape(module.functions[manifest.entry], None)[0] if manifest.entry in module.functions else 1
        grid[0] = min(grid[0], width * PERSISTENT_BLOCKS[seed % len(PERSISTENT_BLOCKS)])
    return run(
        module,
        manifest.entry,
        grid,
        (manifest.block,),
        arguments,
        memory,
        dynamic_shared_bytes=manifest.resources.dynamic_shared_bytes,
        overlaps=manifest.dependent_launch,
        seed=seed,
        limits=limits,
        blocks=blocks,
    )


def tensor_map(spec: TensorMapSpec, manifest: Manifest, pointers: Mapping[str, Allocation], env: Mapping[str, int]) -> bytes:
    """A tensor map of a manifest in the emulator's encoding. ValueError if the tensor cannot have one."""
    tensor = next(spec_of_tensor for spec_of_tensor in manifest.tensors if spec_of_tensor.name == spec.tensor)
    size = DTYPES[tensor.dtype].bytes
    dims = [dim.evaluate(env) for dim in tensor.dims]
    if tensor.strides is None:
        strides = [size * int(np.prod(dims[axis + 1 :])) for axis in range(len(dims))]
    else:
        strides = [size * stride.evaluate(env) for stride in tensor.strides]
    if strides[-1] != size:
        raise ValueError(f"`{spec.tensor}`: its rows have gaps, which no tensor map can have")
    inward = slice(None, None, -1)
    return TensorMap(
        pointers[spec.tensor].address, size, tuple(dims[inward]), tuple(strides[:-1][inward]), spec.box[inward], spec.swizzle
    ).encode()


def _elements(spec: TensorSpec, array: NDArray[Any], env: Mapping[str, int]) -> NDArray[np.bool_] | None:
    """Mask of the bytes that belong to elements of a strided tensor; None if all do."""
    if spec.strides is None:
        return None
    indices = np.zeros((), np.int64)
    for dim, stride in zip(spec.dims, spec.strides, strict=True):
        indices = indices[..., None] + np.arange(dim.evaluate(env)) * stride.evaluate(env)
    marked = np.zeros(array.size, np.bool_)
    marked[indices.reshape(-1)] = True
    return np.repeat(marked, array.dtype.itemsize)


def argument_of(
    slot: AbiSlot, pointers: Mapping[str, Allocation], values: Mapping[str, int | float], dtypes: Mapping[str, str]
) -> Argument:
    """The argument of a slot. ValueError if its value is missing."""
    if slot.kind == "pointer":
        return pointers[slot.name]
    if slot.name not in values:
        raise ValueError(f"no value for {slot.kind} `{slot.name}`")
    value = values[slot.name]
    dtype = DTYPES[dtypes[slot.name]] if slot.kind == "scalar" else None
    if dtype is not None and dtype.is_float:
        if dtype.bits == 32:
            return float(value)
        with np.errstate(over="ignore"):
            return int(np.asarray(value).astype(numpy_dtype(dtype)).view(np.uint16))  # a kernel receives its raw bits
    return int(value)
