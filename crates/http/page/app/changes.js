// What a session did to files, from the changes that its tool calls recorded.
import { html, useState } from './h.js';
import { api } from './api.js';
import { draftOf } from './drafts.js';
import { Diff, DiffSwitch } from './diffview.js';
import { Empty, Loading, Problem, useLoad } from './ui.js';
import { timeOfDay } from './format.js';
import { mayWrite, toast } from './store.js';

export function Changes({ conversation }) {
  const id = conversation.id;
  const run = conversation.run.value;
  const [inAll, setInAll] = useState(true);
  const { value, error } = useLoad(() => api.changes(id), [id, run?.runId, run?.status]);
  const draft = draftOf(id);
  const comment = path => (row, text) => {
    draft.comments.value = [...draft.comments.value, { path, line: row.now ?? row.old, kind: row.kind, code: row.text, text }];
    toast('Added to the next prompt');
  };
  if (error) return html`<div class="view"><${Problem} error=${error} /></div>`;
  if (!value) return html`<${Loading} what="Reading the changes" />`;
  if (value.state !== 'recorded') {
    const unknown = value.state === 'unknown';
    return html`<div class="view"><${Empty} title=${unknown ? 'Changes unknown' : 'No changes'}>
      <p>${unknown ? 'The agent called tools, and none of them recorded a change of a file. Whether they changed files is unknown.' : 'No tool was called on this path.'}</p></${Empty}></div>`;
  }
  const comments = draft.comments.value;
  const on = path => (mayWrite.value ? comment(path) : undefined);
  return html`<div class="view changes">
    <div class="changes-head"><span class="segments" role="group" aria-label="Which changes"><button aria-pressed=${inAll} onClick=${() => setInAll(true)}>In all</button><button aria-pressed=${!inAll} onClick=${() => setInAll(false)}>Per turn</button></span><${DiffSwitch} />
      <span class="muted grow">${value.files.length} ${value.files.length === 1 ? 'file' : 'files'}${value.next ? ' in the latest messages' : ''}</span>
      ${comments.length > 0 && html`<a class="button primary" href=${`#/s/${id}`}>Write the prompt (${comments.length})</a>`}</div>
    <p class="note">As the agent’s tools recorded them. Files that were changed in other ways are not listed.</p>
    ${inAll ? value.files.map(file => html`<${Diff} key=${file.path} diff=${file} onComment=${on(file.path)} comments=${comments.filter(c => c.path === file.path)} />`)
      : value.turns.map(turn => html`<section key=${turn.runId} class="turn"><h2><a href=${`#/r/${turn.runId}`}>${timeOfDay(turn.atMs)}</a> <span>${(turn.prompt || 'A run').slice(0, 120)}</span></h2>
        ${turn.changes.map((diff, i) => html`<${Diff} key=${i} diff=${diff} onComment=${on(diff.path)} comments=${comments.filter(c => c.path === diff.path)} />`)}</section>`)}
  </div>`;
}
