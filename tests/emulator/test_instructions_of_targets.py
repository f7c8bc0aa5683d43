"""The emulator refuses an instruction that the module's target lacks, exactly where ptxas refuses it."""

from __future__ import annotations

import pytest

from tests import campaign
from tilec.assemble import ptxas
from tilec.emulator import launch
from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.machine.memory import Memory
from tilec.emulator.ptx import targets
from tilec.emulator.ptx.parser import parse
from tilec.target.targets import TARGETS

SNIPPETS = (
    "cp.async.cg.shared.global [%r1], [%d1], 16;",
    "cp.async.bulk.commit_group;",
    "cp.async.bulk.wait_group 0;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r2, [%r3];",
    "griddepcontrol.wait;",
    "griddepcontrol.launch_dependents;",
    "mbarrier.init.shared.b64 [%r1], 1;",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 16;",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;",
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;",
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r2, %r3, %r4, %r5};",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r1];",
    "elect.sync %r1|%p1, 0xffffffff;",
    "mapa.shared::cluster.u32 %r1, %r2, 0;",
    "barrier.cluster.arrive.aligned;",
    "fence.proxy.async;",
    "fence.proxy.async.shared::cta;",
    "fence.mbarrier_init.release.cluster;",
    "fence.acq_rel.gpu;",
    "fence.acquire.sync_restrict::shared::cluster.cluster;",
    "red.global.add.noftz.bf16 [%d1], %h1;",
    "red.global.add.noftz.f16 [%d1], %h1;",
    "red.global.v2.f32.add [%d1], {%f1, %f2};",
    "ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%d1];",
    "ld.global.v4.b64 {%d1, %d2, %d3, %d4}, [%d5];",
    "st.global.v4.b32 [%d1], {%r1, %r2, %r3, %r4};",
    "add.rn.bf16 %h1, %h2, %h3;",
    "fma.rn.bf16 %h1, %h2, %h3, %h4;",
    "setp.eq.bf16 %p1, %h1, %h2;",
    "ex2.approx.ftz.bf16 %h1, %h2;",
    "tanh.approx.f32 %f1, %f2;",
    "add.rn.f32x2 %d1, %d2, %d3;",
    "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
    "cvt.rn.f16x2.e5m2x2 %r1, %h1;",
    "cvt.f32.bf16 %f1, %h1;",
    "cvt.rn.bf16.f32 %h1, %f1;",
    "cvt.rn.bf16x2.f32 %r1, %f1, %f2;",
    "cvt.rzi.s32.bf16 %r1, %h1;",
    "cvt.rn.bf16.s32 %h1, %r1;",
    "cvt.rn.bf16.f16 %h1, %h2;",
    "cvt.f16.bf16 %h1, %h2;",
    "cvt.rp.satfinite.ue8m0x2.f32 %h1, %f1, %f2;",
    "cvt.rn.satfinite.e2m3x2.f32 %h1, %f1, %f2;",
    "max.f32 %f1, %f2, %f3, %f4;",
    "max.bf16 %h1, %h2, %h3;",
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 {%f1, %f2, %f3, %f4}, "
    "{%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f5, %f6, %f7, %f8}, %r7, {%h1, %h2}, %r8, {%h3, %h4};",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];",
    "redux.sync.add.s32 %r1, %r2, 0xffffffff;",
    "redux.sync.min.f32 %f1, %f2, 0xffffffff;",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, "
    "{%f5, %f6, %f7, %f8};",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, "
    "{%f5, %f6, %f7, %f8};",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, {%r1, %r2}, "
    "{%r1, %r2, %r3, %r4};",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, "
    "{%f5, %f6, %f7, %f8};",
    "cvt.rna.tf32.f32 %r1, %f1;",
    "tcgen05.mma.cta_group::1.kind::i8 [%r1], %d1, %d2, %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %d1, %d2, %r2, %p1;",
    "wgmma.fence.sync.aligned;",
    "setmaxnreg.dec.sync.aligned.u32 40;",
    "tcgen05.fence::before_thread_sync;",
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;",
    "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, "
    "{%f5, %f6, %f7, %f8};",
)
TEXT = """.version 8.8
.target {target}
.address_size 64
.visible .entry k() .maxntid 128
{{
.reg .pred %p<4>;
.reg .b16 %h<8>;
.reg .b32 %r<9>;
.reg .b64 %d<8>;
.reg .f32 %f<9>;
.reg .b128 %q<2>;
{line}
ret;
}}
"""
NAMES = [target.name for target in TARGETS]
CASES = [(line, name) for line in SNIPPETS for name in NAMES]


def in_default(case: tuple[str, str]) -> bool:
    """One target for each snippet."""
    return NAMES.index(case[1]) == SNIPPETS.index(case[0]) % len(NAMES)


@pytest.mark.parametrize(("line", "name"), campaign.chosen(CASES, in_default))
def test_an_instruction_exists_where_ptxas_takes_it(line: str, name: str) -> None:
    text = TEXT.format(target=name, line=line)
    taken, report = ptxas.run(text.encode(), name)
    (instruction, _) = parse(text).functions["k"].instructions
    assert (targets.missing(name, instruction) is None) == (taken is not None), report


def test_a_launch_of_such_a_module_is_refused_before_it_runs() -> None:
    module = parse(TEXT.format(target="sm_80", line="griddepcontrol.wait;"))
    with pytest.raises(UnsupportedPtx, match="griddepcontrol does not exist on sm_80, but on sm_90 and later"):
        launch.run(module, "k", (1, 1, 1), (32, 1, 1), [], Memory())


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("fma.rn.f32x2 %d1, %d2, %d3, %d3;", True),
        ("fma.rn.f32x2 %d1, %d2, 0x3F8000003F800000, %d3;", False),
        ("add.rm.f32x2 %d1, 0x3F8000003F800000, %d3;", False),
        ("sub.rn.f32x2 %d1, %d2, 0;", False),
        ("mul.rn.ftz.f32x2 %d1, %d2, 0d3F80000000000000;", False),
    ],
)
def test_a_pair_of_floats_is_no_constant(line: str, taken: bool) -> None:
    text = TEXT.format(target="sm_100a", line=f"mov.b64 %d2, 0; mov.b64 %d3, 0; {line}")
    assert (ptxas.run(text.encode(), "sm_100a")[0] is not None) == taken
    if taken:
        assert launch.run(parse(text), "k", (1, 1, 1), (128, 1, 1), [], Memory()).clean
    else:
        with pytest.raises(UnsupportedPtx, match="a constant as a pair of floats"):
            launch.run(parse(text), "k", (1, 1, 1), (128, 1, 1), [], Memory())


def test_a_feature_of_a_family_exists_on_its_members_alone() -> None:
    (instruction, _) = (
        parse(TEXT.format(target="sm_90a", line="setmaxnreg.dec.sync.aligned.u32 40;")).functions["k"].instructions
    )
    having = {name for name in ("sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103f", "sm_120f", "sm_121a", "sm_130a")
              if targets.missing(name, instruction) is None}  # fmt: skip
    assert having == {"sm_90a", "sm_100a", "sm_100f", "sm_103f", "sm_120f", "sm_121a"}
    assert targets.missing("", instruction) is None
