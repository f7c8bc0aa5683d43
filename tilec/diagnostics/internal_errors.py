"""Reports an internal error of tilec as one diagnostic at the kernel that triggered it.

If a kernel was accepted and then cannot be built, the fault is in tilec, not in the kernel. Any exception of a stage other than
its own diagnostics (a verifier's error, a failed assertion, a recursion limit) becomes E0508 with the location in tilec and the
operation being processed. Errors of MLIR and LLVM keep their code and get the kernel's span. Users see no traceback.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label, Span
from tilec.ir.core import Op

HINT = "this is a bug in tilec; please report it with the kernel"
PACKAGE = Path(__file__).parents[1]
REFUSED_LATE = ("E0501", "E0502", "E0503", "E0505")
"""Error codes of MLIR, LLVM and the assembler, which do not know the kernel's source."""


@contextmanager
def reported_as_diagnostics(what: str, span: Callable[[], Span | None]) -> Generator[None]:
    """Converts exceptions raised inside to CompileError. `what` describes the activity, such as "stage `mlir` of kernel `k`";
    `span` returns the kernel's location in its source, if any."""
    try:
        yield
    except CompileError as error:
        raise CompileError([_located(item, span) for item in error.diagnostics]) from error
    except MemoryError as error:
        hint = "make the kernel simpler, raise `stage_memory_mb` in build.toml or the limit of the shell (`ulimit -v`)"
        raise CompileError(Diagnostic("E0812", f"{what} ran out of memory", hint=hint)) from error
    except Exception as error:
        raise CompileError(internal_error(what, error, span)) from error


def _located(item: Diagnostic, span: Callable[[], Span | None]) -> Diagnostic:
    if item.primary is not None or item.code not in REFUSED_LATE:
        return item
    span_found = _found(span)
    label = Label(span_found, "this kernel was accepted, and then could not be compiled") if span_found is not None else None
    return replace(item, primary=label, hint=item.hint or HINT)


def internal_error(what: str, error: Exception, span: Callable[[], Span | None]) -> Diagnostic:
    """E0508 for an unexpected exception, E0512 if a stage ran out of stack or memory."""
    if isinstance(error, RecursionError | MemoryError):
        return _too_large(what, error, span)
    span_found, op = _found(span), _operation(error.__traceback__)
    primary = Label(span_found, "this kernel was accepted, and then could not be compiled") if span_found is not None else None
    secondary = (Label(op.loc, f"the operation `{op.opcode}`"),) if op is not None and op.loc is not None else ()
    message = str(error).strip().split("\n")[0][:200]
    notes = [f"{type(error).__name__}{f': {message}' if message else ''}"]
    function_name = _innermost_function(error.__traceback__)
    if function_name:
        notes.append(f"in {function_name}" + (f", at the operation `{op.opcode}`" if op is not None else ""))
    return Diagnostic("E0508", f"internal error in tilec: {what} failed", primary, secondary, tuple(notes), hint=HINT)


def _too_large(what: str, error: Exception, span: Callable[[], Span | None]) -> Diagnostic:
    span_found = _found(span)
    out_of = "stack" if isinstance(error, RecursionError) else "memory"
    primary = (
        Label(span_found, "this kernel nests deeper than tilec can follow, or is too large") if span_found is not None else None
    )
    hint = "split expressions, use smaller tiles, or split the kernel"
    return Diagnostic("E0512", f"tilec has no {out_of} left in {what}", primary, hint=hint)


def _found(span: Callable[[], Span | None]) -> Span | None:
    try:
        return span()
    except Exception:  # computing the span may fail on the same kernel
        return None


def _innermost_function(trace: TracebackType | None) -> str:
    """The innermost active function of tilec, as `passes/layout.py`, line and name."""
    for frame in reversed(traceback.extract_tb(trace)):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE):
            return f"`{path.relative_to(PACKAGE).as_posix()}`, line {frame.lineno}, `{frame.name}`"
    return ""


def _operation(trace: TracebackType | None) -> Op | None:
    """The operation processed by the innermost function that has one as `self` or `op`."""
    found: Op | None = None
    while trace is not None:
        for name in ("self", "op"):
            candidate = trace.tb_frame.f_locals.get(name)
            if isinstance(candidate, Op):
                found = candidate
        trace = trace.tb_next
    return found
