// Pictures of every view, in both themes, on a desk and on a phone: for people who look at them.
//
//   run pictures FOLDER [WORD]     (see `run`)
//
// It asserts nothing: the tests of the page are in the other files. If the variable SEEDED holds the output
// of an earlier run, the pictures show the sessions of that run.
import { mkdirSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { PAGE_URL, api, browser, run, settled, signedIn, until } from './kit.mjs';

const [folder, only = ''] = process.argv.slice(2);
const FORMS = [
  ['desk-light', { viewport: { width: 1280, height: 800 }, colorScheme: 'light' }],
  ['desk-dark', { viewport: { width: 1280, height: 800 }, colorScheme: 'dark' }],
  ['phone-light', { viewport: { width: 390, height: 844 }, colorScheme: 'light', hasTouch: true, isMobile: true, deviceScaleFactor: 1 }],
  ['phone-dark', { viewport: { width: 390, height: 844 }, colorScheme: 'dark', hasTouch: true, isMobile: true, deviceScaleFactor: 1 }],
];

const ANSWER = `say The parser recurses once per bracket, so a deep input overflows the stack.
say I changed it to a loop with a stack of its own.
tool add {"a":19,"b":23}
usage 18400 2100 0.0841
say Done. **Two files** changed, the test \`deep_input\` passes.`;

/** A report of the ACP agent: its commands are separated by semicolons. */
const report = update => `report ${JSON.stringify(update).replace(/;/g, '\\u003b')}`;
const said = text => report({ sessionUpdate: 'agent_message_chunk', content: { type: 'text', text } });
const edit = (path, before, after, id) => report({ sessionUpdate: 'tool_call', toolCallId: id, title: `Edit ${path.split('/').pop()}`, kind: 'edit', status: 'completed', rawInput: { path }, locations: [{ path }], content: [{ type: 'diff', path, oldText: before, newText: after }] });
const FINDINGS = `# Findings

The daemon starts in **41 ms**. Three causes, in this order:

1. it opens the store, which reads \`config.toml\` twice
2. it binds the port
3. it starts the pool

| part | before | after |
|---|---|---|
| store | 31 ms | 12 ms |
| pool | 9 ms | 4 ms |

\`\`\`rust
let store = Store::open(&path)?; // once is enough
\`\`\`

> Measured five times on a quiet machine. See [the notes](https://example.com/notes).`;
const LINES = Array.from({ length: 40 }, (_, i) => `    let step_${i} = parse(&input[${i}..])?;`);
const BEFORE = `fn read(input: &str) -> Result<Tree, Error> {\n${LINES.join('\n')}\n    descend(input, 0)\n}\n`;
const AFTER = BEFORE.replace('    let step_20 = parse(&input[20..])?;', '    // A loop: a deep input must not overflow the stack.\n    let step_20 = walk(&input[20..], &mut stack)?;').replace('descend(input, 0)', 'walk(input, &mut Vec::new())');

/** Sessions as a person would have them. */
async function seed() {
  const at = {};
  const note = (name, made) => { at[name] = { s: `/s/${made.sessionId}`, r: `/r/${made.runId}`, sessionId: made.sessionId }; };
  const cwd = { options: { cwd: homedir() } };
  note('done', await run(ANSWER, 'Mend the parser: a deep input overflows the stack', 10));
  note('reading', await run(said(FINDINGS), 'Why is the start slow?', 10, { adapter: 'agent', ...cwd }));
  note('failed', await run('say Calling the model.\nfail the provider answers 529: overloaded', 'Summarize yesterday’s incidents', 10));
  note('asks', await run('say I can ship it today or wait for the review.\nask Ship the release today, or wait for the review of the migration?', 'Ship release 1.4', 10));
  note('long', await run('say I looked.\nask Shall I delete /home/someone/projects/a-long-folder-name/with/many/parts/and-a-file-with-a-long-name.tar.gz, or keep it for the time being?', 'Investigate the-branch-with-a-name-without-spaces and everything else that could have gone wrong in the release of last Thursday', 10));
  note('approve', await run('say The invoice of the printer is due.; approve Shall I pay 42.00 EUR to Druckerei Meyer?; say Paid.', 'Pay the invoice', 10));
  note('diff', await run(`${said('I found the place in the notes.')}; ask edit ${homedir()}/notes/parser.md; ${said('Done.')}`, 'Rewrite the notes of the parser', 10, { adapter: 'agent', ...cwd }));
  note('changes', await run(`${said('I read the parser first. ')}; ${edit(`${homedir()}/src/parser.rs`, BEFORE, AFTER, 'e1')}; ${edit(`${homedir()}/src/stack.rs`, null, 'pub struct Stack(Vec<Frame>);\n', 'e2')}; ${said('Both are done: the loop, and a stack of its own.')}`, 'Loop instead of recursion', 10, { adapter: 'agent', ...cwd }));
  note('working', await run('say Reading 214 files.; progress 118 of 214 files; tool echo {"folder":"crates/http"}; hang', 'Index the monorepo', 0));
  note('native', await run('say I look it up.\ntool plan_update {"tasks":[{"title":"Read the dump","status":"completed","conclusion":"A stack overflow"},{"title":"Find the input","status":"in_progress","subtasks":[{"title":"Bisect","done":true}]},{"title":"Write it down"}]}\nsay It is the parser.', 'Look into the crash of build 7', 20, { adapter: 'native', options: { model: 'scripted/any' } }));
  const branches = await run('vary A haiku of leaves | A haiku of rain | A haiku of snow', 'Three haikus', 10);
  const { items } = await api('GET', `/v1/sessions/${branches.sessionId}/messages?limit=10`);
  for (let i = 0; i < 2; i++) await api('POST', `/v1/sessions/${branches.sessionId}/runs`, { place: { kind: 'regenerate', messageId: items[0].messageId } }, { Prefer: 'wait=10' });
  await api('POST', `/v1/sessions/${branches.sessionId}/runs`, { prompt: 'say And a last line.' }, { Prefer: 'wait=10' });
  await api('POST', `/v1/sessions/${branches.sessionId}/runs`, { prompt: 'say Half; fail the model is overloaded' }, { Prefer: 'wait=10' });
  note('tree', branches);
  note('queued', await run('say The first chapter is done.; tool upper {"text":"chapter two"}; hang', 'Translate the manual', 0));
  await api('POST', `/v1/sessions/${at.queued.sessionId}/runs`, { prompt: 'say And now the appendix.' });
  const parent = await run('say Two others count and read.; tool echo {"parts":2}; hang', 'Prepare the report', 0);
  await until(async () => (await api('GET', `/v1/runs/${parent.runId}`)).status === 'running');
  for (const [title, objective, mode] of [['Count the files', 'say The backend has 214 files.', 'call'], ['Read last night’s logs', 'say Line 1 of 90.; tool echo {"line":1}; hang', 'spawn']]) await api('POST', `/v1/runs/${parent.runId}/delegations`, { objective, mode, session: { title } });
  note('delegates', parent);
  await run('usage 120000 8000 1.31; say Reviewed.', 'Review the pull request of the scheduler', 10);
  await run('usage 40000 3000; say Translated.', 'Translate the release notes', 10);
  await api('POST', '/v1/webhooks', { url: 'http://127.0.0.1:9/hook' });
  await api('POST', '/v1/keys', { name: 'ci', role: 'member' });
  await api('PUT', `/v1/sessions/${at.asks.sessionId}/pin`);
  note('network', await seedNetwork());
  return at;
}

async function seedNetwork() {
  for (const id of ['planner', 'writer', 'critic']) await api('POST', '/v1/agents', { id, model: 'scripted/any', system: `You are the ${id}.` });
  await api('POST', '/v1/agents', { id: 'essay', model: 'scripted/any', network: { members: [{ agent: 'planner@1' }, { agent: 'writer@1' }, { agent: 'critic@1' }], router: { sequence: ['planner', ['writer', 'critic']] } } });
  return api('POST', '/v1/runs', { prompt: 'say A short essay about clocks.', session: { title: 'An essay by three agents', agentDefinition: 'essay' }, adapter: 'native' }, { Prefer: 'wait=20' });
}

/** Each picture: its name, the address, and what is done before it is taken. */
function scenes(at) {
  return [
    ['board', '/'], ['inbox', '/inbox'], ['agents', '/agents'], ['usage', '/usage'],
    ['usage-tokens', '/usage', page => page.click('button:has-text("Tokens")')],
    ['settings', '/settings'],
    ['settings-end', '/settings', async page => { for (const fold of await page.locator('main summary').all()) await fold.click(); await settled(page); await page.evaluate(() => { document.querySelector('main').scrollTop = 1e6; }); }],
    ['session-done', at.done.s], ['session-markdown', at.reading.s],
    ['session-tool-open', at.done.s, page => page.click('.tool summary')],
    ['session-hover', at.done.s, page => page.hover('.message.assistant >> nth=-1')],
    ['session-feedback', at.done.s, async page => { await page.hover('.message.assistant >> nth=-1'); await page.click('[aria-label="Bad answer"]'); }],
    ['session-edit', at.reading.s, async page => { await page.hover('.message.user'); await page.click('[aria-label="Edit and send again"]'); }],
    ['session-menu', at.reading.s, page => page.click('[aria-label="Actions of the session"]')],
    ['session-failed', at.failed.s], ['session-asks', at.asks.s], ['session-long', at.long.s], ['run-long', at.long.r], ['session-approve', at.approve.s], ['session-diff', at.diff.s],
    ['session-diff-reason', at.approve.s, page => page.click('text=Deny with a reason')],
    ['session-working', at.working.s], ['session-queued', at.queued.s], ['session-plan', at.native.s, page => page.click('.plan-line > summary')],
    ['tree', `${at.tree.s}/tree`],
    ['tree-preview', `${at.tree.s}/tree`, page => page.click('.graph-row >> nth=2')],
    ['tree-compare', `${at.tree.s}/tree`, async page => { await page.click('.graph-row >> nth=1'); await page.click('button:has-text("Compare")'); await page.click('.graph-row >> nth=2'); }],
    ['changes', `${at.changes.s}/changes`],
    ['changes-turns', `${at.changes.s}/changes`, page => page.click('button:has-text("Per turn")')],
    ['changes-sides', `${at.changes.s}/changes`, page => page.click('button:has-text("Side by side")')],
    ['changes-comment', `${at.changes.s}/changes`, async page => { await page.click('button:has-text("Unified")'); await page.click('.row.add .add-comment >> nth=0'); await page.fill('.comment-form textarea', 'Why not a VecDeque?'); }],
    ['changes-unknown', `${at.done.s}/changes`], ['changes-none', `${at.reading.s}/changes`],
    ['runs', `${at.tree.s}/runs`], ['run-done', at.done.r], ['run-native', at.native.r], ['run-failed', at.failed.r], ['run-waits', at.approve.r],
    ['run-delegates', at.delegates.r], ['run-network', at.network.r], ['session-network', at.network.s],
    ['run-events', at.done.r, page => page.evaluate(() => { document.querySelector('main').scrollTop = 1e6; })],
    ['palette', '/', page => page.keyboard.press('Control+k')],
    ['palette-found', '/', async page => { await page.keyboard.press('Control+k'); await page.fill('.palette input', 'parser'); await page.waitForFunction(() => document.querySelectorAll('.palette li').length > 1); }],
    ['keys', '/', page => page.keyboard.press('?')],
    ['keys-session', at.done.s, page => page.keyboard.press('?')],
    ['new', '/', page => page.keyboard.press('n')],
    ['new-key', '/settings', page => page.click('button:has-text("New key")')],
    ['new-webhook', '/settings', page => page.click('button:has-text("New webhook")')],
    ['delete', at.reading.s, async page => { await page.click('[aria-label="Actions of the session"]'); await page.click('text=Delete…'); }],
    ['lost', '/s/ses_00000000000000000000000000000000'],
    ['no-run', '/r/run_00000000000000000000000000000000'],
    ['filter', '/', async page => { await page.fill('.field.search input', 'zebra'); }],
  ].map(([name, hash, prepare]) => ({ name, hash, prepare }));
}

async function take(at, form, options) {
  const { page, context, show } = await signedIn(undefined, options);
  page.setDefaultTimeout(4000);
  for (const { name, hash, prepare } of scenes(at).filter(scene => scene.name.includes(only))) {
    await page.goto('about:blank');
    await show(hash);
    try {
      await settled(page);
      await prepare?.(page);
      await settled(page);
    } catch (error) {
      console.log(`${name} ${form}: ${String(error).split('\n')[0]}`);
    }
    await page.screenshot({ path: join(folder, `${name}-${form}.png`) });
  }
  await context.close();
}

/** The views of somebody who has just arrived. */
async function takeEmpty(form, options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  await page.goto(PAGE_URL);
  await page.waitForSelector('.sign-in form');
  await page.screenshot({ path: join(folder, `sign-in-${form}.png`) });
  await context.close();
  const visitor = await signedIn(undefined, options);
  for (const view of ['board', 'inbox', 'usage', 'settings']) {
    await visitor.show(view === 'board' ? '/' : `/${view}`);
    await settled(visitor.page);
    await visitor.page.screenshot({ path: join(folder, `empty-${view}-${form}.png`) });
  }
  await visitor.context.close();
}

mkdirSync(folder, { recursive: true });
const { SEEDED } = process.env;
if (!SEEDED) for (const [form, options] of FORMS) await takeEmpty(form, options);
const at = SEEDED ? JSON.parse(SEEDED) : await seed();
console.log(JSON.stringify(at));
for (const [form, options] of FORMS) await take(at, form, options);
await browser.close();
process.exit(0);
