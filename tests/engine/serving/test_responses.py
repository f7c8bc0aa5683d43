"""/v1/responses without sockets: items of input and of output, events, and what a server that keeps nothing refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from in_process import Received, Server, says, server
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from engine.serving.options import ServerLimits
from engine.serving.protocol import Cancel, Submit
from engine.serving.responses_types import messages_of

HANG_SECONDS = 60
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
SPOKEN = "<think>\nhm\n</think>\n\nBecause."
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}]
EVENT = TypeAdapter[Any](ResponseStreamEvent)


def ask(one: Server, **fields: Any) -> Received:
    body = {"input": "Why?"} | fields
    return asyncio.run(asyncio.wait_for(one.ask("/v1/responses", body), HANG_SECONDS))


def events_of(received: Received) -> list[dict[str, Any]]:
    """The events of a stream, each checked against the types of OpenAI's package."""
    found: list[dict[str, Any]] = []
    for block in b"".join(received.pieces).decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == len(found)
        EVENT.validate_python(event)
        found.append(event)
    return found


@pytest.fixture
def speaker(talker: Path) -> Server:
    return server(talker, says(talker, SPOKEN))


def test_a_response(speaker: Server) -> None:
    found = ask(speaker, instructions="be brief", max_output_tokens=50, metadata={"a": "b"}, user="me").json
    Response.model_validate(found)
    assert (found["object"], found["status"], found["error"], found["store"]) == ("response", "completed", None, False)
    assert found["metadata"] == {"a": "b"} and found["instructions"] == "be brief"
    thought, message = found["output"]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "hm"}])
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"] == [{"type": "output_text", "annotations": [], "text": "Because."}]
    (work,) = speaker.client.submitted
    tokens = list(speaker.client.tokens(work) or ())
    text = speaker.model.text
    assert text.tokenizer.decode(work.ids, skip_special_tokens=False).startswith(
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nWhy?"
    )
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(work.ids), len(tokens)) and work.max_tokens == 50
    closing = text.tokenizer.token_to_id("</think>")
    assert usage["output_tokens_details"] == {"reasoning_tokens": tokens.index(closing) + 1}


def test_a_stream_has_the_same_items_at_its_end_and_in_its_events(speaker: Server) -> None:
    received = ask(speaker, stream=True)
    assert received.headers["content-type"].startswith("text/event-stream") and received.whole
    first, second, *events, last = events_of(received)
    assert [first["type"], second["type"], last["type"]] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    assert first["response"]["output"] == [] and first["response"]["status"] == "in_progress"
    whole = ask(speaker).json
    without_ids = [{name: value for name, value in item.items() if name != "id"} for item in whole["output"]]
    assert [{name: value for name, value in item.items() if name != "id"} for item in last["response"]["output"]] == without_ids
    assert last["response"]["usage"] == whole["usage"]
    for index, item in enumerate(last["response"]["output"]):
        mine = [event for event in events if event["output_index"] == index]
        assert [mine[0]["type"], mine[-1]["type"]] == ["response.output_item.added", "response.output_item.done"]
        assert mine[-1]["item"] == item and mine[0]["item"]["content"] == [] and mine[0]["item"]["status"] == "in_progress"
        assert {event["item_id"] for event in mine[1:-1]} == {item["id"]}
        deltas = "".join(event.get("delta", "") for event in mine)
        (done,) = [event for event in mine if event["type"].endswith("_text.done")]
        assert deltas == done["text"] == item["content"][0]["text"]
        assert mine[1]["part"]["text"] == "" and mine[-2]["part"] == item["content"][0]


def test_calls_of_tools(talker: Path) -> None:
    one = server(talker, says(talker, "So: " + CALL + "\n" + CALL))
    found = ask(one, tools=TOOLS).json
    Response.model_validate(found)
    assert [item["type"] for item in found["output"]] == ["message", "function_call", "function_call"]
    assert [(item["name"], item["arguments"]) for item in found["output"][1:]] == [("f", '{"a":1}')] * 2
    assert len({item["call_id"] for item in found["output"][1:]}) == 2
    assert found["tools"] == [TOOLS[0] | {"strict": True}]
    events = events_of(ask(one, tools=TOOLS, stream=True))
    arguments = [event for event in events if event["type"].startswith("response.function_call_arguments")]
    assert [event["type"].rpartition(".")[2] for event in arguments] == ["delta", "done"] * 2
    assert {event.get("delta", event.get("arguments")) for event in arguments} == {'{"a":1}'}
    prompts = [len(work.ids) for work in one.client.submitted]
    assert CALL in ask(one, tools=TOOLS, tool_choice="none").json["output"][0]["content"][0]["text"]
    assert len(one.client.submitted[-1].ids) < prompts[0]


def test_a_tool_reaches_the_template_as_of_a_chat(talker: Path) -> None:
    one = server(talker, says(talker, "x"))
    ask(one, tools=TOOLS)
    chat = {"messages": [{"role": "user", "content": "Why?"}]}
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    asyncio.run(one.ask("/v1/chat/completions", chat | {"tools": tools}))
    first, second = one.client.submitted
    assert first.ids == second.ids


def test_a_generation_that_is_cut(talker: Path) -> None:
    one = server(talker, says(talker, SPOKEN))
    found = ask(one, max_output_tokens=2).json
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["output"] == [] or found["output"][-1]["status"] == "incomplete"
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    assert events_of(ask(one, max_output_tokens=4, stream=True))[-1]["type"] == "response.incomplete"
    spoken = server(talker, says(talker, "no thought at all"))
    found = ask(spoken).json
    assert found["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


def test_items_become_messages() -> None:
    """A thought, a text and calls that follow each other are one message, as templates have it."""
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text} for text in "ab"]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "7"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "8"}]},
        {"type": "reasoning", "summary": []},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "cut"}]},
    ]  # fmt: skip

    def call(number: str, name: str) -> dict[str, Any]:
        return {"id": number, "type": "function", "function": {"name": name, "arguments": "{}"}}

    assert messages_of(items, "first") == [
        {"role": "system", "content": "first"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "So", "reasoning_content": "hm", "tool_calls": [call("1", "f"), call("2", "g")]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
        {"role": "tool", "tool_call_id": "2", "content": "8"},
        {"role": "assistant", "content": "", "reasoning_content": "cut"},
    ]  # fmt: skip


def test_what_was_returned_can_be_given_again(talker: Path) -> None:
    """The output of a response is input of the next one, and its tokens are those of the same conversation in messages."""
    one = server(talker, says(talker, "<think>\nhm\n</think>\n\nSo: " + CALL))
    output = ask(one, tools=TOOLS).json["output"]
    asked = {"type": "message", "role": "user", "content": "Why?"}
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "7"}
    assert ask(one, tools=TOOLS, input=[asked, *output, result]).status == 200
    text = one.model.text.tokenizer.decode(one.client.submitted[-1].ids, skip_special_tokens=False)
    assert "<|im_start|>assistant\nSo: <|im_end|>" in text and "<|im_start|>tool\n7<|im_end|>" in text


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("previous_response_id", "resp_1", "previous_response_id"),
        ("conversation", "conv_1", "conversation"),
        ("store", True, "store"),
        ("background", True, "background"),
        ("prompt", {"id": "pmpt_1"}, "prompt"),
        ("truncation", "auto", "truncation"),
        ("top_logprobs", 3, "top_logprobs"),
        ("max_tool_calls", 3, "max_tool_calls"),
        ("n", 2, "n"),
        ("max_tokens", 5, "max_tokens"),
        ("messages", [], "messages"),
        ("text", {"format": {"type": "json_schema", "name": "x"}}, "text.format"),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {"type": "none"}}}, "text.format"),
        ("text", {"format": {"type": "xml"}}, "text"),
        ("text", {"verbosity": "low"}, "text.verbosity"),
        ("text", {"other": 1}, "text"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", {"type": "function", "name": "f"}, "tool_choice"),
        ("tool_choice", {"type": "allowed_tools", "tools": []}, "tool_choice"),
        ("tools", [{"type": "web_search"}], "tools"),
        ("include", ["file_search_call.results"], "include"),
        ("reasoning", {"effort": "lots"}, "reasoning.effort"),
        ("reasoning", {"summary": "concise"}, "reasoning.summary"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("no_such_field", 1, "no_such_field"),
        ("max_output_tokens", 0, "max_output_tokens"),
        ("max_output_tokens", 300, "max_output_tokens"),
        ("input", [], "input"),
        ("input", 3, "input"),
        ("input", "x" * 2000, "input"),
        ("input", [{"type": "item_reference", "id": "msg_1"}], "input"),
        ("input", [{"type": "computer_call"}], "input"),
        ("input", [{"role": "user"}], "input"),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input"),
        ("input", [{"content": "no role"}], "input"),
        ("input", [{"type": "function_call", "call_id": "1", "arguments": "{}"}], "input"),
        ("input", [{"type": "function_call", "call_id": "1", "name": "f"}], "input"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(speaker: Server, field: str, value: Any, named: str) -> None:
    found = ask(speaker, **{field: value})
    assert found.status == 400 and found.error["param"] == named, found.error
    assert found.error["type"] == "invalid_request_error" and not speaker.client.submitted


def test_forms_and_strict_tools_are_grammars(speaker: Server) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    strict = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    found = ask(speaker, text={"format": form}, parallel_tool_calls=False)
    assert found.json["text"] == {"format": form} and found.json["parallel_tool_calls"] is False
    assert ask(speaker, tools=[strict]).json["tools"] == [strict]
    assert ask(speaker, tools=[strict | {"strict": False}]).status == 200
    grammars = [work.grammar is not None for work in speaker.client.submitted]
    assert grammars == [True, True, False]


def test_values_that_ask_for_nothing_are_taken(speaker: Server) -> None:
    nothing = {
        "store": False, "background": False, "truncation": "disabled", "n": 1, "top_logprobs": 0, "parallel_tool_calls": True,
        "include": ["reasoning.encrypted_content"], "previous_response_id": None, "text": {"format": {"type": "text"}},
        "reasoning": {"summary": "auto"}, "stream_options": {"include_obfuscation": False}, "prompt_cache_key": "k",
    }  # fmt: skip
    assert ask(speaker, **nothing).status == 200


def test_fields_of_all_generations_have_their_effect(speaker: Server) -> None:
    ask(speaker, temperature=0.5, top_p=0.4, top_k=3, seed=7, priority=2)
    (work,) = speaker.client.submitted
    assert work.sampling is not None and work.priority == 2
    assert msgspec.structs.asdict(work)["sampling"].seed == 7 and work.sampling.top_k == 3
    found = ask(speaker, temperature=0.5, top_p=0.4).json
    assert (found["temperature"], found["top_p"]) == (0.5, 0.4)
    ids = speaker.client.submitted[-1].ids
    ask(speaker, reasoning={"effort": "none"})
    assert speaker.client.submitted[-1].ids[: len(ids)] == ids and len(speaker.client.submitted[-1].ids) > len(ids)
    assert ask(speaker, stop=["use"]).json["output"][-1]["content"][0]["text"] == "Beca"


def test_an_error_in_the_middle_is_a_response_that_failed(talker: Path) -> None:
    def fail(work: Submit) -> None:
        token = one.model.text.encode("the")[0]
        asyncio.get_running_loop().call_soon(one.client.report, {work.number: token}, {work.number: "error: it broke"})

    one = server(talker, fail)
    assert ask(one).status == 500
    last = events_of(ask(one, stream=True))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "it broke"}


def test_a_response_that_takes_too_long(talker: Path) -> None:
    one = server(talker, lambda work: None, limits=ServerLimits(request_seconds=0.05))
    assert ask(one).status == 504
    assert events_of(ask(one, stream=True))[-1]["response"]["error"]["message"] == "the request took over 0.05 seconds"
    assert one.client.outstanding == 0


def test_an_open_item_of_a_response_that_failed_is_incomplete(talker: Path) -> None:
    one = server(talker, lambda work: None, limits=ServerLimits(request_seconds=1e9))

    async def run() -> Received:
        sent: list[bytes] = []
        asking = asyncio.ensure_future(one.ask("/v1/responses", {"input": "a", "stream": True}, each=sent.append))
        while not one.client.submitted:
            await asyncio.sleep(0)
        for token in one.model.text.encode("the sky"):
            one.client.report({0: token})
        while b"output_text.delta" not in b"".join(sent):
            await asyncio.sleep(0)
        one.client.report(ended={0: "error: it broke"})
        return await asking

    *_, done, last = events_of(asyncio.run(asyncio.wait_for(run(), HANG_SECONDS)))
    assert done["type"] == "response.output_item.done" and done["item"]["status"] == "incomplete"
    assert last["response"]["output"] == [done["item"]]


def test_a_client_that_leaves_frees_its_row(talker: Path) -> None:
    one = server(talker, lambda work: None)

    async def run() -> None:
        gone = asyncio.Event()
        asking = asyncio.ensure_future(one.ask("/v1/responses", {"input": "a", "stream": True}, gone=gone))
        while not one.client.submitted:
            await asyncio.sleep(0)
        gone.set()
        await asking

    asyncio.run(asyncio.wait_for(run(), HANG_SECONDS))
    assert one.client.sent[-1] == Cancel(0) and one.client.outstanding == 0


def test_responses_are_not_kept(speaker: Server) -> None:
    number = ask(speaker).json["id"]
    found = asyncio.run(speaker.ask(f"/v1/responses/{number}"))
    assert found.status == 404 and found.error["code"] == "not_found"
