// The answer to an open wait: its question, its change or command, and a button for each possible answer.
import { html, useEffect, useRef, useState } from './h.js';
import { api } from './api.js';
import { left, timeExact, decider, questionOf, shortId, timeOfDay } from './format.js';
import { Diff, DiffSwitch } from './diffview.js';
import { Icon } from './ui.js';
import { attempt, mayChange, mayWrite, now, toast } from './store.js';

const HOURS = [1, 8, 24];

/** Sends an answer; a wait that was answered elsewhere says by whom. */
export async function answerWait(run, answer, done) {
  try {
    await api.answer(run.runId, run.wait.waitId, answer);
    if (done) toast(done);
    return true;
  } catch (error) {
    if (error.code === undefined) throw error;
    if (error.code === 'already_answered' && error.answeredBy) {
      toast(`${decider(error.answeredBy)} already answered at ${timeOfDay(error.answeredAtMs)}.`);
      return true;
    }
    toast(error);
    return false;
  }
}

export const allowOnce = run => answerWait(run, { kind: 'approval', decision: 'allowed' }, 'Allowed once');
export const deny = run => answerWait(run, { kind: 'approval', decision: 'denied' }, 'Denied');

/** What the agent wants to do. */
export function Request({ wait, base }) {
  const { approval } = wait;
  const call = approval?.call;
  const diffs = call?.diff || [];
  const command = typeof call?.input?.command === 'string' ? call.input.command : null;
  const question = questionOf(wait);
  const title = call && (call.title || call.name);
  return html`<div class="request">
    <p class="question">${command && question.includes(command) ? 'Allow this command?' : question}</p>
    ${call && html`<p class="call"><${Icon} name="tool" />${!question.includes(title) && html`<b>${title}</b>`}
      ${approval.action && html`<span class="tag">${approval.action.capability} ${approval.action.operation}</span>`}
      ${(diffs.length ? [] : call.locations || []).map(l => html`<code>${l.path}${l.line ? `:${l.line}` : ''}</code>`)}
      ${diffs.length > 0 && html`<span class="push"><${DiffSwitch} /></span>`}</p>`}
    ${command && html`<pre class="command" tabindex="0"><code>${command}</code></pre>`}
    ${diffs.map(diff => html`<${Diff} diff=${diff} base=${base} />`)}
    ${call?.input != null && !command && diffs.length === 0 && html`<pre tabindex="0"><code>${JSON.stringify(call.input, null, 2)}</code></pre>`}
    ${call?.truncated && html`<p class="note">The request is longer than what is kept: parts of it are not shown.</p>`}
    ${call && html`<p class="note">The agent describes the call itself. Its sandbox limits what it can really do.</p>`}
  </div>`;
}

/** The request and the form of its answers. */
export function Wait({ run, focusKey }) {
  const { wait } = run;
  return html`<section class="wait" aria-label=${`Waiting for you: ${wait.question.slice(0, 80)} (${shortId(wait.waitId)})`}>
    <${Request} wait=${wait} base=${run.options?.cwd} />
    ${mayChange(run) ? html`<${Answers} run=${run} focusKey=${focusKey} />` : html`<p class="note">${mayWrite.value ? 'You may read this session. Its owner may answer.' : 'A viewer may read this, and not answer.'}</p>`}
    ${wait.expiresAtMs && html`<p class="note" title=${timeExact(wait.expiresAtMs)}>${left(wait.expiresAtMs, now.value)}; then ${wait.onExpiry === 'continue' ? 'the agent goes on without an answer' : 'the run times out'}</p>`}
  </section>`;
}

function Answers({ run, focusKey }) {
  const { wait } = run;
  if (wait.request === 'tools') return html`<${ToolResults} run=${run} />`;
  if (wait.request === 'input') return html`<${TextAnswer} run=${run} focusKey=${focusKey} />`;
  return html`<${ApprovalAnswer} run=${run} focusKey=${focusKey} />`;
}

function ApprovalAnswer({ run, focusKey }) {
  const offered = run.wait.approval?.answers || ['allow_once', 'deny'];
  const [more, setMore] = useState(null);
  const [text, setText] = useState('');
  const [hours, setHours] = useState(8);
  const [busy, setBusy] = useState(false);
  const field = useRef();
  useEffect(() => { if (focusKey?.what === 'deny') setMore(offered.includes('deny_with_reason') ? 'reason' : null); }, [focusKey]);
  useEffect(() => { if (more) field.current?.focus(); }, [more]);
  const send = async (answer, done) => {
    setBusy(true);
    await answerWait(run, { kind: 'approval', ...answer }, done);
    setBusy(false);
  };
  const has = name => offered.includes(name);
  const submit = event => {
    event.preventDefault();
    if (more === 'reason') send({ decision: 'denied', ...(text.trim() ? { reason: text.trim() } : {}) }, 'Denied');
    else send({ decision: 'supplied', result: { text } }, 'Result supplied');
  };
  return html`<div class="answers">
    <div class="actions">
      ${has('allow_once') && html`<button class="primary" disabled=${busy} onClick=${() => send({ decision: 'allowed' }, 'Allowed once')}>Allow once</button>`}
      ${has('allow_session') && html`<span class="joined"><button disabled=${busy} onClick=${() => send({ decision: 'allowed', scope: 'session', expiresInMs: hours * 3600000 }, `Allowed for ${hours} h in this session`)}>Allow for this session</button>
        <select aria-label="For how long" value=${hours} onChange=${e => setHours(Number(e.target.value))}>${HOURS.map(h => html`<option value=${h}>${h} h</option>`)}</select></span>`}
      ${has('deny') && html`<button class="danger" disabled=${busy} onClick=${() => send({ decision: 'denied' }, 'Denied')}>Deny</button>`}
      ${has('deny_with_reason') && html`<button class="danger" aria-expanded=${more === 'reason'} onClick=${() => setMore(more === 'reason' ? null : 'reason')}>Deny with a reason…</button>`}
      ${has('supply_result') && html`<button aria-expanded=${more === 'supply'} onClick=${() => setMore(more === 'supply' ? null : 'supply')}>Supply the result…</button>`}
    </div>
    ${more && html`<form class="answer-text" onSubmit=${submit}>
      <input ref=${field} aria-label=${more === 'reason' ? 'Reason' : 'Result'} placeholder=${more === 'reason' ? 'Why not? The agent reads this.' : 'The result that the agent gets instead'} value=${text} onInput=${e => setText(e.target.value)} />
      <button class="primary" disabled=${busy}>${more === 'reason' ? 'Deny' : 'Supply'}</button></form>`}
  </div>`;
}

function TextAnswer({ run, focusKey }) {
  const [text, setText] = useState('');
  const [busy, setBusy] = useState(false);
  const field = useRef();
  useEffect(() => { if (focusKey) field.current?.focus(); }, [focusKey]);
  const send = async event => {
    event.preventDefault();
    if (!text.trim()) return;
    setBusy(true);
    // The keys after the answer are for the view.
    field.current?.blur();
    const ok = await answerWait(run, { kind: 'input', input: text }, 'Answered');
    if (ok) setText('');
    else field.current?.focus();
    setBusy(false);
  };
  return html`<form class="answer-text" onSubmit=${send}>
    <textarea ref=${field} rows="1" aria-label="Your answer" placeholder="Your answer" value=${text} onInput=${e => setText(e.target.value)}
      onKeyDown=${e => { if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) send(e); if (e.key === 'Escape') e.target.blur(); }}></textarea>
    <button class="primary" disabled=${busy || !text.trim()}>Answer</button></form>`;
}

function ToolResults({ run }) {
  const open = (run.wait.calls || []).filter(call => !call.answered);
  const [texts, setTexts] = useState({});
  const send = isError => async call => {
    const text = texts[call.toolUseId] || '';
    await attempt(() => api.answer(run.runId, run.wait.waitId, { kind: 'tools', results: [{ toolUseId: call.toolUseId, content: text, isError }] }), 'Result sent');
  };
  return html`<div class="answers"><p class="note">The agent calls tools that its caller executes. A person may give the results.</p>
    ${open.map(call => html`<form class="tool-result" onSubmit=${e => { e.preventDefault(); send(false)(call); }}>
      <b>${call.name}</b><pre tabindex="0"><code>${JSON.stringify(call.input, null, 2)}</code></pre>
      <div class="answer-text"><input aria-label=${`Result of ${call.name}`} placeholder="Result" value=${texts[call.toolUseId] || ''} onInput=${e => setTexts({ ...texts, [call.toolUseId]: e.target.value })} />
      <button class="primary">Send</button><button type="button" onClick=${() => send(true)(call)}>Send as error</button></div></form>`)}
  </div>`;
}
