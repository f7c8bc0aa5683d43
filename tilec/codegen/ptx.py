"""MLIR text to PTX: upstream passes to the LLVM dialect, translation to LLVM IR, optimisation and NVPTX code generation.

The text contains functions at the top level of a `builtin.module`; kernels have the attribute `nvvm.kernel`. LLVM aborts the
whole process on an intrinsic that the target lacks, so `legality.check` runs first. `to_ptx` is called only in worker processes
(`tilec.workers`), so that an intrinsic `legality.check` misses fails one job and not the build.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

from tilec.codegen import float_literals, legality, locations
from tilec.codegen.bindings import load_llvmlite, load_mlir
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.target.targets import Target

TRIPLE: Final = "nvptx64-nvidia-cuda"
_CLEANUP: Final = "canonicalize,cse"
_PIPELINE: Final = (
    f"builtin.module({_CLEANUP},convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    f"convert-index-to-llvm,convert-cf-to-llvm,convert-nvvm-to-llvm,{_CLEANUP},reconcile-unrealized-casts)"
)
_LINES: Final = f"builtin.module({locations.PASS})"
_EMPTY_SECTION: Final = re.compile(r"^\s*\.section\s+\.debug_macinfo\s*\{\s*\}\n", re.MULTILINE)
"""An empty section that LLVM emits with line directives; an assembler may mistake it for debug information."""
_KERNEL: Final = re.compile(r"^define (?:\w+ )*ptx_kernel void @([\w$]+)\(", re.MULTILINE)
_EXTERN_FUNCTION: Final = re.compile(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$.]+)")

_OF_THE_DRIVER: Final = frozenset({"vprintf"})
"""Functions that the CUDA driver links in when it loads a CUBIN (CUDA programming guide, "Formatted output")."""


@functools.cache
def _context() -> Any:
    """The MLIR context of all modules of this process: registering the dialects takes as long as the passes."""
    context = load_mlir()[0].Context()
    context.enable_multithreading(False)
    return context


def to_llvm_ir(mlir: str) -> str:
    """LLVM IR text of a module in MLIR text; CompileError E0501 if MLIR rejects the text or a pass fails."""
    ir, passmanager, llvm = load_mlir()
    with _context(), ir.Location.unknown():
        try:
            lines = locations.has_lines(mlir)
            module = ir.Module.parse(locations.located(mlir) if lines else mlir)
            for pipeline in (_PIPELINE, _LINES) if lines else (_PIPELINE,):
                passes = passmanager.PassManager.parse(pipeline)
                passes.enable_verifier(False)  # it takes as long as the passes; the result is verified once
                passes.run(module.operation)
            module.operation.verify()
            return float_literals.older_spelling(str(llvm.translate_module_to_llvmir(module.operation)))
        except (ir.MLIRError, RuntimeError) as error:
            raise _failure("E0501", "MLIR refused the lowered kernel", str(error)) from None


def to_ptx(mlir: str, target: Target) -> str:
    """PTX text for `target`. Call it only in a worker process. Raises CompileError: E0501 MLIR rejected the text, E0503 the
    target lacks an operation, E0505 LLVM rejected the module, E0502 a call to an undefined function."""
    llvm_ir, restore_names = _with_neutral_names(to_llvm_ir(mlir))
    legality.check(llvm_ir, target)
    ptx = restore_names(_generate(llvm_ir, target))
    unresolved = sorted({*_EXTERN_FUNCTION.findall(ptx)} - _OF_THE_DRIVER)
    if unresolved:
        names = ", ".join(f"`{name}`" for name in unresolved)
        raise CompileError(
            Diagnostic(
                "E0502",
                f"the generated code calls {names}, which nothing defines",
                notes=("an intrinsic that this LLVM does not know becomes a call of that name",),
                hint="lower the operation to inline PTX instead",
            )
        )
    return ptx


def _with_neutral_names(llvm_ir: str) -> tuple[str, Callable[[str], str]]:
    """LLVM IR whose kernels have names that LLVM cannot recognize, and a function that restores the original names in PTX. LLVM
    recognizes functions of the C library and of its own runtime by name alone, and a kernel may be called `memcpy` or
    `__nvvm_reflect`. Names keep their length, so columns in PTX do not move. A one-letter name is kept, since LLVM recognizes
    none."""
    names = {name: f"${'k' * (len(name) - 1)}" for name in _KERNEL.findall(llvm_ir) if len(name) > 1}
    if len(set(names.values())) != len(names):  # several kernels in a module, which lowering does not generate
        return llvm_ir, lambda ptx: ptx
    for name, neutral_name in names.items():
        llvm_ir = re.sub(rf"@{re.escape(name)}(?![\w$.-])", lambda _, new=neutral_name: f"@{new}", llvm_ir)

    def restore_names(ptx: str) -> str:
        for name, neutral_name in names.items():
            ptx = re.sub(rf"(?<![\w$]){re.escape(neutral_name)}(?![a-zA-Z0-9$])", lambda _, new=name: new, ptx)
        return ptx

    return llvm_ir, restore_names


def _generate(llvm_ir: str, target: Target) -> str:
    binding = load_llvmlite()
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(cpu=target.name, features=target.ptx_feature, opt=3)
    try:
        module = binding.parse_assembly(llvm_ir)
        module.triple = TRIPLE
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise _failure("E0505", "LLVM refused the translated kernel", str(error)) from None
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return _EMPTY_SECTION.sub("", str(machine.emit_assembly(module)))


def _failure(code: str, message: str, detail: str) -> CompileError:
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    return CompileError(Diagnostic(code, message, notes=tuple(lines[:12]), hint="this is a bug in tilec; please report it"))
