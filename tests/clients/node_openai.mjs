// The npm package `openai` against a server: URL -> one JSON object of what it saw.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "secret", maxRetries: 0 });
const ask = [{ role: "user", content: "Say it." }];
const toolsAsk = [{ role: "user", content: "Tell me the weather in Oslo." }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];

const whole = await client.chat.completions.create({ model: "toy", messages: ask });

let streamed = "";
const stream = await client.chat.completions.create({ model: "toy", messages: ask, stream: true });
for await (const chunk of stream) streamed += chunk.choices[0]?.delta?.content ?? "";

const helper = client.chat.completions.stream({ model: "toy", messages: toolsAsk, tools });
const helped = await helper.finalChatCompletion();

const runner = client.chat.completions.runTools({
  model: "toy",
  messages: toolsAsk,
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather of a city.",
        parameters,
        parse: JSON.parse,
        function: ({ city }) => `${city}: rain`,
      },
    },
  ],
});
const last = await runner.finalContent();

let error = "";
try {
  await client.chat.completions.create({ model: "gone", messages: ask });
} catch (caught) {
  error = caught.constructor.name;
}

const call = helped.choices[0].message.tool_calls[0].function;
console.log(
  JSON.stringify({
    text: whole.choices[0].message.content,
    finish: whole.choices[0].finish_reason,
    tokens: whole.usage.completion_tokens,
    streamed,
    call: [call.name, JSON.parse(call.arguments)],
    last,
    error,
  }),
);
