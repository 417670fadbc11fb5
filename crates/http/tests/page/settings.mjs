// Settings: webhooks with their deliveries, and keys.
import assert from 'node:assert/strict';
import { api, listen, run, textIn, until } from './kit.mjs';

export default {
  async 'a webhook is added, tested, its dead letter is sent again, and it is removed'({ page, show }) {
    const received = [];
    const answers = [200, 400];
    const url = `${await listen((request, body, response) => {
      received.push({ event: JSON.parse(body), signature: request.headers['mainspring-signature'] });
      response.writeHead(answers.shift() || 200).end();
    })}/hook`;
    await show('/settings');
    await page.click('.webhooks button:has-text("New webhook")');
    await page.fill('dialog input[name=url]', url);
    await page.selectOption('dialog select[name=choice]', 'own');
    await page.fill('dialog input[name=types]', 'run.failed');
    await page.click('dialog button:has-text("Add")');
    await page.waitForFunction(() => /^whsec_/.test(document.querySelector('dialog pre code')?.textContent));
    await page.click('dialog button:has-text("Done")');
    const hook = page.locator('.webhook', { hasText: url });
    await hook.getByRole('button', { name: 'Test' }).click();
    await textIn(page, '.toasts', 'The test event was delivered');
    assert.equal(received[0].event.type, 'webhook.test');
    assert.match(received[0].signature, /^v1=[0-9a-f]{64}$/);
    // The next event is refused for good.
    const { runId } = await run('fail for the webhook', 'Webhook');
    await until(() => received.length === 2);
    await until(async () => (await api('GET', '/v1/webhooks')).items.some(item => item.url === url && item.lastError));
    await page.reload();
    await hook.getByText('the receiver answers 400').waitFor();
    await hook.getByRole('button', { name: 'Not delivered' }).click();
    await hook.getByText('run.failed').nth(1).waitFor();
    await hook.getByRole('button', { name: 'Send again' }).click();
    await hook.getByText('Every event was delivered').waitFor();
    assert.equal(received[2].event.runId, runId);
    await hook.getByRole('button', { name: 'Remove' }).click();
    await page.click('dialog button:has-text("Remove")');
    await hook.waitFor({ state: 'detached' });
    assert.equal((await api('GET', '/v1/webhooks')).items.filter(item => item.url === url).length, 0);
  },
  async 'a key is revoked only when that is confirmed'({ page, show }) {
    const name = `revoke-${Date.now()}`;
    await api('POST', '/v1/keys', { name, role: 'viewer' });
    const isRevoked = async () => (await api('GET', '/v1/keys?limit=100')).items.some(key => key.name === name && key.revokedAtMs);
    await show('/settings');
    const row = page.locator('tr', { hasText: name });
    await row.getByRole('button', { name: 'Revoke' }).click();
    await row.getByRole('button', { name: 'Revoke it for good' }).waitFor();
    assert.equal(await isRevoked(), false);
    await row.getByRole('button', { name: 'Revoke it for good' }).click();
    await row.getByText('revoked').waitFor();
    assert.equal(await isRevoked(), true);
  },
};
