"""Fields of requests without sockets: how tokens are chosen, forms, what is refused by its name, what is no request."""

from __future__ import annotations

from typing import Any

import pytest
from asking import ask, chat
from in_process import Server

from engine.sampling import SamplingParams
from engine.serving.openai_types import MOST_ALLOWED, MOST_BIASES, MOST_CHOICES
from engine.serving.protocol import Grammar


def test_how_tokens_are_chosen(speaker: Server) -> None:
    def sampling(**fields: Any) -> Any:
        assert chat(speaker, **fields).status == 200
        return [work.sampling for work in speaker.client.submitted[-fields.get("n", 1) :]]

    assert sampling(temperature=0, top_p=0.5) == [None]
    assert sampling(temperature=0.5, seed=7, n=2) == [SamplingParams(0.5, 20, 0.9, seed) for seed in (7, 8)]
    assert sampling(temperature=1, seed=-1, top_k=64, top_p=1) == [SamplingParams(1.0, 64, 1.0, (1 << 64) - 1)]
    (first,), (second,) = sampling(temperature=1), sampling(temperature=1)
    assert first.seed != second.seed
    fixed = {"temperature": 1, "seed": 3, "top_p": 1}
    assert sampling(**fixed, top_k=-1) == sampling(**fixed, top_k=0) == [SamplingParams(1.0, 0, 1.0, 3)]
    assert sampling(**fixed, top_k=1000, min_p=0.1) == [SamplingParams(1.0, 1000, 1.0, 3, min_p=0.1)]
    penalties = {"frequency_penalty": 1.0, "presence_penalty": -0.5, "repetition_penalty": 1.25}
    assert sampling(temperature=0, min_p=0.5, **penalties) == [SamplingParams(top_k=1, **penalties)]
    changed = sampling(temperature=0, logit_bias={"5": -100, "7": 1.5}, allowed_token_ids=[7, 5, 5], logprobs=True)
    assert changed == [SamplingParams(top_k=1, logit_bias=((5, -100.0), (7, 1.5)), allowed=(5, 7), logprobs=0)]
    (first,) = sampling(temperature=0, min_tokens=2, stop_token_ids=[4])
    assert first == SamplingParams(top_k=1, min_tokens=2, barred=tuple(sorted({4, *speaker.model.generation.eos_token_id})))
    assert sampling(temperature=0, min_tokens=2, stop_token_ids=[4], ignore_eos=True)[0].barred == (4,)
    assert chat(speaker, min_tokens=1, stop_token_ids=[4], allowed_token_ids=[4]).error["param"] == "allowed_token_ids"


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("guided_json", {"type": "nonsense"}, "invalid_value"),
        ("response_format", {"type": "json_schema"}, "invalid_value"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}, "invalid_value"),
        ("structured_outputs", {"regex": "("}, "invalid_value"),
        ("bad_words", ["sky"], "unsupported_parameter"),
        ("prompt_logprobs", 1, "unsupported_parameter"),
        ("logprobs", 3, "invalid_value"),
        ("top_logprobs", 3, "invalid_value"),
        ("top_logprobs", 21, "invalid_value"),
        ("logit_bias", {"five": 1}, "invalid_value"),
        ("logit_bias", {"5": 101}, "invalid_value"),
        ("logit_bias", {"5": -100, "05": 100}, "invalid_value"),
        ("logit_bias", {"-0": 1}, "invalid_value"),
        ("stream_options", {"include_usage": True}, "invalid_value"),
        ("stream_options", {}, "invalid_value"),
        ("max_completion_tokens", 300, "context_length_exceeded"),
        ("tools", [{}], "invalid_value"),
        ("tools", [{"type": "function", "function": "f"}], "invalid_value"),
        ("tools", [{"type": "function", "function": {"name": ""}}], "invalid_value"),
        ("tools", [{"type": "web_search", "function": {"name": "f"}}], "invalid_value"),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": []}}], "invalid_value"),
        ("tools", [{"type": "function", "function": {"name": "f", "description": 3}}], "invalid_value"),
        ("tools", [{"type": "function", "function": {"name": "f", "strict": "yes"}}], "invalid_value"),
        ("logit_bias", {"999999": 1}, "invalid_value"),
        ("allowed_token_ids", [], "invalid_value"),
        ("allowed_token_ids", [999999], "invalid_value"),
        ("frequency_penalty", 2.5, "invalid_value"),
        ("presence_penalty", "much", "invalid_value"),
        ("repetition_penalty", True, "invalid_value"),
        ("repetition_penalty", 0, "invalid_value"),
        ("min_p", 1.5, "invalid_value"),
        ("min_tokens", -1, "invalid_value"),
        ("min_tokens", 1000, "invalid_value"),
        ("tool_choice", "required", "invalid_value"),
        ("top_k", -2, "invalid_value"),
        ("no_such_field", 1, "unsupported_parameter"),
        ("temperature", -1, "invalid_value"),
        ("temperature", "hot", "invalid_value"),
        ("top_p", 0, "invalid_value"),
        ("n", 0, "invalid_value"),
        ("n", 1000, "invalid_value"),
        ("max_tokens", 0, "invalid_value"),
        ("max_tokens", 300, "context_length_exceeded"),
        ("stop", [""], "invalid_value"),
        ("stop", ["a"] * 17, "invalid_value"),
        ("messages", [], "invalid_value"),
        ("messages", [{"role": "user"}], "invalid_value"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "invalid_value"),
        ("messages", [{"role": "user", "content": "x" * 2000}], "context_length_exceeded"),
        ("reasoning_effort", "lots", "invalid_value"),
        ("model", "another", "model_not_found"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(speaker: Server, field: str, value: Any, code: str) -> None:
    found = chat(speaker, **{field: value})
    assert found.status == (404 if code == "model_not_found" else 400)
    assert (found.error["param"], found.error["code"]) == (field, code)
    assert found.error["type"] == "invalid_request_error" and found.error["message"]
    assert not speaker.client.submitted and found.headers["x-should-retry"] == "false"


def test_forms_are_grammars_of_their_generations(speaker: Server) -> None:
    def grammar(**fields: Any) -> Grammar | None:
        speaker.client.sent.clear()
        found = chat(speaker, **fields)
        assert found.status == 200, found.error
        (work,) = speaker.client.submitted
        assert (work.grammar is not None) == (work.sampling is not None and work.sampling.masked)
        return work.grammar

    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    first = grammar(response_format=asked, temperature=0)
    assert first is not None and '"type":"object"' in first.text and not first.begun
    opens, closes = (speaker.model.text.tokenizer.token_to_id(tag) for tag in ("<think>", "</think>"))
    assert (first.opens, first.closes) == (opens, closes) and first.between
    silent = grammar(response_format=asked, reasoning_effort="none")
    assert silent is not None and silent.opens is None and silent.text == first.text
    forced = grammar(tools=[tool], tool_choice="required")
    assert forced is not None and "call_0" in forced.text
    assert grammar(tools=[tool]) is None and grammar(tools=[tool], tool_choice="none") is None
    assert grammar(tools=[tool], parallel_tool_calls=False) is not None
    speaker.client.loaded.grammars = False
    refused = chat(speaker, response_format=asked)
    assert (refused.status, refused.error["param"], refused.error["code"]) == (400, "response_format", "unsupported_parameter")


def test_a_grammar_that_the_engine_refuses_is_a_400(speaker: Server) -> None:
    speaker.client.tokens = lambda work: speaker.client.report(ended={work.number: "invalid: the grammar is too complex"})
    found = chat(speaker, response_format={"type": "json_object"})
    assert (found.status, found.error["message"]) == (400, "the grammar is too complex")
    assert 'finished_reason="error",model_name="talker"} 1.0' in speaker.metrics.text().decode()


def test_a_tool_that_is_nested_too_deeply_is_named(speaker: Server) -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    found = chat(speaker, tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert (found.status, found.error["param"]) == (400, "tools") and "tool 1: it is nested" in found.error["message"]


@pytest.mark.parametrize("how", [{"strict": True}, {}], ids=["strict", "required"])
def test_the_schema_of_a_tool_that_cannot_be_kept_to_is_named(speaker: Server, how: dict[str, Any]) -> None:
    good, bad = ({"name": name, "parameters": {"type": kind}} | how for name, kind in (("f", "object"), ("g", "nonsense")))
    tools = [{"type": "function", "function": one} for one in (good, bad)]
    found = chat(speaker, tools=tools, **({} if how else {"tool_choice": "required"}))
    assert (found.status, found.error["param"]) == (400, "tools")
    assert found.error["message"] == "`tools`: `parameters` of 'g': Invalid type: nonsense"


def test_values_that_ask_for_nothing_are_taken(speaker: Server) -> None:
    nothing = {
        "logprobs": False, "presence_penalty": 0, "repetition_penalty": 1.0, "response_format": {"type": "text"},
        "logit_bias": {}, "parallel_tool_calls": True, "stop": None, "seed": None, "guided_json": None, "metadata": {"a": "b"},
    }  # fmt: skip
    assert chat(speaker, **nothing).status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"messages": 3}', b"[" * 5000, b'{"a":' * 5000], ids=range(9)
)
def test_bad_bodies(speaker: Server, body: bytes) -> None:
    found = ask(speaker, "/v1/chat/completions", body)
    assert found.status == 400 and found.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", [[], [""], "", [[]], [1, "a"], [{}], 3, [-1], [100_000], [[1, 2], [3, 100_000]]], ids=str)
def test_bad_prompts(speaker: Server, prompt: Any) -> None:
    found = ask(speaker, "/v1/completions", {"prompt": prompt})
    assert found.status == 400 and found.error["param"].startswith("prompt"), found.error
    assert not speaker.client.submitted


def test_long_lists_of_many_choices(speaker: Server) -> None:
    """Whoever reads them keeps all others waiting."""

    def refused(**fields: Any) -> tuple[str | None, str]:
        error = chat(speaker, n=MOST_CHOICES, **fields).error  # that many never fit this server's rows
        return error["param"], error["code"]

    biases = {str(token): 1 for token in range(MOST_BIASES // MOST_CHOICES)}
    assert refused(logit_bias=biases | {"300": 1}) == ("logit_bias", "invalid_value")
    assert refused(logit_bias=biases) == ("n", "invalid_value")
    allowed = [5] * (MOST_ALLOWED // MOST_CHOICES)
    assert refused(allowed_token_ids=[*allowed, 5]) == ("allowed_token_ids", "invalid_value")
    assert refused(allowed_token_ids=allowed) == ("n", "invalid_value")
    assert chat(speaker, logit_bias=biases | {"300": 1}).status == 200
