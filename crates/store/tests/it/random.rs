//! One random sequence through every store, compared at every step.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{
    Chunk, Commit, Effect, Fence, InboxItem, NewEvent, Request, Row, RunPage, SessionPage, SessionRef, Store,
};
use mainspring_store::MemoryStore;
use serde_json::json;

use crate::fixtures::*;
use crate::steps::step as step_of;

const SESSIONS: u64 = 6;
const RUNS: u64 = 24;
const STEPS: usize = 600;

/// A small generator, so that a seed is all one needs to see a failure again (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    fn state(&mut self) -> RunState {
        let attempt = attempt_id(self.roll(9));
        match self.roll(5) {
            0 => RunState::Running { attempt },
            1 => RunState::Queued { retry_at: self.chance(50).then_some(NOW) },
            2 => RunState::Failed { error: Failure::new("lost", "gone") },
            3 => RunState::Cancelled { reason: CancelReason::Requested },
            _ => RunState::Succeeded {},
        }
    }

    fn text(&mut self) -> String {
        format!("text {}", self.roll(1000))
    }

    /// A row of any kind for session `of`. Small numbers make for collisions.
    fn row(&mut self, of: u64) -> Row {
        let (line_no, pos) =
            (i64::try_from(of * 3 + self.roll(3)).unwrap(), u32::try_from(self.roll(4)).unwrap());
        let n = self.roll(RUNS);
        match self.roll(14) {
            0 | 1 => {
                let no = u32::try_from(n + 1).unwrap();
                let asked = RequestName {
                    client_id: self.chance(50).then(|| "desk".into()),
                    request_id: Some(format!("r{}", self.roll(20))),
                    idempotency_key: None,
                };
                row_run(Run { request: asked, ..run(n, n % SESSIONS, no, self.state()) })
            }
            2 => {
                let status =
                    [RunStatus::Running, RunStatus::Failed, RunStatus::Succeeded][self.roll(3) as usize];
                let no = self.roll(3) + 1;
                row_attempt(attempt(n * 3 + no, n, u32::try_from(no).unwrap(), status))
            }
            3 => Row::Line(line(line_no, None, 4)),
            4 => {
                let parent = point(i64::try_from(self.roll(SESSIONS * 3)).unwrap(), pos);
                Row::Line(line(100 + line_no, Some(parent), 2))
            }
            5 | 6 => {
                let id = of * 50 + self.roll(12);
                row_message(message(id, of, &self.text()), self.chance(80).then_some(point(line_no, pos)))
            }
            7 => Row::MessagePlace(message_id(of * 50 + self.roll(12)), point(line_no, pos)),
            8 => Row::Cursor(point(line_no, pos), self.chance(60).then_some(LineId(100 + line_no))),
            9 => Row::ChunksDrop(self.roll(60)),
            10 => Row::Effect(Effect {
                run: run_id(n),
                tool_use_id: format!("t{}", self.roll(3)),
                name: self.text(),
            }),
            11 => Row::EffectEnd(run_id(n), format!("t{}", self.roll(3))),
            12 => {
                let item = InboxItem { id: event_id(self.roll(20)), at: NOW, item: json!({"n": n}) };
                if self.chance(60) {
                    Row::Inbox(session_id(self.roll(SESSIONS)), item)
                } else {
                    Row::InboxTaken(item.id)
                }
            }
            _ => Row::Request(Box::new(Request {
                owner: OWNER.into(),
                operation: "session_create".into(),
                key: format!("k{}", self.roll(30)),
                fingerprint: [1; 16],
                answer: self.text(),
                at: NOW.plus(self.roll(3) * 13 * 60 * 60 * 1000),
            })),
        }
    }

    fn session(&mut self, of: u64) -> Row {
        let status = match self.roll(10) {
            0 => SessionStatus::Deleted,
            1 => SessionStatus::Archived,
            _ => SessionStatus::Open,
        };
        row_session(Session {
            key: self.chance(40).then(|| format!("k{}", self.roll(4))),
            status,
            tip: self.chance(50).then(|| point(i64::try_from(self.roll(SESSIONS * 3)).unwrap(), 1)),
            title: Some(self.text()),
            version: self.roll(9),
            last_activity_at: NOW.plus(self.roll(5)),
            ..session(of)
        })
    }

    fn event(&mut self) -> NewEvent {
        let (n, pos) = (self.roll(1000), self.roll(50));
        NewEvent { pos, run: self.chance(70).then(|| run_id(self.roll(RUNS))), ..progress(n) }
    }
}

/// Everything that can be read, as text.
async fn everything(store: &dyn Store) -> Vec<String> {
    let mut all = vec![format!("{:?}", store.unfinished().await)];
    let runs = RunPage { owner: OWNER.into(), session: None, status: None, before: None, limit: EVERYTHING };
    let sessions =
        SessionPage { owner: OWNER.into(), status: None, surface_kind: None, before: None, limit: 3 };
    all.push(format!("{:?}", store.run_page(&runs).await));
    all.push(format!("{:?}", store.session_page(&sessions).await));
    for n in 0..SESSIONS {
        let id = session_id(n);
        // A fence of each store's own making stands in what is loaded.
        let mut loaded = store.session_load(id).await.unwrap();
        for chunk in loaded.iter_mut().flat_map(|loaded| &mut loaded.chunks) {
            chunk.fence.epoch = 0;
        }
        all.push(format!("load {n} {loaded:?}"));
        all.push(format!("events {n} {:?}", store.events_after(id, None, Cursor::START, EVERYTHING).await));
        all.push(format!("tree {n} {:?}", store.tree(id).await));
        all.push(format!("key {n} {:?}", store.session_find(OWNER, &SessionRef::Key(format!("k{n}"))).await));
        for m in 0..12 {
            all.push(format!("message {n} {:?}", store.message_get(id, message_id(n * 50 + m)).await));
        }
    }
    for n in 0..RUNS {
        all.push(format!(
            "run {n} {:?} {:?} {:?}",
            store.run_get(run_id(n)).await,
            store.attempts(run_id(n)).await,
            store.steps(run_id(n)).await
        ));
        let asked = store.run_by_request(OWNER, "desk", &format!("r{n}")).await;
        all.push(format!("asked {n} {asked:?}"));
        let of_run = store.events_after(session_id(n % SESSIONS), Some(run_id(n)), Cursor(5), 3).await;
        all.push(format!("of run {n} {of_run:?}"));
        all.push(format!(
            "request {n} {:?}",
            store.request_get(OWNER, "session_create", &format!("k{n}")).await
        ));
    }
    for n in 0..i64::try_from(SESSIONS * 3).unwrap() {
        for line in [n, 100 + n] {
            // Which line is missing first is no promise; that one is missing is.
            let path = store.path(point(line, 3), Some(4), 3).await.map_err(|_| "lost");
            all.push(format!("path {line} {path:?}"));
            let range = Range { line: LineId(line), from: 1, to: 2 };
            all.push(format!("line {line} {:?}", store.line_messages(range).await));
        }
    }
    all
}

async fn purge(store: &dyn Store, session: SessionId) {
    while store.session_purge(session).await.unwrap() {}
}

async fn drive(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (sqlite, memory) = (sqlite_open(folder.path()), MemoryStore::default());
    let mut dice = Dice(seed);
    let mut steps = Dice(seed + 1_000_000);
    let mut fences: Vec<[Fence; 2]> = vec![];
    for n in 0..SESSIONS {
        fences.push([lease(&sqlite, n).await, lease(&memory, n).await]);
    }
    for step in 0..STEPS {
        let of = dice.roll(SESSIONS);
        let [in_sqlite, in_memory] = fences[usize::try_from(of).unwrap()];
        match dice.roll(20) {
            0 => {
                fences[usize::try_from(of).unwrap()] = [lease(&sqlite, of).await, lease(&memory, of).await];
                let commit = |fence| Arc::new(Commit { fence, events: vec![progress(1)], rows: vec![] });
                let stale = (sqlite.commit(commit(in_sqlite)).await, memory.commit(commit(in_memory)).await);
                assert_eq!(stale.0, stale.1, "seed {seed} step {step}");
            }
            1 => {
                purge(&sqlite, session_id(of)).await;
                purge(&memory, session_id(of)).await;
            }
            2 => {
                let before = NOW.plus(dice.roll(40) * 60 * 60 * 1000);
                sqlite.requests_forget(before).await.unwrap();
                memory.requests_forget(before).await.unwrap();
            }
            3 | 4 => {
                let (pos, text) = (dice.roll(60), dice.text());
                let chunk =
                    |fence| vec![Chunk { fence, pos, message: message_id(1), block: 0, text: text.clone() }];
                sqlite.chunks_write(chunk(in_sqlite)).await.unwrap();
                memory.chunks_write(chunk(in_memory)).await.unwrap();
            }
            _ => {
                let mut rows = vec![];
                if dice.chance(30) || step < 20 {
                    rows.push(dice.session(of));
                }
                // One kind of trouble at a time: which of two conflicts is named is no promise.
                for _ in 0..=dice.roll(2) {
                    let row = dice.row(of);
                    if !(is_placed(&row) && rows.iter().any(is_placed)) {
                        rows.push(row);
                    }
                }
                // With a die of its own, so that it leaves the sequences as they are.
                if let Some(known) = memory.run_get(run_id(steps.roll(RUNS))).await.unwrap() {
                    let taken = Step {
                        run: known.id,
                        ..step_of(steps.roll(30), 0, 1 + u32::try_from(steps.roll(3)).unwrap())
                    };
                    let seal = steps.chance(20);
                    rows.push(if seal { Row::StepsSeal(known.id) } else { Row::Step(Box::new(taken)) });
                }
                let mut events: Vec<NewEvent> = (0..dice.roll(3)).map(|_| dice.event()).collect();
                for event in &mut events {
                    // A run's events come with it or after it.
                    let known = match event.run {
                        Some(run) => memory.run_get(run).await.unwrap(),
                        None => None,
                    };
                    event.run = known.map(|run| run.id);
                }
                let commit = |fence| Commit { fence, events: events.clone(), rows: rows.clone() };
                let (ours, theirs) = (
                    sqlite.commit(commit(in_sqlite).into()).await,
                    memory.commit(commit(in_memory).into()).await,
                );
                assert_eq!(kind(&ours), kind(&theirs), "seed {seed} step {step}: {rows:#?}");
                assert_eq!(ours.ok(), theirs.ok(), "seed {seed} step {step}");
            }
        }
        if step % 40 == 0 || step == STEPS - 1 {
            let (ours, theirs) = (everything(&sqlite).await, everything(&memory).await);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours, theirs, "seed {seed} step {step}");
            }
        }
    }
    let check = sqlite.check(true).await.unwrap();
    assert_eq!(check.problems, Vec::<String>::new(), "seed {seed}");
    assert!(check.events > 20, "seed {seed}: the sequence did something");
}

/// Whether two messages of one commit may trade places, or a line come before the one it hangs beneath, is no promise.
fn is_placed(row: &Row) -> bool {
    matches!(row, Row::Message(..) | Row::MessagePlace(..) | Row::Line(_))
}

/// What a caller would do next.
fn kind(answer: &Result<Vec<Cursor>, mainspring_kernel::store::StoreError>) -> &'static str {
    use mainspring_kernel::store::StoreError::{Conflict, Corrupt, Fenced, Unavailable};
    match answer {
        Ok(_) => "ok",
        Err(Conflict(_)) => "conflict",
        Err(Fenced) => "fenced",
        Err(Corrupt(_)) => "corrupt",
        Err(Unavailable(_)) => "unavailable",
    }
}

#[tokio::test]
async fn a_random_sequence_has_the_same_answers_everywhere() {
    for seed in 1..=4 {
        drive(seed).await;
    }
}
