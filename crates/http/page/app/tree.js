// The branches of a session as a picture: one row per message, one lane per
// branch. The active path is the bold lane, abandoned branches are dashed.
import { html, useEffect, useMemo, useRef, useState } from './h.js';
import { api, pages } from './api.js';
import { attempt, go, mayChange, mayWrite } from './store.js';
import { isLive, statusText, textOf, timeExact, timeOfDay } from './format.js';
import { Markdown } from './markdown.js';
import { Loading, Problem, useLoad } from './ui.js';
import { useChoice, useKeys } from './keys.js';

const ROW = 34;
const LANE = 18;
const MOST = 20000;

/** Rows in drawing order: side branches directly below the message they leave, the main line goes on after them. */
export function layout(nodes) {
  const shown = new Map();
  const parentOf = new Map();
  for (const node of nodes) {
    // Tool results belong to the call above them: their children hang on the call.
    const isResult = node.content.length > 0 && node.content.every(b => b.type === 'tool_result');
    const parent = node.parentId ? parentOf.get(node.parentId) ?? node.parentId : null;
    if (isResult && parent) { parentOf.set(node.messageId, parent); continue; }
    shown.set(node.messageId, { node, parent, children: [], active: node.active });
  }
  const roots = [];
  for (const entry of shown.values()) {
    const parent = entry.parent && shown.get(entry.parent);
    if (parent) parent.children.push(entry);
    else roots.push(entry);
  }
  const rows = [];
  const stack = [];
  const push = (children, lane, above) => {
    const main = children.find(c => c.active) || children.at(-1);
    const order = [...children.filter(c => c !== main), ...(main ? [main] : [])];
    for (let i = order.length - 1; i >= 0; i--) stack.push({ entry: order[i], lane: order[i] === main ? lane : lane + 1, above });
  };
  push(roots, 0, null);
  while (stack.length) {
    const { entry, lane, above } = stack.pop();
    const row = { entry, node: entry.node, lane, above, index: rows.length, leaf: entry.children.length === 0 };
    rows.push(row);
    push(entry.children, lane, row);
  }
  return rows;
}

export function SessionTree({ conversation, target }) {
  const { id } = conversation;
  const session = conversation.session.value;
  const run = conversation.run.value;
  const { value, error, reload } = useLoad(() => pages(`/v1/sessions/${id}/tree`, {}, MOST, 'after'), [id, session.tipMessageId, run?.status]);
  const rows = useMemo(() => (value ? layout(value.items) : []), [value]);
  const [choice, setChosen] = useChoice(target || null);
  const chosen = choice.current;
  const [other, setOther] = useState(null);
  const indexOf = id => rows.findIndex(r => r.node.messageId === id);
  const at = indexOf(chosen);
  const box = useRef();
  const move = by => {
    const now = indexOf(choice.current);
    const next = rows[Math.min(Math.max((now < 0 ? (by > 0 ? -1 : rows.length) : now) + by, 0), rows.length - 1)];
    if (!next) return;
    setChosen(next.node.messageId);
    const top = next.index * ROW;
    if (top < box.current.scrollTop) box.current.scrollTop = top;
    if (top + ROW > box.current.scrollTop + box.current.clientHeight) box.current.scrollTop = top + ROW - box.current.clientHeight;
  };
  const proceed = async () => {
    if (indexOf(choice.current) < 0 || !mayChange(session)) return;
    if (await attempt(() => api.navigate(id, choice.current), 'The conversation goes on from there')) go(`#/s/${id}`);
  };
  useKeys('Tree', [
    { keys: 'j | ArrowDown', label: 'Next message', run: () => move(1) },
    { keys: 'k | ArrowUp', label: 'Previous message', run: () => move(-1) },
    { keys: 'Enter', label: 'Go on from here', run: proceed },
    { keys: 'm', label: 'Mark for comparison', run: () => setOther(choice.current) },
  ]);
  if (error && !value) return html`<div class="view"><${Problem} error=${error} /></div>`;
  if (!value) return html`<${Loading} what="Reading the tree" />`;
  if (!rows.length) return html`<p class="nothing">Nothing has been said yet.</p>`;
  const leaves = rows.filter(r => r.leaf).length;
  return html`<div class=${`tree-view ${chosen ? 'has-preview' : ''}`}>
    <p class="hidden-text" aria-live="polite">${at >= 0 ? `${rows[at].node.role}: ${labelOf(rows[at].node)}` : ''}</p>
    <${Graph} rows=${rows} chosen=${chosen} other=${other} onChoose=${setChosen} box=${box} />
    <aside class="preview-pane" aria-label="Preview">${at < 0 ? html`<p class="note">${rows.length} messages, ${leaves} ${leaves === 1 ? 'end' : 'ends'}${value.next ? ', more exist' : ''}. The bold line is the active path; dashed branches did not succeed. Choose a message to read it, and to go on from there.</p>`
      : other && other !== chosen ? html`<${Compare} rows=${rows} left=${other} right=${chosen} onClose=${() => setOther(null)} />`
      : html`<${Preview} row=${rows[at]} busy=${isLive(run?.status)} onProceed=${proceed} onMark=${() => setOther(chosen)} marked=${other === chosen} session=${session} />`}</aside>
  </div>`;
}

function labelOf(node) {
  const text = textOf(node).trim().replace(/\s+/g, ' ');
  if (text) return text.slice(0, 160);
  const call = node.content.find(b => b.type === 'tool_use');
  if (call) return `calls ${call.title || call.name}`;
  const error = node.content.find(b => b.type === 'error');
  return error ? error.message : node.status;
}

function Graph({ rows, chosen, other, onChoose, box }) {
  const [span, setSpan] = useState([0, 60]);
  useEffect(() => {
    const element = box.current;
    let frame = 0;
    const look = () => {
      frame = 0;
      const from = Math.max(0, Math.floor(element.scrollTop / ROW) - 10);
      setSpan([from, from + Math.ceil(element.clientHeight / ROW) + 20]);
    };
    const onScroll = () => { frame ||= requestAnimationFrame(look); };
    look();
    element.addEventListener('scroll', onScroll, { passive: true });
    const tip = rows.find(r => r.node.messageId === chosen) || rows.findLast(r => r.node.active);
    if (tip) element.scrollTop = Math.max(0, tip.index * ROW - element.clientHeight / 2);
    return () => { element.removeEventListener('scroll', onScroll); cancelAnimationFrame(frame); };
  }, [rows]);
  const [from, to] = span;
  const lanes = Math.min(12, rows.reduce((most, r) => Math.max(most, r.lane), 0) + 1);
  const width = lanes * LANE + 14;
  const x = lane => 12 + Math.min(lane, 11) * LANE;
  const y = index => index * ROW + ROW / 2;
  const edges = rows.filter(r => r.above && r.index >= from && r.above.index <= to);
  return html`<div class="graph" ref=${box} tabindex="0" role="listbox" aria-label="Messages of the session" aria-activedescendant=${chosen ? `row-${chosen}` : undefined}>
    <div class="graph-body" style=${{ height: `${rows.length * ROW}px` }}>
      <svg width=${width} height=${rows.length * ROW} aria-hidden="true">
        ${edges.map(r => html`<path key=${r.node.messageId} class=${`edge ${r.node.active ? 'active' : ''} ${r.node.abandoned ? 'abandoned' : ''}`} d=${edge(x(r.above.lane), y(r.above.index), x(r.lane), y(r.index))} />`)}
        ${rows.slice(from, to).map(r => html`<circle key=${r.node.messageId} class=${`node ${r.node.role} ${r.node.active ? 'active' : ''} ${r.node.abandoned ? 'abandoned' : ''} ${r.node.status}`} cx=${x(r.lane)} cy=${y(r.index)} r=${r.node.role === 'user' ? 5 : 4} />`)}
      </svg>
      ${rows.slice(from, to).map(r => html`<div key=${r.node.messageId} id=${`row-${r.node.messageId}`} role="option" aria-selected=${chosen === r.node.messageId}
        class=${`graph-row ${r.node.active ? 'active' : ''} ${r.node.abandoned ? 'abandoned' : ''} ${other === r.node.messageId ? 'marked' : ''}`}
        style=${{ top: `${r.index * ROW}px`, paddingLeft: `${width}px` }} onClick=${() => onChoose(r.node.messageId)}>
        <span class="who">${r.node.role === 'user' ? 'You' : 'Agent'}</span><span class="text">${labelOf(r.node)}</span>
        ${(r.node.abandoned || ['failed', 'cancelled'].includes(r.node.status)) && html`<span class="tag">${r.node.abandoned ? 'abandoned' : statusText(r.node.status).toLowerCase()}</span>`}<time>${timeOfDay(r.node.createdAtMs)}</time></div>`)}
    </div></div>`;
}

function edge(x1, y1, x2, y2) {
  if (x1 === x2) return `M${x1} ${y1}V${y2}`;
  const bend = Math.min(ROW, y2 - y1);
  return `M${x1} ${y1}V${y2 - bend}C${x1} ${y2 - bend / 3} ${x2} ${y2 - bend / 1.5} ${x2} ${y2}`;
}

function Preview({ row, busy, onProceed, onMark, marked, session }) {
  const { node } = row;
  const id = session.sessionId;
  return html`<h2>${node.role === 'user' ? 'Prompt' : 'Answer'}</h2>
    <p class="note">${timeExact(node.createdAtMs)} · ${node.status}${node.abandoned ? ' · abandoned: its run did not succeed' : ''}</p>
    <div class="preview-text"><${Markdown} text=${textOf(node) || labelOf(node)} /></div>
    <div class="actions">${mayChange(session) && !node.abandoned && html`<button class="primary" disabled=${busy} title=${busy ? 'A run is active: stop it or wait' : ''} onClick=${onProceed}>Go on from here</button>`}
      <button aria-pressed=${marked} onClick=${onMark}>${marked ? 'Choose another to compare' : 'Compare'}</button>
      ${mayWrite.value && !node.abandoned && html`<button onClick=${async () => { const made = await attempt(() => api.fork(id, { messageId: node.messageId }), 'Forked'); if (made) go(`#/s/${made.sessionId}`); }}>Fork</button>`}
      ${node.active && html`<a class="button" href=${`#/s/${id}/m/${node.messageId}`}>Show in the conversation</a>`}</div>`;
}

/** Two paths beside each other, from where they part. */
function Compare({ rows, left, right, onClose }) {
  const byId = useMemo(() => new Map(rows.map(r => [r.node.messageId, r])), [rows]);
  const pathTo = id => {
    const path = [];
    for (let row = byId.get(id); row; row = row.above) path.unshift(row);
    return path;
  };
  const a = pathTo(left);
  const b = pathTo(right);
  let shared = 0;
  while (shared < a.length && shared < b.length && a[shared] === b[shared]) shared++;
  const column = path => html`<div class="compare-column">${path.slice(shared).map(r => html`<div class=${`compare-message ${r.node.role}`}><b>${r.node.role === 'user' ? 'You' : 'Agent'}</b><${Markdown} text=${textOf(r.node) || labelOf(r.node)} /></div>`)}${path.length === shared && html`<p class="note">This branch ends here.</p>`}</div>`;
  return html`<h2>Comparison</h2><p class="note">The two branches share ${shared === 1 ? 'one message' : `${shared} messages`}. Shown from there: first the marked branch, then the chosen one. <button class="ghost" onClick=${onClose}>Close</button></p><div class="compare">${column(a)}${column(b)}</div>`;
}
