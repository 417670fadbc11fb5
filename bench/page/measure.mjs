// How quick the page is, in a Chromium trace: the first paint, a session of 10,000 messages that is scrolled, an answer
// that streams, and the heap while answers stream.
//
//   run [paint] [scroll] [stream] [calls] [heap [MINUTES]] [hour]
//
// The time of a frame is the time that its scripts, styles and layout took on the main thread: the union of those
// stretches of the trace, from one frame to the next. Tasks are those of the main thread, whatever they do. Both are
// also given in processor time of that thread, which other work on the machine does not lengthen.
import { EventEmitter } from 'node:events';
import { browser, client, SERVER_TOKEN, SERVER_URL, settled, signedIn } from '../../crates/http/tests/page/kit.mjs';

const api = client(SERVER_URL, SERVER_TOKEN);
const WORK = new Set(['FunctionCall', 'EvaluateScript', 'v8.evaluateModule', 'TimerFire', 'FireAnimationFrame', 'EventDispatch', 'RunMicrotasks', 'Layout', 'UpdateLayoutTree', 'RecalculateStyles', 'ResizeObserver.gatherObservations']);
const CATEGORIES = ['toplevel', 'devtools.timeline', 'disabled-by-default-devtools.timeline'];

const quantile = (sorted, q) => sorted.length ? sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * q) - 1)] : 0;
const ms = value => `${value.toFixed(1)} ms`;

/** Records a trace while `work` is done. */
async function traced(page, work) {
  const session = await page.context().newCDPSession(page);
  const events = [];
  session.on('Tracing.dataCollected', ({ value }) => events.push(...value));
  const complete = new Promise(resolve => session.once('Tracing.tracingComplete', resolve));
  await session.send('Tracing.start', { transferMode: 'ReportEvents', traceConfig: { includedCategories: CATEGORIES, recordMode: 'recordAsMuchAsPossible' } });
  await work();
  await session.send('Tracing.end');
  await complete;
  return events;
}

/** The tasks and frames of the page's main thread, in milliseconds. */
function analyse(events) {
  const names = events.filter(e => e.name === 'thread_name' && e.args.name === 'CrRendererMain').map(e => `${e.pid}.${e.tid}`);
  const byThread = new Map(names.map(name => [name, []]));
  for (const e of events) if (e.ph === 'X') byThread.get(`${e.pid}.${e.tid}`)?.push(e);
  // Of several renderers, the page is the one that works.
  const busy = list => list.filter(e => WORK.has(e.name)).length;
  const main = [...byThread.values()].sort((a, b) => busy(b) - busy(a))[0] || [];
  main.sort((a, b) => a.ts - b.ts);
  const isTask = e => e.name === 'RunTask' || e.name === 'ThreadControllerImpl::RunTask';
  const tasks = main.filter(isTask).map(e => ({ wall: e.dur / 1000, cpu: (e.tdur ?? e.dur) / 1000 }));
  const starts = main.filter(e => e.name === 'FireAnimationFrame');
  const work = main.filter(e => WORK.has(e.name));
  const wall = frames(work.map(e => [e.ts, e.dur]), starts.map(e => e.ts), 4000);
  // Callbacks of one frame follow each other at once, so the edges are those of the wall clock.
  const edges = new Set(wall.edges);
  const cpu = frames(work.filter(e => e.tdur !== undefined).map(e => [e.tts, e.tdur]), starts.filter(e => edges.has(e.ts)).map(e => e.tts), 0);
  return { tasks, frames: { wall: wall.sums, cpu: cpu.sums } };
}

/** The time of work in each frame: from one animation frame to the next. Callbacks within `apart` µs are of one frame. */
function frames(work, starts, apart) {
  const edges = [...new Set(starts)].sort((a, b) => a - b).filter((ts, i, all) => i === 0 || ts - all[i - 1] > apart);
  const sums = Array.from({ length: Math.max(0, edges.length - 1) }, () => 0);
  let end = 0;
  let frame = 0;
  for (const [ts, took] of work) {
    const from = Math.max(ts, end);
    const to = ts + took;
    if (to <= from) continue;
    end = to;
    while (frame + 1 < edges.length && edges[frame + 1] <= from) frame++;
    if (frame < sums.length && from >= edges[0]) sums[frame] += (to - from) / 1000;
  }
  return { sums, edges };
}

function report(name, { tasks, frames: all }) {
  const wall = tasks.map(t => t.wall).sort((a, b) => a - b);
  const cpu = tasks.map(t => t.cpu).sort((a, b) => a - b);
  const [frame, own] = [all.wall, all.cpu].map(list => [...list].sort((a, b) => a - b));
  const both = (f, g) => `${f} (${g})`;
  const at = q => both(ms(quantile(frame, q)), ms(quantile(own, q)));
  console.log(`| ${name} | ${all.wall.length} | ${at(0.5)} | ${at(0.95)} | ${at(1)} | ${both(ms(wall.at(-1) || 0), ms(cpu.at(-1) || 0))} | ${both(wall.filter(t => t > 50).length, cpu.filter(t => t > 50).length)} |`);
}

/** A session of 10,000 messages that another program has appended. */
async function longSession() {
  const { sessionId } = await api('POST', '/v1/sessions', { title: 'Ten thousand', new: true });
  for (let turn = 0; turn < 100; turn++) {
    await api('POST', `/v1/sessions/${sessionId}/messages`, { id: `prompt-${turn}`, content: `Prompt ${turn}: please go on with the next part.` });
    const messages = Array.from({ length: 99 }, (_, i) => ({ role: 'assistant', content: `Part ${turn}.${i} with **bold** text and \`code\`.\n\n- one\n- two ${'x'.repeat((turn * 7 + i) % 90)}\n\n${i % 10 ? '' : '```\nlet x = 1;\nlet y = 2;\n```\n'}` }));
    await api('POST', `/v1/sessions/${sessionId}/results`, { id: `turn-${turn}`, messages, agent: 'other' });
  }
  return sessionId;
}

/** A browser at the end of a session. */
async function atEnd(sessionId) {
  const visitor = await signedIn();
  await visitor.show(`/s/${sessionId}`);
  await visitor.page.waitForSelector('.slot');
  await settled(visitor.page);
  return visitor;
}

const MEASURES = {
  /** From the request of the document to the first paint with content, without and with a cache. */
  async paint() {
    const times = { cold: [], cached: [] };
    for (let i = 0; i < 15; i++) {
      const { context, page, show } = await signedIn();
      for (const kind of ['cold', 'cached']) {
        await show('/');
        if (kind === 'cached') await page.reload();
        await settled(page);
        const paint = await page.evaluate(() => new Promise(resolve => new PerformanceObserver(list => resolve(list.getEntriesByName('first-contentful-paint')[0].startTime)).observe({ type: 'paint', buffered: true })));
        if (i > 0) times[kind].push(paint);
      }
      await context.close();
    }
    for (const [kind, all] of Object.entries(times)) {
      all.sort((a, b) => a - b);
      console.log(`| first paint, ${kind === 'cold' ? 'nothing in the cache' : 'again'} | ${all.length} | ${ms(quantile(all, 0.5))} | ${ms(quantile(all, 0.95))} | ${ms(all.at(-1))} | | |`);
    }
  },
  /** Scrolls 10,000 messages from the end to the beginning by the wheel. */
  async scroll(sessionId) {
    const { context, page } = await atEnd(sessionId);
    const box = await page.locator('.scroller').boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    const trace = await traced(page, async () => {
      for (let i = 0; i < 500; i++) {
        await page.mouse.wheel(0, -900);
        await page.evaluate(() => new Promise(requestAnimationFrame));
      }
    });
    const height = await page.evaluate(() => document.querySelector('.scroller').scrollHeight);
    report(`scrolling 10,000 messages (${Math.round(height / 1000)}k pixels read)`, analyse(trace));
    await context.close();
  },
  /** 200 deltas a second for 20 seconds, at the end of 10,000 messages. */
  async stream(sessionId) {
    const { context, page } = await atEnd(sessionId);
    const trace = await traced(page, async () => {
      await api('POST', `/v1/sessions/${sessionId}/runs`, { prompt: 'stream 4000 every 5ms some words and **more** of them ' }, { Prefer: 'wait=60' });
    });
    report('200 deltas a second, one paragraph of 120 KB', analyse(trace));
    await context.close();
  },
  /** The same, with a tool call each second. */
  async calls(sessionId) {
    const { context, page } = await atEnd(sessionId);
    const rounds = Array.from({ length: 20 }, (_, i) => `stream 200 every 5ms some words of **round** ${i} \ntool add {"a":${i},"b":1}`).join('\n');
    const calls = await traced(page, async () => {
      await api('POST', `/v1/sessions/${sessionId}/runs`, { prompt: rounds }, { Prefer: 'wait=60' });
    });
    report('200 deltas a second, with a tool call each second', analyse(calls));
    await context.close();
  },
};

const WARM_UP_ANSWERS = 12;
const SHORT_ANSWERS = 300;

/**
 * The heaps of the page and of its shared worker after forced collections, while answers stream for some minutes: all of each, how
 * much of it is compiled code, and how much the page's own objects, functions and strings take. The rest is V8's, such as its
 * caches of numbers as text, which grow once.
 *
 * V8 compiles a function again for speed after some hundred calls. Twelve answers call the functions of a delta that often, and
 * the short answers those of the beginning and the end of an answer. Twelve more replace the short ones in what the page keeps of
 * a session. Both beginnings are reported.
 */
async function heap(minutes) {
  const { context, page, show } = await signedIn();
  const { sessionId } = await api('POST', '/v1/sessions', { title: 'Heap', new: true });
  await show(`/s/${sessionId}`);
  await settled(page);
  const targets = { page: await context.newCDPSession(page), worker: await workerSession() };
  const answer = prompt => api('POST', `/v1/sessions/${sessionId}/runs`, { prompt }, { Prefer: 'wait=60' });
  const long = 'stream 2000 every 5ms some words \nsay end';
  const measure = async () => {
    await settled(page);
    const heaps = {};
    for (const [name, target] of Object.entries(targets)) heaps[name] = await heapOf(target);
    const { nodes, jsEventListeners } = await targets.page.send('Memory.getDOMCounters');
    return { ...heaps, nodes, listeners: jsEventListeners };
  };
  for (let i = 0; i < WARM_UP_ANSWERS; i++) await answer(long);
  const begun = await measure();
  for (let i = 0; i < SHORT_ANSWERS; i++) await answer('stream 5 every 1ms some words \nsay end');
  for (let i = 0; i < WARM_UP_ANSWERS; i++) await answer(long);
  const warm = await measure();
  const end = performance.now() + minutes * 60000;
  let answers = 0;
  while (performance.now() < end) {
    await answer(long);
    answers++;
    if (answers % 6 === 0) console.log(`  after ${answers} answers: ${(await sizeOf(targets.page)).toFixed(2)} MB, worker ${(await sizeOf(targets.worker)).toFixed(2)} MB`);
  }
  reportHeaps(`${minutes} minutes, ${answers} answers of 2,000 deltas`, begun, warm, await measure());
  await context.close();
}

function reportHeaps(name, begun, warm, last) {
  const percent = (now, before) => `${now < before ? '' : '+'}${(100 * (now / before - 1)).toFixed(1)} %`;
  console.log(`\n| heap over ${name} | after ${WARM_UP_ANSWERS} answers | and ${SHORT_ANSWERS} short ones | at the end | growth | since ${WARM_UP_ANSWERS} answers |\n|---|---|---|---|---|---|`);
  const row = (label, of, unit) => {
    const [a, b, c] = [begun, warm, last].map(of);
    console.log(`| ${label} | ${[a, b, c].map(value => (unit ? `${value.toFixed(2)} ${unit}` : value)).join(' | ')} | ${percent(c, b)} | ${percent(c, a)} |`);
  };
  for (const target of ['page', 'worker']) {
    row(target, heaps => heaps[target].all, 'MB');
    row(`${target}, without compiled code`, heaps => heaps[target].all - heaps[target].code, 'MB');
    row(`${target}, its own objects, functions and strings`, heaps => heaps[target].own, 'MB');
  }
  row('nodes of the document', heaps => heaps.nodes);
  row('event listeners', heaps => heaps.listeners);
}

/** The size of a heap after a forced collection, in megabytes. */
async function sizeOf(target) {
  await target.send('HeapProfiler.collectGarbage');
  return (await target.send('Runtime.getHeapUsage')).usedSize / 1e6;
}

async function heapOf(target) {
  await target.send('HeapProfiler.enable');
  const parts = partsOf(await snapshotOf(target));
  const all = await sizeOf(target);
  await target.send('HeapProfiler.disable');
  return { all, ...parts };
}

/** A session of the protocol with the shared worker of the page, like that of `newCDPSession`. */
async function workerSession() {
  const session = await browser.newBrowserCDPSession();
  const { targetInfos } = await session.send('Target.getTargets');
  const { targetId } = targetInfos.find(target => target.type === 'shared_worker');
  const { sessionId } = await session.send('Target.attachToTarget', { targetId, flatten: false });
  const target = new EventEmitter();
  const waiting = new Map();
  let no = 0;
  session.on('Target.receivedMessageFromTarget', ({ message }) => {
    const { id, method, params, result, error } = JSON.parse(message);
    if (method) target.emit(method, params);
    else if (error) waiting.get(id).reject(new Error(error.message));
    else waiting.get(id).resolve(result);
    waiting.delete(id);
  });
  target.send = (method, params = {}) => new Promise((resolve, reject) => {
    waiting.set(++no, { resolve, reject });
    session.send('Target.sendMessageToTarget', { sessionId, message: JSON.stringify({ id: no, method, params }) }).catch(reject);
  });
  return target;
}

async function snapshotOf(target) {
  const parts = [];
  const collect = ({ chunk }) => parts.push(chunk);
  target.on('HeapProfiler.addHeapSnapshotChunk', collect);
  await target.send('HeapProfiler.takeHeapSnapshot', { reportProgress: false });
  target.off('HeapProfiler.addHeapSnapshotChunk', collect);
  return JSON.parse(parts.join(''));
}

const OWN = new Set(['object', 'closure', 'array', 'string', 'concatenated string', 'sliced string', 'regexp', 'number', 'symbol', 'bigint']);

/**
 * The sizes of the parts of a heap, in megabytes: compiled code, which is machine code, bytecode and what belongs to them; and the
 * page's own objects. Arrays that V8's list of roots refers to are caches of the engine.
 */
function partsOf({ snapshot: { meta }, nodes, edges, strings }) {
  const [type, name, size, edgeCount] = ['type', 'name', 'self_size', 'edge_count'].map(field => meta.node_fields.indexOf(field));
  const to = meta.edge_fields.indexOf('to_node');
  const sums = { code: 0, own: 0 };
  const roots = new Set();
  for (let at = 0, edge = 0; at < nodes.length; at += meta.node_fields.length) {
    const end = edge + nodes[at + edgeCount] * meta.edge_fields.length;
    if (strings[nodes[at + name]] === '(Strong root list)') for (let i = edge; i < end; i += meta.edge_fields.length) roots.add(edges[i + to]);
    edge = end;
  }
  for (let at = 0; at < nodes.length; at += meta.node_fields.length) {
    const kind = meta.node_types[type][nodes[at + type]];
    if (kind === 'code') sums.code += nodes[at + size] / 1e6;
    else if (OWN.has(kind) && !roots.has(at)) sums.own += nodes[at + size] / 1e6;
  }
  return sums;
}

const wanted = process.argv.slice(2);
const named = wanted.filter(word => MEASURES[word]);
const chosen = wanted.length ? named : Object.keys(MEASURES);
console.log('| what | frames | p50 (processor) | p95 (processor) | most (processor) | longest task (processor) | tasks over 50 ms (processor) |\n|---|---|---|---|---|---|---|');
const sessionId = chosen.some(name => name !== 'paint') ? await longSession() : null;
for (const name of chosen) await MEASURES[name](sessionId);
if (wanted.includes('heap')) await heap(Number(wanted[wanted.indexOf('heap') + 1]) || 10);
if (wanted.includes('hour')) await heap(60);
await browser.close();
process.exit(0);
