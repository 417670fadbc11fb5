// Webhooks of the reader: addresses that receive events, whether they do, and
// the events that could not be delivered.
import { html, useState } from './h.js';
import { api } from './api.js';
import { timeExact } from './format.js';
import { Age, Dialog, Icon, Problem, copy, useLoad } from './ui.js';
import { attempt, mayWrite, toast } from './store.js';

const CHOICES = [
  ['attention', 'Questions, approvals and failures', undefined],
  ['runs', 'Everything that happens to runs', ['run']],
  ['own', 'Chosen types', null],
];
const LETTERS = 100;

export function Webhooks() {
  const { value, error, reload } = useLoad(() => api.webhooks(), []);
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState(null);
  const created = webhook => { setMaking(false); setMade(webhook); reload(); };
  return html`<section class="webhooks" aria-label="Webhooks"><h2>Webhooks ${mayWrite.value && html`<button onClick=${() => setMaking(true)}><${Icon} name="plus" />New webhook</button>`}</h2>
    <p class="note">Events of your sessions are sent to the address, signed, and sent again until they are accepted.</p>
    ${error && html`<${Problem} error=${error} />`}
    ${value && (value.items.length ? html`<ul class="list">${value.items.map(hook => html`<${Webhook} key=${hook.webhookId} hook=${hook} onChange=${reload} />`)}</ul>` : html`<p class="note">No webhooks.</p>`)}
    ${making && html`<${NewWebhook} onCreated=${created} onClose=${() => setMaking(false)} />`}
    ${made && html`<${Secret} made=${made} onClose=${() => setMade(null)} />`}</section>`;
}

/** The state of a webhook after its last delivery: a tone and a text. */
function stateOf(hook) {
  if (hook.lastError && hook.failures) return ['bad', `failed ${hook.failures === 1 ? 'once' : `${hook.failures} times`}: ${hook.lastError}`];
  if (hook.lastError) return ['bad', `last event not delivered: ${hook.lastError}`];
  return hook.deliveredAtMs ? ['good', 'delivered'] : ['still', 'nothing sent yet'];
}

function Webhook({ hook, onChange }) {
  const [shown, setShown] = useState(false);
  const [busy, setBusy] = useState(false);
  const [removing, setRemoving] = useState(false);
  const [tone, text] = stateOf(hook);
  const test = async () => {
    setBusy(true);
    const sent = await attempt(() => api.webhookTest(hook.webhookId));
    setBusy(false);
    if (sent) tell('The test event', sent);
  };
  const remove = async () => {
    setRemoving(false);
    if (await attempt(() => api.webhookRemove(hook.webhookId), 'Removed')) onChange();
  };
  return html`<li class="webhook"><div class="webhook-line"><code class="grow">${hook.url}</code>
      <span class=${`status ${tone}`}><i class="dot" aria-hidden="true"></i><span>${text}</span></span>${hook.deliveredAtMs && html`<${Age} ms=${hook.deliveredAtMs} />`}</div>
    <div class="webhook-line"><span class="muted grow">${hook.types.join(', ')}</span>
      <button class="ghost" aria-expanded=${shown} onClick=${() => setShown(!shown)}>Not delivered</button>
      ${mayWrite.value && html`<button class="ghost" disabled=${busy} onClick=${test}>${busy ? 'Sending…' : 'Test'}</button><button class="ghost danger" onClick=${() => setRemoving(true)}>Remove</button>`}</div>
    ${shown && html`<${Letters} hook=${hook} onChange=${onChange} />`}
    ${removing && html`<${Dialog} label="Remove the webhook" onClose=${() => setRemoving(false)}><h2>Remove this webhook?</h2><p><code>${hook.url}</code> receives nothing more, and its undelivered events are forgotten.</p>
      <div class="actions"><button class="danger solid" onClick=${remove}>Remove</button><button onClick=${() => setRemoving(false)}>Keep</button></div></${Dialog}>`}</li>`;
}

const tell = (what, sent) => toast(sent.delivered ? `${what} was delivered` : `${what} was not delivered: ${sent.error}`, sent.delivered ? 'info' : 'problem');

/** The events that could not be delivered. Each may be sent again. */
function Letters({ hook, onChange }) {
  const { value, error, reload } = useLoad(() => api.webhookDead(hook.webhookId, { limit: LETTERS }), [hook.webhookId]);
  const [busy, setBusy] = useState(false);
  const retry = async letters => {
    setBusy(true);
    for (const letter of letters) {
      const sent = await attempt(() => api.webhookRetry(hook.webhookId, letter.cursor));
      if (sent) tell(letter.eventType, sent);
      // The address does not answer, so the other events would fail as well.
      if (!sent?.delivered) break;
    }
    setBusy(false);
    reload();
    onChange();
  };
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return null;
  if (!value.items.length) return html`<p class="note">Every event was delivered, or is still being tried.</p>`;
  return html`<ul class="list letters" aria-label="Events that were not delivered">${value.items.map(letter => html`<li key=${letter.cursor}><b>${letter.eventType}</b><span class="grow muted">${letter.error}</span>
      <span class="muted" title=${timeExact(letter.failedAtMs)}>${letter.attempts === 1 ? 'tried once' : `tried ${letter.attempts} times`}</span><a href=${`#/s/${letter.sessionId}`}>Session</a>
      ${mayWrite.value && html`<button class="ghost" disabled=${busy} onClick=${() => retry([letter])}>Send again</button>`}</li>`)}</ul>
    ${value.next && html`<p class="note">These are the first ${LETTERS}; more follow.</p>`}
    ${mayWrite.value && value.items.length > 1 && html`<div class="actions"><button disabled=${busy} onClick=${() => retry(value.items)}>Send all of these again</button></div>`}`;
}

function NewWebhook({ onCreated, onClose }) {
  const [choice, setChoice] = useState('attention');
  const create = async event => {
    event.preventDefault();
    const { url, types } = event.target.elements;
    const fixed = CHOICES.find(([name]) => name === choice)[2];
    const chosen = fixed === null ? types.value.split(',').map(word => word.trim()).filter(Boolean) : fixed;
    const webhook = await attempt(() => api.webhookCreate({ url: url.value.trim(), ...(chosen ? { types: chosen } : {}) }));
    if (webhook) onCreated(webhook);
  };
  return html`<${Dialog} label="New webhook" onClose=${onClose}><h2>New webhook</h2><form class="form" onSubmit=${create}>
    <label>Address<input name="url" type="url" required autofocus placeholder="https://example.com/hook" /></label>
    <label>Events<select name="choice" value=${choice} onChange=${e => setChoice(e.target.value)}>${CHOICES.map(([name, label]) => html`<option value=${name}>${label}</option>`)}</select></label>
    ${choice === 'own' && html`<label>Types<input name="types" required placeholder="run.failed, approval" /></label>`}
    <div class="actions"><button class="primary">Add</button><button type="button" onClick=${onClose}>Cancel</button></div></form></${Dialog}>`;
}

function Secret({ made, onClose }) {
  return html`<${Dialog} label="The secret" onClose=${onClose}><h2>Copy it now</h2><p>This secret signs the deliveries to <code>${made.url}</code>. It is shown once.</p><pre class="command" tabindex="0"><code>${made.secret}</code></pre>
    <div class="actions"><button class="primary" onClick=${() => copy(made.secret, 'Secret')}>Copy</button><button onClick=${onClose}>Done</button></div></${Dialog}>`;
}
