// The demo of the empty board: three sessions of the script agent, which needs no key.
import { api } from './api.js';

const DEMO = [
  ['Tour of mainspring', `say Hello. I am the **script agent**: I execute my prompt, line by line.
think What should I show next?
tool add {"a":19,"b":23}
say I called a tool. Its result is in the fold above.
stream 40 every 60ms tick
usage 1200 340 0.0042
ask What shall I call you?
say Nice to meet you. **Details** below shows the timeline of this run. **Answer again**, beside this answer, makes a second branch: the **Tree** shows both.`],
  ['Pay the invoice', 'say The invoice of the printer is due.; approve Shall I pay 42.00 EUR?; say Paid.'],
  ['A run that fails once', 'say Calling the model.; fail once the model is overloaded; say The second attempt worked.'],
];

/** Starts the demo; answers the session to show. */
export async function runDemo() {
  let first = null;
  for (const [title, prompt] of DEMO) {
    const session = await api.sessionCreate({ title, adapter: 'script' });
    await api.prompt(session.sessionId, { prompt, adapter: 'script' });
    first ||= session.sessionId;
  }
  return first;
}
