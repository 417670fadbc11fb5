// A list of any length: only items near the visible part exist as elements.
//
// Heights are measured as items appear and estimated before. The first visible
// item is the anchor: whatever changes above it, it stays where it is. At the end
// of the list the view stays at the end. An item that is the same object, in the same
// `version`, is not drawn again.
import { html, useEffect, useLayoutEffect, useRef, useState } from './h.js';

const ESTIMATE = 110;
const MARGIN = 1200;
const NEAR_END = 48;
// The margin in pixels whose items are drawn at once, and how many items a frame adds beyond it: a reader who
// scrolls fast reaches items that earlier frames have drawn.
const EDGE = 100;
const PER_FRAME = 6;

export function Windowed({ items, keyOf, render, version, onTop, label, handle, footer }) {
  const scroller = useRef();
  const self = useRef(null);
  const [, redraw] = useState(0);
  self.current ||= { heights: new Map(), anchor: null, atEnd: true, range: [0, 0], frame: 0, top: 0, drawn: new Map() };
  const me = self.current;
  if (me.items !== items) {
    // Older items may have been put before those that are drawn.
    const first = items.indexOf(me.items?.[me.range[0]]);
    me.range = first < 0 ? [0, 0] : [first, first + me.range[1] - me.range[0]];
    me.items = items;
    forgetHeights(me.heights, items, keyOf);
    me.offsets = new Float64Array(items.length + 1);
    me.sizes = Float64Array.from(items, item => me.heights.get(keyOf(item)) ?? ESTIMATE);
    addUp(me.offsets, me.sizes, 0);
  }

  const measureRange = (margin = MARGIN) => {
    const box = scroller.current;
    if (!box) return [0, Math.min(items.length, 20)];
    const from = find(me.offsets, box.scrollTop - margin);
    const to = find(me.offsets, box.scrollTop + box.clientHeight + margin) + 1;
    return [from, Math.min(to, me.items.length)];
  };
  if (me.atEnd) {
    const height = scroller.current?.clientHeight || 900;
    const total = me.offsets[items.length];
    me.range = [find(me.offsets, total - height - MARGIN), items.length];
  } else me.range = approach(me.range, measureRange(), measureRange(EDGE));
  const [from, to] = me.range;

  const stayAtEnd = box => {
    box.scrollTop = box.scrollHeight;
    me.top = box.scrollTop;
  };
  const settle = () => {
    const box = scroller.current;
    if (me.atEnd) { stayAtEnd(box); return; }
    if (!me.anchor) return;
    let index = me.items.indexOf(me.anchor.item);
    if (index < 0) index = me.items.findIndex(item => keyOf(item) === keyOf(me.anchor.item));
    if (index < 0) return;
    const top = me.offsets[index] + me.anchor.inside;
    if (Math.abs(box.scrollTop - top) > 1) box.scrollTop = top;
  };
  useLayoutEffect(settle);
  me.look = () => {
    me.frame = 0;
    const [f, t] = measureRange();
    if (f !== me.range[0] || t !== me.range[1]) redraw(n => n + 1);
    me.onState?.(me.atEnd);
  };
  const plan = () => { me.frame ||= requestAnimationFrame(() => me.look()); };
  // The rest of the range is drawn in the next frames.
  useEffect(() => { if (!me.atEnd && me.range.join() !== measureRange().join()) plan(); });

  useEffect(() => {
    const box = scroller.current;
    const onScroll = () => {
      // Text that grows between a scroll and its event moves the end away: only a reader who scrolls up leaves it.
      const isNear = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
      me.atEnd = isNear || (me.atEnd && box.scrollTop >= me.top);
      me.top = box.scrollTop;
      const index = find(me.offsets, box.scrollTop);
      const item = me.items[index];
      me.anchor = item ? { item, inside: box.scrollTop - me.offsets[index] } : null;
      if (box.scrollTop < 600) me.onTop?.();
      plan();
    };
    me.observer = new ResizeObserver(entries => {
      let changed = false;
      for (const { target, borderBoxSize } of entries) {
        // An element that was removed reports the height 0: what was measured stays.
        if (!target.isConnected) { me.observer.unobserve(target); continue; }
        const key = target.dataset.key;
        if (key === undefined) continue;
        const height = borderBoxSize[0].blockSize;
        if (Math.abs((me.heights.get(key) ?? -1) - height) < 0.5) continue;
        me.heights.set(key, height);
        changed = true;
      }
      if (changed) {
        const [first, last] = me.range;
        for (let i = first; i < last; i++) me.sizes[i] = me.heights.get(keyOf(me.items[i])) ?? ESTIMATE;
        addUp(me.offsets, me.sizes, first);
      }
      if (me.atEnd) { stayAtEnd(box); return; }
      if (changed) settle();
      // Items that are lower than estimated leave a gap, which is filled before it is seen. The rest has time.
      const [first, last] = measureRange(EDGE);
      if (first < me.range[0] || last > me.range[1]) redraw(n => n + 1);
      else plan();
    });
    me.observer.observe(box);
    for (const element of box.querySelectorAll('[data-key]')) me.observer.observe(element);
    box.addEventListener('scroll', onScroll, { passive: true });
    return () => { me.observer.disconnect(); box.removeEventListener('scroll', onScroll); cancelAnimationFrame(me.frame); };
  }, []);

  me.onTop = onTop;
  if (handle) {
    handle.current = {
      toEnd() { me.atEnd = true; redraw(n => n + 1); },
      toKey(key) {
        const index = me.items.findIndex(item => keyOf(item) === key);
        if (index < 0) return false;
        me.atEnd = false;
        me.anchor = { item: me.items[index], inside: -24 };
        scroller.current.scrollTop = me.offsets[index] - 24;
        redraw(n => n + 1);
        return true;
      },
      onState(then) { me.onState = then; },
      element: () => scroller.current,
    };
  }
  const observe = element => element && me.observer?.observe(element);
  // The drawing of an unchanged item is used again, which costs nothing.
  const drawn = new Map();
  const slots = items.slice(from, to).map(item => {
    const before = me.drawn.get(item);
    const slot = before?.version === version ? before : { version, element: html`<div key=${keyOf(item)} data-key=${keyOf(item)} ref=${observe} class="slot">${render(item)}</div>` };
    drawn.set(item, slot);
    return slot.element;
  });
  me.drawn = drawn;
  return html`<div class="scroller" ref=${scroller} tabindex="0" role="log" aria-live="off" aria-label=${label}>
    <div class="thread">
      <div class="spacer" style=${{ height: `${me.offsets[from]}px` }}></div>
      ${slots}
      <div class="spacer" style=${{ height: `${me.offsets[items.length] - me.offsets[to]}px` }}></div>
      ${footer}
    </div></div>`;
}

/** Drops the heights of items that are gone, so that a list that is open all day does not grow. */
function forgetHeights(heights, items, keyOf) {
  if (heights.size <= 2 * items.length + 50) return;
  const keys = new Set(items.map(keyOf));
  for (const key of heights.keys()) if (!keys.has(key)) heights.delete(key);
}

/** Makes `offsets` the sums of `sizes`, from an index on. */
function addUp(offsets, sizes, from) {
  for (let i = from; i < sizes.length; i++) offsets[i + 1] = offsets[i] + sizes[i];
}

/** The next range on the way from `present` to `wanted`. It holds what is `visible`, and a few more items than before. */
function approach(present, wanted, visible) {
  const isNear = present[0] <= visible[1] && present[1] >= visible[0];
  const [first, last] = isNear ? [Math.min(present[0], visible[0]), Math.max(present[1], visible[1])] : visible;
  let from = Math.max(wanted[0], first);
  let to = Math.min(wanted[1], last);
  const above = Math.min(PER_FRAME, from - wanted[0]);
  from -= above;
  to = Math.min(wanted[1], to + PER_FRAME - above);
  return [from, to];
}

/** The index of the item at a height, by bisection. */
function find(offsets, height) {
  let low = 0;
  let high = Math.max(0, offsets.length - 2);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= height) low = middle;
    else high = middle - 1;
  }
  return low;
}
