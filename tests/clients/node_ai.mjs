// The npm package `ai` with `@ai-sdk/openai-compatible` against a server: URL -> one JSON object of what it saw.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({
  name: "octavo",
  baseURL: `${process.argv[2]}/v1`,
  apiKey: "secret",
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const model = provider.chatModel("toy");
const tools = {
  get_weather: tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `${city}: rain`,
  }),
};
const weather = { model, tools, prompt: "Tell me the weather in Oslo.", stopWhen: stepCountIs(3), maxRetries: 0 };

const whole = await generateText({ model, prompt: "Say it.", maxRetries: 0 });

const stream = streamText({ model, prompt: "Say it.", maxRetries: 0 });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
const usage = await stream.totalUsage;

const looped = await generateText(weather);
const streamedLoop = streamText(weather);
await streamedLoop.consumeStream();
const steps = await streamedLoop.steps;
const shaped = await generateObject({
  model,
  schema: z.object({ name: z.string(), people: z.number() }),
  prompt: "The city as JSON.",
  maxRetries: 0,
});

console.log(
  JSON.stringify({
    text: whole.text,
    finish: whole.finishReason,
    tokens: whole.usage.outputTokens,
    streamed,
    streamedTokens: usage.outputTokens,
    call: [looped.steps[0].toolCalls[0].toolName, looped.steps[0].toolCalls[0].input],
    last: looped.text,
    streamedCall: [steps[0].toolCalls[0].toolName, steps[0].toolCalls[0].input],
    streamedLast: await streamedLoop.text,
    object: shaped.object,
  }),
);
