"""The kernels of this folder: the expected codes of each, and the full text of its refusal.

A kernel states its codes where they belong: `#~ E0401` on the guilty line, or `#~^ E0401` on the line below it (one more `^`
per line in between). `#~ E0110` on the line of `def` is for a refusal of the kernel as a whole. A kernel without such a comment
must be accepted. Next to each refused kernel, `<name>.stderr` has the rendered diagnostics.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, render_all
from tilec.frontend import load_kernel
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.targets import SM_90A

FOLDER = Path(__file__).resolve().parent
_EXPECTED = re.compile(r"#~(\^*)((?: E\d{4})+)")

Constants = dict[str, int | float | bool | str]


def kernels() -> list[Path]:
    """Every kernel file, sorted."""
    return sorted(path for path in FOLDER.glob("*/*.py") if not path.name.startswith("test_"))


def constants(text: str) -> Constants:
    """The specialisation that the line `Constants: H = 64, E = "bf16"` of a docstring names."""
    found = re.search(r"^Constants: (.*)$", text, re.MULTILINE)
    if found is None:
        return {}
    call = ast.parse(f"f({found.group(1)})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}


def expected(text: str) -> set[tuple[int, str]]:
    """Line and code of every refusal that the comments require."""
    found: set[tuple[int, str]] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        for carets, codes in _EXPECTED.findall(line):
            found |= {(number - len(carets), code) for code in codes.split()}
    return found


def diagnose(path: Path) -> tuple[Diagnostic, ...]:
    """The errors of the frontend or the prover for a kernel, in the folder `schedule` also those of its schedule and its
    lowering on sm_90a; empty if it is accepted."""
    try:
        function = load_kernel(path, constants(path.read_text(encoding="utf-8")))
        prove(function)
        if path.parent.name == "schedule":
            lower(prepare(function, SM_90A), SM_90A)
    except CompileError as error:
        return error.diagnostics
    return ()


def rendered(path: Path, diagnostics: tuple[Diagnostic, ...]) -> str:
    """The text shown to a user, without the kernel's folder."""
    return render_all(diagnostics).replace(f"{path.parent}/", "") + "\n"
