// Keeps the messages of the Vercel AI SDK (`ai`) in mainspring: a thread is a session, and its id is the session's key.
//
// Every request may be repeated: a message has the id that the program gave it, and the results of a turn have the id of
// the message that they answer.

export function mainspringThread({ url, token, threadId }) {
  const call = client(url, token);
  const session = `/v1/sessions/${encodeURIComponent(threadId)}`;
  return {
    /** Creates the thread, or opens the one that exists. */
    open: () => call("POST", "/v1/sessions", { key: threadId }),

    /** Reads the thread as messages for a model. */
    async messages() {
      const messages = [];
      let before = "";
      do {
        const page = await call("GET", `${session}/messages?limit=100${before}`);
        messages.unshift(...page.items);
        before = page.next === undefined ? undefined : `&before=${page.next}`;
      } while (before !== undefined);
      return messages.map(toModelMessage);
    },

    /** Appends a message of a person. */
    ask: (id, content) => call("POST", `${session}/messages`, { id, content }),

    /** Appends what the model answered to the message `id`: the `response.messages` and the `totalUsage` of a result. */
    answer(id, messages, usage, agent) {
      const { inputTokens, outputTokens } = usage ?? {};
      const body = { id, beneath: id, agent, messages: messages.map(fromModelMessage) };
      if (inputTokens !== undefined) body.usage = { inputTokens, outputTokens, costUsd: null };
      return call("POST", `${session}/results`, body);
    },
  };
}

/** Converts a message of the SDK. */
export function fromModelMessage({ role, content }) {
  if (role === "tool") return { role: "user", content: content.map(fromToolResult) };
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : content;
  const blocks = parts.flatMap((part) => {
    if (part.type === "text") return [{ type: "text", text: part.text }];
    if (part.type === "tool-call") {
      return [{ type: "tool_use", id: part.toolCallId, name: part.toolName, input: part.input }];
    }
    // Thoughts are never stored: this marks that there were some.
    return part.type === "reasoning" ? [{ type: "thinking" }] : [];
  });
  return { role, content: blocks };
}

function fromToolResult({ toolCallId, toolName, output }) {
  const isText = output.type === "text" || output.type === "error-text";
  return {
    type: "tool_result",
    toolUseId: toolCallId,
    name: toolName,
    content: [{ type: "text", text: isText ? output.value : JSON.stringify(output.value) }],
    isError: output.type.startsWith("error"),
  };
}

/** Converts a message of mainspring. */
export function toModelMessage({ role, content }) {
  const results = content.filter(({ type }) => type === "tool_result");
  if (results.length > 0) return { role: "tool", content: results.map(toToolResult) };
  const parts = content.flatMap((block) => {
    if (block.type === "text") return [{ type: "text", text: block.text }];
    if (block.type !== "tool_use") return [];
    return [{ type: "tool-call", toolCallId: block.id, toolName: block.name, input: block.input }];
  });
  return { role, content: parts };
}

function toToolResult({ toolUseId, name, content, isError }) {
  const value = content.map((block) => (block.type === "text" ? block.text : "")).join("");
  const output = { type: isError ? "error-text" : "text", value };
  return { type: "tool-result", toolCallId: toolUseId, toolName: name, output };
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
