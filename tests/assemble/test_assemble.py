"""PTX to CUBIN: equal bytes everywhere, no host details in them, and a resource report that two tools agree on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilec.artifact.records import Resources
from tilec.assemble import assemble, jit_link
from tilec.assemble.resources import parse
from tilec.assemble.sass import disassemble, instructions
from tilec.diagnostics.diagnostic import CompileError
from tilec.target.targets import SM_90A, TARGETS, Target
from tilec.toolchain import find_ptxas

# A run-time index into a register array, so that the report must show a stack frame; and static shared memory.
PTX = """
.version 8.8
.target {arch}
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n)
{{
  .reg .b32 %r<9>;
  .reg .b64 %d<9>;
  .local .align 16 .b8 frame[64];
  .shared .align 16 .b8 stage[2048];
  ld.param.u64 %d1, [p];
  cvta.to.global.u64 %d1, %d1;
  ld.param.u32 %r1, [n];
  cvt.u64.u32 %d2, %r1;
  mov.u64 %d3, frame;
  add.u64 %d4, %d3, %d2;
  ld.global.u32 %r2, [%d1];
  cvt.u64.u32 %d5, %r2;
  add.u64 %d6, %d3, %d5;
  st.local.u32 [frame+4], %r2;
  st.local.u32 [%d4], %r1;
  ld.local.u32 %r3, [%d6];
  mov.u32 %r4, stage;
  add.u32 %r4, %r4, %r1;
  st.shared.u32 [%r4], %r3;
  bar.sync 0;
  ld.shared.u32 %r5, [stage+8];
  st.global.u32 [%d1], %r5;
  ret;
}}
"""


def test_no_report_comes_from_the_cache_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a driver is installed, the second report would lack what the assembler says (tests/gpu/test_assembled_twice.py)."""
    link = jit_link._load()
    asked: list[list[str]] = []

    def create(count: int, options: list[str]) -> int:
        asked.append(options)
        return link.create(count, options)

    monkeypatch.setattr(jit_link, "_load", lambda: SimpleNamespace(**{**vars(link), "create": create}))
    assemble(PTX.format(arch=SM_90A.name), SM_90A)
    assert len(asked) == 1 and "-no-cache" in asked[0]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_report_agrees_with_the_stand_alone_assembler(target: Target, tmp_path: Path) -> None:
    ptx = PTX.format(arch=target.name)
    source = tmp_path / "k.ptx"
    source.write_text(ptx)
    command = [find_ptxas(), f"-arch={target.name}", "-O3", "-v", source, "-o", tmp_path / "k.cubin"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    found = assemble(ptx, target).resources
    assert found == parse(process.stderr)
    assert found.stack_bytes == 64
    assert found.static_shared_bytes >= 2048
    assert found.registers > 0


def test_report_counts_spills() -> None:
    report = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
"""
    assert parse(report) == Resources(128, 20, 16, 1024, 0)
    with pytest.raises(CompileError, match="E0604"):
        parse(report + report)


REALLOCATED = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
.reqntid 384
.minnctapersm 1
{
  .reg .pred %p;
  .reg .b32 %r;
  .reg .b64 %d;
  mov.u32 %r, %tid.x;
  ld.param.u64 %d, [p];
  setp.lt.u32 %p, %r, 256;
  @%p bra MANY;
  setmaxnreg.dec.sync.aligned.u32 24;
  ret;
MANY:
  setmaxnreg.inc.sync.aligned.u32 240;
  st.global.u32 [%d], %r;
  ret;
}
"""


def test_reallocated_registers_are_reallocated_in_machine_code() -> None:
    """nvJitLink omits `setmaxnreg` silently; only its report mentions it."""
    assembled = assemble(REALLOCATED, SM_90A)
    assert (
        sum(count for name, count in instructions(disassemble(assembled.cubin)).items() if name.startswith("USETMAXREG")) == 2
    )
    assert assembled.resources.spill_bytes == 0 and assembled.resources.registers <= 168
    with pytest.raises(CompileError, match="E0602"):
        assemble(REALLOCATED.replace("u32 240", "u32 241"), SM_90A)


@pytest.mark.parametrize("ptx", [PTX.format(arch="sm_90a"), REALLOCATED], ids=["nvJitLink", "ptxas"])
def test_equal_ptx_gives_equal_bytes_in_another_process_and_folder(ptx: str, tmp_path: Path) -> None:
    program = (
        "import hashlib, sys; from tilec.assemble import assemble; from tilec.target.targets import SM_90A;"
        "print(hashlib.sha256(assemble(sys.argv[1], SM_90A).cubin).hexdigest())"
    )
    command = [sys.executable, "-c", program, ptx]
    digests = {
        subprocess.run(command, cwd=tmp_path, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    cubin = assemble(ptx, SM_90A).cubin
    assert str(Path.cwd()).encode() not in cubin
    assert b"/home" not in cubin and b"/tmp" not in cubin


def test_refused_ptx_names_the_line() -> None:
    with pytest.raises(CompileError) as caught:
        assemble(PTX.format(arch="sm_90a").replace("bar.sync 0", "bar.sink 0"), SM_90A)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0602"
    assert any("bar.sink" in note or ".sink" in note for note in diagnostic.notes)


def test_a_kernel_without_registers_has_another_hint_than_a_bug() -> None:
    for log, hint in (("ptxas fatal   : (C7600) Register allocation failed with register count of '64'.", "too few registers"),
                      ("ptxas error   : syntax error", "a bug in tilec")):  # fmt: skip
        (diagnostic,) = jit_link._refusal(log, SM_90A).diagnostics  # pyright: ignore[reportPrivateUsage]
        assert diagnostic.notes == (log,) and hint in str(diagnostic.hint)


def test_disassembly_counts_opcodes() -> None:
    found = instructions(disassemble(assemble(PTX.format(arch="sm_90a"), SM_90A).cubin))
    assert found["STS"] == 1
    assert sum(count for name, count in found.items() if name.startswith(("STL", "LDL"))) >= 2
