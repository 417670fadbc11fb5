// Accessibility, phones, and the keyboard.
import assert from 'node:assert/strict';
import { AXE, run, settled, textIn } from './kit.mjs';

async function checkAccessible(page, label) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  assert.deepEqual(violations.map(v => `${v.id}: ${v.nodes[0].html}`), [], label);
}

export default {
  async 'axe finds nothing, in both themes and at the width of a phone'({ page, show }) {
    const { sessionId, runId } = await run('say **hi**; tool add {"a":1,"b":2}; say done', 'Axe');
    await run('ask edit /repo/axe.md', 'Axe asks', 10, { adapter: 'agent' });
    for (const [width, scheme] of [[1280, 'light'], [1280, 'dark'], [390, 'light']]) {
      await page.setViewportSize({ width, height: 800 });
      await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
      for (const hash of ['/', '/inbox', `/s/${sessionId}`, `/s/${sessionId}/tree`, `/s/${sessionId}/changes`, `/s/${sessionId}/runs`, `/r/${runId}`, '/agents', '/usage', '/settings']) {
        await show(hash);
        await settled(page);
        await checkAccessible(page, `${hash} at ${width}, ${scheme}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${hash} is ${wide} wide at ${width}`);
      }
    }
  },
  async 'axe finds nothing in a plan and in the reasons of feedback'({ page, show }) {
    await page.emulateMedia({ reducedMotion: 'reduce' });
    const plan = { tasks: [{ title: 'Read', status: 'completed', conclusion: 'read' }, { title: 'Write', status: 'in_progress', subtasks: [{ title: 'Begin', done: true }] }] };
    const { sessionId, runId } = await run(`tool plan_update ${JSON.stringify(plan)}\nsay done`, 'Axe plans', 20, { adapter: 'native', options: { model: 'scripted/any' } });
    await show(`/s/${sessionId}`);
    await page.click('.plan-line > summary');
    await page.hover('.message.assistant >> nth=-1');
    await page.click('[aria-label="Bad answer"]');
    await page.click('.feedback button:has-text("Slow")');
    await settled(page);
    await checkAccessible(page, 'a plan and feedback');
    await show(`/r/${runId}`);
    await page.waitForSelector('.tasks');
    await settled(page);
    await checkAccessible(page, 'a plan of a run');
  },
  async 'axe finds nothing in dialogs'({ page, show }) {
    await show('/settings');
    await settled(page);
    for (const [open, name] of [[() => page.keyboard.press('?'), 'keys'], [() => page.keyboard.press('Control+k'), 'palette'], [() => page.keyboard.press('n'), 'new session'], [() => page.click('button:has-text("New webhook")'), 'new webhook']]) {
      await open();
      await page.waitForSelector('dialog[open]');
      await settled(page);
      await checkAccessible(page, name);
      await page.keyboard.press('Escape');
      await page.waitForSelector('dialog[open]', { state: 'detached' });
    }
  },
  async 'everything is reached by the keyboard alone'({ page, show }) {
    const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
    const question = `Which tea at ${Date.now()}?`;
    const isAt = hash => page.waitForFunction(wanted => location.hash === wanted, hash);
    await show('/');
    await page.waitForSelector('.nav');
    await settled(page);
    // A new session, with the agent chosen by the arrows.
    await press('n');
    await page.waitForSelector('dialog textarea:focus');
    await page.keyboard.type(`say by keys; ask ${question}; say thanks`);
    await press('Tab');
    for (let i = 0; i < 12 && !(await page.evaluate(() => document.activeElement.matches('input[value=script]'))); i++) await press('ArrowDown');
    assert.ok(await page.evaluate(() => document.querySelector('dialog input[value=script]').checked));
    await press('Control+Enter');
    // The question is answered in the inbox.
    await textIn(page, '.now .wait', question);
    const session = await page.evaluate(() => location.hash);
    await press('g', 'i');
    await isAt('#/inbox');
    await page.waitForSelector('.entry.current');
    for (let i = 0; i < 60 && !(await page.evaluate(text => document.querySelector('.entry.current').textContent.includes(text), question)); i++) await press('j');
    await press('a');
    await page.waitForSelector('.entry.current .answer-text textarea:focus');
    await page.keyboard.type('green');
    await press('Enter');
    await page.waitForFunction(text => [...document.querySelectorAll('.entry.done')].some(e => e.textContent.includes(text) && e.textContent.includes('Answered')), question);
    // Back to the session through the board: a card is focused and opened.
    await press('g', 'b');
    await isAt('#/');
    await page.waitForSelector('.board .card');
    for (let i = 0; i < 200; i++) {
      await press('j');
      if (await page.evaluate(id => document.activeElement.dataset.session === id, session.slice(4))) break;
    }
    await press('Enter');
    await isAt(session);
    await textIn(page, '.message.assistant:last-of-type', 'by keys');
    await textIn(page, '.strip', 'Done');
    await press('c');
    await page.waitForSelector('.composer textarea:focus');
    await page.keyboard.type('say written by keys');
    await press('Enter');
    await textIn(page, '.scroller', 'written by keys');
    await textIn(page, '.strip', 'Done');
    await press('Escape', 't');
    await isAt(`${session}/tree`);
    await page.waitForSelector('.graph-row');
    await press('j', 'Enter');
    await isAt(session);
    // The sheet lists the keys of the view that is shown when it is opened.
    await page.waitForSelector('.composer textarea');
    await press('?');
    await textIn(page, 'dialog', 'Write a prompt');
    await press('Escape');
    await page.waitForSelector('dialog[open]', { state: 'detached' });
    await press('Control+k');
    await page.waitForSelector('.palette input:focus');
    await page.keyboard.type('usage');
    await press('Enter');
    await isAt('#/usage');
    assert.equal(await page.locator('dialog[open]').count(), 0);
  },
  async 'at the width of a phone the count of the inbox leaves its icon visible'({ page, show }) {
    await page.setViewportSize({ width: 390, height: 844 });
    await run('ask Seen?', 'Counted', 5);
    await show('/');
    await page.waitForSelector('.nav .badge');
    const [icon, badge] = await Promise.all(['.nav li:has(.badge) .icon', '.nav .badge'].map(part => page.locator(part).boundingBox()));
    assert.ok(badge.x >= icon.x + icon.width / 2, `the icon begins at ${icon.x}, the count at ${badge.x}`);
  },
  async 'at the width of a phone a question is answered'({ page, show }) {
    await page.setViewportSize({ width: 390, height: 844 });
    const { sessionId } = await run('say a long line of text that has to be broken somewhere; ask On a phone?; say thanks', 'Phone', 5);
    await show(`/s/${sessionId}`);
    const field = page.locator('.now .wait textarea');
    await field.fill('yes');
    const button = page.locator('.now .wait button:has-text("Answer")');
    const box = await button.boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 390 && box.y + box.height <= 844, JSON.stringify(box));
    await button.click();
    await textIn(page, '.scroller', 'thanks');
    await page.locator('.back').click();
    await page.waitForSelector('.board');
  },
};
