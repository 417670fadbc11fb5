// The keyboard: one table of keys, grouped by view, which the `?` sheet shows too.
import { useLayoutEffect, useRef, useState } from './h.js';

const layers = [];

/**
 * Binds keys while a component is shown. `keys` is a list of
 * `{ keys: 'j', label, run }`; two keys after each other are written `g b`.
 */
export function useKeys(group, keys) {
  const layer = useRef({ group, keys }).current;
  // Uses the keys of the latest rendering: those of an earlier one would act on an earlier selection.
  layer.keys = keys;
  // Runs before the view is drawn, so that a key works as soon as the view is visible.
  useLayoutEffect(() => {
    layers.push(layer);
    return () => layers.splice(layers.indexOf(layer), 1);
  }, []);
}

/** A choice that keys move: `choice.current` is right at once, also before it is drawn. */
export function useChoice(initial) {
  const choice = useRef(initial);
  const [, redraw] = useState(0);
  return [choice, value => { choice.current = value; redraw(n => n + 1); }];
}

export const keySheet = () => layers.map(layer => ({ group: layer.group, keys: layer.keys.filter(k => k.label) })).filter(g => g.keys.length);

// The most time between two keys such as `g b`, from press to press: a busy page may handle them later.
const PREFIX_MS = 1500;

let prefix = '';
let prefixAt = 0;

const isTyping = target => target.closest?.('input, textarea, select, [contenteditable]');

function nameOf(event) {
  const name = event.key === ' ' ? 'Space' : event.key;
  const mod = event.metaKey || event.ctrlKey ? 'mod+' : '';
  return mod + (mod ? name.toLowerCase() : name);
}

addEventListener('keydown', event => {
  if (event.defaultPrevented || event.isComposing || event.altKey) return;
  const pressed = nameOf(event);
  const typing = isTyping(event.target);
  if (event.timeStamp - prefixAt > PREFIX_MS) prefix = '';
  const full = prefix ? `${prefix} ${pressed}` : pressed;
  // A dialog keeps the keys of the view below it from acting.
  const isCovered = document.querySelector('dialog[open]') !== null;
  for (const layer of [...layers].reverse()) {
    for (const key of layer.keys) {
      if ((typing && !key.typing) || (isCovered && !key.overDialogs)) continue;
      if (event.target.closest?.('button, a, summary') && (pressed === 'Enter' || pressed === 'Space')) continue;
      if (key.keys.split(' | ').includes(full)) {
        event.preventDefault();
        prefix = '';
        key.run(event);
        return;
      }
    }
  }
  prefix = !typing && pressed === 'g' && !prefix ? 'g' : '';
  prefixAt = event.timeStamp;
});
