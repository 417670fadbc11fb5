// Measures a network of five steps in AgentKit, which keeps it in memory, and in mainspring, which stores every step.
//
//   node network.mjs PACKAGES PROGRAM BENCH
//
// First table: the work of both on a model that answers within their process, in turn, three times. Ours is measured by the
// benchmark `network` of the program BENCH.
//
// Second table: all of them ask the same scripted model over HTTP, in turn. A step is the time of the whole network divided by its steps;
// the bare requests show how much of it is the model's: plain ones as AgentKit makes them, streamed ones as mainspring does.
// The time in which runs of mainspring waited for commits is read from its metrics.
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, program, bench] = process.argv.slice(2);
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
  writeFileSync(join(dir, "agents", "worker.toml"), `id = "worker"\nsystem = ${system}\ntools = []\n`);
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
  const run = async () => {
    const session = { key: `run-${count++}`, agentDefinition: "team" };
    const body = JSON.stringify({ prompt: "go", adapter: "native", session });
    const response = await fetch(`${url}/v1/runs`, { method: "POST", headers, body });
    const run = await response.json();
    const texts = (run.finalText ?? "").split("ok").length - 1;
    if (run.status !== "succeeded" || texts !== STEPS) throw new Error(JSON.stringify(run));
  };
  const committed = async () => {
    const metrics = await (await fetch(`${url}/metrics`, { headers })).text();
    return Number(metrics.match(/^mainspring_commit_seconds_sum (\S+)/m)[1]) * 1000;
  };
  return { run, committed };
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
function bareRequests(model, stream) {
  const messages = [{ role: "system", content: SYSTEM }, { role: "user", content: "go" }];
  const body = JSON.stringify({ model: "m", messages, stream });
  const headers = { authorization: "Bearer none", "content-type": "application/json" };
  return async () => {
    for (let step = 0; step < STEPS; step++) {
      const response = await fetch(`${model}/chat/completions`, { method: "POST", headers, body });
      if (!(await response.text()).includes("ok")) throw new Error(`the model answered ${response.status}`);
    }
  };
}

/** Runs the network of AgentKit with a model that answers at once within the process, and returns the time of a step. */
async function inMemory(run, model) {
  const { fetch } = globalThis;
  const headers = { "content-type": "application/json" };
  const messages = [{ role: "user", content: `${SYSTEM} go` }];
  const asked = { method: "POST", headers, body: JSON.stringify({ model: "m", messages }) };
  const answer = await (await fetch(`${model}/chat/completions`, asked)).text();
  globalThis.fetch = async () => new Response(answer, { headers });
  try {
    const times = [];
    for (let round = -WARM_UP; round < ROUNDS; round++) {
      const begin = performance.now();
      await run();
      if (round >= 0) times.push((performance.now() - begin) / STEPS);
    }
    return median(times);
  } finally {
    globalThis.fetch = fetch;
  }
}

/** Runs the benchmark of mainspring, and returns the times of a step: all of it, and without its commits. */
function benchmark() {
  const lines = execFileSync(bench, ["--markdown", "network"], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  return [/a network of five steps, in memory, per step\s*\| ([\d.]+) ms/, /commits, in memory\s*\| ([\d.]+) ms/].map(
    (pattern) => Number(lines.match(pattern)[1]),
  );
}

/** Compares the work of both without requests over a network. */
async function compareInMemory(run, model) {
  const [theirs, ours, uncommitted] = [[], [], []];
  for (let round = 0; round < 3; round++) {
    theirs.push(await inMemory(run, model));
    const [all, without] = benchmark();
    ours.push(all);
    uncommitted.push(without);
  }
  console.log(`| a network of ${STEPS} steps, a model that answers at once | per step, median of 3 (all) |\n|---|---|`);
  for (const [title, times] of [
    ["AgentKit, in memory", theirs], ["mainspring, store in memory", ours],
    ["mainspring, store in memory, without the time of its commits", uncommitted],
  ]) {
    const all = times.map((time) => time.toFixed(2)).join(", ");
    console.log(`| ${title} | ${median([...times]).toFixed(2)} ms (${all}) |`);
  }
  console.log();
}

function median(values) {
  return values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
}

async function main() {
  const model = await startModel();
  const agentKitRun = await agentKit(model);
  await compareInMemory(agentKitRun, model);
  const members = [
    { title: "the model alone, asked from Node.js", run: bareRequests(model, false) },
    { title: "the model alone, streamed to Node.js", run: bareRequests(model, true) },
    { title: "AgentKit, in memory", model: 0, run: agentKitRun },
    { title: "mainspring over HTTP, durability normal: no sync", model: 1, ...(await startServer("normal", model)) },
    { title: "mainspring over HTTP, durability full: each commit synced", model: 1, ...(await startServer("full", model)) },
  ].map((member) => ({ ...member, times: [], uncommitted: [] }));
  for (let round = -WARM_UP; round < ROUNDS; round++) {
    for (let no = 0; no < members.length; no++) {
      const { run, committed, times, uncommitted } = members[(no + round + WARM_UP) % members.length];
      const before = (await committed?.()) ?? 0;
      const begin = performance.now();
      await run();
      const time = performance.now() - begin;
      const commits = ((await committed?.()) ?? 0) - before;
      if (round < 0) continue;
      times.push(time / STEPS);
      uncommitted.push((time - commits) / STEPS);
    }
  }
  const ms = (time) => `${time.toFixed(2)} ms`;
  const bare = members.map(({ times }) => median(times));
  console.log(`| a network of ${STEPS} steps, p50 of ${ROUNDS} | per step | without the model | and without commits |`);
  console.log("|---|---|---|---|");
  members.forEach(({ title, model, committed, uncommitted }, no) => {
    const without = model === undefined ? "" : ms(bare[no] - bare[model]);
    const last = committed ? ms(median(uncommitted) - bare[model]) : without;
    console.log(`| ${title} | ${ms(bare[no])} | ${without} | ${last} |`);
  });
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
