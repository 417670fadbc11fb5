// The command palette and the sheet of keys.
import { html, useEffect, useMemo, useRef, useState } from './h.js';
import { api } from './api.js';
import { closeOverlay, go, mayWrite, overlay, sessions, theme } from './store.js';
import { Dialog, Icon, Keys, Status } from './ui.js';
import { keySheet } from './keys.js';
import { titleOf } from './format.js';

const PLACES = [
  ['Board', '#/', 'board', 'g b'], ['Inbox', '#/inbox', 'inbox', 'g i'], ['Agents', '#/agents', 'agents', 'g a'], ['Usage', '#/usage', 'usage', 'g u'], ['Settings', '#/settings', 'settings', 'g s'],
];

export function Palette() {
  const [query, setQuery] = useState('');
  const [at, setAt] = useState(0);
  const [hits, setHits] = useState([]);
  const list = useRef();
  const close = () => closeOverlay('palette');
  useEffect(() => {
    setAt(0);
    if (query.trim().length < 2) { setHits([]); return undefined; }
    const timer = setTimeout(() => api.search({ q: query, limit: 12 }).then(found => setHits(found.items.filter(h => h.messageId)), () => setHits([])), 180);
    return () => clearTimeout(timer);
  }, [query]);
  const items = useMemo(() => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = text => words.every(word => text.toLowerCase().includes(word));
    const actions = [
      ...(mayWrite.value ? [{ label: 'New session', icon: 'plus', keys: 'n', run: () => { overlay.value = 'new'; } }] : []),
      ...PLACES.map(([label, hash, icon, keys]) => ({ label, icon, keys, run: () => { close(); go(hash); } })),
      ...['light', 'dark', 'system'].map(name => ({ label: `Appearance: ${name}`, icon: { light: 'sun', dark: 'moon', system: 'auto' }[name], run: () => { theme.value = name; close(); } })),
      { label: 'Keys', icon: 'settings', keys: '?', run: () => { overlay.value = 'keys'; } },
    ].filter(item => fits(item.label));
    const found = [...sessions.value.values()].filter(c => fits(`${titleOf(c.session)} ${c.session.adapter} ${c.session.cwd || ''}`))
      .sort((a, b) => b.session.lastActivityAtMs - a.session.lastActivityAtMs).slice(0, 8)
      .map(c => ({ label: titleOf(c.session), detail: c.session.forkedFrom ? `fork · ${c.session.adapter}` : c.session.adapter, status: c.run?.status, run: () => { close(); go(`#/s/${c.session.sessionId}`); } }));
    const texts = hits.map(h => ({ label: h.snippet, detail: h.title || '', icon: 'chat', run: () => { close(); go(`#/s/${h.sessionId}/m/${h.messageId}`); } }));
    return query ? [...found, ...actions, ...texts] : [...actions.slice(0, 6), ...found];
  }, [query, hits, sessions.value]);
  const keyDown = event => {
    if (event.key === 'ArrowDown') setAt(Math.min(at + 1, items.length - 1));
    else if (event.key === 'ArrowUp') setAt(Math.max(at - 1, 0));
    else if (event.key === 'Enter') items[at]?.run();
    else return;
    event.preventDefault();
  };
  useEffect(() => { list.current?.children[at]?.scrollIntoView({ block: 'nearest' }); }, [at]);
  return html`<${Dialog} label="Go to or do" onClose=${close}><div class="palette">
    <input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${`palette-${at}`} aria-label="Search sessions, messages and actions" placeholder="Search sessions, messages and actions" value=${query} onInput=${e => setQuery(e.target.value)} onKeyDown=${keyDown} ref=${e => e && !e.dataset.seen && (e.dataset.seen = 1, setTimeout(() => e.focus()))} />
    <ul id="palette-list" role="listbox" aria-label="Found" ref=${list}>${items.map((item, i) => html`<li id=${`palette-${i}`} role="option" aria-selected=${i === at} onMouseMove=${() => setAt(i)} onClick=${item.run}>
      ${item.status ? html`<${Status} status=${item.status} quiet />` : item.icon ? html`<${Icon} name=${item.icon} />` : html`<i class="dot"></i>`}<span class="grow">${item.label}</span>${item.keys ? html`<${Keys} keys=${item.keys} />` : html`<span class="muted">${item.detail || ''}</span>`}</li>`)}
      ${!items.length && html`<li class="none" role="option" aria-selected="false">Nothing found.</li>`}</ul></div></${Dialog}>`;
}

export function KeySheet() {
  return html`<${Dialog} label="Keys" onClose=${() => closeOverlay('keys')} wide><h2>Keys</h2><div class="key-sheet">${keySheet().map(({ group, keys }) => html`<section><h3>${group}</h3><dl>${keys.map(k => html`<div><dt>${k.label}</dt><dd><${Keys} keys=${k.keys} /></dd></div>`)}</dl></section>`)}</div></${Dialog}>`;
}
