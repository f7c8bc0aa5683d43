// The AI SDK with its provider for compatible servers, as `clients.py` runs it.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const provider = createOpenAICompatible({ name: "here", baseURL: process.env.BASE, apiKey: process.env.KEY, includeUsage: true });
const model = provider("talker");
const prompt = "Why is the sky blue?";
const weather = tool({
  description: "The weather of a city",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } } }),
  execute: async () => "sun",
});

const whole = await generateText({ model, prompt });
if (whole.reasoningText !== "hm") throw new Error(`the thought is ${whole.reasoningText}`);
const streamed = await streamText({ model, prompt }).text;
const after = await generateText({ model, prompt, tools: { weather }, stopWhen: stepCountIs(3) });
console.log(JSON.stringify({ chat: whole.text, stream: streamed, tools: after.text }));
