"""What load generators send and how they read the response: bodies as those of `vllm bench serve` (vllm/benchmarks/lib in its
repository) and of GuideLLM 0.8. They take the first chunk with a choice for the first token, and count tokens by the usage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asking import ask, chat, finished
from in_process import Received, Server, says, server
from virtual_time import virtual_time

from engine.serving.asgi import PING, Pings

USAGE = {"include_usage": True}
EACH = {"include_usage": True, "continuous_usage_stats": True}
PARTS = [{"role": "user", "content": [{"type": "text", "text": "why is the sky blue"}]}]
VLLM_TEXT: dict[str, Any] = {
    "model": "talker", "prompt": "why is the sky blue", "repetition_penalty": 1.0, "max_tokens": 8, "logprobs": None,
    "stream": True, "stream_options": USAGE, "ignore_eos": True, "temperature": 0.0,
}  # fmt: skip
VLLM_CHAT: dict[str, Any] = {
    "model": "talker", "messages": PARTS, "max_completion_tokens": 8, "stream": True, "stream_options": USAGE,
    "ignore_eos": True, "temperature": 0.0, "top_p": 0.9, "top_k": 10, "min_p": 0.1, "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
}  # fmt: skip
GUIDELLM_TEXT: dict[str, Any] = {
    "model": "talker", "prompt": "why is the sky blue", "max_tokens": 8, "stop": None, "ignore_eos": True, "stream": True,
    "stream_options": EACH,
}  # fmt: skip
GUIDELLM_CHAT: dict[str, Any] = {
    "model": "talker", "messages": PARTS, "max_completion_tokens": 8, "stop": None, "ignore_eos": True, "stream": True,
    "stream_options": EACH,
}  # fmt: skip
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES = {
    "vllm text": (TEXT, VLLM_TEXT), "vllm chat": (CHAT, VLLM_CHAT), "guidellm text": (TEXT, GUIDELLM_TEXT),
    "guidellm chat": (CHAT, GUIDELLM_CHAT),
}  # fmt: skip
LONG = "the sky is blue because light of short waves is scattered more"


@pytest.mark.parametrize("name", BODIES)
def test_a_load_generator_gets_the_tokens_that_it_asked_for(talker: Path, name: str) -> None:
    one, (path, body) = server(talker, says(talker, LONG)), BODIES[name]
    found = ask(one, path, body, headers={"x-request-id": "bench-0"})
    *chunks, last = found.events
    [work] = one.client.submitted
    assert found.status == 200 and work.stop_tokens == [] and work.max_tokens == 8
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8
    assert last["usage"]["prompt_tokens"] == len(work.ids)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    text = "".join(choice["text"] if path == TEXT else choice["delta"].get("content", "") for choice in choices)
    assert text and LONG.startswith(text)


def test_prompts_of_tokens_and_probabilities_as_vllm_sends_them(talker: Path) -> None:
    one = server(talker, says(talker, LONG))
    found = ask(one, TEXT, VLLM_TEXT | {"prompt": [5, 6, 7], "logprobs": 5})
    [work] = one.client.submitted
    assert found.status == 200 and work.ids == [5, 6, 7] and work.sampling is not None and work.sampling.logprobs == 5


def test_the_first_model_and_the_metrics_are_where_vllm_looks_for_them(speaker: Server) -> None:
    card = ask(speaker, "/v1/models").json["data"][0]
    assert (card["id"], card["root"]) == ("talker", "talker"), "no path of the server's machine"
    text = ask(speaker, "/metrics").pieces[0].decode()
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f"vllm:spec_decode_{name}_total" in text


async def one_by_one(one: Server, path: str, body: Any, tokens: Sequence[int]) -> tuple[Received, list[int]]:
    """The response to a request whose tokens come one after the other, each after all was sent that the one before brought,
    and the numbers of pieces that had been sent before each."""
    pieces, counts, earlier = list[bytes](), list[int](), len(one.client.submitted)

    async def settled() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    asking = asyncio.ensure_future(one.ask(path, body, each=pieces.append))
    while len(one.client.submitted) == earlier:
        await asyncio.sleep(0)
    number = one.client.submitted[-1].number
    for count, token in enumerate(tokens, 1):
        await settled()
        counts.append(len(pieces))
        one.client.report({number: token}, {number: "length"} if count == len(tokens) else {})
    return await asking, counts


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_no_chunk_comes_before_the_first_token(talker: Path, path: str) -> None:
    """Its arrival is what is measured as the time to the first token."""
    one, body = server(talker, lambda _: None), BODIES["vllm text" if path == TEXT else "vllm chat"][1]
    found, counts = finished(one_by_one(one, path, body, one.model.text.encode(LONG)[:3]))
    assert counts[0] == 0 < counts[1] < counts[2]
    if path == CHAT:
        assert found.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_the_usage_so_far_is_in_every_chunk(talker: Path, path: str) -> None:
    """Tokens that are no text yet are counted when they come: bytes of one character."""
    one, body = server(talker, lambda _: None), BODIES["guidellm text" if path == TEXT else "guidellm chat"][1]
    tokens = one.model.text.encode("a\N{SNOWMAN}b")
    found, _ = finished(one_by_one(one, path, body, tokens))
    *chunks, last = found.events
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and {*counts} == {*range(1, len(tokens) + 1)} and len(tokens) > 3
    assert {chunk["usage"]["prompt_tokens"] for chunk in [*chunks, last]} == {len(one.client.submitted[0].ids)}
    choices = [chunk["choices"][0] for chunk in chunks]
    texts = [choice["text"] if path == TEXT else choice["delta"].get("content", "") for choice in choices]
    assert "".join(texts) == "a\N{SNOWMAN}b" and "" in texts[2:-1]
    again, _ = finished(one_by_one(one, path, body | {"stream_options": USAGE}, tokens))
    assert all("usage" not in chunk for chunk in again.events[:-1]) and again.events[-1]["usage"] == last["usage"]


def test_text_that_comes_together_is_one_chunk(talker: Path) -> None:
    """As it does where a client reads slowly, or the server is busy."""
    one = server(talker, says(talker, LONG))
    *chunks, _ = ask(one, CHAT, VLLM_CHAT).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [*deltas[0]] == ["role", "content"] and LONG.startswith(deltas[1]["content"]) and deltas[2:] == [{}]


def test_a_usage_in_every_chunk_needs_one_at_the_end(speaker: Server) -> None:
    found = chat(speaker, stream=True, stream_options={"continuous_usage_stats": True})
    assert (found.status, found.error["param"]) == (400, "stream_options")


def test_a_comment_comes_only_when_nothing_else_did() -> None:
    """In time that sleeping alone moves."""
    sent = list[tuple[float, bytes]]()

    async def run() -> None:
        clock = asyncio.get_running_loop().time

        async def send(message: Any) -> None:
            sent.append((clock(), message["body"]))

        async with Pings(send, 15.0) as body:
            for at in (0.0, 10.0, 24.0):
                await asyncio.sleep(at - clock())
                await body.put(b"x")
            await asyncio.sleep(55.5 - clock())
        await asyncio.sleep(100)

    virtual_time(run())
    assert sent == [(0.0, b"x"), (10.0, b"x"), (24.0, b"x"), (39.0, PING), (54.0, PING)]


def test_a_body_is_read_without_evaluating_annotations(speaker: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are texts, and evaluating those of a request takes milliseconds, in which no stream gets a token."""

    def fields(_: object) -> Any:
        raise AssertionError("annotations were evaluated")

    monkeypatch.setattr(msgspec.structs, "fields", fields)
    bodies = {**BODIES, "responses": ("/v1/responses", {"input": "why"})}
    assert [ask(speaker, path, body).status for path, body in bodies.values()] == [200] * 5
