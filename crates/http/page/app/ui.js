// Small parts that all views use.
import { html, useEffect, useLayoutEffect, useRef, useState } from './h.js';
import { age, timeExact, statusText, isWaiting, isBroken } from './format.js';
import { now, toast } from './store.js';

const PATHS = {
  board: 'M3 4h5v16H3zM10 4h5v10h-5zM17 4h4v13h-4z',
  inbox: 'M4 13l2.500-8h11L20 13v6H4zM4 13h5l1 3h4l1-3h5',
  agents: 'M7 8h10v10H7zM12 8V4M9.500 12h.01M14.500 12h.01M4 12v3M20 12v3',
  usage: 'M4 20V10M10 20V4M16 20v-7M21 20H3',
  settings: 'M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4',
  plus: 'M12 5v14M5 12h14',
  search: 'M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13zM15.500 15.500L20 20',
  chat: 'M4 5h16v11H9l-5 4z',
  tree: 'M6 4v16M6 12h7a4 4 0 0 0 4-4V5M6 20a0 0 0 0 0 0 0M17 5V4',
  changes: 'M12 4v8M8 8h8M8 19h8',
  pin: 'M9 4h6l-1 6 3 3H7l3-3zM12 13v7',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  link: 'M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1',
  redo: 'M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5',
  edit: 'M4 20l1-4L16 5l3 3L8 19z',
  fork: 'M7 4v16M17 4v4a4 4 0 0 1-4 4H7',
  stop: 'M7 7h10v10H7z',
  close: 'M6 6l12 12M18 6L6 18',
  chevron: 'M9 6l6 6-6 6',
  more: 'M5 12h.01M12 12h.01M19 12h.01',
  file: 'M6 3h8l4 4v14H6zM14 3v4h4',
  down: 'M12 5v14M6 13l6 6 6-6',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.600 5.600l1.400 1.400M17 17l1.400 1.400M5.600 18.400L7 17M17 7l1.400-1.400',
  moon: 'M19 14.500A7.500 7.500 0 0 1 9.500 5a7.500 7.500 0 1 0 9.500 9.500z',
  auto: 'M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16',
  thumbUp: 'M7 11v9H4v-9zM7 12l4-8a2 2 0 0 1 2 2v4h6l-2 10H7',
  thumbDown: 'M7 13V4H4v9zM7 12l4 8a2 2 0 0 0 2-2v-4h6L17 4H7',
  tool: 'M14 6a4 4 0 0 0-5 5l-5 5 3 3 5-5a4 4 0 0 0 5-5l-2.500 2.500L12 10z',
};

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

/** A run's status: a dot with a shape of its own, and a word. */
export function Status({ status, quiet }) {
  return html`<span class=${`status ${tone(status)}`}><i class="dot" aria-hidden="true"></i><span class=${quiet ? 'hidden-text' : ''}>${statusText(status)}</span></span>`;
}

export function tone(status) {
  if (isWaiting(status)) return 'needs';
  if (isBroken(status)) return 'bad';
  if (status === 'succeeded') return 'good';
  if (status === 'queued' || status === 'cancelled' || !status) return 'still';
  return 'busy';
}

export function Age({ ms }) {
  return html`<time datetime=${new Date(ms).toISOString()} title=${timeExact(ms)}>${age(ms, now.value)}</time>`;
}

export function Problem({ error }) {
  return html`<div class="problem" role="alert"><b>${error.message}</b>${error.remedy && html`<span>${error.remedy}</span>`}<code>${error.code}</code></div>`;
}

/** The head of a view: its name, and for newcomers what it is. */
export const Head = ({ title, about, children }) => html`<header class="view-head"><div><h1>${title}</h1><p class="about">${about}</p></div>${children}</header>`;

export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;

export function Loading({ what = 'Loading' }) {
  return html`<div class="loading" role="status"><span class="hidden-text">${what}</span><i></i><i></i><i></i></div>`;
}

/** Reads something for a view: `{ value, error, reload }`. */
export function useLoad(read, dependencies) {
  const [state, set] = useState({});
  const latest = useRef(0);
  const load = () => {
    const mine = ++latest.current;
    return read().then(
      value => mine === latest.current && set({ value }),
      error => { if (error.code === undefined) throw error; if (mine === latest.current) set(old => ({ ...old, error })); },
    );
  };
  useEffect(() => { set({}); load(); return () => { latest.current++; }; }, dependencies);
  return { ...state, reload: load };
}

export function copy(text, what) {
  const done = () => toast(`${what} copied`);
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(done, () => toast('The browser refused the clipboard', 'problem'));
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
  return done();
}

/** A modal dialog: keeps the focus, closes by Escape and by a click beside it. */
export function Dialog({ label, onClose, children, wide }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${ref} class=${wide ? 'wide' : ''} aria-label=${label}
    onCancel=${event => { event.preventDefault(); onClose(); }}
    onMouseDown=${event => event.target === ref.current && onClose()}>
    <div class="dialog-body">${children}</div></dialog>`;
}

/** A button for what cannot be undone: it asks once more, and forgets that when it loses the focus. */
export function Confirm({ label, sure, onSure }) {
  const [asked, setAsked] = useState(false);
  return html`<button class=${`ghost danger ${asked ? 'asked' : ''}`} onBlur=${() => setAsked(false)} onClick=${() => (asked ? onSure() : setAsked(true))}>${asked ? sure : label}</button>`;
}

/** A button that opens a list of actions. Empty actions are left out. */
export function Menu({ label, icon = 'more', items }) {
  const [open, setOpen] = useState(false);
  const ref = useRef();
  useEffect(() => {
    if (!open) return undefined;
    const close = event => { if (!ref.current.contains(event.target)) setOpen(false); };
    addEventListener('mousedown', close);
    ref.current.querySelector('[role=menuitem]')?.focus();
    return () => removeEventListener('mousedown', close);
  }, [open]);
  const move = event => {
    const all = [...ref.current.querySelectorAll('[role=menuitem]')];
    const at = all.indexOf(document.activeElement);
    if (event.key === 'ArrowDown') all[(at + 1) % all.length].focus();
    else if (event.key === 'ArrowUp') all[(at - 1 + all.length) % all.length].focus();
    else if (event.key === 'Escape') { setOpen(false); ref.current.querySelector('button').focus(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const shown = items.filter(Boolean);
  if (!shown.length) return null;
  return html`<span class="menu" ref=${ref} onKeyDown=${open ? move : undefined}>
    <button class="ghost square" aria-label=${label} title=${label} aria-haspopup="menu" aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name=${icon} /></button>
    ${open && html`<div class="menu-list" role="menu">${shown.map(item => html`
      <button role="menuitem" class=${item.danger ? 'danger' : ''} onClick=${() => { setOpen(false); item.run(); }}>${item.label}</button>`)}</div>`}
  </span>`;
}

const KEY_NAMES = { ArrowDown: '↓', ArrowUp: '↑', ArrowLeft: '←', ArrowRight: '→' };
const modifier = navigator.platform.startsWith('Mac') ? '⌘' : 'Ctrl ';

/** Keys as they are printed on a keyboard; alternatives beside each other. */
export const Keys = ({ keys }) => keys.split(' | ').map(key => html`<kbd>${KEY_NAMES[key] || key.replace(/^mod\+(.)$/, (_, letter) => modifier + letter.toUpperCase())}</kbd> `);
