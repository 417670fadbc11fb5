// Answers that take several requests today. Each function stands for one
// endpoint: when the server has it, only this file changes.
import { api, pages } from './api.js';

const ACTIVE = ['waiting_approval', 'waiting_input', 'running', 'starting', 'cancelling'];

/** The active runs of all sessions: a session's latest run may be queued behind one of them. */
export async function activeRuns() {
  const lists = await Promise.all(ACTIVE.map(status => pages('/v1/runs', { status }, 500)));
  return lists.flatMap(list => list.items);
}

export const activeOf = runs => runs.find(run => ACTIVE.includes(run.status)) || runs[0] || null;

// ---- details of cards ------------------------------------------------------

const cards = new Map();
const queue = [];
let active = 0;

/** The last line and the cost of a session, read when its card is first shown. */
export function cardDetails(session) {
  const key = session.sessionId;
  const known = cards.get(key);
  if (known && known.at === session.lastActivityAtMs) return known.promise;
  const promise = new Promise(resolve => queue.push({ session, resolve }));
  cards.set(key, { at: session.lastActivityAtMs, promise });
  drain();
  return promise;
}

async function drain() {
  if (active >= 3 || !queue.length) return;
  active++;
  const { session, resolve } = queue.pop();
  try {
    const [messages, usage] = await Promise.all([api.messages(session.sessionId, { limit: 1 }), api.sessionUsage(session.sessionId)]);
    resolve({ message: messages.items.at(-1) || null, usage: usage.totalUsage });
  } catch {
    resolve({ message: null, usage: null });
  }
  active--;
  drain();
}

// ---- tools ------------------------------------------------------------------

const toolRuns = new Map();

/** How the tool calls of an ended run went: toolUseId -> { outcome, durationMs }. */
export function toolEnds(runId) {
  if (!toolRuns.has(runId)) toolRuns.set(runId, readToolEnds(runId));
  return toolRuns.get(runId);
}

async function readToolEnds(runId) {
  const ends = new Map();
  try {
    const { items } = await pages(`/v1/runs/${runId}/events`, {}, 2000, 'after');
    for (const event of items) noteTool(ends, event);
  } catch { /* pruned events: the outcome is that of the message, the duration unknown */ }
  return ends;
}

export function noteTool(ends, { type, payload, timestampMs }) {
  const id = payload?.toolUseId;
  if (!id) return;
  const before = ends.get(id) || {};
  if (type === 'tool.started') ends.set(id, { ...before, startedAtMs: timestampMs, outcome: before.outcome || 'running' });
  if (type === 'tool.updated') ends.set(id, { ...before, progress: payload.text });
  if (type === 'tool.completed') ends.set(id, { ...before, outcome: 'completed', durationMs: payload.durationMs, content: payload.content });
  if (type === 'tool.failed') ends.set(id, { ...before, outcome: payload.outcome, durationMs: payload.durationMs, error: payload.error, content: payload.content });
  if (type === 'tool.unasked') ends.set(id, { ...before, unasked: true });
}

// ---- messages ----------------------------------------------------------------

/** Up to `most` messages of the active path, from its end, in their order. */
export async function pathMessages(sessionId, most) {
  const parts = [];
  let next;
  let count = 0;
  do {
    const page = await api.messages(sessionId, { limit: 500, before: next });
    parts.unshift(page.items);
    count += page.items.length;
    next = page.next;
  } while (next && count < most);
  return { items: parts.flat(), next };
}

// ---- changes -----------------------------------------------------------------

/** The recorded changes of files of a session's active path, in order, by run. */
export async function sessionChanges(sessionId) {
  const { items, next } = await pathMessages(sessionId, 4000);
  const turns = new Map();
  let calls = 0;
  for (const message of items) {
    for (const block of message.content) {
      if (block.type === 'tool_use') calls++;
      if (block.type !== 'tool_result') continue;
      for (const diff of block.content.filter(b => b.type === 'diff')) {
        const turn = turns.get(message.runId) || { runId: message.runId, atMs: message.createdAtMs, diffs: [] };
        turn.diffs.push({ ...diff, tool: block.name, isError: block.isError });
        turns.set(message.runId, turn);
      }
    }
  }
  const prompts = new Map(items.filter(m => m.role === 'user' && m.content.some(b => b.type === 'text')).map(m => [m.runId, m]));
  return { turns: [...turns.values()], prompts, calls, complete: !next };
}

/** The two texts of a change; long ones are artifacts. */
export async function diffTexts(diff) {
  const text = async (inline, artifact) => (artifact ? (await api.artifactContent(artifact)).text() : inline ?? null);
  return { before: await text(diff.before, diff.beforeArtifact), after: await text(diff.after, diff.afterArtifact) };
}

// ---- usage -------------------------------------------------------------------

/** The latest runs, from which the page sums usage by day, agent, model and session. */
export const recentRuns = () => pages('/v1/runs', {}, 2000);
