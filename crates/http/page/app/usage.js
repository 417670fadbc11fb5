// Tokens and cost by day, agent, model and session. Unknown amounts are counted apart.
import { html, useMemo, useState } from './h.js';
import { api } from './api.js';
import { dayOf, dollars, number, titleOf, tokens } from './format.js';
import { Empty, Head, Loading, Problem, useLoad } from './ui.js';
import { sessions } from './store.js';

const RANGES = [7, 30, 90];
const DAY = 86400000;
const HUES = 6;

const tokensOf = u => u.inputTokens + u.outputTokens + u.cacheReadTokens + u.cacheWriteTokens;

/** The sums of a report, in the terms of this view. */
const groupOf = (key, u) => ({ key, runs: u.runs, tokens: tokensOf(u), costUsd: u.knownCostUsd, unknown: u.unknownCostRuns, partly: u.atLeastRuns });

/** Adds the groups that have the same key. */
export function combine(groups, keyOf) {
  const all = new Map();
  for (const group of groups) {
    const next = groupOf(keyOf(group), group.usage);
    const known = all.get(next.key);
    if (known) for (const field of ['runs', 'tokens', 'costUsd', 'unknown', 'partly']) known[field] += next[field];
    else all.set(next.key, next);
  }
  return [...all.values()];
}

async function read(days) {
  const from = startOfDay(Date.now()) - (days - 1) * DAY;
  const utcOffsetMinutes = -new Date().getTimezoneOffset();
  const report = by => api.usage({ by, from, utcOffsetMinutes });
  const [daily, models, bySession] = await Promise.all([report('day,agent'), report('model'), report('session')]);
  return { from, days, utcOffsetMinutes, daily, models, bySession };
}

export function Usage() {
  const [days, setDays] = useState(30);
  const [unit, setUnit] = useState('cost');
  const { value, error } = useLoad(() => read(days), [days]);
  if (error) return html`<div class="view"><${Problem} error=${error} /></div>`;
  if (!value) return html`<${Loading} what="Reading the usage" />`;
  const { daily } = value;
  const total = groupOf('all', daily.total);
  return html`<div class="view usage"><${Head} title="Usage" about="Tokens and cost of all runs. A cost that is not known is counted apart, never as 0."><div class="filters">
      <span class="segments" role="group" aria-label="Unit">${[['cost', 'Cost'], ['tokens', 'Tokens']].map(([name, label]) => html`<button aria-pressed=${unit === name} onClick=${() => setUnit(name)}>${label}</button>`)}</span>
      <span class="segments" role="group" aria-label="Days">${RANGES.map(n => html`<button aria-pressed=${days === n} onClick=${() => setDays(n)}>${n} days</button>`)}</span></div></${Head}>
    ${daily.damagedRuns > 0 && html`<p class="note">${number(daily.damagedRuns)} runs cannot be read and are not counted.</p>`}
    ${total.runs === 0 ? html`<${Empty} title=${`No runs in the last ${days} days`}><p>What your agents use appears here: by day, agent, model and session.</p></${Empty}>` : html`<div class="totals">
      <div><b>${dollars(total.costUsd)}</b><span>known cost</span></div><div><b>${tokens(total.tokens)}</b><span>tokens</span></div><div><b>${number(total.runs)}</b><span>runs</span></div>
      <div class=${total.unknown + total.partly ? 'unknown' : ''}><b>${number(total.unknown)}</b><span>runs of unknown cost</span></div>${total.partly > 0 && html`<div class="unknown"><b>${number(total.partly)}</b><span>runs known in part</span></div>`}</div>
    <${Days} value=${value} unit=${unit} />
    <div class="breakdowns">
      <${Breakdown} title="By agent" groups=${combine(daily.groups, g => g.agent)} unit=${unit} />
      <${Breakdown} title="By model" groups=${combine(value.models.groups, g => g.model || 'default model')} unit=${unit} />
      <${Breakdown} title="By session" groups=${combine(value.bySession.groups, g => g.sessionId)} unit=${unit} label=${id => html`<a href=${`#/s/${id}`}>${titleOf(sessions.value.get(id)?.session || { sessionId: id })}</a>`} />
    </div>`}</div>`;
}

const startOfDay = ms => new Date(ms).setHours(0, 0, 0, 0);
const amount = (group, unit) => (unit === 'cost' ? group.costUsd : group.tokens);
/** The amount of a group. A cost that leaves runs out is a lower bound, and unknown without any known run. */
function amountText(group, unit) {
  if (unit === 'tokens') return (group.partly ? '≥ ' : '') + tokens(group.tokens);
  if (group.unknown === group.runs || (group.costUsd === 0 && group.unknown + group.partly > 0)) return 'unknown';
  return (group.unknown || group.partly ? '≥ ' : '') + dollars(group.costUsd);
}
const show = (value, unit) => (unit === 'cost' ? dollars(value) : tokens(value));

function Days({ value, unit }) {
  const { from, days, utcOffsetMinutes, daily } = value;
  const agents = useMemo(() => [...new Set(daily.groups.map(g => g.agent))].sort(), [daily]);
  const columns = useMemo(() => Array.from({ length: days }, (_, i) => {
    const at = from + i * DAY;
    const date = new Date(at + utcOffsetMinutes * 60000).toISOString().slice(0, 10);
    const own = daily.groups.filter(g => g.day === date);
    const parts = agents.flatMap(agent => combine(own.filter(g => g.agent === agent), g => g.agent));
    return { from: at, parts, total: parts.reduce((s, p) => s + amount(p, unit), 0), unknown: parts.reduce((s, p) => s + p.unknown, 0) };
  }), [value, unit]);
  const most = Math.max(...columns.map(c => c.total), unit === 'cost' ? 0.01 : 10);
  // The picture is as wide as its place, so that its texts keep their size.
  const W = Math.min(1100, Math.max(300, document.querySelector('main').clientWidth - 40));
  const labels = Math.floor(W / 90);
  const H = 180;
  const step = W / days;
  return html`<figure class="chart"><svg viewBox=${`0 0 ${W} ${H + 24}`} role="img" aria-label=${`${unit === 'cost' ? 'Cost' : 'Tokens'} by day, at most ${show(most, unit)}`}>
      ${[0, 0.5, 1].map(t => html`<g class="grid"><line x1="0" x2=${W} y1=${H - t * (H - 14)} y2=${H - t * (H - 14)} /><text x="0" y=${H - t * (H - 14) - 4}>${t ? show(most * t, unit) : ''}</text></g>`)}
      ${columns.map((c, i) => { let y = H; return html`<g class="day"><title>${dayOf(c.from)}: ${show(c.total, unit)}${c.unknown ? `, ${c.unknown} unknown` : ''}</title>
        <rect class="hit" x=${i * step} y="0" width=${step} height=${H} />
        ${c.parts.map(p => { const h = (amount(p, unit) / most) * (H - 14); y -= h; return html`<rect class=${`hue${agents.indexOf(p.key) % HUES}`} x=${i * step + step * 0.16} y=${y} width=${step * 0.68} height=${h} rx="1.5" />`; })}
        ${c.unknown > 0 && html`<circle class="unknown" cx=${(i + 0.5) * step} cy=${y - 6} r="2.500" />`}
        ${(days - 1 - i) % Math.ceil(days / labels) === 0 && html`<text x=${i === days - 1 ? W : (i + 0.5) * step} y=${H + 16} text-anchor=${i === days - 1 ? 'end' : i * step < 16 ? 'start' : 'middle'}>${i === days - 1 ? 'today' : dayOf(c.from)}</text>`}</g>`; })}
    </svg><figcaption>${agents.map((a, i) => html`<span><i class=${`swatch hue${i % HUES}`}></i>${a}</span>`)}${columns.some(c => c.unknown) && html`<span><i class="swatch round unknown"></i>has runs of unknown cost</span>`}</figcaption></figure>`;
}

function Breakdown({ title, groups, unit, label = key => key }) {
  const sorted = [...groups].sort((a, b) => amount(b, unit) - amount(a, unit) || b.runs - a.runs).slice(0, 12);
  const most = Math.max(...sorted.map(g => amount(g, unit)), 1e-9);
  return html`<section class="breakdown"><h2>${title}</h2>${!sorted.length && html`<p class="note">No runs in these days.</p>`}<ul>${sorted.map(g => html`<li><span class="grow">${label(g.key)}</span>
    <span class="value">${amountText(g, unit)}</span><span class="muted" title=${g.unknown ? `${number(g.unknown)} of unknown cost` : ''}>${number(g.runs)} ${g.runs === 1 ? 'run' : 'runs'}</span>
    <i class="bar" style=${{ width: `${(amount(g, unit) / most) * 100}%` }}></i></li>`)}</ul></section>`;
}
