"""openai-agents, as `clients.py` runs it: an agent with a tool, on `/v1/responses`."""

import asyncio
import json
import os

from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "sun"


async def main() -> None:
    """One agent without a tool, one with it, one whose events are read."""
    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=os.environ["BASE"], api_key=os.environ["KEY"]))
    plain = Agent(name="plain", model="talker", model_settings=ModelSettings(store=False))
    question = "Why is the sky blue?"
    whole = await Runner.run(plain, question)
    with_tool = await Runner.run(Agent(name="tool", model="talker", tools=[weather]), question)
    streamed = Runner.run_streamed(plain, question)
    pieces = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
    text = "".join(piece.delta for piece in pieces if piece.type == "response.output_text.delta")
    print(json.dumps({"responses": whole.final_output, "tools": with_tool.final_output, "stream": text}))


asyncio.run(main())
