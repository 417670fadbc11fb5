// A change of a file: unified, or old and new side by side.
import { html, useMemo, useState } from './h.js';
import { diffLines, hunks, pairs, count } from './diff.js';
import { diffTexts } from './derived.js';
import { Problem, useLoad } from './ui.js';
import { sideBySide } from './store.js';

// More rows than this are shown on demand.
const FIRST_ROWS = 400;

export function DiffSwitch() {
  const set = value => () => { sideBySide.value = value; };
  return html`<span class="segments" role="group" aria-label="How changes are shown">
    <button aria-pressed=${!sideBySide.value} onClick=${set(false)}>Unified</button>
    <button aria-pressed=${sideBySide.value} onClick=${set(true)}>Side by side</button></span>`;
}

/** Changes of one file. `onComment(line, text)` makes the lines selectable for a comment. Paths below `base` are shown without it. */
export function Diff({ diff, onComment, comments, base, open = true }) {
  const inside = base && diff.path.startsWith(`${base}/`) ? diff.path.slice(base.length + 1) : diff.path;
  const artifacts = diff.beforeArtifact || diff.afterArtifact;
  const loaded = useLoad(() => (artifacts ? diffTexts(diff) : Promise.resolve({ before: diff.before, after: diff.after })), [diff]);
  const texts = artifacts ? loaded.value : { before: diff.before, after: diff.after };
  const rows = useMemo(() => (texts ? diffLines(texts.before, texts.after) : []), [texts?.before, texts?.after]);
  const { added, removed } = useMemo(() => count(rows), [rows]);
  const label = texts?.before == null ? 'new file' : texts.after == null ? 'deleted' : null;
  return html`<details class="diff" open=${open}>
    <summary><span class="path" title=${diff.path}>${inside}</span>${label && html`<span class="tag">${label}</span>`}
      <span class="counts"><span class="added">+${added}</span> <span class="removed">−${removed}</span></span></summary>
    ${loaded.error && html`<${Problem} error=${loaded.error} />`}
    ${texts && html`<${Rows} rows=${rows} path=${diff.path} onComment=${onComment} comments=${comments} />`}
  </details>`;
}

function Rows({ rows, path, onComment, comments }) {
  const [opened, setOpened] = useState(() => new Set());
  const [all, setAll] = useState(false);
  const [at, setAt] = useState(null);
  const cut = useMemo(() => hunks(rows), [rows]);
  const visible = cut.flatMap((row, i) => (row.kind === 'gap' && opened.has(i) ? row.rows : [row.kind === 'gap' ? { ...row, index: i } : row]));
  const shown = all ? visible : visible.slice(0, FIRST_ROWS);
  const wide = sideBySide.value;
  const expand = index => setOpened(new Set(opened).add(index));
  const comment = row => onComment && row && row.kind !== 'gap' && (() => setAt(at === row ? null : row));
  const below = row => row && html`
    ${at === row && html`<${CommentForm} onCancel=${() => setAt(null)} onDone=${text => { setAt(null); onComment(row, text); }} />`}
    ${(comments || []).filter(c => c.row === row || (c.path === path && c.line === (row.now ?? row.old) && c.kind === row.kind)).map(c => html`<div class="comment">${c.text}</div>`)}`;
  if (!rows.length) return html`<p class="note">The text did not change.</p>`;
  return html`<div class=${`rows ${wide ? 'wide' : ''}`} tabindex="0" role="region" aria-label=${`Changes of ${path}`}>
    ${wide
      ? pairs(shown).map(([l, r]) => (l?.kind === 'gap' ? gap(l, expand) : html`<div class="pair">${cell(l, 'old', comment(l))}${cell(r, 'now', comment(r))}</div>${below(l)}${l !== r && below(r)}`))
      : shown.map(row => (row.kind === 'gap' ? gap(row, expand) : html`${line(row, comment(row))}${below(row)}`))}
    ${shown.length < visible.length && html`<button class="gap" onClick=${() => setAll(true)}>Show ${visible.length - shown.length} more lines</button>`}
  </div>`;
}

const KIND = { '+': 'add', '-': 'del', ' ': 'same' };
const WORD = { '+': 'added', '-': 'removed', ' ': '' };
const gap = (row, expand) => html`<button class="gap" onClick=${() => expand(row.index)}>${row.count} unchanged lines</button>`;

function lineNo(row, side, onClick) {
  const no = side === 'both' ? null : row?.[side];
  if (side === 'both') return html`<span class="no">${row.old ?? ''}</span>${onClick ? html`<button class="no add-comment" aria-label=${`Comment on line ${row.now ?? row.old}`} onClick=${onClick}>${row.now ?? ''}</button>` : html`<span class="no">${row.now ?? ''}</span>`}`;
  return onClick && no ? html`<button class="no add-comment" aria-label=${`Comment on line ${no}`} onClick=${onClick}>${no}</button>` : html`<span class="no">${no ?? ''}</span>`;
}
const line = (row, onClick) => html`<div class=${`row ${KIND[row.kind]}`}>${lineNo(row, 'both', onClick)}<span class="sign" aria-hidden="true">${row.kind}</span><span class="hidden-text">${WORD[row.kind]}</span><code>${row.text || ' '}</code></div>`;
const cell = (row, side, onClick) => html`<div class=${`row ${row ? KIND[row.kind] : 'none'}`}>${row ? lineNo(row, side, onClick) : html`<span class="no"></span>`}<span class="sign" aria-hidden="true">${row ? row.kind : ''}</span><code>${row ? row.text || ' ' : ''}</code></div>`;

function CommentForm({ onDone, onCancel }) {
  const [text, setText] = useState('');
  const send = () => text.trim() && onDone(text.trim());
  return html`<div class="comment-form">
    <textarea aria-label="Comment" rows="2" autofocus ref=${e => e && !e.dataset.seen && (e.dataset.seen = 1, e.focus())} value=${text} onInput=${e => setText(e.target.value)}
      onKeyDown=${e => { if (e.key === 'Escape') { e.stopPropagation(); onCancel(); } if (e.key === 'Enter' && (e.metaKey || e.ctrlKey)) send(); }}></textarea>
    <div class="actions"><button class="primary" onClick=${send}>Add to the next prompt</button><button onClick=${onCancel}>Cancel</button></div></div>`;
}
