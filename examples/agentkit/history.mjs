// Keeps the threads of AgentKit in mainspring: a thread is a session, and its id is the session's key.
//
//   createNetwork({ …, history: mainspringHistory({ url: "http://127.0.0.1:7433", token }) })
//
// Every request may be repeated: a message has the id that AgentKit gave it, and the results of a turn have the id of the
// message that they answer.
import { AgentResult } from "@inngest/agent-kit";

export function mainspringHistory({ url, token }) {
  // The message that a run has appended, by the state of the run.
  const asked = new WeakMap();
  const call = client(url, token);
  return {
    async createThread({ state }) {
      const threadId = state.threadId ?? crypto.randomUUID();
      await call("POST", "/v1/sessions", { key: threadId });
      return { threadId };
    },

    async appendUserMessage({ state, threadId, userMessage }) {
      const { id, content, timestamp } = userMessage;
      asked.set(state, id);
      await call("POST", `${session(threadId)}/messages`, { id, content, createdAtMs: new Date(timestamp).getTime() });
    },

    // AgentKit sends the new message to the model by itself, so the history ends before it.
    async get({ state, threadId }) {
      const messages = await path(call, threadId);
      return toResults(messages.filter((message) => message.externalId !== asked.get(state)));
    },

    async appendResults({ state, threadId, newResults }) {
      const messages = newResults.flatMap(toMessages);
      if (messages.length === 0) return;
      const beneath = asked.get(state);
      await call("POST", `${session(threadId)}/results`, { id: beneath ?? crypto.randomUUID(), beneath, messages });
    },
  };
}

/** Converts a result of an agent: what the model wrote, then the results of its tool calls. */
export function toMessages(result) {
  const about = { agent: result.agentName, createdAtMs: result.createdAt.getTime() };
  const content = result.output.flatMap((message) => {
    if (message.type === "tool_call") {
      return message.tools.map(({ id, name, input }) => ({ type: "tool_use", id, name, input }));
    }
    const parts = typeof message.content === "string" ? [{ text: message.content }] : message.content;
    return parts.map(({ text }) => ({ type: "text", text }));
  });
  if (content.length === 0) return [];
  const given = new Map(result.toolCalls.map((answer) => [answer.tool.id, answer.content]));
  const results = content.filter(({ type }) => type === "tool_use").map(({ id, name }) => {
    const answer = given.get(id) ?? { error: "the tool gave no result" };
    const text = typeof answer === "string" ? answer : JSON.stringify(answer);
    const isError = typeof answer === "object" && "error" in answer;
    return { type: "tool_result", toolUseId: id, name, content: [{ type: "text", text }], isError };
  });
  const written = { role: "assistant", content, id: result.id, ...about };
  return results.length === 0 ? [written] : [written, { role: "user", content: results, ...about }];
}

/** Converts messages back to results. A message of a person is a result of the agent "user". */
export function toResults(messages) {
  const results = [];
  for (const message of messages) {
    const at = new Date(message.createdAtMs);
    const id = message.externalId ?? message.messageId;
    const make = (agent, output) => new AgentResult(agent, output, [], at, undefined, undefined, undefined, id);
    if (message.role === "assistant") {
      results.push(make(message.agent ?? "assistant", toOutput(message.content)));
    } else if (message.content.some(({ type }) => type === "tool_result")) {
      const calls = message.content.filter(({ type }) => type === "tool_result");
      results.at(-1)?.toolCalls.push(...calls.map((answer) => toToolResult(answer, results.at(-1).output)));
    } else {
      const content = text(message.content);
      results.push(make("user", [{ role: "user", stop_reason: "stop", type: "text", content }]));
    }
  }
  return results;
}

// The keys are in the order in which AgentKit writes them: its checksums depend on it.
function toOutput(content) {
  const tools = content
    .filter(({ type }) => type === "tool_use")
    .map(({ id, name, input }) => ({ type: "tool", id, name, input }));
  const stop_reason = tools.length === 0 ? "stop" : "tool";
  const output = content
    .filter(({ type }) => type === "text")
    .map(({ text }) => ({ role: "assistant", stop_reason, type: "text", content: text }));
  return tools.length === 0 ? output : [...output, { role: "assistant", stop_reason, type: "tool_call", tools }];
}

function toToolResult(answer, output) {
  const tools = output.flatMap((message) => (message.type === "tool_call" ? message.tools : []));
  const tool = tools.find(({ id }) => id === answer.toolUseId);
  let content = text(answer.content);
  try {
    content = JSON.parse(content);
  } catch {
    // The tool answered with plain text.
  }
  return { role: "tool_result", type: "tool_result", tool, content, stop_reason: "tool" };
}

function text(content) {
  return content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

function session(threadId) {
  return `/v1/sessions/${encodeURIComponent(threadId)}`;
}

/** Reads all messages of a thread, the oldest first. */
async function path(call, threadId) {
  const messages = [];
  let before = "";
  do {
    const page = await call("GET", `${session(threadId)}/messages?limit=100${before}`);
    messages.unshift(...page.items);
    before = page.next === undefined ? undefined : `&before=${page.next}`;
  } while (before !== undefined);
  return messages;
}

function client(url, token) {
  return async (method, path, body) => {
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    const response = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
    const answer = await response.json();
    if (!response.ok) throw new Error(`mainspring: ${answer.code}: ${answer.detail}`);
    return answer;
  };
}
