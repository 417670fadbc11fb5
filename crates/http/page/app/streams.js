// Subscriptions of this tab, over the shared worker where the browser has one.
import { Hub } from './hub.js';
import { onCredentials } from './api.js';

const subscribers = new Map();
let send;

/** Calls `listener` with the frames and connection states of a stream; returns a function that stops this. */
export function subscribe(path, listener) {
  start();
  const set = subscribers.get(path) || new Set();
  subscribers.set(path, set);
  set.add(listener);
  if (set.size === 1) send({ do: 'subscribe', path });
  else if (set.last) listener(set.last);
  return () => {
    set.delete(listener);
    if (set.size) return;
    subscribers.delete(path);
    send({ do: 'unsubscribe', path });
  };
}

export const wake = () => send?.({ do: 'wake' });

function deliver(message) {
  const set = subscribers.get(message.path);
  if (!set) return;
  if (message.kind === 'state') set.last = message;
  for (const listener of [...set]) listener(message);
}

function start() {
  if (send) return;
  send = overWorker() || overPage();
  onCredentials(headers => send({ do: 'headers', headers }));
  addEventListener('online', wake);
  addEventListener('visibilitychange', () => document.visibilityState === 'visible' && wake());
  addEventListener('pagehide', event => !event.persisted && send({ do: 'close' }));
}

function overWorker() {
  if (typeof SharedWorker === 'undefined') return null;
  try {
    const worker = new SharedWorker(new URL('./worker.js', import.meta.url), { type: 'module', name: 'mainspring' });
    worker.port.onmessage = ({ data }) => deliver(data);
    worker.onerror = () => {
      // The worker could not be loaded: the page reads the streams itself.
      send = overPage();
      onCredentials(headers => send({ do: 'headers', headers }));
      for (const path of subscribers.keys()) send({ do: 'subscribe', path });
    };
    worker.port.start();
    return message => worker.port.postMessage(message);
  } catch {
    return null;
  }
}

function overPage() {
  const hub = new Hub();
  const passes = new Map();
  return message => {
    if (message.do === 'headers') hub.setHeaders(message.headers);
    if (message.do === 'wake') hub.wake();
    if (message.do === 'subscribe') {
      const pass = item => deliver({ path: message.path, ...item });
      passes.set(message.path, pass);
      hub.subscribe(message.path, pass);
    }
    if (message.do === 'unsubscribe') {
      hub.unsubscribe(message.path, passes.get(message.path));
      passes.delete(message.path);
    }
  };
}
