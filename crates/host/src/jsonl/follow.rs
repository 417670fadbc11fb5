//! Event readers: one for each session with live queries, which translates the events of each query's run.
//!
//! A query joins the reader of its session. It gets its own reader, which starts at the run's beginning, if the
//! session's reader has already skipped events of the query's run, or if the query repeats an earlier request. With a
//! slow host a reader falls behind, and streamed text is sent in fewer and longer lines.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::FutureExt;
use mainspring_api::jsonl::Reply;
use mainspring_client::{AcceptedRun, Client, Events, Item, Thought};
use mainspring_core::{
    BindingId, Body, Event, EventId, LiveEvent, MessageId, Position, Run, RunId, SessionId,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::live::Query;
use super::login::{self, QueryEnd};
use super::translate::{End, Translation, Translator};
use super::{Shared, code_and_message};

/// Size at which pending text is sent.
const TEXT_FLUSH_BYTES: usize = 64 << 10;
/// Delay before a refused stream is requested again.
const RETRY_DELAY_MS: u64 = 50;

/// The session readers.
#[derive(Default)]
pub(super) struct Followers {
    /// The readers that queries can join.
    open: Mutex<HashMap<SessionId, Arc<Mutex<Following>>>>,
    /// The number of all readers.
    count: watch::Sender<usize>,
}

impl Followers {
    /// Resolves when no reader is left: each has handled everything that its server sent.
    pub(super) async fn done(&self) {
        // The wait cannot fail: the sender lives as long as `self`.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn enter(&self) -> ReaderGuard<'_> {
        self.count.send_modify(|count| *count += 1);
        ReaderGuard(self)
    }
}

/// Counts a reader until it is dropped.
struct ReaderGuard<'a>(&'a Followers);

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
    }
}

/// The queries of a reader.
#[derive(Default)]
struct Following {
    translators: HashMap<RunId, Translator>,
    /// Runs whose events were read before a query for them joined.
    skipped: HashSet<RunId>,
    closed: bool,
}

/// Sends all events of a run to `query`. Either adds the query to the reader of the session and returns, or becomes a
/// reader and returns once it has no queries left.
pub(super) async fn follow(shared: &Arc<Shared>, query: Arc<Query>, accepted: AcceptedRun) {
    let AcceptedRun { run, position, replayed, .. } = accepted;
    if replayed && let Some(end) = End::of(&run) {
        return send_past_end(shared, &query, &run, &end).await;
    }
    let (session, id) = (run.session, run.id);
    let translator = Translator::new(query.clone());
    let mine = {
        let mut followers = shared.followers.open.lock();
        let known = (!replayed).then(|| followers.get(&session)).flatten();
        if let Some(known) = known {
            let mut following = known.lock();
            if !following.closed && !following.skipped.contains(&id) {
                following.translators.insert(id, translator);
                return;
            }
        }
        let new = Arc::new(Mutex::new(Following {
            translators: HashMap::from([(id, translator)]),
            ..Following::default()
        }));
        if !replayed && !followers.contains_key(&session) {
            followers.insert(session, new.clone());
        }
        new
    };
    let owner = query.owner.clone();
    let mut reader = Reader {
        shared: shared.clone(),
        owner,
        session,
        // A replayed run is sent from its beginning.
        only: replayed.then_some(id),
        from: (!replayed).then_some(position),
        history: None,
        following: mine,
        wake: Arc::default(),
        pending: None,
    };
    let _entered = shared.followers.enter();
    reader.read().await;
}

/// Looks up the native session id of a binding and sets it on the query. Failing is not fatal: the id is only
/// informative.
async fn look_up_native_session(shared: &Shared, query: &Query, session: SessionId, binding: BindingId) {
    let ask = |client: Client| async move { client.binding_list(&session.to_string()).await };
    match shared.link.ask(&query.owner, ask).await {
        Ok(bindings) => {
            let found = bindings.into_iter().find(|known| known.id == binding);
            query.update(|known| known.native = found.and_then(|binding| binding.native));
        }
        Err(error) => tracing::info!(%session, %error, "native session id is not available"),
    }
}

/// Sends the end of a run that has already ended.
async fn send_past_end(shared: &Shared, query: &Arc<Query>, run: &Run, end: &End) {
    query.update(|known| known.attempt = run.last_attempt);
    let id = run.id;
    let ask = |client: Client| async move { client.run_attempts(id).await };
    let attempts = shared.link.ask(&query.owner, ask).await.ok().and_then(|attempts| attempts.intact().ok());
    if let Some(binding) = attempts.unwrap_or_default().last().and_then(|attempt| attempt.binding) {
        look_up_native_session(shared, query, run.session, binding).await;
    }
    if end.wants_login() {
        login::require(shared, query, None).await;
    }
    finish(shared, query, end.line(query, run.final_text.as_deref().unwrap_or_default(), None)).await;
}

/// Sends the last line of a query, after the acknowledgement of every interrupt.
pub(super) async fn finish(shared: &Shared, query: &Query, last: Vec<u8>) {
    let _acknowledged = query.acknowledging.write().await;
    shared.logins.remove(query);
    // Removed before the line is sent: the host may reuse the request id as soon as it reads the line.
    if shared.live.end(query) {
        shared.output.line(last).await;
    }
}

async fn fail(shared: &Shared, query: &Query, (code, message): &(String, String)) {
    finish(shared, query, Reply::error(code, message).encode(&query.line_ids(None))).await;
}

struct Reader {
    shared: Arc<Shared>,
    owner: String,
    session: SessionId,
    /// The only run whose events are read; `None` to read all events of the session.
    only: Option<RunId>,
    /// The position to read from; `None` for the beginning.
    from: Option<Position>,
    /// The history that `from` belongs to.
    history: Option<String>,
    following: Arc<Mutex<Following>>,
    /// Notified when a query was removed from `following`.
    wake: Arc<Notify>,
    /// Text that was read but not sent.
    pending: Option<(Arc<Query>, String)>,
}

impl Reader {
    async fn read(&mut self) {
        let (mut events, mut server_no) = self.open();
        while !self.close_if_unused() {
            let item = match events.next().now_or_never() {
                Some(item) => item,
                // No more events for now: send the pending text.
                None => {
                    self.flush().await;
                    tokio::select! {
                        item = events.next() => item,
                        () = self.wake.notified() => continue,
                    }
                }
            };
            match item {
                Some(Ok(item)) => self.item(item).await,
                Some(Err(error)) if error.is_gone() => {
                    self.from = events.position();
                    self.history = events.history().map(str::to_owned);
                    if !self.shared.link.renewed(server_no).await {
                        // `Jsonl::finish` ends the remaining queries.
                        return self.flush().await;
                    }
                    (events, server_no) = self.open();
                }
                Some(Err(error)) if error.is_retryable() => {
                    let clock = &self.shared.clock;
                    clock.sleep_for(RETRY_DELAY_MS).await;
                }
                Some(Err(error)) => return self.fail(&code_and_message(&error)).await,
                None => return self.fail(&("not_found".into(), "the session was deleted".into())).await,
            }
        }
    }

    fn open(&self) -> (Events, u64) {
        let (client, server_no) = self.shared.link.client(&self.owner);
        let events = match self.only {
            Some(run) => client.run_events(run, self.from),
            None => client.session_events(&self.session.to_string(), self.from.unwrap_or(Position::START)),
        };
        // On a lost connection the link supplies the next server.
        (events.give_up_after(1).in_history(self.history.clone()), server_no)
    }

    /// Closes the reader if it has no queries: from then on no query can join. Returns true if the reader is closed.
    fn close_if_unused(&self) -> bool {
        let mut followers = self.shared.followers.open.lock();
        let mut following = self.following.lock();
        following.closed = following.translators.is_empty();
        if following.closed
            && followers.get(&self.session).is_some_and(|known| Arc::ptr_eq(known, &self.following))
        {
            followers.remove(&self.session);
        }
        following.closed
    }

    async fn item(&mut self, item: Item) {
        match item {
            Item::Live(LiveEvent {
                run: Some(run),
                body: Body::MessageDelta { message_id, text, .. },
                ..
            }) => {
                self.delta(run, message_id, text).await;
            }
            Item::Event(event) => self.event(&event).await,
            Item::Thought(thought) => self.thought(&thought).await,
            Item::Reset(_) => self.catch_up().await,
            // Streamed text of an unknown run is not sent: it is part of the completed message, which follows. Text
            // that a crash rolled back was already sent and cannot be withdrawn; its run does not succeed.
            Item::Live(_) | Item::Unknown { .. } => {}
        }
    }

    async fn delta(&mut self, run: RunId, message: MessageId, text: String) {
        let query = {
            let mut following = self.following.lock();
            match following.translators.get_mut(&run) {
                Some(translator) => {
                    translator.record_streamed(message, text.len());
                    translator.query.clone()
                }
                None => {
                    following.skipped.insert(run);
                    return;
                }
            }
        };
        match &mut self.pending {
            Some((of, pending)) if Arc::ptr_eq(of, &query) => pending.push_str(&text),
            _ => {
                self.flush().await;
                self.pending = Some((query, text));
            }
        }
        if self.pending.as_ref().is_some_and(|(_, text)| text.len() >= TEXT_FLUSH_BYTES) {
            self.flush().await;
        }
    }

    async fn event(&mut self, event: &Event) {
        let Some(run) = event.run else {
            // The damaged event may belong to any run, and may have ended it.
            if matches!(event.body, Body::EventDamaged { .. }) {
                self.catch_up().await;
            }
            return;
        };
        if let Some(attempt) = event.attempt {
            self.shared.attempts.note(attempt, run);
        }
        if matches!(event.body, Body::AttemptCreated { .. }) {
            login::another_run_started(&self.shared, self.session, run).await;
        }
        let update = {
            let mut following = self.following.lock();
            match following.translators.get_mut(&run) {
                Some(translator) => {
                    let translation = translator.event(event);
                    let query = translator.query.clone();
                    Some((query, translation))
                }
                None => {
                    // A query loses nothing if it misses `run.queued`.
                    if !matches!(event.body, Body::RunQueued { .. }) {
                        following.skipped.insert(run);
                    }
                    None
                }
            }
        };
        let Some((query, Translation { lines, end, bound })) = update else { return };
        if matches!(event.body, Body::RunQueued { .. }) {
            self.shared.logins.remove(&query);
        }
        self.flush().await;
        if let Some(binding) = bound {
            look_up_native_session(&self.shared, &query, self.session, binding).await;
        }
        for line in lines {
            if !query.is_ended() {
                self.shared.output.line(line).await;
            }
        }
        if let Some(end) = end {
            self.end(run, &query, &end, event.id).await;
        }
    }

    /// Ends a query, unless it stays open until the user has logged in.
    async fn end(&self, run: RunId, query: &Arc<Query>, end: &End, event: EventId) {
        let known_text = {
            let following = self.following.lock();
            let translator = following.translators.get(&run).filter(|translator| !translator.gap);
            translator.map(|translator| translator.text().to_owned())
        };
        let text = match known_text {
            Some(text) => Ok(text),
            None => self.complete_text(run).await,
        };
        let last = match text {
            Ok(text) => end.line(query, &text, Some(event)),
            Err((code, message)) => Reply::error(&code, &message).encode(&query.line_ids(None)),
        };
        if end.wants_login() {
            let (following, wake) = (self.following.clone(), self.wake.clone());
            let stop_following = Box::new(move || {
                following.lock().translators.remove(&run);
                wake.notify_one();
            });
            let given_up = QueryEnd { last: last.clone(), stop_following };
            if login::require(&self.shared, query, Some(given_up)).await {
                return;
            }
        }
        self.following.lock().translators.remove(&run);
        finish(&self.shared, query, last).await;
    }

    /// Reads the complete text of a run after a gap.
    async fn complete_text(&self, run: RunId) -> Result<String, (String, String)> {
        let ask = |client: Client| async move { client.run_get(run).await };
        let run = self.shared.link.ask(&self.owner, ask).await.map_err(|error| code_and_message(&error))?;
        Ok(run.final_text.unwrap_or_default())
    }

    async fn thought(&mut self, thought: &Thought) {
        let query = {
            let following = self.following.lock();
            let run = self.shared.attempts.run_of(thought.attempt_id);
            run.and_then(|run| following.translators.get(&run)).map(|translator| translator.query.clone())
        };
        if let Some(query) = query.filter(|query| !query.is_ended()) {
            self.flush().await;
            self.shared
                .reply(&Reply::ThinkingDelta { text: (&thought.text).into() }, &query.line_ids(None))
                .await;
        }
    }

    /// Handles events that are pruned or damaged: fetches the state of each run.
    async fn catch_up(&mut self) {
        self.flush().await;
        let waiting: Vec<(RunId, Arc<Query>)> = {
            let mut following = self.following.lock();
            following.translators.values_mut().for_each(|translator| translator.gap = true);
            following.translators.iter().map(|(run, translator)| (*run, translator.query.clone())).collect()
        };
        for (id, query) in waiting {
            let ask = |client: Client| async move { client.run_get(id).await };
            match self.shared.link.ask(&self.owner, ask).await {
                Ok(run) => {
                    // A query that waits for a login stays open after its run has failed for the lack of it.
                    let waits = self.shared.logins.is_waiting(&query);
                    let end = End::of(&run).filter(|end| !(waits && end.wants_login()));
                    if let Some(end) = end {
                        self.following.lock().translators.remove(&id);
                        send_past_end(&self.shared, &query, &run, &end).await;
                    }
                }
                Err(error) => {
                    self.following.lock().translators.remove(&id);
                    fail(&self.shared, &query, &code_and_message(&error)).await;
                }
            }
        }
    }

    /// Sends the pending text.
    async fn flush(&mut self) {
        if let Some((query, text)) = self.pending.take().filter(|(query, _)| !query.is_ended()) {
            self.shared.reply(&Reply::TextDelta { text: (&text).into() }, &query.line_ids(None)).await;
        }
    }

    /// Ends all queries of the reader with an error.
    async fn fail(&mut self, why: &(String, String)) {
        self.flush().await;
        loop {
            let queries: Vec<Arc<Query>> = {
                let mut following = self.following.lock();
                following.translators.drain().map(|(_, translator)| translator.query).collect()
            };
            for query in queries {
                fail(&self.shared, &query, why).await;
            }
            if self.close_if_unused() {
                return;
            }
        }
    }
}
