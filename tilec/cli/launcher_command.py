"""`tilec bundle launcher`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tilec.cli.bundle_commands import opened
from tilec.cli.project import UsageError, print_line
from tilec.diagnostics.spelling import or_mean
from tilec.untrusted.output import Output


def launcher_command(
    path: str, wanted: tuple[str, ...], digest: str | None, trust: str | None, output: str | None, prefix: str | None, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Write the two files and print the functions. Kernels without a function are listed on stderr; UsageError if none has
    one."""
    from tilec.ship.launcher_c.launcher import make_launcher

    if prefix is not None and not re.fullmatch(r"[A-Za-z]\w{0,63}", prefix, re.ASCII):
        raise UsageError(f"`{prefix:.80}` is not a name in C")
    with opened(path, digest=digest, trust=trust) as bundle:
        kernel_names = {name for kernel in bundle.kernels for name in (kernel.name, kernel.manifest.kernel)}
        for name in wanted:
            if name not in kernel_names:
                raise UsageError(f"no kernel `{name:.80}` in `{path}`{or_mean(name, kernel_names)}")
        chosen = [one for one in bundle.kernels if not wanted or one.name in wanted or one.manifest.kernel in wanted]
        launcher = make_launcher(bundle, chosen, prefix)
    for name, reason in launcher.left_out.items():
        print_line("warning", f"`{name}` has no function: it {reason}")
    if not launcher.functions:
        raise UsageError(f"no kernel of `{path}` can have a function in C")
    folder = Path(output or ".")
    for name, text in ((launcher.header_name, launcher.header), (launcher.source_name, launcher.source)):
        Output(folder, None).write(name, text.encode())
    if as_json:
        files = {"header": str(folder / launcher.header_name), "source": str(folder / launcher.source_name)}
        print(json.dumps({**files, "functions": launcher.functions, "left_out": launcher.left_out}, indent=1))
    else:
        print(f"{folder / launcher.header_name}, {folder / launcher.source_name}")
        print("\n".join(f"  {function}" for function in launcher.functions.values()))
    return 0
