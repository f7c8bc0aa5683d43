"""Hand-written MLIR through code generation, for every target, and each way it can be refused."""

from __future__ import annotations

import re

import pytest

from tilec.codegen import legality, to_llvm_ir, to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.target.targets import SM_80, SM_86, SM_89, SM_90A, SM_100A, SM_100F, SM_103A, SM_120A, TARGETS, Target
from tilec.workers.call import call

pytestmark = pytest.mark.usefixtures("kept_workers")

BODY = """
  llvm.func @add(%a: !llvm.ptr<1>, %o: !llvm.ptr<1>, %n: i32) attributes {nvvm.kernel, nvvm.maxntid = array<i32: 128>} {
    %t = nvvm.read.ptx.sreg.tid.x : i32
    %ok = arith.cmpi slt, %t, %n : i32
    scf.if %ok {
      %pa = llvm.getelementptr %a[%t] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      %po = llvm.getelementptr %o[%t] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      %v = llvm.load %pa : !llvm.ptr<1> -> f32
      %s = arith.addf %v, %v : f32
      llvm.store %s, %po : f32, !llvm.ptr<1>
    }
    llvm.return
  }
"""
PLAIN = f"module {{ {BODY} }}"


def kernel(statement: str) -> str:
    return f"module {{ llvm.func @k() attributes {{nvvm.kernel}} {{ {statement} \n llvm.return }} }}"


OLDER = {SM_80, SM_86, SM_89}
TENSOR_MEMORY = {SM_100A, SM_100F, SM_103A}


def refusal(mlir: str, target: Target = SM_90A) -> tuple[str, str]:
    with pytest.raises(CompileError) as caught:
        to_ptx(mlir, target)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic.code, diagnostic.message


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_kernel_becomes_an_entry_of_the_exact_target(target: Target) -> None:
    ptx = to_ptx(PLAIN, target)
    assert f".target {target.name}\n" in ptx
    assert ".visible .entry add(" in ptx
    assert ".maxntid 128" in ptx
    version = re.search(r"\.version (\d)\.(\d)", ptx)
    assert version and f"+ptx{version[1]}{version[2]}" == target.ptx_feature


def test_malformed_text_is_refused() -> None:
    code, _ = refusal(PLAIN.replace("arith.addf %v, %v : f32", "arith.addf %v, %t : f32"))
    assert code == "E0501"


def test_undefined_function_is_refused() -> None:
    mlir = PLAIN.replace("%s = arith.addf %v, %v : f32", "%s = llvm.call @__nv_erff(%v) : (f32) -> f32")
    mlir = mlir.replace("module {", "module { llvm.func @__nv_erff(f32) -> f32")
    code, message = refusal(mlir)
    assert (code, "__nv_erff" in message) == ("E0502", True)


@pytest.mark.parametrize(
    ("statement", "having"),
    [
        ("nvvm.wgmma.fence.aligned", {SM_90A}),
        ('llvm.inline_asm has_side_effects "tcgen05.fence::before_thread_sync;", "" : () -> ()', TENSOR_MEMORY),
        ("nvvm.tcgen05.fence <before>", TENSOR_MEMORY),
        ("nvvm.griddepcontrol wait", set(TARGETS) - OLDER),
        ('llvm.inline_asm has_side_effects "griddepcontrol.wait;", "" : () -> ()', set(TARGETS) - OLDER),
        ('llvm.inline_asm has_side_effects "fence.proxy.async.shared::cta;", "" : () -> ()', set(TARGETS) - OLDER),
        ('llvm.inline_asm has_side_effects "setmaxnreg.dec.sync.aligned.u32 40;", "" : () -> ()', set(TARGETS) - OLDER),
    ],
)
def test_an_instruction_that_the_target_lacks_is_refused_before_llvm_runs(statement: str, having: set[Target]) -> None:
    llvm_ir = to_llvm_ir(kernel(statement))
    for target in TARGETS:
        if target in having:
            legality.check(llvm_ir, target)
            assert to_ptx(kernel(statement), target)
        else:
            code, message = refusal(kernel(statement), target)
            assert (code, target.name in message) == ("E0503", True)


def test_worker_gives_the_same_bytes_as_this_process() -> None:
    assert call(to_ptx, PLAIN, SM_100A, what="compiling") == to_ptx(PLAIN, SM_100A)
    with pytest.raises(CompileError) as caught:
        call(to_ptx, "module { nonsense }", SM_90A, what="compiling")
    assert caught.value.diagnostics[0].code == "E0501"


def test_abort_inside_llvm_ends_the_worker_only() -> None:
    # The worker process imports the gate again, so it emits an intrinsic of no family known to the gate.
    mlir = kernel('llvm.call_intrinsic "llvm.nvvm.barrier.cluster.arrive"() : () -> ()')
    with pytest.raises(CompileError) as caught:
        call(_abort, what="compiling `k`")
    assert [item.code for item in caught.value.diagnostics] == ["E0504"]
    assert "SIGABRT" in str(caught.value.diagnostics[0].notes)
    assert "barrier.cluster.arrive" in call(to_ptx, mlir, SM_90A, what="compiling `k`")


def _abort() -> None:
    from tilec.codegen import ptx

    ptx._generate(  # pyright: ignore[reportPrivateUsage]
        "declare void @llvm.nvvm.tcgen05.fence.before.thread.sync()\n"
        "define ptx_kernel void @k() { call void @llvm.nvvm.tcgen05.fence.before.thread.sync() ret void }",
        SM_90A,
    )


def test_target_names() -> None:
    assert Target.parse("sm_100") is Target.parse("sm_100a") is SM_100A
    assert Target.parse("120") is SM_120A
    assert Target.parse("sm_100f") is Target.parse("100F") is SM_100F
    assert Target.parse("80") is SM_80 and all(Target.parse(one.name) is one for one in TARGETS)
    for text in ("80a", "sm_90f", "sm_10", "", "sm_"):
        with pytest.raises(CompileError, match="E0603"):
            Target.parse(text)
    with pytest.raises(CompileError, match="E0603"):
        Target.parse("sm_75")
