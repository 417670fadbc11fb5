// Tokens and cost by day, agent, model and session. Unknown amounts are counted apart.
import { html, useMemo, useState } from './h.js';
import { recentRuns } from './derived.js';
import { allTokens, cost, dayOf, dollars, number, titleOf, tokens } from './format.js';
import { Loading, Problem, useLoad } from './ui.js';
import { sessions, usageOf } from './store.js';

const RANGES = [7, 30, 90];
const DAY = 86400000;
const HUES = 6;

export function sum(runs, keyOf) {
  const groups = new Map();
  for (const run of runs) {
    const key = keyOf(run);
    const group = groups.get(key) || { key, runs: 0, tokens: 0, costUsd: 0, unknown: 0, partly: 0 };
    group.runs++;
    const usage = usageOf(run);
    group.tokens += allTokens(usage);
    if (usage.costUsd == null) group.unknown++;
    else group.costUsd += usage.costUsd;
    if (usage.atLeast) group.partly++;
    groups.set(key, group);
  }
  return [...groups.values()];
}

const modelOf = run => run.options.model || run.options.modelProfile || 'the agent’s default';

export function Usage() {
  const { value, error } = useLoad(recentRuns, []);
  const [days, setDays] = useState(30);
  const [unit, setUnit] = useState('cost');
  if (error) return html`<div class="view"><${Problem} error=${error} /></div>`;
  if (!value) return html`<${Loading} what="Reading the usage" />`;
  const start = startOfDay(Date.now()) - (days - 1) * DAY;
  const runs = value.items.filter(r => r.createdAtMs >= start && r.status !== 'queued');
  const total = sum(runs, () => 'all')[0] || { runs: 0, tokens: 0, costUsd: 0, unknown: 0, partly: 0 };
  const covered = value.next ? value.items.at(-1).createdAtMs : 0;
  return html`<div class="view usage"><header class="view-head"><h1>Usage</h1><div class="filters">
      <span class="segments" role="group" aria-label="Unit">${[['cost', 'Cost'], ['tokens', 'Tokens']].map(([name, label]) => html`<button aria-pressed=${unit === name} onClick=${() => setUnit(name)}>${label}</button>`)}</span>
      <span class="segments" role="group" aria-label="Days">${RANGES.map(n => html`<button aria-pressed=${days === n} onClick=${() => setDays(n)}>${n} days</button>`)}</span></div></header>
    ${covered > start && html`<p class="note">Only the latest ${number(value.items.length)} runs are counted, back to ${dayOf(covered)}.</p>`}
    <div class="totals">
      <div><b>${dollars(total.costUsd)}</b><span>known cost</span></div><div><b>${tokens(total.tokens)}</b><span>tokens</span></div><div><b>${number(total.runs)}</b><span>runs</span></div>
      <div class=${total.unknown + total.partly ? 'unknown' : ''}><b>${number(total.unknown)}</b><span>runs of unknown cost</span></div>${total.partly > 0 && html`<div class="unknown"><b>${number(total.partly)}</b><span>runs known in part</span></div>`}</div>
    <${Days} runs=${runs} start=${start} days=${days} unit=${unit} />
    <div class="breakdowns">
      <${Breakdown} title="By agent" groups=${sum(runs, r => r.adapter)} unit=${unit} />
      <${Breakdown} title="By model" groups=${sum(runs, modelOf)} unit=${unit} />
      <${Breakdown} title="By session" groups=${sum(runs, r => r.sessionId)} unit=${unit} label=${id => html`<a href=${`#/s/${id}`}>${titleOf(sessions.value.get(id)?.session || { sessionId: id })}</a>`} />
    </div></div>`;
}

const startOfDay = ms => new Date(ms).setHours(0, 0, 0, 0);
const amount = (group, unit) => (unit === 'cost' ? group.costUsd : group.tokens);
/** The amount of a group. A cost that leaves runs out is a lower bound, and unknown without any known run. */
function amountText(group, unit) {
  if (unit === 'tokens') return (group.partly ? '≥ ' : '') + tokens(group.tokens);
  if (group.unknown === group.runs) return 'unknown';
  return (group.unknown || group.partly ? '≥ ' : '') + dollars(group.costUsd);
}
const show = (value, unit) => (unit === 'cost' ? dollars(value) : tokens(value));

function Days({ runs, start, days, unit }) {
  const agents = useMemo(() => [...new Set(runs.map(r => r.adapter))].sort(), [runs]);
  const columns = useMemo(() => Array.from({ length: days }, (_, i) => {
    const from = start + i * DAY;
    const own = runs.filter(r => startOfDay(r.createdAtMs + 0) >= from - DAY / 2 && startOfDay(r.createdAtMs) < from + DAY / 2);
    const parts = agents.map(agent => sum(own.filter(r => r.adapter === agent), () => agent)[0]).filter(Boolean);
    return { from, parts, total: parts.reduce((s, p) => s + amount(p, unit), 0), unknown: parts.reduce((s, p) => s + p.unknown, 0) };
  }), [runs, start, days, unit]);
  const most = Math.max(...columns.map(c => c.total), unit === 'cost' ? 0.01 : 10);
  const W = 720;
  const H = 180;
  const step = W / days;
  return html`<figure class="chart"><svg viewBox=${`0 0 ${W} ${H + 24}`} role="img" aria-label=${`${unit === 'cost' ? 'Cost' : 'Tokens'} by day, at most ${show(most, unit)}`}>
      ${[0, 0.5, 1].map(t => html`<g class="grid"><line x1="0" x2=${W} y1=${H - t * (H - 14)} y2=${H - t * (H - 14)} /><text x="0" y=${H - t * (H - 14) - 4}>${t ? show(most * t, unit) : ''}</text></g>`)}
      ${columns.map((c, i) => { let y = H; return html`<g class="day"><title>${dayOf(c.from)}: ${show(c.total, unit)}${c.unknown ? `, ${c.unknown} unknown` : ''}</title>
        <rect class="hit" x=${i * step} y="0" width=${step} height=${H} />
        ${c.parts.map(p => { const h = (amount(p, unit) / most) * (H - 14); y -= h; return html`<rect class=${`hue${agents.indexOf(p.key) % HUES}`} x=${i * step + step * 0.16} y=${y} width=${step * 0.68} height=${h} rx="1.5" />`; })}
        ${c.unknown > 0 && html`<circle class="unknown" cx=${(i + 0.5) * step} cy=${y - 6} r="2.500" />`}
        ${(days <= 7 || i % Math.ceil(days / 8) === 0) && html`<text x=${(i + 0.5) * step} y=${H + 16} text-anchor="middle">${dayOf(c.from)}</text>`}</g>`; })}
    </svg><figcaption>${agents.map((a, i) => html`<span><i class=${`swatch hue${i % HUES}`}></i>${a}</span>`)}${columns.some(c => c.unknown) && html`<span><i class="swatch round unknown"></i>has runs of unknown cost</span>`}</figcaption></figure>`;
}

function Breakdown({ title, groups, unit, label = key => key }) {
  const sorted = [...groups].sort((a, b) => amount(b, unit) - amount(a, unit) || b.runs - a.runs).slice(0, 12);
  const most = Math.max(...sorted.map(g => amount(g, unit)), 1e-9);
  return html`<section class="breakdown"><h2>${title}</h2>${!sorted.length && html`<p class="note">No runs in these days.</p>`}<ul>${sorted.map(g => html`<li><span class="grow">${label(g.key)}</span>
    <span class="value">${amountText(g, unit)}</span><span class="muted">${number(g.runs)} ${g.runs === 1 ? 'run' : 'runs'}${g.unknown && g.unknown < g.runs ? `, ${g.unknown} unknown` : ''}</span>
    <i class="bar" style=${{ width: `${(amount(g, unit) / most) * 100}%` }}></i></li>`)}</ul></section>`;
}
