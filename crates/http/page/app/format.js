// Texts for numbers, times and names. Times are those of the reader's own clock and zone.

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const day = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });
const whole = new Intl.NumberFormat();

export const timeExact = ms => exact.format(ms);
export const timeOfDay = ms => clock.format(ms);
export const dayOf = ms => day.format(ms);
export const number = n => whole.format(n);

export const isToday = ms => new Date(ms).toDateString() === new Date().toDateString();

/** The age of a moment, short: "now", "4 min", "3 h", "2 d". */
export function age(ms, now = Date.now()) {
  const s = Math.max(0, (now - ms) / 1000);
  if (s < 45) return 'now';
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86400) return `${Math.round(s / 3600)} h`;
  if (s < 86400 * 14) return `${Math.round(s / 86400)} d`;
  return dayOf(ms);
}

/** The time that is left until a moment: "3 h left", or "expired". */
export function left(ms, now = Date.now()) {
  const s = (ms - now) / 1000;
  if (s <= 0) return 'expired';
  if (s < 90) return `${Math.ceil(s)} s left`;
  if (s < 5400) return `${Math.round(s / 60)} min left`;
  if (s < 129600) return `${Math.round(s / 3600)} h left`;
  return `${Math.round(s / 86400)} d left`;
}

/** The time of a moment, with its day if it is not today. */
export const moment = ms => (isToday(ms) ? timeOfDay(ms) : `${dayOf(ms)}, ${timeOfDay(ms)}`);

/** A time that still grows, in whole seconds. */
export const elapsed = ms => (ms < 60000 ? `${Math.max(0, Math.floor(ms / 1000))} s` : duration(ms));

export function duration(ms) {
  if (ms == null) return 'unknown';
  // Rounded before it is divided into units: 59,960 ms are a minute, not 60.0 s.
  const [millis, tenths, seconds] = [1, 100, 1000].map(unit => Math.round(ms / unit));
  if (millis < 1000) return `${millis} ms`;
  if (tenths < 600) return `${(tenths / 10).toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** The cost of something, in a line without the word cost beside it. */
export const costText = usage => (cost(usage) === 'unknown' ? 'cost unknown' : cost(usage));

/** A cost. Unknown is never 0: a null amount says so, and a partial one is "at least". */
export function cost(usage) {
  if (!usage || usage.costUsd == null || (usage.atLeast && usage.costUsd === 0)) return 'unknown';
  return (usage.atLeast ? '≥ ' : '') + dollars(usage.costUsd);
}

export function dollars(usd) {
  if (usd === 0) return '$0';
  if (usd < 0.0095) return `$${usd.toPrecision(1)}`;
  return `$${usd.toFixed(usd < 100 ? 2 : 0)}`;
}

export function tokens(n) {
  if (n < 1000) return String(n);
  if (n < 1e6) return `${(n / 1000).toFixed(n < 10000 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)}M`;
}

export function bytes(n) {
  if (n == null) return 'unknown size';
  if (n < 1024) return `${n} B`;
  if (n < 1048576) return `${(n / 1024).toFixed(1)} KB`;
  return `${(n / 1048576).toFixed(1)} MB`;
}

export const allTokens = u => (u ? (u.inputTokens || 0) + (u.outputTokens || 0) + (u.cacheReadTokens || 0) + (u.cacheWriteTokens || 0) : 0);

/** All tokens of a usage. Those of an agent that reports nothing are unknown, not 0. */
export function tokenCount(usage) {
  const all = allTokens(usage);
  if (!usage || (!all && (usage.atLeast || usage.costUsd == null))) return 'unknown';
  return (usage.atLeast ? '≥ ' : '') + tokens(all);
}

/** The last two parts of a folder, enough to recognise it. */
export function folder(path) {
  if (!path) return '';
  const parts = path.split('/').filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join('/')}` : path;
}

/** The definition of a session's agent, if it is not the built-in one. */
export const definitionOf = ({ agentDefinition }) => (agentDefinition?.startsWith('mainspring.') ? null : agentDefinition);

/** The title of a session. A session gets one after its first run; its key or prompt is shown until then. */
export const titleOf = session => session?.title || session?.key || session?.prompt || (session ? `Session ${shortId(session.sessionId)}` : 'Session');
export const shortId = id => (id || '').replace(/^([a-z]+_.{6}).*$/, '$1');

const STATUS = {
  queued: 'Queued', starting: 'Starting', running: 'Working', waiting_input: 'Asks you', waiting_approval: 'Asks for approval',
  cancelling: 'Stopping', succeeded: 'Done', failed: 'Failed', cancelled: 'Stopped', timed_out: 'Timed out', orphaned: 'Orphaned',
};
export const statusText = status => STATUS[status] || status;
export const isLive = status => ['queued', 'starting', 'running', 'waiting_input', 'waiting_approval', 'cancelling'].includes(status);
export const isWaiting = status => status === 'waiting_input' || status === 'waiting_approval';
export const isBroken = status => status === 'failed' || status === 'timed_out' || status === 'orphaned';

/** The question of a wait without the JSON of its input, which is shown apart. */
export function questionOf(wait) {
  const { question, approval } = wait;
  const at = question.search(/\s\{/);
  if (!approval?.call || at < 0) return question;
  try {
    JSON.parse(question.slice(at));
    return question.slice(0, at);
  } catch {
    return question;
  }
}

/** The person, key, rule or policy that decided, for people. */
export function decider(by) {
  if (!by) return 'nobody';
  if (by.kind === 'person') return by.ownerId;
  if (by.kind === 'key') return `${by.ownerId} (key ${shortId(by.keyId)})`;
  if (by.kind === 'rule') return `the rule “${by.rule}”`;
  return `the policy ${by.policy}`;
}

export const textOf = message =>
  (message?.content || []).filter(b => b.type === 'text').map(b => b.text).join('\n');

/** A line of markdown without its marks. Names such as `deep_input` stay as they are. */
export const unmarked = line => line.replace(/^[\s#>*-]+ |\*\*|`/g, '').trim();

const LINE_CHARS = 200;

/** The last line of a text, as a card shows it. The copy keeps a part of a long text from holding the whole of it in memory. */
export function lastLine(text) {
  const trimmed = (text || '').trimEnd();
  const from = trimmed.lastIndexOf('\n') + 1;
  const line = structuredClone(trimmed.slice(from, from + LINE_CHARS));
  return unmarked(trimmed.length - from > LINE_CHARS ? `${line}…` : line);
}
