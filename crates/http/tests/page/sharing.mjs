// Sessions that somebody else has shared: they are read, and go on in a fork.
import assert from 'node:assert/strict';
import { SERVER_URL, api, client, settled, signedIn, textIn } from './kit.mjs';

const keyOf = async ownerId => (await api('POST', '/v1/keys', { name: ownerId, ownerId, orgId: 'page-org', role: 'member' })).secret;

export default {
  async 'a session of somebody else offers nothing that would be refused, and is forked'({ page: unused }) {
    await unused.close();
    const [ada, bob] = [await keyOf('page-ada'), await keyOf('page-bob')];
    const asAda = client(SERVER_URL, ada);
    const { sessionId, runId } = await asAda('POST', '/v1/runs', { prompt: 'say shared words; approve May I?; say ok', session: { title: 'Shared', visibility: 'org' } }, { Prefer: 'wait=10' });
    const { page, show, faults, context } = await signedIn(bob);
    await show('/');
    await page.click('summary:has-text("Shared in page-org")');
    const row = page.locator(`.older a[href="#/s/${sessionId}"]`);
    assert.match(await row.textContent(), /Shared.*of page-ada/s);
    await row.click();
    await page.waitForFunction(id => location.hash === `#/s/${id}`, sessionId);
    await textIn(page, '.scroller', 'shared words');
    await textIn(page, '.now .wait', 'Its owner may answer');
    await textIn(page, '.below', 'This session belongs to page-ada');
    await settled(page);
    assert.equal(await page.locator('.composer textarea, .wait button, .strip button').count(), 0);
    await page.click('[aria-label="Actions of the session"]');
    const items = await page.locator('[role=menuitem]').allTextContents();
    assert.deepEqual(items, ['Pin', 'Copy link', 'Copy id', 'Export']);
    await page.keyboard.press('Escape');
    // Keys do nothing that buttons do not.
    await page.keyboard.press('s');
    await show(`/r/${runId}`);
    await textIn(page, '.facts', 'Asks for approval');
    assert.equal(await page.locator('.view-head button, .answers button').count(), 0);
    assert.equal((await asAda('GET', `/v1/runs/${runId}`)).status, 'waiting_approval');
    // Its owner answers, and the reader goes on in a fork.
    const { wait } = await asAda('GET', `/v1/runs/${runId}`);
    await asAda('POST', `/v1/runs/${runId}/answer`, { waitId: wait.waitId, answer: { kind: 'approval', decision: 'allowed' } }, { Prefer: 'wait=10' });
    await show(`/s/${sessionId}`);
    await textIn(page, '.strip', 'Done');
    assert.equal(await page.locator('[aria-label="Answer again"], [aria-label="Edit and send again"]').count(), 0);
    await page.click('.below button:has-text("Fork")');
    await page.waitForFunction(id => location.hash.startsWith('#/s/') && !location.hash.includes(id), sessionId);
    await page.fill('.composer textarea', 'say in my fork');
    await page.click('.composer button:has-text("Send")');
    await textIn(page, '.strip', 'Done');
    await textIn(page, '.scroller', 'in my fork');
    assert.deepEqual(faults, []);
    await context.close();
  },
};
