// A conversation with the Vercel AI SDK that is kept in mainspring. Prints the answer.
//
//   node chat.mjs THREAD TEXT
//
// MAINSPRING_URL and MAINSPRING_TOKEN name the server, MODEL_URL an endpoint of the OpenAI protocol.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";
import { mainspringThread } from "./history.mjs";

const { MAINSPRING_URL, MAINSPRING_TOKEN, MODEL_URL, MODEL_KEY = "none" } = process.env;
const [threadId, input] = process.argv.slice(2);

const provider = createOpenAICompatible({ name: "model", baseURL: MODEL_URL, apiKey: MODEL_KEY });
const thread = mainspringThread({ url: MAINSPRING_URL, token: MAINSPRING_TOKEN, threadId });
const add = tool({
  description: "Adds two numbers",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: ({ a, b }) => `${a + b}`,
});

const id = crypto.randomUUID();
await thread.open();
await thread.ask(id, input);
const result = await generateText({
  model: provider("gpt-4o-mini"),
  tools: { add },
  stopWhen: stepCountIs(5),
  messages: await thread.messages(),
});
await thread.answer(id, result.response.messages, result.totalUsage, "helper");
console.log(result.text);
