// A run: its timeline, its cost, and its results.
import { html, useEffect, useMemo, useState } from './h.js';
import { api, pages, paths } from './api.js';
import { allTokens, bytes, cost, costText, duration, elapsed, isBroken, isLive, moment, number, textOf, timeExact, timeOfDay, titleOf, tokenCount, tokens } from './format.js';
import { Empty, Icon, Loading, Problem, Status, tone, useLoad } from './ui.js';
import { download, pretty } from './message.js';
import { attempt, mayChange, sessions, usageOf } from './store.js';
import { Wait } from './wait.js';
import { eventText } from './events.js';
import { ticksOf, timeline } from './timeline.js';
import { subscribe } from './streams.js';
import { Route, readRoute } from './route.js';
import { Goals, Tasks } from './plan.js';

async function readRun(id) {
  const run = await api.run(id);
  const [attempts, steps, events, kin, artifacts, processes, session, prompt] = await Promise.all([
    api.attempts(id), api.steps(id), pages(`/v1/runs/${id}/events`, {}, 3000, 'after').catch(() => ({ items: [] })),
    api.delegations(id), api.runArtifacts(id), api.processes(id).catch(() => ({ items: [] })), api.sessionGet(run.sessionId),
    // A queued prompt is not part of the tree yet.
    run.startedAtMs && promptOf(run) ? api.message(run.sessionId, promptOf(run)).catch(() => null) : null,
  ]);
  const route = await readRoute(id, events.items).catch(() => null);
  return { run, route, prompt, attempts: attempts.items, steps: steps.items, events: events.items, more: events.next, kin, artifacts: artifacts.items, processes: processes.items, session };
}

/** The message that a run answers. */
const promptOf = ({ promptMessageId, place }) => promptMessageId || place?.messageId;

export function RunView({ id }) {
  const { value, error, reload } = useLoad(() => readRun(id), [id]);
  useEffect(() => {
    let timer;
    const stop = subscribe(paths.ownerEvents, message => {
      if (message.kind !== 'frames' || !message.frames.some(f => f.data.includes(id))) return;
      clearTimeout(timer);
      timer = setTimeout(reload, 250);
    });
    return () => { clearTimeout(timer); stop(); };
  }, [id]);
  if (error && !value) return html`<div class="view"><${Empty} title=${error.code === 'not_found' ? 'There is no such run' : 'The run cannot be read'}>${error.code === 'not_found' ? html`<p>It was deleted, or belongs to somebody who has not shared it.</p>` : html`<${Problem} error=${error} />`}<a class="button" href="#/">Back to the board</a></${Empty}></div>`;
  if (!value) return html`<${Loading} what="Reading the run" />`;
  return html`<${Run} data=${value} reload=${reload} />`;
}

function Run({ data, reload }) {
  const { run, route, prompt, attempts, steps, events, kin, artifacts, processes, session } = data;
  const live = isLive(run.status);
  const since = run.startedAtMs || run.createdAtMs;
  const mayAct = mayChange(run);
  const asked = textOf(prompt).trim();
  return html`<div class="view run">
    <header class="view-head"><div><p class="crumb"><a href=${`#/s/${run.sessionId}`}>${titleOf({ ...session, prompt: sessions.value.get(run.sessionId)?.session.prompt })}</a></p><h1>Run ${run.runNo}</h1><p class="about">One prompt, and everything that was done for it.</p></div>
      <div class="actions">${mayAct && live && html`<button onClick=${() => attempt(() => api.cancel(run.runId)).then(reload)}><${Icon} name="stop" />Stop</button>`}
      ${mayAct && isBroken(run.status) && html`<button onClick=${() => attempt(() => api.retry(run.runId), 'Retrying').then(reload)}><${Icon} name="redo" />Retry</button>`}</div></header>
    ${asked && html`<a class="run-prompt" href=${`#/s/${run.sessionId}/m/${promptOf(run)}`} title="Show it in the conversation"><span>${asked.slice(0, 600)}</span></a>`}
    ${run.error && html`<${Problem} error=${run.error} />`}
    ${run.wait && run.status.startsWith('waiting') && html`<${Wait} run=${run} />`}
    <dl class="facts">
      <div><dt>Status</dt><dd><${Status} status=${run.status} /></dd></div>
      <div><dt>Agent</dt><dd>${run.adapter}${run.options.model ? ` · ${run.options.model}` : ''}</dd></div>
      <div><dt>Mode</dt><dd>${run.mode === 'act' ? 'may act' : 'reads only'}</dd></div>
      <div><dt>Folder</dt><dd>${run.options.cwd || session.cwd || 'the agent’s own'}</dd></div>
      <div><dt>Began</dt><dd>${timeExact(since)}</dd></div>
      <div><dt>Took</dt><dd>${live ? `${elapsed(Date.now() - since)} so far` : duration((run.completedAtMs ?? run.updatedAtMs) - since)}</dd></div>
      <div><dt>Tokens</dt><dd>${tokenText(usageOf(run))}</dd></div>
      <div><dt>Cost</dt><dd>${cost(usageOf(run))}</dd></div>
      ${run.budget && html`<div><dt>Budget</dt><dd>${budget(run.budget)}</dd></div>`}
      <div class="id"><dt>Id</dt><dd><code>${run.runId}</code></dd></div>
    </dl>
    <${Timeline} data=${data} />
    ${run.goals?.length > 0 && html`<section><h2>Goals <span class="count">${run.goals.length}</span></h2><${Goals} goals=${run.goals} /></section>`}
    ${run.tasks?.length > 0 && html`<section><h2>Plan <span class="count">${run.tasks.filter(t => t.status === 'completed').length} of ${run.tasks.length} done</span></h2><${Tasks} tasks=${run.tasks} /></section>`}
    ${route && html`<${Route} route=${route} />`}
    ${steps.length > 0 && html`<${Steps} steps=${steps} />`}
    ${(kin.parent || kin.children.length > 0) && html`<${Delegations} kin=${kin} />`}
    ${artifacts.length > 0 && html`<${Artifacts} artifacts=${artifacts} />`}
    ${processes.length > 0 && html`<section><h2>Still running</h2><p class="note">Processes that its turns left behind.</p><ul class="list">${processes.map(p => html`<li><code>${p.pid}</code> <code class="grow">${p.command}</code></li>`)}</ul>
      ${mayAct && html`<button onClick=${() => attempt(() => api.processesEnd(run.runId), 'Ended').then(reload)}>End them</button>`}</section>`}
    <${Attempts} attempts=${attempts} />
    <${Events} events=${events} more=${data.more} />
  </div>`;
}

function tokenText(usage) {
  if ((usage.atLeast || usage.costUsd == null) && !allTokens(usage)) return 'unknown';
  return `${usage.atLeast ? 'at least ' : ''}${number(usage.inputTokens || 0)} in, ${number(usage.outputTokens || 0)} out${usage.cacheReadTokens ? `, ${number(usage.cacheReadTokens)} cached` : ''}`;
}

function budget(b) {
  const parts = [];
  if (b.maxSteps != null) parts.push(`${b.stepsLeft} of ${b.maxSteps} steps left`);
  if (b.maxTokens != null) parts.push(`${tokens(b.tokensLeft ?? 0)} of ${tokens(b.maxTokens)} tokens left`);
  if (b.maxCostUsd != null) parts.push(`$${b.costUsdLeft} of $${b.maxCostUsd} left`);
  if (b.endsAtMs != null) parts.push(`until ${timeOfDay(b.endsAtMs)}`);
  return (b.exceeded ? 'exceeded: ' : '') + parts.join(', ');
}

/** A round time: "30 s", "2 min". */
const tickText = ms => (ms ? duration(ms).replace('.0 s', ' s').replace(/ 0 (s|min)$/, '') : '0');

/** Bars of attempts, model calls, tools and waits over the time of the run. */
function Timeline({ data }) {
  const { rows, from, to } = useMemo(() => timeline(data), [data]);
  const [chosen, setChosen] = useState(null);
  if (!rows.length) return null;
  const span = Math.max(1, to - from);
  return html`<section class="timeline" aria-label="Timeline"><h2>Timeline</h2>
    <div class="axis" aria-hidden="true"><span></span><span class="ticks">${ticksOf(span).map(ms => html`<i style=${{ left: `${(ms / span) * 100}%` }}>${tickText(ms)}</i>`)}</span></div>
    <ol>${rows.map((row, i) => html`<li class=${`${row.kind} ${row.tone}`}>
      <span class="name" title=${row.label}>${row.label}</span>
      <button class="track" aria-label=${`${row.label}: ${row.detail}, ${row.open ? 'still open' : duration(row.to - row.from)}`} onClick=${() => setChosen(chosen === i ? null : i)}>
        <span class="lane"><i class=${row.open ? 'open' : ''} style=${{ left: `${((row.from - from) / span) * 100}%`, width: `${Math.max(0.4, ((row.to - row.from) / span) * 100)}%` }}></i>
        <b style=${{ left: `calc(${((row.to - from) / span) * 100}% + 6px)` }}>${row.open ? elapsed(row.to - row.from) : row.unknown ? 'unknown' : duration(row.to - row.from)}</b></span></button>
      ${chosen === i && html`<p class="detail">${row.detail} · ${timeExact(row.from)}</p>`}</li>`)}</ol></section>`;
}

function Steps({ steps }) {
  return html`<section><h2>Model calls <span class="count">${steps.length}</span></h2><div class="table-frame" tabindex="0" role="region" aria-label="Model calls"><table><thead><tr><th>No</th><th>Model</th><th>Ended by</th><th class="num">First text</th><th class="num">Took</th><th class="num">In</th><th class="num">Out</th><th class="num">Cost</th></tr></thead>
    <tbody>${steps.map(s => html`<tr><td>${s.stepNo}</td><td>${s.provider}/${s.model}</td><td>${s.error ? html`<span class="bad-text" title=${s.error.message}>${s.error.code}</span>` : s.stopReason.replace('_', ' ')}</td>
      <td class="num">${s.firstPieceAtMs ? duration(s.firstPieceAtMs - s.startedAtMs) : '–'}</td><td class="num">${duration(s.completedAtMs - s.startedAtMs)}</td>
      <td class="num">${s.usage ? tokens((s.usage.inputTokens || 0) + (s.usage.cacheReadTokens || 0)) : 'unknown'}</td><td class="num">${s.usage ? tokens(s.usage.outputTokens || 0) : 'unknown'}</td><td class="num">${cost(s.usage)}</td></tr>`)}</tbody></table></div></section>`;
}

function Delegations({ kin }) {
  return html`<section><h2>Delegations</h2><ul class="list tree-list">
    ${kin.parent && html`<li><a href=${`#/r/${kin.parent.parentRunId}`}><span class="muted">for</span><span class="grow">the run that delegated this one</span><span class="tag">${kin.parent.mode}</span></a></li>`}
    ${kin.children.map(d => html`<${Child} key=${d.childRunId} delegation=${d} />`)}</ul></section>`;
}

/** Delegated work: its goal, what is left of its budget, its cost, and what it delegated itself. */
function Child({ delegation: d }) {
  const { value } = useLoad(() => Promise.all([api.run(d.childRunId), api.delegations(d.childRunId)]), [d.childRunId, d.status]);
  const [run, kin] = value || [];
  return html`<li><a href=${`#/r/${d.childRunId}`}><${Status} status=${d.status === 'pending' ? 'queued' : d.status} /><span class="tag">${d.mode}</span><span class="grow">${d.objective}</span>
    ${run?.budget && html`<span class="muted">${budget(run.budget)}</span>`}${run && html`<span class="muted">${costText(usageOf(run))}</span>`}</a>
    ${kin?.children.length > 0 && html`<ul class="list tree-list">${kin.children.map(child => html`<${Child} key=${child.childRunId} delegation=${child} />`)}</ul>`}</li>`;
}

function Artifacts({ artifacts }) {
  return html`<section><h2>Artifacts <span class="count">${artifacts.length}</span></h2><ul class="list">${artifacts.map(a => html`<li class="artifact"><${ArtifactLine} artifact=${a} /></li>`)}</ul></section>`;
}

const PATCH = /\.(diff|patch)$|^text\/x-(diff|patch)$/;
const SHOWN_LINES = 2000;

/** A change as another tool wrote it, line by line. */
const Patch = ({ text }) => html`<div class="diff"><div class="rows" tabindex="0" role="region" aria-label="Changes">${text.split('\n').slice(0, SHOWN_LINES).map(line => html`<div class=${`row ${{ '+': 'add', '-': 'del' }[line[0]] || ''}`}><code>${line || ' '}</code></div>`)}</div></div>`;

const TEXT = /^(text\/|application\/(json|xml|toml|yaml|javascript|x-sh))/;

export function ArtifactLine({ artifact }) {
  const [shown, setShown] = useState(null);
  const type = artifact.mimeType || '';
  const isPatch = PATCH.test(type) || PATCH.test(artifact.name || '');
  const isText = isPatch || TEXT.test(type);
  const isImage = /^image\/(png|jpeg|gif|webp|avif)$/.test(type);
  useEffect(() => () => { if (shown?.url) URL.revokeObjectURL(shown.url); }, [shown]);
  const toggle = async () => {
    if (shown) { setShown(null); return; }
    const response = await attempt(() => api.artifactContent(artifact.artifactId));
    if (!response) return;
    setShown(isText ? { text: (await response.text()).slice(0, 200000) } : { url: URL.createObjectURL(await response.blob()) });
  };
  return html`<div class="artifact-line"><${Icon} name="file" /><b class="grow">${artifact.name || artifact.kind}</b><span class="muted">${artifact.role}</span><span class="muted">${type || 'unknown type'}</span><span class="muted">${bytes(artifact.sizeBytes)}</span>
    ${(isText || isImage) && html`<button class="ghost" aria-expanded=${shown !== null} onClick=${toggle}>${shown ? 'Hide' : 'Preview'}</button>`}<button class="ghost" onClick=${() => attempt(() => download(artifact.artifactId, artifact.name || artifact.artifactId).then(() => null))}>Download</button></div>
    ${shown?.text !== undefined && isPatch && html`<${Patch} text=${shown.text} />`}${shown?.text !== undefined && !isPatch && html`<pre tabindex="0"><code>${shown.text}</code></pre>`}${shown?.url && html`<img class="preview" src=${shown.url} alt=${artifact.name || 'Artifact'} />`}`;
}

function Attempts({ attempts }) {
  return html`<section><h2>Attempts <span class="count">${attempts.length}</span></h2><ul class="list">${attempts.map(a => html`<li class="attempt" key=${a.attemptId}><${Status} status=${a.status} /><span>Attempt ${a.attemptNo}</span><span class="muted">${a.adapter}</span>
    ${a.retryReason && html`<span class="tag">after ${a.retryReason}</span>`}${a.sandbox && html`<span class="tag" title=${a.sandbox.note || ''}>sandbox ${a.sandbox.profile} (${a.sandbox.enforcement})</span>`}
    <span class="grow muted">${a.error ? `${a.error.message} (${a.error.code})` : ''}</span><span class="muted">${a.startedAtMs ? duration((a.completedAtMs || Date.now()) - a.startedAtMs) : 'not started'}</span>${a.completedAtMs && html`<${Stderr} attemptId=${a.attemptId} />`}</li>`)}</ul></section>`;
}

/** The standard error of the agent's process, on demand. */
function Stderr({ attemptId }) {
  const [shown, setShown] = useState(null);
  const toggle = async () => {
    if (shown) { setShown(null); return; }
    const found = await attempt(() => api.stderr(attemptId));
    if (found) setShown(found);
  };
  return html`<button class="ghost" aria-expanded=${shown !== null} onClick=${toggle}>${shown ? 'Hide stderr' : 'Stderr'}</button>
    ${shown && (shown.text === null ? html`<p class="note">Nothing is kept: the agent wrote nothing, or has no process of its own.</p>` : html`<pre class="stderr" tabindex="0"><code>${shown.text}</code></pre>`)}`;
}

function Events({ events, more }) {
  const [raw, setRaw] = useState(false);
  return html`<section class="events"><h2>Events <span class="count">${events.length}${more ? '+' : ''}</span>
    <span class="segments" role="group" aria-label="Form"><button aria-pressed=${!raw} onClick=${() => setRaw(false)}>For people</button><button aria-pressed=${raw} onClick=${() => setRaw(true)}>Raw</button></span></h2>
    <ol class=${raw ? 'raw' : ''}>${events.map(e => (raw ? html`<li key=${e.eventId}><details><summary><code>${e.cursor}.${e.pos}</code> <code>${e.type}</code></summary><pre tabindex="0"><code>${pretty(e)}</code></pre></details></li>`
      : html`<li key=${e.eventId}><time title=${timeExact(e.timestampMs)}>${new Date(e.timestampMs).toLocaleTimeString()}</time><span class=${tone(e.type.slice(4))}>${eventText(e)}</span></li>`))}</ol></section>`;
}

/** The runs of a session, the newest first. */
export function RunList({ conversation }) {
  const id = conversation.id;
  const run = conversation.run.value;
  const { value, error } = useLoad(() => api.runs({ session: id, limit: 100 }), [id, run?.runId, run?.status]);
  const usage = useLoad(() => api.sessionUsage(id), [id, run?.status]);
  const prompts = new Map(conversation.messages.value.map(message => [message.messageId, textOf(message).trim()]));
  if (error) return html`<div class="view"><${Problem} error=${error} /></div>`;
  if (!value) return html`<${Loading} />`;
  return html`<div class="view runs"><p class="note">Each prompt makes one run. It ends done, stopped, failed, timed out or orphaned (its process is gone), and may be tried again.</p>
    ${usage.value && html`<dl class="facts"><div><dt>Runs</dt><dd>${usage.value.runs}${usage.value.delegatedRuns ? ` and ${usage.value.delegatedRuns} delegated` : ''}</dd></div><div><dt>Tokens</dt><dd>${tokenCount(usage.value.totalUsage)}</dd></div><div><dt>Cost</dt><dd>${cost(usage.value.totalUsage)}</dd></div></dl>`}
    <div class="table-frame" tabindex="0" role="region" aria-label="Runs"><table><thead><tr><th>Run</th><th>Status</th><th class="wide-only">Prompt</th><th class="wide-only">Agent</th><th>Began</th><th class="num">Took</th><th class="num wide-only">Tokens</th><th class="num">Cost</th></tr></thead><tbody>
    ${value.items.map(r => html`<tr><td><a href=${`#/r/${r.runId}`}>Run ${r.runNo}</a></td><td><${Status} status=${r.status} /></td><td class="wide-only"><span class="one-line">${prompts.get(promptOf(r)) || ''}</span></td><td class="wide-only">${r.adapter}</td><td><time title=${timeExact(r.createdAtMs)}>${moment(r.createdAtMs)}</time></td><td class="num">${r.startedAtMs ? duration((r.completedAtMs || Date.now()) - r.startedAtMs) : '–'}</td><td class="num wide-only">${tokenCount(usageOf(r))}</td><td class="num">${cost(usageOf(r))}</td></tr>`)}
    </tbody></table></div></div>`;
}
