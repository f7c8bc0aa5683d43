"""What the provers and checks make of atomics at positions: their bounds, and old values, which may be anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.audit.contract import contract_of_function
from tilec.audit.findings import CONFIRMED
from tilec.audit.prove import prove_function
from tilec.audit.smt import Budget
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.core import Function, Op, Value, VerifyError
from tilec.ir.facts.order import order_dependent
from tilec.ir.ops import AtomicScatter, If
from tilec.ir.ops.staging_ops import Relayout, ScratchLoad, ScratchStore, ScratchStoreOwned
from tilec.ir.ops.sync_ops import Barrier, Roles
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.families import TMA
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A

HEAD = '''"""Atomics."""
import tilec
from tilec import Atomic, Dim, In, InOut, Out, Scratch, arange, atomic_add, atomic_cas, atomic_exchange, atomic_max, bf16
from tilec import bid, cdiv, f32, grid, i32, load, maximum, minimum, mma, requires, scatter, store, sum, unsafe, values, zeros


class N(Dim):
    """elements"""


@tilec.kernel
'''


def built(folder: Path, text: str) -> Function:
    path = folder / "k.py"
    path.write_text(HEAD + text)
    return load_kernel(path, {}, root=folder)


def refusals(function: Function) -> set[str]:
    try:
        prove(function)
    except CompileError as error:
        return {one.code for one in error.diagnostics}
    return set()


def confirmed(function: Function) -> bool:
    """Whether the second prover confirms everything."""
    again = parse_function(print_function(function))
    return all(one.verdict == CONFIRMED for one in prove_function(again, contract_of_function(again), Budget()))


ACCEPTED = {
    "histogram": """def k(x: In[i32, N], t: Atomic[i32, 16]):
    grid(cdiv(N, 64))
    values(x, 0, 16)
    v = load(x, bid(0), shape=64, pad=-1)
    atomic_add(t, 1, at=v, mask=True)
""",
    "positions in the declared range": """def k(x: In[i32, N], t: Atomic[f32, 16, 4]):
    grid(N)
    values(x, 0, 16)
    atomic_add(t, 1.0, at=(load(x, bid(0)), arange(4)))
""",
    "an old value that is clamped": """def k(x: In[f32, N], c: Atomic[i32, 1], out: Out[f32, N]):
    grid(N)
    t = atomic_add(c, 1, at=0)
    store(out, bid(0), load(x, minimum(maximum(t, 0), N - 1)))
""",
    "exchanges meet": """def k(x: In[f32, N], c: Atomic[i32, 1], kept: Atomic[f32, N]):
    grid(N)
    atomic_exchange(kept, load(x, bid(0)), at=atomic_add(c, 1, at=0), mask=True)
""",
    "unsafe": """def k(x: In[f32, N], c: Atomic[i32, 1], kept: InOut[f32, N]):
    grid(N)
    place = atomic_add(c, 1, at=0)
    with unsafe("c is 0 before the launch: places are 0 to N - 1, each once"):
        store(kept, place, load(x, bid(0)))
""",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_both_provers_accept(name: str, tmp_path: Path) -> None:
    function = built(tmp_path, ACCEPTED[name])
    assert refusals(function) == set()
    assert confirmed(function) or name == "unsafe"


REFUSED = {
    "past the end": ("E0303", """def k(t: Atomic[i32, N]):
    grid(N)
    atomic_add(t, 1, at=bid(0) + arange(2))
"""),
    "before the start": ("E0303", """def k(t: Atomic[i32, N]):
    grid(N)
    atomic_add(t, 1, at=bid(0) - 1)
"""),
    "of the second axis": ("E0303", """def k(t: Atomic[i32, N, 4]):
    grid(N)
    atomic_cas(t, 0, 1, at=(bid(0), arange(5)))
"""),
    "loaded positions": ("E0303", """def k(x: In[i32, N], t: Atomic[i32, 16]):
    grid(N)
    atomic_add(t, 1, at=load(x, bid(0)))
"""),
    "an old value is a place": ("E0301", """def k(x: In[f32, N], c: Atomic[i32, 1], out: Out[f32, N]):
    grid(N)
    store(out, bid(0), load(x, atomic_add(c, 1, at=0)))
"""),
    "a declared range of a tensor that is updated": ("E0301", """def k(x: In[f32, N], c: Atomic[i32, 1], out: Out[f32, N]):
    grid(N)
    values(c, 0, 1)
    store(out, bid(0), load(x, atomic_add(c, 1, at=0)))
"""),
    "old values are not distinct": ("E0401", """def k(c: Atomic[i32, 1], y: InOut[f32, N]):
    grid(N)
    store(y, minimum(maximum(atomic_add(c, 1, at=0), 0), N - 1), 1.0)
"""),
    "nor the same in all blocks": ("E0401", """def k(c: Atomic[i32, 4], y: InOut[f32, N]):
    grid(N)
    requires(N % 8 == 0)
    s = sum(atomic_add(c, 1, at=arange(4)))
    store(y, minimum(bid(0) + minimum(maximum(s, 0), 3), N - 1), 1.0)
"""),
    "nobody is known to come first": ("E0401", """def k(c: Atomic[i32, 1], y: InOut[f32, N]):
    grid(N)
    if atomic_add(c, 1, at=0) == 0:
        store(y, 0, 1.0)
"""),
    "nor to win a swap": ("E0401", """def k(c: Atomic[i32, 1], y: InOut[f32, N]):
    grid(N)
    if atomic_cas(c, 0, 1, at=0) == 0:
        store(y, 0, 1.0)
"""),
    "a scatter at old values": ("E0401", """def k(c: Atomic[i32, 1], y: InOut[f32, N]):
    grid(N)
    scatter(y, atomic_add(c, 1, at=zeros(4, i32)), 1.0, mask=True)
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_both_provers_refuse(name: str, tmp_path: Path) -> None:
    code, text = REFUSED[name]
    function = built(tmp_path, text)
    assert code in refusals(function)
    assert not confirmed(function)


UNIFORM = """def k(c: Atomic[i32, 4], y: InOut[f32, 64]):
    grid(60)
    s = sum(atomic_add(c, 1, at=arange(4)))
    store(y, bid(0) + minimum(maximum(s, 0), 3), 1.0)
"""


def test_an_old_value_that_counted_as_uniform_would_hide_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake is found: with it, the kernel is accepted."""
    assert refusals(built(tmp_path, UNIFORM)) == {"E0401"}
    right = IndexTerms._uniform  # pyright: ignore[reportPrivateUsage]

    def planted(self: IndexTerms, value: Value) -> bool:
        return isinstance(value.owner, AtomicScatter) or right(self, value)

    monkeypatch.setattr(IndexTerms, "_uniform", planted)
    assert refusals(built(tmp_path, UNIFORM)) == set()


ORDER: dict[str, tuple[set[str], str]] = {
    "sums alone": (set(), """def k(x: In[i32, N], t: Atomic[i32, N], out: Out[i32, N]):
    grid(N)
    atomic_add(t, load(x, bid(0)), at=bid(0))
    store(out, bid(0), load(x, bid(0)))
"""),
    "an old value that is stored": ({"out"}, """def k(t: Atomic[i32, N], out: Out[i32, N]):
    grid(N)
    store(out, bid(0), atomic_add(t, 1, at=0))
"""),
    "two kinds": ({"t"}, """def k(t: Atomic[i32, N]):
    grid(N)
    atomic_add(t, 1, at=bid(0))
    atomic_max(t, 3, at=bid(0))
"""),
    "exchange": ({"t"}, """def k(t: Atomic[i32, N]):
    grid(N)
    atomic_exchange(t, bid(0), at=0, mask=True)
"""),
    "under a condition": ({"y"}, """def k(t: Atomic[i32, N], y: InOut[i32, N], z: InOut[i32, N]):
    grid(N)
    store(z, bid(0), 1)
    if atomic_add(t, 1, at=0, mask=True) > 4:
        store(y, bid(0), 1)
"""),
    "by another tensor": ({"s", "out"}, """def k(t: Atomic[i32, N], s: Scratch[i32, N], out: Out[i32, N]):
    grid(N)
    store(s, bid(0), atomic_add(t, 1, at=bid(0)))
    store(out, bid(0), load(s, bid(0)))
"""),
    "carried by a loop": ({"out"}, """def k(t: Atomic[i32, N], out: Out[i32, N]):
    grid(N)
    a = 0
    b = 0
    for i in range(4):
        b = a
        a = atomic_add(t, 1, at=0, mask=True)
    store(out, bid(0), b)
"""),
    "as a bound": ({"out"}, """def k(t: Atomic[i32, N], out: Out[i32, N]):
    grid(N)
    a = 0
    for i in range(minimum(maximum(atomic_add(t, 1, at=0, mask=True), 0), 4)):
        a = a + 1
    store(out, bid(0), a)
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDER)
def test_what_depends_on_the_order(name: str, tmp_path: Path) -> None:
    expected, text = ORDER[name]
    assert order_dependent(built(tmp_path, text)) == expected


SHARED = """def k(x: In[i32, 3, 24], t: Atomic[i32, 7], out: Out[i32, 3, 24]):
    grid(3)
    values(x, 0, 7)
    old = atomic_add(t, 1, at=load(x, (bid(0), 0), shape=(1, 24)))
    store(out, (bid(0), 0), old)
"""


def scheduled(folder: Path, text: str = SHARED) -> Function:
    return prepare(built(folder, text), SM_90A, Overrides(warps=2))


def test_old_values_reach_all_threads_through_scratch(tmp_path: Path) -> None:
    function = scheduled(tmp_path)
    verify(function, SM_90A)
    kinds = [type(op) for op in function.body.walk()]
    assert kinds.count(ScratchStoreOwned) == kinds.count(ScratchLoad) == 1
    between = kinds[kinds.index(ScratchStoreOwned) : kinds.index(ScratchLoad)]
    assert Barrier in between


def test_a_store_of_old_values_by_all_threads_is_refused(tmp_path: Path) -> None:
    function = scheduled(tmp_path)
    (store,) = [op for op in function.body.walk() if isinstance(op, ScratchStoreOwned)]
    function.body.ops[function.body.ops.index(store)] = ScratchStore(operands=store.operands, steps=store.steps, loc=store.loc)
    with pytest.raises(VerifyError, match="old values that one thread has"):
        verify(function, SM_90A)


def test_a_use_of_old_values_before_scratch_is_refused(tmp_path: Path) -> None:
    function = scheduled(tmp_path)
    ops: list[Op] = function.body.ops
    (atomic,) = [op for op in ops if isinstance(op, AtomicScatter)]
    renamed = Relayout(operands=[atomic.result])
    renamed.results = [Value(atomic.result.type, "", renamed, atomic.result.layout)]
    ops.insert(ops.index(atomic) + 1, renamed)
    with pytest.raises(VerifyError, match="threads that did not execute it"):
        verify(function, SM_90A)


def test_atomics_of_which_the_order_matters_have_a_barrier_between_them(tmp_path: Path) -> None:
    def barriers(second: str, first: str = "atomic_add(t, v, at=v)") -> int:
        text = "def k(x: In[i32, 64], t: Atomic[i32, 65], out: Out[i32, 64]):\n    grid(1)\n    values(x, 0, 64)\n"
        text += f"    v = load(x, 0, shape=64)\n    {first}\n    {second}\n    store(out, 0, v)\n"
        return sum(isinstance(op, Barrier) for op in scheduled(tmp_path, text).body.walk())

    assert barriers("atomic_add(t, 1, at=arange(64))") == 0
    assert barriers("atomic_max(t, 1, at=arange(64))") == 1
    assert barriers("atomic_exchange(t, 1, at=arange(64))", "atomic_exchange(t, 2, at=v)") == 1


PRODUCT = """def k(a: In[bf16, 128, 128], b: In[bf16, 128, 128], c: Atomic[i32, 2], y: Out[f32, 128, 128], p: Out[i32, 2, 64]):
    grid(2)
    t = PLACE
    acc = zeros((64, 128), f32)
    for k in range(2):
        acc = mma(load(a, (t, k), shape=(64, 64)), load(b, (k, 0), shape=(64, 128)), acc)
    store(y, (bid(0), 0), acc)
    store(p, (bid(0), 0), atomic_add(c, 1, at=zeros((1, 64), i32)))
"""


def test_a_producer_executes_no_atomic(tmp_path: Path) -> None:
    """Both roles would need a place that is handed out; what only consumers use, they ask for once."""
    with pytest.raises(CompileError, match="more than launch values"):
        chosen = "minimum(maximum(atomic_add(c, 1, at=1), 0), 1)"
        prepare(built(tmp_path, PRODUCT.replace("PLACE", chosen)), SM_120A, Overrides(copy=TMA))
    function = prepare(built(tmp_path, PRODUCT.replace("PLACE", "bid(0)")), SM_120A, Overrides(copy=TMA))
    (roles,) = [op for op in function.body.walk() if isinstance(op, Roles)]
    assert [any(isinstance(op, AtomicScatter) for op in region.walk()) for region in roles.regions] == [True, False]


def test_the_branch_under_an_old_value_is_uniform(tmp_path: Path) -> None:
    """All threads have the scalar, so barriers in the branch are reached by all."""
    text = """def k(x: In[f32, 64], c: Atomic[i32, 1], y: InOut[f32, 64]):
    grid(1)
    if atomic_add(c, 1, at=0) == 0:
        store(y, 0, load(x, 0, shape=64) / sum(load(x, 0, shape=64)))
"""
    function = scheduled(tmp_path, text)
    (branch,) = [op for op in function.body.walk() if isinstance(op, If)]
    before = function.body.ops[: function.body.ops.index(branch)]
    assert any(isinstance(op, ScratchLoad) for op in before)
