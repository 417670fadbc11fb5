// Markdown as elements. The text is not trusted: marked splits it into tokens, and each token becomes an element of a known
// kind with text as text. No HTML is parsed, so nothing in the text can become markup, and there is nothing to sanitize.
import { Lexer, Tokenizer } from '../vendor/marked.js';

// Marks that are nested deeper than this are shown as text.
const MAX_DEPTH = 20;
// The characters that the search for the ends of emphasis may read. marked reads the rest of a paragraph for each `*`: thousands
// of them in one text would take seconds. After that, a word from its first `*` or `_` on is text.
const MAX_SCANNED_CHARS = 1e6;

/** Bounds the time that marked takes for a hostile text. */
class BoundedTokenizer extends Tokenizer {
  depth = 0;
  scanned = 0;

  emStrong(source, ...rest) {
    const word = /^[*_]\S*/.exec(source)?.[0];
    if (!word) return undefined;
    if (this.scanned > MAX_SCANNED_CHARS) return { type: 'text', raw: word, text: word };
    this.scanned += source.length;
    return this.nested('emStrong', source, ...rest);
  }

  nested(kind, ...rest) {
    if (this.depth >= MAX_DEPTH) return undefined;
    this.depth++;
    try {
      return Tokenizer.prototype[kind].apply(this, rest);
    } finally {
      this.depth--;
    }
  }
}
for (const kind of ['blockquote', 'del', 'link', 'list', 'reflink']) BoundedTokenizer.prototype[kind] = function bounded(...rest) { return this.nested(kind, ...rest); };

/** The elements of a text. HTML within it is text; a picture is a link to it. */
export function fragment(text) {
  return appendAll(document.createDocumentFragment(), Lexer.lex(text, { gfm: true, breaks: false, tokenizer: new BoundedTokenizer() }));
}

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function appendAll(parent, tokens) {
  for (const token of tokens) {
    const node = nodeOf(token);
    if (node !== undefined) parent.append(node);
  }
  return parent;
}

const within = (tag, token) => appendAll(document.createElement(tag), token.tokens);

/** The element or the text of a token; undefined for one that shows nothing. */
function nodeOf(token) {
  switch (token.type) {
    case 'space': case 'def': return undefined;
    case 'paragraph': return within('p', token);
    case 'heading': return within(`h${token.depth}`, token);
    case 'strong': case 'em': case 'del': case 'blockquote': return within(token.type, token);
    case 'codespan': return element('code', token.text);
    case 'code': return codeOf(token);
    case 'br': case 'hr': return element(token.type);
    case 'list': return listOf(token);
    case 'checkbox': return checkboxOf(token);
    case 'table': return tableOf(token);
    case 'link': return linkOf(token, appendAll(document.createDocumentFragment(), token.tokens));
    case 'image': return linkOf(token, decoded(token.text || token.href));
    case 'html': case 'escape': return token.text;
    case 'text': return token.tokens ? appendAll(document.createDocumentFragment(), token.tokens) : decoded(token.text);
    default: return token.raw;
  }
}

function codeOf({ text }) {
  const pre = element('pre', element('code', `${text.replace(/\n$/, '')}\n`));
  pre.tabIndex = 0;
  return pre;
}

function listOf({ ordered, start, items }) {
  const list = element(ordered ? 'ol' : 'ul', ...items.map(item => within('li', item)));
  if (ordered && start !== 1) list.start = start;
  return list;
}

function checkboxOf({ checked }) {
  const box = document.createElement('input');
  Object.assign(box, { type: 'checkbox', checked, disabled: true, ariaLabel: checked ? 'done' : 'open' });
  const both = document.createDocumentFragment();
  both.append(box, ' ');
  return both;
}

function tableOf({ header, rows }) {
  const rowOf = (cells, tag) => element('tr', ...cells.map(cell => {
    const made = within(tag, cell);
    if (cell.align) made.align = cell.align;
    return made;
  }));
  const table = element('table', element('thead', rowOf(header, 'th')));
  if (rows.length) table.append(element('tbody', ...rows.map(cells => rowOf(cells, 'td'))));
  const frame = element('div', table);
  Object.assign(frame, { className: 'table-frame', tabIndex: 0, role: 'region', ariaLabel: 'Table' });
  return frame;
}

/** A link that opens apart. A relative address would lead into this server, and others may run something: such a link is its text. */
function linkOf({ href, title }, content) {
  const address = decoded(href);
  if (!/^(https?:|mailto:)/i.test(address)) return content;
  const link = element('a', content);
  // A picture in the text of the link is a link, too.
  for (const inner of link.querySelectorAll('a')) inner.replaceWith(...inner.childNodes);
  Object.assign(link, { href: address, target: '_blank', rel: 'noopener noreferrer nofollow', title: title ? decoded(title) : address });
  return link;
}

const decoder = document.createElement('textarea');

/** A text with its character references (`&copy;`) replaced. Each is decoded alone: it can hold letters and digits only. */
const decoded = text => (text.includes('&') ? text.replace(/&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{0,31});/gi, reference => {
  decoder.innerHTML = reference;
  // Of a name that does not exist, a browser replaces the beginning: `&nothing;` is no `¬hing;`.
  return decoder.value.length > 1 && decoder.value.endsWith(';') ? reference : decoder.value;
}) : text);
