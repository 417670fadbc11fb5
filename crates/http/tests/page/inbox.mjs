// The inbox: what waits for a person, and being told about it.
import assert from 'node:assert/strict';
import { api, run, settled, signedIn, textIn, until } from './kit.mjs';

/** A run of an ACP agent that asks whether it may change a file. */
const editing = (path, title) => run(`ask edit ${path}; say after`, title, 10, { adapter: 'agent' });
const entryOf = (page, title) => page.locator('.entry:not(.done)', { hasText: title });

export default {
  async 'the inbox is worked by keys'({ page, show }) {
    await run('approve Really delete it?; say ok', 'Deny me', 5);
    await show('/inbox');
    await page.waitForSelector('text=Really delete it?');
    // The newest wait is the last one.
    const count = await page.locator('.entry:not(.done)').count();
    for (let i = 0; i < count; i++) await page.keyboard.press('j');
    await page.keyboard.press('d');
    await page.waitForSelector('.answer-text input:focus');
    await page.keyboard.type('not now');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => [...document.querySelectorAll('.entry.done')].some(e => /Really delete it\?.*Denied by/s.test(e.textContent)));
  },
  async 'keys do not act on what a dialog covers'({ page, show }) {
    const { runId } = await run('approve Covered?; say ok', 'Covered', 5);
    await show('/inbox');
    await page.waitForSelector('text=Covered?');
    await page.keyboard.press('?');
    await page.waitForSelector('dialog[open]');
    for (const key of ['a', 'd', 'j', 'n']) await page.keyboard.press(key);
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog[open]', { state: 'detached' });
    await settled(page);
    assert.equal((await api('GET', `/v1/runs/${runId}`)).status, 'waiting_approval');
    assert.equal(await page.locator('dialog[open]').count(), 0);
  },
  async 'keys that follow each other at once act on the entry that they have reached'({ page, show }) {
    const waits = [];
    for (const name of ['one', 'two', 'three']) waits.push(await run(`approve Key ${name}?; say ok`, `Keys ${name}`, 5));
    await show('/inbox');
    await page.waitForSelector('text=Key three?');
    const at = (await page.locator('.entry:not(.done)').allTextContents()).findIndex(text => text.includes('Key two?'));
    // All of them before anything is drawn.
    await page.evaluate(keys => { for (const key of keys) document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true })); }, [...'j'.repeat(at), 'a']);
    await page.waitForFunction(() => [...document.querySelectorAll('.entry.done')].some(e => /Key two\?.*Allowed by/s.test(e.textContent)));
    for (const other of [waits[0], waits[2]]) assert.equal((await api('GET', `/v1/runs/${other.runId}`)).status, 'waiting_approval');
  },
  async 'a change is read as a diff and approved in the inbox'({ page, show }) {
    const { runId, status } = await editing('/repo/notes.md', 'Change notes');
    assert.equal(status, 'waiting_approval');
    await show('/inbox');
    const entry = entryOf(page, 'Change notes');
    await entry.waitFor();
    assert.match(await entry.locator('.diff summary').textContent(), /\/repo\/notes\.md.*\+1.*−1/s);
    assert.equal(await entry.locator('.row.del code').textContent(), 'old');
    assert.equal(await entry.locator('.row.add code').textContent(), 'new');
    await entry.getByRole('button', { name: 'Side by side' }).click();
    assert.equal(await entry.locator('.pair .row.add code').textContent(), 'new');
    await entry.getByRole('button', { name: 'Unified' }).click();
    // The answers are those that the agent offers: ACP carries no reason.
    assert.equal(await entry.getByRole('button', { name: 'Allow for this session' }).count(), 1);
    await entry.getByRole('button', { name: 'Allow once' }).click();
    await page.waitForFunction(() => [...document.querySelectorAll('.entry.done')].some(e => /Change notes.*Allowed by/s.test(e.textContent)));
    const ended = await until(async () => { const now = await api('GET', `/v1/runs/${runId}`); return now.status === 'succeeded' && now; });
    assert.match(ended.finalText, /"selected" "yes"/);
  },
  async 'an approval for the session is a grant, which is listed and revoked'({ page, show }) {
    const { sessionId } = await editing('/repo/granted.md', 'Grant me');
    await show('/inbox');
    await entryOf(page, 'Grant me').getByRole('button', { name: 'Allow for this session' }).click();
    await page.waitForFunction(() => [...document.querySelectorAll('.entry.done')].some(e => e.textContent.includes('Grant me')));
    await show('/settings');
    const grant = page.locator('.grants li', { hasText: 'Grant me' });
    await grant.first().waitFor();
    await grant.first().getByRole('button', { name: 'Revoke' }).click();
    await grant.getByRole('button', { name: 'Revoke' }).waitFor({ state: 'detached' });
    await page.click('.grants button:has-text("All")');
    await page.waitForFunction(() => [...document.querySelectorAll('.grants li.dim')].some(e => /Grant me.*revoked/s.test(e.textContent)));
    await page.click('.approvals summary');
    await page.waitForFunction(() => [...document.querySelectorAll('.approvals li')].some(e => /allowed.*granted\.md.*Grant me/s.test(e.textContent)));
    const { items } = await api('GET', `/v1/grants?session=${sessionId}&all=true`);
    assert.ok(items.some(item => item.revokedAtMs));
  },
  async 'a wait that is answered elsewhere greys out and says by whom'({ page, show }) {
    const { runId } = await run('approve Elsewhere?; say ok', 'Answered elsewhere', 5);
    await show('/inbox');
    await entryOf(page, 'Answered elsewhere').waitFor();
    const { wait } = await api('GET', `/v1/runs/${runId}`);
    await api('POST', `/v1/runs/${runId}/answer`, { waitId: wait.waitId, answer: { kind: 'approval', decision: 'allowed' } });
    await page.waitForFunction(() => [...document.querySelectorAll('.entry.done')].some(e => /Answered elsewhere.*Allowed by \S+ at \d/s.test(e.textContent)));
  },
  async 'a question is told by a notification and in the title, and both are withdrawn'({ page: unused }) {
    await unused.close();
    const { context, page, show } = await signedIn(undefined, { permissions: ['notifications'] });
    await context.addInitScript(() => {
      localStorage.setItem('mainspring.notifications', 'true');
      // A page of a headless browser is always in front.
      Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' });
      globalThis.told = [];
      globalThis.Notification = class extends Notification {
        constructor(title, options) { super(title, options); globalThis.told.push(`shown ${title}: ${options.body}`); }
        close() { super.close(); globalThis.told.push('closed'); }
      };
    });
    await show('/');
    await settled(page);
    const waiting = async () => Number(/^\((\d+)\)/.exec(await page.title())?.[1] || 0);
    const before = await waiting();
    const { runId } = await run('ask Milk?; say ok', 'Tell me', 5);
    await page.waitForFunction(() => globalThis.told.includes('shown Tell me: Milk?'));
    await until(async () => (await waiting()) === before + 1);
    const { wait } = await api('GET', `/v1/runs/${runId}`);
    await api('POST', `/v1/runs/${runId}/answer`, { waitId: wait.waitId, answer: { kind: 'input', input: 'yes' } });
    await page.waitForFunction(() => globalThis.told.at(-1) === 'closed');
    await until(async () => (await waiting()) === before);
    await context.close();
  },
};
