// Streams: each byte once, also after a reload and a crash of the server.
import assert from 'node:assert/strict';
import { api, expectFaults, killServer, run, startServer, textIn } from './kit.mjs';

const words = text => text.replace(/\s+/g, ' ').trim();
const shownText = async page => words(await page.textContent('.message.assistant .markdown'));

const TESTS = {
  async 'a stream is shown whole after a reload in its middle'({ page, show }) {
    const streaming = await run('stream 1800 every 4ms ab€', 'Stream', 0);
    await show(`/s/${streaming.sessionId}`);
    await page.waitForSelector('.streaming', { state: 'attached' });
    await page.reload();
    await textIn(page, '.strip', 'Done');
    const { finalText } = await api('GET', `/v1/runs/${streaming.runId}`);
    assert.equal(await shownText(page), words(finalText));
  },
  async 'while a stream goes on, no byte is shown twice in any tab'({ page, context, show }) {
    const streaming = await run('stream 1800 every 4ms 1€', 'Twice', 0);
    const other = await context.newPage();
    await show(`/s/${streaming.sessionId}`);
    await page.waitForSelector('.streaming', { state: 'attached' });
    await show(`/s/${streaming.sessionId}`, other);
    for (const tab of [page, other]) {
      await textIn(tab, '.strip', 'Done');
      const { finalText } = await api('GET', `/v1/runs/${streaming.runId}`);
      assert.equal(await shownText(tab), words(finalText));
    }
    await other.close();
  },
};

if (process.env.SERVER_PID) {
  TESTS['a crash of the server in the middle of a stream leaves each stored byte shown once, also in a tab that opens later'] = async ({ page, context, faults, show }) => {
    const streaming = await run('stream 3000 every 3ms ab€', 'Crash', 0);
    await show(`/s/${streaming.sessionId}`);
    await page.waitForFunction(() => (document.querySelector('.streaming')?.textContent.length || 0) > 600);
    killServer();
    // The page says since when, and keeps what it has.
    await page.waitForFunction(() => /No connection since \d/.test(document.querySelector('.banner')?.textContent));
    assert.ok((await page.textContent('.message.assistant')).length > 600);
    await startServer();
    const { status, finalText } = await api('GET', `/v1/runs/${streaming.runId}`);
    assert.equal(status, 'orphaned');
    await page.waitForSelector('.strip button:has-text("Retry")');
    await page.waitForSelector('.streaming', { state: 'detached' });
    assert.equal(await shownText(page), words(finalText));
    await page.waitForSelector('.banner', { state: 'detached' });
    // The streams of all tabs were resumed; a new tab has read nothing yet.
    const other = await context.newPage();
    await show(`/s/${streaming.sessionId}`, other);
    await other.waitForSelector('.strip button:has-text("Retry")');
    assert.equal(await shownText(other), words(finalText));
    await show('/', other);
    await other.locator(`.board .card[data-session="${streaming.sessionId}"]`).waitFor();
    await other.close();
    // The browser logs the connections that were refused meanwhile.
    expectFaults(faults, /net::ERR_/);
  };
}

export default TESTS;
