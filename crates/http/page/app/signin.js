// Signing in: with a one-time ticket in the address, an API key, or at an identity
// provider where the server has one.
import { html, useEffect, useState } from './h.js';
import { api, setCredentials } from './api.js';
import { goToProvider, identityProvider } from './oidc.js';
import { Problem } from './ui.js';

/** Exchanges the ticket in the address, if there is one. The address loses it first. */
export async function redeemTicket() {
  const ticket = /^#ticket=(.+)$/.exec(location.hash)?.[1];
  if (!ticket) return null;
  history.replaceState(null, '', `${location.pathname}#/`);
  try {
    const { secret } = await api.redeem(decodeURIComponent(ticket));
    setCredentials({ kind: 'page', secret });
    return null;
  } catch (error) {
    if (error.code === undefined) throw error;
    return error;
  }
}

export function SignIn({ onDone, problem }) {
  const [error, setError] = useState(problem);
  const [busy, setBusy] = useState(false);
  const submit = async event => {
    event.preventDefault();
    const { key, keep } = event.target.elements;
    setBusy(true);
    setCredentials({ kind: 'key', key: key.value.trim() }, keep.checked);
    try {
      await api.adapters();
      onDone();
    } catch (failure) {
      if (failure.code === undefined) throw failure;
      setCredentials(null);
      setError(failure.status === 401 ? { ...failure, code: failure.code, message: 'This key is not valid: it is wrong, has expired or was revoked.', remedy: '' } : failure);
    }
    setBusy(false);
  };
  return html`<main class="sign-in"><form onSubmit=${submit}>
    <img src="icon.svg" alt="" width="44" height="44" /><div><h1>mainspring</h1><p class="about">What your agents do, what they cost, and what they ask you.</p></div>
    <${Provider} />
    <p>On the machine that runs it, <code>mainspring open</code> signs you in. Or sign in with the token that this prints:</p><pre class="command" tabindex="0"><code>mainspring serve --print-token</code></pre>
    <label>Token or API key<input name="key" type="password" autocomplete="current-password" required spellcheck="false" placeholder="Token, or msk_…" /></label>
    <label class="check"><input name="keep" type="checkbox" checked /> Keep me signed in on this browser</label>
    ${error && html`<${Problem} error=${error} />`}
    <button class="primary" disabled=${busy}>${busy ? 'Signing in…' : 'Sign in'}</button>
    <p class="note">Keys for other people are made with <code>mainspring key create NAME</code>.</p>
  </form></main>`;
}

/** The button that leads to the identity provider. */
function Provider() {
  const [provider, setProvider] = useState(null);
  useEffect(() => { identityProvider().then(setProvider); }, []);
  if (!provider) return null;
  const host = new URL(provider.issuer).host;
  return html`<div class="provider"><button type="button" class="primary" disabled=${!provider.authorizationEndpoint} onClick=${() => goToProvider(provider)}>Sign in with ${host}</button>
    ${!provider.authorizationEndpoint && html`<p class="note">${host} does not answer now. Try again later, or use a key.</p>`}<p class="or"><span>or</span></p></div>`;
}
