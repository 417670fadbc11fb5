// Agents: what is configured, whether it is ready, and how it is confined.
import { html } from './h.js';
import { api } from './api.js';
import { Head, Loading, Problem, useLoad } from './ui.js';
import { attempt, isOperator, sessions } from './store.js';
import { dollars, isLive, tokens } from './format.js';

async function read() {
  const [adapters, models, logins] = await Promise.all([api.adapters(), api.models(), Promise.resolve({})]);
  for (const a of adapters) if (a.supportsAuthentication && isOperator.value) logins[a.adapter] = await api.logins(a.adapter).catch(() => null);
  return { adapters, models, logins };
}

export function Agents() {
  const { value, error, reload } = useLoad(read, []);
  if (error) return html`<div class="view"><${Problem} error=${error} /></div>`;
  if (!value) return html`<${Loading} what="Reading the agents" />`;
  const { adapters, models, logins } = value;
  return html`<div class="view agents"><${Head} title="Agents" about="What can be given work here, whether it is ready, and how it is confined." />
    <div class="agent-grid">${adapters.map(a => html`<${Agent} key=${a.adapter} a=${a} models=${models} logins=${logins[a.adapter]} reload=${reload} />`)}</div>
    <section><h2>Models</h2>
      ${models.profiles.length > 0 && html`<div class="table-frame" tabindex="0" role="region" aria-label="Models by purpose"><table><thead><tr><th>Purpose</th><th>Model</th><th>Key</th><th class="num">Context</th><th class="num">In, per million</th><th class="num">Out</th></tr></thead><tbody>
        ${models.profiles.map(p => html`<tr><td>${p.profile}</td><td>${p.provider}/${p.model}</td><td>${keyTag(p.key)}</td><td class="num">${p.contextTokens ? tokens(p.contextTokens) : 'unknown'}</td><td class="num">${p.price ? dollars(p.price.input) : 'unknown'}</td><td class="num">${p.price ? dollars(p.price.output) : 'unknown'}</td></tr>`)}</tbody></table></div>`}
      <h3>Providers</h3><ul class="providers">${models.providers.map(p => html`<li><b>${p.provider}</b> ${p.kind !== p.provider && html`<span class="muted">speaks ${p.kind}</span> `}${keyTag(p.key)}</li>`)}</ul>
      <p class="note">A missing key is set with <code>mainspring auth add PROVIDER</code>.</p>
    </section></div>`;
}

const KEY = { present: ['good', 'key present'], missing: ['still', 'no key'], not_needed: ['good', 'no key needed'] };
const keyTag = key => html`<span class=${`status ${KEY[key][0]}`}><i class="dot" aria-hidden="true"></i>${KEY[key][1]}</span>`;

/** Whether an agent can be given work, as far as that is known before it is. */
export function readiness(a, models) {
  if (a.unavailable) return ['bad', a.unavailable];
  if (a.adapter === 'native') {
    const usable = models?.profiles.some(p => p.key !== 'missing') || models?.providers.some(p => p.key !== 'missing' && p.provider !== 'scripted' && p.provider !== 'ollama');
    if (models && !usable) return ['still', 'no model has a key'];
  }
  return a.supportsAuthentication ? ['busy', 'log-in checked at start'] : ['good', 'ready'];
}

function Agent({ a, models, logins, reload }) {
  const [state, word] = readiness(a, models);
  const working = [...sessions.value.values()].filter(c => c.run?.adapter === a.adapter && isLive(c.run.status)).length;
  const yes = [
    a.supportsNativeResume && 'resumes its own sessions', a.supportsSteering && 'can be steered', a.supportsTools && 'uses tools', a.supportsModelSwitching && 'switches models',
    a.supportsArtifactEmission && 'leaves artifacts', a.keepsLimits && 'keeps limits', a.acknowledgesCancellation && 'acknowledges a stop',
  ].filter(Boolean);
  return html`<article class="agent"><header><h2>${a.adapter}</h2><span class=${`status ${state}`}><i class="dot" aria-hidden="true"></i>${word}</span></header>
    <dl class="facts small">
      <div><dt>Open runs</dt><dd>${working}</dd></div>
      <div><dt>Sandbox</dt><dd>${a.sandbox ? `${a.sandbox.profile.replace('_', ' ')}, ${a.sandbox.enforcement === 'landlock' ? 'enforced by Landlock' : 'not enforced'}` : 'runs inside mainspring'}</dd></div>
      <div><dt>Processes</dt><dd>${a.supervision ? (a.supervision === 'tree' ? 'all end with it' : 'its process group ends with it') : 'none of its own'}</dd></div>
      <div><dt>After a restart</dt><dd>${RESTART[a.restartBehavior] || a.restartBehavior}</dd></div>
      <div><dt>Usage</dt><dd>${{ live: 'reported as it happens', at_end: 'reported at the end', never: 'unknown' }[a.usageReports]}</dd></div>
    </dl>
    ${a.sandbox?.note && html`<p class="note">${a.sandbox.note}</p>`}
    <p class="abilities">${yes.map(text => html`<span class="tag">${text}</span>`)}</p>
    ${logins && (logins.items || logins).length > 0 && html`<div class="logins"><h3>Log-in</h3>${(logins.items || logins).map(m => html`<button title=${m.description || ''} onClick=${() => attempt(() => api.login(a.adapter, m.id), 'Logged in').then(reload)}>${m.displayName}</button>`)}</div>`}
  </article>`;
}

const RESTART = { native_bindings_survive: 'its sessions survive', process_local_bindings_stale: 'its sessions start anew', attempts_orphaned: 'its runs end as orphaned', resumes_from_messages: 'goes on from its messages' };
