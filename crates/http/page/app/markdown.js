// Markdown of agents as elements. The text is not trusted: marked makes HTML of
// it, DOMPurify keeps a short list of elements, and links open apart.
import { Marked } from '../vendor/marked.js';
import DOMPurify from '../vendor/dompurify.js';
import { html, useRef, useLayoutEffect } from './h.js';

const escape = text => text.replace(/[&<>"]/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);

const marked = new Marked({
  gfm: true,
  breaks: false,
  async: false,
  renderer: {
    // HTML of an agent is shown as the text that it is; a picture elsewhere becomes a link to it.
    html: ({ text }) => escape(text),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
  },
});
const CLEAN = {
  ALLOWED_TAGS: ['a', 'b', 'blockquote', 'br', 'code', 'del', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'i', 'input', 'kbd', 'li', 'ol', 'p', 'pre', 's', 'strong', 'sub', 'sup', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul', 'details', 'summary'],
  ALLOWED_ATTR: ['href', 'title', 'align', 'type', 'checked', 'disabled', 'start', 'colspan', 'rowspan'],
  ALLOWED_URI_REGEXP: /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.\-:]|$))/i,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// A message longer than this is made in pieces, so that no piece blocks the page.
const PIECE = 12000;

function fragment(text) {
  const nodes = DOMPurify.sanitize(marked.parse(text), CLEAN);
  for (const link of nodes.querySelectorAll('a')) {
    const href = link.getAttribute('href');
    // A relative address would lead into this server: it is text.
    if (!href || !/^(https?:|mailto:)/i.test(href)) { link.replaceWith(...link.childNodes); continue; }
    link.target = '_blank';
    link.rel = 'noopener noreferrer nofollow';
    if (!link.title) link.title = href;
  }
  for (const box of nodes.querySelectorAll('input')) {
    if (box.type !== 'checkbox') box.remove();
    else {
      box.disabled = true;
      box.ariaLabel = box.checked ? 'done' : 'open';
    }
  }
  for (const table of nodes.querySelectorAll('table')) {
    const frame = document.createElement('div');
    frame.className = 'table-frame';
    frame.tabIndex = 0;
    frame.role = 'region';
    frame.ariaLabel = 'Table';
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of nodes.querySelectorAll('pre')) pre.tabIndex = 0;
  return nodes;
}

/**
 * The end of the part of `text` that later text cannot change: the last blank
 * line outside a code fence. Also says whether the rest is inside a fence.
 */
export function stableEnd(text, from = 0) {
  let end = from;
  let fence = null;
  let at = from;
  while (at < text.length) {
    const newline = text.indexOf('\n', at);
    if (newline < 0) break;
    const line = text.slice(at, newline);
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (fence) {
      if (mark && mark[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) fence = null;
    } else if (mark) fence = mark;
    else if (line.trim() === '' && !/^(\s|[-*+] |\d+[.)] )/.test(text.slice(newline + 1, newline + 5) || ' ')) end = newline + 1;
    at = newline + 1;
  }
  return { end, fence };
}

function pieces(text) {
  if (text.length <= PIECE) return [text];
  const list = [];
  let from = 0;
  while (from < text.length) {
    const window = text.slice(from, from + PIECE);
    let { end } = stableEnd(window);
    if (end === 0 || from + PIECE >= text.length) {
      // No safe cut: a long fence or the rest. Take all up to the next safe cut.
      const rest = from + PIECE >= text.length ? text.length - from : nextCut(text, from);
      end = rest;
    }
    list.push(text.slice(from, from + end));
    from += end;
  }
  return list;
}

function nextCut(text, from) {
  for (let size = PIECE * 2; ; size *= 2) {
    if (from + size >= text.length) return text.length - from;
    const { end } = stableEnd(text.slice(from, from + size));
    if (end) return end;
  }
}

/** Completed markdown. */
export function Markdown({ text }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const element = ref.current;
    element.replaceChildren();
    const list = pieces(text);
    let stopped = false;
    element.append(fragment(list.shift()));
    const more = () => {
      if (stopped || !list.length) return;
      element.append(fragment(list.shift()));
      setTimeout(more);
    };
    if (list.length) setTimeout(more);
    return () => { stopped = true; };
  }, [text]);
  return html`<div class="markdown" ref=${ref}></div>`;
}

/**
 * Markdown that still grows. `source` is a signal of the text so far. Paragraphs
 * that are finished are made once; only the last one is made again, at most once
 * a frame, and an open code block only gets its new characters.
 */
export function StreamingMarkdown({ source }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const element = ref.current;
    const tail = document.createElement('div');
    tail.className = 'tail';
    element.replaceChildren(tail);
    let done = 0;
    let frame = 0;
    let open = null;
    let timer = 0;
    let idleUntil = 0;
    const plan = () => { frame ||= requestAnimationFrame(draw); };
    const draw = () => {
      frame = 0;
      const started = performance.now();
      // A paragraph that has grown long takes longer to make: leave most of the time to the page.
      if (started < idleUntil) { timer ||= setTimeout(() => { timer = 0; plan(); }, idleUntil - started); return; }
      drawNow(source.peek());
      const took = performance.now() - started;
      idleUntil = took > 3 ? started + took * 8 : 0;
    };
    const drawNow = text => {
      if (text.length < done) { done = 0; element.replaceChildren(tail); }
      const { end, fence } = stableEnd(text, done);
      if (end > done) {
        tail.before(fragment(text.slice(done, end)));
        done = end;
        open = null;
      }
      const tailText = text.slice(done);
      if (fence && tailText.length > 2000) {
        if (!open) {
          const pre = document.createElement('pre');
          const code = document.createElement('code');
          open = document.createTextNode('');
          code.append(open);
          pre.append(code);
          tail.replaceChildren(pre);
        }
        const start = tailText.indexOf('\n', tailText.indexOf(fence)) + 1;
        const shown = tailText.slice(start);
        if (shown.startsWith(open.data)) open.appendData(shown.slice(open.data.length));
        else open.data = shown;
      } else {
        open = null;
        tail.replaceChildren(fragment(tailText));
      }
    };
    const stop = source.subscribe(plan);
    return () => { stop(); cancelAnimationFrame(frame); clearTimeout(timer); };
  }, [source]);
  return html`<div class="markdown streaming" ref=${ref}></div>`;
}
