// Shared worker: one hub for all tabs of this browser.
import { Hub } from './hub.js';

const hub = new Hub();

self.onconnect = connection => {
  const port = connection.ports[0];
  const subscriptions = new Map();
  const drop = path => {
    hub.unsubscribe(path, subscriptions.get(path));
    subscriptions.delete(path);
  };
  port.onmessage = ({ data }) => {
    if (data.do === 'headers') hub.setHeaders(data.headers);
    if (data.do === 'wake') hub.wake();
    if (data.do === 'subscribe' && !subscriptions.has(data.path)) {
      const pass = message => port.postMessage({ path: data.path, ...message });
      subscriptions.set(data.path, pass);
      hub.subscribe(data.path, pass);
    }
    if (data.do === 'unsubscribe' && subscriptions.has(data.path)) drop(data.path);
    if (data.do === 'close') for (const path of [...subscriptions.keys()]) drop(path);
    if (data.do === 'ping') port.postMessage({ kind: 'pong' });
  };
  port.start();
};
