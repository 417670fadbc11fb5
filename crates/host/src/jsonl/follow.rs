//! Following: one reader for each session that has a live query, which tells each query what happens in its run.
//!
//! A query joins the reader of its session, unless that has read over something of its run already: then it gets a reader of
//! its own, which begins where the run does. A reader that finds its host slow reads late, and what is streamed meanwhile
//! comes as fewer and longer lines.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::FutureExt;
use mainspring_api::jsonl::Reply;
use mainspring_client::{AcceptedRun, Client, Error, Events, EventsQuery, Item, Snapshot, Thought};
use mainspring_core::{
    BindingId, Body, Event, EventId, LiveEvent, MessageId, Position, Run, RunId, SessionId,
};
use parking_lot::Mutex;

use super::live::Query;
use super::tell::{End, Teller, Told, spoken};
use super::{Shared, told};
use crate::link::Link;

/// How much text goes into one line at most.
const STRETCH: usize = 64 << 10;
/// How long to wait before asking again for a stream that is refused for now, in milliseconds.
const PAUSE: u64 = 50;

/// The readers of sessions, where others may join.
#[derive(Default)]
pub(super) struct Followers(Mutex<HashMap<SessionId, Arc<Mutex<Following>>>>);

/// Who is told by a reader.
#[derive(Default)]
struct Following {
    tellers: HashMap<RunId, Teller>,
    /// Runs of which something was read that nobody was there to be told.
    missed: HashSet<RunId>,
    over: bool,
}

/// Tells `query` everything of its run, to its end.
pub(super) async fn follow(shared: &Arc<Shared>, query: Arc<Query>, accepted: AcceptedRun) {
    let AcceptedRun { run, position, replayed, .. } = accepted;
    if replayed && let Some(end) = End::of(&run) {
        return recall(shared, &query, &run, &end).await;
    }
    let (session, id) = (run.session, run.id);
    let teller = Teller::new(query.clone());
    let mine = {
        let mut followers = shared.followers.0.lock();
        let known = (!replayed).then(|| followers.get(&session)).flatten();
        if let Some(known) = known {
            let mut following = known.lock();
            if !following.over && !following.missed.contains(&id) {
                following.tellers.insert(id, teller);
                return;
            }
        }
        let mine = Arc::new(Mutex::new(Following {
            tellers: HashMap::from([(id, teller)]),
            ..Following::default()
        }));
        if !replayed && !followers.contains_key(&session) {
            followers.insert(session, mine.clone());
        }
        mine
    };
    let owner = query.owner.clone();
    let mut reader = Reader {
        shared: shared.clone(),
        owner,
        session,
        // Of a run that was accepted before, everything is told.
        only: replayed.then_some(id),
        from: (!replayed).then_some(position),
        following: mine,
        pending: None,
    };
    reader.read().await;
}

/// Learns the native session that a run uses. It is only a name: that it cannot be had is no reason to stop.
async fn bind(shared: &Shared, query: &Query, session: SessionId, binding: BindingId) {
    let ask = |client: Client| async move { client.binding_list(&session.to_string()).await };
    match shared.link.ask(&query.owner, ask).await {
        Ok(bindings) => {
            let found = bindings.into_iter().find(|known| known.id == binding);
            query.learn(|known| known.native = found.and_then(|binding| binding.native));
        }
        Err(error) => tracing::info!(%session, %error, "the agent's own session is not known"),
    }
}

/// Tells how a run ended that has ended before.
async fn recall(shared: &Shared, query: &Query, run: &Run, end: &End) {
    query.learn(|known| known.attempt = run.last_attempt);
    let id = run.id;
    let ask = |client: Client| async move { client.run_attempts(id).await };
    let attempts = shared.link.ask(&query.owner, ask).await.unwrap_or_default();
    if let Some(binding) = attempts.last().and_then(|attempt| attempt.binding) {
        bind(shared, query, run.session, binding).await;
    }
    let text = match said(&shared.link, &query.owner, run).await {
        Ok(text) => text,
        Err(error) => return fail(shared, query, &told(&error)).await,
    };
    end_with(shared, query, end, &text, None).await;
}

/// Everything the agent said in a run that has ended.
pub(crate) async fn said(link: &Link, owner: &str, run: &Run) -> Result<String, Error> {
    let id = run.id;
    let mut text = String::new();
    let mut after = Position::START;
    loop {
        let query = EventsQuery::after(after, None);
        let ask = |client: Client| {
            let query = &query;
            async move { client.run_events_page(id, query).await }
        };
        match link.ask(owner, ask).await {
            Ok(page) => {
                text.extend(page.items.iter().filter_map(|event| spoken(&event.body)));
                match page.next.and_then(|next| next.parse().ok()) {
                    Some(next) => after = next,
                    None => return Ok(text),
                }
            }
            // The events are gone; the last message is not.
            Err(error) if error.is_cursor_expired() => break,
            Err(error) => return Err(error),
        }
    }
    let Some(message) = run.final_message else { return Ok(String::new()) };
    let session = run.session.to_string();
    let ask = |client: Client| {
        let session = &session;
        async move { client.session_message(session, message).await }
    };
    Ok(link.ask(owner, ask).await?.node.message.text())
}

/// Says how a query ended; if its agent wants the user to authenticate, which ways there are to.
async fn end_with(shared: &Shared, query: &Query, end: &End, text: &str, event: Option<EventId>) {
    if end.wants_login() {
        super::login::demand(shared, query).await;
    }
    finish(shared, query, end.line(query, text, event)).await;
}

/// Says the line that ends a query, after the answer to every wish to stop it.
async fn finish(shared: &Shared, query: &Query, last: Vec<u8>) {
    let _acknowledged = query.acknowledging.write().await;
    // First it has an end, then it is told: who hears it may use the name again at once.
    shared.live.end(query);
    shared.out.line(last).await;
}

async fn fail(shared: &Shared, query: &Query, (code, message): &(String, String)) {
    finish(shared, query, Reply::error(code, message).encode(&query.names(None))).await;
}

struct Reader {
    shared: Arc<Shared>,
    owner: String,
    session: SessionId,
    only: Option<RunId>,
    from: Option<Position>,
    following: Arc<Mutex<Following>>,
    /// Text that has been read and not been said.
    pending: Option<(Arc<Query>, String)>,
}

impl Reader {
    async fn read(&mut self) {
        let (mut events, mut no) = self.open();
        while !self.is_over() {
            let item = match events.next().now_or_never() {
                Some(item) => item,
                // Nothing more has come: what there is goes out.
                None => {
                    self.flush().await;
                    events.next().await
                }
            };
            match item {
                Some(Ok(item)) => self.item(item).await,
                Some(Err(error)) if error.is_gone() => {
                    self.from = events.position();
                    if !self.shared.link.renewed(no).await {
                        // Whoever ends this process says what is true of those who still wait.
                        return self.flush().await;
                    }
                    (events, no) = self.open();
                }
                Some(Err(error)) if error.is_retryable() => {
                    let clock = &self.shared.clock;
                    clock.sleep_until(clock.now().plus(PAUSE)).await;
                }
                Some(Err(error)) => return self.fail(&told(&error)).await,
                None => return self.fail(&("not_found".into(), "the session was deleted".into())).await,
            }
        }
    }

    fn open(&self) -> (Events, u64) {
        let (client, no) = self.shared.link.client(&self.owner);
        let events = match self.only {
            Some(run) => client.run_events(run, self.from),
            None => client.session_events(&self.session.to_string(), self.from.unwrap_or(Position::START)),
        };
        // Who finds nobody asks where the sessions are now.
        (events.give_up_after(1), no)
    }

    /// True once there is nobody to tell anything. From then on nobody joins.
    fn is_over(&self) -> bool {
        let mut followers = self.shared.followers.0.lock();
        let mut following = self.following.lock();
        following.over = following.tellers.is_empty();
        if following.over
            && followers.get(&self.session).is_some_and(|known| Arc::ptr_eq(known, &self.following))
        {
            followers.remove(&self.session);
        }
        following.over
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
            Item::Reset(snapshot) => self.reset(*snapshot).await,
            // Text of a run that is not known is told with its message; text that a crash took back was said and cannot be
            // unsaid, and its run has an end that is no success.
            Item::Live(_) | Item::Unknown { .. } => {}
        }
    }

    async fn delta(&mut self, run: RunId, message: MessageId, text: String) {
        let query = {
            let mut following = self.following.lock();
            match following.tellers.get_mut(&run) {
                Some(teller) => {
                    teller.streamed(message, text.len());
                    teller.query.clone()
                }
                None => {
                    following.missed.insert(run);
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
        if self.pending.as_ref().is_some_and(|(_, text)| text.len() >= STRETCH) {
            self.flush().await;
        }
    }

    async fn event(&mut self, event: &Event) {
        let Some(run) = event.run else { return };
        if let Some(attempt) = event.attempt {
            self.shared.attempts.note(attempt, run);
        }
        let news = {
            let mut following = self.following.lock();
            match following.tellers.get_mut(&run) {
                Some(teller) => {
                    let told = teller.event(event);
                    let query = teller.query.clone();
                    let ended = told.end.is_some().then(|| following.tellers.remove(&run)).flatten();
                    Some((query, told, ended))
                }
                None => {
                    // That it waits its turn is all that can be missed.
                    if !matches!(event.body, Body::RunQueued { .. }) {
                        following.missed.insert(run);
                    }
                    None
                }
            }
        };
        let Some((query, Told { lines, end, bound }, ended)) = news else { return };
        self.flush().await;
        if let Some(binding) = bound {
            bind(&self.shared, &query, self.session, binding).await;
        }
        for line in lines {
            self.shared.out.line(line).await;
        }
        if let (Some(end), Some(teller)) = (end, ended) {
            let text = match teller.gap {
                true => self.whole(run).await,
                false => Ok(teller.text().to_owned()),
            };
            match text {
                Ok(text) => end_with(&self.shared, &query, &end, &text, Some(event.id)).await,
                Err(error) => fail(&self.shared, &query, &told(&error)).await,
            }
        }
    }

    /// Everything that was said in a run of which some was not seen.
    async fn whole(&self, run: RunId) -> Result<String, Error> {
        let ask = |client: Client| async move { client.run_get(run).await };
        let run = self.shared.link.ask(&self.owner, ask).await?;
        said(&self.shared.link, &self.owner, &run).await
    }

    async fn thought(&mut self, thought: &Thought) {
        let query = {
            let following = self.following.lock();
            let run = self.shared.attempts.run_of(thought.attempt_id);
            run.and_then(|run| following.tellers.get(&run)).map(|teller| teller.query.clone())
        };
        if let Some(query) = query {
            self.flush().await;
            self.shared.say(&Reply::ThinkingDelta { text: (&thought.text).into() }, &query.names(None)).await;
        }
    }

    /// Events were pruned that had not been read: where each run stands is asked.
    async fn reset(&mut self, _now: Snapshot) {
        self.flush().await;
        let waiting: Vec<(RunId, Arc<Query>)> = {
            let mut following = self.following.lock();
            following.tellers.values_mut().for_each(|teller| teller.gap = true);
            following.tellers.iter().map(|(run, teller)| (*run, teller.query.clone())).collect()
        };
        for (id, query) in waiting {
            let ask = |client: Client| async move { client.run_get(id).await };
            match self.shared.link.ask(&self.owner, ask).await {
                Ok(run) => {
                    if let Some(end) = End::of(&run) {
                        self.following.lock().tellers.remove(&id);
                        recall(&self.shared, &query, &run, &end).await;
                    }
                }
                Err(error) => {
                    self.following.lock().tellers.remove(&id);
                    fail(&self.shared, &query, &told(&error)).await;
                }
            }
        }
    }

    /// Says the text that has been read.
    async fn flush(&mut self) {
        if let Some((query, text)) = self.pending.take() {
            self.shared.say(&Reply::TextDelta { text: (&text).into() }, &query.names(None)).await;
        }
    }

    /// Nothing more can be read: everybody is told why.
    async fn fail(&mut self, why: &(String, String)) {
        self.flush().await;
        loop {
            let queries: Vec<Arc<Query>> = {
                let mut following = self.following.lock();
                following.tellers.drain().map(|(_, teller)| teller.query).collect()
            };
            for query in queries {
                fail(&self.shared, &query, why).await;
            }
            if self.is_over() {
                return;
            }
        }
    }
}
