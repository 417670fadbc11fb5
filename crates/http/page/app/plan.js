// The goals of a run and the plan of its agent.
import { html } from './h.js';
import { pretty } from './message.js';
import { timeExact } from './format.js';

const GOAL = { pending: ['busy', 'pending'], achieved: ['good', 'achieved'], failed: ['bad', 'failed'] };
const TASK = { pending: ['still', 'open'], in_progress: ['busy', 'in progress'], completed: ['good', 'done'] };

const Mark = ({ of: [tone, word], quiet }) => html`<span class=${`status ${tone}`}><i class="dot" aria-hidden="true"></i><span class=${quiet ? 'hidden-text' : ''}>${word}</span></span>`;

export const hasPlan = run => (run?.goals?.length || 0) + (run?.tasks?.length || 0) > 0;

/** Goals: what was asked for, and what was reported. */
export function Goals({ goals }) {
  return html`<ul class="goals" aria-label="Goals">${goals.map(goal => html`<li key=${goal.goalId}><div class="goal-line"><${Mark} of=${GOAL[goal.status] || ['still', goal.status]} /><b>${goal.goalType}</b>
      ${goal.concludedAtMs && html`<span class="muted" title=${timeExact(goal.concludedAtMs)}>${goal.reminders ? `after ${goal.reminders} ${goal.reminders === 1 ? 'reminder' : 'reminders'}` : ''}</span>`}</div>
    ${goal.error && html`<p class="note">${goal.error.message} <code>${goal.error.code}</code></p>`}
    ${goal.data && html`<details><summary>Asked for</summary><pre tabindex="0"><code>${pretty(goal.data)}</code></pre></details>`}
    ${goal.value !== undefined && goal.value !== null && html`<details><summary>Reported</summary><pre tabindex="0"><code>${pretty(goal.value)}</code></pre></details>`}</li>`)}</ul>`;
}

/** Tasks in their order, each with its parts and its conclusion. */
export function Tasks({ tasks }) {
  return html`<ol class="tasks" aria-label="Tasks of the plan">${tasks.map(task => html`<li key=${task.taskId} class=${task.status}><${Mark} of=${TASK[task.status] || ['still', task.status]} quiet /><div><span class="task-title">${task.title}</span>
    ${task.description && html`<p class="note">${task.description}</p>`}${task.conclusion && html`<p class="note">${task.conclusion}</p>`}
    ${task.subtasks?.length > 0 && html`<ul>${task.subtasks.map(part => html`<li class=${part.status}><${Mark} of=${part.status === 'done' ? TASK.completed : TASK.pending} quiet />${part.title}</li>`)}</ul>`}</div></li>`)}</ol>`;
}

/** Both in one line, which opens. */
export function PlanLine({ run }) {
  if (!hasPlan(run)) return null;
  const { goals = [], tasks = [] } = run;
  const done = tasks.filter(task => task.status === 'completed').length;
  const current = tasks.find(task => task.status === 'in_progress');
  return html`<details class="plan-line"><summary>
      ${tasks.length > 0 && html`<progress max=${tasks.length} value=${done} aria-label="Tasks done"></progress><span>${done} of ${tasks.length} tasks done</span>${current && html`<span class="grow muted">now: ${current.title}</span>`}`}
      ${goals.map(goal => html`<span class="goal"><${Mark} of=${GOAL[goal.status] || ['still', goal.status]} quiet />goal ${goal.goalType}: ${(GOAL[goal.status] || [0, goal.status])[1]}</span>`)}</summary>
    <div class="plan-body">${goals.length > 0 && html`<${Goals} goals=${goals} />`}${tasks.length > 0 && html`<${Tasks} tasks=${tasks} />`}</div></details>`;
}
