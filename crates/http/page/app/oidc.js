// Signing in at an identity provider: authorization code with PKCE.
//
// The page makes a verifier, a state and a nonce and keeps them in this tab. The
// provider sends the browser back with a code; the server exchanges the code and
// the verifier for a token, which the page then uses like a key.
import { api, setCredentials } from './api.js';

const STORED = 'mainspring.oidc';

const encode = bytes => btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const random = () => encode(crypto.getRandomValues(new Uint8Array(32)));

/** The identity provider of this server, or null: none is set up, or this browser cannot sign in there. */
export async function identityProvider() {
  // Browsers hash only on pages that came over TLS or from this machine.
  if (!globalThis.crypto?.subtle) return null;
  const ways = await api.signInWays().catch(() => ({}));
  return ways.oidc || null;
}

/** Leaves this page for the identity provider. */
export async function goToProvider({ authorizationEndpoint, clientId }) {
  const asked = { verifier: random(), state: random(), nonce: random(), hash: location.hash };
  sessionStorage.setItem(STORED, JSON.stringify(asked));
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(asked.verifier));
  const url = new URL(authorizationEndpoint);
  const parameters = {
    response_type: 'code', client_id: clientId, redirect_uri: `${location.origin}/`, scope: 'openid profile email',
    state: asked.state, nonce: asked.nonce, code_challenge: encode(new Uint8Array(digest)), code_challenge_method: 'S256',
  };
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  location.assign(url);
}

/** Takes the answer of the identity provider from the address, if there is one; answers the problem, if there is one. */
export async function finishSignIn() {
  const answer = new URLSearchParams(location.search);
  if (!answer.has('code') && !answer.has('error')) return null;
  let asked = {};
  try {
    asked = JSON.parse(sessionStorage.getItem(STORED)) || {};
  } catch { /* unreadable: as if nothing was asked */ }
  sessionStorage.removeItem(STORED);
  history.replaceState(null, '', `${location.pathname}${asked.hash || '#/'}`);
  // A replaced address is not announced, and the view of the old one may be chosen already.
  dispatchEvent(new HashChangeEvent('hashchange'));
  const refused = message => ({ code: 'authentication', message, remedy: 'Sign in again.' });
  if (!asked.state || answer.get('state') !== asked.state) return refused('The identity provider answers a question that this page has not asked.');
  if (answer.has('error')) return refused(`The identity provider refuses: ${answer.get('error_description') || answer.get('error')}`);
  try {
    const { token } = await api.signInExchange({ code: answer.get('code'), verifier: asked.verifier, nonce: asked.nonce });
    setCredentials({ kind: 'oidc', key: token });
    return null;
  } catch (error) {
    if (error.code === undefined) throw error;
    return error;
  }
}
