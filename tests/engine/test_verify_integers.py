"""Integers that a kernel writes for a later launch, of this step or of its next replay, satisfy that kernel's `ensures`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_contracts import DENSE, TINY, contract, planned_step, shape_of

from engine.backends.device_memory import DeviceMemory, InputBlock
from engine.backends.interpreter import InterpreterBackend, kernel_contract
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.graph.contract import Contract
from engine.graph.integers import GraphError, InputValues, Replay, WrittenValues, check_values
from engine.graph.plan import MemoryPlan, plan_memory
from engine.graph.verify import verify
from engine.models.steps import model_step
from engine.sequence import Sequence
from engine.tools.tiny import write_tiny_model
from tests import shipped
from tests.runtime.fake_driver import FakeDriver
from tilec import frontend
from tilec.step.graph import Buffer, Kind, Op, StepGraph
from tilec.step.step import NO_VARIANT

OUTPUT_MODES = ("argmax", "sample")


def with_advance(folder: Path, edit: Callable[[str], str], kernel: str = "advance") -> Callable[[Op], Contract]:
    """Contracts of the shipped kernels, with another text for `advance`."""
    path = folder / f"{kernel}.py"
    text = (shipped.ROOT / "kernels_src" / f"{kernel}.py").read_text(encoding="utf-8")
    assert edit(text) != text
    path.write_text(edit(text), encoding="utf-8")
    edited = kernel_contract(frontend.load_kernel(path, {}, root=folder))
    return lambda op: edited if op.kernel == kernel else contract(op)


def without_promise(tensor: str) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if f"ensures({tensor}," not in line)


@pytest.mark.parametrize("tensor", ["ids", "positions", "slots", "lengths"])
@pytest.mark.parametrize("output_mode", OUTPUT_MODES)
def test_unpromised_values_are_not_indices_of_the_next_replay(tmp_path: Path, tensor: str, output_mode: str) -> None:
    message = f"operation `advance`: buffer `{tensor}` holds .* and promises nothing: it has no `ensures\\({tensor}, "
    with pytest.raises(GraphError, match=message):
        verify(*planned_step(TINY, 1, output_mode, True, 0), with_advance(tmp_path, without_promise(tensor)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ensures(ids, 0, vocab_size)", "ensures(ids, 0, vocab_size + 1)", "`ids` holds 0 to 2047, .* leaves 0 to 2048"),
        ("ensures(ids, 0, vocab_size)", "ensures(ids, -1, vocab_size)", "`ids` holds 0 to 2047, .* leaves -1 to 2047"),
        ("ensures(ids, 0, vocab_size)", "ensures(ids, 0, 1, above=token)", "`ids` holds .* above integers without bounds"),
    ],
)
def test_values_out_of_bounds_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(GraphError, match=f"operation `advance`: buffer {message}"):
        verify(*planned_step(TINY, 1, "argmax", True, 0), with_advance(tmp_path, lambda text: text.replace(old, new)))


HEAD = """import tilec
from tilec import Dim, In, Out, bid, ensures, f32, full, grid, i32, load, store, values

class T(Dim): ...

@tilec.kernel
"""
KERNELS = {
    "same": """def same(out: Out[i32, T]):
    grid(T)
    ensures(out, 0, 1)
    store(out, bid(0), full((1,), 0, i32))
""",
    "each": """def each(out: Out[i32, T]):
    grid(T)
    ensures(out, 0, T, distinct=True)
    store(out, bid(0), bid(0))
""",
    "put": """def put(slots: In[i32, T], x: In[f32, T], cache: Out[f32, T]):
    grid(T)
    values(slots, 0, T, distinct=True)
    store(cache, load(slots, bid(0)), load(x, bid(0), shape=1))
""",
    "take": """def take(at: In[i32, T], x: In[f32, T], out: Out[f32, T]):
    grid(T)
    values(at, 0, T)
    store(out, bid(0), load(x, load(at, bid(0)), shape=1))
""",
    "follow": """def follow(given: In[i32, T], out: Out[i32, T]):
    grid(T)
    ensures(out, 0, 1, above=given)
    store(out, bid(0), load(given, bid(0), shape=1))
""",
}


def small_step(folder: Path, writer: str, kind: Kind) -> tuple[StepGraph, MemoryPlan, Callable[[Op], Contract]]:
    """A step that writes to distinct slots, which a kernel computes before that, or at the end for the next step."""
    contracts: dict[str, Contract] = {}
    for name, text in KERNELS.items():
        path = folder / f"{name}.py"
        path.write_text(HEAD + text, encoding="utf-8")
        contracts[name] = kernel_contract(frontend.load_kernel(path, {}, root=folder))
    graph = StepGraph("decode", 4)
    graph.buffer("slots", "i32", (4,), kind, low=0, high=4, distinct=True)
    graph.buffer("x", "f32", (4,), Kind.INPUT)
    graph.buffer("out", "f32", (4,), Kind.OUTPUT)
    make = Op("make", writer, {}, {"out": graph.view("slots")})
    put = Op("put", "put", {}, {"slots": graph.view("slots"), "x": graph.view("x"), "cache": graph.view("out")})
    graph.ops = [put, make] if kind is Kind.INPUT else [make, put]
    return graph, plan_memory(graph), lambda op: contracts[op.kernel]


@pytest.mark.parametrize("kind", [Kind.INPUT, Kind.ACTIVATION])
def test_slots_that_a_kernel_may_write_equal_are_refused(tmp_path: Path, kind: Kind) -> None:
    message = "operation `make`: buffer `slots` holds distinct integers, and `same` does not promise that `out` does"
    with pytest.raises(GraphError, match=message):
        verify(*small_step(tmp_path, "same", kind))
    replay = verify(*small_step(tmp_path, "each", kind))
    assert replay.written_values == ((WrittenValues("slots", (), 0, 4),) if kind is Kind.INPUT else ())


@pytest.mark.parametrize("elements", [1, 2])
def test_part_of_a_buffer_makes_no_distinct_whole(tmp_path: Path, elements: int) -> None:
    graph, memory, contract_of = small_step(tmp_path, "each", Kind.INPUT)
    graph.ops[1] = replace(graph.ops[1], tensors={"out": graph.view("slots", elements, offset=2)})
    with pytest.raises(GraphError, match="buffer `slots` holds distinct integers"):
        verify(graph, memory, contract_of)


OF_ROWS = {
    "rows": """def rows(out: Out[i32, T, 2]):
    grid(T)
    ensures(out, 0, 4, distinct_in_rows=True)
    for j in range(2):
        store(out, (bid(0), j), j)
""",
    "alike": """def alike(out: Out[i32, T, 2]):
    grid(T)
    ensures(out, 0, 4)
    store(out, (bid(0), 0), full((1, 2), 0, i32))
""",
    "all": """def all(out: Out[i32, T, 2]):
    grid(T, 2)
    requires(T == 2)
    ensures(out, 0, T * 2, distinct=True)
    store(out, (bid(0), bid(1)), bid(0) * 2 + bid(1))
""",
    "spread": """def spread(at: In[i32, T, 2], x: InOut[f32, T, 4]):
    grid(T, 2)
    values(at, 0, 4, distinct_in_rows=True)
    store(x, (bid(0), load(at, (bid(0), bid(1)))), 1.0)
""",
    "pairs": """def pairs(at: In[i32, T, 4], x: InOut[f32, T, 4]):
    grid(T, 4)
    values(at, 0, 4, distinct_in_rows=True)
    store(x, (bid(0), load(at, (bid(0), bid(1)))), 1.0)
""",
}


def step_of_rows(
    folder: Path, writer: str, reader: str = "spread", kind: Kind = Kind.ACTIVATION, **facts: bool
) -> tuple[StepGraph, MemoryPlan, Callable[[Op], Contract]]:
    """A step that writes two columns of each of two rows, at numbers that a kernel has computed before."""
    contracts: dict[str, Contract] = {}
    for name, text in OF_ROWS.items():
        path = folder / f"{name}.py"
        path.write_text(HEAD.replace("InOut, ", "").replace("In, ", "In, InOut, ").replace("load,", "load, requires,") + text)
        contracts[name] = kernel_contract(frontend.load_kernel(path, {}, root=folder))
    graph = StepGraph("decode", 2)
    graph.buffer("at", "i32", (2, 2), kind, low=0, high=4, **facts)
    graph.buffer("x", "f32", (2, 4), Kind.CACHE)
    graph.buffer("last", "f32", (2, 4), Kind.CACHE)
    view = graph.view("at") if reader == "spread" else graph.view("at", 1, 4)
    x = graph.view("x") if reader == "spread" else graph.view("x", 1, 4)
    graph.ops = [Op("read", reader, {}, {"at": view, "x": x})]
    if kind is Kind.ACTIVATION:
        graph.ops.insert(0, Op("choose", writer, {}, {"out": graph.view("at")}))
    return graph, plan_memory(graph), lambda op: contracts[op.kernel]


def test_rows_of_different_integers_are_handed_on(tmp_path: Path) -> None:
    """From the kernel that promises them to the kernel that relies on them; a promise of all elements is one of rows."""
    assert verify(*step_of_rows(tmp_path, "rows", distinct_in_rows=True)).written_values == ()
    verify(*step_of_rows(tmp_path, "all", distinct_in_rows=True))
    verify(*step_of_rows(tmp_path, "all", distinct=True))


UNKNOWN_ROWS = "operation `read`: buffer `at` is not known to hold distinct integers in each row of"


@pytest.mark.parametrize(
    ("writer", "reader", "facts", "message"),
    [
        ("alike", "spread", {"distinct_in_rows": True}, "operation `choose`: buffer `at` holds distinct integers in each row "
         "of 2, and `alike` does not promise that `out` does"),
        ("rows", "spread", {}, f"{UNKNOWN_ROWS} 2, as `at` of `spread`"),
        ("alike", "spread", {}, f"{UNKNOWN_ROWS} 2, as `at` of `spread`"),
        ("rows", "spread", {"distinct": True}, "operation `choose`: buffer `at` holds distinct integers, and `rows` does not "
         "promise that `out` does"),
        ("rows", "pairs", {"distinct_in_rows": True}, f"{UNKNOWN_ROWS} 4, as `at` of `pairs`"),
    ],
)  # fmt: skip
def test_rows_that_nobody_promises_are_refused(
    tmp_path: Path, writer: str, reader: str, facts: dict[str, bool], message: str
) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        verify(*step_of_rows(tmp_path, writer, reader, **facts))


def test_rows_that_the_host_writes_are_not_relied_on(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="buffer `at` is not known to hold distinct integers in each row of 2"):
        verify(*step_of_rows(tmp_path, "rows", kind=Kind.INPUT, distinct_in_rows=True))


def test_rows_of_another_length_are_none(tmp_path: Path) -> None:
    """What is one row for a kernel is two of the buffer, and half a row is none."""
    graph, memory, contract_of = step_of_rows(tmp_path, "rows", distinct_in_rows=True)
    graph.buffers["at"] = replace(graph.buffers["at"], shape=(1, 4))
    with pytest.raises(GraphError, match="buffer `at` holds distinct integers in each row of 4, and `rows` does not promise"):
        verify(graph, memory, contract_of)
    graph, memory, contract_of = step_of_rows(tmp_path, "rows", distinct_in_rows=True)
    graph.buffers["at"] = replace(graph.buffers["at"], shape=(3, 2))
    for offset, message in ((0, None), (1, "each row of 2, and `rows`"), (2, None)):
        graph.ops[0] = replace(graph.ops[0], tensors={"out": graph.view("at", 2, 2, offset=offset)})
        graph.ops[1] = replace(graph.ops[1], tensors={**graph.ops[1].tensors, "at": graph.view("at", 2, 2, offset=offset)})
        if message is None:
            verify(graph, plan_memory(graph), contract_of)
        else:
            with pytest.raises(GraphError, match=message):
                verify(graph, plan_memory(graph), contract_of)


@pytest.mark.parametrize("bounds", [{}, {"low": 0, "high": 1}])
def test_an_unbounded_input_is_not_relied_on(tmp_path: Path, bounds: dict[str, int]) -> None:
    """Any kernel may write it after its reader, so the host's value is valid for one step only."""
    contracts: dict[str, Contract] = {}
    for name in ("follow", "same", "take"):
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + KERNELS[name], encoding="utf-8")
        contracts[name] = kernel_contract(frontend.load_kernel(path, {}, root=tmp_path))
    graph = StepGraph("decode", 4)
    graph.buffer("positions", "i32", (4,), Kind.INPUT, low=0, high=4)
    graph.buffer("given", "i32", (4,), Kind.INPUT, **bounds)
    graph.buffer("x", "f32", (4,), Kind.INPUT)
    graph.buffer("out", "f32", (4,), Kind.OUTPUT)
    positions, given = graph.view("positions"), graph.view("given")
    graph.ops = [
        Op("take", "take", {}, {"at": positions, "x": graph.view("x"), "out": graph.view("out")}),
        Op("follow", "follow", {}, {"given": given, "out": positions}),
        Op("same", "same", {}, {"out": given}),
    ]
    if bounds:
        written_values = verify(graph, plan_memory(graph), lambda op: contracts[op.kernel]).written_values
        assert {values.buffer for values in written_values} == {"positions", "given"}
        return
    with pytest.raises(GraphError, match=r"buffer `positions` holds 0 to 3, .* above integers without bounds"):
        verify(graph, plan_memory(graph), lambda op: contracts[op.kernel])


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("output_mode", OUTPUT_MODES)
def test_the_values_that_steps_of_every_model_write(name: str, output_mode: Any) -> None:
    shape = shape_of(name)
    step = model_step(shape, 1000)
    graph = step.graph("decode", output_mode)
    replay = verify(graph, plan_memory(graph), contract)
    assert {buffer.name for buffer in replay.inputs} == {"ids", "positions", "slots", "lengths"}
    assert {values.buffer: (values.above, values.low, values.high) for values in replay.written_values} == {
        "ids": ((), 0, shape.vocab_size), "positions": (("positions",), 1, 2), "slots": (("positions",), 1, 2),
        "lengths": (("positions",), 2, 3),
    }  # fmt: skip
    batch_graph = step.graph("batch", output_mode, tokens=2)
    replay = verify(batch_graph, plan_memory(batch_graph), contract)
    assert {values.above for values in replay.written_values} == {(), ("positions", "batch.going")}
    logits = step.graph("decode", "logits")
    assert verify(logits, plan_memory(logits), contract).written_values == ()


def replayed(*written_values: WrittenValues) -> Replay:
    positions = Buffer("positions", "i32", (2,), Kind.INPUT, low=0, high=4)
    active = Buffer("going", "i32", (2,), Kind.INPUT, low=0, high=2)
    return Replay("batch", (positions, active), written_values)


def test_the_host_counts_what_steps_add() -> None:
    step = replayed(WrittenValues("positions", ("positions", "going"), 0, 1))
    input_values = InputValues()
    input_values.sent({"positions": np.array([2, 0]), "going": [1, 0]})
    input_values.enqueue(step)
    input_values.enqueue(step)
    with pytest.raises(GraphError, match=r"step `batch`: input `positions` holds 0 to 4, and the step takes 0 to 3"):
        input_values.enqueue(step)
    input_values.sent({"positions": [3, 3]})
    input_values.enqueue(step)
    with pytest.raises(GraphError, match="input `positions` holds 3 to 4"):
        input_values.enqueue(step)


def test_the_largest_increment_is_assumed() -> None:
    step = replayed(WrittenValues("positions", ("positions",), 0, 3))
    input_values = InputValues()
    input_values.sent({"positions": [0, 1], "going": [0, 0]})
    input_values.enqueue(step)
    input_values.enqueue(replayed())
    input_values.enqueue(step)
    with pytest.raises(GraphError, match="input `positions` holds 0 to 5"):
        input_values.enqueue(replayed())


def test_inputs_are_set_before_the_first_step() -> None:
    with pytest.raises(GraphError, match="input `positions` was never set"):
        InputValues().enqueue(replayed())


def test_a_step_takes_no_integers_that_may_be_equal_where_it_relies_on_distinct_ones() -> None:
    slots = Buffer("slots", "i32", (2,), Kind.INPUT, low=0, high=9, distinct=True)
    step = Replay("batch", (slots,), (WrittenValues("slots", ("slots",), 0, 3),))
    known = InputValues()
    known.sent({"slots": [2, 5]})
    known.enqueue(step)  # then 2 to 4 and 5 to 7
    known.enqueue(step)
    with pytest.raises(GraphError, match="input `slots` holds 2 to 9"):
        known.enqueue(step)
    known.sent({"slots": [2, 4]})
    known.enqueue(step)
    with pytest.raises(GraphError, match="input `slots` may hold an integer twice"):
        known.enqueue(step)
    known.sent({"slots": [4, 4]})
    with pytest.raises(GraphError, match="input `slots` may hold an integer twice, and the step takes distinct ones"):
        known.enqueue(step)


BOUNDED = Buffer("slots", "i32", (4,), Kind.INPUT, low=1, high=8, distinct=True)


@pytest.mark.parametrize("values", [[1, 2, 3, 7], [7, 1], [5], 5, np.array([[2], [1]]), []])
def test_the_host_may_write_what_is_within_the_bounds(values: Any) -> None:
    check_values(BOUNDED, values)
    check_values(Buffer("free", "i32", (4,), Kind.INPUT), [*np.ravel(values), -1, -1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1], "would hold 0 to 1, and holds integers from 1 below 8"),
        ([8], "would hold 8, and holds"), (np.int64(1 << 40), "would hold 1099511627776"), ([1, 2, 1], "an integer twice"),
    ],
)  # fmt: skip
def test_the_host_writes_nothing_that_the_proofs_of_a_step_exclude(values: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_values(BOUNDED, values)


def test_every_backend_checks_what_it_writes(backend: InterpreterBackend) -> None:
    with pytest.raises(GraphError, match="buffer `top_k`"):
        backend.own.buffers.send(Kind.SETTING, {"top_k": 1 << 20})
    memory = DeviceMemory(FakeDriver(), 1)  # pyright: ignore[reportArgumentType]
    block = InputBlock(memory, [BOUNDED])
    block.send(slots=[3, 2])
    for values in ([0], [9], [2, 2]):
        with pytest.raises(GraphError, match="buffer `slots`"):
            block.send(slots=values)
    with pytest.raises(GraphError, match="buffer `slots`"):
        block.send_to({"slots": replace(BOUNDED, high=3)}, {"slots": [3]})
    steps = backend.decode_steps(2)
    with pytest.raises(GraphError, match=r"buffer `batch\.going`"):
        steps.buffers.send(Kind.INPUT, {"batch.going": np.array([1, 2])})
    steps.close()


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    loaded = InterpreterBackend()
    loaded.load(config, WeightPlan.for_model(config, folder, "bf16"), 128)
    yield loaded
    loaded.close()


def test_no_step_is_enqueued_past_the_last_slot(
    backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Without the checks of remaining slots that users see."""
    ran: list[object] = []
    monkeypatch.setattr(backend, "run_step", ran.append)
    backend.own.send([Sequence(126, token=1)])
    for _ in range(2):
        backend.own.run("argmax", NO_VARIANT)
    with pytest.raises(GraphError, match="input `positions` holds 128, and the step takes 0 to 127"):
        backend.own.run("argmax", NO_VARIANT)
    assert len(ran) == 2
    with Batch(backend, 2) as batch:
        steps = batch._steps  # pyright: ignore[reportPrivateUsage]
        steps.send([Sequence(127), None])
        steps.run("argmax", NO_VARIANT)
        with pytest.raises(GraphError, match="input `positions` holds 0 to 128, and the step takes 0 to 127"):
            steps.run("argmax", NO_VARIANT)
    assert len(ran) == 3
