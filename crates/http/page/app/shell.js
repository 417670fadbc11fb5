// The frame of all views: navigation, connection, dialogs, toasts.
import { html, useLayoutEffect } from './h.js';
import { connection, dismiss, go, isSettledChild, mayWrite, needsYou, overlay, route, sessions, storeFailure, theme, toasts } from './store.js';
import { isWaiting, timeOfDay, titleOf } from './format.js';
import { Icon, Status } from './ui.js';
import { useKeys } from './keys.js';
import { wake } from './streams.js';
import { Board } from './board.js';
import { Inbox } from './inbox.js';
import { SessionView } from './session.js';
import { RunView } from './run.js';
import { Agents } from './agents.js';
import { Usage } from './usage.js';
import { Settings } from './settings.js';
import { NewSession } from './newsession.js';
import { KeySheet, Palette } from './palette.js';

const NAV = [['board', '#/', 'Board', 'g b'], ['inbox', '#/inbox', 'Inbox', 'g i'], ['agents', '#/agents', 'Agents', 'g a'], ['usage', '#/usage', 'Usage', 'g u'], ['settings', '#/settings', 'Settings', 'g s']];

export function Shell() {
  const { view, id, tab, message } = route.value;
  const open = name => () => { overlay.value = overlay.value === name ? null : name; };
  useKeys('Everywhere', [
    { keys: 'mod+k', label: 'Search and commands', typing: true, overDialogs: true, run: open('palette') },
    { keys: '?', label: 'This sheet', overDialogs: true, run: open('keys') },
    { keys: 'n', label: 'New session', run: () => mayWrite.value && open('new')() },
    ...NAV.map(([, hash, label, keys]) => ({ keys, label, run: () => go(hash) })),
  ]);
  // Runs before the view is drawn: later it would take the focus away from an element that the reader has chosen.
  useLayoutEffect(() => { document.querySelector('main')?.focus({ preventScroll: true }); }, [view, id]);
  return html`<div class="shell">
    <a class="skip" href="#main" onClick=${e => { e.preventDefault(); document.querySelector('main').focus(); }}>Skip to the content</a>
    <${Side} view=${view} id=${id} />
    <div class="stage"><${Banner} />
      <main id="main" tabindex="0" class=${view === 'session' ? 'fills' : undefined}>${view === 'session' ? html`<${SessionView} key=${id} id=${id} tab=${tab} message=${message} />`
        : view === 'run' ? html`<${RunView} key=${id} id=${id} />`
        : view === 'inbox' ? html`<${Inbox} />` : view === 'agents' ? html`<${Agents} />` : view === 'usage' ? html`<${Usage} />` : view === 'settings' ? html`<${Settings} />` : html`<${Board} />`}</main></div>
    ${overlay.value === 'palette' && html`<${Palette} />`}${overlay.value === 'keys' && html`<${KeySheet} />`}${overlay.value === 'new' && mayWrite.value && html`<${NewSession} />`}
    <${Toasts} />
  </div>`;
}

function Side({ view, id }) {
  const all = [...sessions.value.values()].filter(c => c.session.status !== 'archived' && !isSettledChild(c));
  const recent = all.sort((a, b) => (b.session.pinned === true) - (a.session.pinned === true) || isWaiting(b.run?.status) - isWaiting(a.run?.status) || b.session.lastActivityAtMs - a.session.lastActivityAtMs).slice(0, 14);
  const next = { system: 'light', light: 'dark', dark: 'system' };
  const icons = { system: 'auto', light: 'sun', dark: 'moon' };
  return html`<nav class="side" aria-label="Main">
    <a class="brand" href="#/"><img src="icon.svg" alt="" width="22" height="22" />mainspring</a>
    <ul class="nav">${NAV.map(([name, hash, label]) => html`<li><a href=${hash} aria-current=${view === name ? 'page' : undefined}><${Icon} name=${name} /><span>${label}</span>${name === 'inbox' && needsYou.value > 0 && html`<b class="badge" aria-label=${`${needsYou.value} wait for you`}>${needsYou.value}</b>`}</a></li>`)}</ul>
    <button class="find" onClick=${() => { overlay.value = 'palette'; }}><${Icon} name="search" /><span>Search</span><kbd>${navigator.platform.startsWith('Mac') ? '⌘K' : 'Ctrl K'}</kbd></button>
    ${recent.length > 0 && html`<h2>Sessions</h2><ul class="recent">${recent.map(c => html`<li key=${c.session.sessionId}><a href=${`#/s/${c.session.sessionId}`} aria-current=${view === 'session' && id === c.session.sessionId ? 'page' : undefined}><${Status} status=${c.run?.status} quiet /><span>${titleOf(c.session)}</span></a></li>`)}</ul>`}
    <div class="side-foot"><${Connection} /><button class="ghost square" aria-label=${`Appearance: ${theme.value}. Change`} title=${`Appearance: ${theme.value}`} onClick=${() => { theme.value = next[theme.value]; }}><${Icon} name=${icons[theme.value]} /></button>
      <button class="ghost square" aria-label="Keys" title="Keys (?)" onClick=${() => { overlay.value = 'keys'; }}>?</button></div>
  </nav>`;
}

function Connection() {
  const { state, sinceMs } = connection.value;
  const text = { open: 'Live', connecting: 'Connecting', lost: `Lost ${timeOfDay(sinceMs)}`, refused: 'Signed out' }[state];
  return html`<span class=${`connection ${state}`} role="status"><i class="dot" aria-hidden="true"></i>${text}</span>`;
}

/** Says what is wrong with the connection or the store; what is shown stays. */
function Banner() {
  const { state, sinceMs } = connection.value;
  const failure = storeFailure.value;
  return html`${state === 'lost' && html`<div class="banner" role="alert">No connection since ${timeOfDay(sinceMs)}. The page shows what was known then, and catches up when the server answers. <button onClick=${wake}>Try now</button></div>`}
    ${failure && html`<div class="banner bad" role="alert">Nothing can be stored: ${failure.message} <code>${failure.code}</code></div>`}`;
}

function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">${toasts.value.map(t => html`<div key=${t.no} class=${`toast ${t.kind}`}><div><b>${t.text}</b>${t.remedy && html`<p>${t.remedy}</p>`}${t.code && html`<code>${t.code}</code>`}</div>
    <button class="ghost square" aria-label="Dismiss" onClick=${() => dismiss(t.no)}><${Icon} name="close" /></button></div>`)}</div>`;
}
