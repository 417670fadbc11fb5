// Every request of the page: credentials, JSON, and problems as errors.
//
// A page that was opened with a ticket has an HttpOnly cookie and a second
// secret, which it sends as a header. For a person with an API key, the page sends
// the key; after a sign-in at an identity provider, it sends the provider's token.
// All of these are kept for this origin only and are never part of an address.

const STORED = 'mainspring.credentials';
const listeners = new Set();
let credentials = read();

function read() {
  for (const place of [sessionStorage, localStorage]) {
    try {
      const found = JSON.parse(place.getItem(STORED));
      if (found?.kind) return found;
    } catch { /* unreadable: as if there were none */ }
  }
  return null;
}

export const signedIn = () => credentials !== null;
export const signInKind = () => credentials?.kind ?? null;

function authHeaders() {
  if (!credentials) return {};
  return credentials.key ? { Authorization: `Bearer ${credentials.key}` } : { 'Mainspring-Page': credentials.secret };
}

/** Calls `listener` with the headers of the present credentials, now and when they change. */
export function onCredentials(listener) {
  listeners.add(listener);
  listener(authHeaders());
}

export function setCredentials(next, keep = true) {
  credentials = next;
  sessionStorage.removeItem(STORED);
  localStorage.removeItem(STORED);
  if (next) (keep ? localStorage : sessionStorage).setItem(STORED, JSON.stringify(next));
  for (const listener of listeners) listener(authHeaders());
}

/** An error of the server, as RFC 9457 describes it, or of the way to it. */
export class Problem extends Error {
  constructor(body) {
    super(body.detail || body.title || 'the request failed');
    Object.assign(this, body);
    this.remedy = REMEDIES[body.code] || '';
  }
}

const REMEDIES = {
  authentication: 'Sign in again: the key is wrong, expired or revoked.',
  forbidden: 'Ask somebody with the role member or admin.',
  session_busy: 'Wait until its run has ended, or stop it.',
  session_closed: 'Reopen the session first.',
  already_answered: 'Nothing is left to do: the first answer counts.',
  not_waiting: 'The wait has ended; the session shows how.',
  run_ended: 'The run has already ended.',
  folder_not_allowed: 'Choose another folder, or allow this one in the configuration.',
  adapter_not_registered: 'Choose an agent of the list, or configure this one.',
  version_conflict: 'Somebody changed it in the meantime: read it again.',
  overloaded: 'The server is at its limit: try again in a moment.',
  store_full: 'The disk of the server is full: free some space.',
  unavailable: 'The store does not answer: look at the log of the server.',
  shutting_down: 'The server is stopping: start it again.',
  too_large: 'Shorten it, or attach it as a file.',
  unreachable: 'Is it running? Start it with: mainspring serve',
};

let onSignedOut = () => {};
export const whenSignedOut = then => { onSignedOut = then; };
export const reportSignedOut = () => { if (credentials) onSignedOut(); };

const name = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, '0')).join('');

/** Sends a request; answers its JSON (or the response with `raw`), or throws a Problem. */
export async function request(method, path, { body, headers = {}, query, raw, once } = {}) {
  const all = { ...authHeaders(), ...headers };
  if (once) all['Idempotency-Key'] = name();
  let payload = body;
  if (body !== undefined && !(body instanceof Blob)) {
    payload = JSON.stringify(body);
    all['Content-Type'] = 'application/json';
  }
  let response;
  try {
    response = await fetch(path + search(query), { method, headers: all, body: payload, cache: 'no-store', credentials: 'same-origin' });
  } catch {
    throw new Problem({ code: 'unreachable', status: 0, detail: 'The server does not answer.', retryable: true });
  }
  if (!response.ok) throw await problem(response);
  if (raw) return response;
  return response.status === 204 ? null : response.json();
}

async function problem(response) {
  let body = {};
  try {
    body = await response.json();
  } catch { /* refused before it was parsed: no document */ }
  if (response.status === 401) reportSignedOut();
  return new Problem({ code: `http_${response.status}`, detail: response.statusText, ...body, status: response.status });
}

function search(query) {
  const pairs = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return pairs.length ? `?${new URLSearchParams(pairs)}` : '';
}

export const get = (path, query) => request('GET', path, { query });
export const post = (path, body, options) => request('POST', path, { body, ...options });

/** Reads up to `most` items of a list, page by page. `next` goes into `parameter`. */
export async function pages(path, query = {}, most = 1000, parameter = 'before') {
  const items = [];
  let next;
  do {
    const page = await get(path, { ...query, limit: Math.min(most - items.length, 500), ...(next ? { [parameter]: next } : {}) });
    items.push(...page.items);
    next = page.next;
  } while (next && items.length < most);
  return { items, next };
}

const at = strings => strings.map(encodeURIComponent).join('/');
const session = (id, ...rest) => `/v1/sessions/${at([id, ...rest])}`;
const run = (id, ...rest) => `/v1/runs/${at([id, ...rest])}`;
const webhook = (id, ...rest) => `/v1/webhooks/${at([id, ...rest])}`;

export const paths = { session, run, ownerEvents: '/v1/events?types=run,session,input,approval,tools,tool,message,progress', sessionEvents: id => `${session(id, 'events')}?mode=observer` };

export const api = {
  adapters: () => get('/v1/adapters'),
  models: () => get('/v1/models'),
  health: () => get('/health'),
  ready: () => get('/ready'),
  metrics: () => request('GET', '/metrics', { raw: true }).then(r => r.text()),
  logins: adapter => get(`/v1/adapters/${encodeURIComponent(adapter)}/logins`),
  login: (adapter, methodId) => post(`/v1/adapters/${encodeURIComponent(adapter)}/logins`, { methodId }),
  sessions: query => get('/v1/sessions', query),
  sessionCreate: body => post('/v1/sessions', body, { once: true }),
  sessionGet: id => get(session(id)),
  sessionPatch: (id, body) => request('PATCH', session(id), { body }),
  sessionPin: (id, pinned) => request(pinned ? 'PUT' : 'DELETE', session(id, 'pin')),
  sessionDelete: id => request('DELETE', session(id)),
  snapshot: id => get(session(id, 'snapshot')),
  messages: (id, query) => get(session(id, 'messages'), query),
  message: (id, messageId) => get(session(id, 'messages', messageId)),
  navigate: (id, messageId) => post(session(id, 'navigate'), { messageId }),
  fork: (id, body) => post(session(id, 'fork'), body),
  sessionUsage: id => get(session(id, 'usage')),
  feedback: id => get(session(id, 'feedback')),
  feedbackGive: (id, messageId, body) => request('PUT', session(id, 'messages', messageId, 'feedback'), { body }),
  changes: (id, query) => get(session(id, 'changes'), query),
  usage: query => get('/v1/usage', query),
  stderr: id => get(`/v1/attempts/${encodeURIComponent(id)}/stderr`),
  sessionEvents: (id, query) => get(session(id, 'events'), query),
  sessionArtifacts: (id, query) => get(session(id, 'artifacts'), query),
  upload: (id, file) => request('POST', session(id, 'artifacts'), { body: file, query: { name: file.name || 'pasted', role: 'input' }, headers: { 'Content-Type': file.type || 'application/octet-stream' }, once: true }),
  prompt: (id, body) => post(session(id, 'runs'), body, { once: true }),
  run: id => get(run(id)),
  runs: query => get('/v1/runs', query),
  attempts: id => get(run(id, 'attempts')),
  steps: id => get(run(id, 'steps')),
  delegations: id => get(run(id, 'delegations')),
  route: id => get(run(id, 'route')),
  runArtifacts: id => get(run(id, 'artifacts')),
  processes: id => get(run(id, 'processes')),
  processesEnd: id => post(run(id, 'processes', 'end')),
  cancel: id => post(run(id, 'cancel')),
  retry: id => post(run(id, 'retry')),
  answer: (id, waitId, answer) => post(run(id, 'answer'), { waitId, answer }),
  artifact: id => get(`/v1/artifacts/${encodeURIComponent(id)}`),
  artifactContent: id => request('GET', `/v1/artifacts/${encodeURIComponent(id)}/content`, { raw: true }),
  search: query => get('/v1/search', query),
  keys: query => get('/v1/keys', query),
  keyCreate: body => post('/v1/keys', body, { once: true }),
  keyRevoke: id => request('DELETE', `/v1/keys/${encodeURIComponent(id)}`),
  grants: query => get('/v1/grants', query),
  grantRevoke: id => post(`/v1/grants/${encodeURIComponent(id)}/revoke`),
  webhooks: () => get('/v1/webhooks'),
  webhookCreate: body => post('/v1/webhooks', body),
  webhookRemove: id => request('DELETE', webhook(id)),
  webhookTest: id => post(webhook(id, 'test')),
  webhookDead: (id, query) => get(webhook(id, 'dead'), query),
  webhookRetry: (id, cursor) => post(webhook(id, 'dead', String(cursor), 'retry')),
  ownerEvents: query => get('/v1/events', query),
  redeem: ticket => post('/v1/tickets/redeem', { ticket }),
  signInWays: () => get('/v1/sign-in'),
  signInExchange: body => post('/v1/sign-in/oidc', body),
  me: () => get('/v1/me'),
};
