// The board: every session in the column of what it needs next.
import { html, useRef, useState } from './h.js';
import { sessions, loading, overlay, go, attempt, isSettledChild, mayWrite, preference, putCard, reader } from './store.js';
import { api } from './api.js';
import { costText, definitionOf, folder, isBroken, isLive, isToday, isWaiting, questionOf, statusText, timeOfDay, titleOf } from './format.js';
import { Age, Empty, Head, Icon, Loading, Problem, Status, copy, useLoad } from './ui.js';
import { useKeys } from './keys.js';
import { runDemo } from './demo.js';

const agentFilter = preference('board.agent', '');
const olderShown = preference('board.older', false);
const childrenShown = preference('board.delegated', false);

const COLUMNS = [
  { name: 'needs', title: 'Needs you', about: 'Runs that wait for your answer or approval', none: 'Nothing needs you.', has: card => isWaiting(card.run?.status) },
  { name: 'busy', title: 'Working', about: 'Runs whose agent works now', none: 'Nothing is running.', has: card => ['starting', 'running', 'cancelling'].includes(card.run?.status) },
  { name: 'still', title: 'Queued', about: 'Runs that wait for a free place', none: 'Nothing is queued.', has: card => card.run?.status === 'queued' },
  { name: 'good', title: 'Done today', about: 'Sessions whose last run has ended today', none: 'Nothing has ended today.', has: card => !isLive(card.run?.status) && !isBroken(card.run?.status) && isToday(card.session.lastActivityAtMs) },
  { name: 'bad', title: 'Failed or orphaned', about: 'Runs that failed, or whose process ended without them: open one to retry it', none: 'Nothing has failed.', has: card => isBroken(card.run?.status) },
];

export function Board() {
  const [query, setQuery] = useState('');
  const all = [...sessions.value.values()];
  const agents = [...new Set(all.map(c => c.session.adapter))].sort();
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const fitting = all.filter(card => card.session.status !== 'archived'
    && (!agentFilter.value || card.session.adapter === agentFilter.value)
    && words.every(word => haystack(card).includes(word)));
  const children = fitting.filter(isSettledChild).length;
  const shown = childrenShown.value ? fitting : fitting.filter(card => !isSettledChild(card));
  const isFiltered = words.length > 0 || agentFilter.value !== '';
  const clear = () => { setQuery(''); agentFilter.value = ''; };
  const columns = COLUMNS.map(column => ({ ...column, cards: order(shown.filter(column.has), column.name) }));
  const placed = new Set(columns.flatMap(c => c.cards));
  const older = order(shown.filter(card => !placed.has(card)), 'older');
  const search = useRef();
  const grid = useRef();
  useKeys('Board', [
    { keys: '/', label: 'Filter the board', run: () => search.current?.focus() },
    { keys: 'j | ArrowDown', label: 'Next card', run: () => step(grid.current, 1) },
    { keys: 'k | ArrowUp', label: 'Previous card', run: () => step(grid.current, -1) },
    { keys: 'l | ArrowRight', label: 'Next column', run: () => stepColumn(grid.current, 1) },
    { keys: 'h | ArrowLeft', label: 'Previous column', run: () => stepColumn(grid.current, -1) },
    { keys: 'p', label: 'Pin or unpin the card', run: () => pinFocused() },
  ]);
  if (loading.value) return html`<${Loading} what="Reading the sessions" />`;
  if (!all.length) return html`<${FirstTime} />`;
  return html`<div class="view board">
    <${Head} title="Board" about="Every session, by what it needs next.">
      <div class="filters">
        <label class="field search"><${Icon} name="search" /><span class="hidden-text">Filter</span>
          <input ref=${search} type="search" placeholder="Filter" title="Filter by title, folder, agent" value=${query} onInput=${e => setQuery(e.target.value)}
            onKeyDown=${e => e.key === 'Escape' && (setQuery(''), e.target.blur())} /></label>
        ${agents.length > 1 && html`<select aria-label="Agent" value=${agentFilter.value} onChange=${e => { agentFilter.value = e.target.value; }}>
          <option value="">All agents</option>${agents.map(a => html`<option value=${a}>${a}</option>`)}</select>`}
        ${mayWrite.value && html`<button class="primary" onClick=${() => { overlay.value = 'new'; }}><${Icon} name="plus" />New</button>`}
      </div></${Head}>
    ${isFiltered && !fitting.length ? html`<${Empty} title="No session matches the filter"><button onClick=${clear}>Show all sessions</button></${Empty}>` : html`<div class="columns" ref=${grid}>
      ${columns.map(column => html`<section class=${`column ${column.name}`} key=${column.name} aria-label=${`${column.title}, ${column.cards.length}`}>
        <h2 title=${column.about}><i class="dot" aria-hidden="true"></i>${column.title}<span class="count">${column.cards.length}</span></h2>
        <div class="cards">${column.cards.length ? column.cards.map(card => html`<${Card} key=${card.session.sessionId} card=${card} />`) : html`<p class="none">${isFiltered ? 'None matches the filter.' : column.none}</p>`}</div>
        ${column.name === 'good' && children > 0 && html`<button class="ghost" onClick=${() => { childrenShown.value = !childrenShown.value; }}>${childrenShown.value ? 'Hide' : 'Show'} ${children} delegated</button>`}
      </section>`)}
    </div>`}
    ${older.length > 0 && html`<details class="older" open=${olderShown.value} onToggle=${e => { olderShown.value = e.target.open; }}>
      <summary>Earlier <span class="count">${older.length}</span></summary>
      ${olderShown.value && html`<ul class="list">${older.slice(0, 200).map(({ session, run }) => html`<${Row} key=${session.sessionId} session=${session} run=${run} about=${folder(session.cwd)} />`)}</ul>`}
    </details>`}
    <${Shared} />
  </div>`;
}

const Row = ({ session, run, about }) => html`<li><a href=${`#/s/${session.sessionId}`}><${Status} status=${run?.status} quiet /><b>${titleOf(session)}</b><span class="muted">${session.adapter}</span><span class="muted grow">${about}</span><${Age} ms=${session.lastActivityAtMs} /></a></li>`;

/** Sessions that others of the org share, read when the list is opened: their owners alone get events. */
function Shared() {
  const { orgId, ownerId } = reader.value;
  const [open, setOpen] = useState(false);
  const { value, error } = useLoad(() => (open ? api.sessions({ scope: 'org', limit: 100 }) : Promise.resolve(null)), [open]);
  if (!orgId) return null;
  const others = value?.items.filter(session => session.ownerId !== ownerId) || [];
  return html`<details class="older" onToggle=${e => setOpen(e.target.open)}><summary>Shared in ${orgId}</summary>${error && html`<${Problem} error=${error} />`}
    ${value && !others.length && html`<p class="note">Nobody else has shared a session.</p>`}
    <ul class="list">${others.map(session => html`<${Row} key=${session.sessionId} session=${session} run=${session.latestRun} about=${`of ${session.ownerId}`} />`)}</ul></details>`;
}

const haystack = ({ session, run, line }) =>
  [session.title, session.key, session.prompt, session.adapter, session.agentDefinition, session.model, session.cwd, run?.options?.cwd, run?.options?.model, line?.text].join(' ').toLowerCase();

function order(cards, column) {
  const at = card => card.run?.updatedAtMs ?? card.session.lastActivityAtMs;
  const oldestFirst = column === 'needs' || column === 'still';
  return cards.sort((a, b) => (b.session.pinned === true) - (a.session.pinned === true)
    || (oldestFirst ? at(a) - at(b) : b.session.lastActivityAtMs - a.session.lastActivityAtMs));
}

function Card({ card }) {
  const { session, run, line, usage } = card;
  const cwd = run?.options?.cwd || session.cwd;
  const model = run?.options?.model || session.model || run?.options?.modelProfile || session.modelProfile;
  // If the prompt is the title, it is not shown again.
  const said = line?.user && line.text === titleOf(session) ? null : line;
  const where = [session.forkedFrom && 'fork', parentTitle(run), session.adapter, definitionOf(session), model, folder(cwd)].filter(Boolean).join(' · ');
  return html`<a class="card" href=${`#/s/${session.sessionId}`} data-session=${session.sessionId}>
    <span class="card-head"><b class="title">${titleOf(session)}</b>${session.pinned && html`<span class="pinned" title="Pinned"><${Icon} name="pin" /><span class="hidden-text">Pinned</span></span>`}<${Age} ms=${session.lastActivityAtMs} /></span>
    ${isWaiting(run?.status) && run.wait ? html`<span class="ask">${questionOf(run.wait)}</span>`
      : run?.error ? html`<span class="line error">${run.error.message}</span>`
      : said ? html`<span class="line">${said.tool ? html`<${Icon} name="tool" />${said.tool}` : said.user ? `“${said.text}”` : said.text}</span>`
      : isLive(run?.status) && html`<span class="line">${statusText(run.status)} since ${timeOfDay(run.startedAtMs || run.createdAtMs)}</span>`}
    <span class="meta"><span class="where" title=${cwd ? `${where} (${cwd})` : where}>${where}</span>${card.isQueued && html`<span title="Another prompt waits for this run">+ queued</span>`}
      <span class="cost" title="Cost of all its runs">${costText(usage)}</span></span>
  </a>`;
}

function step(grid, by) {
  const cards = [...grid.querySelectorAll('.card')];
  const at = cards.indexOf(document.activeElement);
  cards[Math.min(Math.max(at + by, 0), cards.length - 1)]?.focus();
}

function stepColumn(grid, by) {
  const columns = [...grid.querySelectorAll('.column')].filter(c => c.querySelector('.card'));
  const at = columns.findIndex(c => c.contains(document.activeElement));
  columns[Math.min(Math.max(at + by, 0), columns.length - 1)]?.querySelector('.card')?.focus();
}

async function pinFocused() {
  const id = document.activeElement?.dataset?.session;
  if (!id || !mayWrite.value) return;
  const pinned = !sessions.value.get(id)?.session.pinned;
  const session = await attempt(() => api.sessionPin(id, pinned), pinned ? 'Pinned' : 'Unpinned');
  if (session) putCard(id, { session });
}

/** The session for which a run works, if it was delegated. */
function parentTitle(run) {
  if (!run?.parentRunId) return null;
  const parent = [...sessions.value.values()].find(card => card.run?.runId === run.parentRunId);
  return parent ? `for ${titleOf(parent.session)}` : 'delegated';
}

const COMMANDS = [['mainspring prompt "say hello"', 'one prompt'], ['mainspring chat', 'a conversation in the terminal'], ['mainspring adapter list', 'lists the agents']];

function FirstTime() {
  return html`<div class="view first"><${Empty} title="No sessions yet">
    <p>Every agent that runs here appears on this board: what it does, what it costs, and what it asks you.</p>
    <ul class="commands">${COMMANDS.map(([command, about]) => html`<li><code class="grow">${command}</code><span class="note wide-only">${about}</span><button class="ghost square" aria-label=${`Copy ${command}`} onClick=${() => copy(command, 'Command')}><${Icon} name="copy" /></button></li>`)}</ul>
    ${mayWrite.value && html`<div class="actions"><button class="primary" onClick=${() => { overlay.value = 'new'; }}><${Icon} name="plus" />New session</button>
      <button onClick=${async () => { const id = await attempt(runDemo); if (id) go(`#/s/${id}`); }}>Run the demo here</button></div>`}
  </${Empty}><${Shared} /></div>`;
}
