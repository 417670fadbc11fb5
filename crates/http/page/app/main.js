// The start: sign in, follow all sessions, show the view that the address names.
import { html, render, useEffect, useState } from './h.js';
import { setCredentials, signedIn, whenSignedOut } from './api.js';
import { follow, identify } from './store.js';
import { finishSignIn } from './oidc.js';
import { redeemTicket, SignIn } from './signin.js';
import { startNotifications } from './notify.js';
import { Shell } from './shell.js';
import { Loading, Problem } from './ui.js';

function Page({ problem }) {
  const [inside, setInside] = useState(signedIn());
  const [known, setKnown] = useState(false);
  const [failure, setFailure] = useState(null);
  const [ended, setEnded] = useState(problem);
  whenSignedOut(() => {
    setCredentials(null);
    setEnded({ code: 'authentication', message: 'You were signed out: the key has expired or was revoked.', remedy: '' });
    setInside(false);
    setKnown(false);
  });
  useEffect(() => {
    if (!inside) return undefined;
    let stop = () => {};
    let timer;
    const enter = () => identify().then(() => {
      stop = follow();
      setFailure(null);
      setKnown(true);
    }, error => {
      if (error.code === undefined) throw error;
      if (error.status === 401) return;
      setFailure(error);
      timer = setTimeout(enter, 2000);
    });
    enter();
    return () => { clearTimeout(timer); stop(); };
  }, [inside]);
  if (!inside) return html`<${SignIn} problem=${ended} onDone=${() => setInside(true)} />`;
  if (failure && !known) return html`<main class="sign-in"><${Problem} error=${failure} /><p class="note">Trying again…</p></main>`;
  if (!known) return html`<${Loading} what="Starting" />`;
  return html`<${Shell} />`;
}

const problem = (await finishSignIn()) || (await redeemTicket());
startNotifications();
// Until here the document shows its own first words.
const place = document.getElementById('page');
place.replaceChildren();
render(html`<${Page} problem=${problem} />`, place);
