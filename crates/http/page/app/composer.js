// The next prompt of a session. While a run is active, it is queued, joins the
// run at its next step, or interrupts it.
import { html, useEffect, useLayoutEffect, useRef, useState } from './h.js';
import { api } from './api.js';
import { bytes } from './format.js';
import { draftOf, commentText, noteSent } from './drafts.js';
import { adapters, attempt } from './store.js';
import { Icon } from './ui.js';

const POLICIES = [
  ['enqueue', 'Queue', 'Runs after the present run'],
  ['steer', 'Steer', 'Joins the present run at its next step'],
  ['interrupt', 'Interrupt', 'Stops the present run, then runs'],
];

export function Composer({ session, busy, asks, onSent, field }) {
  const draft = draftOf(session.sessionId);
  const [policy, setPolicy] = useState('enqueue');
  const [sending, setSending] = useState(false);
  const [over, setOver] = useState(false);
  const own = useRef();
  const area = field || own;
  const picker = useRef();
  const steers = adapters.value.find(a => a.adapter === session.adapter)?.supportsSteering;
  const text = draft.text.value;
  useLayoutEffect(() => {
    const element = area.current;
    element.style.height = 'auto';
    element.style.height = `${Math.min(element.scrollHeight + 2, 280)}px`;
  }, [text]);
  useEffect(() => { if (!steers && policy === 'steer') setPolicy('enqueue'); }, [steers]);

  const add = files => { draft.files.value = [...draft.files.value, ...files]; };
  const send = async () => {
    const said = [commentText(draft.comments.value), text].filter(t => t.trim()).join('\n\n');
    if (!said || sending) return;
    setSending(true);
    const run = await attempt(async () => {
      const blocks = [{ type: 'text', text: said }];
      for (const file of draft.files.value) {
        const artifact = await api.upload(session.sessionId, file);
        blocks.push({ type: 'attachment', artifact: artifact.artifactId, name: artifact.name || file.name });
      }
      return api.prompt(session.sessionId, {
        prompt: blocks.length > 1 ? blocks : said,
        mode: draft.mode.value,
        ...(busy ? { policy } : {}),
      });
    });
    setSending(false);
    if (!run) return;
    noteSent(run.runId, said);
    draft.text.value = '';
    draft.files.value = [];
    draft.comments.value = [];
    onSent?.(run);
    area.current?.focus();
  };
  const keyDown = event => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && matchMedia('(hover: hover)').matches) {
      event.preventDefault();
      send();
    }
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) send();
    if (event.key === 'Escape') area.current.blur();
  };
  const closed = session.status === 'closed';
  if (closed) return html`<div class="composer closed"><p class="note">This session is closed and takes no new work.</p>
    <button onClick=${() => attempt(() => api.sessionPatch(session.sessionId, { status: 'open' }), 'Reopened')}>Reopen</button></div>`;
  return html`<form class=${`composer ${over ? 'over' : ''}`} onSubmit=${e => { e.preventDefault(); send(); }}
      onDragOver=${e => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}
      onDrop=${e => { e.preventDefault(); setOver(false); add(e.dataTransfer.files); }}>
    ${draft.comments.value.length > 0 && html`<ul class="chips" aria-label="Comments on changes">${draft.comments.value.map((c, i) => html`<li><code>${c.path.split('/').pop()}:${c.line}</code> ${c.text}
      <button type="button" class="ghost square" aria-label="Remove the comment" onClick=${() => { draft.comments.value = draft.comments.value.filter((_, j) => j !== i); }}><${Icon} name="close" /></button></li>`)}</ul>`}
    ${draft.files.value.length > 0 && html`<ul class="chips" aria-label="Files">${draft.files.value.map((file, i) => html`<li><${Icon} name="file" />${file.name || 'pasted'} <span class="muted">${bytes(file.size)}</span>
      <button type="button" class="ghost square" aria-label=${`Remove ${file.name}`} onClick=${() => { draft.files.value = draft.files.value.filter((_, j) => j !== i); }}><${Icon} name="close" /></button></li>`)}</ul>`}
    <textarea ref=${area} rows="1" aria-label="Prompt" placeholder=${asks ? 'Answer above, or write the next prompt' : busy ? 'Write the next prompt' : 'Ask or tell the agent'} value=${text}
      onInput=${e => { draft.text.value = e.target.value; }} onKeyDown=${keyDown}
      onPaste=${e => { if (e.clipboardData.files.length) { e.preventDefault(); add(e.clipboardData.files); } }}></textarea>
    <div class="composer-foot">
      <button type="button" class="ghost square" aria-label="Attach files" title="Attach files" onClick=${() => picker.current.click()}><${Icon} name="plus" /></button>
      <input ref=${picker} type="file" multiple hidden onChange=${e => { add(e.target.files); e.target.value = ''; }} />
      <span class="segments" role="group" aria-label="Mode">${['act', 'ask'].map(mode => html`<button type="button" aria-pressed=${draft.mode.value === mode} title=${mode === 'act' ? 'The agent may change things' : 'The agent may only read'} onClick=${() => { draft.mode.value = mode; }}>${mode === 'act' ? 'Act' : 'Read only'}</button>`)}</span>
      <span class="grow"></span>
      ${busy && html`<span class="segments" role="group" aria-label="When">${POLICIES.filter(([name]) => name !== 'steer' || steers).map(([name, label, title]) => html`<button type="button" aria-pressed=${policy === name} title=${title} onClick=${() => setPolicy(name)}>${label}</button>`)}</span>`}
      <button class="primary" disabled=${sending || (!text.trim() && !draft.comments.value.length)}>${sending ? 'Sending…' : 'Send'}</button>
    </div></form>`;
}
