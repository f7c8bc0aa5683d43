"""langchain-openai, as `clients.py` runs it: chat completions, and `/v1/responses`."""

import json
import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

QUESTION = "Why is the sky blue?"


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "sun"


def talk(model: ChatOpenAI) -> tuple[str, str, str]:
    """A text, a text of a stream, and a text after the call of a tool."""
    whole = model.invoke(QUESTION).text
    streamed = "".join(piece.text for piece in model.stream(QUESTION))
    with_tools = model.bind_tools([weather])
    called = with_tools.invoke(QUESTION)
    results = [weather.invoke(call) for call in called.tool_calls]
    return whole, streamed, with_tools.invoke([("user", QUESTION), called, *results]).text


options = {"base_url": os.environ["BASE"], "api_key": os.environ["KEY"], "model": "talker", "stream_usage": True}
chat, stream, tools = talk(ChatOpenAI(**options))
of_responses = talk(ChatOpenAI(**options, use_responses_api=True))
assert of_responses == (chat, stream, tools), of_responses
print(json.dumps({"chat": chat, "stream": stream, "tools": tools, "responses": of_responses[0]}))
