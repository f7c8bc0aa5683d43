"""The `openai` package for Python, as `clients.py` runs it."""

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ["BASE"], api_key=os.environ["KEY"])
model = client.models.list().data[0].id
asked = [{"role": "user", "content": "Why is the sky blue?"}]
function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
tool = {"type": "function", "function": function}

whole = client.chat.completions.create(model=model, messages=asked)
with client.chat.completions.stream(model=model, messages=asked, stream_options={"include_usage": True}) as stream:
    streamed = stream.get_final_completion()
call = client.chat.completions.create(model=model, messages=asked, tools=[tool]).choices[0].message
result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sun"}
after = client.chat.completions.create(model=model, messages=[*asked, call, result], tools=[tool])
with client.responses.stream(model=model, input="Why is the sky blue?", store=False) as stream:
    response = stream.get_final_response()
print(
    json.dumps(
        {
            "chat": whole.choices[0].message.content,
            "stream": streamed.choices[0].message.content,
            "tools": after.choices[0].message.content,
            "responses": response.output_text,
        }
    )
)
