// One import for what every view needs: markup, hooks, signals.
import { h, render, Fragment } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export const html = htm.bind(h);
export { h, render, Fragment };
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from '../vendor/hooks.js';
export { signal, computed, effect, batch, untracked, useSignal, useComputed } from '../vendor/signals.js';
