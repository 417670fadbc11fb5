// The board: what it shows first, what it calls sessions, and what it leaves out.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { api, client, expectFaults, run, settled, signedIn, textIn, until, withServer } from './kit.mjs';

const cardOf = (page, title) => page.locator('.card', { has: page.locator('.title', { hasText: title }) });

export default {
  async 'a page that is open for days keeps a bounded number of cards, and lines that are copies'({ page, show }) {
    await show('/');
    await settled(page);
    const kept = await page.evaluate(async () => {
      const { putCard, sessions, lineOf } = await import('/app/store.js');
      for (let i = 0; i < 1200; i++) putCard(`old-${i}`, { session: { sessionId: `old-${i}`, lastActivityAtMs: i, pinned: i === 0 }, run: { status: i === 1 ? 'running' : 'succeeded' } });
      const ids = [...sessions.value.keys()].filter(id => id.startsWith('old-'));
      const line = text => lineOf({ type: 'message.completed', payload: { message: { role: 'assistant', content: [{ type: 'text', text }] } } }).text;
      return { all: sessions.value.size, ids, long: line(`first\n${'x'.repeat(5000)}\n`), short: line('one\n**two**\n') };
    });
    assert.ok(kept.all <= 1000, String(kept.all));
    assert.deepEqual([...kept.ids.slice(0, 2), kept.ids.at(-1)], ['old-0', 'old-1', 'old-1199']);
    assert.ok(!kept.ids.includes('old-2'));
    assert.deepEqual([kept.long, kept.short], [`${'x'.repeat(200)}…`, 'two']);
  },
  async 'a card shows its last line without marks, and says that it is a fork'({ page, show }) {
    const title = `Marked at ${Date.now()}`;
    const { sessionId } = await run('say **Two** files: `deep_input` passes', title);
    const { items } = await api('GET', `/v1/sessions/${sessionId}/messages?limit=10`);
    await api('POST', `/v1/sessions/${sessionId}/fork`, { messageId: items.at(-1).messageId });
    await show('/');
    const cards = cardOf(page, title);
    await until(async () => await cards.count() === 2);
    assert.equal((await cards.locator('.line').allTextContents())[0], 'Two files: deep_input passes');
    assert.deepEqual((await cards.locator('.where').allTextContents()).sort(), ['fork · script', 'script']);
  },
  async 'sessions that could not be read are read again'({ page, faults, show }) {
    const title = `Read later ${Date.now()}`;
    await run('say hi', title);
    let refused = 0;
    await page.route('**/v1/sessions?*', async route => {
      if (refused++ >= 2) return route.fallback();
      return route.fulfill({ status: 503, json: { code: 'overloaded', detail: 'too many requests', retryable: true } });
    });
    await show('/');
    await cardOf(page, title).waitFor();
    assert.ok(refused > 2);
    expectFaults(faults, /503/);
  },
  async 'an empty board shows three commands, and runs the demo'({ page: unused }) {
    await unused.close();
    await withServer({}, async ({ url, token }) => {
      const { page, context, faults, show } = await signedIn(token, {}, url);
      await show('/usage');
      await textIn(page, '.empty', 'No runs in the last 30 days');
      await show('/');
      await textIn(page, '.empty', 'No sessions yet');
      assert.equal(await page.locator('.commands li').count(), 3);
      await page.click('text=Run the demo here');
      await textIn(page, '.session-title', 'Tour of mainspring');
      await textIn(page, '.now .wait', 'What shall I call you?');
      await page.fill('.now .wait textarea', 'Ada');
      await page.keyboard.press('Enter');
      await textIn(page, '.scroller', 'Nice to meet you');
      await show('/');
      await textIn(page, '.column.needs', 'Shall I pay 42.00 EUR?');
      await textIn(page, '.column.good', 'Tour of mainspring');
      const { items } = await client(url, token)('GET', '/v1/sessions');
      assert.equal(items.length, 3);
      assert.deepEqual(faults, []);
      await context.close();
    });
  },
  async 'an agent whose program does not exist is not called ready'({ page: unused }) {
    await unused.close();
    const config = join(mkdtempSync(join(tmpdir(), 'mainspring-config-')), 'mainspring.toml');
    writeFileSync(config, '[adapters.gone]\nkind = "acp"\ncommand = ["no-such-agent"]\n');
    await withServer({ MAINSPRING_CONFIG: config }, async ({ url, token }) => {
      const { page, context, show } = await signedIn(token, {}, url);
      await show('/agents');
      await textIn(page, '.agent-grid', 'there is no program "no-such-agent"');
      await page.keyboard.press('n');
      await page.waitForSelector('dialog .choice.chosen:has-text("script")');
      await context.close();
    });
    rmSync(dirname(config), { recursive: true });
  },
  async 'a filter that no session fits says so, and shows all again'({ page, show }) {
    await run('approve Still waiting?; say ok', 'Waits behind a filter', 5);
    await show('/');
    await cardOf(page, 'Waits behind a filter').waitFor();
    await page.fill('.field.search input', 'behind a filter');
    await textIn(page, '.column.busy', 'None matches the filter');
    await page.fill('.field.search input', 'no session has these words');
    await textIn(page, '.empty', 'No session matches the filter');
    assert.ok(!(await page.textContent('main')).includes('Nothing needs you'), 'somebody waits');
    await page.click('text=Show all sessions');
    await cardOf(page, 'Waits behind a filter').waitFor();
  },
  async 'a session without a title is called by its prompt while its first run works'({ page, show }) {
    const prompt = `say Counting sheep ${Date.now()}; hang`;
    const { sessionId } = await api('POST', '/v1/sessions', { new: true });
    const { runId } = await api('POST', `/v1/sessions/${sessionId}/runs`, { prompt });
    await show('/');
    await cardOf(page, prompt).waitFor();
    await textIn(page, '.recent', prompt);
    await show(`/s/${sessionId}`);
    await textIn(page, '.session-title h1', prompt);
    await api('POST', `/v1/runs/${runId}/cancel`, undefined, { Prefer: 'wait=10' });
  },
  async 'delegated work says for whom it is, and is folded when it is done'({ page, show }) {
    const title = `Delegates ${Date.now()}`;
    const parent = await run('say I delegate; hang', title, 0);
    await until(async () => (await api('GET', `/v1/runs/${parent.runId}`)).status === 'running');
    const words = `child of ${Date.now()}`;
    const delegated = await api('POST', `/v1/runs/${parent.runId}/delegations`, { objective: `say ${words}; approve May the child go on?`, mode: 'spawn' });
    const childRun = delegated.run.runId;
    await until(async () => (await api('GET', `/v1/runs/${childRun}`)).status === 'waiting_approval');
    await show('/');
    const child = page.locator('.column.needs .card', { hasText: words });
    await child.waitFor();
    assert.match(await child.locator('.where').textContent(), new RegExp(`for ${title}`));
    const { wait } = await api('GET', `/v1/runs/${childRun}`);
    await api('POST', `/v1/runs/${childRun}/answer`, { waitId: wait.waitId, answer: { kind: 'approval', decision: 'allowed' } });
    await child.waitFor({ state: 'detached' });
    await settled(page);
    assert.equal(await page.locator('.card', { hasText: words }).count(), 0);
    await page.click('.column.good button:has-text("delegated")');
    await page.locator('.column.good .card', { hasText: words }).waitFor();
    // The run that delegates shows its child with its cost.
    await show(`/r/${parent.runId}`);
    await page.waitForFunction(text => new RegExp(`${text}.*\\$0`, 's').test(document.querySelector('.tree-list')?.textContent), words);
    await api('POST', `/v1/runs/${parent.runId}/cancel`, undefined, { Prefer: 'wait=10' });
  },
};
