// Browser notifications for waits that need the reader. A notification is withdrawn when its wait is answered
// elsewhere. Several tabs use the same tag, so it is shown once.
import { effect } from './h.js';
import { go, notifications, needsYou, route, sessions, waiting } from './store.js';
import { questionOf, titleOf } from './format.js';

const shown = new Map();
let first = true;

export async function askPermission() {
  if (typeof Notification === 'undefined') return false;
  return (await Notification.requestPermission()) === 'granted';
}

export function startNotifications() {
  effect(() => {
    const { view, id } = route.value;
    const name = view === 'session' ? sessions.value.has(id) && titleOf(sessions.value.get(id).session) : view !== 'board' && view[0].toUpperCase() + view.slice(1);
    document.title = `${needsYou.value ? `(${needsYou.value}) ` : ''}${name ? `${name} · ` : ''}mainspring`;
  });
  effect(() => {
    const open = new Map(waiting.value.map(card => [card.run.wait.waitId, card]));
    const enabled = notifications.value && typeof Notification !== 'undefined' && Notification.permission === 'granted';
    for (const [waitId, notification] of shown) {
      if (open.has(waitId)) continue;
      notification?.close();
      shown.delete(waitId);
    }
    for (const [waitId, card] of open) {
      if (shown.has(waitId)) continue;
      shown.set(waitId, enabled && !first && document.visibilityState === 'hidden' ? show(waitId, card) : null);
    }
    first = false;
  });
}

function show(waitId, card) {
  const notification = new Notification(titleOf(card.session), { body: questionOf(card.run.wait), tag: waitId, icon: 'icon.svg' });
  notification.onclick = () => {
    window.focus();
    go(`#/s/${card.session.sessionId}`);
    notification.close();
  };
  return notification;
}
