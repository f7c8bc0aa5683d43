"""Programs of others against the server on the loopback, with a model that thinks and calls tools: the `openai` package and
curl. `python ci/bench/engine.py clients` tries clients that are too large to install for tests."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from on_loopback import AFTER_TOOL, ARGUMENTS, SENTENCE, THOUGHT, TOOL, Listening, listening

from tests import servers

KEY = "a key"
HANG_SECONDS = 60
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL: Any = {"type": "function", "function": {"name": TOOL, "description": "The weather", "parameters": PARAMETERS}}
TOOL_OF_RESPONSE: Any = {"type": "function", "name": TOOL, "parameters": PARAMETERS, "strict": True}
ASKED: Any = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def server(talker: Path) -> Iterator[Listening]:
    with listening(talker, keys=[KEY]) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Listening) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=HANG_SECONDS) as one:
        yield one


def test_a_chat_with_a_thought(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="talker", messages=ASKED)
    message: Any = whole.choices[0].message
    assert (message.content, message.reasoning_content) == (SENTENCE, THOUGHT)
    with client.chat.completions.stream(model="talker", messages=ASKED, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert "".join(event.delta for event in events if event.type == "content.delta") == SENTENCE
    assert final.choices[0].message.content == SENTENCE and final.usage == whole.usage


def test_a_tool_is_called_and_its_result_is_read(client: openai.OpenAI) -> None:
    called = client.chat.completions.create(model="talker", messages=ASKED, tools=[CHAT_TOOL]).choices[0]
    assert called.finish_reason == "tool_calls" and called.message.tool_calls is not None
    (call,) = called.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == (TOOL, ARGUMENTS)
    following = [*ASKED, called.message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    found = client.chat.completions.create(model="talker", messages=following, tools=[CHAT_TOOL])
    assert found.choices[0].message.content == AFTER_TOOL
    with client.chat.completions.stream(model="talker", messages=ASKED, tools=[CHAT_TOOL]) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed is not None and streamed[0].function.name == TOOL
    assert json.loads(streamed[0].function.arguments) == ARGUMENTS


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="talker", input="Why is the sky blue?", instructions="be brief", store=False)
    assert whole.output_text == SENTENCE and [item.type for item in whole.output] == ["reasoning", "message"]
    with client.responses.stream(model="talker", input="Why is the sky blue?") as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert deltas == final.output_text == SENTENCE and final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens > 0


def test_a_tool_of_responses(client: openai.OpenAI) -> None:
    called = client.responses.create(model="talker", input=ASKED, tools=[TOOL_OF_RESPONSE])
    call = called.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == ARGUMENTS
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    following: Any = [*ASKED, *called.output, result]
    assert client.responses.create(model="talker", input=following, tools=[TOOL_OF_RESPONSE]).output_text == AFTER_TOOL
    with client.responses.stream(model="talker", input=ASKED, tools=[TOOL_OF_RESPONSE]) as stream:
        types = [event.type for event in stream]
        streamed = stream.get_final_response().output[-1]
    assert "response.function_call_arguments.done" in types
    assert streamed.type == "function_call" and json.loads(streamed.arguments) == ARGUMENTS


def test_refusals_that_the_client_names(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="talker", input="x", previous_response_id="resp_1")
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="talker", messages=ASKED, tool_choice="required")
    assert refused.value.param == "tool_choice"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve("resp_1")
    assert missing.value.code == "not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").responses.create(model="talker", input="x")


def test_the_asynchronous_client(server: Listening) -> None:
    """Several requests at once, each with its own text."""

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as one:

            async def text(tools: bool) -> str:
                with_tools: Any = {"tools": [CHAT_TOOL]} if tools else {}
                stream = await one.chat.completions.create(model="talker", messages=ASKED, stream=True, **with_tools)
                pieces = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
                calls = [call.function for piece in pieces for call in piece.tool_calls or ()]
                return "".join(piece.content or "" for piece in pieces) + "".join(one.name or "" for one in calls if one)

            return await asyncio.gather(*(text(number % 2 == 1) for number in range(6)))

    assert asyncio.run(asyncio.wait_for(run(), HANG_SECONDS)) == [SENTENCE, TOOL] * 3


def curl(server: Listening, path: str, *options: str) -> tuple[int, str]:
    """The exit status of curl and what it wrote."""
    command = [servers.program("curl"), "--silent", "--show-error", "--noproxy", "*", *options, f"{server.url}{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    return done.returncode, done.stdout + done.stderr


def test_curl(server: Listening) -> None:
    key = ("--header", f"authorization: Bearer {KEY}")
    body = json.dumps({"messages": ASKED})
    assert curl(server, "/health", "--fail") == (0, "")
    code, text = curl(server, "/v1/chat/completions", *key, "--data", body)
    assert code == 0 and json.loads(text)["choices"][0]["message"]["content"] == SENTENCE
    code, text = curl(server, "/v1/chat/completions", "--fail", "--data", body)
    assert code == 22 and "401" in text
    streamed = json.dumps({"messages": ASKED, "stream": True})
    code, text = curl(server, "/v1/chat/completions", *key, "--no-buffer", "--data", streamed)
    assert code == 0 and text.startswith("data: {") and text.endswith("data: [DONE]\n\n")
    code, text = curl(server, "/v1/responses", *key, "--no-buffer", "--data", '{"input": "x", "stream": true}')
    assert code == 0 and text.startswith("event: response.created\ndata: {")
    code, text = curl(server, "/v1/chat/completions", *key, "--header", "expect: 100-continue", "--data", body)
    assert code == 0 and json.loads(text)["usage"]["completion_tokens"]
    code, text = curl(server, "/metrics")
    assert code == 0 and "vllm:request_success_total" in text
