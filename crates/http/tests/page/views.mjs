// Usage, runs, long sessions, networks.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { MAINSPRING, PAGE_URL, api, run, settled, textIn, until } from './kit.mjs';

/** A session of `turns` prompts, each answered by `answers` messages, which another program has appended. */
async function longSession(title, turns, answers) {
  const { sessionId } = await api('POST', '/v1/sessions', { title, new: true });
  let last;
  for (let turn = 0; turn < turns; turn++) {
    await api('POST', `/v1/sessions/${sessionId}/messages`, { id: `prompt-${turn}`, content: `Prompt ${turn}` });
    const messages = Array.from({ length: answers }, (_, i) => ({ role: 'assistant', content: `Answer ${turn}.${i} with **bold** text.\n\n- one\n- two ${'x'.repeat((turn * 7 + i) % 60)}` }));
    ({ items: last } = await api('POST', `/v1/sessions/${sessionId}/results`, { id: `turn-${turn}`, messages, agent: 'other' }).then(made => ({ items: made.items || made.messages || [] })));
  }
  return { sessionId, last };
}

export default {
  async 'usage counts all runs, and a run shows the standard error of its agent'({ page, show }) {
    const { runId } = await run('usage 10 5 0.5; say paid', 'Paid');
    await show('/usage');
    await textIn(page, '.totals', 'known cost');
    await textIn(page, '.breakdowns', 'Paid');
    await show(`/r/${runId}`);
    await page.click('.attempt button:has-text("Stderr")');
    await textIn(page, '.attempt .note', 'Nothing is kept');
  },
  async 'a session of 10,000 messages is shown from its end to its beginning, and few exist at once'({ page, show }) {
    const { sessionId } = await longSession('Ten thousand', 20, 499);
    await show(`/s/${sessionId}`);
    await textIn(page, '.scroller', 'Answer 19.498');
    const most = () => page.evaluate(() => document.querySelectorAll('.slot').length);
    assert.ok((await most()) < 120, `${await most()} messages exist`);
    // A link to an old message leads there.
    const { items: [old] } = await api('GET', `/v1/sessions/${sessionId}/messages?before=41&limit=1`);
    await show(`/s/${sessionId}/m/${old.messageId}`);
    await page.waitForFunction(id => { const at = document.getElementById(id)?.getBoundingClientRect(); return at && at.bottom > 0 && at.top < innerHeight; }, old.messageId);
    assert.ok((await most()) < 120, `${await most()} messages exist`);
    await page.evaluate(() => { document.querySelector('.scroller').scrollTop = 0; });
    await textIn(page, '.scroller', 'Prompt 0');
    await page.keyboard.press('End');
    await textIn(page, '.scroller', 'Answer 19.498');
    assert.ok((await most()) < 120, `${await most()} messages exist`);
  },
  async 'older messages are read as the reader scrolls up, and the place in view stays'({ page, show }) {
    const { sessionId } = await longSession('Older', 3, 299);
    await show(`/s/${sessionId}`);
    await textIn(page, '.scroller', 'Answer 2.298');
    const shown = () => page.evaluate(() => {
      const top = document.querySelector('.scroller').getBoundingClientRect().top;
      const slot = [...document.querySelectorAll('.slot')].find(one => one.getBoundingClientRect().bottom > top + 1);
      return { key: slot.dataset.key, at: Math.round(slot.getBoundingClientRect().top - top), text: slot.textContent.slice(0, 40) };
    });
    let isFirst = false;
    for (let read = 0; read < 12 && !isFirst; read++) {
      // First to a place from which nothing is read yet; then to one from which the previous page is read.
      await page.evaluate(() => { document.querySelector('.scroller').scrollTop = 700; });
      await settled(page);
      await page.evaluate(() => { document.querySelector('.scroller').scrollTop = 590; });
      const before = await shown();
      await settled(page);
      const after = await shown();
      assert.deepEqual({ ...after, at: Math.abs(after.at - before.at) <= 2 }, { ...before, at: true }, 'the place in view has moved');
      isFirst = await page.evaluate(() => document.querySelector('.slot').textContent.includes('Prompt 0'));
    }
    assert.equal(await page.locator('.slot').first().locator('.said').textContent(), 'Prompt 0');
  },
  async 'the first of the loaded messages of a long session is edited in its place'({ page, show }) {
    const { sessionId } = await longSession('Edit old', 220, 1);
    await show(`/s/${sessionId}`);
    await textIn(page, '.scroller', 'Answer 219.0');
    const shown = await page.evaluate(() => { document.querySelector('.scroller').scrollTop = 700; return true; });
    assert.ok(shown);
    await settled(page);
    // The oldest prompt that is drawn, whether or not the message before it is.
    const id = await page.locator('.message.user').first().getAttribute('id');
    // Other prompts are drawn while the list moves.
    const prompt = page.locator(`[id="${id}"]`);
    const text = await prompt.locator('.said').textContent();
    await prompt.hover();
    await prompt.locator('[aria-label="Edit and send again"]').click();
    await page.fill('.edit textarea', 'say edited in its place');
    await page.click('text=Send as a branch');
    await textIn(page, '.scroller', 'edited in its place');
    await textIn(page, '.strip', 'Done');
    const { siblings } = await api('GET', `/v1/sessions/${sessionId}/messages/${id}`);
    assert.ok(Array.isArray(siblings) ? siblings.length >= 2 : siblings, `${text} has no sibling`);
    const { items } = await api('GET', `/v1/sessions/${sessionId}/messages?limit=2`);
    const { depth } = await api('GET', `/v1/sessions/${sessionId}/messages/${items[0].messageId}`);
    assert.ok(depth > 0, 'the edited prompt became a new beginning');
  },
  async 'a duration is rounded before it is divided into units'({ page, show }) {
    await show('/');
    const texts = await page.evaluate(async () => {
      const { duration } = await import('/app/format.js');
      return [999.6, 59940, 59960, 119600, 3599600, 7260000].map(duration);
    });
    assert.deepEqual(texts, ['1.0 s', '59.9 s', '1 min 0 s', '2 min 0 s', '1 h 0 min', '2 h 1 min']);
  },
  async 'the ends of tool calls of a working run are read again after its end'({ page, show }) {
    const { runId } = await run('tool add {"a":1,"b":2}; ask Go on?; tool add {"a":3,"b":4}; say done', 'Tools', 5);
    await show('/');
    await settled(page);
    const count = () => page.evaluate(async id => (await (await import('/app/derived.js')).toolEnds(id)).size, runId);
    assert.equal(await count(), 1);
    const { wait } = await api('GET', `/v1/runs/${runId}`);
    await api('POST', `/v1/runs/${runId}/answer`, { waitId: wait.waitId, answer: { kind: 'input', input: 'yes' } }, { Prefer: 'wait=10' });
    await until(async () => (await api('GET', `/v1/runs/${runId}`)).status === 'succeeded');
    assert.equal(await count(), 2);
    // Now they are kept.
    const events = [];
    page.on('request', request => request.url().includes(`/v1/runs/${runId}/events`) && events.push(request.url()));
    assert.equal(await count(), 2);
    assert.deepEqual(events, []);
  },
  async 'the route of a network is shown in its run, and only there'({ page, show }) {
    const { runId } = await run('say by members', 'Network');
    await show(`/r/${runId}`);
    await textIn(page, '.facts', 'Done');
    assert.equal(await page.locator('.route').count(), 0);
    const usage = { inputTokens: 5, outputTokens: 5, costUsd: 0.5 };
    const call = (member, more = {}) => ({ member, steps: 1, startedAtMs: 1000, completedAtMs: 3000, usage, ...more });
    await page.route(`**/v1/runs/${runId}/events*`, async route => {
      const answer = await route.fetch();
      const events = await answer.json();
      events.items.push({ ...events.items[0], eventId: 'evt_routed', type: 'run.routed', payload: { routeNo: 1, by: { kind: 'sequence' }, next: 'planner', calls: 1, stepNo: 0 } });
      await route.fulfill({ json: events });
    });
    await page.route(`**/v1/runs/${runId}/route`, route => route.fulfill({ json: {
      runId, network: 'research@1', status: 'succeeded', routing: usage,
      decisions: [
        { decidedAtMs: 1000, routeNo: 1, by: { kind: 'sequence' }, next: 'planner', stack: [['left', 'right']], calls: 1, memberCalls: [call('planner')] },
        { decidedAtMs: 3000, routeNo: 2, by: { kind: 'model' }, reason: 'two views', next: ['left', 'right'], calls: 3, memberCalls: [call('left', { childRunId: runId }), call('right')] },
        { decidedAtMs: 5000, routeNo: 3, by: { kind: 'rules' }, end: 'stack_empty', calls: 3 },
      ],
      members: [{ member: 'planner', calls: 1, steps: 1, durationMs: 2000, usage }, { member: 'left', calls: 1, steps: 1, durationMs: 2000, usage: { ...usage, costUsd: null } }],
    } }));
    await page.reload();
    await page.waitForSelector('.route');
    const hops = await page.locator('.hops > li').allTextContents();
    assert.equal(hops.length, 3);
    assert.match(hops[0], /planner.*2\.0 s.*in sequence.*then left, right/s);
    assert.match(hops[1], /left.*right.*the routing model: two views/s);
    assert.match(hops[2], /No agent is left to call.*no rule holds/s);
    assert.match(await page.locator('.route table').textContent(), /left.*unknown/s);
  },
  async 'messages that are scrolled below a pointer at rest get no buttons'({ page, show }) {
    const { sessionId } = await longSession('Scrolled', 2, 60);
    await show(`/s/${sessionId}`);
    await page.waitForSelector('.message.inner');
    await settled(page);
    const middle = await page.locator('.message.inner >> nth=-2').boundingBox();
    const at = { x: middle.x + 80, y: middle.y + middle.height / 2 };
    await page.mouse.move(at.x, at.y);
    await page.waitForSelector('.message.inner .message-foot');
    const seen = await page.evaluate(() => [...document.querySelectorAll('.message.inner .message-foot')].map(foot => foot.parentElement.id));
    for (let i = 0; i < 5; i++) {
      const top = await page.evaluate(() => document.querySelector('.scroller').scrollTop);
      await page.mouse.wheel(0, -300);
      await page.waitForFunction(before => document.querySelector('.scroller').scrollTop < before, top);
    }
    await settled(page);
    const added = await page.evaluate(known => [...document.querySelectorAll('.message.inner .message-foot')].filter(foot => !known.includes(foot.parentElement.id)).length, seen);
    assert.equal(added, 0);
    await page.mouse.move(at.x, at.y - 120, { steps: 12 });
    await page.waitForFunction(known => [...document.querySelectorAll('.message.inner .message-foot')].some(foot => !known.includes(foot.parentElement.id)), seen);
  },
  async 'the axis of a timeline has round times, each once'({ page, show }) {
    await show('/');
    const axes = await page.evaluate(async () => {
      const { ticksOf } = await import('/app/timeline.js');
      return [3, 8, 41600, 204000, 20 * 3600000].map(ticksOf);
    });
    const [second, minute, hour] = [1000, 60000, 3600000];
    assert.deepEqual(axes, [[0, 1, 2, 3], [0, 2, 4, 6, 8], [0, 1, 2, 3, 4].map(n => n * 10 * second), [0, 1, 2, 3].map(n => n * minute), [0, 1, 2, 3, 4, 5].map(n => n * 4 * hour)]);
    const { runId } = await run('say short', 'Axis');
    await show(`/r/${runId}`);
    await page.waitForSelector('.axis i');
    const texts = await page.locator('.axis i').allTextContents();
    assert.equal(new Set(texts).size, texts.length, texts.join());
  },
  async 'the commands that the page names exist'({ page, context, show }) {
    const commands = new Set();
    const collect = async on => {
      for (const text of await on.locator('code').allTextContents()) if (/^mainspring [a-z]/.test(text)) commands.add(/^mainspring((?: [a-z]+)+)/.exec(text)[1].trim());
    };
    await show('/agents');
    await page.waitForSelector('.agents code');
    await collect(page);
    await page.keyboard.press('n');
    await page.click('dialog .choice:has-text("native")');
    await page.waitForSelector('dialog code:has-text("auth")');
    await collect(page);
    const stranger = await context.browser().newPage();
    await stranger.goto(PAGE_URL);
    await stranger.waitForSelector('.sign-in code');
    await collect(stranger);
    await stranger.close();
    assert.ok(commands.size >= 4, [...commands].join());
    for (const command of commands) assert.ok(execFileSync(MAINSPRING, [...command.split(' '), '--help']).length, command);
  },
  async 'the timeline of a long run is read on a phone, and its prompt leads to the conversation'({ page, show }) {
    await page.setViewportSize({ width: 390, height: 844 });
    const { runId, sessionId } = await run('say on a phone; tool add {"a":1,"b":2}; say done', 'Long run');
    // A run of more than three minutes, without waiting for it.
    for (const part of ['attempts', 'events*']) {
      await page.route(`**/v1/runs/${runId}/${part}`, async route => {
        const answer = await (await route.fetch()).json();
        for (const item of answer.items) for (const field of ['completedAtMs', 'timestampMs']) if (item[field]) item[field] += 204000;
        await route.fulfill({ json: answer });
      });
    }
    await show(`/r/${runId}`);
    await page.waitForSelector('.timeline .lane');
    const overlaps = await page.evaluate(() => {
      const boxes = [...document.querySelectorAll('.axis i')].map(tick => tick.getBoundingClientRect()).filter(box => box.width > 0);
      return boxes.slice(1).filter((box, i) => box.left < boxes[i].right).length;
    });
    assert.equal(overlaps, 0, 'the times of the axis overlap');
    const outside = await page.evaluate(() => [...document.querySelectorAll('.lane > b')].filter(label => label.getBoundingClientRect().right > label.closest('ol').getBoundingClientRect().right).length);
    assert.equal(outside, 0, 'a length is cut off');
    await page.click('.run-prompt');
    await page.waitForFunction(id => location.hash.startsWith(`#/s/${id}/m/`), sessionId);
    await textIn(page, '.scroller', 'on a phone');
  },
  async 'an artifact that is a patch is shown as a change'({ page, show }) {
    const { runId } = await run('say has a patch', 'Patch');
    await page.route(`**/v1/runs/${runId}/artifacts*`, route => route.fulfill({ json: { items: [{ artifactId: 'art_0', kind: 'file', role: 'output', mimeType: 'text/plain', sizeBytes: 20, name: 'mend.patch' }] } }));
    await page.route('**/v1/artifacts/*/content', route => route.fulfill({ body: '@@ -1 +1 @@\n-old line\n+new <b>line</b>\n', contentType: 'text/plain' }));
    await show(`/r/${runId}`);
    await page.click('.artifact button:has-text("Preview")');
    assert.equal(await page.textContent('.artifact .row.del'), '-old line');
    assert.equal(await page.textContent('.artifact .row.add'), '+new <b>line</b>');
  },
};
