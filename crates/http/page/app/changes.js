// The files that a session changed, from the changes that its tool calls recorded.
import { html, useState } from './h.js';
import { api } from './api.js';
import { draftOf } from './drafts.js';
import { Diff, DiffSwitch } from './diffview.js';
import { readToolEnds } from './derived.js';
import { folderOf } from './message.js';
import { Empty, Loading, Problem, Status, useLoad } from './ui.js';
import { isLive, timeOfDay } from './format.js';
import { mayChange, toast } from './store.js';

/** The changes of the run that still works: its turn is not on the path yet. */
async function openChanges(run) {
  if (!isLive(run?.status)) return { diffs: [], calls: 0 };
  const ends = [...(await readToolEnds(run.runId)).values()];
  return { diffs: ends.flatMap(end => (end.content || []).filter(block => block.type === 'diff')), calls: ends.length };
}

export function Changes({ conversation }) {
  const id = conversation.id;
  const run = conversation.run.value;
  const [inAll, setInAll] = useState(true);
  const { value, error } = useLoad(() => api.changes(id), [id, run?.runId, run?.status]);
  const open = useLoad(() => openChanges(run), [run?.runId, run?.status, conversation.toolsEnded.value]).value;
  const draft = draftOf(id);
  const comment = path => (row, text) => {
    draft.comments.value = [...draft.comments.value, { path, line: row.now ?? row.old, kind: row.kind, code: row.text, text }];
    toast('Added to the next prompt');
  };
  if (error) return html`<div class="view"><${Problem} error=${error} /></div>`;
  if (!value || !open) return html`<${Loading} what="Reading the changes" />`;
  if (value.state !== 'recorded' && !open.diffs.length) {
    const unknown = value.state === 'unknown' || open.calls > 0;
    return html`<div class="view"><${Empty} title=${unknown ? 'Changes unknown' : 'No changes'}>
      <p>${unknown ? 'The agent called tools, and none of them recorded a change of a file. Whether they changed files is unknown.' : 'The agent has not called a tool.'}</p></${Empty}></div>`;
  }
  const comments = draft.comments.value;
  const base = folderOf(conversation);
  // A turn joins the path when it ends.
  const files = new Set([...value.files, ...open.diffs].map(file => file.path)).size;
  const on = path => (mayChange(conversation.session.value) ? comment(path) : undefined);
  return html`<div class="view changes">
    <div class="changes-head"><span class="segments" role="group" aria-label="Which changes"><button aria-pressed=${inAll} onClick=${() => setInAll(true)}>In all</button><button aria-pressed=${!inAll} onClick=${() => setInAll(false)}>Per turn</button></span><${DiffSwitch} />
      <span class="muted grow">${files} ${files === 1 ? 'file' : 'files'}${value.next ? ' in the latest messages' : ''}</span>
      ${comments.length > 0 && html`<a class="button primary" href=${`#/s/${id}`}>Write the prompt (${comments.length})</a>`}</div>
    <p class="note">As the agent’s tools recorded them. Files that were changed in other ways are not listed.</p>
    ${open.diffs.length > 0 && html`<section class="turn open"><h2><a href=${`#/r/${run.runId}`}>The present turn</a> <${Status} status=${run.status} /></h2>
      ${open.diffs.map((diff, i) => html`<${Diff} key=${i} base=${base} diff=${diff} onComment=${on(diff.path)} comments=${comments.filter(c => c.path === diff.path)} />`)}</section>`}
    ${inAll ? value.files.map(file => html`<${Diff} key=${file.path} base=${base} diff=${file} onComment=${on(file.path)} comments=${comments.filter(c => c.path === file.path)} />`)
      : value.turns.map(turn => html`<section key=${turn.runId} class="turn"><h2><a href=${`#/r/${turn.runId}`}>${timeOfDay(turn.atMs)}</a> <span>${(turn.prompt || 'A run').slice(0, 300)}</span></h2>
        ${turn.changes.map((diff, i) => html`<${Diff} key=${i} base=${base} diff=${diff} onComment=${on(diff.path)} comments=${comments.filter(c => c.path === diff.path)} />`)}</section>`)}
  </div>`;
}
