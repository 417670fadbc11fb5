// A new session: an agent, a folder, a prompt, files.
import { html, useEffect, useRef, useState } from './h.js';
import { api } from './api.js';
import { adapters, attempt, closeOverlay, go, preference, sessions } from './store.js';
import { Dialog, Icon, useLoad } from './ui.js';
import { readiness } from './agents.js';
import { bytes } from './format.js';

const lastAgent = preference('new.agent', '');
const lastFolder = preference('new.folder', '');

/** The agent that is offered first: one that can work now, the script agent last. */
function firstReady(list, models) {
  const rank = a => (['still', 'bad'].includes(readiness(a, models)[0]) ? 3 : a.adapter === 'script' ? 2 : 1);
  return [...list].sort((a, b) => rank(a) - rank(b))[0]?.adapter || '';
}

export function NewSession() {
  const list = adapters.value;
  const models = useLoad(() => api.models(), []);
  const [chosenAgent, setAgent] = useState(list.some(a => a.adapter === lastAgent.value) ? lastAgent.value : null);
  const agent = chosenAgent ?? firstReady(list, models.value);
  const [folder, setFolder] = useState(lastFolder.value);
  const [model, setModel] = useState('');
  const [mode, setMode] = useState('act');
  const [prompt, setPrompt] = useState('');
  const [files, setFiles] = useState([]);
  const [busy, setBusy] = useState(false);
  const [over, setOver] = useState(false);
  const field = useRef();
  const picker = useRef();
  useEffect(() => { field.current?.focus(); }, []);
  const close = () => closeOverlay('new');
  const chosen = list.find(a => a.adapter === agent);
  const takesModel = chosen?.options?.includes('model');
  const add = more => setFiles(old => [...old, ...more]);
  const folders = [...new Set([...sessions.value.values()].map(c => c.run?.options?.cwd || c.session.cwd).filter(Boolean))];

  const start = async event => {
    event?.preventDefault();
    if (!prompt.trim() || busy) return;
    setBusy(true);
    const id = await attempt(async () => {
      const session = await api.sessionCreate({ new: true, adapter: agent, ...(folder ? { cwd: folder } : {}), ...(model && takesModel ? { model } : {}) });
      const blocks = [{ type: 'text', text: prompt }];
      for (const file of files) {
        const artifact = await api.upload(session.sessionId, file);
        blocks.push({ type: 'attachment', artifact: artifact.artifactId, name: artifact.name || file.name });
      }
      await api.prompt(session.sessionId, { prompt: files.length ? blocks : prompt, adapter: agent, mode });
      return session.sessionId;
    });
    setBusy(false);
    if (!id) return;
    lastAgent.value = agent;
    lastFolder.value = folder;
    close();
    go(`#/s/${id}`);
  };
  return html`<${Dialog} label="New session" onClose=${close} wide><form class=${`new ${over ? 'over' : ''}`} onSubmit=${start} onKeyDown=${e => { if (e.key === 'Enter' && (e.metaKey || e.ctrlKey)) start(e); }}
      onDragOver=${e => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${e => { e.preventDefault(); setOver(false); add(e.dataTransfer.files); }}>
    <h2>New session</h2>
    <textarea ref=${field} rows="5" aria-label="Prompt" placeholder="What shall the agent do?" value=${prompt} onInput=${e => setPrompt(e.target.value)}
      onPaste=${e => { if (e.clipboardData.files.length) { e.preventDefault(); add(e.clipboardData.files); } }}></textarea>
    ${files.length > 0 && html`<ul class="chips" aria-label="Files">${files.map((file, i) => html`<li><${Icon} name="file" />${file.name || 'pasted'} <span class="muted">${bytes(file.size)}</span><button type="button" class="ghost square" aria-label=${`Remove ${file.name}`} onClick=${() => setFiles(files.filter((_, j) => j !== i))}><${Icon} name="close" /></button></li>`)}</ul>`}
    <fieldset class="choices"><legend>Agent</legend>${list.map(a => { const [state, word] = readiness(a, models.value); return html`<label class=${`choice ${agent === a.adapter ? 'chosen' : ''}`}><input type="radio" name="agent" value=${a.adapter} checked=${agent === a.adapter} onChange=${() => setAgent(a.adapter)} /><b>${a.adapter}</b><span class=${`status ${state}`}><i class="dot" aria-hidden="true"></i>${word}</span></label>`; })}</fieldset>
    <div class="form two">
      <label>Folder<input list="folders" placeholder="The agent’s own" value=${folder} onInput=${e => setFolder(e.target.value)} /><datalist id="folders">${folders.map(f => html`<option value=${f} />`)}</datalist></label>
      ${takesModel && html`<label>Model<input list="models" placeholder="Default" value=${model} onInput=${e => setModel(e.target.value)} /><datalist id="models">${(models.value?.profiles || []).map(p => html`<option value=${`${p.provider}/${p.model}`} />`)}</datalist></label>`}
      <label>Mode<select value=${mode} onChange=${e => setMode(e.target.value)}><option value="act">May act</option><option value="ask">Reads only</option></select></label>
    </div>
    ${agent === 'script' && html`<p class="note">The script agent has no model: it executes lines such as <code>say hello</code> or <code>ask Tea or coffee?</code></p>`}
    ${agent === 'native' && list.some(a => a.adapter === agent && readiness(a, models.value)[0] === 'still') && html`<p class="note">No model has a key yet. Set one in a terminal: <code>mainspring auth add anthropic</code></p>`}
    <div class="actions"><button class="primary" title="Ctrl Enter" disabled=${busy || !prompt.trim() || !agent}>${busy ? 'Starting…' : 'Start'}</button><button type="button" onClick=${close}>Cancel</button><span class="grow"></span><span class="note wide-only">Drop, paste or</span><button type="button" onClick=${() => picker.current.click()}><${Icon} name="file" />Attach files</button><input ref=${picker} type="file" multiple hidden onChange=${e => { add(e.target.files); e.target.value = ''; }} /></div>
  </form></${Dialog}>`;
}
