"""The independent prover confirms the shipped kernels, and refutes every mutation and the kernels that the first prover once
accepted."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests import campaign
from tests.audit import samples
from tests.shipped import COLLECTIVES, LIKE, NAMES
from tests.soundness.verdict import examine, generate, parse
from tilec.audit.contract import contract_of, contract_of_function
from tilec.audit.definitions import runs
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN, Finding
from tilec.audit.matching import match
from tilec.audit.prove import prove_function, satisfiable
from tilec.audit.smt import Budget
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function

SLOW = ("matmul",)
UNCONFIRMED = {
    "experts_sort": {("coverage", "`ranks`")},
    "experts_tiles": {("wrap", "`+`")},
    "experts_gather": {("wrap", "`+`"), ("wrap", "`-`"), ("wrap", "`*`")},
    "all_reduce": {("coverage", "`out`")},
    "all_reduce_add_scaled": {("coverage", "`scaled`"), ("coverage", "`squares`")},
    "all_gather": {("coverage", "`out`")},
}
"""What the prover shows and the audit neither confirms nor refutes: that a sort is a permutation, that sums of a tile's counts
stay small, and that blocks which count tiles of rows and columns together, in a loop, take every tile."""


def audited(text: str, steps: int = 3_000_000) -> list[Finding]:
    """Findings about tile IR under the contract in its own text."""
    function = parse_function(text)
    contract, budget = contract_of_function(function), Budget(steps=steps)
    return [*satisfiable(function, contract, budget), *prove_function(function, contract, budget)]


def bad(findings: list[Finding], verdict: str) -> list[tuple[str, str]]:
    return [(one.property, one.subject) for one in findings if one.verdict == verdict]


@pytest.mark.parametrize("name", campaign.chosen(COLLECTIVES, lambda name: name in ("rank_meet", "all_reduce")))
def test_collectives_are_confirmed(name: str) -> None:
    """Every obligation but `UNCONFIRMED`; among them that ranks have met before each read of what another one wrote."""
    manifest = samples.manifest(name)
    function = parse_function(samples.text(name))
    checked, missing = match(manifest.obligations, prove_function(function, contract_of(manifest, function), Budget()))
    assert not missing
    left = [one for one in checked if one.verdict != CONFIRMED]
    assert {one.verdict for one in left} <= {UNKNOWN}
    assert {(one.property, one.subject) for one in left} <= UNCONFIRMED.get(name, set())
    orders = {one.subject for one in checked if one.property == "order"}
    assert orders == ({"load from `x_0`", "load from `x_1`"} if name != "rank_meet" else set())


@pytest.mark.parametrize("moved", ["before the meet", "no meet"])
def test_a_read_that_no_meet_precedes_is_not_confirmed(moved: str) -> None:
    text = samples.text("all_reduce")
    meet = next(line for line in text.splitlines(keepends=True) if line.startswith("  meet "))
    end = text.rindex("}")
    wrong = text.replace(meet, "") if moved == "no meet" else text[:end].replace(meet, "") + meet + text[end:]
    found = [one for one in audited(wrong) if one.property == "order"]
    assert [(one.subject, one.verdict) for one in found] == [("load from `x_0`", UNKNOWN), ("load from `x_1`", UNKNOWN)]


@pytest.mark.parametrize("name", campaign.chosen([name for name in NAMES if name not in SLOW], lambda name: name not in LIKE))
def test_shipped_kernels_are_confirmed(name: str) -> None:
    """Every obligation of the manifest but `UNCONFIRMED` is confirmed, and the manifest lacks none."""
    manifest = samples.manifest(name)
    function = parse_function(samples.text(name))
    findings = prove_function(function, contract_of(manifest, function), Budget())
    checked, missing = match(manifest.obligations, findings)
    assert checked and not missing
    left = [one for one in checked if one.verdict != CONFIRMED]
    assert {one.verdict for one in left} <= {"unknown"}
    assert {(one.property, one.subject) for one in left} <= UNCONFIRMED.get(name, set())


@pytest.mark.campaign
def test_a_swizzled_matmul_is_confirmed() -> None:
    findings = audited(samples.text("matmul", BM=64, BN=64, E="f16"), 6_000_000)
    assert {one.verdict for one in findings} == {CONFIRMED}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("p1_carried_tile", ("bounds", "gather from `x`")),
        ("p2_carried_scatter", ("bounds", "scatter to `out`")),
        ("p3_carried_race", ("race", "`out`")),
        ("q1_contradiction", ("contract", "some launch satisfies it")),
        ("q2_values", ("contract", "some launch satisfies it")),
    ],
)
def test_false_accepts_of_the_prover_are_refuted(name: str, expected: tuple[str, str]) -> None:
    try:
        function = load_kernel(samples.ACCEPTED_ONCE / f"{name}.py", {}, root=samples.ACCEPTED_ONCE)
    except CompileError:
        assert name.startswith("q")  # a contradictory contract may be refused earlier, when it is written
        return
    assert expected in bad(audited(print_function(function)), REFUTED)


MUTATIONS = [
    ("add", "mask = true", "mask = false", "bounds"),
    ("add", "constant {value = 2048} : i32\n  %9", "constant {value = 2047} : i32\n  %9", "race"),
    ("add", "grid [(N + 2047) // 2048]", "grid [(N + 2046) // 2048]", "coverage"),
    ("add", "pad = 0x0.0p+0", "pad = none", "bounds"),
    ("rms_norm", "store %out, %19, %0, %20", "store %out, %19, %20, %20", "race"),
    ("rms_norm", "grid [T]", "grid [T + 1]", "bounds"),
    ("qk_norm_rope_kv", "values %positions 0 .. P", "values %positions 0 .. P + 1", "bounds"),
    ("qk_norm_rope_kv", "values %slots 0 .. S distinct", "values %slots 0 .. S", "race"),
    ("kv_update", " distinct", "", "race"),
    ("decode_attention", "S % 32 == 0 and ", "", "bounds"),
    ("decode_attention", "P <= 4096 and ", "", "wrap"),
    ("flash_attention", "past + T <= S", "past + T <= S + 64", "bounds"),
    ("topk_blocks", "grid [P, B]", "grid [P, B + 1]", "bounds"),
    ("argmax_reduce", "store %out, %11, %0", "store %out, %11, %1", "coverage"),
    ("topk_blocks", "store %best, %39, %3, %2, %14", "store %best, %39, %3, %2, %12", "race"),
    ("sample_token", "values %place 0 .. S", "values %place -1 .. S", "bounds"),
    ("matvec_add", r"load %residual, (%\d+), %\d+", r"load %residual, \1, \1", "race"),
    ("qk_norm_rope_kv", "HQ + 2 * HKV == HEADS", "HQ + 2 * HKV <= HEADS", "bounds"),
]


@pytest.mark.parametrize(
    ("name", "old", "new", "broken"), MUTATIONS, ids=[f"{m[0]}-{m[3]}-{k}" for k, m in enumerate(MUTATIONS)]
)
def test_mutations_are_never_confirmed(name: str, old: str, new: str, broken: str) -> None:
    text = samples.text(name)
    changed = re.sub(old, new, text) if name == "matvec_add" else text.replace(old, new)
    assert changed != text
    findings = audited(changed)
    wrong = bad(findings, REFUTED) + bad(findings, UNKNOWN)
    assert any(property == broken for property, _ in wrong), wrong


def test_segments_of_a_sorted_tensor_are_confirmed_and_of_another_refuted() -> None:
    text = print_function(load_kernel(samples.KERNELS / "segments.py", {}, root=samples.KERNELS))
    assert not bad(audited(text), REFUTED) and not bad(audited(text), UNKNOWN)
    assert " sorted" in text
    assert ("race", "`out`") in bad(audited(text.replace(" sorted", "")), REFUTED)


@pytest.mark.parametrize(("first", "count"), campaign.first(1, [(0, 12), (12, 20)]))
def test_random_kernels_that_enumeration_refutes_are_never_confirmed(first: int, count: int) -> None:
    kinds: Counter[tuple[str, str]] = Counter()
    for seed in range(first, first + count):
        kernel = generate(seed)
        function = parse(kernel)
        if function is None or "swizzle" in kernel.schedule or "flat" in kernel.schedule:
            continue
        verdict = examine(kernel, seed).kind
        findings = audited(print_function(function), 100_000)
        audited_verdict = REFUTED if bad(findings, REFUTED) else UNKNOWN if bad(findings, UNKNOWN) else CONFIRMED
        kinds[audited_verdict, verdict] += 1
        assert not (audited_verdict == CONFIRMED and verdict in ("refused_confirmed", "false_accept")), seed
        assert not (audited_verdict == REFUTED and verdict == "accepted"), seed
    assert kinds[CONFIRMED, "accepted"] >= count // 6, kinds
    assert kinds[REFUTED, "refused_confirmed"] >= count // 6, kinds


FRAME = """kernel @k(%x: in tensor<i32, [N], align 16>, %out: inout tensor<i32, [N], align 16>, %n: i32) {{
  constants {{}}
  dims [N]
  strides []
  grid [1]
  requires N <= 1000
  %0 = constant {{value = 0}} : i32
{body}
  %91 = load %x, %90 {{pad = none, unsafe = none, vector = 0}} : i32[1]
  store %out, %91, %0 {{mask = true, unsafe = none, vector = 0}}
}}
"""


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("  %1 = constant {value = 40} : i32\n  %90 = binary %n, %1 {kind = \"shl\"} : i32", CONFIRMED),  # 0
        ("  %1 = constant {value = 32} : i32\n  %90 = binary %n, %1 {kind = \"shr\"} : i32", REFUTED),  # -1 if negative
        ("  %1 = constant {value = 1} : i32\n  %90 = binary %n, %1 {kind = \"mod\"} : i32", CONFIRMED),
        ("  %1 = constant {value = 2} : i32\n  %90 = binary %n, %1 {kind = \"mod\"} : i32", REFUTED),  # N may be 1
        ("  %90 = binary %0, %n {kind = \"floordiv\"} : i32", CONFIRMED),  # 0, and 0 for a zero divisor
        ("  %1 = dim {symbol = \"N\"} : i32\n  %90 = binary %n, %1 {kind = \"mod\"} : i32", CONFIRMED),  # never negative
        ("  %1 = constant {value = -3} : i32\n  %90 = binary %n, %1 {kind = \"mod\"} : i32", REFUTED),  # toward minus infinity
        ("  %1 = constant {value = -1} : i32\n  %90 = binary %n, %1 {kind = \"and\"} : i32", REFUTED),
        ("  %1 = cast %n : u8\n  %90 = cast %1 : i32", REFUTED),
    ],
)  # fmt: skip
def test_arithmetic_means_what_the_tile_ir_means(body: str, verdict: str) -> None:
    findings = {(one.property, one.subject): one for one in audited(FRAME.format(body=body))}
    assert findings["bounds", "load from `x`"].verdict == verdict


def test_a_cast_that_loses_bits_is_an_obligation() -> None:
    body = "  %1 = cast %n : u8\n  %90 = cast %1 : i32"
    assert ("wrap", "`cast`") in bad(audited(FRAME.format(body=body)), REFUTED)


def test_the_budget_ends_a_proof_openly() -> None:
    function = parse_function(samples.text("matmul", BM=64, BN=64))
    findings = prove_function(function, contract_of_function(function), Budget(total=0))
    assert {one.verdict for one in findings if one.verdict != CONFIRMED} == {UNKNOWN}
    assert any("budget of 0 steps" in one.reason for one in findings)


INDEX = """\
import tilec as tl

@tl.kernel
def move(x: tl.In[tl.f32, {extent}], out: tl.InOut[tl.f32, {extent}]):
    tl.grid(64)
    i = tl.bid(0)
    at = {index}
    tl.store(out, at, tl.load(x, at))
"""


@pytest.mark.parametrize(
    ("index", "extent", "race"),
    [
        ("(i ^ 5) & 63", 64, CONFIRMED), ("63 & (i ^ 42)", 64, CONFIRMED), ("i | 64", 128, CONFIRMED),
        ("(i & 56) + (i & 7)", 64, CONFIRMED), ("((i - 70) & -71) + 134", 135, REFUTED), ("i & 62", 64, REFUTED),
        ("i | 4", 64, REFUTED), ("(i ^ (i & 3)) & 63", 64, UNKNOWN), ("((i ^ (i >> 3)) & 63) // 2", 64, UNKNOWN),
    ],
)  # fmt: skip
def test_bit_operations_with_a_constant_are_exact(index: str, extent: int, race: str, tmp_path: Path) -> None:
    """Those of two variables are known by bounds only, also in a remainder or a quotient, so they never refute."""
    path = tmp_path / "move.py"
    path.write_text(INDEX.format(index=index, extent=extent), encoding="utf-8")
    findings = audited(print_function(load_kernel(path, {}, root=tmp_path)))
    assert [one.verdict for one in findings if one.property == "race"] == [race]
    assert not [one for one in findings if one.property == "bounds" and one.verdict == REFUTED]


@pytest.mark.parametrize("mask", [0, 1, 5, 6, 42, 255, 256, -1, -2, -6, -71, (1 << 32) - 1])
def test_runs_of_a_mask(mask: int) -> None:
    ones = sum((1 << end) - (1 << low) for low, end in runs(mask))
    assert ones == (mask if mask >= 0 else ~mask)
    assert all(low < end for low, end in runs(mask))
