// Reading a session: long answers, feedback, plans, changes of a turn that still works.
import assert from 'node:assert/strict';
import { api, expectFaults, run, settled, signedIn, textIn } from './kit.mjs';

const WORDS = 'some words and more of them ';
const textOfAnswer = page => page.evaluate(() => document.querySelector('.message.assistant .markdown').textContent.replace(/\s+/g, ' ').trim());
const stop = runId => api('POST', `/v1/runs/${runId}/cancel`, undefined, { Prefer: 'wait=10' });

/** Waits until the end of an answer is drawn. */
const drawn = (page, end) => page.waitForFunction(text => document.querySelector('.message.assistant .markdown')?.textContent.trimEnd().endsWith(text), end);

// Markdown, and the elements that it becomes.
const ELEMENTS = [
  ['# A *b*\n\nc  \nd ~~e~~ `f<g>`', '<h1>A <em>b</em></h1><p>c<br>d <del>e</del> <code>f&lt;g&gt;</code></p>'],
  ['- [x] a\n- [ ] **b**\n  1. c', '<ul><li><input type="checkbox" disabled="" aria-label="done"> a</li><li><input type="checkbox" disabled="" aria-label="open"> <strong>b</strong><ol><li>c</li></ol></li></ul>'],
  ['3. a\n\n4. b', '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'],
  ['```rust\nlet a = "&amp;";\n```\n\n> q\n\n***', '<pre tabindex="0"><code>let a = "&amp;amp;";\n</code></pre><blockquote><p>q</p></blockquote><hr>'],
  ['| a | b |\n|---|--:|\n| 1 | **2** |', '<div class="table-frame" tabindex="0" role="region" aria-label="Table"><table><thead><tr><th>a</th><th align="right">b</th></tr></thead><tbody><tr><td>1</td><td align="right"><strong>2</strong></td></tr></tbody></table></div>'],
  // References are characters, in text but not in code; HTML is text.
  ['&copy; &lt;b&gt; &#65; &nothing; `&copy;` <b>x</b>', '<p>© &lt;b&gt; A &amp;nothing; <code>&amp;copy;</code> &lt;b&gt;x&lt;/b&gt;</p>'],
  // A picture becomes a link to the picture; within a link, only text. A relative link becomes its text.
  ['![p](https://a.example/p.png) [![i](https://a.example/i.png)](https://b.example/?x=1&amp;y=2 "t") [r](/v1/keys)', `<p>${link('https://a.example/p.png', 'p')} ${link('https://b.example/?x=1&amp;y=2', 'i', 't')} r</p>`],
];

function link(href, text, title = href) {
  return `<a href="${href}" target="_blank" rel="noopener noreferrer nofollow" title="${title}">${text}</a>`;
}

export default {
  async 'markdown becomes elements'({ page, show }) {
    await show('/');
    await settled(page);
    const made = await page.evaluate(async texts => {
      const { fragment } = await import('/app/elements.js');
      return texts.map(text => {
        const place = document.createElement('div');
        place.append(fragment(text));
        return place.innerHTML;
      });
    }, ELEMENTS.map(([text]) => text));
    assert.deepEqual(made, ELEMENTS.map(([, html]) => html));
  },
  async 'a paragraph that grows without end is laid out in blocks of bounded size, and no word is lost'({ page, show }) {
    const { runId, sessionId } = await run(`stream 900 ${WORDS}\nsay THE END\nhang`, 'Long paragraph', 0);
    await show(`/s/${sessionId}`);
    await drawn(page, 'THE END');
    const blocks = await page.evaluate(() => [...document.querySelectorAll('.markdown.streaming .block')].map(block => {
      const range = document.createRange();
      range.selectNodeContents(block);
      // The right edge of the last line, as a part of the width.
      const lines = [...range.getClientRects()].filter(box => box.width > 0);
      const bottom = Math.max(...lines.map(box => box.bottom));
      const edge = Math.max(...lines.filter(box => box.bottom > bottom - 4).map(box => box.right)) - block.getBoundingClientRect().left;
      return { chars: block.textContent.length, filled: edge / block.clientWidth };
    }));
    assert.ok(blocks.length > 3, `${blocks.length} blocks`);
    for (const [i, { chars, filled }] of blocks.entries()) {
      assert.ok(chars < 7000, `a block of ${chars} characters`);
      if (i < blocks.length - 1) assert.ok(filled > 0.8, `block ${i} ends within a line: ${filled}`);
    }
    const expected = `${WORDS.repeat(900)}THE END`.replace(/\s+/g, ' ');
    assert.equal(await textOfAnswer(page), expected);
    await stop(runId);
    await textIn(page, '.strip', 'Stopped');
    await page.waitForSelector('.markdown:not(.streaming)');
    await drawn(page, 'THE END');
    assert.equal(await textOfAnswer(page), expected);
  },
  async 'a code block that grows without end is laid out in blocks of whole lines'({ page, show }) {
    const line = 'let total = lines.iter().sum() // of all';
    const lines = Array.from({ length: 400 }, (_, i) => `${i}: ${line}`);
    const { sessionId } = await api('POST', '/v1/sessions', { title: 'Long code', new: true });
    const code = `\`\`\`rust\n${lines.join('\n')}\n`;
    await show(`/s/${sessionId}`);
    await settled(page);
    const shown = await page.evaluate(async text => {
      const [{ html, render, signal }, { StreamingMarkdown }] = await Promise.all([import('/app/h.js'), import('/app/markdown.js')]);
      const place = document.createElement('div');
      document.querySelector('.thread').append(place);
      const source = signal('');
      render(html`<${StreamingMarkdown} source=${source} />`, place);
      const frame = () => new Promise(requestAnimationFrame);
      for (let at = 0; at < text.length; at += 997) {
        source.value = text.slice(0, at + 997);
        await frame();
        await frame();
      }
      for (let i = 0; i < 300 && !place.textContent.includes('399: '); i++) await frame();
      await frame();
      const blocks = [...place.querySelectorAll('pre > code.block')];
      return { blocks: blocks.map(block => block.textContent), text: place.querySelector('pre').innerText };
    }, code);
    assert.ok(shown.blocks.length > 3, `${shown.blocks.length} blocks`);
    for (const block of shown.blocks) assert.ok(block.length <= 4000, `a block of ${block.length} characters`);
    assert.equal(shown.blocks.join('\n').trimEnd(), lines.join('\n'));
    assert.equal(shown.text.trimEnd(), lines.join('\n'));
  },
  async 'a long answer is not made again when it ends'({ page, show }) {
    const { sessionId } = await api('POST', '/v1/sessions', { title: 'Long answer', new: true });
    await show(`/s/${sessionId}`);
    await settled(page);
    const paragraphs = Array.from({ length: 60 }, (_, i) => `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"Paragraph ${i} ${WORDS.repeat(12)}\\n\\n"}}`);
    const prompt = [...paragraphs.map(json => `report ${json}`), 'hang'].join('; ');
    const { runId } = await api('POST', `/v1/sessions/${sessionId}/runs`, { prompt, adapter: 'agent' });
    await drawn(page, 'hanging');
    await page.evaluate(() => { document.querySelector('.message.assistant .markdown p').dataset.made = 'once'; });
    await stop(runId);
    await textIn(page, '.strip', 'Stopped');
    await page.waitForSelector('.markdown:not(.streaming) p[data-made=once]');
    assert.equal(await page.locator('.message.assistant .markdown p', { hasText: 'Paragraph' }).count(), 60);
  },
  async 'feedback is given by a thumb, says why, and is seen in another tab'({ page, context, show }) {
    const { sessionId } = await run('say an answer', 'Feedback');
    await show(`/s/${sessionId}`);
    const other = await context.newPage();
    await show(`/s/${sessionId}`, other);
    await textIn(other, '.scroller', 'an answer');
    await page.hover('.message.assistant');
    await page.click('.message.assistant [aria-label="Bad answer"]');
    await other.waitForSelector('.message.assistant [aria-label="Bad answer"][aria-pressed=true]');
    await page.click('.feedback button:has-text("Incomplete")');
    await page.fill('.feedback input', 'half of it');
    await page.click('.feedback button:has-text("Save")');
    await page.waitForSelector('.feedback', { state: 'detached' });
    const { items: [given] } = await api('GET', `/v1/sessions/${sessionId}/feedback`);
    assert.deepEqual([given.sentiment, given.categories, given.notes], ['negative', ['incomplete'], 'half of it']);
    // Another thumb replaces it, here and after a reload.
    await page.click('.message.assistant [aria-label="Good answer"]');
    await other.waitForSelector('.message.assistant [aria-label="Good answer"][aria-pressed=true]');
    await page.reload();
    await page.waitForSelector('.message.assistant [aria-label="Good answer"][aria-pressed=true]');
    assert.equal((await api('GET', `/v1/sessions/${sessionId}/feedback`)).items.length, 1);
    await other.close();
  },
  async 'a viewer gives no feedback'() {
    const { sessionId } = await run('say an answer', 'No feedback');
    const { secret } = await api('POST', '/v1/keys', { name: 'reader', role: 'viewer' });
    const viewer = await signedIn(secret);
    await viewer.show(`/s/${sessionId}`);
    await textIn(viewer.page, '.scroller', 'an answer');
    await settled(viewer.page);
    assert.equal(await viewer.page.locator('.thumb').count(), 0);
    assert.deepEqual(viewer.faults, []);
    await viewer.context.close();
  },
  async 'goals and the plan of a run are shown in its session and in its run'({ page, show }) {
    await api('POST', '/v1/goal-types', { name: 'page_report', description: 'Reports it.', schema: { type: 'object', properties: { title: { type: 'string' } }, required: ['title'] } });
    const plan = { tasks: [{ title: 'Read the dump', status: 'completed', conclusion: 'A stack overflow' }, { title: 'Find the input', status: 'in_progress', subtasks: [{ title: 'Bisect', done: true }] }, { title: 'Write it down' }] };
    const prompt = `say I begin.\ntool plan_update ${JSON.stringify(plan)}\ntool achieve_page_report {"title":"Too deep"}\nsay Reported.`;
    const { runId, sessionId, status } = await run(prompt, 'Planned', 20, { adapter: 'native', options: { model: 'scripted/any', goals: [{ goalType: 'page_report', data: { build: 7 } }] } });
    assert.equal(status, 'succeeded');
    await show(`/s/${sessionId}`);
    await textIn(page, '.plan-line summary', '1 of 3 tasks done');
    assert.match(await page.textContent('.plan-line summary'), /now: Find the input.*goal page_report: achieved/s);
    await page.click('.plan-line > summary');
    assert.match(await page.textContent('.plan-line .tasks'), /Read the dump.*A stack overflow.*Find the input.*Bisect.*Write it down/s);
    await show(`/r/${runId}`);
    await textIn(page, '.goals', 'page_report');
    await page.click('.goals summary:has-text("Reported")');
    await textIn(page, '.goals', 'Too deep');
    await textIn(page, '.tasks', 'Write it down');
    // A run without them shows neither.
    const plain = await run('say plain', 'Unplanned');
    await show(`/s/${plain.sessionId}`);
    await textIn(page, '.scroller', 'plain');
    assert.equal(await page.locator('.plan-line').count(), 0);
  },
  async 'a plan is followed while its run works'({ page, show }) {
    const entries = status => JSON.stringify({ sessionUpdate: 'plan', entries: [{ content: 'look', priority: 'high', status }, { content: 'mend', priority: 'high', status: 'pending' }] });
    const { runId, sessionId } = await run(`report ${entries('in_progress')}; ask go on; report ${entries('completed')}; hang`, 'Live plan', 10, { adapter: 'agent' });
    await show(`/s/${sessionId}`);
    await textIn(page, '.plan-line', '0 of 2 tasks done');
    await page.click('.now .wait button:has-text("Allow once")');
    await textIn(page, '.plan-line', '1 of 2 tasks done');
    await stop(runId);
  },
  async 'the changes of a turn are shown while it works, and after it'({ page, show }) {
    const call = { sessionUpdate: 'tool_call', toolCallId: 'edit-1', title: 'Edit', kind: 'edit', status: 'completed', rawInput: {}, content: [{ type: 'diff', path: '/repo/live.md', oldText: 'old\n', newText: 'new\n' }] };
    const { runId, sessionId } = await run(`report ${JSON.stringify(call)}; ask go on; say done`, 'Live changes', 10, { adapter: 'agent' });
    // An agent that reports its usage at the end has an unknown one until then, not none.
    await show(`/r/${runId}`);
    await textIn(page, '.facts', 'Tokensunknown');
    await show(`/s/${sessionId}/changes`);
    await textIn(page, '.changes .turn.open', '/repo/live.md');
    const { wait } = await api('GET', `/v1/runs/${runId}`);
    await api('POST', `/v1/runs/${runId}/answer`, { waitId: wait.waitId, answer: { kind: 'approval', decision: 'allowed' } });
    await page.waitForFunction(() => !document.querySelector('.turn.open') && document.querySelector('.changes > .diff')?.textContent.includes('/repo/live.md'));
  },
  async 'a request is put in words once, and its call waits for the reader'({ page, show }) {
    const { runId, sessionId, status } = await run('bare pay the printer; say after', 'Asks once', 10, { adapter: 'agent' });
    assert.equal(status, 'waiting_approval');
    const { wait } = await api('GET', `/v1/runs/${runId}`);
    await show(`/s/${sessionId}`);
    await page.waitForSelector('.now .question');
    const question = await page.textContent('.now .question');
    assert.ok(wait.question.startsWith(question), `${question} is not the beginning of ${wait.question}`);
    assert.ok(!question.includes('{'), question);
    assert.match(await page.textContent('.tool summary'), /waits for you/);
    await page.click('.now .wait button:has-text("Allow once")');
    await page.waitForFunction(() => !/waits for you/.test(document.querySelector('.tool summary').textContent));
  },
  async 'a command that waits for approval is seen whole on a phone'({ page, show }) {
    await page.setViewportSize({ width: 390, height: 844 });
    const command = `deploy --to production ${'--with a-very-long-option '.repeat(8)}--now`;
    const { sessionId } = await run('say hello', 'Long command');
    // No agent of the tests asks for a command: the answer of the server gets one.
    await page.route(`**/v1/sessions/${sessionId}/snapshot`, async route => {
      const snapshot = await (await route.fetch()).json();
      const { items: [last] } = await api('GET', `/v1/runs?session=${sessionId}&limit=1`);
      const call = { name: 'bash', input: { command }, locations: [], diff: [] };
      const wait = { waitId: 'wait_1', request: 'approval', question: `Allow ${command}? ${JSON.stringify({ command })}`, approval: { call, answers: ['allow_once', 'deny'] } };
      await route.fulfill({ json: { ...snapshot, activeRun: { ...last, status: 'waiting_approval', wait } } });
    });
    await show(`/s/${sessionId}`);
    await page.waitForSelector('.now .command');
    assert.equal(await page.textContent('.now .question'), 'Allow this command?');
    assert.ok(await page.evaluate(() => { const box = document.querySelector('.now .command'); return box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight; }), 'a part of the command is hidden');
  },
  async 'the error of a failed run is said once'({ page, show }) {
    const { sessionId } = await run('say before; fail the disk is full of cats', 'Said once');
    await show(`/s/${sessionId}`);
    await textIn(page, '.session', 'the disk is full of cats');
    await settled(page);
    assert.equal(await page.locator('.chat .problem, .chat .why', { hasText: 'the disk is full of cats' }).count(), 1);
    await page.waitForSelector('.strip button:has-text("Retry")');
  },
  async 'every view says what it is'({ page, faults, show }) {
    await run('say seen', 'A card');
    for (const view of ['/', '/inbox', '/agents', '/usage', '/settings']) {
      await show(view);
      await settled(page);
      const [title, about] = await page.evaluate(() => ['h1', '.about'].map(part => document.querySelector(`main ${part}`)?.textContent || ''));
      assert.ok(title && about.length > 20, `${view}: ${title}: ${about}`);
    }
    await show('/s/ses_00000000000000000000000000000000');
    await textIn(page, '.empty', 'There is no such session');
    expectFaults(faults, /status of 404/);
  },
};
