// Line differences of two texts (Myers' algorithm, after equal ends are cut off).

const MOST_STEPS = 1500;

/** Rows `{ kind: ' ' | '-' | '+', old, now, text }` that turn `before` into `after`. */
export function diffLines(before, after) {
  const a = lines(before);
  const b = lines(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = script(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const rows = [];
  let old = 0;
  let now = 0;
  const push = (kind, text) => rows.push({ kind, text, old: kind === '+' ? null : ++old, now: kind === '-' ? null : ++now });
  for (let i = 0; i < head; i++) push(' ', a[i]);
  for (const [kind, text] of middle) push(kind, text);
  for (let i = a.length - tail; i < a.length; i++) push(' ', a[i]);
  return rows;
}

const lines = text => (text == null || text === '' ? [] : text.replace(/\n$/, '').split('\n'));

function script(a, b) {
  const whole = () => [...a.map(t => ['-', t]), ...b.map(t => ['+', t])];
  if (!a.length || !b.length) return whole();
  const max = Math.min(a.length + b.length, MOST_STEPS);
  const trace = [];
  let v = new Map([[1, 0]]);
  for (let d = 0; d <= max; d++) {
    trace.push(v);
    const next = new Map(v);
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && (v.get(k - 1) ?? -1) < (v.get(k + 1) ?? -1)) ? v.get(k + 1) ?? 0 : (v.get(k - 1) ?? -1) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      next.set(k, x);
      if (x >= a.length && x - k >= b.length) return walkBack(trace, a, b, d);
    }
    v = next;
  }
  // Texts that have little in common: the whole old one, then the whole new one.
  return whole();
}

function walkBack(trace, a, b, steps) {
  const rows = [];
  let x = a.length;
  let y = b.length;
  for (let d = steps; d > 0; d--) {
    const v = trace[d];
    const k = x - y;
    const down = k === -d || (k !== d && (v.get(k - 1) ?? -1) < (v.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const fromX = v.get(from) ?? 0;
    const fromY = fromX - from;
    while (x > fromX && y > fromY && x > 0 && y > 0) { rows.push([' ', a[--x]]); y--; }
    if (down) rows.push(['+', b[--y]]);
    else rows.push(['-', a[--x]]);
  }
  while (x > 0 && y > 0) { rows.push([' ', a[--x]]); y--; }
  return rows.reverse();
}

/** Rows with unchanged stretches replaced by `{ kind: 'gap', count }`, `context` lines kept. */
export function hunks(rows, context = 3) {
  const keep = new Uint8Array(rows.length);
  rows.forEach((row, i) => {
    if (row.kind === ' ') return;
    for (let j = Math.max(0, i - context); j <= Math.min(rows.length - 1, i + context); j++) keep[j] = 1;
  });
  const out = [];
  for (let i = 0; i < rows.length; i++) {
    if (keep[i]) { out.push(rows[i]); continue; }
    const from = i;
    while (i + 1 < rows.length && !keep[i + 1]) i++;
    if (i - from < 2) for (let j = from; j <= i; j++) out.push(rows[j]);
    else out.push({ kind: 'gap', count: i - from + 1, rows: rows.slice(from, i + 1) });
  }
  return out;
}

/** Pairs removed and added lines for two columns. */
export function pairs(rows) {
  const out = [];
  for (let i = 0; i < rows.length;) {
    const row = rows[i];
    if (row.kind === ' ' || row.kind === 'gap') { out.push([row, row]); i++; continue; }
    const removed = [];
    const added = [];
    while (i < rows.length && rows[i].kind === '-') removed.push(rows[i++]);
    while (i < rows.length && rows[i].kind === '+') added.push(rows[i++]);
    for (let j = 0; j < Math.max(removed.length, added.length); j++) out.push([removed[j] || null, added[j] || null]);
  }
  return out;
}

export const count = rows => rows.reduce((sum, r) => ({ added: sum.added + (r.kind === '+'), removed: sum.removed + (r.kind === '-') }), { added: 0, removed: 0 });
