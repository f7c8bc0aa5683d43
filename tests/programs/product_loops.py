"""Products in loops with bounds and steps at the edges of i32, the possible schedules of such a kernel, and launches of it.

In: a number. Out: source text, `Overrides` by name, launch values. The loop variable is used directly as an offset, and offsets
may be out of bounds. So the only constraint on it is the loop's own obligation: the variable fits up to one step after its last
iteration. The launches have few iterations, often none, at both ends of i32.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs.copy_machine import Stores, Wrong, stored
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.core import Function, VerifyError
from tilec.ir.types import MAX_DIM, i32
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

LOW, HIGH = i32.integer_range()
MAX_ITERATIONS = 14
STEPS = (1, 2, 3, 5, 7, 64, 46341, 1 << 16, 1 << 29, 715827883, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, HIGH - 1, HIGH)
BOUNDS = (LOW, LOW + 1, -(1 << 30), -65537, -7, -1, 0, 1, 2, 5, 9, 1 << 16, (1 << 30) + 3, HIGH - 9, HIGH - 1, HIGH)
HEAD = '''import tilec
from tilec import Dim, In, Out, astype, bf16, bid, cdiv, f32, grid, i32, load, minimum, mma, requires, resident, store, zeros


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


class T(Dim):
    """slices"""


@tilec.kernel
'''
SCHEDULES: dict[str, dict[str, Any]] = {
    "chosen": {},
    "copies of threads": {"copy": "cp_async", "mma": "mma_sync", "stages": 2},
    "four stages": {"copy": "cp_async", "mma": "mma_sync", "stages": 4},
    "groups of four warps": {"copy": "cp_async", "mma": "wgmma", "stages": 3},
    "groups, deep": {"copy": "cp_async", "mma": "wgmma", "stages": 6},
    "tma": {"copy": "tma"},
    "tma, two stages": {"copy": "tma", "stages": 2},
    "tma, none early": {"copy": "tma", "stages": 3, "early": 0},
    "tma, one early": {"copy": "tma", "stages": 4, "early": 1},
    "tma, all early": {"copy": "tma", "stages": 6, "early": 6},
    "tma, two consumers": {"copy": "tma", "stages": 3, "consumers": 2},
    "tma stores": {"copy": "tma", "store": "tma"},
    "persistent": {"copy": "tma", "stages": 3, "persistent": True},
    "persistent copies of threads": {"copy": "cp_async", "stages": 3, "persistent": True},
    "ping-pong": {"copy": "tma", "stages": 3, "persistent": True, "order": "pingpong", "consumers": 2},
    "ping-pong, deep": {"copy": "tma", "stages": 4, "persistent": True, "order": "pingpong", "consumers": 2},
    "tma, by warps": {"copy": "tma", "mma": "mma_sync"},
    "tma, by warps, all early": {"copy": "tma", "mma": "mma_sync", "stages": 6, "early": 6},
    "tma, by warps, two consumers": {"copy": "tma", "mma": "mma_sync", "stages": 2, "consumers": 2, "store": "tma"},
    "persistent, by warps": {"copy": "tma", "mma": "mma_sync", "stages": 3, "persistent": True},
    "ping-pong, by warps": {"copy": "tma", "mma": "mma_sync", "stages": 3, "persistent": True, "order": "pingpong"},
}


@dataclass(frozen=True)
class Loop:
    """A kernel and the bounds of its loop: numbers, or names of scalars and dims."""

    text: str
    lower: str
    upper: str
    step: str
    flat: bool


def kernel(number: int) -> Loop:
    """The kernel of a number."""
    r = random.Random(f"product loop {number}")
    lower = r.choice(("0", "0", "first", "first", "bid(0)", str(r.choice(BOUNDS)), "minimum(first, 5)"))
    upper = r.choice(("T", "T", "last", "last", "cdiv(T, 3)", str(r.choice(BOUNDS))))
    step = r.choice(("1", "step", "step", str(r.choice(STEPS))))
    if r.random() < 0.2:
        lower, step = "0", "1"  # required by ping-pong consumers
    flat, rows, aligned = r.random() < 0.5, r.choice((64, 64, 128)), r.random() < 0.4
    clauses = ["step >= 1"] if step == "step" else []
    if step != "1":
        end = {"T": "T", "cdiv(T, 3)": "T", "last": "last"}.get(upper, upper)
        clauses.append(f"{end} + {step} <= {HIGH + 1}")
    column_index = "0" if flat else "bid(1)"
    lines = [
        "def product_loop(a: In[bf16, T, M, 64], b: In[bf16, T, N, 64], out: Out[bf16, M, N],",
        "                 first: i32, last: i32, step: i32):",
        *([f"    requires({', '.join(clauses)})"] if clauses else []),
        *(["    requires(N <= 64)"] if flat else []),
        *(["    requires(N % 8 == 0)"] if aligned else []),
        *(["    resident(b)"] if r.random() < 0.6 else []),
        f"    grid(cdiv(M, {rows}))" if flat else f"    grid(cdiv(M, {rows}), cdiv(N, 64))",
        f"    acc = zeros(({rows}, 64), f32)",
        f"    for k in range({lower}, {upper}, {step}):",
        f"        x = load(a, (k, bid(0), 0), shape=(1, {rows}, 64), pad=0).reshape(({rows}, 64))",
        f"        y = load(b, (k, {column_index}, 0), shape=(1, 64, 64), pad=0).reshape((64, 64))",
        "        acc = mma(x, y.T, acc)",
        f"    store(out, (bid(0), {column_index}), astype(acc, bf16), mask=True)",
    ]
    return Loop(HEAD + "\n".join(lines) + "\n", lower, upper, step, flat)


def launches(loop: Loop, function: Function, number: int, count: int) -> list[dict[str, int]]:
    """Launch values that satisfy the contract, with few iterations in every block."""
    r = random.Random(f"launch {number}")
    values_of_launches: list[dict[str, int]] = []
    for _ in range(400):
        if len(values_of_launches) == count:
            break
        trip_count = r.choice((0, 0, 1, 1, 2, 3, 5, 9))
        step = int(loop.step) if loop.step != "step" else r.choice(STEPS)
        first = r.choice(BOUNDS)
        begin = {"0": 0, "bid(0)": 0, "first": first}.get(loop.lower)
        begin = (min(first, 5) if "minimum" in loop.lower else int(loop.lower)) if begin is None else begin
        last = (
            begin + step * trip_count - r.choice((0, 0, 1, step - 1, step // 2))
            if trip_count
            else begin - r.choice((0, 1, 1 << 30))
        )
        extent = min(max(1, last * (3 if "cdiv" in loop.upper else 1)), MAX_DIM)
        sizes = {"first": first, "last": min(max(last, LOW), HIGH), "step": step, "T": extent}
        sizes |= {"M": r.choice((1, 65, 200)), "N": r.choice((1, 40, 64)) if loop.flat else r.choice((3, 64, 104))}
        admitted = all(precondition.condition.evaluate(sizes) for precondition in function.requires)
        if admitted and iterations(loop, sizes) <= MAX_ITERATIONS and sizes not in values_of_launches:
            values_of_launches.append(sizes)
    return values_of_launches


def iterations(loop: Loop, sizes: dict[str, int]) -> int:
    """Iterations of a block; of the first if the start depends on the block."""
    values = {"first": sizes["first"], "last": sizes["last"], "T": sizes["T"], "bid(0)": 0, "cdiv(T, 3)": -(-sizes["T"] // 3)}
    values["minimum(first, 5)"] = min(sizes["first"], 5)
    lower, upper = (values[text] if text in values else int(text) for text in (loop.lower, loop.upper))
    return len(range(lower, upper, sizes["step"]))


@dataclass(frozen=True)
class Outcome:
    """`kind`: equal, wrong, refused (by the prover: no product), none (the kernel cannot have the schedule), internal."""

    schedule: str
    kind: str
    launches: int = 0
    detail: str = ""


def examine(number: int, folder: Path, count: int = 4) -> list[Outcome]:
    """Runs the kernel of a number under every schedule, at `count` launches: compares the sums at each position, unprepared and
    prepared."""
    loop, path = kernel(number), folder / "product_loop.py"
    path.write_text(loop.text, encoding="utf-8")
    try:
        function = load_kernel(path, {})
        prove(function)
    except CompileError as error:
        return [Outcome("", "refused", detail=error.diagnostics[0].code)]
    launch_values = launches(loop, function, number, count)
    expected = [stored(function, sizes) for sizes in launch_values]
    return [_outcome_with(name, path, list(zip(launch_values, expected, strict=True))) for name in SCHEDULES]


def _outcome_with(name: str, path: Path, launch_values: list[tuple[dict[str, int], Stores]]) -> Outcome:
    overrides = SCHEDULES[name]
    try:
        prepared = prepare(load_kernel(path, {}), SM_90A, Overrides(**overrides))
    except CompileError as error:
        return Outcome(name, "none", detail=error.diagnostics[0].code)
    except VerifyError as error:
        return Outcome(name, "internal", detail=str(error))
    for sizes, right in launch_values:
        for running in (1, 2) if overrides.get("persistent") else (0,):
            try:
                found = stored(prepared, sizes, running)
            except Wrong as wrong:
                return Outcome(name, "wrong", len(launch_values), f"{sizes}: {wrong}")
            if found != right:
                return Outcome(name, "wrong", len(launch_values), f"{sizes}: other products are summed")
    return Outcome(name, "equal", len(launch_values))
