// Text that grows without a break, as blocks of bounded size.
//
// A browser lays out a whole paragraph again when a word is added to it. So a long one is kept as several blocks, and
// each but the last ends where a line ends: nobody sees the seams, and only the last block is laid out again.

const BLOCK_CHARS = 4000;

/** A long paragraph in `.block` elements. Its tail is the element that still changes. */
export class Flow {
  constructor(tail) {
    this.tail = tail;
    this.block = null;
    this.chars = 0;
  }

  /** Adds a finished part of the paragraph, of `chars` characters, before the tail. */
  add(nodes, chars) {
    if (!this.block) {
      this.block = newBlock();
      this.tail.replaceWith(this.block);
      this.block.append(this.tail);
    }
    this.tail.before(nodes);
    this.chars += chars;
    if (this.chars > BLOCK_CHARS) this.close();
  }

  /** Starts a new block at the last line of the present one. */
  close() {
    const next = newBlock();
    const start = lineStart(this.block, this.tail);
    if (start) {
      const range = document.createRange();
      range.setStart(start.node, start.offset);
      range.setEndBefore(this.tail);
      next.append(range.extractContents());
    }
    this.block.after(next);
    next.append(this.tail);
    this.block = next;
    this.chars = 0;
  }

  /** Ends the paragraph: the tail goes on behind it. */
  end() {
    if (!this.block) return;
    this.block.classList.add('last');
    this.block.after(this.tail);
    this.block = null;
    this.chars = 0;
  }
}

function newBlock() {
  const block = document.createElement('div');
  block.className = 'block';
  return block;
}

/** The start of the line of `block` that ends before `tail`; null if the block is one line or not drawn. */
function lineStart(block, tail) {
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
  const texts = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (tail.contains(node)) break;
    if (node.data) texts.push(node);
  }
  const range = document.createRange();
  const boxOf = (node, offset) => {
    range.setStart(node, offset);
    range.setEnd(node, offset + 1);
    return range.getClientRects()[0];
  };
  const last = texts.at(-1);
  const end = last && boxOf(last, last.length - 1);
  if (!end) return null;
  const isAbove = (node, offset) => {
    const box = boxOf(node, offset);
    return box !== undefined && box.bottom <= end.top + 4;
  };
  for (let i = texts.length - 1; i >= 0; i--) {
    const node = texts[i];
    if (!isAbove(node, 0)) continue;
    let low = 0;
    let high = node.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (isAbove(node, middle)) low = middle; else high = middle;
    }
    if (high < node.length) return { node, offset: high };
    return texts[i + 1] ? { node: texts[i + 1], offset: 0 } : null;
  }
  return null;
}

/** The lines of a code block that still grows, in blocks of bounded size. */
export class GrowingCode {
  constructor() {
    this.element = document.createElement('pre');
    this.from = 0;
    this.next();
  }

  next() {
    const code = document.createElement('code');
    code.className = 'block';
    this.text = document.createTextNode('');
    code.append(this.text);
    this.element.append(code);
  }

  /** Shows `text`, which begins with the text that is shown. */
  grow(text) {
    this.text.appendData(text.slice(this.from + this.text.length));
    while (this.text.length > BLOCK_CHARS) {
      const cut = this.text.data.lastIndexOf('\n', BLOCK_CHARS);
      if (cut < 0) return;
      const rest = this.text.data.slice(cut + 1);
      // The edge of the element is the line break.
      this.text.data = this.text.data.slice(0, cut);
      this.from += cut + 1;
      this.next();
      this.text.data = rest;
    }
  }
}
