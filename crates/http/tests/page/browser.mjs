// The page in a real browser, against a real server.
//
//   SERVER_URL=http://127.0.0.1:7433 SERVER_TOKEN=… MAINSPRING=PROGRAM NODE_MODULES=DIR CHROMIUM=/usr/bin/chromium node browser.mjs [WORD]
//
// `run` starts a server and does that. It also names the process of the server, which one test kills and starts again.
//
// DIR holds `playwright-core` and `axe-core`. PAGE_URL names the page if it is served elsewhere, for instance by a proxy
// during development. With WORD only the tests whose names contain it are run.
import assert from 'node:assert/strict';
import { browser, signedIn } from './kit.mjs';
import board from './board.mjs';
import inbox from './inbox.mjs';
import manners from './manners.mjs';
import reading from './reading.mjs';
import safety from './safety.mjs';
import sessions from './sessions.mjs';
import settings from './settings.mjs';
import sharing from './sharing.mjs';
import signIn from './sign_in.mjs';
import streams from './streams.mjs';
import views from './views.mjs';

// The tests of streams are the last: one of them kills the server.
const TESTS = { ...sessions, ...board, ...sharing, ...inbox, ...views, ...reading, ...settings, ...signIn, ...safety, ...manners, ...streams };

let failed = 0;
for (const [name, test] of Object.entries(TESTS).filter(([name]) => name.includes(process.argv[2] || ''))) {
  const visitor = await signedIn();
  try {
    await test(visitor);
    assert.deepEqual(visitor.faults, []);
    console.log(`ok   ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}\n${error.stack}`);
  }
  // An answer that a test still changes ends with the test.
  for (const page of visitor.context.pages()) await page.unrouteAll({ behavior: 'ignoreErrors' });
  await visitor.context.close();
}
await browser.close();
process.exit(failed ? 1 : 0);
