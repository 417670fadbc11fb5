// Sessions: starting, answering, branching, stopping, retrying.
import assert from 'node:assert/strict';
import { api, run, settled, textIn, expectFaults } from './kit.mjs';

export default {
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
    await textIn(page, '.scroller .problem', 'the password is wrong');
    await page.click('.strip button:has-text("Retry")');
    await textIn(page, '.strip', 'attempt 2');
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
    expectFaults(faults, /status of 409/);
  },
  async 'progress, the stages of a stop and queued prompts are there after a reload'({ page, show }) {
    const { runId, sessionId } = await run('say working; progress 3 of 9 files; ignore-cancel; hang', 'Reloaded', 0);
    await api('POST', `/v1/sessions/${sessionId}/runs`, { prompt: 'say the prompt that waits' });
    await show(`/s/${sessionId}`);
    await textIn(page, '.now', '3 of 9 files');
    await textIn(page, '.queued', 'say the prompt that waits');
    await page.click('.queued button:has-text("Remove")');
    await page.waitForSelector('.queued', { state: 'detached' });
    await page.click('.strip button:has-text("Stop")');
    await page.waitForFunction(() => /requested.*stopped/.test(document.querySelector('.stages')?.textContent));
    const stages = await page.textContent('.stages');
    await page.reload();
    await page.waitForFunction(text => document.querySelector('.stages')?.textContent === text, stages);
    assert.equal((await api('GET', `/v1/runs/${runId}`)).status, 'cancelled');
  },
  async 'a prompt that another client queues is shown with its words'({ page, show }) {
    const { runId, sessionId } = await run('say working; hang', 'Queued elsewhere', 0);
    await show(`/s/${sessionId}`);
    await textIn(page, '.strip', 'Working');
    await api('POST', `/v1/sessions/${sessionId}/runs`, { prompt: 'say from elsewhere' });
    await textIn(page, '.queued', 'say from elsewhere');
    await api('POST', `/v1/runs/${runId}/cancel`, undefined, { Prefer: 'wait=10' });
    await textIn(page, '.scroller', 'from elsewhere');
    await textIn(page, '.strip', 'Done');
    assert.equal(await page.locator('.queued').count(), 0);
  },
  async 'a prompt that steers keeps its words after a reload, and joins the run'({ page, show }) {
    const { runId, sessionId } = await run('say first\nask May I go on?\nsay after', 'Steered', 10, { adapter: 'native', options: { model: 'scripted/any' } });
    await show(`/s/${sessionId}`);
    await textIn(page, '.strip', 'Asks');
    await page.click('.composer button:has-text("Steer")');
    await page.fill('.composer textarea', 'say steered');
    await page.click('.composer button:has-text("Send")');
    await textIn(page, '.queued', 'say steered');
    await page.reload();
    await page.waitForFunction(() => /steers.*say steered/.test(document.querySelector('.queued')?.textContent));
    const { wait } = await api('GET', `/v1/runs/${runId}`);
    await api('POST', `/v1/runs/${runId}/answer`, { waitId: wait.waitId, answer: { kind: 'input', input: 'yes' } });
    await page.waitForSelector('.queued', { state: 'detached' });
    await page.waitForFunction(() => [...document.querySelectorAll('.message.user .said')].some(said => said.textContent === 'say steered'));
    await textIn(page, '.strip', 'Done');
  },
  async 'files are chosen for a new session'({ page, show }) {
    await show('/');
    await page.waitForSelector('.nav');
    await page.keyboard.press('n');
    await page.check('dialog input[value=script]');
    await page.fill('dialog textarea', 'say with a file');
    await page.setInputFiles('dialog input[type=file]', { name: 'notes.txt', mimeType: 'text/plain', buffer: Buffer.from('some notes') });
    await textIn(page, 'dialog .chips', 'notes.txt');
    await page.click('dialog button:has-text("Start")');
    await textIn(page, '.message.user .attachment', 'notes.txt');
  },
  async 'a link to a message of another branch leads to the tree'({ page, show }) {
    const { sessionId } = await run('vary first branch | second branch', 'Linked branch');
    const { items: [prompt, left] } = await api('GET', `/v1/sessions/${sessionId}/messages?limit=10`);
    await api('POST', `/v1/sessions/${sessionId}/runs`, { place: { kind: 'regenerate', messageId: prompt.messageId } }, { Prefer: 'wait=10' });
    await show(`/s/${sessionId}/m/${left.messageId}`);
    await page.waitForFunction(id => location.hash.endsWith(`/tree/${id}`), left.messageId);
    await textIn(page, '.preview-text', 'first branch');
  },
};
