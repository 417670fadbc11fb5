// Measures a network of five steps in AgentKit, which keeps it in memory, and in mainspring, which stores every step.
//
//   node network.mjs PACKAGES PROGRAM
//
// All of them ask the same scripted model over HTTP, in turn. A step is the time of the whole network divided by its steps;
// the bare requests show how much of it is the model's.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, program] = process.argv.slice(2);
const STEPS = 5;
const WARM_UP = 10;
const ROUNDS = 100;
const SYSTEM = "You work.\nscript: say ok";

const folder = mkdtempSync(join(tmpdir(), "mainspring-network-"));
const children = [];

function start(args, env = {}) {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("MAINSPRING_"));
  const options = { env: { ...Object.fromEntries(kept), ...env }, stdio: ["ignore", "pipe", "pipe"] };
  const child = spawn(program, args, options);
  children.push(child);
  return child;
}

/** Returns the first line of a stream that matches, and drains the rest. */
function line(child, stream, pattern) {
  return new Promise((found, failed) => {
    child.on("exit", (code) => failed(new Error(`${program} ended with ${code}`)));
    createInterface({ input: stream }).on("line", (text) => pattern.test(text) && found(text));
  });
}

async function startModel() {
  const child = start(["--json", "model-server", "--listen", "127.0.0.1:0"]);
  child.stderr.resume();
  return JSON.parse(await line(child, child.stdout, /baseUrls/)).baseUrls.openai.replace(/\/$/, "");
}

/** Starts a server with the network, and returns a function that runs the network once. */
async function startServer(durability, model) {
  const dir = join(folder, durability);
  mkdirSync(join(dir, "agents"), { recursive: true, mode: 0o700 });
  const config = join(folder, `${durability}.toml`);
  writeFileSync(config, `[providers.bench]\nkind = "openai"\nbase_url = "${model}"\n`);
  const system = JSON.stringify(SYSTEM);
  writeFileSync(join(dir, "agents", "worker.toml"), `id = "worker"\nsystem = ${system}\n`);
  const network = [
    'id = "team"', 'model = "bench/m"', "[network]", 'members = [{ agent = "worker@1" }]', "[network.router]",
    `rules = [{ when = "calls < ${STEPS}", to = ["worker"] }]`,
  ];
  writeFileSync(join(dir, "agents", "team.toml"), `${network.join("\n")}\n`);
  const args = ["serve", "--listen", "127.0.0.1:0", "--state-dir", dir, "--config", config];
  const child = start(args, { MAINSPRING_DURABILITY: durability });
  child.stdout.resume();
  const [url] = (await line(child, child.stderr, /http:\/\/127/)).match(/http:\/\/127\.0\.0\.1:\d+/);
  const headers = {
    authorization: `Bearer ${readFileSync(join(dir, "token"), "utf8").trim()}`,
    "content-type": "application/json", prefer: "wait=60",
  };
  let count = 0;
  return async () => {
    const session = { key: `run-${count++}`, agentDefinition: "team" };
    const body = JSON.stringify({ prompt: "go", adapter: "native", session });
    const response = await fetch(`${url}/v1/runs`, { method: "POST", headers, body });
    const run = await response.json();
    const texts = (run.finalText ?? "").split("ok").length - 1;
    if (run.status !== "succeeded" || texts !== STEPS) throw new Error(JSON.stringify(run));
  };
}

/** Returns a function that runs the network of AgentKit once. */
async function agentKit(model) {
  const resolved = createRequire(pathToFileURL(join(packages, "package.json"))).resolve("@inngest/agent-kit");
  const { createAgent, createNetwork, openai } = await import(pathToFileURL(resolved));
  const agent = createAgent({
    name: "worker", system: SYSTEM, model: openai({ model: "m", baseUrl: model, apiKey: "none" }),
  });
  return async () => {
    const network = createNetwork({
      name: "team", agents: [agent], maxIter: STEPS,
      router: ({ callCount }) => (callCount < STEPS ? agent : undefined),
    });
    const { state } = await network.run("go");
    const texts = state.results.flatMap(({ output }) => output).filter(({ content }) => `${content}`.includes("ok"));
    if (texts.length !== STEPS) throw new Error(JSON.stringify(state.results));
  };
}

/** Asks the model as often as a network does, and nothing else. */
function bareRequests(model) {
  const messages = [{ role: "system", content: SYSTEM }, { role: "user", content: "go" }];
  const body = JSON.stringify({ model: "m", messages });
  const headers = { authorization: "Bearer none", "content-type": "application/json" };
  return async () => {
    for (let step = 0; step < STEPS; step++) {
      const response = await fetch(`${model}/chat/completions`, { method: "POST", headers, body });
      if (!(await response.text()).includes("ok")) throw new Error(`the model answered ${response.status}`);
    }
  };
}

function median(values) {
  return values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
}

async function main() {
  const model = await startModel();
  const members = [
    ["the model alone, asked from Node.js", bareRequests(model)],
    ["AgentKit, in memory", await agentKit(model)],
    ["mainspring over HTTP, durability normal: no sync", await startServer("normal", model)],
    ["mainspring over HTTP, durability full: each commit synced", await startServer("full", model)],
  ].map(([title, run]) => ({ title, run, times: [] }));
  for (let round = -WARM_UP; round < ROUNDS; round++) {
    for (let no = 0; no < members.length; no++) {
      const { run, times } = members[(no + round + WARM_UP) % members.length];
      const begin = performance.now();
      await run();
      if (round >= 0) times.push((performance.now() - begin) / STEPS);
    }
  }
  const medians = members.map(({ title, times }) => [title, median(times)]);
  console.log(`| a network of ${STEPS} steps, p50 of ${ROUNDS} | per step | without the model |\n|---|---|---|`);
  for (const [title, time] of medians) {
    console.log(`| ${title} | ${time.toFixed(2)} ms | ${(time - medians[0][1]).toFixed(2)} ms |`);
  }
}

try {
  await main();
} finally {
  await Promise.all(children.map((child) => new Promise((done) => {
    if (child.exitCode !== null) return done();
    child.removeAllListeners("exit").on("exit", done);
    child.kill("SIGKILL");
  })));
  rmSync(folder, { recursive: true, force: true });
}
