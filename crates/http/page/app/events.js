// Events as sentences for people.
import { cost, decider, duration, statusText } from './format.js';

const TEXTS = {
  'session.created': () => 'The session was created',
  'session.updated': p => `${p.changed.replace('_', ' ')} of the session changed`,
  'run.queued': p => (p.retryReason ? `Queued again after ${p.retryReason}` : `Accepted for the agent ${p.adapter}`),
  'run.merged': () => 'Joined another run',
  'run.starting': () => 'Assigned to a worker',
  'run.running': () => 'The agent works',
  'run.waiting_input': () => 'Waits for an answer',
  'run.waiting_approval': () => 'Waits for an approval',
  'run.cancellation_requested': p => `Stop requested (${p.reason})`,
  'run.cancelling': () => 'Stopping',
  'run.succeeded': () => 'Done',
  'run.failed': p => `Failed: ${p.error?.message}`,
  'run.cancelled': p => `Stopped (${p.reason})`,
  'run.timed_out': p => `Timed out: ${p.error?.message}`,
  'run.orphaned': p => `Orphaned: ${p.error?.message}`,
  'attempt.created': p => `Attempt ${p.attemptNo}${p.retryReason ? ` after ${p.retryReason}` : ''}`,
  'attempt.started': () => 'The agent took over',
  'attempt.confined': p => `Confined: ${p.profile} (${p.enforcement})`,
  'attempt.left_running': p => `Left ${p.processes.length} processes running`,
  'attempt.failed': p => `The attempt ${statusText(p.status).toLowerCase()}: ${p.error?.message}`,
  'attempt.cancel_dispatch': p => (p.dispatched ? `The agent was told to stop${p.acknowledged ? ' and acknowledged' : ''}` : 'The agent could not be told to stop'),
  'attempt.cancelled': p => `The agent stopped (${p.proof})`,
  'message.completed': p => (p.message.role !== 'user' ? 'Answer recorded' : p.message.content.some(b => b.type === 'tool_result') ? 'Results of tools recorded' : 'Prompt recorded'),
  'progress.updated': p => p.text,
  'tool.started': p => `${p.name} started`,
  'tool.completed': p => `${p.name} finished${p.durationMs != null ? ` after ${duration(p.durationMs)}` : ''}`,
  'tool.failed': p => `${p.name}: ${p.outcome}${p.error ? `, ${p.error.message}` : ''}`,
  'tool.unasked': p => `${p.name} acted without asking`,
  'tool.updated': p => p.text,
  'turn.completed': () => 'A turn is complete, another follows',
  'artifact.created': p => `Artifact ${p.name || p.kind}`,
  'step.completed': p => `Model call ${p.stepNo}: ${p.provider}/${p.model}, ${p.error ? p.error.message : p.stopReason}`,
  'context.compacted': p => `${p.total} messages are now a digest for the model`,
  'usage.updated': p => `Usage: ${p.inputTokens || 0} in, ${p.outputTokens || 0} out, ${cost(p)}`,
  'run.routed': p => (p.next ? `Routed to ${[].concat(p.next).join(' and ')}` : `The network ends (${p.end})`),
  'limit.exceeded': () => 'A limit was exceeded',
  'input.requested': p => `Asks: ${p.question}`,
  'input.provided': p => (p.input === undefined ? 'The question closed without an answer' : `Answered${p.answeredBy ? ` by ${decider(p.answeredBy)}` : ''}`),
  'approval.requested': p => `Asks for approval: ${p.question}`,
  'approval.resolved': p => `${p.decision[0].toUpperCase()}${p.decision.slice(1)} by ${decider(p.decidedBy)}${p.reason ? `: ${p.reason}` : ''}`,
  'tools.requested': p => `Calls ${p.calls.map(c => c.name).join(', ')} of the caller`,
  'tools.provided': () => 'Results of the caller’s tools',
  'delegation.created': p => `Delegated (${p.mode}): ${p.objective}`,
  'delegation.completed': p => `Delegated work ${p.status}`,
  'state.changed': p => `State ${p.key} ${p.deleted ? 'removed' : 'set'}`,
  'binding.created': p => `Opened a session of ${p.adapter}${p.reconstructed ? ', given the text so far' : ''}`,
  'binding.resumed': () => 'Resumed the agent’s own session',
  'feedback.given': p => `${p.sentiment === 'positive' ? 'Positive' : 'Negative'} feedback by ${p.ownerId}`,
  'goal.declared': p => `Goal: ${p.goalType}`,
  'goal.rejected': p => `A value for ${p.goalType} did not fit: ${p.error.message}`,
  'goal.achieved': p => `Goal achieved: ${p.goalType}`,
  'goal.failed': p => `Goal failed: ${p.goalType}`,
  'goals.reminded': p => `Reminded of goals (${p.reminderNo} of ${p.maxReminders})`,
  'tasks.updated': p => `Plan: ${p.tasks.filter(t => t.status === 'completed').length} of ${p.tasks.length} tasks done`,
  'output.completed': p => (p.error ? `No structured output: ${p.error.message}` : 'Structured output recorded'),
};

export function eventText({ type, payload }) {
  const make = TEXTS[type];
  try {
    return make ? make(payload) : type;
  } catch {
    return type;
  }
}
