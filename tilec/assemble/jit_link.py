"""PTX to CUBIN through nvJitLink, in process and without a driver.

The input is named `kernel` and the options contain no path, because the assembler writes both into the CUBIN: equal PTX gives
equal bytes on any machine with the same nvJitLink. Line directives serve readers of the PTX and are removed first: nvJitLink
would turn them into a table that makes up two thirds of the CUBIN. PTX that nvJitLink does not handle well goes to ptxas
(`ptxas`).
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tilec.artifact.records import Resources
from tilec.assemble import more_blocks, ptxas, resources
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.target.targets import Target
from tilec.toolchain import missing_package

_LINES: Final = re.compile(r"^(?:[ \t]*\.(?:loc|file)\b[^\n]*|\$L__(?:tmp|func_begin|func_end)\d+:)\n", re.MULTILINE)
"""Line directives, and the labels that LLVM puts around them, which are never jump targets."""

NO_REGISTERS: Final = "Register allocation failed"
"""In what ptxas says of a kernel whose products do not fit the registers that its schedule leaves."""
_FOR_PTXAS: Final = re.compile(r"\bsetmaxnreg\.|(?s:\bwgmma\..*\b(?:div|rcp)\.rn\.)")


@dataclass(frozen=True, slots=True)
class Assembled:
    """Machine code and its resource usage; dynamic shared memory is set at launch and is 0 here. `one_by_one`: the assembler
    serialized the `wgmma` instructions. `blocks` on a multiprocessor that it chose registers for; None: it chose none."""

    cubin: bytes = field(repr=False)
    resources: Resources
    one_by_one: bool = False
    blocks: int | None = None


def assemble(ptx: str, target: Target, most_blocks: int | None = None) -> Assembled:
    """Assembles a module with one kernel, and again if fewer registers may leave room for more blocks, of which a
    multiprocessor has at most `most_blocks` (`more_blocks`); None: as the PTX says. CompileError: E0602 the assembler rejected
    the PTX, E0601 nvJitLink or ptxas is missing."""
    text = _LINES.sub("", ptx)
    made = _assembled(text, target)
    for blocks in more_blocks.wanted(text, made.resources, most_blocks) if most_blocks is not None else ():
        try:
            other = _assembled(more_blocks.asking(text, blocks), target)
        except CompileError:  # of registers that do not suffice
            continue
        if not other.resources.spill_bytes:
            return replace(other, blocks=blocks)
    return made


def _assembled(text: str, target: Target) -> Assembled:
    if _FOR_PTXAS.search(text):
        machine_code, output = ptxas.run(text.encode(), target.name)
        if machine_code is None:
            raise _refusal(output, target)
        return Assembled(machine_code, resources.parse(output), resources.one_by_one(output))
    link = _load()
    # Where a driver is installed, nvJitLink would take PTX that it has seen before from the driver's cache, without the report.
    options = [f"-arch={target.name}", "-O3", "-verbose", "-no-cache"]
    handle = link.create(len(options), options)
    try:
        data = text.encode()
        link.add_data(handle, link.InputType.PTX, data, len(data), "kernel")
        link.complete(handle)
        cubin = bytearray(link.get_linked_cubin_size(handle))
        link.get_linked_cubin(handle, cubin)
        report = _log(link.get_info_log_size, link.get_info_log, handle)
    except link.nvJitLinkError as error:
        raise _refusal(_log(link.get_error_log_size, link.get_error_log, handle) or str(error), target) from None
    finally:
        link.destroy(handle)
    return Assembled(bytes(cubin), resources.parse(report), resources.one_by_one(report))


def _load() -> Any:
    try:
        module = importlib.import_module("cuda.bindings.nvjitlink")
    except ModuleNotFoundError:
        raise missing_package("cuda-bindings") from None
    try:
        module.version()
    except RuntimeError:
        raise missing_package("nvidia-nvjitlink") from None
    return module


def _log(size: Any, read: Any, handle: int) -> str:
    length: int = size(handle)
    text = bytearray(length)
    if length:
        read(handle, text)
    return text.rstrip(b"\0 \n").decode(errors="replace")


def _refusal(log: str, target: Target) -> CompileError:
    notes = tuple(line.strip() for line in log.splitlines() if line.strip())[:12]
    hint = "this is a bug in tilec; please report it with the output of `tilec dump`"
    if NO_REGISTERS in log:
        hint = (
            "its schedule leaves a thread too few registers: choose fewer `blocks`, `consumers` or `warps`, or a smaller tile"
        )
    return CompileError(Diagnostic("E0602", f"the assembler refused the PTX for {target}", notes=notes, hint=hint))
