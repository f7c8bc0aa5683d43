"""litellm with its provider for vLLM's servers, as `clients.py` runs it."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request to elsewhere

import litellm

options = {"model": "hosted_vllm/talker", "api_base": os.environ["BASE"], "api_key": os.environ["KEY"]}
asked = [{"role": "user", "content": "Why is the sky blue?"}]
function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "strict": True}
tools = [{"type": "function", "function": function}]

whole = litellm.completion(messages=asked, **options).choices[0].message
assert whole.reasoning_content == "hm", whole
pieces = litellm.completion(messages=asked, stream=True, stream_options={"include_usage": True}, **options)
streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
called = litellm.completion(messages=asked, tools=tools, **options).choices[0].message
result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "sun"}
after = litellm.completion(messages=[*asked, called, result], tools=tools, **options).choices[0].message
print(json.dumps({"chat": whole.content, "stream": streamed, "tools": after.content}))
