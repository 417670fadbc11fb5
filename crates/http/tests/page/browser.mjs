// The page in a real browser, against a real server.
//
//   SERVER_URL=http://127.0.0.1:7433 SERVER_TOKEN=… NODE_MODULES=DIR CHROMIUM=/usr/bin/chromium node browser.mjs [WORD]
//
// `run` starts a server and does that. It also names the process of the server, which one test kills and starts again.
//
// DIR holds `playwright-core` and `axe-core`. PAGE_URL names the page if it is served elsewhere, for instance by a proxy
// during development. With WORD only the tests whose names contain it are run.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { openSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const { SERVER_URL, SERVER_TOKEN, NODE_MODULES, CHROMIUM = '/usr/bin/chromium' } = process.env;
const PAGE_URL = process.env.PAGE_URL || SERVER_URL;
const require = createRequire(`${NODE_MODULES}/`);
const { chromium } = require('playwright-core');
const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const ATTACK = '<img src=x onerror=alert(1)><script>alert(2)</script>';

async function api(method, path, body, headers = {}) {
  const init = { method, headers: { Authorization: `Bearer ${SERVER_TOKEN}`, 'Content-Type': 'application/json', ...headers } };
  if (body !== undefined) init.body = JSON.stringify(body);
  const response = await fetch(SERVER_URL + path, init);
  assert.ok(response.ok, `${method} ${path}: ${response.status}`);
  return response.status === 204 ? null : response.json();
}
const run = (prompt, title, wait = 10) => api('POST', '/v1/runs', { prompt, session: { title } }, wait ? { Prefer: `wait=${wait}` } : {});

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-dev-shm-usage'] });

/** A browser that is signed in with `key`. What its console, its policy and its requests must not do is in `faults`. */
async function signedIn(key = SERVER_TOKEN, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  // An empty document has no storage.
  await context.addInitScript(value => location.protocol.startsWith('http') && localStorage.setItem('mainspring.credentials', JSON.stringify({ kind: 'key', key: value })), key);
  const faults = [];
  const watch = page => {
    page.on('console', message => ['error', 'warning'].includes(message.type()) && faults.push(message.text()));
    page.on('pageerror', error => faults.push(error.stack));
    page.on('dialog', dialog => { faults.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
    page.on('request', request => !/^(blob|data):/.test(request.url()) && !request.url().startsWith(PAGE_URL) && faults.push(`request to ${request.url()}`));
  };
  context.on('page', watch);
  const page = await context.newPage();
  return { context, page, faults, show: (hash, on = page) => on.goto(`${PAGE_URL}/#${hash}`) };
}

const textIn = (page, selector, part) => page.waitForFunction(([s, p]) => document.querySelector(s)?.textContent.includes(p), [selector, part]);

const TESTS = {
  async 'a session is started, and a question is answered in another tab'({ page, context, show }) {
    await show('/');
    await page.waitForSelector('.nav');
    await page.keyboard.press('n');
    await page.check('dialog input[value=script]');
    await page.fill('dialog textarea', 'say hello; ask What is your name?; say bye');
    await page.keyboard.press('Control+Enter');
    await page.waitForSelector('.now .wait textarea');
    const other = await context.newPage();
    await other.goto(page.url());
    await other.fill('.now .wait textarea', 'Ada');
    await other.keyboard.press('Enter');
    await page.waitForSelector('.now .wait', { state: 'detached' });
    await textIn(page, '.scroller', 'bye');
    await other.close();
  },
  async 'an answer is made again, a prompt is edited, the tree navigates, a message is forked'({ page, show }) {
    const { sessionId } = await run('say question; vary first | second', 'Branches');
    await show(`/s/${sessionId}`);
    await textIn(page, '.scroller', 'first');
    await page.hover('.message.assistant');
    await page.click('.message.assistant >> nth=-1 >> [aria-label="Answer again"]');
    await textIn(page, '.scroller', 'second');
    await textIn(page, '.strip', 'Done');
    await page.hover('.message.user');
    await page.click('.message.user >> nth=0 >> [aria-label="Edit and send again"]');
    await page.fill('.edit textarea', 'say another prompt');
    await page.click('text=Send as a branch');
    await textIn(page, '.message.assistant', 'another prompt');
    await textIn(page, '.strip', 'Done');
    await show(`/s/${sessionId}/tree`);
    await textIn(page, '.preview-pane', '3 ends');
    await page.focus('.graph');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.click('text=Go on from here');
    await textIn(page, '.scroller', 'question');
    await page.hover('.message.user');
    await page.click('.message.user >> nth=0 >> [aria-label="Fork from here"]');
    await page.waitForFunction(id => location.hash.startsWith('#/s/') && !location.hash.includes(id), sessionId);
  },
  async 'stopping shows its stages, and a failed run says why and is retried'({ page, show }) {
    const hanging = await run('say working; hang', 'Stop me', 0);
    await show(`/s/${hanging.sessionId}`);
    await textIn(page, '.strip', 'Working');
    await page.click('.strip button:has-text("Stop")');
    await page.waitForFunction(() => /requested.*stopped/.test(document.querySelector('.stages')?.textContent));
    const failed = await run('fail the password is wrong', 'Fail');
    await show(`/s/${failed.sessionId}`);
    await textIn(page, '.strip', 'the password is wrong');
    await page.click('.strip button:has-text("Retry")');
    await textIn(page, '.strip', 'attempt 2');
  },
  async 'the inbox is worked by keys'({ page, show }) {
    await run('approve Really delete it?; say ok', 'Deny me', 5);
    await show('/inbox');
    await page.waitForSelector('text=Really delete it?');
    for (let i = 0; i < 30; i++) await page.keyboard.press('j');
    await page.keyboard.press('d');
    await page.waitForSelector('.answer-text input:focus');
    await page.keyboard.type('not now');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => [...document.querySelectorAll('.entry.done')].some(e => /Really delete it\?.*Denied by/s.test(e.textContent)));
  },
  async 'a stream is shown whole after a reload in its middle'({ page, show }) {
    const streaming = await run('stream 900 every 4ms ab€', 'Stream', 0);
    await show(`/s/${streaming.sessionId}`);
    await page.waitForSelector('.streaming');
    await page.reload();
    await textIn(page, '.strip', 'Done');
    const shown = (await page.textContent('.message.assistant .markdown')).replace(/\s+/g, ' ').trim();
    const { finalText } = await api('GET', `/v1/runs/${streaming.runId}`);
    assert.equal(shown, finalText.replace(/\s+/g, ' ').trim());
  },
  async 'of two tabs that answer the same question, one counts and both go on'({ page, context, faults, show }) {
    const { sessionId, runId } = await run('ask Tea or coffee?; say thanks', 'Two answers', 5);
    const other = await context.newPage();
    for (const tab of [page, other]) {
      await show(`/s/${sessionId}`, tab);
      await tab.fill('.now .wait textarea', tab === page ? 'tea' : 'coffee');
    }
    await Promise.all([page, other].map(tab => tab.press('.now .wait textarea', 'Enter')));
    for (const tab of [page, other]) {
      await tab.waitForSelector('.now .wait', { state: 'detached' });
      await textIn(tab, '.scroller', 'thanks');
    }
    const { items } = await api('GET', `/v1/runs/${runId}/events?limit=500`);
    assert.equal(items.filter(event => event.type === 'input.provided').length, 1);
    await other.close();
    // The refused answer is logged by the browser.
    faults.splice(0, faults.length, ...faults.filter(fault => !/status of 409/.test(fault)));
  },
  async 'the board takes at most three requests for its sessions, and a ticket signs in'({ page: signed, context }) {
    await signed.close();
    const visitor = await browser.newContext();
    const page = await visitor.newPage();
    const asked = [];
    page.on('request', request => /\/v1\/(sessions|runs|waits)/.test(request.url()) && asked.push(request.url()));
    const { ticket } = await api('POST', '/v1/tickets');
    await page.goto(`${PAGE_URL}/#ticket=${ticket}`);
    await page.waitForSelector('.board .card');
    await page.waitForTimeout(300);
    assert.ok(asked.length <= 3, asked.join('\n'));
    assert.ok(!page.url().includes(ticket), 'the ticket stays in the address');
    await visitor.close();
    assert.ok(context);
  },
  async 'usage counts all runs, and a run shows the standard error of its agent'({ page, show }) {
    const { runId } = await run('usage 10 5 0.5; say paid', 'Paid');
    await show('/usage');
    await textIn(page, '.totals', 'known cost');
    await textIn(page, '.breakdowns', 'Paid');
    await show(`/r/${runId}`);
    await page.click('.attempt button:has-text("Stderr")');
    await textIn(page, '.attempt .note', 'Nothing is kept');
  },
  async 'text of agents runs and loads nothing'({ page, show }) {
    const prompt = `say ${ATTACK} [x](javascript:alert(3)) ![i](https://evil.example/x.png) <iframe src="https://evil.example"></iframe> <svg onload=alert(4)>\ntool echo {"x":"${'<img src=x onerror=alert(5)>'}"}`;
    const { sessionId } = await run(prompt, `">${ATTACK}`);
    for (const hash of ['/', `/s/${sessionId}`, `/s/${sessionId}/tree`, `/s/${sessionId}/changes`, '/usage']) {
      await show(hash);
      await page.waitForTimeout(300);
    }
    assert.equal(await page.locator('main img, main iframe, main script, main svg[onload]').count(), 0);
  },
  async 'a viewer has no buttons that would be refused'({ show, page: member }) {
    await member.close();
    const { sessionId } = await run('approve Shall I?; say ok', 'Viewed', 5);
    const { secret } = await api('POST', '/v1/keys', { name: 'viewer', role: 'viewer' });
    const { page, faults, show: showAs, context } = await signedIn(secret);
    await showAs(`/s/${sessionId}`);
    await page.waitForSelector('.wait');
    assert.equal(await page.locator('.composer, .wait button.primary, .strip button').count(), 0);
    assert.deepEqual(faults, []);
    await context.close();
  },
  async 'axe finds nothing, also at the width of a phone'({ page, show }) {
    const { sessionId, runId } = await run('say **hi**; tool add {"a":1,"b":2}; say done', 'Axe');
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 800 });
      for (const hash of ['/', '/inbox', `/s/${sessionId}`, `/s/${sessionId}/tree`, `/s/${sessionId}/changes`, `/s/${sessionId}/runs`, `/r/${runId}`, '/agents', '/usage', '/settings']) {
        await show(hash);
        await page.waitForTimeout(700);
        await page.evaluate(AXE);
        const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
        assert.deepEqual(violations.map(v => `${v.id}: ${v.nodes[0].html}`), [], `${hash} at ${width}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${hash} is ${wide} wide at ${width}`);
      }
    }
  },
};

/** Ends the server as a crash does, and starts it again on the same address. */
async function restartServer() {
  const { SERVER_PID, SERVER_PID_FILE, SERVER_LOG, MAINSPRING } = process.env;
  process.kill(Number(SERVER_PID), 'SIGKILL');
  const started = spawn(MAINSPRING, ['serve', '--listen', new URL(SERVER_URL).host], { stdio: ['ignore', 'ignore', openSync(SERVER_LOG, 'a')], detached: true });
  started.unref();
  writeFileSync(SERVER_PID_FILE, String(started.pid));
  for (;;) {
    try {
      if ((await fetch(`${SERVER_URL}/health`)).ok) return;
    } catch { /* not yet */ }
    await new Promise(resolve => setTimeout(resolve, 50));
  }
}

if (process.env.SERVER_PID) {
  TESTS['a crash of the server in the middle of a stream leaves each stored byte shown once'] = async ({ page, faults, show }) => {
    const streaming = await run('stream 3000 every 3ms ab€', 'Crash', 0);
    await show(`/s/${streaming.sessionId}`);
    await page.waitForFunction(() => (document.querySelector('.streaming')?.textContent.length || 0) > 600);
    await restartServer();
    const { status, finalText } = await api('GET', `/v1/runs/${streaming.runId}`);
    assert.equal(status, 'orphaned');
    await page.waitForSelector('.strip button:has-text("Retry")');
    await page.waitForSelector('.streaming', { state: 'detached' });
    const shown = (await page.textContent('.message.assistant .markdown')).replace(/\s+/g, ' ').trim();
    assert.equal(shown, finalText.replace(/\s+/g, ' ').trim());
    // The browser logs the connections that were refused meanwhile.
    faults.splice(0, faults.length, ...faults.filter(fault => !/net::ERR_/.test(fault)));
  };
}

let failed = 0;
for (const [name, test] of Object.entries(TESTS).filter(([name]) => name.includes(process.argv[2] || ''))) {
  const visitor = await signedIn();
  try {
    await test(visitor);
    assert.deepEqual(visitor.faults, []);
    console.log(`ok   ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}\n${error.stack}`);
  }
  await visitor.context.close();
}
await browser.close();
process.exit(failed ? 1 : 0);
