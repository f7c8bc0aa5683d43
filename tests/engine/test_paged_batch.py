"""Rows over pages on the interpreter: bits depend neither on other rows, nor on row and bucket, nor on a prompt's chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from paged_logits import logits_of

from engine.backends.host_buffers import HostBuffers
from engine.backends.host_pages import HostPages
from engine.backends.interpreter import InterpreterBackend
from engine.backends.paged_steps import PagedSteps, require_pages
from engine.backends.prompts import padded_room
from engine.checkpoint.weights import WeightPlan
from engine.constraint import ConstrainedMarks
from engine.errors import ModelError, UsageError
from engine.graph.integers import GraphError
from engine.models.steps import model_step
from engine.paged_batch import PagedBatch
from engine.paged_prompts import Piece
from engine.sampling import BARRED, SamplingParams, logprobs_of, sample_logits, token_marks
from engine.sequence import NO_TOKEN
from engine.tools.tiny import write_tiny_model

MAX_SEQ_LEN = 320
SAMPLED = SamplingParams(0.9, 20, 0.9, seed=7)


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, 400, length)]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    loaded = InterpreterBackend()
    loaded.load(config, WeightPlan.for_model(config, folder, "bf16"), MAX_SEQ_LEN)
    yield loaded
    loaded.close()


def generated(batch: PagedBatch, row: int, pages: Sequence[int], ids: Sequence[int], count: int) -> list[int]:
    """The tokens of a sequence, of which only the batch's steps are seen."""
    tokens = [batch.join(row, pages, 0, ids, None)]
    while len(tokens) < count:
        tokens.append(batch.step()[row])
    return tokens


def test_llama_serves_over_pages(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "model", family="llama")
    llama = InterpreterBackend()
    llama.load(config, WeightPlan.for_model(config, tmp_path / "model", "bf16"), 128)
    sequence = llama.begin()
    llama.prefill(sequence, prompt(70))
    first = llama.token()
    expected = [first, *llama.stream_tokens(sequence, first, 3)]
    with PagedBatch(llama, 2) as batch:
        assert generated(batch, 0, [2, 1], prompt(70), 4) == expected
    llama.close()


def test_steps_of_all_formats_serve_and_one_without_the_mode_is_refused(backend: InterpreterBackend) -> None:
    assert PagedBatch.serves(backend)
    declaration = backend.step.declaration
    for _, one in ((None, declaration), *declaration.formats.values(), *declaration.caches.values()):
        assert one.modes.keys() >= {"chunk", "serve"}
    alone = replace(declaration, modes={name: mode for name, mode in declaration.modes.items() if name != "serve"})
    require_pages(model_step(backend.config, 256, declaration=declaration))
    with pytest.raises(UsageError, match="no cache in pages"):
        require_pages(model_step(backend.config, 256, declaration=alone))


@pytest.mark.parametrize("length", [3, 64, 70])
def test_tokens_are_those_of_the_engine_without_pages(backend: InterpreterBackend, length: int) -> None:
    sequence = backend.begin()
    backend.prefill(sequence, prompt(length))
    first = backend.token()
    expected = [first, *backend.stream_tokens(sequence, first, 3)]
    with PagedBatch(backend, 2) as batch:
        assert generated(batch, 0, [5, 3], prompt(length), 4) == expected


@pytest.fixture(scope="module")
def alone(backend: InterpreterBackend) -> NDArray[np.float32]:
    with PagedBatch(backend, 2) as batch:
        return logits_of(batch, 0, [1, 2, 3, 4, 5], [prompt(270)])


@pytest.mark.parametrize("cut", [(64, 206), (1, 269), (255, 14, 1), (100, 100, 70)])
def test_logits_do_not_depend_on_how_a_prompt_is_divided(
    backend: InterpreterBackend, alone: NDArray[np.float32], cut: tuple[int, ...]
) -> None:
    ids, ends = prompt(270), np.cumsum(cut)
    with PagedBatch(backend, 2) as batch:
        chunks = [ids[end - size : end] for end, size in zip(ends, cut, strict=True)]
        assert (logits_of(batch, 1, [9, 7, 8, 1, 2], chunks) == alone).all()


def test_tokens_of_nobody_after_a_chunk_change_no_bit(
    backend: InterpreterBackend, alone: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU computes chunks with whole tiles of tokens."""
    ids, more = prompt(270), list[int]()

    def padded(_: HostPages, tokens: int, filled: int) -> tuple[int, int]:
        found = padded_room(tokens, filled, 320, 768)
        more.append(found[0] - tokens)
        return found

    monkeypatch.setattr(HostPages, "padded", padded)
    with PagedBatch(backend, 2) as batch:
        assert (logits_of(batch, 0, [6, 5, 9, 3, 4], [ids[:70], ids[70:85], ids[85:]]) == alone).all()
    assert more == [58, 1, 7]


@pytest.mark.parametrize(("rows", "row"), [(4, 2), (16, 9), pytest.param(64, 33, marks=pytest.mark.campaign)])
def test_logits_depend_neither_on_other_rows_nor_on_row_and_bucket(
    backend: InterpreterBackend, alone: NDArray[np.float32], rows: int, row: int
) -> None:
    with PagedBatch(backend, rows) as batch:
        batch.join(0, [10], 0, prompt(17), None)
        batch.join(row - 1, [11, 12, 13], 0, prompt(130), SAMPLED)
        batch.join(rows - 1, [14], 0, prompt(2), None)
        found = logits_of(batch, row, [20, 6, 7, 9, 8], [prompt(270)])
        assert (found == alone).all()


def test_a_prefix_in_pages_of_another_prompt_gives_the_same_bits(
    backend: InterpreterBackend, alone: NDArray[np.float32]
) -> None:
    ids = prompt(270)
    with PagedBatch(backend, 4) as batch:
        batch.join(1, [4, 9, 6, 5], 0, [*ids[:150], 7, 7, 7], None)  # two full pages of the prompt, and more
        batch.step()
        batch.join(3, [4, 9, 11, 12, 13], 128, ids[128:], None)  # while the first one is served
        batch.step(ahead=False)
        assert (batch.step_logits()[3] == alone).all()
        batch.remove(1)
        batch.remove(3)
        batch.join(2, [4, 9, 1, 2, 3], 128, ids[128:], None)  # and after it ended
        batch.step(ahead=False)
        assert (batch.step_logits()[2] == alone).all()


def test_sampled_and_greedy_rows_draw_as_alone(backend: InterpreterBackend) -> None:
    def drawn(rows: int, row: int, sampling: SamplingParams | None) -> list[int]:
        with PagedBatch(backend, rows) as batch:
            for other in range(row):
                batch.join(other, [40 + other], 0, prompt(5 + other), SamplingParams(1.3, 30, 1.0, seed=other))
            tokens = [batch.join(row, [7, 8], 0, prompt(60), sampling)]
            while len(tokens) < 6:
                tokens += [token for key, token in batch.step().items() if key == row]
            return tokens

    assert drawn(2, 0, SAMPLED) == drawn(8, 3, SAMPLED)
    assert drawn(2, 0, None) == drawn(8, 3, None)


def test_tokens_of_an_enqueued_step_are_read_while_a_prompt_is_computed(
    backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of single steps, and so is what the prompt chooses, which is waited for after them; the row may end
    there."""
    order, chosen = list[str](), PagedSteps.chosen

    def noted(steps: PagedSteps) -> list[int]:
        order.append("chosen")
        return chosen(steps)

    monkeypatch.setattr(PagedSteps, "chosen", noted)
    with PagedBatch(backend, 4) as batch:
        expected = generated(batch, 0, [1], prompt(20), 4)
        batch.remove(0)
        other = batch.join(1, [3], 0, prompt(30), None)
        batch.remove(1)
        tokens = [batch.join(0, [1], 0, prompt(20), None)]

        order.clear()

        def read() -> None:
            order.append("read")
            tokens.append(batch.enqueued()[0])
            if len(tokens) == 4:
                batch.remove(0)

        for _ in range(3):
            batch.enqueue()
            batch.enqueue()  # one is enqueued
            assert batch.compute([Piece([3], 0, prompt(30), 1)], read) == [other] and not batch.ahead
            batch.remove(1)
        assert tokens == expected and order == ["read", "chosen"] * 3
        with pytest.raises(UsageError, match="no step is enqueued"):
            batch.enqueued()
        with pytest.raises(UsageError, match="no sequence"):
            batch.enqueue()
        (refused,) = batch.compute([Piece([3], 0, [], 1)], lambda: pytest.fail("nothing was enqueued"))
        assert isinstance(refused, UsageError)


def test_penalties_and_probabilities_are_those_of_the_host(backend: InterpreterBackend) -> None:
    """The reference draws the same token from the logits of a row without parameters, which has the same tokens."""
    sampling = SamplingParams(
        0.9, 0, 0.95, seed=3, repetition_penalty=1.3, frequency_penalty=0.5, logprobs=2, logit_bias=((9, 2.0),)
    )
    ids, drawn = prompt(60), list[int]()
    with PagedBatch(backend, 2) as batch:
        with pytest.raises(UsageError, match="penalties are given 20"):
            batch.join(1, [1, 2], 40, ids[40:], sampling)
        batch.extend([1, 2], 0, ids[:40])
        drawn.append(batch.join(1, [1, 2], 40, ids[40:], sampling, prompt=ids))
        probabilities = [batch.logprobs[1]]
        for _ in range(3):
            drawn.append(batch.step()[1])
            probabilities.append(batch.logprobs[1])
        with pytest.raises(UsageError, match="penalties or bars"):
            batch.step_logits()
    with PagedBatch(backend, 2) as batch:
        for count, token in enumerate(drawn[1:], 1):
            batch.join(0, [1, 2], 0, ids, None)
            internals: Any = batch
            for known in drawn[: count - 1]:
                internals._decoding.members[0].token = known
                internals._decoding.members_changed = True
                batch.step()
            internals._decoding.members[0].token = drawn[count - 1]
            internals._decoding.members_changed = True
            logits = batch.step_logits()[0]
            batch.remove(0)
            marks = token_marks(sampling, ids, drawn[:count], logits.size)
            assert sample_logits(logits, sampling, count, marks) == token
            expected = logprobs_of(logits, token, 2)
            assert probabilities[count].tokens == expected.tokens
            assert probabilities[count].own == pytest.approx(expected.own, abs=1e-3)


def test_guesses_give_the_tokens_and_bits_of_single_steps(backend: InterpreterBackend) -> None:
    """Right, wrong and partly right guesses, over the end of a page, next to a sampled row with guesses of its own."""
    varied = SamplingParams(2.0, 0, 1.0, seed=5)
    with PagedBatch(backend, 8) as batch:
        expected = generated(batch, 0, [1, 2], prompt(60), 10)
        logits = batch.step_logits()[0]
        drawn = [batch.join(3, [5], 0, prompt(9), varied)]
        while len(drawn) < 4:
            drawn.append(batch.step()[3])
    with PagedBatch(backend, 8) as batch:
        assert batch.join(0, [1, 2], 0, prompt(60), None) == expected[0]
        assert batch.join(3, [5], 0, prompt(9), varied) == drawn[0]
        wrong = (expected[3] + 1) % 400
        found = batch.verify({0: [expected[1], expected[2], wrong, expected[4]], 3: [drawn[1]]}, [1, 2, 4, 5, 6])
        assert found == {0: expected[1:4], 3: drawn[1:3]}
        assert batch.length(0) == 63 and batch.length(3) == 11
        assert batch.verify({0: [wrong]}, [1]) == {0: expected[4:5], 3: drawn[3:4]}
        batch.remove(3)
        assert batch.verify({0: expected[5:8]}, [7, 1, 2]) == {0: expected[5:9]}
        assert batch.step(ahead=False) == {0: expected[9]}
        batch.join(2, [6], 0, prompt(5), None)  # in a row that was lent
        assert (batch.step_logits()[0] == logits).all()
        for guesses, spare, what in (
            ({0: [1]}, [], "1 guesses, and 0 rows"), ({0: [1]}, [2], "lent to row 2"), ({1: [1]}, [3], "no sequence"),
            ({0: [1] * 70}, range(3, 99), "no room for 70"), ({0: [1 << 20]}, [3], "not in the vocabulary"),
        ):  # fmt: skip
            with pytest.raises((UsageError, GraphError), match=what):
                batch.verify(guesses, spare)
        batch.join(1, [7], 0, prompt(5), SamplingParams(top_k=1, frequency_penalty=1.0))
        with pytest.raises(UsageError, match="counts its tokens"):
            batch.verify({1: [3]}, [4])


class Alternates:
    """A constraint: even tokens, then odd ones, in turn; at most `most`."""

    def __init__(self, vocabulary: int, most: int = 99) -> None:
        self._tokens, self._most, self.count = np.arange(vocabulary), most, 0

    @property
    def ended(self) -> bool:
        return self.count == self._most

    def allowed(self) -> NDArray[np.uint8]:
        return (self._tokens % 2 == self.count % 2).astype(np.uint8)

    def accept(self, token: int) -> None:
        assert token % 2 == self.count % 2
        self.count += 1


class Ahead(HostBuffers):
    """Buffers whose tokens are those of the step that was fetched, as on a GPU."""

    def fetch(self, number: int, also: Sequence[str] = ()) -> None:
        super().fetch(number, also)
        vars(self).setdefault("kept", {})[number] = super().fetched(number).copy()

    def fetched(self, number: int) -> NDArray[np.int32]:
        return vars(self)["kept"].pop(number)


def test_a_constraint_is_kept_and_other_rows_run_ahead(
    backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    vocabulary = backend.config.vocab_size
    greedy = SamplingParams(top_k=1, masked=True)
    penalised = SamplingParams(0.8, 0, 0.9, seed=4, repetition_penalty=1.4, frequency_penalty=0.3, masked=True)

    def tokens(works: dict[int, SamplingParams | None], steps: int) -> tuple[dict[int, list[int]], list[set[int]]]:
        found, seen = dict[int, list[int]](), list[set[int]]()
        with PagedBatch(backend, 4) as batch:
            for row, sampling in works.items():
                constraint = Alternates(vocabulary) if sampling is not None and sampling.masked else None
                found[row] = [batch.join(row, [1 + row], 0, prompt(20 + row), sampling, constraint=constraint)]
            for _ in range(steps):
                seen.append(set[int]())
                for row, token in batch.step().items():
                    found[row].append(token)
                    seen[-1].add(row)
        return found, seen

    works: dict[int, SamplingParams | None] = {0: greedy, 1: penalised, 2: None}
    alone = {row: tokens({row: sampling}, 3)[0][row] for row, sampling in works.items()}
    assert all(token % 2 == at % 2 for row in (0, 1) for at, token in enumerate(alone[row]))
    monkeypatch.setattr("engine.backends.interpreter.HostBuffers", Ahead)
    monkeypatch.setattr(InterpreterBackend, "ahead", 1)
    together, seen = tokens(works, 5)
    assert seen == [{0, 1, 2}, {2}, {0, 1, 2}, {2}, {0, 1, 2}]
    assert together[2][:4] == alone[2] and together[0] == alone[0] and together[1] == alone[1]


def test_marks_under_a_constraint_count_and_bar() -> None:
    params = SamplingParams(1.0, barred=(6,), min_tokens=2, frequency_penalty=1.0, logit_bias=((3, 1.0),), masked=True)
    marks, drawn = ConstrainedMarks(Alternates(40), params, [1, 2, 2], 40), list[int]()
    for token in (4, 7, 4):
        bars = np.where(np.arange(40) % 2 == len(drawn) % 2, 0, BARRED)
        assert (marks.next() == token_marks(params, [1, 2, 2], drawn, 40) | bars).all()
        marks.accept(token)
        drawn.append(token)


def test_a_constraint_that_ended_and_wrong_constraints_are_refused(backend: InterpreterBackend) -> None:
    greedy = SamplingParams(top_k=1, masked=True)
    with PagedBatch(backend, 2) as batch:
        for sampling, constraint in ((greedy, None), (None, Alternates(408))):
            with pytest.raises(UsageError, match="masked sampling"):
                batch.join(0, [1], 0, [1, 2], sampling, constraint=constraint)
        batch.join(0, [1], 0, [1, 2], greedy, constraint=Alternates(408, 1))
        with pytest.raises(UsageError, match="no token can follow in row 0"):
            batch.step()
        batch.remove(0)
        batch.join(0, [1], 0, [1, 2], None)  # nothing is left of the constraint
        assert batch.step().keys() == {0}


def test_rows_are_parked_removed_and_taken_again(backend: InterpreterBackend) -> None:
    with PagedBatch(backend, 4, pages=8) as batch:
        assert (batch.pages, batch.parking, batch.page_tokens, batch.longest, batch.rows) == (8, 1, 64, MAX_SEQ_LEN, 4)
        expected = generated(batch, 0, [1], prompt(20), 4)
        batch.remove(0)
        batch.join(2, [2], 0, prompt(9), None)
        assert batch.step().keys() == {2}
        tokens = [batch.join(1, [1], 0, prompt(20), None)]  # in the page of the first
        for _ in range(3):
            tokens.append(batch.step()[1])
        assert tokens == expected
        batch.remove(2)
        assert batch.step().keys() == {1}


def test_a_row_that_fills_its_pages_is_refused_and_the_others_continue(backend: InterpreterBackend) -> None:
    with PagedBatch(backend, 2) as batch:
        batch.join(0, [1], 0, prompt(63), None)
        batch.join(1, [2, 3], 0, prompt(63), None)
        assert batch.step().keys() == {0, 1}
        with pytest.raises(UsageError, match="row 0 fills the 64 tokens of its pages"):
            batch.step()
        batch.remove(0)
        assert batch.step().keys() == {1}


def test_wrong_use_is_refused(backend: InterpreterBackend) -> None:
    for rows in (0, 257):
        with pytest.raises(UsageError, match=f"a batch has 1 to 256 rows, not {rows}"):
            PagedBatch(backend, rows)
    with PagedBatch(backend, 2) as batch:
        with pytest.raises(UsageError, match="no sequence"):
            batch.step()
        with pytest.raises(UsageError, match="row 1 of the batch has no sequence"):
            batch.remove(1)
        with pytest.raises(UsageError, match="the prompt is empty"):
            batch.extend([1], 0, [])
        with pytest.raises(UsageError, match="tokens 60 to 64 do not fit 1 pages"):
            batch.extend([1], 60, [1] * 5)
        with pytest.raises(UsageError, match="token 100000 is not in the vocabulary"):
            batch.extend([1], 0, [1, 100000])
        with pytest.raises(GraphError, match="lacks tokens of the first 4"):
            batch.extend([1], 4, [1])
        batch.join(0, [1], 0, [1, 2], None)
        with pytest.raises(UsageError, match="row 0 of the batch is not free"):
            batch.join(0, [2], 0, [1], None)
        with pytest.raises(GraphError, match="page 1, which a row has too"):
            batch.extend([1], 0, [1])


def test_logits_that_are_not_finite_choose_no_token_and_other_rows_go_on(backend: InterpreterBackend) -> None:
    internals: Any = backend
    kept = internals._buffers["model.embed_tokens.weight"]
    internals._buffers["model.embed_tokens.weight"] = table = kept.copy()
    with PagedBatch(backend, 2) as batch:
        expected = generated(batch, 1, [2], prompt(20), 4)
        batch.remove(1)
        batch.join(0, [1], 0, [1, 2], None)
        tokens = [batch.join(1, [2], 0, prompt(20), None)]
        try:
            table[407] = np.nan
            batch._decoding.members[0].token = 407  # pyright: ignore[reportPrivateUsage]
            for token in (NO_TOKEN, None, None):  # the token after it is that of any id
                step = batch.step()
                assert token is None or step[0] == token
                tokens.append(step[1])
            batch.remove(0)
            with pytest.raises(ModelError, match="the logits are not finite"):
                batch.join(0, [1], 0, [407], None)
        finally:
            internals._buffers["model.embed_tokens.weight"] = kept
    assert tokens == expected
