"""Modes whose caches are in pages: a text says that they have the statements of another mode, and where they differ."""

from __future__ import annotations

import pytest

from tests.bundle.test_models import STEP
from tilec.step.expressions import StepError
from tilec.step.graph import Kind
from tilec.step.reader import decode_declaration, read_declaration
from tilec.step.requests import requests
from tilec.step.step import BUCKETS, Step
from tilec.step.tuning import Tuning

TEXT = """
few = 4
variants = {"short": at_most(tokens, few), "full": at_most(filled, few)}
buffers = {
    "x": input(f32, [tokens]), "serve.y": input(f32, [tokens]), "batch.z": input(f32, [tokens]),
    "pages.w": input(f32, [tokens]), "k_pages": pool(dtype, [pages, 64]), "out": output(f32, [tokens]),
}

def decode():
    last = copy(x=x, out=out)

def prefill():
    if short:
        first = brief(x=x, out=out)
    else:
        first = long(x=x, out=out)
    if mode == "serve":
        second = rows(B=16 if tokens <= 16 else 32, y=serve.y, z=batch.z, w=pages.w, k_pages=k_pages, out=out)
    elif mode == "chunk":
        second = chunk(B=8 if mode == "prefill" else 9, w=pages.w, k_pages=k_pages, past=past, out=out)

chunk = prefill
serve = prefill
"""


def step(pages: int = 3) -> Step:
    declaration = read_declaration(TEXT)
    return Step(decode_declaration(declaration.syntax), {}, tied=False, dtype="bf16", max_seq_len=64, pages=pages)


def test_a_mode_has_the_statements_of_another_where_they_do_not_ask_for_it() -> None:
    def kernels(mode: str, tokens: int) -> list[str]:
        return [op.kernel for op in step().graph(mode, tokens=tokens).ops]  # type: ignore[arg-type]

    assert kernels("prefill", 4) == ["brief"]
    assert kernels("prefill", 5) == ["long"]
    assert {tuple(kernels("serve", tokens)) for tokens in (1, 4, 5, 256)} == {("brief", "rows")}
    assert {tuple(kernels("chunk", tokens)) for tokens in (1, 4, 5, 256)} == {("long", "chunk")}


def test_pools_have_the_pages_that_a_step_is_given_and_buffers_their_roles() -> None:
    graph = step().graph("serve", tokens=20)
    assert graph.buffers["k_pages"].kind is Kind.POOL
    assert graph.buffers["k_pages"].shape == (3, 64)
    assert step().with_pages(7).graph("chunk", tokens=2).buffers["k_pages"].shape == (7, 64)
    assert [graph.role(name) for name in ("serve.y", "batch.z", "pages.w", "x")] == ["y", "z", "w", "x"]
    assert step().graph("chunk", tokens=2).role("pages.w") == "w"
    assert step().graph("prefill", tokens=2).role("pages.w") == "pages.w"
    with pytest.raises(StepError, match="shape"):
        step(0).graph("serve", tokens=20)


def test_every_bucket_and_every_length_of_a_chunk_is_requested() -> None:
    found = {(one.op, one.kernel, *one.constants.items()) for one in requests(step(), Tuning())}
    assert found == {
        ("decode_last", "copy"), ("prefill_first", "brief"), ("prefill_first", "long"), ("chunk_first", "long"),
        ("serve_first", "brief"), ("chunk_second", "chunk", ("B", 9)), ("serve_second", "rows", ("B", 16)),
        ("serve_second", "rows", ("B", 32)),
    }  # fmt: skip
    assert max(BUCKETS) == 256


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("serve = prefill", "serve = other", "there is no number `other`"),
        ("serve = prefill", "serve = prefill\nserve = decode", "`serve` is there twice"),
        ("few = 4", "mode = 4", "`mode` is given"),
        ("few = 4", "pages = 4", "`pages` is given"),
    ],
)
def test_wrong_texts_are_refused(old: str, new: str, match: str) -> None:
    with pytest.raises(StepError, match=match):
        Step(read_declaration(TEXT.replace(old, new)), {}, tied=False, dtype="bf16", max_seq_len=64)


def test_a_step_without_pages_has_no_such_modes() -> None:
    assert not read_declaration(STEP).modes.keys() & {"chunk", "serve"}
