// Feedback of readers on an answer: a thumb, and on demand why.
import { html, useState } from './h.js';
import { api } from './api.js';
import { attempt, mayWrite, reader } from './store.js';
import { Icon } from './ui.js';

const CATEGORIES = {
  positive: [['correct', 'Correct'], ['helpful', 'Helpful'], ['good_tool_use', 'Good use of tools'], ['other', 'Other']],
  negative: [['incorrect', 'Incorrect'], ['incomplete', 'Incomplete'], ['tool_failure', 'A tool failed'], ['refused_valid_request', 'Refused a valid request'], ['formatting', 'Formatting'], ['slow', 'Slow'], ['unsafe', 'Unsafe'], ['other', 'Other']],
};
const LABELS = { positive: 'Good answer', negative: 'Bad answer' };

/** Feedback by message and by the one who gave it. Later feedback of one reader replaces the earlier. */
export function withFeedback(all, given) {
  const next = new Map(all);
  next.set(given.messageId, new Map(next.get(given.messageId)).set(given.ownerId, given));
  return next;
}

/** The thumbs of an answer. A thumb counts at once; its panel is for those who want to say why. */
export function Thumbs({ message, conversation, panel, setPanel }) {
  const given = conversation.feedback.value.get(message.messageId) || new Map();
  const own = given.get(reader.value.ownerId);
  const choose = async sentiment => {
    setPanel(panel === sentiment ? null : sentiment);
    if (own?.sentiment !== sentiment) await give(conversation, message, { sentiment });
  };
  return Object.entries(LABELS).map(([sentiment, label]) => {
    const others = [...given.values()].filter(one => one.sentiment === sentiment && one !== own).map(one => one.ownerId);
    const pressed = own?.sentiment === sentiment;
    if (!mayWrite.value && !others.length && !pressed) return null;
    const title = others.length ? `${label}: ${others.join(', ')}` : label;
    return html`<button key=${sentiment} class=${`ghost square thumb ${pressed || others.length ? 'given' : ''}`} aria-label=${title} title=${title} aria-pressed=${pressed} disabled=${!mayWrite.value} onClick=${() => choose(sentiment)}><${Icon} name=${sentiment === 'positive' ? 'thumbUp' : 'thumbDown'} /></button>`;
  });
}

async function give(conversation, message, body, done) {
  const made = await attempt(() => api.feedbackGive(message.sessionId, message.messageId, body), done);
  if (made) conversation.feedback.value = withFeedback(conversation.feedback.value, made);
  return made;
}

/** Why: categories and words. */
export function FeedbackPanel({ message, conversation, sentiment, onClose }) {
  const own = conversation.feedback.value.get(message.messageId)?.get(reader.value.ownerId);
  const same = own?.sentiment === sentiment;
  const [chosen, setChosen] = useState(same ? own.categories : []);
  const [notes, setNotes] = useState((same && own.notes) || '');
  const toggle = name => setChosen(chosen.includes(name) ? chosen.filter(c => c !== name) : [...chosen, name]);
  const needsWords = chosen.includes('other') && !notes.trim();
  const send = async event => {
    event.preventDefault();
    if (!needsWords && await give(conversation, message, { sentiment, categories: chosen, ...(notes.trim() ? { notes } : {}) }, 'Feedback saved')) onClose();
  };
  return html`<form class="feedback" aria-label=${`Why: ${LABELS[sentiment]}`} onSubmit=${send} onKeyDown=${e => e.key === 'Escape' && (e.stopPropagation(), onClose())}>
    <p class="note">Saved. Would you say why?</p>
    <div class="actions" role="group" aria-label="Categories">${CATEGORIES[sentiment].map(([name, label]) => html`<button key=${name} type="button" class="chip" aria-pressed=${chosen.includes(name)} onClick=${() => toggle(name)}>${label}</button>`)}</div>
    <div class="answer-text"><input aria-label="Notes" maxlength="4000" placeholder=${chosen.includes('other') ? 'In a few words' : 'In a few words (optional)'} value=${notes} onInput=${e => setNotes(e.target.value)} />
      <button class="primary" disabled=${needsWords || (!chosen.length && !notes.trim())}>Save</button><button type="button" onClick=${onClose}>Close</button></div></form>`;
}
