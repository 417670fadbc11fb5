// The pictures in the README: a board, a session that asks, and the board on a phone.
//
//   run readme FOLDER     (see `run`)
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { browser, client, settled, signedIn, until, withServer } from './kit.mjs';
import { STORIES } from './readme_agent.mjs';

const folder = process.argv[2];
const AGENT = fileURLToPath(new URL('./readme_agent.mjs', import.meta.url));

/** Sends the prompts of the stories, and waits until each has come to its end or to the point where it stays. */
async function seed(api, cwd) {
  let asking;
  for (const { agent, title, prompt, open, steps } of STORIES) {
    const { runId, sessionId } = await api('POST', '/v1/runs', { prompt, adapter: agent, session: { title }, options: { cwd } });
    const asks = steps.some(step => step.ask);
    await until(async () => {
      const run = await api('GET', `/v1/runs/${runId}`);
      if (!open) return run.completedAtMs;
      if (asks) return run.wait;
      return (await api('GET', `/v1/runs/${runId}/events?limit=100`)).items.filter(event => event.type === 'tool.started').length === steps.filter(step => step.call).length;
    });
    if (asks) asking = sessionId;
  }
  return asking;
}

async function take(server, name, viewport, colorScheme, hash) {
  const { page, context, show } = await signedIn(server.token, { viewport, colorScheme, ...(viewport.width < 500 ? { hasTouch: true, isMobile: true } : {}) }, server.url);
  await show(hash);
  await settled(page);
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await context.close();
}

mkdirSync(folder, { recursive: true });
const temporary = mkdtempSync(join(tmpdir(), 'mainspring-readme-'));
const config = join(temporary, 'mainspring.toml');
writeFileSync(config, [...new Set(STORIES.map(story => story.agent))].map(agent => `[adapters.${agent}]\nkind = "acp"\ncommand = ["${process.execPath}", "${AGENT}"]\n`).join('\n'));
await withServer({ MAINSPRING_CONFIG: config }, async server => {
  const cwd = join(server.folder, 'projects', 'shop');
  mkdirSync(cwd, { recursive: true });
  const asking = await seed(client(server.url, server.token), cwd);
  await take(server, 'board', { width: 1440, height: 700 }, 'dark', '/');
  await take(server, 'session', { width: 1280, height: 1050 }, 'light', `/s/${asking}`);
  await take(server, 'phone', { width: 390, height: 800 }, 'dark', '/');
});
rmSync(temporary, { recursive: true });
await browser.close();
process.exit(0);
