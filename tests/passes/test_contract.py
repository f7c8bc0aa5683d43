"""What the prover returns: launch checks, aliasing, the dataflow graph, obligations as data."""

from __future__ import annotations

from tests.passes.builder import Access, Kernel, as_expr, binary, cdiv, const, sym
from tilec.ir.types import MAX_DIM, TensorType, f32
from tilec.passes.prover import prove
from tilec.passes.prover.aliasing import launch_checks, no_alias_pairs
from tilec.passes.prover.discharge import RUNGS


def holds(kernel: Kernel, **launch: int) -> bool:
    return all(check.condition.evaluate(launch) for check in launch_checks(kernel.function))


def test_sizes_and_preconditions_are_checked_at_launch():
    k = Kernel("N")
    k.tensor("x", Access.IN, "N")
    k.requires(binary("==", binary("%", sym("N"), const(8)), const(0)))
    assert holds(k, N=8)
    assert not holds(k, N=9)
    assert not holds(k, N=0)
    assert not holds(k, N=MAX_DIM + 8)


def test_the_grid_is_checked_only_if_it_could_be_wrong():
    k = Kernel("N", "M")
    texts = [check.text for check in launch_checks(k.function)]
    assert any("65535" in text for text in texts)
    assert not any("grid axis 0" in text for text in texts)
    assert not holds(k, N=1, M=65536)
    rounded_down = Kernel(binary("//", sym("N"), const(256)))
    assert not holds(rounded_down, N=255)


def test_strides_step_over_the_axes_inside():
    k = Kernel("T")
    value = k.tensor("x", Access.IN, "T", 64)
    value.type = TensorType(f32, value.tensor.dims, (as_expr("S"), const(1)))
    k.function.dims, k.function.strides = ("T", "S"), ("S",)
    assert holds(k, T=4, S=64)
    assert holds(k, T=4, S=80)
    assert not holds(k, T=4, S=63)


def test_only_read_only_tensors_may_alias():
    k = Kernel("N")
    for name, access in (("a", Access.IN), ("b", Access.IN), ("out", Access.OUT), ("sum", Access.ATOMIC)):
        k.tensor(name, access, "N")
    assert set(no_alias_pairs(k.function)) == {("a", "out"), ("b", "out"), ("a", "sum"), ("b", "sum"), ("out", "sum")}


def test_the_graph_shows_how_accesses_depend_on_block_ids_and_who_owns_them():
    k = Kernel(cdiv(sym("N"), const(64)))
    x, out = k.tensor("x", Access.IN, "N"), k.tensor("out", Access.OUT, "N")
    start = k.mul(k.bid(), 64)
    k.load(x, start, shape=(64,), pad=0.0)
    k.store(out, start, shape=(64,), mask=True)
    proofs = prove(k.function)
    graph = proofs.graph()
    accesses = [name for name, kind in graph.nodes(data="kind") if kind == "access"]
    assert len(accesses) == 2
    (grid,) = [name for name, kind in graph.nodes(data="kind") if kind == "grid"]
    import networkx

    assert all(networkx.has_path(graph, grid, access) for access in accesses)
    (store,) = [name for name in accesses if graph.nodes[name]["ownership"] == "out"]
    assert graph.edges[store, "out"]["role"] == "memory"
    assert {o.property for o in graph.nodes[store]["obligations"]} >= {"bounds", "race", "coverage"}
    assert all(o.rung in RUNGS for o in proofs.obligations)
    assert any(o.sets for o in proofs.obligations)
