// Markdown of agents: a finished text in pieces, and a text that still grows.
import { fragment } from './elements.js';
import { html, useRef, useLayoutEffect } from './h.js';
import { Flow, GrowingCode } from './flow.js';

// A message longer than this is made in pieces, so that no piece blocks the page.
const PIECE = 8000;
// When the unfinished part of a paragraph is longer than twice this, its first part of this length is rendered for good.
const LONG_TAIL = 800;

/**
 * Finds the part of a growing text that later text cannot change: up to the last
 * blank line outside a code fence. Each line is looked at once.
 */
export class StableEnd {
  constructor() {
    this.end = 0;
    this.fence = null;
    this.at = 0;
  }

  /** Reads on in `text`, which begins with the text of the last call. */
  read(text) {
    for (let newline = text.indexOf('\n', this.at); newline >= 0; newline = text.indexOf('\n', this.at)) {
      const line = text.slice(this.at, newline);
      const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
      if (this.fence) {
        if (mark && mark[0] === this.fence[0] && mark.length >= this.fence.length && line.trim() === mark) this.fence = null;
      } else if (mark) this.fence = mark;
      else if (line.trim() === '') {
        // The next characters decide whether a list continues after a blank line.
        const next = text.slice(newline + 1, newline + 5);
        if (next.length < 4) break;
        if (!/^(\s|[-*+] |\d+[.)] )/.test(next)) this.end = newline + 1;
      }
      this.at = newline + 1;
    }
    return this;
  }
}

const stableEnd = text => new StableEnd().read(text);

/** The pieces of a text, each `{ text, joins }`; a piece that joins goes on within the paragraph of the one before. */
function pieces(text) {
  const list = [];
  let from = 0;
  let joins = false;
  while (text.length - from > PIECE) {
    const { end, fence } = stableEnd(text.slice(from, from + PIECE));
    const cut = end || (fence ? nextCut(text, from) : wordCut(text.slice(from, from + PIECE)));
    list.push({ text: text.slice(from, from + cut), joins });
    joins = !end && !fence;
    from += cut;
  }
  if (from < text.length || !list.length) list.push({ text: text.slice(from), joins });
  return list;
}

/** The end of a long code block, which is cheap to make. */
function nextCut(text, from) {
  for (let size = PIECE * 2; ; size *= 2) {
    if (from + size >= text.length) return text.length - from;
    const { end } = stableEnd(text.slice(from, from + size));
    if (end) return end;
  }
}

/** A cut within a paragraph that is too long to be made at once: after a word. */
function wordCut(text) {
  const space = Math.max(text.lastIndexOf(' '), text.lastIndexOf('\n'));
  return space > 0 ? space + 1 : text.length;
}

/** Makes a piece. Paragraphs at its ends that are parts of a longer one are drawn as one. */
function piece({ text, joins }, isOpen) {
  const nodes = fragment(text);
  if (joins && nodes.firstElementChild?.tagName === 'P') nodes.firstElementChild.classList.add('part');
  if (isOpen && nodes.lastElementChild?.tagName === 'P') nodes.lastElementChild.classList.add('part');
  return nodes;
}

// The elements of the answer that was streamed last. A long answer keeps them: rendering it again in pieces would make
// it shrink and grow.
let streamed = null;

/** Completed markdown. */
export function Markdown({ text }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const element = ref.current;
    const known = streamed;
    streamed = null;
    if (text.length > PIECE && known?.text === text) { element.replaceChildren(...known.nodes); return undefined; }
    const list = pieces(text);
    if (list.length === 1) { element.replaceChildren(piece(list[0])); return undefined; }
    const end = document.createElement('div');
    element.replaceChildren(end);
    const flow = new Flow(end);
    let stopped = false;
    const next = () => {
      const part = list.shift();
      const isOpen = list[0]?.joins;
      if (!part.joins && !isOpen) end.before(piece(part));
      else flow.add(piece(part, isOpen), part.text.length);
      if (part.joins && !isOpen) flow.end();
      if (!list.length) end.remove();
    };
    next();
    const more = () => {
      if (stopped || !list.length) return;
      next();
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
    const flow = new Flow(tail);
    let stable = new StableEnd();
    let done = 0;
    let frame = 0;
    let code = null;
    let joins = false;
    let isWhole = true; // no paragraph was cut
    let timer = 0;
    let idleUntil = 0;
    const plan = () => { frame ||= requestAnimationFrame(draw); };
    const draw = () => {
      frame = 0;
      const started = performance.now();
      // A long paragraph takes longer to render: leave most of the time to the page.
      if (started < idleUntil) { timer ||= setTimeout(() => { timer = 0; plan(); }, idleUntil - started); return; }
      drawNow(source.peek());
      const took = performance.now() - started;
      idleUntil = took > 3 ? started + took * 8 : 0;
    };
    const startAgain = () => {
      [stable, done, joins, code] = [new StableEnd(), 0, false, null];
      flow.end();
      element.replaceChildren(tail);
    };
    const drawNow = text => {
      if (text.length < done) startAgain();
      const { end, fence } = stable.read(text);
      if (end > done) {
        tail.before(piece({ text: text.slice(done, end), joins }));
        flow.end();
        done = end;
        joins = false;
        code = null;
      }
      // A paragraph that grows without end would take longer each time: its beginning is rendered once.
      while (!fence && text.length - done > 2 * LONG_TAIL) {
        const cut = wordCut(text.slice(done, done + LONG_TAIL));
        flow.add(piece({ text: text.slice(done, done + cut), joins }, true), cut);
        done += cut;
        joins = true;
        isWhole = false;
      }
      tail.classList.toggle('part', joins);
      const tailText = text.slice(done);
      if (fence && tailText.length > 2000) {
        if (!code) {
          code = new GrowingCode();
          tail.replaceChildren(code.element);
        }
        code.grow(tailText.slice(tailText.indexOf('\n', tailText.indexOf(fence)) + 1));
      } else {
        code = null;
        tail.replaceChildren(piece({ text: tailText, joins }));
      }
    };
    const stop = source.subscribe(plan);
    return () => {
      stop();
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      const text = source.peek();
      if (text.length <= PIECE || !isWhole) return;
      drawNow(text);
      if (isWhole && !code) streamed = { text, nodes: [...element.childNodes].flatMap(node => (node === tail ? [...tail.childNodes] : [node])) };
    };
  }, [source]);
  return html`<div class="markdown streaming" ref=${ref}></div>`;
}
