// The `openai` package for Node, as `clients.py` runs it.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE, apiKey: process.env.KEY });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Why is the sky blue?" }];
const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", parameters } }];

const whole = await client.chat.completions.create({ model, messages });
let streamed = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
}
const called = (await client.chat.completions.create({ model, messages, tools })).choices[0].message;
const result = { role: "tool", tool_call_id: called.tool_calls[0].id, content: "sun" };
const after = await client.chat.completions.create({ model, messages: [...messages, called, result], tools });
const response = await client.responses.stream({ model, input: "Why is the sky blue?" }).finalResponse();
console.log(
  JSON.stringify({
    chat: whole.choices[0].message.content,
    stream: streamed,
    tools: after.choices[0].message.content,
    responses: response.output_text,
  }),
);
