// Drives the control tools with the official TypeScript SDK.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { MAINSPRING, SERVER_TOKEN, SERVER_URL } = process.env;

function check(holds, what) {
  if (!holds) throw new Error(JSON.stringify(what));
}

async function api(path, body, wait = 20) {
  const answer = await fetch(SERVER_URL + path, {
    method: "POST",
    headers: { Authorization: `Bearer ${SERVER_TOKEN}`, "Content-Type": "application/json", Prefer: `wait=${wait}` },
    body: JSON.stringify(body),
  });
  check(answer.ok, await answer.clone().text());
  return answer.json();
}

async function drive(transport, session) {
  const client = new Client({ name: "check", version: "1" });
  await client.connect(transport);
  check(client.getServerVersion().name === "mainspring", client.getServerVersion());
  const { tools } = await client.listTools();
  check(tools.length === 6 && tools.every((tool) => tool.outputSchema && tool.annotations), tools);
  // The SDK itself checks structured content against the output schema.
  const call = (name, args) => client.callTool({ name, arguments: args });
  const sent = await call("send_agent_message", { sessionId: session, prompt: "say again" });
  check(!sent.isError && sent.structuredContent.text === "again\n", sent);
  const { run, attempt } = sent.structuredContent;
  for (const [name, args] of [
    ["list_agent_sessions", { limit: 1 }],
    ["get_agent_run", { runId: run.runId }],
    ["inspect_agent_artifacts", { attemptId: attempt.attemptId }],
  ]) {
    const answer = await call(name, args);
    check(!answer.isError && answer.structuredContent.ok === true, answer);
  }
  const { runId } = await api("/v1/runs", { prompt: "hang", session: {} }, 0);
  const delegated = await call("delegate_agent", { objective: "say done", parentRunId: runId });
  check(delegated.structuredContent.result.summary === "done\n", delegated);
  const cancelled = await call("cancel_agent_run", { runId });
  check(cancelled.structuredContent.cancellation.accepted, cancelled);
  const refused = await call("get_agent_run", { runId: `run_${"0".repeat(32)}` });
  check(refused.isError && JSON.parse(refused.content[0].text).error.code === "not_found", refused);
  await client.close();
}

function overHttp(token) {
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  return new StreamableHTTPClientTransport(new URL("/mcp", SERVER_URL), { requestInit });
}

const { sessionId } = await api("/v1/runs", { prompt: "say hello", session: { key: "typescript" } });
await drive(overHttp(SERVER_TOKEN), sessionId);
await drive(new StdioClientTransport({ command: MAINSPRING, args: ["mcp"], env: process.env }), sessionId);
const refused = await drive(overHttp("wrong"), sessionId).catch((error) => error);
check(refused?.code === 401, `${refused}`);
