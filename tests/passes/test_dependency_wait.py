"""The location of the grid dependency wait (`griddepcontrol.wait`) in a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import shipped
from tilec.frontend import load_kernel
from tilec.ir.core import Block, Effect, Function, Op, Resident, VerifyError
from tilec.ir.ops import For, Load, Store
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import AsyncCopy
from tilec.ir.ops.sync_ops import Drain, Ring
from tilec.ir.verifier import verify
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import BEFORE, Overrides, Role, Schedule, merged
from tilec.target.targets import SM_80, SM_86, SM_89, SM_90A, Target

SHIPPED = Path(__file__).resolve().parents[2] / "kernels_src"
MATVEC = {"E": "bf16", "B": 1, "K": 2560, "ROWS": 1, "BLOCK": 512}
SCALED_MATVEC = {"E": "bf16", "K": 2560, "ROWS": 1, "BLOCK": 512}


def prepared(name: str, **constants: int | str) -> Function:
    return prepare(load_kernel(SHIPPED / f"{name}.py", constants), SM_90A)  # pyright: ignore[reportArgumentType]


def precedes_wait(function: Function, op: Op) -> bool:
    return isinstance(op, Load) and function.is_resident(op.source)


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("add", {"E": "bf16", "BLOCK": 2048}),
        ("embedding", {"E": "bf16", "H": 1024, "BLOCK": 1024}),
        ("add_rms_norm", {"E": "f16", "H": 1024}),
        ("matmul", {"E": "bf16", "BM": 128, "BN": 128, "BK": 64, "GROUP": 8}),
        ("matvec", MATVEC),
        ("scaled_matvec", SCALED_MATVEC),
        ("matvec", {**MATVEC, "B": 4, "ROWS": 32, "BLOCK": 128}),
    ],
)
def test_nothing_touches_memory_before_the_wait(name: str, constants: dict[str, int | str]) -> None:
    before: list[Op] = []
    after: list[Op] = []
    seen = after
    function = prepared(name, **constants)
    seen = before
    for op in function.body.ops:
        if isinstance(op, DependencyWait):
            assert seen is before, "waits twice"
            seen = after
        else:
            seen.append(op)
    assert after, "never waits"
    assert all(op.effect is Effect.NONE or precedes_wait(function, op) for op in before), before
    assert not any(isinstance(inner, DependencyWait) for op in after for region in op.regions for inner in region.walk())


def test_weights_are_loaded_before_the_wait_and_activations_after_it() -> None:
    function = prepared("scaled_matvec", **SCALED_MATVEC)
    wait = next(index for index, op in enumerate(function.body.ops) if isinstance(op, DependencyWait))
    loads = [
        (index < wait, function.parameter_of(op.source).name)
        for index, op in enumerate(function.body.ops)
        if isinstance(op, Load)
    ]
    assert loads == [*[(True, "w")] * 5, (False, "squares"), *[(False, "x")] * 5]  # 2560 columns, 512 at a time


@pytest.mark.parametrize("turns", [0, 1, 3, 5])
def test_a_schedule_states_how_many_iterations_are_loaded_before_the_wait(turns: int) -> None:
    function = load_kernel(SHIPPED / "scaled_matvec.py", SCALED_MATVEC)  # pyright: ignore[reportArgumentType]
    prepare(function, SM_90A, Schedule((Role("all", 2),), early=turns))
    wait = next(index for index, op in enumerate(function.body.ops) if isinstance(op, DependencyWait))
    assert sum(precedes_wait(function, op) for op in function.body.ops[:wait]) == turns
    assert sum(isinstance(op, For) for op in function.body.ops) == (turns < 5)


def test_the_verifier_refuses_a_read_before_the_wait_of_a_tensor_that_is_not_resident() -> None:
    function = prepared("scaled_matvec", **SCALED_MATVEC)
    function.residents = ()
    with pytest.raises(VerifyError, match="accesses memory before the grid dependency wait"):
        verify(function)
    function = prepared("matvec_add_scaled", **SCALED_MATVEC)
    function.residents = (Resident("scaled"),)
    with pytest.raises(VerifyError, match="scaled is resident, and no tensor that holds something"):
        verify(function)


def test_loads_of_resident_tensors_that_are_written_stay_after_the_wait(tmp_path: Path) -> None:
    """The load may follow a store of the kernel itself, so it must not move to the start."""
    source = (SHIPPED / "matvec_add_scaled.py").read_text()
    (tmp_path / "written.py").write_text(source.replace("resident(w, weight)", "resident(w, weight, residual)"))
    (tmp_path / "dims.py").write_text((SHIPPED / "dims.py").read_text())
    function = prepare(load_kernel(tmp_path / "written.py", SCALED_MATVEC | {"ROWS": 4, "BLOCK": 512}), SM_90A)  # pyright: ignore[reportArgumentType]
    assert {one.tensor for one in function.residents} == {"w", "weight", "residual"}
    wait = next(index for index, op in enumerate(function.body.ops) if isinstance(op, DependencyWait))
    touched = {function.parameter_of(op.operands[0]).name for op in function.body.ops[:wait] if isinstance(op, Load)}
    assert touched == {"w", "weight"}


def test_copies_of_tensors_that_the_kernel_writes_later_begin_before_the_wait() -> None:
    """Decode attention over a short context prefetches the cache, and stores the new token once all copies are complete."""
    function = shipped.as_chosen("rotary_decode_attention_kv", SM_90A)
    ops = function.body.ops
    wait = next(index for index, op in enumerate(ops) if isinstance(op, DependencyWait))
    copies = [op for op in Block(ops=ops[:wait]).walk() if isinstance(op, AsyncCopy)]
    assert {function.parameter_of(op.source).name for op in copies} == {"k_cache", "v_cache"}
    done = next(index for index, op in enumerate(ops) if isinstance(op, Drain))
    stored = [index for index, op in enumerate(ops) if isinstance(op, Store)]
    assert len(stored) == 4 and min(stored) > done


def test_the_verifier_refuses_an_access_before_the_wait() -> None:
    function = prepared("add", E="bf16", BLOCK=2048)
    wait = next(op for op in function.body.ops if isinstance(op, DependencyWait))
    function.body.ops.remove(wait)
    function.body.ops.append(wait)
    with pytest.raises(VerifyError, match="accesses memory before the grid dependency wait"):
        verify(function)


def test_the_verifier_refuses_a_wait_that_a_path_skips() -> None:
    function = prepared("add", E="bf16", BLOCK=2048)
    wait = next(op for op in function.body.ops if isinstance(op, DependencyWait))
    branch = next(op for op in function.body.ops if op.regions)
    function.body.ops.remove(wait)
    branch.regions[0].ops.insert(0, wait)
    with pytest.raises(VerifyError, match="a kernel waits once, outside of loops and branches"):
        verify(function)


def test_the_verifier_refuses_a_second_wait() -> None:
    function = prepared("add", E="bf16", BLOCK=2048)
    function.body.ops.append(DependencyWait())
    with pytest.raises(VerifyError, match="a kernel waits once"):
        verify(function)


def test_copies_of_resident_tensors_begin_before_the_wait() -> None:
    """Decode attention has copies of its first tiles of keys and values in flight when it waits for the queries."""
    function = shipped.as_chosen("rotary_decode_attention", SM_90A)
    ops = function.body.ops
    wait = next(index for index, op in enumerate(ops) if isinstance(op, DependencyWait))
    copies = [op for op in Block(ops=ops[:wait]).walk() if isinstance(op, AsyncCopy)]
    assert len(copies) == 6  # two iterations of keys in halves, and values
    assert {function.parameter_of(op.source).name for op in copies} == {"k_cache", "v_cache"}
    written = shipped.as_chosen("decode_attention", SM_90A)  # its cache is not resident
    front = written.body.ops[: next(index for index, op in enumerate(written.body.ops) if isinstance(op, DependencyWait))]
    assert not [op for op in front if isinstance(op, (Ring, AsyncCopy))]


def test_a_tensor_that_the_kernel_writes_is_not_copied_ahead_in_a_branch(tmp_path: Path) -> None:
    """After a loop in a branch, copies may still be in flight when the kernel writes: operands are loaded synchronously
    instead."""
    source = (SHIPPED / "rotary_decode_attention_kv.py").read_text()
    head, loop, rest = source.partition("    for j in range(")
    body, end, tail = (loop + rest).partition("    tl.store(out")
    inner = "".join(f"    {line}" for line in body.splitlines(keepends=True))
    (tmp_path / "branch.py").write_text(f"{head}    if slot > 0:\n{inner}{end}{tail}")
    for name in ("rotary.py", "dims.py"):
        (tmp_path / name).write_text((SHIPPED / name).read_text())
    function = prepare(load_kernel(tmp_path / "branch.py", {"E": "bf16", "G": 4, "D": 128, "BN": 64}), SM_90A)
    assert not [op for op in function.body.walk() if isinstance(op, AsyncCopy)]


def test_a_copy_of_a_tensor_that_is_not_resident_is_refused_before_the_wait() -> None:
    function = shipped.as_chosen("rotary_decode_attention", SM_90A)
    function.residents = tuple(one for one in function.residents if one.tensor != "v_cache")
    with pytest.raises(VerifyError, match="accesses memory before"):
        verify(function)


def test_copies_at_offsets_from_tensors_that_are_not_resident_stay_after_the_wait(tmp_path: Path) -> None:
    """The copies' addresses depend on a value that is loaded inside their condition: page addresses are known only after the
    wait."""
    source = (SHIPPED / "decode_attention.py").read_text()
    for old, new in (
        ("    lengths: tl.In[tl.i32, B],\n", "    lengths: tl.In[tl.i32, B],\n    first: tl.In[tl.i32, B],\n"),
        ("    tl.values(lengths, 1, S + 1)\n", "    tl.values(lengths, 1, S + 1)\n    tl.values(first, 0, B)\n"
         "    tl.resident(k_cache, v_cache, lengths)\n    page = tl.load(first, tl.bid(2))\n"),
        ("load(k_cache, (b, j", "load(k_cache, (page, j"),
        ("load(v_cache, (b, j", "load(v_cache, (page, j"),
    ):  # fmt: skip
        assert old in source
        source = source.replace(old, new)
    (tmp_path / "paged.py").write_text(source)
    (tmp_path / "dims.py").write_text((SHIPPED / "dims.py").read_text())
    function = prepare(load_kernel(tmp_path / "paged.py", {"E": "bf16", "D": 128, "BN": 32}), SM_90A)
    ops = function.body.ops
    wait = next(index for index, op in enumerate(ops) if isinstance(op, DependencyWait))
    assert not [op for op in Block(ops=ops[:wait]).walk() if isinstance(op, AsyncCopy)]
    assert [op for op in function.body.walk() if isinstance(op, AsyncCopy)]


@pytest.mark.parametrize("target", [SM_80, SM_86, SM_89], ids=str)
@pytest.mark.parametrize("name", ["rms_norm", "matvec_add", "decode_attention"])
def test_a_chip_without_dependent_launches_has_no_wait(name: str, target: Target) -> None:
    entry, constants = shipped.specialisation(name, {})
    schedule = choose(shipped.load(name), target, replace(merged(entry.overrides(constants), target), early=3, next=BEFORE))
    assert schedule.early == 3 and schedule.next == BEFORE  # they are kept, and have no effect
    function = prepare(shipped.load(name), target, schedule)
    lowered = lower(function, target)
    assert not any(isinstance(op, DependencyWait) for op in function.body.walk())
    assert not lowered.dependent_launch and "griddepcontrol" not in lowered.mlir
    assert lower(prepare(shipped.load(name), SM_90A, Overrides(warps=schedule.warps)), SM_90A).dependent_launch
