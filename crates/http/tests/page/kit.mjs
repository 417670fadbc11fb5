// Shared by the tests of the page: the server, the browser, and how to wait.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, openSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const { SERVER_URL, SERVER_TOKEN, NODE_MODULES, MAINSPRING, CHROMIUM = '/usr/bin/chromium' } = process.env;
export const PAGE_URL = process.env.PAGE_URL || SERVER_URL;
const require = createRequire(`${NODE_MODULES}/`);
export const { chromium } = require('playwright-core');
export const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
export const BROWSER_ARGS = ['--no-sandbox', '--disable-dev-shm-usage'];

/** A client of a server's API. */
export const client = (url, token) => async function api(method, path, body, headers = {}) {
  const init = { method, headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json', ...headers } };
  if (body !== undefined) init.body = typeof body === 'string' ? body : JSON.stringify(body);
  const response = await fetch(url + path, init);
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${response.ok ? '' : await response.text()}`);
  return response.status === 204 ? null : response.json();
};
export const api = client(SERVER_URL, SERVER_TOKEN);

/** Sends a prompt in a new session. With `wait`, answers after its run has ended or waits for an answer. */
export const run = (prompt, title, wait = 10, more = {}) => api('POST', '/v1/runs', { prompt, session: { title }, ...more }, wait ? { Prefer: `wait=${wait}` } : {});

export const browser = await chromium.launch({ executablePath: CHROMIUM, args: BROWSER_ARGS });

/**
 * A browser that is signed in with `key`. `faults` collects what must not happen: errors and warnings of the
 * console, dialogs, requests to other servers.
 */
export async function signedIn(key = SERVER_TOKEN, options = {}, url = PAGE_URL) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  // An empty document has no storage.
  await context.addInitScript(value => location.protocol.startsWith('http') && localStorage.setItem('mainspring.credentials', JSON.stringify({ kind: 'key', key: value })), key);
  return watched(context, url);
}

/** A new page of a context, with its faults. */
export async function watched(context, url = PAGE_URL) {
  const faults = [];
  const watch = page => {
    page.on('console', message => ['error', 'warning'].includes(message.type()) && faults.push(message.text()));
    page.on('pageerror', error => faults.push(error.stack));
    page.on('dialog', dialog => { faults.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
    page.on('request', request => !/^(blob|data|file):/.test(request.url()) && !request.url().startsWith(url) && faults.push(`request to ${request.url()}`));
    countRequests(page);
  };
  context.on('page', watch);
  const page = await context.newPage();
  return { context, page, faults, show: (hash, on = page) => on.goto(`${url}/#${hash}`) };
}

/** Drops the faults that a test causes itself. */
export const expectFaults = (faults, pattern) => faults.splice(0, faults.length, ...faults.filter(fault => !pattern.test(fault)));

export const textIn = (page, selector, part) => page.waitForFunction(([s, p]) => document.querySelector(s)?.textContent.includes(p), [selector, part]);

const open = new WeakMap();
function countRequests(page) {
  const requests = new Set();
  open.set(page, requests);
  // The script of a shared worker is read by the worker, so the page is not told of its end.
  page.on('request', request => !request.url().endsWith('/worker.js') && requests.add(request));
  for (const end of ['requestfinished', 'requestfailed']) page.on(end, request => requests.delete(request));
}

/** Waits until a page has read everything and has drawn it. */
export async function settled(page) {
  for (let calm = 0; calm < 3;) {
    const isLoading = await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(!document.querySelector('main') || !!document.querySelector('.loading'))))));
    calm = isLoading || open.get(page)?.size ? 0 : calm + 1;
  }
}

/** Waits until `look` answers something true, and answers that. */
export async function until(look) {
  for (;;) {
    const found = await look();
    if (found) return found;
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

/** An HTTP server of a test: `answer(request, body, response)`. Answers its address; it ends with the process. */
export async function listen(answer) {
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    answer(request, Buffer.concat(parts).toString(), response);
  });
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  server.unref();
  return `http://127.0.0.1:${server.address().port}`;
}

// ---- servers ------------------------------------------------------------------

const started = [];

/** Runs `use` with the address and token of a server of its own that has these settings. */
export async function withServer(settings, use) {
  const folder = mkdtempSync(join(tmpdir(), 'mainspring-page-'));
  const env = { ...process.env, MAINSPRING_STATE_DIR: join(folder, 'state'), HOME: folder, ...settings };
  const log = join(folder, 'log');
  const server = spawn(MAINSPRING, ['serve', '--listen', '127.0.0.1:0'], { env, stdio: ['ignore', 'ignore', openSync(log, 'a')] });
  started.push(server);
  try {
    const url = await until(() => {
      assert.equal(server.exitCode, null, readFileSync(log, 'utf8'));
      return /http:\/\/[0-9.:]+/.exec(readFileSync(log, 'utf8'))?.[0];
    });
    await use({ url, token: readFileSync(join(folder, 'state', 'token'), 'utf8').trim(), folder, env });
  } finally {
    server.kill('SIGKILL');
    await until(() => server.exitCode !== null || server.signalCode !== null);
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Whether a process of the group `group` runs; one that has ended and was not waited for (Z) does not. */
export function isGroupRunning(group) {
  return readdirSync('/proc').filter(name => /^[0-9]+$/.test(name)).some(id => {
    let stat;
    try { stat = readFileSync(`/proc/${id}/stat`, 'utf8'); } catch { return false; }
    const [state, , itsGroup] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return itsGroup === group && state !== 'Z';
  });
}

/** Ends the server as a crash does. */
export const killServer = () => process.kill(Number(process.env.SERVER_PID), 'SIGKILL');

/** Starts the killed server again on the same address. */
export async function startServer() {
  const { SERVER_PID_FILE, SERVER_LOG } = process.env;
  const server = spawn(MAINSPRING, ['serve', '--listen', new URL(SERVER_URL).host], { stdio: ['ignore', 'ignore', openSync(SERVER_LOG, 'a')], detached: true });
  server.unref();
  writeFileSync(SERVER_PID_FILE, String(server.pid));
  process.env.SERVER_PID = String(server.pid);
  await until(() => fetch(`${SERVER_URL}/health`).then(answer => answer.ok, () => false));
}

process.on('exit', () => { for (const server of started) server.kill('SIGKILL'); });
