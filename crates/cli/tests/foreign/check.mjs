// Drives the programs in examples/ against a real server and the scripted model: a program that is killed between its
// message and its results loses the results, and the next run sees the message once.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";

const [folder, ...programs] = process.argv.slice(2);
const { SERVER_URL, SERVER_TOKEN, SCRIPTED_MODEL_URL } = process.env;
const REQUESTS = `${folder}/requests.jsonl`;

async function get(path) {
  const response = await fetch(SERVER_URL + path, { headers: { authorization: `Bearer ${SERVER_TOKEN}` } });
  return response.json();
}

function start(program, model, thread, text) {
  const env = {
    ...process.env, REQUESTS, MAINSPRING_URL: SERVER_URL, MAINSPRING_TOKEN: SERVER_TOKEN, MODEL_URL: model,
  };
  const args = ["--import", `${folder}/record.mjs`, `${folder}/${program}/chat.mjs`, thread, text];
  return spawn(process.execPath, args, { env, stdio: ["ignore", "pipe", "inherit"] });
}

async function run(program, thread, text) {
  const process = start(program, SCRIPTED_MODEL_URL, thread, text);
  let output = "";
  process.stdout.on("data", (data) => (output += data));
  const code = await new Promise((done) => process.on("exit", done));
  assert.equal(code, 0, `${program} ${text}`);
  return output;
}

/** Runs a program until it asks its model, which never answers, and kills it there. */
async function killWhileAsking(program, thread, text) {
  const server = createServer();
  const asked = new Promise((done) => server.on("connection", done));
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const process = start(program, `http://127.0.0.1:${server.address().port}/v1`, thread, text);
  const ended = new Promise((done) => process.on("exit", (_, signal) => done(signal)));
  await Promise.race([asked, ended.then(() => assert.fail(`${program} ended before it asked its model`))]);
  process.kill("SIGKILL");
  assert.equal(await ended, "SIGKILL");
  server.close();
}

async function thread(name) {
  const { items } = await get(`/v1/sessions/${name}/messages`);
  return items.map(({ role, agent, content }) => {
    const text = content.map((block) => block.text ?? block.type).join("+").trim();
    return `${agent ?? role}: ${text}`;
  });
}

/** Counts the messages of people with this text in the last request to the model. */
function seen(text) {
  const last = JSON.parse(readFileSync(REQUESTS, "utf8").trim().split("\n").at(-1));
  const content = ({ content }) => (typeof content === "string" ? content : content?.map((part) => part.text).join(""));
  return last.messages.filter((message) => message.role === "user" && content(message) === text).length;
}

for (const program of programs) {
  rmSync(REQUESTS, { force: true });
  const name = `thread-${program}`;
  assert.match(await run(program, name, "say one"), /one/);
  assert.deepEqual(await thread(name), ["user: say one", "helper: one"], program);

  await killWhileAsking(program, name, "Where was I?");
  assert.deepEqual(await thread(name), ["user: say one", "helper: one", "user: Where was I?"], program);

  await run(program, name, "say three");
  assert.equal(seen("Where was I?"), 1, `${program}: the message of the killed run is seen once`);
  assert.equal(seen("say three"), 1, `${program}: the new message is seen once`);
  assert.equal(seen("say one"), 1, program);
  const messages = await thread(name);
  assert.equal(messages.length, 5, `${program}: ${messages.join(" | ")}`);
  assert.equal(messages[3], "user: say three", program);
  console.log(`${program}: ok`);
}

if (programs.includes("ai-sdk")) {
  await run("ai-sdk", "thread-tools", 'tool add {"a": 19, "b": 23}; say it is 42');
  const messages = await thread("thread-tools");
  assert.deepEqual(messages.slice(1), ["helper: tool_use", "helper: tool_result", "helper: it is 42"]);
  assert.match(await run("ai-sdk", "thread-tools", "say more"), /more/);
  console.log("ai-sdk with a tool: ok");
}

if (programs.includes("agentkit")) {
  const { toMessages, toResults } = await import(`${folder}/agentkit/history.mjs`);
  const { AgentResult } = await import("@inngest/agent-kit");
  const output = [{ role: "assistant", stop_reason: "stop", type: "text", content: "hello" }];
  const result = new AgentResult("writer", output, [], new Date(1_700_000_000_123), [], [], "", "r1");
  const stored = toMessages(result).map(({ id, ...message }) => ({ ...message, externalId: id }));
  const [again] = toResults(stored);
  assert.deepEqual(again.export(), result.export(), "a result comes back with its checksum");
  assert.equal(again.id, "r1");
  console.log("results of AgentKit come back as they were: ok");
}
