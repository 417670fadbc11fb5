// Streams of the server, one connection per topic, shared by all subscribers.
//
// A topic is the path of a stream. The hub reconnects by itself with the last position it has seen, drops frames that
// it has already delivered, and reports the state of the connection to its subscribers. It runs in a shared worker, so
// that all tabs of a browser use one connection, or in the page where there is none.
import { readFrames, comparePositions } from './sse.js';

const RETRY_FIRST_MS = 400;
const RETRY_MAX_MS = 8000;
const LINGER_MS = 1500;
// The server sends a comment after at most 15 s without a frame; a silent connection is a dead one.
const SILENCE_MS = 40000;

export class Hub {
  constructor() {
    this.topics = new Map();
    this.headers = {};
  }

  /** Sets the credentials. Open streams of other credentials are opened again. */
  setHeaders(headers) {
    if (JSON.stringify(headers) === JSON.stringify(this.headers)) return;
    this.headers = headers;
    for (const topic of this.topics.values()) topic.restart(headers);
  }

  subscribe(path, subscriber) {
    let topic = this.topics.get(path);
    if (!topic) {
      topic = new Topic(path, this.headers, () => this.topics.delete(path));
      this.topics.set(path, topic);
    }
    topic.add(subscriber);
  }

  unsubscribe(path, subscriber) {
    this.topics.get(path)?.remove(subscriber);
  }

  /** Retries at once: the network is back, or the reader asked for it. */
  wake() {
    for (const topic of this.topics.values()) topic.wake();
  }
}

class Topic {
  constructor(path, headers, onEmpty) {
    Object.assign(this, { path, headers, onEmpty, subscribers: new Set(), position: null, delay: RETRY_FIRST_MS });
    this.state = { state: 'connecting', sinceMs: Date.now() };
    this.connect();
  }

  add(subscriber) {
    clearTimeout(this.linger);
    this.subscribers.add(subscriber);
    subscriber({ kind: 'state', ...this.state });
  }

  remove(subscriber) {
    this.subscribers.delete(subscriber);
    if (this.subscribers.size) return;
    this.linger = setTimeout(() => {
      this.stopped = true;
      this.abort?.abort();
      clearTimeout(this.timer);
      this.onEmpty();
    }, LINGER_MS);
  }

  emit(message) {
    for (const subscriber of this.subscribers) subscriber(message);
  }

  setState(state, extra = {}) {
    const sinceMs = this.state.state === state ? this.state.sinceMs : Date.now();
    this.state = { state, sinceMs, ...extra };
    this.emit({ kind: 'state', ...this.state });
  }

  restart(headers) {
    this.headers = headers;
    this.position = null;
    this.wake(true);
  }

  wake(evenIfOpen = false) {
    if (this.state.state === 'open' && !evenIfOpen) return;
    this.delay = RETRY_FIRST_MS;
    clearTimeout(this.timer);
    this.abort?.abort();
    this.connect();
  }

  async connect() {
    const abort = (this.abort = new AbortController());
    let quiet;
    const listen = () => {
      clearTimeout(quiet);
      quiet = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    try {
      const resume = this.position;
      const headers = { ...this.headers, Accept: 'text/event-stream' };
      if (resume) headers['Last-Event-ID'] = resume;
      const response = await fetch(this.path, { headers, signal: abort.signal, cache: 'no-store' });
      if (response.status === 410) {
        this.position = null;
        throw new Error('the position has expired');
      }
      if (!response.ok) {
        const final = response.status >= 400 && response.status < 500 && response.status !== 408 && response.status !== 429;
        this.setState(final ? 'refused' : 'lost', { status: response.status });
        if (final) return;
        throw new Error(`status ${response.status}`);
      }
      this.delay = RETRY_FIRST_MS;
      // Without a position the stream starts now: subscribers read a snapshot again. Those that have read none yet, because
      // they came after the stream began, read one in any case.
      this.setState('open', { resumed: resume !== null });
      listen();
      await readFrames(tap(response.body, listen), frames => this.receive(frames));
    } catch {
      // Every way a stream breaks ends in a new connection below.
    } finally {
      clearTimeout(quiet);
    }
    if (this.stopped || this.abort !== abort || this.state.state === 'refused') return;
    this.setState('lost');
    this.timer = setTimeout(() => this.connect(), this.delay * (0.7 + Math.random() * 0.6));
    this.delay = Math.min(this.delay * 2, RETRY_MAX_MS);
  }

  receive(frames) {
    const fresh = [];
    for (const frame of frames) {
      if (frame.event === 'caught_up') this.position = JSON.parse(frame.data).position;
      if (frame.id !== null) {
        const isReset = frame.event === 'reset' || frame.event === 'message.truncated';
        if (!isReset && this.position && comparePositions(frame.id, this.position) <= 0) continue;
        this.position = frame.id;
      }
      fresh.push({ event: frame.event, id: frame.id, data: frame.data });
    }
    if (fresh.length) this.emit({ kind: 'frames', frames: fresh });
  }
}

/** Calls `onChunk` for every chunk that passes, comments included. */
function tap(body, onChunk) {
  return body.pipeThrough(new TransformStream({ transform(chunk, out) { onChunk(); out.enqueue(chunk); } }));
}
