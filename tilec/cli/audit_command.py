"""`tilec audit`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilec.cli.bundle_commands import opened
from tilec.cli.project import UsageError
from tilec.diagnostics import CompileError, Diagnostic
from tilec.output import Output
from tilec.progress import DEFAULT_LIMITS
from tilec.runtime import BundleError
from tilec.target import TARGETS, Target


def audit_command(
    path: str, *, digest: str | None, trust: str | None, json_file: str | None, time_limit: float, jobs: int,
    kernels: tuple[str, ...], launches: int, seeds: int, rebuild: bool,
) -> int:  # fmt: skip
    """Audit a bundle, print the table, write the report; the exit status."""
    try:
        from tilec.audit.report import lines, seal
        from tilec.audit.run import Options, audit
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "z3":
            raise
        hint = "run `pip install 'tilec[audit]'`"
        raise CompileError(Diagnostic("E0601", "`z3-solver` is not installed", hint=hint)) from None
    with opened(path, digest=digest, trust=trust) as bundle:
        known = {name for one in bundle.kernels for name in (one.name, one.manifest.kernel)}
        for name in kernels:
            if name not in known:
                raise CompileError(Diagnostic("E0707", f"`{path}` has no kernel `{name:.80}`"))
        options = Options(time_limit, jobs, kernels, launches, seeds)
        show = _progress() if sys.stderr.isatty() else None
        try:
            report = audit(bundle, options, rebuild=_assemble if rebuild else None, show=show)
        except BundleError as error:
            raise CompileError(Diagnostic(error.code, error.message)) from None
    print("\n".join(lines(report)))
    print(f"report sha256 {seal(report)}")
    if json_file is not None:
        _write(json_file, report)
    return report["summary"]["status"]


def _progress() -> Callable[[str], None]:
    start = time.monotonic()

    def show(label: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {label}", file=sys.stderr)

    return show


def _assemble(ptx: str, arch: str) -> bytes:
    """The CUBIN of a PTX text; needs the compiler."""
    from tilec.workers.call import call

    target = next((target for target in TARGETS if target.name == arch), None)
    if target is None:
        raise UsageError(f"no architecture `{arch}`")
    return call(_assembled, ptx, target, what=f"assembling the PTX for {target}", limits=DEFAULT_LIMITS)


def _assembled(ptx: str, target: Target) -> bytes:
    from tilec.assemble import assemble

    return assemble(ptx, target).cubin


def _write(path: str, report: dict[str, Any]) -> None:
    from tilec.bundle_format import canonical

    output, name = Output.file(Path(path))
    output.write(name, canonical(json.loads(json.dumps(report))))
