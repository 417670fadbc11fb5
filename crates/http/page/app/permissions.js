// Permissions in force, those of the past, and the approvals that were decided.
import { html, useState } from './h.js';
import { api } from './api.js';
import { pastApprovals } from './derived.js';
import { decider, shortId, timeExact, titleOf } from './format.js';
import { Age, Loading, Problem, useLoad } from './ui.js';
import { attempt, mayWrite, sessions } from './store.js';

const LISTED = 100;
const titleIn = id => titleOf(sessions.value.get(id)?.session || { sessionId: id });

export function Grants() {
  const [all, setAll] = useState(false);
  const { value, error, reload } = useLoad(() => api.grants({ limit: LISTED, ...(all ? { all } : {}) }), [all]);
  return html`<section class="grants"><h2>Grants <span class="segments" role="group" aria-label="Which grants"><button aria-pressed=${!all} onClick=${() => setAll(false)}>In force</button><button aria-pressed=${all} onClick=${() => setAll(true)}>All</button></span></h2>
    ${error && html`<${Problem} error=${error} />`}
    ${value && (value.items.length ? html`<ul class="list">${value.items.map(g => html`<${Grant} key=${g.grantId} grant=${g} onChange=${reload} />`)}</ul>` : html`<p class="note">${all ? 'Nothing was ever allowed or denied in advance.' : 'Nothing is allowed in advance.'}</p>`)}
    ${value?.next && html`<p class="note">These are the latest ${LISTED}.</p>`}</section>`;
}

/** Until when a grant holds, or why it holds no more. A grant of a run also ends with its run. */
function termOf(g) {
  if (g.revokedAtMs) return `revoked${g.revokedBy ? ` by ${decider(g.revokedBy)}` : ''}, ${timeExact(g.revokedAtMs)}`;
  if (g.expiresAtMs) return `${g.expiresAtMs < Date.now() ? 'expired' : 'until'} ${timeExact(g.expiresAtMs)}`;
  return g.runId ? 'for one run' : 'for the session';
}

function Grant({ grant: g, onChange }) {
  const isOver = g.revokedAtMs || (g.expiresAtMs && g.expiresAtMs < Date.now());
  return html`<li class=${isOver ? 'dim' : ''}><span class=${`status ${g.effect === 'allow' ? 'good' : 'bad'}`}><i class="dot" aria-hidden="true"></i>${g.effect}</span><code class="grow">${g.capability} ${g.operation} ${g.resourcePattern}</code><span class="muted">${g.source.replace('_', ' ')}</span>
    <a href=${`#/s/${g.sessionId}`}>${titleIn(g.sessionId)}</a><span class="muted">${termOf(g)}</span>
    ${mayWrite.value && !isOver && html`<button class="ghost danger" onClick=${() => attempt(() => api.grantRevoke(g.grantId), 'Revoked').then(onChange)}>Revoke</button>`}</li>`;
}

const TONE = { allowed: 'good', denied: 'bad' };

export function Approvals() {
  const [open, setOpen] = useState(false);
  const { value, error } = useLoad(() => (open ? pastApprovals(LISTED) : Promise.resolve(null)), [open]);
  return html`<section class="approvals"><details onToggle=${e => setOpen(e.target.open)}><summary><h2>Past approvals</h2></summary>${error && html`<${Problem} error=${error} />`}${open && !value && !error && html`<${Loading} />`}
    ${value && !value.length && html`<p class="note">No approval has been decided yet.</p>`}
    <ul class="list">${(value || []).map(({ ended: e, question }) => html`<li key=${e.eventId}><span class=${`status ${TONE[e.payload.decision] || 'still'}`}><i class="dot" aria-hidden="true"></i>${e.payload.decision}</span><span class="grow">${question || shortId(e.payload.waitId)}${e.payload.reason ? html` <span class="muted">“${e.payload.reason}”</span>` : ''}</span>
      <a href=${`#/s/${e.sessionId}`}>${titleIn(e.sessionId)}</a><span class="muted">by ${decider(e.payload.decidedBy)}</span><a href=${`#/r/${e.runId}`}>Run</a><${Age} ms=${e.timestampMs} /></li>`)}</ul></details></section>`;
}
