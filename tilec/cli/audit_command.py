"""`tilec audit`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilec.cli.bundle_commands import opened
from tilec.cli.project import UsageError, open_store
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.runtime import BundleError
from tilec.target.targets import TARGETS
from tilec.untrusted.output import write_named

if TYPE_CHECKING:
    from tilec.audit.cubins import Assembler
    from tilec.cache import Store


def audit_command(
    path: str, *, digest: str | None, trust: str | None, json_file: str | None, time_limit: float | None,
    jobs: int, kernels: tuple[str, ...], launches: int, seeds: int, rebuild: bool, use_cache: bool,
) -> int:  # fmt: skip
    """Audit a bundle, print the table and write the report. Returns the exit status."""
    try:
        from tilec.audit.report import lines, seal
        from tilec.audit.run import audit
        from tilec.audit.verdicts import Verdicts
        from tilec.audit.work import Options
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "z3":
            raise
        hint = "run `pip install 'tilec[audit]'`"
        raise CompileError(Diagnostic("E0601", "`z3-solver` is not installed", hint=hint)) from None
    with contextlib.ExitStack() as stack:
        bundle = stack.enter_context(opened(path, digest=digest, trust=trust))
        store = stack.enter_context(contextlib.closing(open_store())) if use_cache else None
        kernel_names = {name for one in bundle.kernels for name in (one.name, one.manifest.kernel)}
        for name in kernels:
            if name not in kernel_names:
                raise CompileError(Diagnostic("E0707", f"`{path}` has no kernel `{name:.80}`"))
        options = Options(jobs, kernels, launches, seeds, time_limit)
        show = _progress() if sys.stderr.isatty() else None
        try:
            verdicts = Verdicts(store) if store is not None else None
            report = audit(bundle, options, verdicts, assembler(store) if rebuild else None, show)
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


def assembler(store: Store | None) -> Assembler:
    """The installed assembler, or the reason why there is none; `store` caches the digests of its files."""
    from tilec.audit.cubins import ASSEMBLERS, Assembler
    from tilec.toolchain import PACKAGES, fingerprint, stated

    wanted = [package for package in PACKAGES if package.distribution in (*ASSEMBLERS, "cuda-bindings", "cuda-pathfinder")]
    try:
        return Assembler(assembled, stated(fingerprint(store, wanted)))
    except CompileError as error:
        return Assembler(missing=f"{error.diagnostics[0].message}; run `pip install 'tilec[audit]'`")


def assembled(ptx: str, arch: str) -> bytes:
    """The CUBIN of a PTX text. CompileError if it is refused or no assembler is installed."""
    from tilec.assemble import assemble

    target = next((target for target in TARGETS if target.name == arch), None)
    if target is None:
        raise UsageError(f"no architecture `{arch}`")
    return assemble(ptx, target).cubin


def _write(path: str, report: dict[str, Any]) -> None:
    from tilec.artifact.bundle_format import canonical

    write_named(path, canonical(json.loads(json.dumps(report))))
