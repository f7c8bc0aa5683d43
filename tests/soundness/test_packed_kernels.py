"""Random kernels with packed tensors: none that the prover accepts has a fault as its author counts elements and their bytes.

`enumeration` runs the tile IR, whose tensors have bytes; here the source text runs, so that the frontend's own step from
elements to bytes is compared too. `test_random_kernels` compares the same kernels with `enumeration`.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests import campaign
from tests.soundness.authored import Launch, TooLong
from tests.soundness.memory import NoSuchLaunch
from tests.soundness.sketch import WideKernel
from tests.soundness.verdict import PACKED_SEEDS, generate_any, parse, text_of, valuations
from tests.words.packed_kernels import HEAD
from tilec.artifact.records import LaunchCheck
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import packed
from tilec.ir.core import Function
from tilec.passes.prover import prove
from tilec.passes.prover.aliasing import launch_checks

BATCHES = 20
SHARE = 40
LAUNCHES = 12


def faults(function: Function, text: str, checks: tuple[LaunchCheck, ...], seed: int) -> tuple[set[str], dict[str, int], int]:
    """The kinds of faults at the first launch of the contract that has any, its sizes, and the number of launches."""
    r, count = random.Random(seed), 0
    for sizes, sampled in valuations(function, checks, r, 8 * LAUNCHES):
        if sampled or count == LAUNCHES:
            continue
        try:
            kinds = Launch(text, sizes, r.getrandbits(32)).run()
        except (NoSuchLaunch, TooLong, ZeroDivisionError):
            continue
        count += 1
        if kinds:
            return kinds, sizes, count
    return set(), {}, count


def proven_checks(function: Function) -> tuple[LaunchCheck, ...] | None:
    """What a launcher checks before a launch; None if the kernel is refused."""
    try:
        return prove(function).launch_checks
    except CompileError:
        return None


@pytest.mark.parametrize("batch", campaign.first(1, range(BATCHES)))
def test_what_is_accepted_has_no_fault_in_elements(batch: int) -> None:
    found = Counter[str]()
    for seed in range(PACKED_SEEDS + batch * SHARE, PACKED_SEEDS + (batch + 1) * SHARE):
        kernel = generate_any(seed)
        function = parse(kernel)
        if function is None:
            continue
        checks = proven_checks(function)
        kinds, sizes, count = faults(function, text_of(kernel), checks or launch_checks(function), seed)
        if checks is not None:
            assert not kinds, (seed, kinds, sizes, text_of(kernel))
            found["accepted"] += count > 0
        else:
            found["refused"] += bool(kinds)
    assert found["accepted"] >= SHARE // 4 and found["refused"] >= 2, found


ROWS = '''def k(w: tl.In[tl.i4, N, K], x: tl.In[tl.f32, K], out: tl.{access}[tl.i4, N, K]):
    tl.requires(K % 4 == 0)
    tl.grid(N, K // 4)
    n, c = tl.bid(0), tl.bid(1)
    t = tl.load({source}, offset=(n, 4 * c + {read}), shape=(1, {extent}){pad})
    tl.store(out, tl.full((1, {stored}), tl.max(t.astype(tl.i32)), tl.i32).astype(tl.i4), offset=(n, 4 * c + {write}){mask})
'''  # fmt: skip
RIGHT = {"access": "Out", "source": "w", "read": 0, "extent": 4, "pad": "", "stored": 4, "write": 0, "mask": ""}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, set[str]()),
        ({"read": 1, "extent": 3}, set[str]()),
        ({"read": 1}, {"bounds"}),
        ({"read": 1, "pad": ", pad=7"}, set[str]()),
        ({"stored": 2}, {"coverage"}),
        ({"stored": 6, "mask": ", mask=True"}, {"race"}),
        ({"write": 2, "mask": ", mask=True"}, {"coverage"}),
        ({"write": 1, "mask": ", mask=True"}, {"coverage", "race", "half"}),
        ({"source": "out"}, {"order"}),
        ({"source": "out", "access": "InOut"}, set[str]()),
        ({"source": "out", "access": "InOut", "read": -1, "pad": ", pad=0"}, {"race"}),
        ({"source": "out", "access": "InOut", "stored": 2, "read": 1, "extent": 3}, set[str]()),
        ({"source": "out", "access": "InOut", "read": 3, "extent": 2, "pad": ", pad=0"}, {"race"}),
    ],
)
def test_each_kind_of_fault_is_found(change: dict[str, object], kinds: set[str]) -> None:
    text = ROWS.format(**{**RIGHT, **change})
    assert Launch(text, {"N": 2, "K": 12}).run() == kinds


def test_a_launch_of_half_a_byte_is_none() -> None:
    with pytest.raises(NoSuchLaunch):
        Launch(ROWS.format(**RIGHT), {"N": 2, "K": 5}).run()


def is_even(*_: object) -> bool:
    return True


def test_a_frontend_that_takes_odd_columns_for_even_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are right in the tile IR of such a kernel: only elements show that they are others than its author's."""
    text = HEAD + ROWS.format(**{**RIGHT, "write": 1, "stored": 2, "access": "InOut", "read": 1, "extent": 2})
    kernel = WideKernel("odd", text)
    assert parse(kernel) is None
    monkeypatch.setattr(packed._Even, "of", is_even)  # pyright: ignore[reportPrivateUsage]
    function = parse(kernel)
    assert function is not None
    checks = proven_checks(function)
    assert checks is not None
    kinds, _, count = faults(function, text, checks, 0)
    assert count and "half" in kinds
