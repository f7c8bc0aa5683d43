"""Calls in the XML form over the endpoints: whole, as a stream, as items, and as messages that the template is given again."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from asking import ask, chat
from in_process import TEMPLATE, ScriptedClient, Server, says, server
from test_responses import events_of

from engine.serving.protocol import Submit

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
WRITTEN = "<function=f>\n<parameter=text>\na\nb\n</parameter>\n<parameter=count>\n3\n</parameter>\n</function>"
CALL = f"<tool_call>\n{WRITTEN}\n</tool_call>"
ARGUMENTS = {"text": "a\nb", "count": 3}
ASKS = """{%- if tools %}{{- '<|im_start|>system\\nWrite <tool_call>\\n<function=NAME>\\n<parameter=KEY>\\n' + (tools | tojson)
    + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{%- for call in message.tool_calls or [] %}
{%- for name, value in call.function.arguments | items %}{{- name + '=' + (value | string) + ';' }}{% endfor %}
{%- endfor %}{%- endfor %}"""


@pytest.fixture(scope="module")
def coder(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template asks for the XML form, and writes each argument of earlier calls."""
    folder = tmp_path_factory.mktemp("coder") / "coder"
    shutil.copytree(talker, folder)
    (folder / "chat_template.jinja").write_text(ASKS + TEMPLATE, encoding="utf-8")
    return folder


def functions(one: Server, **fields: Any) -> list[Any]:
    message = chat(one, tools=TOOLS, **fields).json["choices"][0]["message"]
    return [call["function"] for call in message.get("tool_calls", [])]


def test_the_template_says_which_form_is_read(talker: Path, coder: Path) -> None:
    """And an option says otherwise."""
    (found,) = functions(server(coder, says(coder, CALL), longest=1024))
    assert found["name"] == "f" and json.loads(found["arguments"]) == ARGUMENTS
    assert functions(server(talker, says(talker, CALL), longest=1024)) == []
    (found,) = functions(server(talker, says(talker, CALL), longest=1024, tool_form="xml"))
    assert json.loads(found["arguments"]) == ARGUMENTS
    assert functions(server(coder, says(coder, CALL), longest=1024, tool_form="hermes")) == []
    spelled = [{"role": "user", "content": "<function=f> <parameter=text>"}]
    assert functions(server(talker, says(talker, CALL), longest=1024), messages=spelled) == [], (
        "a message does not choose the form"
    )


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens come one after the other, each when the one before was sent."""

    def play(client: ScriptedClient, work: Submit, tokens: list[int]) -> None:
        async def each() -> None:
            client.report(admitted=[work.number], prompt_tokens=len(work.ids), running=1)
            for count, token in enumerate(tokens, 1):
                for _ in range(20):
                    await asyncio.sleep(0)
                client.report({work.number: token}, {work.number: "stop"} if count == len(tokens) else {})

        playing.append(asyncio.ensure_future(each()))

    playing: list[asyncio.Future[None]] = []
    monkeypatch.setattr(ScriptedClient, "_play", play)


@pytest.mark.usefixtures("paced")
def test_a_stream_has_pieces_of_the_arguments(coder: Path) -> None:
    one = server(coder, says(coder, "So: " + CALL + "\n" + CALL), longest=1024)
    chunks = [chunk["choices"][0] for chunk in chat(one, tools=TOOLS, stream=True).events]
    pieces = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    for index in range(2):
        first, *others = [call for call in pieces if call["index"] == index]
        assert first["id"].startswith("call_") and first["type"] == "function" and first["function"]["name"] == "f"
        assert len(others) > 1 and all(call.keys() == {"index", "function"} for call in others)
        text = "".join(call["function"]["arguments"] for call in [first, *others])
        assert json.loads(text) == ARGUMENTS
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == "So: "
    assert chunks[-1]["finish_reason"] == "tool_calls"


@pytest.mark.usefixtures("paced")
@pytest.mark.parametrize("cut", [False, True])
def test_items_of_responses(coder: Path, cut: bool) -> None:
    one = server(coder, says(coder, CALL[: CALL.index("b\n")] if cut else CALL), longest=1024)
    tools = [{"type": "function", **FUNCTION}]
    events = events_of(ask(one, "/v1/responses", {"input": "x", "tools": tools, "stream": True}))
    (item,) = events[-1]["response"]["output"]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    done = [event["arguments"] for event in events if event["type"] == "response.function_call_arguments.done"]
    assert len(deltas) > 1 and "".join(deltas) == item["arguments"]
    if cut:
        assert item["status"] == "incomplete" and done == [] and item["arguments"].startswith('{"text":"a')
    else:
        assert item["status"] == "completed" and done == [item["arguments"]] and json.loads(item["arguments"]) == ARGUMENTS


def test_earlier_calls_reach_the_template_as_objects(coder: Path) -> None:
    one = server(coder, says(coder, "ok"), longest=1024)
    call: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps(ARGUMENTS)}}
    messages = [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]  # fmt: skip
    assert chat(one, messages=messages).status == 200
    text = one.model.text.tokenizer.decode(one.client.submitted[-1].ids, skip_special_tokens=False)
    assert "text=a\nb;count=3;" in text
    call["function"]["arguments"] = "[1]"
    assert chat(one, messages=messages).status == 400
