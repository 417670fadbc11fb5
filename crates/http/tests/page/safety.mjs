// Text of agents is hostile, and a viewer changes nothing.
import assert from 'node:assert/strict';
import { api, expectFaults, run, settled, signedIn, textIn } from './kit.mjs';

const ATTACK = '<img src=x onerror=alert(1)><script>alert(2)</script>';
const MARKDOWN = [
  ATTACK, '[a](javascript:alert(3))', '[b](JaVaScRiPt:alert(3))', '[c](data:text/html,<script>alert(3)</script>)', '[d](vbscript:x)', '<a href="javascript:alert(3)">e</a>',
  '![i](https://evil.example/x.png)', '<iframe src="https://evil.example"></iframe>', '<svg onload=alert(4)>', '<style>body{display:none}</style>', '[f](/v1/keys)', '[g](https://ok.example/)',
].join(' ');

export default {
  async 'text of agents runs and loads nothing'({ page, faults, show }) {
    const prompt = `say ${MARKDOWN.replace(/;/g, '\\;')}\ntool echo {"x":"<img src=x onerror=alert(5)>"}`;
    const { sessionId, runId } = await run(prompt, `">${ATTACK}`);
    await api('POST', `/v1/sessions/${sessionId}/artifacts?name=${encodeURIComponent(`${ATTACK}.txt`)}&role=input`, 'text', { 'Content-Type': 'text/plain' });
    const asking = await run(`ask edit /repo/${ATTACK.replace(/;/g, '')}`, `Asks ${ATTACK}`, 10, { adapter: 'agent' });
    await run(`ask ${ATTACK}?`, 'Attack', 5);
    const hashes = ['/', '/inbox', `/s/${sessionId}`, `/s/${sessionId}/tree`, `/s/${sessionId}/changes`, `/s/${sessionId}/runs`, `/r/${runId}`, `/s/${asking.sessionId}`, `/r/${asking.runId}`, '/usage', '/settings'];
    for (const hash of hashes) {
      await show(hash);
      await settled(page);
      for (const fold of await page.locator('main details:not([open]) > summary').all()) await fold.click().catch(() => {});
      await settled(page);
      const made = await page.locator('main img, main iframe, main script, main style, main [onerror], main [onload]').count();
      assert.equal(made, 0, hash);
      const links = await page.locator('.markdown a').evaluateAll(all => all.map(a => a.getAttribute('href')));
      for (const link of links) assert.match(link, /^https:\/\/(ok|evil)\.example\//, hash);
    }
    assert.ok((await page.locator('body').evaluate(body => getComputedStyle(body).display)) !== 'none');
    // The attacks are shown as the text that they are.
    await show(`/s/${sessionId}`);
    await textIn(page, '.message.assistant', 'onerror=alert(1)');
    // A forbidden request would be noticed: the policy forbids it, and the browser says so.
    await page.evaluate(() => { const script = document.createElement('script'); script.textContent = 'globalThis.ran = true'; document.body.append(script); });
    assert.equal(await page.evaluate(() => globalThis.ran), undefined);
    assert.ok(faults.some(fault => /Content Security Policy/.test(fault)), faults.join('\n'));
    expectFaults(faults, /inline script.*Content Security Policy|Content Security Policy.*inline script/s);
  },
  async 'a text that nests thousands of blocks is shown, and the page goes on'({ page, show }) {
    for (const deep of ['>'.repeat(9000), '- '.repeat(5000), '['.repeat(9000)]) {
      const { sessionId } = await run(`say ${deep} THE END`, 'Deep');
      await show(`/s/${sessionId}`);
      await textIn(page, '.message.assistant .markdown', 'THE END');
      await page.waitForSelector('.strip');
    }
  },
  async 'thousands of marks of emphasis take a bounded number of steps'({ page, show }) {
    await show('/');
    await settled(page);
    const texts = [['*a ', ' b*'], ['**a* ', ''], ['_*a ', ''], ['*_', ''], ['*a **b ', ' c** d*'], ['~~a ', ' b~~']].map(([open, close]) => open.repeat(1300) + close.repeat(1300));
    const made = await page.evaluate(async all => {
      const [{ fragment }, { Tokenizer }] = await Promise.all([import('/app/elements.js'), import('/vendor/marked.js')]);
      let scanned = 0;
      const { emStrong } = Tokenizer.prototype;
      Tokenizer.prototype.emStrong = function counted(source, ...rest) {
        if (/^[*_]/.test(source)) scanned += source.length;
        return emStrong.call(this, source, ...rest);
      };
      const depthOf = node => 1 + Math.max(0, ...[...node.children].map(depthOf));
      const answers = all.map(text => {
        scanned = 0;
        const nodes = fragment(text);
        return { scanned, depth: depthOf(nodes), letters: nodes.textContent.replace(/[^a-z]/g, '').length };
      });
      Tokenizer.prototype.emStrong = emStrong;
      return answers;
    }, texts);
    for (const [i, { scanned, depth, letters }] of made.entries()) {
      const text = texts[i];
      assert.ok(scanned < 1.1e6, `${text.slice(0, 12)}: ${scanned} characters scanned`);
      assert.ok(depth < 25, `${text.slice(0, 12)}: ${depth} elements deep`);
      assert.equal(letters, text.replace(/[^a-z]/g, '').length, text.slice(0, 12));
    }
  },
  async 'an artifact with a hostile name is listed and previewed as text'({ page, show }) {
    const { runId, sessionId } = await run('say has an artifact', 'Artifact');
    const name = `${ATTACK}.txt`;
    const made = await api('POST', `/v1/sessions/${sessionId}/artifacts?name=${encodeURIComponent(name)}&role=output&run=${runId}`, ATTACK, { 'Content-Type': 'text/plain' }).catch(() => null);
    // Artifacts of a run come from its agent: the list is answered by the test.
    const artifact = made || { artifactId: 'art_0', kind: 'file', role: 'output', mimeType: 'text/html', sizeBytes: 5, name };
    await page.route(`**/v1/runs/${runId}/artifacts*`, route => route.fulfill({ json: { items: [{ ...artifact, name, mimeType: 'text/html', role: 'output' }] } }));
    await page.route('**/v1/artifacts/*/content', route => route.fulfill({ body: ATTACK, contentType: 'text/html' }));
    await show(`/r/${runId}`);
    await textIn(page, '.artifact', name);
    await page.click('.artifact button:has-text("Preview")');
    await textIn(page, '.artifact pre', ATTACK);
    assert.equal(await page.locator('main img, main script').count(), 0);
  },
  async 'a viewer has no buttons that would be refused'({ page: member }) {
    await member.close();
    const { sessionId } = await run('approve Shall I?; say ok', 'Viewed', 5);
    const { secret } = await api('POST', '/v1/keys', { name: 'viewer', role: 'viewer' });
    const { page, faults, show, context } = await signedIn(secret);
    await show(`/s/${sessionId}`);
    await page.waitForSelector('.wait');
    assert.equal(await page.locator('.composer, .wait button.primary, .strip button').count(), 0);
    await show('/settings');
    await settled(page);
    assert.equal(await page.locator('.webhooks button:has-text("New"), .grants button:has-text("Revoke"), section:has-text("Keys") button:has-text("New key")').count(), 0);
    // The metrics tell about every owner.
    assert.equal(await page.locator('main summary:has-text("Metrics")').count(), 0);
    for (const fold of await page.locator('main summary').all()) await fold.click();
    await show('/agents');
    await settled(page);
    assert.equal(await page.locator('main button').count(), 0);
    assert.deepEqual(faults, []);
    await context.close();
  },
};
