"""Compares two verdicts on a kernel of several ranks: the compiler's, and that of running every block of every rank.

The compiler's has three parts: frontend, verifier of the tile IR, prover. A kernel is accepted if none of them refuses it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.rank_soundness.ir_edits import EDITS, edit_function
from tests.rank_soundness.kernels import random_rank_kernel
from tests.rank_soundness.launches import SHARED, RankFault, rank_of, run_ranks
from tests.rank_soundness.mistakes import with_mistake
from tests.soundness.as_built import proofs_of_a_build
from tests.soundness.enumeration import OverBudget
from tests.soundness.memory import NoSuchLaunch
from tests.soundness.verdict import KINDS, integer_scalars, replay
from tilec.artifact.records import LaunchCheck
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Access, Function, VerifyError
from tilec.ir.types import MAX_DIM
from tilec.ir.verifier import verify
from tilec.passes.prover.aliasing import launch_checks

LARGEST = {0: 1, 1: 9, 2: 5, 3: 3}
"""Extents that are run completely, by the number of dims; of more dims up to 2."""
MULTIPLES = (1, 2, 4, 6, 8)
"""Extents that are tried if a contract allows few of those."""
LARGE = (MAX_DIM, 1 << 20, 1 << 10, 64)
IR_SHARE = 0.25
"""Of the kernels with a mistake: those that have it in the tile IR."""


@dataclass(frozen=True, slots=True)
class RankKernel:
    """A kernel as text; `edit`: the seed of an edit of its tile IR, or None; `mistakes`: their names, for an edit that of the
    one to make, or `in the IR` for any."""

    text: str
    schedule: str
    mistakes: tuple[str, ...] = ()
    edit: int | None = None


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """`kind`: accepted, false_accept, refused_confirmed (enumeration shows a fault), refused_harmless (it shows none), vacuous
    (no launch satisfies the contract), invalid (refused by the frontend), malformed (an edit of the IR left no program).
    `codes`: the prover's, and `IR` for the verifier's refusal."""

    kind: str
    codes: tuple[str, ...] = ()
    fault: RankFault | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    launches: int = 0
    text: str = ""


def generate(seed: int) -> RankKernel:
    """The kernel of a number: in one of three cases without a mistake."""
    r = random.Random(f"rank kernel {seed}")
    kernel = random_rank_kernel(r)
    text, names = kernel.text, list[str]()
    count = r.choice((0, 0, 1, 1, 1, 2))
    if count and r.random() < IR_SHARE:
        return RankKernel(text, kernel.schedule, ("in the IR",), r.getrandbits(32))
    for _ in range(count):
        text, name = with_mistake(r, text)
        names.append(name)
    return RankKernel(text, kernel.schedule, tuple(names))


def parse(kernel: RankKernel) -> tuple[Function | None, str]:
    """The kernel through the frontend, with its edit, and the name of that or the code of a refusal."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "random_kernel.py"
        path.write_text(kernel.text, encoding="utf-8")
        try:
            function = load_kernel(path, {})
        except CompileError as error:
            return None, error.diagnostics[0].code
    name = ""
    if kernel.edit is not None:
        name = edit_function(random.Random(kernel.edit), function, *(one for one in kernel.mistakes if one in EDITS))
    return function, name


def examine(kernel: RankKernel, seed: int = 0, launches: int = 10) -> RankVerdict:
    """Both verdicts on a kernel."""
    function, name = parse(kernel)
    return RankVerdict("invalid", (name,)) if function is None else examine_function(function, seed, launches)


def examine_function(function: Function, seed: int = 0, launches: int = 10) -> RankVerdict:
    """Both verdicts on a kernel in tile IR."""
    checks, codes, refused = launch_checks(function), set[str](), tuple[Diagnostic, ...]()
    missing: RankFault | None = None
    try:
        verify(function)
    except VerifyError:
        codes.add("IR")
    try:
        proofs = proofs_of_a_build(function)
        checks, missing = proofs.launch_checks, overlapping(function, proofs.no_alias)
    except CompileError as error:
        refused = error.diagnostics
        codes |= {one.code for one in refused}
    except Exception:  # of IR that its verifier refuses: whatever the prover does with it, nothing is accepted
        if not codes:
            raise
    try:
        fault, sizes, count = _search(function, checks, seed, launches)
    except (KeyError, IndexError):
        if "IR" not in codes:
            raise
        return RankVerdict("malformed", tuple(sorted(codes)))
    fault = fault or missing
    if codes:
        fault = fault or _replayed(function, refused, checks)
        kind = "refused_confirmed" if fault is not None else "refused_harmless" if count else "vacuous"
    else:
        kind = "false_accept" if fault is not None else "accepted" if count else "vacuous"
    return RankVerdict(kind, tuple(sorted(codes)), fault, tuple(sorted(sizes.items())), count, str(fault or ""))


def overlapping(function: Function, no_alias: tuple[tuple[str, str], ...]) -> RankFault | None:
    """A fault if the contract allows that a tensor that the kernel writes, or signals, overlap another tensor."""
    tensors = [parameter for parameter in function.parameters if parameter.access is not None]
    apart = {frozenset(pair) for pair in no_alias}
    for one, other in combinations(tensors, 2):
        harmless = {one.access, other.access} <= {Access.IN, Access.PEER}
        if not harmless and frozenset((one.name, other.name)) not in apart:
            return RankFault("alias", f"{one.name} may overlap {other.name}")
    return None


def number_of_ranks(function: Function) -> int:
    """How many ranks run a kernel: as many as it has parts of a tensor, or signals; two if it has none."""
    return max((rank_of(p.name) + 1 for p in function.parameters if p.access in SHARED), default=2)


def rank_name(function: Function) -> str:
    """The parameter that the launcher sets to the number of the rank: that of `meet`, or else the one called so."""
    names = {p.value: p.name for p in function.parameters if p.access is None}
    meets = [op for op in function.body.walk() if isinstance(op, ops.Meet)]
    return next((names[op.rank] for op in meets if op.rank in names), "rank")


def _search(
    function: Function, checks: tuple[LaunchCheck, ...], seed: int, launches: int
) -> tuple[RankFault | None, dict[str, int], int]:
    """The first fault, the sizes, and the number of launches."""
    r, count = random.Random(seed), 0
    for sizes, sampled in valuations(function, checks, r, launches):
        only = None
        if sampled:
            grid = [extent.evaluate(sizes[0]) for extent in function.grid]
            only = list(product(*(sorted({0, 1, n // 2, n - 1} & set(range(n))) for n in grid)))
        try:
            faults = run_ranks(function, sizes, r.getrandbits(32), 60_000, only)
        except (NoSuchLaunch, OverBudget, ZeroDivisionError):
            continue
        count += 1
        if faults:
            return faults[0], dict(sizes[0]), count
    return None, {}, count


def valuations(
    function: Function, checks: tuple[LaunchCheck, ...], r: random.Random, launches: int
) -> Iterator[tuple[list[dict[str, int]], bool]]:
    """Sizes and scalars of each rank, which satisfy the contract in all of them; whether they are large. Sizes are the same in
    all ranks; a scalar that is not the number of the rank differs in some launches."""
    ranks, name, scalars = number_of_ranks(function), rank_name(function), integer_scalars(function)
    most = LARGEST.get(len(function.dims), 2)
    small = list(product(range(1, most + 1), repeat=len(function.dims)))
    r.shuffle(small)
    small += [tuple(r.choice(MULTIPLES) for _ in function.dims) for _ in range(200)]
    large = [tuple(r.choice((*LARGE, 1, 3, 7)) for _ in function.dims) for _ in range(12)] if function.dims else []
    yielded = 0
    for numbers, sampled in [*((n, False) for n in (small if function.dims else small[:3])), *((n, True) for n in large)]:
        if yielded >= launches + (3 if sampled else 0):
            continue
        sizes = dict(zip(function.dims, numbers, strict=True))
        of_ranks = _of_ranks(r, sizes, ranks, name, scalars)
        if all(_allowed(checks, one) for one in of_ranks):
            yielded += 1
            yield of_ranks, sampled


def _of_ranks(
    r: random.Random, sizes: Mapping[str, int], ranks: int, name: str, scalars: Mapping[str, tuple[int, int]]
) -> list[dict[str, int]]:
    given = [dict(sizes) for _ in range(ranks)]
    for scalar, (low, high) in scalars.items():
        alike = r.choice([v for v in (0, 1, 2, 3, low, high) if low <= v <= high])
        for rank, one in enumerate(given):
            one[scalar] = rank if scalar == name else alike if r.random() < 0.7 else r.randint(max(low, -1), 5)
    return given


def _allowed(checks: tuple[LaunchCheck, ...], sizes: Mapping[str, int]) -> bool:
    try:
        return all(check.condition.evaluate(sizes) for check in checks)
    except ZeroDivisionError:
        return False


def _replayed(function: Function, refused: tuple[Diagnostic, ...], checks: tuple[LaunchCheck, ...]) -> RankFault | None:
    """A fault of one rank that a counterexample of the prover names, at sizes that were not run."""
    for one in refused:
        if one.counterexample is not None:
            with suppress(KeyError):  # of a dim that the example and the kernel do not share
                fault = replay(function, one.counterexample, checks, KINDS.get(one.code, ""))
                if fault is not None:
                    return RankFault(fault.kind, str(fault))
    return None
