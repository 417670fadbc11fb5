// State that all views share: the reader, the route, the sessions, the connection.
import { signal, computed, batch } from './h.js';
import { api, pages, paths, reportSignedOut } from './api.js';
import { isBroken, isLive, isWaiting, textOf, lastLine, unmarked } from './format.js';
import { subscribe } from './streams.js';

export const route = signal(parseRoute());
export const reader = signal(null); // { ownerId, role, keyId? }
export const sessions = signal(new Map()); // id -> { session, run, line, usage }
export const resolved = signal(new Map()); // waitId -> { by, atMs, decision, card } of waits that ended here or elsewhere
export const connection = signal({ state: 'connecting', sinceMs: Date.now() });
export const storeFailure = signal(null);
export const toasts = signal([]);
export const loading = signal(true);
export const adapters = signal([]);
export const overlay = signal(null); // 'palette', 'keys', 'new'
/** Closes an overlay; another one that was opened meanwhile stays. */
export const closeOverlay = name => { if (overlay.value === name) overlay.value = null; };
export const now = signal(Date.now());
setInterval(() => { now.value = Date.now(); }, 15000);

/** A run's usage. While the run works, its cost is unknown unless its agent reports usage as it happens. */
export function usageOf(run) {
  const live = isLive(run.status) && adapters.value.find(a => a.adapter === run.adapter)?.usageReports !== 'live';
  return live ? { ...run.usage, costUsd: null } : run.usage;
}

/** True if the reader may change a session or run. Others of its org may read it, pin it, fork it and judge it. */
export const mayChange = owned => mayWrite.value && owned?.ownerId === reader.value.ownerId;
export const mayWrite = computed(() => reader.value !== null && reader.value.role !== 'viewer');
export const isAdmin = computed(() => reader.value?.role === 'admin');
/** True if the reader runs the server: log-ins of agents and metrics concern every owner. */
export const isOperator = computed(() => isAdmin.value && !reader.value.orgId);

// ---- routes -------------------------------------------------------------

function parseRoute() {
  const parts = location.hash.replace(/^#\/?/, '').split('/').map(part => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  const [view, id, ...rest] = parts;
  if (view === 's' && id) return { view: 'session', id, tab: rest[0] === 'm' ? 'chat' : rest[0] || 'chat', message: ['m', 'tree'].includes(rest[0]) ? rest[1] : null };
  if (view === 'r' && id) return { view: 'run', id };
  const plain = ['inbox', 'agents', 'usage', 'settings'];
  return { view: plain.includes(view) ? view : 'board' };
}
addEventListener('hashchange', () => { route.value = parseRoute(); });
export const go = hash => { location.hash = hash; };

// ---- toasts -------------------------------------------------------------

let toastNo = 0;
/** Shows a text for some seconds. A problem is shown with its code and its remedy. */
export function toast(what, kind = 'info') {
  const isProblem = what instanceof Error;
  const item = isProblem
    ? { no: ++toastNo, kind: 'problem', text: what.message, code: what.code, remedy: what.remedy }
    : { no: ++toastNo, kind, text: what };
  toasts.value = [...toasts.value.slice(-3), item];
  setTimeout(() => dismiss(item.no), isProblem ? 9000 : 4000);
}
export const dismiss = no => { toasts.value = toasts.value.filter(t => t.no !== no); };

/** Runs an action of the reader; its problem is shown, and the answer is undefined then. */
export async function attempt(action, done) {
  try {
    const answer = await action();
    if (done) toast(done);
    return answer === null ? true : answer;
  } catch (error) {
    if (error.code === undefined) throw error;
    toast(error);
    return undefined;
  }
}

// ---- preferences --------------------------------------------------------

const stored = (name, fallback) => {
  try { return JSON.parse(localStorage.getItem(`mainspring.${name}`)) ?? fallback; } catch { return fallback; }
};
export function preference(name, fallback) {
  const value = signal(stored(name, fallback));
  value.subscribe(v => localStorage.setItem(`mainspring.${name}`, JSON.stringify(v)));
  return value;
}
export const theme = preference('theme', 'system');
export const sideBySide = preference('sideBySide', false);
export const notifications = preference('notifications', false);
theme.subscribe(value => { document.documentElement.dataset.theme = value; });

// ---- sessions -----------------------------------------------------------

// The most cards that a page keeps while it is open for days. The board reads at most 800 when it is opened.
const MOST_CARDS = 1000;

function put(id, change) {
  const all = new Map(sessions.value);
  const card = all.get(id);
  if (change === null) all.delete(id);
  else all.set(id, { ...card, ...(typeof change === 'function' ? change(card) : change) });
  if (all.size > MOST_CARDS) dropOldest(all);
  sessions.value = all;
}

/** Drops the card of the ended session that was active longest ago. */
function dropOldest(cards) {
  let oldest = null;
  for (const { session, run } of cards.values()) {
    if (!isLive(run?.status) && !session.pinned && !(oldest?.lastActivityAtMs <= session.lastActivityAtMs)) oldest = session;
  }
  cards.delete(oldest?.sessionId);
}

/** An item of `view=cards`: its run is the active one, or else the latest. */
function cardOf({ latestRun, card, ...session }, known) {
  const run = card.activeRun || latestRun;
  const { kind, ...last } = card.last || {};
  // While a run works, its own last line is newer than the last message of the path.
  const line = (run && isLive(run.status) && known?.run?.runId === run.runId && known.line) || (kind ? { ...last, ...(last.text && { text: unmarked(last.text) }) } : null);
  const isQueued = Boolean(card.activeRun) && latestRun?.status === 'queued';
  return { session: { ...session, prompt: card.prompt }, run, line, usage: card.usage, isQueued };
}

// The pause after which sessions that could not be read are read again.
const RETRY_MS = 2000;

const readCards = (query, most) => pages('/v1/sessions', { view: 'cards', ...query }, most);

/** Reads what the board shows: the latest sessions, and all with a run that has not ended. Called after the stream is open, so nothing falls in between. */
async function load() {
  const lists = await Promise.all([readCards({}, 300), readCards({ live: true }, 500)]);
  const all = new Map();
  for (const item of lists.flatMap(list => list.items)) all.set(item.sessionId, cardOf(item, sessions.value.get(item.sessionId)));
  batch(() => {
    sessions.value = all;
    loading.value = false;
  });
}

async function fetchCard(id) {
  try {
    const { items: [item] } = await readCards({ session: id }, 1);
    put(id, item ? known => cardOf(item, known) : null);
  } catch { /* the connection is lost: it is read again when the stream is open */ }
}

const pending = new Map();
/** Reads a card again, once for a burst of events. */
function refresh(id) {
  if (pending.has(id)) return;
  pending.set(id, setTimeout(() => {
    pending.delete(id);
    fetchCard(id);
  }, 120));
}

const RUN_STATUS = /^run\.(queued|starting|running|waiting_input|waiting_approval|cancelling|succeeded|failed|cancelled|timed_out|orphaned)$/;

function apply(event) {
  const { type, payload, sessionId, runId } = event;
  if (type === 'session.deleted') return put(sessionId, null);
  const card = sessions.value.get(sessionId);
  if (!card) return refresh(sessionId);
  if (type === 'approval.resolved' || type === 'input.provided' || type === 'tools.provided') noteResolved(event, card);
  const status = RUN_STATUS.exec(type)?.[1];
  if (status && card.run?.runId === runId && !isWaiting(status)) {
    put(sessionId, { run: { ...card.run, status, wait: undefined, error: payload.error, updatedAtMs: event.timestampMs } });
  }
  // Waits, ends and new runs carry more than their event: read them whole.
  if (status || type === 'session.updated' || type === 'session.created' || type === 'approval.requested' || type === 'input.requested') refresh(sessionId);
  const line = lineOf(event);
  if (line) put(sessionId, c => ({ line, session: { ...c.session, lastActivityAtMs: event.timestampMs } }));
}

/** The last thing a session did, as a line of its card. */
export function lineOf({ type, payload }) {
  if (type === 'tool.started') return { tool: payload.name };
  if (type === 'progress.updated') return { text: payload.text };
  if (type !== 'message.completed') return null;
  const { message } = payload;
  const call = message.content.find(b => b.type === 'tool_use');
  if (call) return { tool: call.title || call.name };
  const text = lastLine(textOf(message));
  return text ? { text, user: message.role === 'user' } : null;
}

const MOST_RESOLVED = 100;

/** Remembers how a wait ended, so that its entry in the inbox can say so. */
function noteResolved(event, card) {
  const wait = card.run?.wait;
  const { waitId } = event.payload;
  if (!wait || wait.waitId !== waitId) return;
  const all = new Map(resolved.value);
  if (all.size >= MOST_RESOLVED) all.delete(all.keys().next().value);
  all.set(waitId, {
    waitId, atMs: event.timestampMs, card,
    by: event.payload.decidedBy || event.payload.answeredBy || null,
    decision: event.payload.decision || (event.payload.input !== undefined || event.payload.results ? 'answered' : 'closed'),
  });
  resolved.value = all;
}

export const forget = waitId => {
  const all = new Map(resolved.value);
  all.delete(waitId);
  resolved.value = all;
};

/** Starts following all sessions. Called once per page, after the sign-in. */
export function follow() {
  let refused = false;
  let isLoaded = false;
  let reading; // the attempt to read the sessions that counts
  const read = async isRepeated => {
    const mine = (reading = {});
    try {
      await load();
      isLoaded = true;
    } catch (error) {
      if (error.code === undefined) throw error;
      if (error.status === 401 || reading !== mine) return;
      if (!isRepeated) toast(error);
      setTimeout(() => reading === mine && read(true), RETRY_MS);
    }
  };
  const unsubscribe = subscribe(paths.ownerEvents, message => {
    if (message.kind === 'state') {
      connection.value = message;
      refused = message.state === 'refused';
      if (refused && message.status === 401) reportSignedOut();
      // A stream that is resumed began with other tabs: this one may have read nothing yet.
      if (message.state === 'open' && !(message.resumed && isLoaded)) read(false);
      return;
    }
    if (refused) return;
    batch(() => {
      for (const frame of message.frames) receive(frame);
    });
  });
  return () => {
    reading = null;
    unsubscribe();
  };
}

function receive(frame) {
  if (frame.event === 'caught_up') return;
  const data = JSON.parse(frame.data);
  if (data.type === 'store.failed') storeFailure.value = data.payload;
  else if (data.type === 'store.recovered') storeFailure.value = null;
  else if (data.sessionId) apply(data);
}

/** Learns who the reader is and which agents there are. */
export async function identify() {
  const [me, list] = await Promise.all([api.me(), api.adapters()]);
  batch(() => {
    reader.value = me;
    adapters.value = list;
  });
}

// ---- the columns of the board and the inbox -------------------------------

export const waiting = computed(() => [...sessions.value.values()]
  .filter(card => isWaiting(card.run?.status) && card.run.wait)
  .sort((a, b) => a.run.updatedAtMs - b.run.updatedAtMs));

/** Work that a run delegated and that has ended: the run that delegated it tells the rest. */
export const isSettledChild = ({ run }) => Boolean(run?.parentRunId) && !isLive(run.status) && !isBroken(run.status);

export const needsYou = computed(() => waiting.value.length);
export { put as putCard, fetchCard };
