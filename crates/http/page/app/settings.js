// Settings of this browser, and those settings of the server that the reader may see and change.
import { html, useState } from './h.js';
import { api, setCredentials, signInKind } from './api.js';
import { moment } from './format.js';
import { Confirm, Dialog, Head, Icon, Problem, copy, useLoad } from './ui.js';
import { attempt, isAdmin, isOperator, notifications, reader, theme } from './store.js';
import { askPermission } from './notify.js';
import { Approvals, Grants } from './permissions.js';
import { Webhooks } from './webhooks.js';

export function Settings() {
  return html`<div class="view settings"><${Head} title="Settings" about="This browser, and what you may see and change of the server." />
    <section><h2>This browser</h2>
      <div class="setting"><div><b>Appearance</b><p class="note">Dark and light follow the system unless you choose.</p></div>
        <span class="segments" role="group" aria-label="Appearance">${[['system', 'System'], ['light', 'Light'], ['dark', 'Dark']].map(([name, label]) => html`<button aria-pressed=${theme.value === name} onClick=${() => { theme.value = name; }}>${label}</button>`)}</span></div>
      <div class="setting"><div><b>Notifications</b><p class="note">Shown when a session waits for you and this page is not in front. They are withdrawn when the wait has ended.</p></div>
        <button aria-pressed=${notifications.value} onClick=${async () => { notifications.value = notifications.value ? false : await askPermission(); }}>${notifications.value ? 'On' : 'Off'}</button></div>
      <div class="setting"><div><b>Signed in</b><p class="note">As ${reader.value.ownerId} (${reader.value.role}), ${{ key: 'with a key that this browser keeps', oidc: 'at the identity provider', page: 'by a ticket' }[signInKind()]}.</p></div>
        <button onClick=${signOut}>Sign out</button></div></section>
    <${Health} />
    ${isAdmin.value && html`<${KeyList} />`}
    <${Webhooks} />
    <${Grants} />
    <${Approvals} />
    ${isOperator.value && html`<${Metrics} />`}</div>`;
}

async function signOut() {
  // A sign-in by ticket has a key of its own, which is revoked: the cookie is then useless.
  if (signInKind() === 'page') await api.keyRevoke(reader.value.keyId).catch(() => {});
  setCredentials(null);
  location.hash = '';
  location.reload();
}

function Health() {
  const { value, error } = useLoad(async () => ({ health: await api.health(), ready: await api.ready().then(() => null, e => e) }), []);
  return html`<section><h2>Server</h2>${error && html`<${Problem} error=${error} />`}${value && html`<dl class="facts"><div><dt>Version</dt><dd>${value.health.version}</dd></div>
    <div><dt>Store</dt><dd><span class=${`status ${value.ready ? 'bad' : 'good'}`}><i class="dot" aria-hidden="true"></i>${value.ready ? value.ready.message : 'ready'}</span></dd></div>
    <div><dt>API</dt><dd><a href="/openapi.json" target="_blank" rel="noopener">OpenAPI document</a></dd></div></dl>`}</section>`;
}

function KeyList() {
  const { value, error, reload } = useLoad(() => api.keys({ limit: 100 }), []);
  const [making, setMaking] = useState(false);
  const [secret, setSecret] = useState(null);
  const create = async event => {
    event.preventDefault();
    const { name, role, owner, org } = event.target.elements;
    const made = await attempt(() => api.keyCreate({ name: name.value, role: role.value, ...(owner.value ? { ownerId: owner.value } : {}), ...(org?.value ? { orgId: org.value } : {}) }));
    if (!made) return;
    setMaking(false);
    setSecret(made);
    reload();
  };
  const state = k => (k.revokedAtMs ? 'revoked' : k.expiresAtMs && k.expiresAtMs < Date.now() ? 'expired' : 'in force');
  return html`<section><h2>Keys <button onClick=${() => setMaking(true)}><${Icon} name="plus" />New key</button></h2>${error && html`<${Problem} error=${error} />`}
    ${value && (value.items.length ? html`<div class="table-frame" tabindex="0" role="region" aria-label="Keys"><table><thead><tr><th>Name</th><th class="wide-only">Owner</th><th>Role</th><th>State</th><th class="wide-only">Created</th><th><span class="hidden-text">Actions</span></th></tr></thead><tbody>${[...value.items].sort((a, b) => (state(a) !== 'in force') - (state(b) !== 'in force')).map(k => html`<tr key=${k.keyId} class=${state(k) === 'in force' ? '' : 'dim'}><td>${k.name}${k.keyId === reader.value.keyId && html` <span class="tag">this browser</span>`}</td><td class="wide-only">${k.ownerId}${k.orgId ? ` (${k.orgId})` : ''}</td><td>${k.role}</td><td>${state(k)}</td><td class="wide-only">${moment(k.createdAtMs)}</td>
      <td class="num">${state(k) === 'in force' && html`<${Confirm} label="Revoke" sure="Revoke it for good" onSure=${() => attempt(() => api.keyRevoke(k.keyId), 'Revoked').then(reload)} />`}</td></tr>`)}</tbody></table></div>` : html`<p class="note">No keys. The token of the state directory is enough for you.</p>`)}
    ${making && html`<${Dialog} label="New key" onClose=${() => setMaking(false)}><h2>New key</h2><form class="form" onSubmit=${create}>
      <label>Name<input name="name" required autofocus /></label><label>Role<select name="role"><option value="member">member: reads and changes</option><option value="viewer">viewer: reads</option><option value="admin">admin: manages keys too</option></select></label>
      <label>Owner<input name="owner" placeholder="you" /></label>${isOperator.value && html`<label>Org<input name="org" placeholder="none" /></label>`}<div class="actions"><button class="primary">Create</button><button type="button" onClick=${() => setMaking(false)}>Cancel</button></div></form></${Dialog}>`}
    ${secret && html`<${Dialog} label="The key" onClose=${() => setSecret(null)}><h2>Copy it now</h2><p>The secret of “${secret.name}” is shown once and stored nowhere.</p><pre class="command" tabindex="0"><code>${secret.secret}</code></pre>
      <div class="actions"><button class="primary" onClick=${() => copy(secret.secret, 'Key')}>Copy</button><button onClick=${() => setSecret(null)}>Done</button></div></${Dialog}>`}</section>`;
}

function Metrics() {
  const [open, setOpen] = useState(false);
  const { value, error } = useLoad(() => (open ? api.metrics() : Promise.resolve(null)), [open]);
  return html`<section><details onToggle=${e => setOpen(e.target.open)}><summary><h2>Metrics</h2></summary>${error && html`<${Problem} error=${error} />`}${value && html`<pre tabindex="0"><code>${value.split('\n').filter(l => l && !l.startsWith('#')).sort().join('\n')}</code></pre>`}</details></section>`;
}
