// A network of one AgentKit agent whose threads are kept in mainspring. Prints the answer.
//
//   node chat.mjs THREAD TEXT
//
// MAINSPRING_URL and MAINSPRING_TOKEN name the server, MODEL_URL an endpoint of the OpenAI protocol.
import { createAgent, createNetwork, createState, openai } from "@inngest/agent-kit";
import { mainspringHistory } from "./history.mjs";

const { MAINSPRING_URL, MAINSPRING_TOKEN, MODEL_URL, MODEL_KEY = "none" } = process.env;
const [threadId, input] = process.argv.slice(2);

const agent = createAgent({
  name: "helper",
  description: "Answers questions",
  system: "You are a helpful assistant.",
  model: openai({ model: "gpt-4o-mini", baseUrl: MODEL_URL, apiKey: MODEL_KEY }),
});
const network = createNetwork({
  name: "support",
  agents: [agent],
  router: ({ callCount }) => (callCount === 0 ? agent : undefined),
  history: mainspringHistory({ url: MAINSPRING_URL, token: MAINSPRING_TOKEN }),
});

const run = await network.run(input, { state: createState({}, { threadId }) });
const last = run.state.results.at(-1);
console.log(last.output.map(({ content }) => content).join(""));
