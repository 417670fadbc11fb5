// A list of any length: only what is near the window exists as elements.
//
// Heights are measured as items appear and estimated before. The first visible
// item is the anchor: whatever changes above it, it stays where it is. At the end
// of the list the view stays at the end.
import { html, useEffect, useLayoutEffect, useRef, useState } from './h.js';

const ESTIMATE = 110;
const MARGIN = 900;
const NEAR_END = 48;

export function Windowed({ items, keyOf, render, onTop, label, handle, footer }) {
  const scroller = useRef();
  const self = useRef(null);
  const [, redraw] = useState(0);
  self.current ||= { heights: new Map(), anchor: null, atEnd: true, range: [0, 0], frame: 0, top: 0 };
  const me = self.current;
  if (me.items !== items) {
    me.items = items;
    forgetHeights(me.heights, items, keyOf);
    me.offsets = offsets(items, keyOf, me.heights);
  }

  const measureRange = () => {
    const box = scroller.current;
    if (!box) return [0, Math.min(items.length, 20)];
    const from = find(me.offsets, box.scrollTop - MARGIN);
    const to = find(me.offsets, box.scrollTop + box.clientHeight + MARGIN) + 1;
    return [from, Math.min(to, me.items.length)];
  };
  if (me.atEnd) {
    const height = scroller.current?.clientHeight || 900;
    const total = me.offsets[items.length];
    me.range = [find(me.offsets, total - height - MARGIN), items.length];
  } else me.range = measureRange();
  const [from, to] = me.range;

  const stayAtEnd = box => {
    box.scrollTop = box.scrollHeight;
    me.top = box.scrollTop;
  };
  const settle = () => {
    const box = scroller.current;
    if (me.atEnd) { stayAtEnd(box); return; }
    if (!me.anchor) return;
    const index = me.items.findIndex(item => keyOf(item) === me.anchor.key);
    if (index < 0) return;
    const top = me.offsets[index] + me.anchor.inside;
    if (Math.abs(box.scrollTop - top) > 1) box.scrollTop = top;
  };
  useLayoutEffect(settle);

  useEffect(() => {
    const box = scroller.current;
    const onScroll = () => {
      // Text that grows between a scroll and its event moves the end away: only a reader who scrolls up leaves it.
      const isNear = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
      me.atEnd = isNear || (me.atEnd && box.scrollTop >= me.top);
      me.top = box.scrollTop;
      const index = find(me.offsets, box.scrollTop);
      const item = me.items[index];
      me.anchor = item ? { key: keyOf(item), inside: box.scrollTop - me.offsets[index] } : null;
      if (box.scrollTop < 600) me.onTop?.();
      me.frame ||= requestAnimationFrame(() => {
        me.frame = 0;
        const [f, t] = measureRange();
        if (f !== me.range[0] || t !== me.range[1]) redraw(n => n + 1);
        me.onState?.(me.atEnd);
      });
    };
    me.observer = new ResizeObserver(entries => {
      let above = false;
      for (const { target, borderBoxSize } of entries) {
        // An element that was removed reports the height 0: what was measured stays.
        if (!target.isConnected) { me.observer.unobserve(target); continue; }
        const key = target.dataset.key;
        if (key === undefined) continue;
        const height = borderBoxSize[0].blockSize;
        if (Math.abs((me.heights.get(key) ?? -1) - height) < 0.5) continue;
        me.heights.set(key, height);
        above = true;
      }
      if (above) me.offsets = offsets(me.items, keyOf, me.heights);
      if (me.atEnd) stayAtEnd(box);
      else if (above) settle();
      const [f, t] = me.atEnd ? me.range : measureRange();
      if (f !== me.range[0] || t !== me.range[1]) redraw(n => n + 1);
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
        me.anchor = { key, inside: -24 };
        scroller.current.scrollTop = me.offsets[index] - 24;
        redraw(n => n + 1);
        return true;
      },
      onState(then) { me.onState = then; },
      element: () => scroller.current,
    };
  }
  const observe = element => element && me.observer?.observe(element);
  return html`<div class="scroller" ref=${scroller} tabindex="0" role="log" aria-live="off" aria-label=${label}>
    <div class="thread">
      <div class="spacer" style=${{ height: `${me.offsets[from]}px` }}></div>
      ${items.slice(from, to).map(item => html`<div key=${keyOf(item)} data-key=${keyOf(item)} ref=${observe} class="slot">${render(item)}</div>`)}
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

function offsets(items, keyOf, heights) {
  const out = new Float64Array(items.length + 1);
  for (let i = 0; i < items.length; i++) out[i + 1] = out[i] + (heights.get(keyOf(items[i])) ?? ESTIMATE);
  return out;
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
