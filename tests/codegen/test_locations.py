"""Line directives of PTX: they name lines of the tile IR's text, change no instruction, and survive edits of comments.

An instruction that LLVM hoists out of a loop, or merges from two locations, has line 0, because it belongs to no single
operation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import shipped
from tests.campaign import first
from tilec.assemble import assemble
from tilec.codegen import locations, to_ptx
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.text.lines import line_numbers, number_lines, source_of
from tilec.ir.text.printer import print_function
from tilec.ir.text.spans import spans_json
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.pipeline import STAGES, Request, Work, stage_named
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

NAMES = ("add", "rms_norm", "matmul", "flash_attention", "sample_token")
KERNEL = '''"""A kernel."""
import tilec
from tilec import InOut, bid, f32, grid, i32, load, store, zeros
{comment}
@tilec.kernel
def k(a: InOut[f32, 8, 512], turns: i32):
    grid(8)
    total = zeros((1, 256), f32)
    for i in range(turns):{remark}
        if i > 2:
            total = total + load(a, (bid(0), i % 2), shape=(1, 256))
    store(a, (bid(0), 1), total)
'''


def numbered(function: Function, target: Target, name: str = "") -> str:
    number_lines(function)
    return lower(shipped.prepare_as(name, function, target) if name else prepare(function, target), target).mlir


def own_kernel(folder: Path, comment: str = "", remark: str = "") -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL.format(comment=comment, remark=remark))
    return load_kernel(path, {}, root=folder)


def without_lines(mlir: str) -> str:
    return re.sub(r"// line \d+( replicated)?\n", "", mlir)


def instructions(ptx: str) -> list[str]:
    lines = [line.strip() for line in ptx.splitlines()]
    return [x for x in lines if x and not re.match(r"\.(loc|file)\b|\$L__(tmp|func_begin|func_end)\d+:", x)]


@pytest.mark.parametrize("name", shipped.NAMES)
def test_every_operation_is_on_its_line(name: str) -> None:
    function = shipped.load(name)
    text = print_function(function).splitlines()
    numbers = line_numbers(function)
    assert len(set(numbers.values())) == len(numbers) == sum(1 for _ in function.body.walk())
    for op, line in numbers.items():
        operation = text[line - 1].split(" = ", 1)[-1].strip() if op.results else text[line - 1].strip()
        assert operation.split(" ")[0] == op.opcode, text[line - 1]


@pytest.mark.parametrize(
    ("name", "target"), first(2, [(name, MAIN_TARGETS[index % len(MAIN_TARGETS)]) for index, name in enumerate(NAMES)])
)
def test_lines_change_no_instruction_and_add_no_section(name: str, target: Target) -> None:
    function = shipped.load(name)
    lines = print_function(function).splitlines()
    mlir = numbered(function, target, name)
    ptx = to_ptx(mlir, target)
    assert instructions(ptx) == instructions(to_ptx(without_lines(mlir), target))
    assert ".debug" not in ptx and not re.search(r"^\.target.*debug", ptx, re.MULTILINE)
    assert re.findall(r"\.file\s+\d+ (.*)", ptx) == ['"KERNEL.tir"']
    used_lines = {int(line) for line in re.findall(r"\.loc\s+1 (\d+) ", ptx)}
    assert len(used_lines) > 4 and max(used_lines) <= len(lines)
    stores = [line for line in used_lines if " store " in f" {lines[line - 1].strip()} "]
    assert stores, "no instruction of a store"


@pytest.mark.parametrize("name", first(2, ("rms_norm", "decode_merge", *NAMES)))  # the second names stores that replicate
def test_machine_code_is_the_same_without_lines(name: str) -> None:
    mlir = numbered(shipped.load(name), SM_90A, name)
    with_lines = assemble(to_ptx(mlir, SM_90A), SM_90A).cubin
    assert with_lines == assemble(to_ptx(without_lines(mlir), SM_90A), SM_90A).cubin


def test_a_comment_moves_the_source_and_nothing_else(tmp_path: Path) -> None:
    plain, moved = own_kernel(tmp_path), own_kernel(tmp_path, "# one\n# two", "  # three")
    assert print_function(plain) == print_function(moved)
    tables = [json.dumps(spans_json(function)).encode() for function in (plain, moved)]
    (line,) = (number for op, number in line_numbers(plain).items() if op.opcode == "load")
    found = [source_of(table, line) for table in tables]
    assert [span and span.line for span in found] == [11, 12]
    assert source_of(tables[0], 1) is None
    assert numbered(plain, SM_90A) == numbered(moved, SM_90A)


def test_an_instruction_leads_to_its_operation(tmp_path: Path) -> None:
    function = own_kernel(tmp_path)
    numbers = {op.opcode: line for op, line in line_numbers(function).items()}
    ptx = to_ptx(numbered(own_kernel(tmp_path), SM_90A), SM_90A)
    line, found = 0, dict[str, set[int]]()
    for text in ptx.splitlines():
        directive = re.match(r"\s*\.loc\s+1 (\d+) ", text)
        line = int(directive[1]) if directive else line
        for kind in ("ld.global", "st.global"):
            if kind in text:
                found.setdefault(kind, set()).add(line)
    assert found == {"ld.global": {numbers["load"]}, "st.global": {numbers["store"]}}


def test_braces_carry_the_line_of_their_operation() -> None:
    text = "module {\n// line 3\n%a = x : i1\nscf.if %a {\n// line 4\ny\n// line 3\n} else {\nz\n}\n}\n"
    assert locations.located(text) == (
        "module {\n%a = x : i1 loc(#l3)\nscf.if %a {\ny loc(#l4)\n} else {\nz loc(#l3)\n} loc(#l3)\n} loc(#l1)\n"
        '#l1 = loc("KERNEL.tir":1:1)\n#l3 = loc("KERNEL.tir":3:1)\n#l4 = loc("KERNEL.tir":4:1)\n'
    )


def test_the_first_stage_makes_the_table_and_no_later_key_contains_it(tmp_path: Path) -> None:
    own_kernel(tmp_path)
    work = Work(Request("k", "k.py", str(tmp_path), {}, {}, {}, {}), None)
    products = stage_named("tir").run(work)
    lines = products["tir"].decode().splitlines()
    span = source_of(products["spans"], next(i for i, line in enumerate(lines, 1) if " store " in f" {line.strip()} "))
    assert span is not None and (span.file, span.line) == ("k.py", 12)
    assert [stage.name for stage in STAGES if "spans" in stage.inputs] == ["proofs"], "only its record names spans"
