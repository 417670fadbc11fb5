// Drafts: the text, files and comments that the reader prepares for a session. The text survives a reload. It is stored
// in this browser and reaches the server only when the reader sends it.
import { signal } from './h.js';

const drafts = new Map();

export function draftOf(id) {
  if (!drafts.has(id)) {
    const key = `mainspring.draft.${id}`;
    const text = signal(sessionStorage.getItem(key) || '');
    text.subscribe(value => (value ? sessionStorage.setItem(key, value) : sessionStorage.removeItem(key)));
    drafts.set(id, { text, files: signal([]), comments: signal([]), mode: signal('act') });
  }
  return drafts.get(id);
}

/** Texts that this page has sent, by run: the server shows a queued prompt only once its run has begun. */
export const sentTexts = new Map();
const MOST_TEXTS = 50;

export function noteSent(runId, text) {
  if (sentTexts.size >= MOST_TEXTS) sentTexts.delete(sentTexts.keys().next().value);
  sentTexts.set(runId, text);
}

/** Comments as a part of a prompt, each with its place and line. */
export function commentText(comments) {
  if (!comments.length) return '';
  return comments.map(c => `${c.path}:${c.line}\n> ${c.code}\n${c.text}`).join('\n\n');
}
