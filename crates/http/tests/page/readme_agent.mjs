// The agent of the pictures in the README: it speaks the Agent Client Protocol and plays the story that belongs to a prompt.
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const CART = `pub struct Line {
    pub article: ArticleId,
    pub price: u64,
    pub count: u64,
}

impl Line {
    pub fn sum(&self) -> u64 {
        self.price * self.count
    }
}
`;
const CART_AFTER = CART.replace('count: u64', 'quantity: u64').replace('self.price * self.count', 'self.price.saturating_mul(self.quantity)');

const say = text => ({ say: text });
const spend = dollars => ({ spend: dollars });
const call = (title, result) => ({ call: { title, kind: 'execute', rawInput: { command: title } }, result });
const read = path => ({ call: { title: `Read ${path}`, kind: 'read', rawInput: { path } }, result: 'ok' });

/** The sessions of the pictures. Those that do not end are `open`. */
export const STORIES = [
  { agent: 'builder', title: 'Crash of build 1841', prompt: 'Build 1841 crashes for large orders. Find out why.', steps: [read('src/cart.rs'), call('cargo test cart', '1 failed'), say('The sum of a line overflows: `price * count` is not checked.'), spend(0.42)] },
  { agent: 'writer', title: 'Translate the release notes', prompt: 'Translate the release notes into French and Japanese.', steps: [say('Both translations are in `notes/`.'), spend(0.09)] },
  { agent: 'reviewer', title: 'Review the payments', prompt: 'Review the branch payment-retries.', steps: [read('src/payment.rs'), say('Two remarks: a retry has no limit, and one test sleeps.'), spend(1.31)] },
  { agent: 'writer', title: 'Check the links', prompt: 'Check all links of the handbook.', steps: [call('lychee docs', '118 links, 0 broken'), say('All 118 links work.'), spend(0.03)] },
  { agent: 'reviewer', title: 'Summarise the incidents', prompt: 'Summarise yesterday’s incidents.', steps: [{ fail: 'the provider answers 529: overloaded' }] },
  { agent: 'builder', title: 'Speed up the search', prompt: 'Make the search twice as fast.', open: true, steps: [read('src/search.rs'), say('The index is read for each query. I keep it in memory and measure.'), { call: { title: 'cargo bench search', kind: 'execute', rawInput: { command: 'cargo bench search' } }, hangs: true }] },
  { agent: 'writer', title: 'Write the handbook', prompt: 'Write a handbook for new colleagues.', open: true, steps: [say('The first two chapters are done. The third explains orders.'), { call: { title: 'Read src/order.rs', kind: 'read', rawInput: { path: 'src/order.rs' } }, hangs: true }] },
  { agent: 'releaser', title: 'Publish release 0.9', prompt: 'Publish release 0.9.', open: true, steps: [call('cargo test --workspace', '214 passed'), say('All tests pass.'), { ask: { title: 'git push origin v0.9', kind: 'execute', rawInput: { command: 'git push origin v0.9' } } }] },
  { agent: 'builder', title: 'Rename count to quantity', prompt: 'Rename the field count of a cart line to quantity, and let its sum not overflow.', open: true, steps: [read('src/cart.rs'), say('The field is used in one place. I rename it and let the sum saturate.'), { ask: { title: 'Edit src/cart.rs', kind: 'edit', rawInput: { path: 'src/cart.rs' }, edits: 'src/cart.rs' } }] },
];

const send = message => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
const folders = new Map();
const waiting = new Map();
let no = 0;

async function play(sessionId, { steps }) {
  const update = body => send({ method: 'session/update', params: { sessionId, update: body } });
  for (const step of steps) {
    const toolCallId = `call-${++no}`;
    if (step.say) update({ sessionUpdate: 'agent_message_chunk', content: { type: 'text', text: step.say } });
    if (step.spend) update({ sessionUpdate: 'usage_update', used: 1000, size: 200000, cost: { amount: step.spend, currency: 'USD' } });
    if (step.fail) throw new Error(step.fail);
    if (step.call) update({ sessionUpdate: 'tool_call', toolCallId, status: 'in_progress', ...step.call });
    if (step.result) update({ sessionUpdate: 'tool_call_update', toolCallId, status: 'completed', content: [{ type: 'content', content: { type: 'text', text: step.result } }] });
    if (step.hangs) await new Promise(() => {});
    if (step.ask) await ask(sessionId, toolCallId, step.ask);
  }
}

/** Requests a permission and waits for its answer. */
function ask(sessionId, toolCallId, { edits, ...asked }) {
  const path = edits && join(folders.get(sessionId), edits);
  const change = edits ? { locations: [{ path }], content: [{ type: 'diff', path, oldText: CART, newText: CART_AFTER }] } : {};
  const options = [['yes', 'Yes', 'allow_once'], ['always', 'Always', 'allow_always'], ['no', 'No', 'reject_once']].map(([optionId, name, kind]) => ({ optionId, name, kind }));
  const id = `ask-${toolCallId}`;
  send({ id, method: 'session/request_permission', params: { sessionId, toolCall: { toolCallId, status: 'pending', ...asked, ...change }, options } });
  return new Promise(resolve => waiting.set(id, resolve));
}

const METHODS = {
  initialize: () => ({ protocolVersion: 1, agentInfo: { name: 'story', version: '1' }, agentCapabilities: { loadSession: false }, authMethods: [] }),
  'session/new': ({ cwd }) => {
    const sessionId = `story-${process.pid}-${++no}`;
    folders.set(sessionId, cwd);
    return { sessionId };
  },
  'session/prompt': async ({ sessionId, prompt }) => {
    const text = prompt.map(block => block.text || '').join('\n');
    await play(sessionId, STORIES.find(story => text.includes(story.prompt)));
    return { stopReason: 'end_turn', usage: { totalTokens: 5200, inputTokens: 4100, outputTokens: 1100 } };
  },
};

async function answer({ id, method, params, result }) {
  if (!method) return waiting.get(id)?.(result);
  if (!METHODS[method]) return id === undefined ? undefined : send({ id, error: { code: -32601, message: 'Method not found' } });
  try {
    return send({ id, result: await METHODS[method](params) });
  } catch (error) {
    return send({ id, error: { code: -32603, message: error.message } });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) createInterface({ input: process.stdin }).on('line', line => answer(JSON.parse(line)));
