// The parts of a run as stretches of time: attempts, model calls, tools, waits.

const STATUS_TONE = { succeeded: 'good', failed: 'bad', timed_out: 'bad', orphaned: 'bad', cancelled: 'still' };

export function timeline({ run, attempts, steps, events }, now = Date.now()) {
  const rows = [];
  for (const a of attempts) {
    const from = a.startedAtMs || a.createdAtMs;
    rows.push({ kind: 'attempt', label: `Attempt ${a.attemptNo}`, from, to: a.completedAtMs || now, open: !a.completedAtMs, tone: STATUS_TONE[a.status] || 'busy', detail: a.error ? `${a.status}: ${a.error.message}` : a.status.replace('_', ' ') });
  }
  for (const s of steps) {
    rows.push({ kind: 'step', label: `Model call ${s.stepNo}`, from: s.startedAtMs, to: s.completedAtMs, tone: s.error ? 'bad' : 'model', detail: `${s.provider}/${s.model}, ${s.error ? s.error.message : s.stopReason.replace('_', ' ')}` });
  }
  rows.push(...stretches(events, now));
  rows.sort((a, b) => a.from - b.from || ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
  const from = Math.min(run.createdAtMs, ...rows.map(r => r.from));
  const to = Math.max(run.completedAtMs || run.updatedAtMs, ...rows.map(r => r.to));
  return { rows: rows.slice(0, 300), from, to };
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 20 * SECOND, 30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE];
const MAX_TICKS = 5;

/** Round times for the axis of a timeline that is `span` milliseconds long. */
export function ticksOf(span) {
  const hour = 60 * MINUTE;
  const step = STEPS.find(ms => span / ms <= MAX_TICKS) ?? Math.ceil(span / MAX_TICKS / hour) * hour;
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, i) => i * step);
}

const ORDER = ['attempt', 'step', 'tool', 'wait'];

function stretches(events, now) {
  const rows = [];
  const open = new Map();
  for (const { type, payload, timestampMs: at } of events) {
    if (type === 'tool.started') open.set(payload.toolUseId, { kind: 'tool', label: payload.name, from: at, to: now, open: true, tone: 'busy', detail: 'still running' });
    if (type === 'tool.completed' || type === 'tool.failed') {
      const row = open.get(payload.toolUseId) || { kind: 'tool', label: payload.name, from: at - (payload.durationMs || 0) };
      open.delete(payload.toolUseId);
      const isFailure = type === 'tool.failed';
      const unknown = isFailure && payload.outcome === 'unknown';
      rows.push({ ...row, to: at, open: false, unknown, tone: unknown ? 'needs' : isFailure ? 'bad' : 'tool', detail: isFailure ? `${payload.outcome}: ${payload.error?.message || ''}` : 'completed' });
    }
    if (type === 'input.requested' || type === 'approval.requested' || type === 'tools.requested') {
      open.set(payload.waitId, { kind: 'wait', label: type === 'approval.requested' ? 'Approval' : type === 'tools.requested' ? 'Tools of the caller' : 'Question', from: at, to: now, open: true, tone: 'needs', detail: payload.question || 'waiting' });
    }
    if (type === 'input.provided' || type === 'approval.resolved' || type === 'tools.provided') {
      const row = open.get(payload.waitId);
      if (!row) continue;
      open.delete(payload.waitId);
      rows.push({ ...row, to: at, open: false, detail: `${row.detail} — ${payload.decision || 'answered'}` });
    }
    if (/^run\.(succeeded|failed|cancelled|timed_out|orphaned)$/.test(type)) {
      for (const row of open.values()) rows.push({ ...row, to: at, open: false, unknown: row.kind === 'tool', detail: row.kind === 'tool' ? 'its end was not recorded: outcome unknown' : 'closed with the run' });
      open.clear();
    }
  }
  return [...rows, ...open.values()];
}
