// The inbox: every open wait of every session, the oldest first.
import { html, useEffect, useRef, useState } from './h.js';
import { waiting, resolved, loading, forget, go, mayWrite, fetchCard } from './store.js';
import { decider, folder, questionOf, timeOfDay, titleOf } from './format.js';
import { Age, Empty, Head, Loading } from './ui.js';
import { Wait, allowOnce, deny } from './wait.js';
import { useChoice, useKeys } from './keys.js';

export function Inbox() {
  const open = waiting.value;
  const ended = [...resolved.value.values()].sort((a, b) => b.atMs - a.atMs);
  const [current, setCurrent] = useChoice(null);
  const [focusKey, setFocusKey] = useState(null);
  const isMoved = useRef(false);
  const indexIn = list => Math.max(0, list.findIndex(item => item.run.wait.waitId === current.current));
  const at = indexIn(open);
  const card = open[at];
  // A key acts on the entry that is chosen when it is pressed, not on one that was drawn before.
  const chosen = () => waiting.value[indexIn(waiting.value)];
  const move = by => {
    const list = waiting.value;
    isMoved.current = true;
    setCurrent(list[Math.min(Math.max(indexIn(list) + by, 0), list.length - 1)]?.run.wait.waitId ?? null);
  };
  const act = what => async () => {
    const { run, session } = chosen() || {};
    if (!run || !mayWrite.value) return;
    const isApproval = run.wait.request === 'approval';
    const offered = run.wait.approval?.answers || [];
    if (!isApproval || (what === 'deny' && offered.includes('deny_with_reason'))) setFocusKey({ waitId: run.wait.waitId, what });
    else if (await (what === 'allow' ? allowOnce : deny)(run)) fetchCard(session.sessionId);
  };
  useKeys('Inbox', [
    { keys: 'j | ArrowDown', label: 'Next', run: () => move(1) },
    { keys: 'k | ArrowUp', label: 'Previous', run: () => move(-1) },
    { keys: 'a', label: 'Allow once, or write the answer', run: act('allow') },
    { keys: 'd', label: 'Deny', run: act('deny') },
    { keys: 'Enter | o', label: 'Open the session', run: () => chosen() && go(`#/s/${chosen().session.sessionId}`) },
  ]);
  useEffect(() => {
    // Only keys scroll: a button that moved between press and release would not be clicked.
    if (!isMoved.current) return;
    isMoved.current = false;
    document.querySelector('.inbox .entry.current')?.scrollIntoView({ block: 'nearest' });
  }, [card?.run.wait.waitId]);
  if (loading.value) return html`<${Loading} what="Reading what waits" />`;
  return html`<div class="view inbox"><${Head} title="Inbox" about="Every question and request for approval of your agents, the oldest first.">${card && mayWrite.value && html`<p class="hints wide-only"><kbd>j</kbd> <kbd>k</kbd> choose <kbd>a</kbd> allow <kbd>d</kbd> deny <kbd>Enter</kbd> open</p>`}</${Head}>
    ${!open.length && !ended.length && html`<${Empty} title="Nothing needs you"><p>Questions and requests for approval of every session appear here.</p></${Empty}>`}
    <ol class="entries">${open.map((item, i) => html`<${Entry} key=${item.run.wait.waitId} card=${item} current=${i === at}
      focusKey=${focusKey?.waitId === item.run.wait.waitId ? focusKey : null} onFocus=${() => setCurrent(item.run.wait.waitId)} />`)}</ol>
    ${ended.length > 0 && html`<section class="ended" aria-label="Answered"><h2>Answered</h2><ol class="entries">${ended.slice(0, 20).map(end => html`<${Ended} key=${end.waitId} end=${end} />`)}</ol></section>`}
  </div>`;
}

const EntryHead = ({ card }) => html`<header><a href=${`#/s/${card.session.sessionId}`}><b>${titleOf(card.session)}</b></a>
  <span class="muted">${card.session.adapter}</span>${(card.run.options?.cwd || card.session.cwd) && html`<span class="muted" title=${card.run.options?.cwd || card.session.cwd}>${folder(card.run.options?.cwd || card.session.cwd)}</span>`}
  <span class="grow"></span><${Age} ms=${card.run.updatedAtMs} /></header>`;

function Entry({ card, current, focusKey, onFocus }) {
  return html`<li class=${`entry ${current ? 'current' : ''}`} aria-current=${current ? 'true' : undefined} onFocusIn=${onFocus} onMouseDown=${onFocus}>
    <${EntryHead} card=${card} /><${Wait} run=${card.run} focusKey=${focusKey} /></li>`;
}

const DECISIONS = { allowed: 'Allowed', denied: 'Denied', supplied: 'Result supplied', expired: 'Expired', answered: 'Answered', closed: 'Withdrawn' };

function Ended({ end }) {
  const { card } = end;
  return html`<li class="entry done"><${EntryHead} card=${card} />
    <p class="question">${questionOf(card.run.wait)}</p>
    <p class="note">${DECISIONS[end.decision] || end.decision}${end.by ? ` by ${decider(end.by)}` : ''} at ${timeOfDay(end.atMs)}
      <button class="ghost" onClick=${() => forget(end.waitId)}>Dismiss</button></p></li>`;
}
