// One session as it happens: a snapshot, then every event after its position.
//
// The stream is opened first and its frames are kept; then the snapshot is read,
// and frames up to its position are dropped, the first delta cut where needed.
// So no byte is missing and none is shown twice.
import { signal, batch } from './h.js';
import { api, paths } from './api.js';
import { noteTool, pathMessages, runEvents } from './derived.js';
import { noteSent } from './drafts.js';
import { isLive, isWaiting, textOf } from './format.js';
import { withFeedback } from './feedback.js';
import { comparePositions, split } from './sse.js';
import { subscribe } from './streams.js';

const PAGE = 200;
// A reader at the end of a session keeps about this much text; what is older is read again when it is scrolled to.
const KEPT_CHARS = 120000;
const KEPT_MESSAGES = 20;

export class Conversation {
  constructor(id) {
    this.id = id;
    this.session = signal(null);
    this.messages = signal([]);
    this.open = signal([]); // [{ messageId, blocks: [{ block, text: signal }] }] that still stream
    this.run = signal(null); // the active run, or the last one
    this.queued = signal([]);
    this.thought = signal('');
    this.progress = signal('');
    this.stop = signal(null); // { requestedAtMs, toldAtMs, acknowledged, stoppedAtMs, proof }
    this.connection = signal({ state: 'connecting', sinceMs: Date.now() });
    this.error = signal(null);
    this.loadingOlder = signal(false);
    this.reachedStart = signal(false);
    this.tools = new Map();
    this.toolsEnded = signal(0); // changes when a tool call ends
    this.feedback = signal(new Map()); // messageId -> ownerId -> feedback
    this.isAtEnd = true; // set by the view: a reader who looks at older messages keeps them
    this.waiting = [];
    this.position = null;
  }

  start() {
    this.unsubscribe = subscribe(paths.sessionEvents(this.id), message => this.receive(message));
  }

  close() {
    this.closed = true;
    this.unsubscribe?.();
  }

  receive(message) {
    if (message.kind === 'state') {
      this.connection.value = message;
      if (message.state === 'refused') this.load();
      // A stream that is resumed began with other tabs: this one may have read nothing yet.
      if (message.state === 'open' && !(message.resumed && this.position !== null)) this.load();
      return;
    }
    if (this.position === null) this.waiting.push(...message.frames);
    else this.applyAll(message.frames);
  }

  /** Reads the snapshot. Frames that arrive meanwhile wait for its position. */
  async load() {
    this.position = null;
    const mine = (this.loading = {});
    try {
      const snapshot = await api.snapshot(this.id);
      if (this.closed || this.loading !== mine) return;
      // A prompt that was removed from the queue is a run that never started.
      const runs = snapshot.activeRun ? [] : (await api.runs({ session: this.id, limit: 10 })).items;
      const last = runs.find(run => run.startedAtMs) || runs[0];
      if (this.closed || this.loading !== mine) return;
      batch(() => {
        this.adopt(snapshot, last);
        const frames = this.waiting;
        this.waiting = [];
        this.applyAll(frames);
      });
      this.readFeedback();
      this.readPast(this.run.value);
    } catch (error) {
      if (error.code === undefined) throw error;
      if (this.session.value === null || error.code === 'not_found') this.error.value = error;
      else setTimeout(() => !this.closed && this.loading === mine && this.load(), 2000);
    }
  }

  adopt(snapshot, lastRun) {
    const fresh = [...snapshot.messages, ...snapshot.pending];
    const known = this.messages.value;
    const join = known.findIndex(m => m.messageId === fresh[0]?.messageId);
    this.messages.value = join > 0 ? [...known.slice(0, join), ...fresh] : fresh;
    if (join < 0) this.reachedStart.value = false;
    this.open.value = snapshot.partial.map(({ messageId, blocks }) => ({ messageId, blocks: blocks.map(b => ({ block: b.block, text: signal(b.text) })) }));
    this.session.value = snapshot.session;
    this.adoptQueue(snapshot);
    this.setRun(snapshot.activeRun || lastRun || null);
    this.error.value = null;
    this.position = snapshot.position;
  }

  /** The prompts that wait. One that has joined the active run is among its messages. */
  adoptQueue({ queuedRuns, queuedPrompts = [] }) {
    for (const prompt of queuedPrompts) {
      const run = queuedRuns.find(({ promptMessageId }) => promptMessageId === prompt.messageId);
      if (run) noteSent(run.runId, textOf(prompt));
    }
    this.queued.value = queuedRuns.filter(run => !run.mergedIntoRunId);
  }

  setRun(run) {
    if (run?.runId !== this.run.value?.runId) this.stop.value = null;
    this.run.value = run;
  }

  applyAll(frames) {
    batch(() => {
      for (const frame of frames) {
        if (this.position === null) this.waiting.push(frame);
        else this.applyFrame(frame);
      }
    });
  }

  applyFrame(frame) {
    const data = JSON.parse(frame.data);
    if (frame.event === 'thought') { this.thought.value = (this.thought.value + data.text).slice(-4000); return; }
    if (frame.event === 'reset') { this.adopt(data, this.run.value); return; }
    if (data.type === 'message.truncated') { this.load(); return; }
    if (frame.id !== null) {
      if (comparePositions(frame.id, this.position) <= 0) return;
      if (data.type === 'message.delta') data.payload.text = this.cut(frame.id, data.payload.text);
      this.position = frame.id;
    }
    this.apply(data);
  }

  /** The part of a delta that the snapshot does not contain. */
  cut(id, text) {
    const [cursor, end] = split(id);
    const [seenCursor, seen] = split(this.position);
    if (cursor !== seenCursor) return text;
    const encoded = new TextEncoder().encode(text);
    const start = end - encoded.length;
    return start >= seen ? text : new TextDecoder().decode(encoded.slice(seen - start));
  }

  tool(id) {
    if (!this.tools.has(id)) this.tools.set(id, signal(null));
    return this.tools.get(id);
  }

  apply(event) {
    const { type, payload } = event;
    if (type === 'message.delta') return this.delta(payload);
    if (type === 'message.completed') return this.complete(payload);
    if (type.startsWith('tool.')) {
      const ends = new Map([[payload.toolUseId, this.tool(payload.toolUseId).value || {}]]);
      noteTool(ends, event);
      this.tool(payload.toolUseId).value = ends.get(payload.toolUseId);
      if (type === 'tool.completed' || type === 'tool.failed') this.toolsEnded.value++;
      return undefined;
    }
    if (type === 'progress.updated') { this.progress.value = payload.text; return undefined; }
    if (type === 'feedback.given') { this.feedback.value = withFeedback(this.feedback.value, payload); return undefined; }
    if (type === 'tasks.updated' || type.startsWith('goal.')) { this.planEvent(event); return undefined; }
    if (type === 'session.updated') return this.sessionUpdated(payload);
    if (type === 'session.deleted') { this.error.value = { code: 'not_found', message: 'This session was deleted.', remedy: '' }; return undefined; }
    if (type.startsWith('run.') || type.startsWith('attempt.') || type.startsWith('approval.') || type.startsWith('input.') || type.startsWith('tools.')) this.runEvent(event);
    return undefined;
  }

  delta({ messageId, block, text }) {
    if (!text) return;
    this.thought.value = '';
    let list = this.open.value;
    let message = list.find(m => m.messageId === messageId);
    if (!message) {
      message = { messageId, blocks: [] };
      list = this.open.value = [...list, message];
    }
    const found = message.blocks.find(b => b.block === block);
    if (found) { found.text.value += text; return; }
    const grown = { messageId, blocks: [...message.blocks, { block, text: signal(text) }] };
    this.open.value = list.map(m => (m === message ? grown : m));
  }

  complete({ message, parentId }) {
    this.open.value = this.open.value.filter(m => m.messageId !== message.messageId);
    this.thought.value = '';
    const list = this.messages.value;
    const at = list.findIndex(m => m.messageId === message.messageId);
    if (at >= 0) { this.messages.value = list.map((m, i) => (i === at ? message : m)); return; }
    const last = list.at(-1);
    if (!parentId) { this.messages.value = [message]; this.reachedStart.value = true; return; }
    if (last?.messageId === parentId) { this.messages.value = this.trim([...list, message]); return; }
    const parent = list.findIndex(m => m.messageId === parentId);
    if (parent >= 0) this.messages.value = [...list.slice(0, parent + 1), message];
    else this.load();
  }

  /** Drops the oldest of many messages, so that a page that is open all day does not grow. */
  trim(list) {
    if (!this.isAtEnd || list.length <= KEPT_MESSAGES) return list;
    let from = list.length;
    let chars = 0;
    while (from > 0 && (chars < KEPT_CHARS || list.length - from < KEPT_MESSAGES)) chars += sizeOf(list[--from]);
    if (from === 0) return list;
    for (const { content } of list.slice(0, from)) for (const block of content) if (block.type === 'tool_use') this.tools.delete(block.id);
    this.reachedStart.value = false;
    return list.slice(from);
  }

  sessionUpdated(payload) {
    if (payload.changed === 'tip') { this.reachedStart.value = false; this.load(); return; }
    const name = { model_profile: 'modelProfile', system_prompt: 'systemPrompt', model_options: 'modelOptions' }[payload.changed] || payload.changed;
    this.session.value = { ...this.session.value, [name]: payload[name] ?? null };
  }

  runEvent({ type, payload, runId, timestampMs }) {
    const run = this.run.value;
    const status = type.startsWith('run.') ? type.slice(4) : null;
    if (type === 'run.queued' && run?.runId !== runId) this.readQueue();
    if (type === 'run.starting' && run?.runId !== runId) {
      this.queued.value = this.queued.value.filter(r => r.runId !== runId);
      this.setRun({ runId, sessionId: this.id, status: 'starting', createdAtMs: timestampMs, startedAtMs: timestampMs, updatedAtMs: timestampMs, ownerId: this.session.value?.ownerId, adapter: this.session.value?.adapter, options: {}, attempts: 1 });
    }
    if (type === 'run.merged' || ((status === 'cancelled' || status === 'failed') && run?.runId !== runId)) this.queued.value = this.queued.value.filter(r => r.runId !== runId);
    if (this.run.value?.runId !== runId) return;
    this.noteStop(type, payload, timestampMs);
    const known = ['queued', 'starting', 'running', 'waiting_input', 'waiting_approval', 'cancelling', 'succeeded', 'failed', 'cancelled', 'timed_out', 'orphaned'];
    if (known.includes(status) && !isWaiting(status)) {
      this.run.value = { ...this.run.value, status, wait: undefined, error: payload.error, updatedAtMs: timestampMs };
      if (!isLive(status)) this.ended(payload);
    }
    if (isWaiting(status) || type === 'tools.provided' || (known.includes(status) && !isLive(status)) || status === 'starting') this.readRun(runId);
  }

  planEvent({ type, payload, runId }) {
    if (this.run.value?.runId !== runId) return;
    if (type === 'tasks.updated') this.run.value = { ...this.run.value, tasks: payload.tasks };
    else this.readRun(runId);
  }

  noteStop(type, payload, at) {
    if (type === 'run.cancellation_requested') this.stop.value = { requestedAtMs: at, reason: payload.reason };
    if (type === 'attempt.cancel_dispatch') this.stop.value = { ...this.stop.value, toldAtMs: payload.dispatched ? at : null, acknowledged: payload.acknowledged };
    if (type === 'attempt.cancelled' || type === 'run.cancelled') this.stop.value = { ...this.stop.value, stoppedAtMs: this.stop.value?.stoppedAtMs || at, proof: payload.proof || this.stop.value?.proof };
  }

  /** A run that failed on a branch restores the path: what is shown must be the tip's path. */
  ended({ tip }) {
    this.progress.value = '';
    this.thought.value = '';
    const last = this.messages.value.at(-1)?.messageId;
    if (tip !== undefined && tip !== last) this.load();
  }

  async readFeedback() {
    const { items } = await api.feedback(this.id).catch(() => ({ items: [] }));
    if (!this.closed) this.feedback.value = items.reduce(withFeedback, this.feedback.value);
  }

  /** Reads what the snapshot does not say of a run: its last progress, and how far its stop has come. */
  async readPast(run) {
    if (!run || (!isLive(run.status) && run.status !== 'cancelled')) return;
    const events = await runEvents(run.runId).catch(() => []);
    if (this.closed || this.run.value?.runId !== run.runId) return;
    batch(() => {
      const progress = events.findLast(event => event.type === 'progress.updated');
      if (progress && !this.progress.value && isLive(this.run.value.status)) this.progress.value = progress.payload.text;
      if (!this.stop.value) for (const { type, payload, timestampMs } of events) this.noteStop(type, payload, timestampMs);
    });
  }

  async readRun(runId) {
    const mine = (this.runRead = {});
    try {
      const run = await api.run(runId);
      // The response to an earlier request may arrive late: only the latest request counts.
      if (!this.closed && this.runRead === mine && this.run.value?.runId === runId) this.run.value = run;
    } catch { /* the events say enough; the next one reads it again */ }
  }

  async readQueue() {
    const snapshot = await api.snapshot(this.id).catch(() => null);
    if (snapshot && !this.closed && isLive(this.run.value?.status)) this.adoptQueue(snapshot);
  }

  /** Reads the page of messages before those that are known. */
  async older() {
    const first = this.messages.value[0];
    if (!first || this.loadingOlder.value || this.reachedStart.value) return;
    this.loadingOlder.value = true;
    try {
      const { depth } = await api.message(this.id, first.messageId);
      if (depth > 0) {
        const { items } = await api.messages(this.id, { before: depth, limit: PAGE });
        if (this.messages.value[0] === first) this.messages.value = [...items, ...this.messages.value];
      }
      if (depth <= PAGE) this.reachedStart.value = true;
    } catch (error) {
      if (error.code === undefined) throw error;
    } finally {
      this.loadingOlder.value = false;
    }
  }

  /** Loads older pages until a message is among those known; false if it is not on the path. */
  async reach(messageId) {
    const has = () => this.messages.value.some(m => m.messageId === messageId);
    if (has()) return true;
    const target = await api.message(this.id, messageId).catch(() => null);
    if (!target?.active) return false;
    const { items: all } = await pathMessages(this.id, 200000);
    if (!has()) {
      const known = new Set(this.messages.value.map(m => m.messageId));
      this.messages.value = [...all.filter(m => !known.has(m.messageId)), ...this.messages.value];
      this.reachedStart.value = true;
    }
    return has();
  }
}

/** About how many characters a message holds. */
function sizeOf({ content }) {
  let chars = 200;
  for (const block of content) chars += block.text?.length ?? (block.content || []).reduce((sum, part) => sum + (part.text?.length ?? 500), 500);
  return chars;
}
