// Server-sent events read from a fetch response: EventSource cannot send headers.

/** Calls `onBatch` with the frames of each chunk that arrives, until the stream ends. */
export async function readFrames(body, onBatch) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let frame = empty();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = [];
    rest += value;
    let from = 0;
    for (let end = rest.indexOf('\n'); end >= 0; end = rest.indexOf('\n', from)) {
      const line = rest.slice(from, end && rest[end - 1] === '\r' ? end - 1 : end);
      from = end + 1;
      if (line === '') {
        if (frame.data !== null) frames.push(frame);
        frame = empty();
      } else field(frame, line);
    }
    rest = rest.slice(from);
    if (frames.length) onBatch(frames);
  }
}

const empty = () => ({ event: 'message', id: null, data: null });

function field(frame, line) {
  const colon = line.indexOf(':');
  if (colon === 0) return;
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
  if (name === 'data') frame.data = frame.data === null ? value : `${frame.data}\n${value}`;
  else if (name === 'event') frame.event = value;
  else if (name === 'id') frame.id = value;
}

/** Compares two positions `cursor.pos`; a stream's order is cursor first, then bytes. */
export function comparePositions(a, b) {
  const [ac, ap] = split(a);
  const [bc, bp] = split(b);
  return ac - bc || ap - bp;
}

export function split(position) {
  const [cursor, pos] = String(position).split('.');
  return [Number(cursor), Number(pos || 0)];
}
