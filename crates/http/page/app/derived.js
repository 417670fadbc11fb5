// Answers that take several requests: the ends of a run's tools, long paths, past
// approvals, and texts of changes that are artifacts.
import { api, pages } from './api.js';

// ---- tools ------------------------------------------------------------------

const toolRuns = new Map();
const MOST_RUNS = 100;

/** How the tool calls of a run went: toolUseId -> { outcome, durationMs }. Kept once no later read can tell more. */
export function toolEnds(runId) {
  if (!toolRuns.has(runId)) {
    if (toolRuns.size >= MOST_RUNS) toolRuns.delete(toolRuns.keys().next().value);
    const reading = readTools(runId);
    toolRuns.set(runId, reading.then(({ ends }) => ends));
    reading.then(({ isFinal }) => isFinal || toolRuns.delete(runId));
  }
  return toolRuns.get(runId);
}

/** The same, as far as the run has come. */
export const readToolEnds = async runId => (await readTools(runId)).ends;

const STATUS = /^run\.(?:(succeeded|failed|cancelled|timed_out|orphaned)|queued|starting|running)$/;

async function readTools(runId) {
  const ends = new Map();
  let isFinal = false;
  try {
    const { items, next } = await pagesOfEvents(runId);
    for (const event of items) {
      noteTool(ends, event);
      // A run that has ended may be retried.
      const status = STATUS.exec(event.type);
      if (status) isFinal = Boolean(status[1]);
    }
    // Of a longer run the later events are never read.
    isFinal ||= Boolean(next);
  } catch (error) {
    // Pruned events: the outcome is that of the message, the duration unknown.
    isFinal = error.status === 410;
  }
  return { ends, isFinal };
}

const pagesOfEvents = runId => pages(`/v1/runs/${runId}/events`, {}, 2000, 'after');

/** The events of a run, from its beginning. */
export const runEvents = async runId => (await pagesOfEvents(runId)).items;

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

// ---- approvals ---------------------------------------------------------------

/** The latest `most` approvals that were decided, the newest first, with their questions. */
export async function pastApprovals(most) {
  const questions = new Map();
  let latest = [];
  let after = '0.0';
  do {
    // The log is read from its beginning: it has no order from its end.
    const page = await api.ownerEvents({ types: 'approval', limit: 500, after });
    for (const event of page.items) {
      const { waitId, question } = event.payload;
      if (event.type === 'approval.requested') questions.set(waitId, question);
      else if (event.type === 'approval.resolved') {
        latest.push({ ended: event, question: questions.get(waitId) });
        questions.delete(waitId);
      }
    }
    latest = latest.slice(-most);
    after = page.next;
  } while (after);
  return latest.reverse();
}

// ---- changes -----------------------------------------------------------------

/** The two texts of a change; long ones are artifacts. */
export async function diffTexts(diff) {
  const text = async (inline, artifact) => (artifact ? (await api.artifactContent(artifact)).text() : inline ?? null);
  return { before: await text(diff.before, diff.beforeArtifact), after: await text(diff.after, diff.afterArtifact) };
}
