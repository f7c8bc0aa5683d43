"""Code generation in worker processes, where an abort inside LLVM ends one job and not the build.

`to_ptx` here takes and returns plain text, so that any process pool can call it. A pool whose worker aborted is broken for
good: `describe_crash` is the diagnostic for the job, and the owner of the pool makes a new one for the others.
"""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor

from tilec.codegen import ptx
from tilec.codegen.bindings import load_llvmlite, load_mlir
from tilec.diagnostics import CompileError, Diagnostic
from tilec.target import Target


def prepare() -> None:
    """Start-up of a worker: leave Ctrl-C to the parent, and load the compilers before the first job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_mlir()
    load_llvmlite()


def create_pool(max_workers: int) -> ProcessPoolExecutor:
    """A pool of workers forked from one clean server process that holds the compilers, so that a start costs little."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(max_workers, mp_context=context, initializer=prepare)


def to_ptx(mlir: str, arch: str) -> str:
    """PTX text of MLIR text for the architecture named; CompileError E0501 to E0505 as `tilec.codegen.ptx.to_ptx`."""
    return ptx.to_ptx(mlir, Target.parse(arch))


def describe_crash(kernel: str, arch: str) -> CompileError:
    """What to report where the worker that compiled `kernel` died (`BrokenProcessPool`)."""
    return CompileError(
        Diagnostic(
            "E0504",
            f"LLVM ended the worker process that compiled `{kernel}` for {arch}",
            notes=("LLVM aborts on an instruction it cannot select for the chip",),
            hint="this is a defect of tilec; please report it with the output of `tilec dump`",
        )
    )
