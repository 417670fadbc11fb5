// Signing in: by ticket, by `mainspring open`, at an identity provider; and out.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { BROWSER_ARGS, CHROMIUM, MAINSPRING, PAGE_URL, api, browser, chromium, expectFaults, isGroupRunning, listen, run, settled, textIn, until, watched, withServer } from './kit.mjs';

/** An identity provider that signs everybody in as `ada`. Answers its address and what it was asked. */
async function identityProvider() {
  const { privateKey, publicKey } = generateKeyPairSync('ed25519');
  const encode = value => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');
  const asked = [];
  const codes = new Map();
  const address = await listen((request, body, response) => {
    const url = new URL(request.url, address);
    const json = (value, status = 200) => response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
    if (url.pathname === '/.well-known/openid-configuration') json({ issuer: address, jwks_uri: `${address}/keys`, authorization_endpoint: `${address}/authorize`, token_endpoint: `${address}/token` });
    else if (url.pathname === '/keys') json({ keys: [{ ...publicKey.export({ format: 'jwk' }), kid: 'one', alg: 'EdDSA' }] });
    else if (url.pathname === '/authorize') {
      const question = Object.fromEntries(url.searchParams);
      asked.push(question);
      codes.set(`code-${asked.length}`, question);
      const back = new URL(question.redirect_uri);
      back.searchParams.set('code', `code-${asked.length}`);
      back.searchParams.set('state', question.state);
      response.writeHead(302, { location: back.href }).end();
    } else {
      const form = Object.fromEntries(new URLSearchParams(body));
      const question = codes.get(form.code);
      codes.delete(form.code);
      const challenge = createHash('sha256').update(form.code_verifier).digest('base64url');
      if (!question || question.code_challenge !== challenge || form.redirect_uri !== question.redirect_uri) { json({ error: 'invalid_grant' }, 400); return; }
      const now = Math.floor(Date.now() / 1000);
      const signed = `${encode({ alg: 'EdDSA', kid: 'one' })}.${encode({ iss: address, aud: 'page-client', sub: 'ada', org: 'acme', iat: now, exp: now + 600, nonce: question.nonce })}`;
      json({ id_token: `${signed}.${sign(null, Buffer.from(signed), privateKey).toString('base64url')}` });
    }
  });
  return { address, asked };
}

export default {
  async 'the board takes at most three requests for its sessions, and a ticket signs in'({ page: signed }) {
    await signed.close();
    await run('say on the board', 'On the board');
    const visitor = await browser.newContext();
    const page = await visitor.newPage();
    const asked = [];
    page.on('request', request => /\/v1\/(sessions|runs|waits)/.test(request.url()) && asked.push(request.url()));
    const { ticket } = await api('POST', '/v1/tickets');
    await page.goto(`${PAGE_URL}/#ticket=${ticket}`);
    await page.waitForSelector('.board .card');
    await settled(page);
    assert.ok(asked.length >= 1 && asked.length <= 3, asked.join('\n'));
    assert.ok(!page.url().includes(ticket), 'the ticket stays in the address');
    await visitor.close();
  },
  async 'a revoked key signs the browser out and ends its streams'({ page: signed }) {
    await signed.close();
    const { page, faults, context } = await watched(await browser.newContext());
    const { ticket } = await api('POST', '/v1/tickets');
    await page.goto(`${PAGE_URL}/#ticket=${ticket}`);
    await textIn(page, '.connection', 'Live');
    const { items } = await api('GET', '/v1/keys?limit=100');
    const key = items.filter(item => item.name === 'page' && !item.revokedAtMs).sort((a, b) => b.createdAtMs - a.createdAtMs)[0];
    await api('DELETE', `/v1/keys/${key.keyId}`);
    await textIn(page, '.sign-in', 'You were signed out');
    expectFaults(faults, /status of 401/);
    assert.deepEqual(faults, []);
    await context.close();
  },
  async 'the program opens the page in a browser, signed in'({ page: unused }) {
    await unused.close();
    await withServer({}, async ({ folder, env, url }) => {
      // The desktop's command starts a real browser with the file that it is given.
      const bin = join(folder, 'bin');
      const profile = join(folder, 'profile');
      mkdirSync(bin);
      const script = `#!/bin/sh\necho $$ > ${folder}/pid\nexec ${CHROMIUM} --headless ${BROWSER_ARGS.join(' ')} --remote-debugging-port=0 --user-data-dir=${profile} "$1" >/dev/null 2>&1\n`;
      writeFileSync(join(bin, 'xdg-open'), script);
      chmodSync(join(bin, 'xdg-open'), 0o700);
      const program = spawn(MAINSPRING, ['open'], { env: { ...env, PATH: `${bin}:${process.env.PATH}`, DISPLAY: ':0' }, stdio: ['ignore', 'pipe', 'pipe'] });
      let printed = '';
      program.stderr.on('data', part => { printed += part; });
      await until(() => program.exitCode !== null);
      assert.equal(program.exitCode, 0, printed);
      const port = await until(() => existsSync(join(profile, 'DevToolsActivePort')) && readFileSync(join(profile, 'DevToolsActivePort'), 'utf8').split('\n')[0]);
      const opened = await chromium.connectOverCDP(`http://127.0.0.1:${port}`);
      try {
        const page = await until(() => opened.contexts()[0].pages().find(one => one.url().startsWith(url)));
        await textIn(page, '.connection', 'Live');
        assert.equal(page.url(), `${url}/#/`);
      } finally {
        const session = await opened.newBrowserCDPSession();
        await session.send('Browser.close').catch(() => {});
        // The browser's processes write its profile until they end, so the folder cannot be removed before.
        const group = readFileSync(join(folder, 'pid'), 'utf8').trim();
        await until(() => !isGroupRunning(group));
      }
    });
  },
  async 'a person signs in at the identity provider, and an answer that was not asked for is refused'({ page: unused }) {
    await unused.close();
    const provider = await identityProvider();
    await withServer({ MAINSPRING_OIDC_ISSUER: provider.address, MAINSPRING_OIDC_CLIENT_ID: 'page-client' }, async ({ url }) => {
      const { page, context, faults } = await watched(await browser.newContext(), url);
      await page.goto(`${url}/#/settings`);
      await page.click('.provider button');
      await textIn(page, '.settings', 'As ada (member), at the identity provider');
      assert.equal(page.url(), `${url}/#/settings`);
      const [question] = provider.asked;
      assert.equal(question.redirect_uri, `${url}/`);
      assert.equal(question.code_challenge_method, 'S256');
      // A link of somebody else, with a code of their own.
      const other = await context.browser().newContext();
      const victim = await other.newPage();
      await victim.goto(`${url}/?code=code-9&state=other`);
      await textIn(victim, '.sign-in', 'has not asked');
      await other.close();
      expectFaults(faults, new RegExp(`request to ${provider.address}`));
      assert.deepEqual(faults, []);
      await context.close();
    });
  },
  async 'signing out in one tab signs out the others'({ page: unused }) {
    await unused.close();
    const { page, faults, context } = await watched(await browser.newContext());
    const { ticket } = await api('POST', '/v1/tickets');
    await page.goto(`${PAGE_URL}/#ticket=${ticket}`);
    await textIn(page, '.connection', 'Live');
    const other = await context.newPage();
    await other.goto(`${PAGE_URL}/#/inbox`);
    await textIn(other, '.connection', 'Live');
    await page.goto(`${PAGE_URL}/#/settings`);
    await page.click('button:has-text("Sign out")');
    for (const tab of [page, other]) await tab.waitForSelector('.sign-in form');
    expectFaults(faults, /status of 401/);
    assert.deepEqual(faults, []);
    await context.close();
  },
};
