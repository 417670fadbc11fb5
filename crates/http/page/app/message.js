// One message of a transcript: text, tool calls with their results, errors.
import { html, useEffect, useState } from './h.js';
import { api } from './api.js';
import { toolEnds } from './derived.js';
import { bytes, costText, duration, isWaiting, textOf, timeExact, timeOfDay, tokens, allTokens } from './format.js';
import { Markdown, StreamingMarkdown } from './markdown.js';
import { Diff } from './diffview.js';
import { FeedbackPanel, Thumbs } from './feedback.js';
import { Icon, copy } from './ui.js';
import { mayChange, mayWrite } from './store.js';

/** Items of a transcript: messages, except those of tool results. Unchanged messages keep their items. */
export class TranscriptItems {
  constructor() {
    this.forget();
  }

  forget() {
    [this.messages, this.items, this.results] = [[], [], new Map()];
  }

  /**
   * The items of `messages`, and of `open` messages that still stream. If older messages were put before
   * the known ones, only the older ones are looked at.
   */
  update(messages, open) {
    if (!this.messages.length || !endsWith(messages, this.messages)) this.forget();
    const older = messages.slice(0, messages.length - this.messages.length);
    for (const { content } of older) for (const block of content) if (block.type === 'tool_result') this.results.set(block.toolUseId, block);
    const shown = older.filter(({ content }) => !content.length || content.some(block => block.type !== 'tool_result'));
    const next = i => (i + 1 < shown.length ? shown[i + 1] : this.items[0]?.message);
    if (shown.length) this.items = [...shown.map((message, i) => itemOf(message, isInner(message, next(i)), this.results)), ...this.items];
    this.messages = messages;
    return open.length ? [...this.items, ...open.map(streaming => ({ key: streaming.messageId, streaming }))] : this.items;
  }
}

function endsWith(list, end) {
  const from = list.length - end.length;
  return from >= 0 && end.every((item, i) => item === list[from + i]);
}

/** True if another message of the same answer follows. */
const isInner = (message, next) => next !== undefined && message.role === 'assistant' && next.role === 'assistant' && message.runId === next.runId;

const known = new WeakMap();

function itemOf(message, inner, results) {
  const before = known.get(message);
  if (before?.inner === inner && before.calls.every(id => before.results.get(id) === results.get(id))) return before;
  const calls = message.content.filter(block => block.type === 'tool_use').map(block => block.id);
  const item = { key: message.messageId, message, inner, calls, results: new Map(calls.map(id => [id, results.get(id)])) };
  known.set(message, item);
  return item;
}

export function Message({ item, conversation, busy, onEdit, onRegenerate, onFork }) {
  if (item.streaming) return html`<article class="message assistant" aria-busy="true" aria-label="The agent is writing">
    ${item.streaming.blocks.map(({ block, text }) => html`<${StreamingMarkdown} key=${block} source=${text} />`)}</article>`;
  const { message, results, inner } = item;
  const { role, content, status } = message;
  const [editing, setEditing] = useState(false);
  const text = textOf(message);
  const [panel, setPanel] = useState(null);
  // An answer has many messages: the buttons of a message are created when the reader reaches it. A message that is
  // scrolled below a pointer at rest is not reached.
  const [isReached, setReached] = useState(false);
  const reach = inner && !isReached ? () => setReached(true) : undefined;
  const canChange = mayChange(conversation.session.value) && !busy;
  const takesFeedback = role === 'assistant' && !inner && !['generating', 'not_started'].includes(status);
  const by = role === 'assistant' && writerOf(message, conversation.session.value);
  return html`<article class=${`message ${role} ${status} ${inner ? 'inner' : ''} ${editing ? 'editing' : ''}`} id=${message.messageId} aria-label=${role === 'user' ? 'Prompt' : 'Answer'} tabindex=${inner ? 0 : undefined} onPointerMove=${reach} onFocusIn=${reach}>
    ${by && html`<p class="by">${by}</p>`}${editing
      ? html`<${Edit} text=${text} onCancel=${() => setEditing(false)} onSend=${value => { setEditing(false); onEdit(message, value); }} />`
      : content.map((block, i) => html`<${Block} key=${i} block=${block} message=${message} results=${results} conversation=${conversation} />`)}
    ${!reach && html`<footer class="message-foot">
      <time datetime=${new Date(message.createdAtMs).toISOString()} title=${timeExact(message.createdAtMs)}>${timeOfDay(message.createdAtMs)}</time>
      ${message.usage && html`<span title="Tokens and cost of this run up to here">${usageText(message.usage)}</span>`}
      ${status === 'cancelled' && html`<span class="tag">stopped</span>`}
      ${status === 'not_started' && html`<span class="tag">not started</span>`}
      <span class="foot-actions"><span class="message-actions">
        ${text && action('copy', 'Copy', () => copy(text, 'Text'))}
        ${action('link', 'Copy link', () => copy(`${location.origin}${location.pathname}#/s/${message.sessionId}/m/${message.messageId}`, 'Link'))}
        ${canChange && role === 'assistant' && action('redo', 'Answer again', () => onRegenerate(message))}
        ${canChange && role === 'user' && text && action('edit', 'Edit and send again', () => setEditing(true))}
        ${mayWrite.value && action('fork', 'Fork from here', () => onFork(message))}
        ${message.runId && html`<a class="ghost" href=${`#/r/${message.runId}`}>Details</a>`}
      </span>${takesFeedback && html`<span class="thumbs"><${Thumbs} message=${message} conversation=${conversation} panel=${panel} setPanel=${setPanel} /></span>`}</span></footer>`}
    ${panel && html`<${FeedbackPanel} key=${panel} message=${message} conversation=${conversation} sentiment=${panel} onClose=${() => setPanel(null)} />`}</article>`;
}

/** The member of a network, or the other program, that wrote a message; nothing for the agent of the session. */
const writerOf = ({ agent }, session) => (agent && unversioned(agent) !== unversioned(session?.agentDefinition) && !agent.startsWith('mainspring.') ? unversioned(agent) : null);
const unversioned = name => name?.replace(/@\d+$/, '');

/** Tokens and cost. Of an agent that reports nothing, neither is known. */
function usageText(usage) {
  if (allTokens(usage)) return `${usage.atLeast ? '≥ ' : ''}${tokens(allTokens(usage))} tokens · ${costText(usage)}`;
  return usage.costUsd == null ? 'usage unknown' : costText(usage);
}

const action = (icon, label, run) => html`<button class="ghost square" aria-label=${label} title=${label} onClick=${run}><${Icon} name=${icon} /></button>`;

function Edit({ text, onSend, onCancel }) {
  const [value, setValue] = useState(text);
  return html`<div class="edit"><textarea aria-label="Edited prompt" rows=${Math.min(12, value.split('\n').length + 1)} value=${value} onInput=${e => setValue(e.target.value)} ref=${e => e && !e.dataset.seen && (e.dataset.seen = 1, e.focus())}
      onKeyDown=${e => { if (e.key === 'Escape') { e.stopPropagation(); onCancel(); } if (e.key === 'Enter' && (e.metaKey || e.ctrlKey)) onSend(value); }}></textarea>
    <div class="actions"><button class="primary" disabled=${!value.trim()} onClick=${() => onSend(value)}>Send as a branch</button><button onClick=${onCancel}>Cancel</button></div></div>`;
}

function Block({ block, message, results, conversation }) {
  if (block.type === 'text') return message.role === 'user' ? html`<${Said} text=${block.text} />` : html`<${Markdown} text=${block.text} />`;
  if (block.type === 'thinking') return html`<p class="thought-mark">Thought; thoughts are not stored.</p>`;
  if (block.type === 'attachment') return html`<${Attachment} block=${block} />`;
  if (block.type === 'error') return html`<div class="problem" role="note"><b>${block.message}</b><code>${block.code}</code></div>`;
  if (block.type === 'tool_use') return html`<${ToolCall} block=${block} runId=${message.runId} result=${results.get(block.id)} live=${conversation.tool(block.id)} base=${folderOf(conversation)} asked=${asks(conversation.run.value, block.id)} />`;
  if (block.type === 'diff') return html`<${Diff} diff=${block} base=${folderOf(conversation)} />`;
  return null;
}

/** The folder in which a session works. */
export const folderOf = conversation => conversation.run.value?.options?.cwd || conversation.session.value?.cwd;

/** True if the run waits for the approval of this call. */
const asks = (run, callId) => isWaiting(run?.status) && run.wait?.approval?.call?.toolUseId === callId;

/** A prompt. A long one scrolls within its box, so the box takes the focus. */
const Said = ({ text }) => html`<div class="said" tabindex=${text.length > 600 || text.split('\n').length > 14 ? 0 : undefined} role=${text.length > 600 ? 'region' : undefined} aria-label=${text.length > 600 ? 'Text of the prompt' : undefined}>${text}</div>`;

const OUTCOME = { asked: 'waits for you', running: 'running', completed: 'done', failed: 'failed', unknown: 'outcome unknown', rejected: 'not executed' };
const TONE = { asked: 'needs', running: 'busy', completed: 'good', failed: 'bad', unknown: 'needs', rejected: 'still' };

/** A tool call, folded: its name, its argument, how it ended and after what time. */
export function ToolCall({ block, runId, result, live, base, asked }) {
  const [open, setOpen] = useState(false);
  const [past, setPast] = useState(null);
  const now = live?.value;
  useEffect(() => {
    if (!now?.outcome && result && runId) {
      let gone = false;
      toolEnds(runId).then(ends => !gone && setPast(ends.get(block.id) || {}));
      return () => { gone = true; };
    }
    return undefined;
  }, [result, runId]);
  const end = now?.outcome && now.outcome !== 'running' ? now : past?.outcome && past.outcome !== 'running' ? past : now || past || {};
  const known = end.outcome && end.outcome !== 'running' ? end.outcome : result ? (result.isError ? 'failed' : 'completed') : end.outcome || 'running';
  const outcome = known === 'running' && asked ? 'asked' : known;
  const diffs = (result?.content || end.content || []).filter(b => b.type === 'diff');
  const content = result?.content || end.content || [];
  return html`<details class=${`tool ${TONE[outcome]}`} open=${open} onToggle=${e => setOpen(e.target.open)}>
    <summary><${Icon} name="chevron" /><b>${block.title || block.name}</b><span class="arg">${shortInput(block)}</span>
      ${diffs.length > 0 && html`<span class="tag">${diffs.length === 1 ? '1 file' : `${diffs.length} files`}</span>`}
      ${end.unasked && html`<span class="tag warn" title="The call changed something, and the agent has not asked for the permission that it needs">unasked</span>`}
      <span class=${`status ${TONE[outcome]}`}><i class="dot" aria-hidden="true"></i>${OUTCOME[outcome]}</span>
      ${end.durationMs != null && html`<span class="muted">${duration(end.durationMs)}</span>`}</summary>
    ${open && html`<div class="tool-body">
      ${(block.locations || []).length > 0 && html`<p>${block.locations.map(l => html`<code>${l.path}${l.line ? `:${l.line}` : ''}</code> `)}</p>`}
      <h4>Input</h4><pre tabindex="0"><code>${pretty(block.input)}</code></pre>
      ${content.length > 0 && html`<h4>Result</h4>`}${content.map(part => html`<${Result} part=${part} base=${base} />`)}
      ${end.error && html`<p class="note">${end.error.message} <code>${end.error.code}</code></p>`}
      ${!content.length && outcome === 'running' && end.progress && html`<p class="note">${end.progress}</p>`}
      ${outcome === 'unknown' && html`<p class="note">Nobody knows whether this call took effect: its end was not recorded.</p>`}
    </div>`}
  </details>`;
}

const LONG = 6000;

function Result({ part, base }) {
  const [all, setAll] = useState(false);
  if (part.type === 'diff') return html`<${Diff} diff=${part} base=${base} />`;
  if (part.type === 'attachment') return html`<${Attachment} block=${part} />`;
  if (part.type !== 'text') return html`<pre tabindex="0"><code>${pretty(part)}</code></pre>`;
  const cut = !all && part.text.length > LONG;
  return html`<pre tabindex="0"><code>${cut ? part.text.slice(0, LONG) : part.text}</code></pre>${cut && html`<button class="gap" onClick=${() => setAll(true)}>Show all (${bytes(part.text.length)})</button>`}`;
}

export const pretty = value => (typeof value === 'string' ? value : JSON.stringify(value, null, 2) ?? '');

/** The argument of a call in one line, if its title does not say it. */
function shortInput(block) {
  const value = argument(block);
  return (block.title || block.name).includes(value.split('/').pop()) ? '' : value;
}

function argument({ input, locations }) {
  if (locations?.length) return locations[0].path;
  if (input == null) return '';
  if (typeof input !== 'object') return String(input);
  const value = input.command ?? input.path ?? input.file_path ?? input.query ?? input.url ?? input.pattern;
  return typeof value === 'string' ? value : JSON.stringify(input).slice(0, 120);
}

/** A file: images are shown, other files are offered as a download. */
export function Attachment({ block }) {
  const isImage = /^image\/(png|jpeg|gif|webp|avif)$/.test(block.mimeType || '');
  const [url, setUrl] = useState(null);
  useEffect(() => {
    if (!isImage) return undefined;
    let gone = false;
    let made = null;
    api.artifactContent(block.artifact).then(r => r.blob()).then(blob => {
      made = URL.createObjectURL(blob);
      if (gone) URL.revokeObjectURL(made); else setUrl(made);
    }).catch(() => {});
    return () => { gone = true; if (made) URL.revokeObjectURL(made); };
  }, [block.artifact]);
  const name = block.name || block.artifact;
  return html`<figure class="attachment">${url && html`<img src=${url} alt=${name} />`}
    <figcaption><${Icon} name="file" /><span>${name}</span><button class="ghost" onClick=${() => download(block.artifact, name)}>Download</button></figcaption></figure>`;
}

export async function download(artifactId, name) {
  const blob = await (await api.artifactContent(artifactId)).blob();
  save(blob, name);
}

export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
