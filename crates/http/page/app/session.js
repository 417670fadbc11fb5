// A session: its transcript, what it waits for, and the next prompt.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './h.js';
import { api, request } from './api.js';
import { Conversation } from './conversation.js';
import { Windowed } from './transcript.js';
import { Message, TranscriptItems, save } from './message.js';
import { Composer } from './composer.js';
import { sentTexts } from './drafts.js';
import { PlanLine } from './plan.js';
import { Wait } from './wait.js';
import { SessionTree } from './tree.js';
import { Changes } from './changes.js';
import { RunList } from './run.js';
import { Dialog, Empty, Icon, Loading, Menu, Problem, Status, copy } from './ui.js';
import { costText, definitionOf, duration, elapsed, folder, isBroken, isLive, isWaiting, timeOfDay, titleOf } from './format.js';
import { attempt, go, mayChange, mayWrite, putCard, sessions, toast, usageOf } from './store.js';
import { useKeys } from './keys.js';

const TABS = [['chat', 'Conversation'], ['tree', 'Tree'], ['changes', 'Changes'], ['runs', 'Runs']];

export function SessionView({ id, tab, message }) {
  const conversation = useMemo(() => new Conversation(id), [id]);
  useEffect(() => { conversation.start(); return () => conversation.close(); }, [conversation]);
  const session = conversation.session.value;
  useLayoutEffect(() => { if (session) document.querySelector('main')?.focus({ preventScroll: true }); }, [session?.sessionId]);
  if (conversation.error.value && !session) return html`<div class="view"><${Empty} title=${conversation.error.value.code === 'not_found' ? 'There is no such session' : 'The session cannot be read'}>${conversation.error.value.code === 'not_found' ? html`<p>It was deleted, or belongs to somebody who has not shared it.</p>` : html`<${Problem} error=${conversation.error.value} />`}<a class="button" href="#/">Back to the board</a></${Empty}></div>`;
  if (!session) return html`<${Loading} what="Reading the session" />`;
  return html`<div class="session" key=${id}>
    <${Header} conversation=${conversation} tab=${tab} />
    ${tab === 'tree' ? html`<${SessionTree} conversation=${conversation} target=${message} />`
      : tab === 'changes' ? html`<${Changes} conversation=${conversation} />`
      : tab === 'runs' ? html`<${RunList} conversation=${conversation} />`
      : html`<${Chat} conversation=${conversation} target=${message} />`}
  </div>`;
}

// A pin belongs to the caller and is no event of the session, so the view takes it from the response.
async function pin(conversation) {
  const { sessionId, pinned } = conversation.session.value;
  const changed = await attempt(() => api.sessionPin(sessionId, !pinned), pinned ? 'Unpinned' : 'Pinned');
  if (!changed) return;
  conversation.session.value = { ...conversation.session.value, pinned: changed.pinned, pinnedAtMs: changed.pinnedAtMs };
  putCard(sessionId, { session: changed });
}

function Header({ conversation, tab }) {
  const session = conversation.session.value;
  const run = conversation.run.value;
  const [renaming, setRenaming] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const change = (body, done) => attempt(() => api.sessionPatch(session.sessionId, body), done);
  const write = mayChange(session);
  const title = titleOf({ ...session, prompt: sessions.value.get(session.sessionId)?.session.prompt });
  const cwd = run?.options?.cwd || session.cwd;
  const model = session.model || session.modelProfile || run?.options?.model;
  return html`<header class="session-head">
    <div class="session-title">
      <a class="back" href="#/" aria-label="Back to the board"><${Icon} name="chevron" /></a>
      ${renaming ? html`<${Rename} session=${session} onDone=${() => setRenaming(false)} />` : html`<h1 title=${title}>${title}</h1>`}
      ${session.pinned && html`<span class="pinned" title="Pinned"><${Icon} name="pin" /></span>`}
      <${Menu} label="Actions of the session" items=${[
        write && { label: 'Rename', run: () => setRenaming(true) },
        mayWrite.value && { label: session.pinned ? 'Unpin' : 'Pin', run: () => pin(conversation) },
        { label: 'Copy link', run: () => copy(`${location.origin}${location.pathname}#/s/${session.sessionId}`, 'Link') },
        { label: 'Copy id', run: () => copy(session.sessionId, 'Id') },
        { label: 'Export', run: () => exportSession(session) },
        write && { label: session.status === 'archived' ? 'Unarchive' : 'Archive', run: () => change({ status: session.status === 'archived' ? 'open' : 'archived' }, session.status === 'archived' ? 'Unarchived' : 'Archived') },
        write && session.status !== 'closed' && { label: 'Close (no new prompts)', run: () => change({ status: 'closed' }, 'Closed') },
        write && { label: 'Delete…', danger: true, run: () => setDeleting(true) },
      ]} />
    </div>
    <p class="session-meta"><span>${session.adapter}</span>${definitionOf(session) && html`<span>${definitionOf(session)}</span>`}${model && html`<span>${model}</span>`}${cwd && html`<span title=${cwd}>${folder(cwd)}</span>`}
      ${session.forkedFrom && html`<a href=${`#/s/${session.forkedFrom.sessionId}/m/${session.forkedFrom.messageId}`}>fork of ${titleOf(sessions.value.get(session.forkedFrom.sessionId)?.session || session.forkedFrom)}</a>`}
      ${session.status !== 'open' && html`<span class="tag">${session.status}</span>`}</p>
    <nav class="tabs" aria-label="Session">${TABS.map(([name, label]) => html`<a href=${`#/s/${session.sessionId}${name === 'chat' ? '' : `/${name}`}`} aria-current=${tab === name ? 'page' : undefined}>${label}</a>`)}</nav>
    ${deleting && html`<${Dialog} label="Delete the session" onClose=${() => setDeleting(false)}><h2>Delete “${title}”?</h2>
      <p>Its messages, runs and artifacts are deleted. This cannot be undone.</p>
      <div class="actions"><button class="danger solid" onClick=${async () => { if (await attempt(() => api.sessionDelete(session.sessionId), 'Deleted')) go('#/'); setDeleting(false); }}>Delete</button><button onClick=${() => setDeleting(false)}>Keep</button></div></${Dialog}>`}
  </header>`;
}

function Rename({ session, onDone }) {
  const save = async event => {
    event.preventDefault();
    const title = event.target.elements.title.value.trim();
    await attempt(() => api.sessionPatch(session.sessionId, { title: title || null }));
    onDone();
  };
  return html`<form class="rename" onSubmit=${save}><input name="title" aria-label="Title" value=${session.title || ''} ref=${e => e && !e.dataset.seen && (e.dataset.seen = 1, e.select())}
    onKeyDown=${e => e.key === 'Escape' && (e.stopPropagation(), onDone())} /><button class="primary">Save</button></form>`;
}

async function exportSession(session) {
  const response = await attempt(() => request('GET', `/v1/sessions/${session.sessionId}/export`, { raw: true }));
  if (response) save(await response.blob(), `${(session.title || session.sessionId).replace(/[^\w -]+/g, '').trim() || 'session'}.jsonl`);
}

function Chat({ conversation, target }) {
  const session = conversation.session.value;
  const run = conversation.run.value;
  const live = isLive(run?.status);
  const isOwn = mayChange(session);
  const handle = useRef();
  const field = useRef();
  const [atEnd, setAtEnd] = useState(true);
  const transcript = useMemo(() => new TranscriptItems(), [conversation]);
  const items = useMemo(() => transcript.update(conversation.messages.value, conversation.open.value), [conversation.messages.value, conversation.open.value]);
  useEffect(() => { handle.current?.onState(setAtEnd); }, []);
  conversation.isAtEnd = atEnd;
  useEffect(() => {
    if (!target) return;
    conversation.reach(target).then(found => {
      if (!found) { toast('This message is not on the active path.'); go(`#/s/${session.sessionId}/tree/${target}`); return; }
      requestAnimationFrame(() => {
        handle.current?.toKey(target);
        setTimeout(() => document.getElementById(target)?.classList.add('target'), 150);
      });
    });
  }, [target, session.sessionId]);
  const promptBefore = message => {
    const list = conversation.messages.value;
    const at = list.findIndex(m => m.messageId === message.messageId);
    return list.slice(0, at).reverse().find(m => m.role === 'user' && m.content.some(b => b.type !== 'tool_result'));
  };
  // If the older messages are not loaded, the server is asked for the prompt and the message before it.
  const regenerate = message => attempt(async () => {
    const messageId = promptBefore(message)?.messageId ?? (await api.run(message.runId)).promptMessageId;
    return api.prompt(session.sessionId, { place: { kind: 'regenerate', messageId } });
  }).then(() => handle.current?.toEnd());
  const edit = (message, text) => attempt(async () => {
    const { parentId } = await api.message(session.sessionId, message.messageId);
    const place = parentId ? { kind: 'edit', messageId: parentId } : { kind: 'root' };
    return api.prompt(session.sessionId, { prompt: text, place });
  }).then(() => handle.current?.toEnd());
  const fork = async message => {
    const made = await attempt(() => api.fork(session.sessionId, { messageId: message.messageId }), 'Forked');
    if (made) go(`#/s/${made.sessionId}`);
  };
  useKeys('Session', [
    { keys: 'c', label: 'Write a prompt', run: () => field.current?.focus() },
    { keys: 'G | End', label: 'Go to the end', run: () => handle.current.toEnd() },
    { keys: 'j', label: 'Scroll down', run: () => handle.current.element().scrollBy({ top: 160 }) },
    { keys: 'k', label: 'Scroll up', run: () => handle.current.element().scrollBy({ top: -160 }) },
    { keys: 's', label: 'Stop the run', run: () => live && isOwn && stop(run) },
    { keys: 'r', label: 'Retry the run', run: () => isBroken(run?.status) && isOwn && attempt(() => api.retry(run.runId)) },
    { keys: 't', label: 'Tree', run: () => go(`#/s/${session.sessionId}/tree`) },
    { keys: 'x', label: 'Changes', run: () => go(`#/s/${session.sessionId}/changes`) },
  ]);
  return html`<div class="chat">
    <${Windowed} items=${items} keyOf=${item => item.key} label="Transcript" version=${live} handle=${handle} onTop=${() => conversation.older()}
      render=${item => html`<${Message} item=${item} conversation=${conversation} busy=${live} onEdit=${edit} onRegenerate=${regenerate} onFork=${fork} />`}
      footer=${html`<${Now} conversation=${conversation} />`} />
    ${!items.length && !live && html`<p class="nothing">Nothing has been said yet.</p>`}
    ${!atEnd && html`<button class="to-end" aria-label="Go to the end" onClick=${() => handle.current.toEnd()}><${Icon} name="down" /></button>`}
    <div class="below"><${PlanLine} run=${run} /><${RunStrip} conversation=${conversation} />
      ${isOwn ? html`<${Composer} session=${session} busy=${live} asks=${isWaiting(run?.status)} field=${field} onSent=${() => handle.current.toEnd()} />`
        : mayWrite.value && html`<div class="composer closed"><p class="note">This session belongs to ${session.ownerId}. You may read it, and go on in a fork of your own.</p>${items.length > 0 && html`<button onClick=${() => fork(conversation.messages.value.at(-1))}>Fork</button>`}</div>`}</div>
  </div>`;
}

const stop = run => attempt(() => api.cancel(run.runId));

/** What happens now, below the last message: thoughts, progress, the open wait. */
function Now({ conversation }) {
  const run = conversation.run.value;
  const thought = conversation.thought.value;
  const progress = conversation.progress.value;
  const queued = conversation.queued.value;
  return html`<div class="now" aria-live="polite">
    ${thought && html`<p class="thought">${thought}</p>`}
    ${progress && isLive(run?.status) && html`<p class="note">${progress}</p>`}
    ${isWaiting(run?.status) && run.wait && html`<${Wait} run=${run} />`}
    ${queued.map(item => html`<${Queued} key=${item.runId} run=${item} />`)}
  </div>`;
}

function Queued({ run }) {
  return html`<div class="queued"><${Status} status="queued" />${run.steers && html`<span class="tag" title="Joins the present run at its next step">steers</span>`}<span class="grow">${sentTexts.get(run.runId) || 'A prompt'}</span>
    ${mayChange(run) && html`<button class="ghost" onClick=${() => stop(run)}>Remove</button>`}</div>`;
}

/** The state of the run, above the composer: since when, stop and its stages, why it broke. */
function RunStrip({ conversation }) {
  const run = conversation.run.value;
  const live = isLive(run?.status);
  const [, tick] = useState(0);
  useEffect(() => {
    if (!live) return undefined;
    const timer = setInterval(() => tick(n => n + 1), 1000);
    return () => clearInterval(timer);
  }, [live]);
  if (!run) return null;
  const stages = conversation.stop.value;
  const since = run.startedAtMs || run.createdAtMs;
  const write = mayChange(conversation.session.value);
  const spent = run.usage && (run.usage.costUsd == null || run.usage.costUsd > 0 || run.usage.inputTokens > 0);
  return html`<div class=${`strip ${isBroken(run.status) ? 'bad' : ''}`}>
    <${Status} status=${run.status} />
    ${live ? html`<span class="muted">${elapsed(Date.now() - since)}</span>` : run.completedAtMs && html`<span class="muted">${timeOfDay(run.completedAtMs)} · ${duration(run.completedAtMs - since)}</span>`}
    ${spent && html`<span class="muted">${costText(usageOf(run))}</span>`}
    ${run.attempts > 1 && html`<span class="muted">attempt ${run.attempts}</span>`}
    ${stages && html`<ol class="stages" aria-label="Stopping">
      ${stages.requestedAtMs && html`<li>requested ${timeOfDay(stages.requestedAtMs)}</li>`}
      ${stages.toldAtMs && html`<li>told${stages.acknowledged ? ', acknowledged' : ''}</li>`}
      ${stages.stoppedAtMs && html`<li>stopped${stages.proof ? ` (${PROOF[stages.proof] || stages.proof})` : ''}</li>`}</ol>`}
    ${isBroken(run.status) && run.error && !saysError(conversation.messages.value, run) && html`<span class="why">${run.error.message} <code>${run.error.code}</code></span>`}
    <span class="grow"></span>
    <a href=${`#/r/${run.runId}`}>Details</a>
    ${write && live && run.status !== 'cancelling' && html`<button class="ghost" onClick=${() => stop(run)}><${Icon} name="stop" />Stop</button>`}
    ${write && isBroken(run.status) && html`<button onClick=${() => attempt(() => api.retry(run.runId), 'Retrying')}><${Icon} name="redo" />Retry</button>`}
  </div>`;
}

/** True if the last message shows the error of the run already. */
const saysError = (messages, run) => messages.at(-1)?.runId === run.runId && messages.at(-1).content.some(block => block.type === 'error' && block.message === run.error.message);

const PROOF = { ended: 'the agent ended', killed: 'killed', group: 'its process group was ended', idle: 'it had not begun' };
