"""`tcgen05`: dispatch by operation, the fences and the waits.

PTX ISA, "Tensorcore 5th generation family instructions". Every instruction of a function names the same `.cta_group`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.emulator.instructions import tensor_allocation, tensor_copies, tensor_products, tensor_transfers
from tilec.emulator.instructions.convergence import converge
from tilec.emulator.instructions.tensor_commits import commit
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder, control, lanewise
from tilec.emulator.machine.sources import Step


@control("tcgen05")
def tcgen05(d: Decoder) -> Step:
    """Decodes the operations of warps, the fences and the waits."""
    operation = d.need(*_OF_WARPS)
    return _OF_WARPS[operation](d)


@lanewise("tcgen05.mma", "tcgen05.cp", "tcgen05.shift", "tcgen05.commit")
def of_threads(d: Decoder) -> Step:
    """Decodes the operations that one thread issues, usually under a guard."""
    step = _OF_THREADS[d.need(*_OF_THREADS)](d)

    def guarded(frame: Frame) -> None:
        if frame.mask_poison is not None:
            subject = "the guard of a tcgen05 instruction"
            d.machine.faults.poison(subject, d.instruction, frame, frame.mask_poison, masked=False)
        step(frame)

    return guarded


def _fence(is_after: bool) -> Callable[[Decoder], Step]:
    """`tcgen05.fence::before_thread_sync` and `::after_thread_sync`. They order tcgen05 operations of the thread around its
    signals, relaxed ones too; here relaxed signals then order other accesses as well."""

    def decode(d: Decoder) -> Step:
        d.finish(0)
        fences, ordering = d.machine.tensor_memory.fences, d.machine.ordering

        def step(frame: Frame) -> None:
            if is_after:
                ordering.synchronise.fence(frame, "acquire", "cluster")
            fences.fence(frame.lanes, is_after)
            if not is_after:
                ordering.synchronise.fence(frame, "release", "cluster")

        return step

    return decode


def _wait(operation: str) -> Callable[[Decoder], Step]:
    """`tcgen05.wait::ld` and `::st`: all earlier ones of the thread are complete."""

    def decode(d: Decoder) -> Step:
        d.need("sync")
        d.need("aligned")
        d.finish(0)
        state = d.machine.tensor_transfers
        return converge(d, lambda frame: state.wait(frame, operation))

    return decode


_OF_WARPS: Final[dict[str, Callable[[Decoder], Step]]] = {
    "alloc": tensor_allocation.alloc,
    "dealloc": tensor_allocation.dealloc,
    "relinquish_alloc_permit": tensor_allocation.relinquish,
    "ld": tensor_transfers.load,
    "st": tensor_transfers.store,
    "wait::ld": _wait("ld"),
    "wait::st": _wait("st"),
    "fence::before_thread_sync": _fence(False),
    "fence::after_thread_sync": _fence(True),
}
_OF_THREADS: Final[dict[str, Callable[[Decoder], Step]]] = {
    "mma": tensor_products.mma,
    "cp": tensor_copies.cp,
    "shift": tensor_copies.shift,
    "commit": commit,
}
