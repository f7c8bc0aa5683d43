"""`tilec explain` and `tilec graph`."""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path
from typing import Final

from tilec.cli.project import UsageError, open_one, print_diagnostics
from tilec.diagnostics.diagnostic import CompileError
from tilec.diagnostics.terminal import wants_colour
from tilec.diagnostics.visible import unguarded
from tilec.project.read.models import Constant
from tilec.untrusted.output import write_named

LONGEST_CODE: Final = 20


def explain_command(code: str) -> int:
    """Print the page of an error code."""
    pages = importlib.resources.files("tilec") / "diagnostics" / "explain"
    page = pages / f"{code.upper()}.md"
    if not (code.isalnum() and len(code) <= LONGEST_CODE and page.is_file()):
        known = sorted(item.name.removesuffix(".md") for item in pages.iterdir() if item.name.endswith(".md"))
        raise UsageError(f"no error code `{code:.40}`; {_similar_codes(code.upper(), known)}")
    text = page.read_text(encoding="utf-8")
    if sys.stdout.isatty() and wants_colour(sys.stdout):
        from rich.console import Console
        from rich.markdown import Markdown

        Console(file=unguarded(sys.stdout)).print(Markdown(text))
    else:
        print(text.rstrip())
    return 0


def _similar_codes(code: str, known: list[str]) -> str:
    """The codes that the user may have meant: those with the same digits, else those of the same hundred, else all."""
    digits = "".join(character for character in code if character.isdigit())
    alike = [name for name in known if digits and name[1:].lstrip("0") == digits.lstrip("0")]
    if alike:
        return f"did you mean {', '.join(f'`{name}`' for name in alike)}?"
    hundreds: dict[str, list[str]] = {}
    for name in known:
        hundreds.setdefault(name[:3], []).append(name)
    same = hundreds.get(f"E{digits[:2]}") if len(digits) == 4 else None
    if same:
        return f"the codes of its kind are {same[0]} to {same[-1]}"
    return f"the codes are {', '.join(f'{names[0]} to {names[-1]}' for names in hundreds.values())}"


def graph_command(project: str | None, kernel: str, constants: tuple[str, ...], output: str) -> int:
    """Write the drawing of one specialisation. Returns 1 if the kernel is refused."""
    from tilec.workers.call import call

    build, entry = open_one(project, kernel, constants)
    (values,) = entry.specialisations()
    task_name = f"the drawing of kernel `{entry.name}`"
    try:
        path = build.kernels / f"{entry.name}.py"
        text = call(_drawn, path, values, build.root, what=task_name, limits=entry.limits, span=entry.span)
    except CompileError as error:
        print_diagnostics(error.diagnostics, build.root)
        return 1
    if write_named(output, text.encode(), durable=False):
        print(f"wrote {output}")
    return 0


def _drawn(path: Path, values: dict[str, Constant], root: Path) -> str:
    from tilec.frontend import load_kernel
    from tilec.graph import draw
    from tilec.passes.prover import prove

    function = load_kernel(path, values, root=root)
    return draw(prove(function), function)
