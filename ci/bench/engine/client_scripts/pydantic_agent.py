"""pydantic-ai, as `clients.py` runs it: agents on chat completions and on `/v1/responses`."""

import asyncio
import json
import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "Why is the sky blue?"
provider = OpenAIProvider(base_url=os.environ["BASE"], api_key=os.environ["KEY"])


def weather(city: str) -> str:
    """The weather of a city."""
    return "sun"


async def main() -> None:
    """A text, a text of a stream and a text after the call of a tool, of both endpoints."""
    found: dict[str, str] = {}
    for name, kind in (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel)):
        model = kind("talker", provider=provider)
        found[name] = (await Agent(model).run(QUESTION)).output
        async with Agent(model).run_stream(QUESTION) as stream:
            found["stream"] = await stream.get_output()
        found["tools"] = (await Agent(model, tools=[weather]).run(QUESTION)).output
    print(json.dumps(found))


asyncio.run(main())
