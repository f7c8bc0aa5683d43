"""Compares two verdicts on one kernel: the prover's, and that of running every block at many small sizes."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs.typed_tiles import INTEGERS
from tests.soundness.as_built import proofs_of_a_build
from tests.soundness.description import Description, source
from tests.soundness.enumeration import Fault, Launch, OverBudget
from tests.soundness.memory import Memory, NoSuchLaunch
from tests.soundness.mutations import mutate
from tests.soundness.near_limits import near_limits
from tests.soundness.packed_tensors import packed_tensors
from tests.soundness.promised import promised
from tests.soundness.rows import rows
from tests.soundness.schedules import SCHEDULES
from tests.soundness.sketch import WideKernel, with_imports
from tests.soundness.source_edits import mutate_source
from tests.soundness.variables import renamed
from tests.soundness.wide import wide
from tests.soundness.wild import wild
from tests.soundness.words import with_words
from tests.soundness.writes import written_together
from tilec.artifact.records import LaunchCheck
from tilec.diagnostics.diagnostic import CompileError, Counterexample, Diagnostic
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.expr import Expr
from tilec.ir.types import MAX_DIM
from tilec.passes.prover.aliasing import launch_checks

LARGE = (MAX_DIM, MAX_DIM - 1, 1 << 30, (1 << 16) + 1, 46341)
WIDE_SHARE = 0.5
U64_SEEDS = 1_000_000_000
WRITES_SEEDS = 2_000_000_000
"""Kernels from here on write an `Out` together, under conditions or at computed positions."""
LIMITS_SEEDS = 3_000_000_000
"""Kernels from here on compute an index near the limits of its dtype."""
WORDS_SEEDS = 4_000_000_000
"""Kernels from here on are over the whole language with its newer words."""
PROMISES_SEEDS = 5_000_000_000
"""Kernels from here on promise what integers they leave."""
ROWS_SEEDS = 6_000_000_000
"""Kernels from here on promise that the integers of each row differ, or rely on it."""
PACKED_SEEDS = 7_000_000_000
"""Kernels from here on have packed tensors, whose bytes have two elements each."""
FAMILIES = (U64_SEEDS, WRITES_SEEDS, LIMITS_SEEDS, WORDS_SEEDS, PROMISES_SEEDS, ROWS_SEEDS, PACKED_SEEDS)
"""The first numbers of kernels of one kind each, so that the kernels of all other numbers stay what they were."""
WITH_U64 = (*INTEGERS, *["u64"] * 8)
"""Integers of a kernel from `U64_SEEDS` on: about half of them are u64."""
KINDS = {
    "E0301": "bounds", "E0302": "bounds", "E0303": "bounds", "E0304": "wrap", "E0305": "divisor", "E0308": "bounds",
    "E0309": "progress", "E0310": "invariant",
    "E0401": "race", "E0402": "race", "E0403": "coverage", "E0404": "once", "E0405": "order", "E0406": "promise",
    "E0407": "order",
}  # fmt: skip

EVERYWHERE = r"every (?:other )?element of `(\w+)` is (-?\d+|NaN)"
"""What a counterexample says of the elements that it does not name."""
STANDS_FOR = {"coverage": ("promise",)}
"""A tensor that is left partly unwritten may break a promise about it, by what it held before."""


@dataclass(slots=True)
class Verdict:
    """`kind`: accepted, false_accept, refused_confirmed (enumeration shows a fault), refused_harmless (it shows none),
    vacuous (no launch satisfies the contract), invalid (refused by the frontend). `wrong_examples`: codes whose counterexample
    enumeration does not reproduce."""

    kind: str
    codes: tuple[str, ...] = ()
    fault: Fault | None = None
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    wrong_examples: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    launches: int = 0
    function: Function | None = None


def generate(seed: int) -> Description:
    """The kernel of a seed: a correct schedule with up to three changes, or in one of six cases a kernel from no schedule."""
    r = random.Random(f"kernel {seed}")
    if r.random() < 1 / 6:
        return wild(r)
    name = r.choice(sorted(SCHEDULES))
    kernel = copy.deepcopy(SCHEDULES[name](r))
    changes = [mutate(r, kernel) for _ in range(r.choice([0, 0, 1, 1, 1, 2, 3]))]
    kernel.schedule = " + ".join([name, *changes])
    return kernel


def generate_any(seed: int) -> Description | WideKernel:
    """The kernel of a seed: with probability `WIDE_SHARE` one over the whole language with up to two mistakes, else that of
    `generate`. From `U64_SEEDS` on, one over the whole language of which many integers are u64."""
    if seed >= PACKED_SEEDS:
        return _with_mistakes(r := random.Random(f"packed kernel {seed - PACKED_SEEDS}"), packed_tensors(r), [0, 0, 0, 0, 1])
    if seed >= ROWS_SEEDS:
        return _with_mistakes(r := random.Random(f"rows kernel {seed - ROWS_SEEDS}"), rows(r), [0, 0, 0, 0, 1])
    if seed >= PROMISES_SEEDS:
        return _with_mistakes(r := random.Random(f"promises kernel {seed - PROMISES_SEEDS}"), promised(r), [0, 0, 0, 1])
    if seed >= WORDS_SEEDS:
        return _with_mistakes(r := random.Random(f"words kernel {seed - WORDS_SEEDS}"), with_words(r))
    if seed >= LIMITS_SEEDS:
        return near_limits(random.Random(f"limits kernel {seed - LIMITS_SEEDS}"))
    if seed >= WRITES_SEEDS:
        return _with_mistakes(r := random.Random(f"writes kernel {seed - WRITES_SEEDS}"), written_together(r), [0, 0, 0, 0, 1])
    if seed >= U64_SEEDS:
        return _with_mistakes(r := random.Random(f"u64 kernel {seed - U64_SEEDS}"), wide(r, WITH_U64))
    r = random.Random(f"wide kernel {seed}")
    return _with_mistakes(r, wide(r)) if r.random() < WIDE_SHARE else generate(seed)


def _with_mistakes(r: random.Random, kernel: WideKernel, counts: Sequence[int] = (0, 0, 0, 1, 1, 2)) -> WideKernel:
    changes = r.choice(counts)
    for _ in range(changes):
        kernel.text = with_imports(mutate_source(r, kernel.text))
    kernel.schedule += f" + {changes}" if changes else ""
    return kernel


def text_of(kernel: Description | WideKernel) -> str:
    """The kernel as a file."""
    return renamed(kernel.text if isinstance(kernel, WideKernel) else source(kernel))


def parse(kernel: Description | WideKernel) -> Function | None:
    """The kernel's source text through the frontend; None if the frontend refuses it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "random_kernel.py"
        path.write_text(text_of(kernel), encoding="utf-8")
        try:
            return load_kernel(path, dict(kernel.constants))
        except CompileError:
            return None


def examine(kernel: Description | WideKernel, seed: int = 0, launches: int = 24) -> Verdict:
    """Both verdicts on a kernel."""
    function = parse(kernel)
    if function is None:
        return Verdict("invalid")
    verdict = examine_function(function, seed, launches)
    verdict.function = function
    return verdict


def examine_function(function: Function, seed: int = 0, launches: int = 24) -> Verdict:
    """Both verdicts on a kernel in tile IR."""
    checks = launch_checks(function)
    try:
        checks = proofs_of_a_build(function).launch_checks
        refused: tuple[Diagnostic, ...] = ()
    except CompileError as error:
        refused = error.diagnostics
    codes = tuple(sorted({d.code for d in refused}))
    if refused:
        confirmed, wrong_examples = _confirm(function, refused, checks)
        if confirmed is not None:
            return Verdict("refused_confirmed", codes, confirmed, wrong_examples=wrong_examples, diagnostics=refused)
        fault, sizes, count = search(function, checks, seed, launches)
        kind = "refused_confirmed" if fault is not None else "refused_harmless" if count else "vacuous"
        return Verdict(kind, codes, fault, sizes, wrong_examples, refused, count)
    fault, sizes, count = search(function, checks, seed, launches)
    if fault is not None:
        return Verdict("false_accept", (), fault, sizes, launches=count)
    return Verdict("accepted" if count else "vacuous", launches=count)


def search(
    function: Function, checks: tuple[LaunchCheck, ...], seed: int, launches: int
) -> tuple[Fault | None, dict[str, int], int]:
    """The first fault found at some size, the size, and the number of launches."""
    r = random.Random(seed)
    count = 0
    for sizes, sampled in valuations(function, checks, r, launches):
        blocks = list(_sample(function, sizes)) if sampled else None
        try:
            faults = Launch(function, sizes, Memory(function, sizes, r.getrandbits(32)), 150_000, blocks).run()
        except (NoSuchLaunch, OverBudget, ZeroDivisionError):
            continue
        count += 1
        if faults:
            return faults[0], sizes, count
    return None, {}, count


def valuations(
    function: Function, checks: tuple[LaunchCheck, ...], r: random.Random, launches: int
) -> Iterator[tuple[dict[str, int], bool]]:
    """Sizes that satisfy the launch contract, small ones to run completely and a few large ones to sample."""
    scalars = integer_scalars(function)
    symbols = [*function.dims, *scalars]
    if not symbols:
        for _ in range(2):
            yield {}, False
        return
    largest = {1: 24, 2: 6, 3: 4}.get(len(symbols), 3)
    if any(p.access is not None and p.value.tensor.packed is not None for p in function.parameters):
        largest *= 5  # two elements share a byte: few boxes of them are small
    ranges = [_scalar_sizes(r, *scalars[s], largest) if s in scalars else range(1, largest + 1) for s in symbols]
    small = _product(r, ranges, symbols, checks)
    r.shuffle(small)
    yielded = 0
    for numbers in small:
        sizes = dict(zip(symbols, numbers, strict=True))
        if yielded < launches and _allowed(checks, sizes):
            yielded += 1
            yield sizes, False
    for sizes in [{s: large if s == symbol else 1 for s in symbols} for symbol in symbols for large in LARGE[:3]]:
        if _fits(scalars, sizes) and _allowed(checks, sizes):
            yield sizes, True
    for _ in range(8):
        sizes = {symbol: r.choice([*LARGE, 1, 3, 8]) for symbol in symbols}
        if _fits(scalars, sizes) and _allowed(checks, sizes):
            yield sizes, True


def integer_scalars(function: Function) -> dict[str, tuple[int, int]]:
    """Integer parameters with the ends of their dtype."""
    scalars = [p for p in function.parameters if p.access is None]
    return {p.name: p.value.tile.dtype.integer_range() for p in scalars if p.value.tile.dtype.is_integer}


def _scalar_sizes(r: random.Random, low: int, high: int, limit: int) -> list[int]:
    """Small values, and a few at the ends or at widths of dtypes."""
    ends = r.sample([low, high, high - 1, 31, 32, 33, 40, 64, -2], 2)
    return sorted({v for v in (*range(-1, limit + 1), *ends) if low <= v <= high})


def _fits(scalars: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> bool:
    return all(low <= sizes[name] <= high for name, (low, high) in scalars.items())


def _product(
    r: random.Random, ranges: Sequence[Sequence[int]], symbols: Sequence[str], checks: tuple[LaunchCheck, ...]
) -> list[tuple[int, ...]]:
    """All combinations if there are few; if few of them are allowed, also draws around the numbers of the contract."""
    if prod(map(len, ranges)) <= 4096:
        small = list(product(*ranges))
    else:
        small = [tuple(r.choice(values) for values in ranges) for _ in range(2000)]
    if sum(_allowed(checks, dict(zip(symbols, numbers, strict=True))) for numbers in small) < 6:
        around = sorted({n + d for check in checks for n in _numbers(check.condition) if 0 <= n < 64 for d in (0, 1, 2, 3)})
        if around:
            choices = [sorted({*values, *around}) for values in ranges]
            small += [tuple(r.choice(values) for values in choices) for _ in range(1500)]
    return small


def _numbers(expr: Expr) -> Iterator[int]:
    if expr.constant is not None:
        yield expr.constant
    for arg in expr.args:
        yield from _numbers(arg)


def _allowed(checks: tuple[LaunchCheck, ...], sizes: Mapping[str, int]) -> bool:
    try:
        return all(check.condition.evaluate(sizes) for check in checks)
    except ZeroDivisionError:
        return False


def _sample(function: Function, sizes: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    extents = [extent.evaluate(sizes) for extent in function.grid]
    yield from product(
        *(sorted({0, 1, n // 2, n - 2, n - 1} & set(range(n)) if n < 9 else {0, 1, n // 2, n - 1}) for n in extents)
    )


def _confirm(
    function: Function, refused: tuple[Diagnostic, ...], checks: tuple[LaunchCheck, ...]
) -> tuple[Fault | None, tuple[str, ...]]:
    fault_found: Fault | None = None
    wrong: list[str] = []
    for diagnostic in refused:
        example = diagnostic.counterexample
        if example is None:
            continue
        fault = replay(function, example, checks, KINDS.get(diagnostic.code, ""))
        if fault is None:
            wrong.append(diagnostic.code)
        fault_found = fault_found or fault
    return fault_found, tuple(wrong)


def replay(function: Function, example: Counterexample, checks: tuple[LaunchCheck, ...], kind: str) -> Fault | None:
    """The fault that a counterexample claims, if running its blocks reproduces it."""
    scalars = integer_scalars(function)
    missing = [symbol for symbol in (*function.dims, *scalars) if symbol not in example.dims]
    choices = (
        dict(zip(missing, numbers, strict=True)) for numbers in product((1, 2, 3, 4, 6, 12, 64, 1000), repeat=len(missing))
    )
    sizes = next(
        (s for s in (free | dict(example.dims) for free in choices) if _fits(scalars, s) and _allowed(checks, s)), None
    )
    if sizes is None:
        return None
    fixed: dict[tuple[str, tuple[int, ...]], int | float] = {_index(key): value for key, value in example.values.items()}
    fixed |= {_index(key): float("nan") for key in re.findall(r"`(\w+\[[\d, ]*\])` is NaN", example.note)}
    everywhere = {name: float(n) if n == "NaN" else int(n) for name, n in re.findall(EVERYWHERE, example.note)}
    visit: dict[str, list[int]] = {}
    for loops in example.iterations:
        for name, value in loops.items():
            visit.setdefault(name, []).append(value)
    blocks = example.blocks or None
    if kind in ("coverage", "promise"):
        blocks = None
    # Values that the counterexample leaves open (a position of a largest element, for example) are drawn anew each time.
    for seed in range(24 if example.note else 1):
        try:
            faults = Launch(function, sizes, Memory(function, sizes, seed, fixed, everywhere), 300_000, blocks, visit).run()
        except (NoSuchLaunch, OverBudget, ZeroDivisionError):
            return None
        found = next((fault for fault in faults if fault.kind in (kind, *STANDS_FOR.get(kind, ()))), None)
        if found is not None:
            return found
    return None


def _index(key: str) -> tuple[str, tuple[int, ...]]:
    """Tensor and index; of a packed tensor `2j:2j + 2` stands for byte j."""
    name, _, rest = key.partition("[")
    items = [item.partition(":") for item in rest.rstrip("]").split(",") if item.strip()]
    return name, tuple(int(first) // (2 if colon else 1) for first, colon, _ in items)
