// The route of a run through a network of agents: each decision, the agents that were called for it, and their time and
// cost.
import { html } from './h.js';
import { api } from './api.js';
import { allTokens, cost, duration, timeExact, tokenCount, tokens } from './format.js';

/** Reads the route of a run; null if none of its events is a decision of a router. */
export async function readRoute(runId, events) {
  if (!events.some(event => event.type === 'run.routed')) return null;
  const route = await api.route(runId);
  return route.decisions.length ? route : null;
}

const ENDS = { done: 'The network is done.', stack_empty: 'No agent is left to call.', max_iter: 'The network has made as many calls as it may.' };

/** Why the router decided so. */
function why({ by, reason }) {
  const rule = { sequence: 'in sequence', rule: `rule ${by.rule}`, rules: 'no rule holds', code: `code ${by.name}`, model: 'the routing model', reducer: 'to combine the results' }[by.kind] || by.kind;
  return reason ? `${rule}: ${reason}` : rule;
}

const namesOf = next => (next == null ? [] : Array.isArray(next) ? next : [next]);

export function Route({ route }) {
  return html`<section class="route"><h2>Route <span class="count">${route.network}</span></h2>
    <ol class="hops" aria-label="Decisions of the router">${route.decisions.map(d => html`<${Hop} key=${d.routeNo} decision=${d} />`)}</ol>
    ${route.members.length > 0 && html`<div class="table-frame" tabindex="0" role="region" aria-label="Members"><table><thead><tr><th>Member</th><th class="num">Calls</th><th class="num">Model calls</th><th class="num">Took</th><th class="num">Tokens</th><th class="num">Cost</th></tr></thead>
      <tbody>${route.members.map(m => html`<tr><td>${m.member}</td><td class="num">${m.calls}</td><td class="num">${m.steps}</td><td class="num">${duration(m.durationMs)}</td><td class="num">${tokenCount(m.usage)}</td><td class="num">${cost(m.usage)}</td></tr>`)}
      ${route.routing && html`<tr class="dim"><td>routing model</td><td></td><td></td><td></td><td class="num">${tokens(allTokens(route.routing))}</td><td class="num">${cost(route.routing)}</td></tr>`}</tbody></table></div>`}</section>`;
}

function Hop({ decision }) {
  const called = namesOf(decision.next);
  const calls = decision.memberCalls || [];
  const callOf = name => calls.find(call => call.member === name);
  return html`<li class=${called.length > 1 ? 'parallel' : ''}><div class="hop-agents">
      ${called.map(name => html`<${Member} name=${name} call=${callOf(name)} />`)}
      ${!called.length && html`<b class="hop-end">${ENDS[decision.end] || 'The network ends.'}</b>`}</div>
    <p class="note" title=${timeExact(decision.decidedAtMs)}>${called.length || decision.by.kind !== 'sequence' ? why(decision) : 'everybody in the sequence was called'}${decision.skipped?.length ? ` · skipped ${decision.skipped.join(', ')}` : ''}${decision.stack?.length ? ` · then ${decision.stack.flat().join(', ')}` : ''}</p></li>`;
}

function Member({ name, call }) {
  const took = call?.startedAtMs && call.completedAtMs ? duration(call.completedAtMs - call.startedAtMs) : call?.startedAtMs ? 'working' : 'not begun';
  const body = html`<b>${name}</b><span class="muted">${took}${call?.steps ? ` · ${tokens(allTokens(call.usage))} tokens · ${cost(call.usage)}` : ''}</span>`;
  return call?.childRunId ? html`<a class="hop" href=${`#/r/${call.childRunId}`}>${body}</a>` : html`<div class="hop">${body}</div>`;
}
