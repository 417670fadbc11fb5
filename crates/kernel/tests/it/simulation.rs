//! Simulation: a random history of many processes, each of which may crash anywhere. The seed determines the history.
//!
//! After each start the invariants are checked: no acknowledged run is lost, no ended run changes, stored data agrees
//! with the published events, and in the end every run ends.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainspring_core::{
    Answer, Block, Event, Place, Policy, RequestName, Role, Run, RunChange, RunId, RunStatus, WaitRequest,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{OnOrphan, RunRequest, SessionPatch};
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;

use crate::check::check;
use crate::world::{Disk, NOW, World, allowed, by_key, input, named, run_process, with_timeout};

/// A seeded random number generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number less than `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % n.max(1) as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let at = self.below(from.len());
        from.get(at)
    }
}

pub(crate) const KEYS: [&str; 3] = ["s0", "s1", "s2"];

const SCRIPTS: [&str; 14] = [
    "say hi",
    "usage 2 3; say hello; progress one; say there",
    r#"say look; tool add {"a": 1, "b": 2}; say done"#,
    r#"tool upper {"text": "x"}; tool nope; usage 1 1"#,
    "say partial; fail once; say whole",
    "usage 1 0; say partial; fail retry",
    "say partial; fail for good",
    "say half; crash once; say whole",
    "ask which?; say thanks",
    r#"approve sure?; tool echo {"x": 1}; ask and?; say so"#,
    "stream 40 every 20ms word",
    "say before; sleep 300ms; say after",
    "say stuck; hang",
    "ignore-cancel; say stubborn; hang",
];

/// The facts that callers have observed over all processes.
#[derive(Default)]
pub(crate) struct Memory {
    /// Acknowledged runs, with the key of the session and the request name if there is one.
    pub(crate) runs: Vec<(RunId, &'static str, Option<String>)>,
    /// Runs that were observed after their end.
    pub(crate) ended: HashMap<RunId, Run>,
    /// The events observed so far, by session.
    pub(crate) events: BTreeMap<&'static str, Vec<Event>>,
    named: usize,
    /// The request in flight when a process crashed. Its outcome is unknown.
    pending: Option<(&'static str, RunRequest)>,
}

struct Player<'a> {
    world: &'a World,
    random: &'a mut Random,
    memory: &'a mut Memory,
}

impl Player<'_> {
    async fn step(&mut self) {
        let roll = self.random.below(100);
        if let 0..10 = self.random.below(100) {
            let fault = [Fault::CommitFails, Fault::OutcomeUnknown][self.random.below(2)];
            self.world.disk.inject_fault(fault);
        }
        match roll {
            0..35 => Box::pin(self.prompt()).await,
            35..45 => self.branch().await,
            45..60 => self.cancel().await,
            60..75 => self.answer().await,
            75..82 => self.retry().await,
            82..86 => self.rename().await,
            86..92 => self.world.clock.advance(self.random.below(2_000) as u64),
            92..93 => self.world.clock.advance(25 * 3_600_000),
            _ => self.run_tasks().await,
        }
    }

    /// Lets the tasks of the process run for a random time.
    async fn run_tasks(&mut self) {
        for _ in 0..self.random.below(60) {
            tokio::task::yield_now().await;
        }
    }

    /// Repeats the request in flight at the last crash, which must be accepted once in total.
    async fn send_again(&mut self) {
        let Some((key, request)) = self.memory.pending.take() else {
            return;
        };
        let name = request.name.request_id.clone();
        loop {
            let sent = self.world.kernel.run_create(&self.world.me, request.clone());
            match self.world.advance_until(20, sent).await {
                Ok(accepted) => return self.memory.runs.push((accepted.run.id, key, name)),
                Err(Error::Unavailable(_)) => {}
                Err(other) => panic!("{other}: {request:?}"),
            }
        }
    }

    /// Sends a request and crashes, perhaps before the answer.
    async fn crash_during_request(&mut self) {
        let key = KEYS[self.random.below(KEYS.len())];
        self.memory.named += 1;
        let name = format!("r{}", self.memory.named);
        let request = named(key, self.random.pick(&SCRIPTS).unwrap(), "app", &name);
        let world = self.world;
        let sent = world.kernel.run_create(&world.me, request.clone());
        tokio::select! {
            biased;
            sent = sent => match sent {
                Ok(accepted) => self.memory.runs.push((accepted.run.id, key, Some(name))),
                Err(Error::Unavailable(_)) => {}
                Err(other) => panic!("{other}"),
            },
            () = self.run_tasks() => self.memory.pending = Some((key, request)),
        }
    }

    async fn prompt(&mut self) {
        let key = KEYS[self.random.below(KEYS.len())];
        let policies = [
            Policy::Enqueue,
            Policy::Enqueue,
            Policy::Enqueue,
            Policy::Replace,
            Policy::Interrupt,
            Policy::Reject,
        ];
        let mut request = RunRequest {
            policy: *self.random.pick(&policies).unwrap(),
            ..RunRequest::text(key, *self.random.pick(&SCRIPTS).unwrap())
        };
        let mut name = None;
        if self.random.below(3) == 0 {
            self.memory.named += 1;
            name = Some(format!("r{}", self.memory.named));
            request.name = RequestName {
                client_id: Some("app".into()),
                request_id: name.clone(),
                idempotency_key: None,
            };
        }
        self.send(key, request, name).await;
    }

    async fn branch(&mut self) {
        let key = KEYS[self.random.below(KEYS.len())];
        if self.world.kernel.session_get(&self.world.me, &by_key(key)).await.is_err() {
            return;
        }
        let tree = self.world.tree(key).await;
        let Some(node) = self.random.pick(&tree.nodes) else {
            return;
        };
        let message_id = node.message.id;
        let script = vec![Block::text(*self.random.pick(&SCRIPTS).unwrap())];
        let (place, prompt) = match (self.random.below(5), node.message.role) {
            (0, _) => (Place::Root, script),
            // Tool results have the user role too, but are not scripts.
            (_, Role::User) if node.message.text().is_empty() => return,
            (_, Role::User) => (Place::Regenerate { message_id }, vec![]),
            (_, Role::Assistant) => (Place::Edit { message_id }, script),
        };
        let request = RunRequest { place, prompt, ..RunRequest::text(key, "") };
        self.send(key, request, None).await;
    }

    async fn send(&mut self, key: &'static str, request: RunRequest, name: Option<String>) {
        let sent = self.world.kernel.run_create(&self.world.me, request.clone());
        match self.world.advance_until(20, sent).await {
            Ok(accepted) => self.memory.runs.push((accepted.run.id, key, name)),
            Err(Error::Busy { .. } | Error::Abandoned(_) | Error::Unavailable(_)) => return,
            Err(other) => panic!("{other}: {request:?}"),
        }
        if request.name.request_id.is_some() && self.random.below(2) == 0 {
            let again = self.world.kernel.run_create(&self.world.me, request);
            match self.world.advance_until(20, again).await {
                Ok(again) => {
                    assert!(again.replayed);
                    assert_eq!(Some(again.run.id), self.memory.runs.last().map(|(run, ..)| *run));
                }
                Err(Error::Unavailable(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn any_run(&mut self) -> Option<RunId> {
        // Mostly one of the latest runs, which are most likely active.
        let from = self.memory.runs.len().saturating_sub(1 + self.random.below(8));
        self.random.pick(&self.memory.runs[from..]).map(|(run, ..)| *run)
    }

    async fn cancel(&mut self) {
        let Some(run) = self.any_run() else { return };
        let cancelled = self.world.kernel.run_cancel(&self.world.me, run);
        match self.world.advance_until(20, cancelled).await {
            Ok(outcome) => assert!(outcome.accepted),
            Err(Error::Refused(_) | Error::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    async fn answer(&mut self) {
        let Some(run) = self.any_run() else { return };
        let run = self.world.get(run).await;
        let Some(wait) = run.state.wait() else { return };
        let answer: Answer = match wait.request {
            WaitRequest::Input => input("blue"),
            WaitRequest::Approval => allowed(),
            WaitRequest::Tools => unreachable!("no prompt here declares tools"),
        };
        let answered = self.world.kernel.run_answer(&self.world.me, run.id, wait.id, answer);
        match self.world.advance_until(20, answered).await {
            Ok(_) | Err(Error::Refused(_) | Error::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    async fn retry(&mut self) {
        let Some(run) = self.any_run() else { return };
        // From now on the run may change, even if the answer is lost.
        let before = self.memory.ended.remove(&run);
        let retried = self.world.kernel.run_retry(&self.world.me, run, RunChange::default());
        match self.world.advance_until(20, retried).await {
            Ok(_) => assert!(before.is_none_or(|run| run.state.status().is_settled())),
            Err(Error::Refused(_) | Error::Unavailable(_) | Error::Busy { .. } | Error::NotLatest(_)) => {
                self.memory.ended.extend(before.map(|before| (run, before)));
            }
            Err(other) => panic!("{other}"),
        }
    }

    async fn rename(&mut self) {
        let session = by_key(KEYS[self.random.below(KEYS.len())]);
        let title = format!("title {}", self.random.below(3));
        let renamed = self.world.kernel.session_patch(
            &self.world.me,
            &session,
            SessionPatch { title: Some(Some(title)), ..SessionPatch::default() },
        );
        match self.world.advance_until(20, renamed).await {
            Ok(_) | Err(Error::NotFound { .. } | Error::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Ends all runs.
    async fn finish(&mut self) {
        let runs: Vec<RunId> = self.memory.runs.iter().map(|(run, ..)| *run).collect();
        for run in runs {
            if self.world.get(run).await.state.status().is_ended() {
                continue;
            }
            loop {
                let cancelled = self.world.kernel.run_cancel(&self.world.me, run);
                match self.world.advance_until(50, cancelled).await {
                    Ok(_) | Err(Error::Refused(_)) => break,
                    Err(Error::Unavailable(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            self.world.advance_until(50, self.world.ended(run)).await;
        }
        self.world.advance_until(50, self.world.kernel.drain()).await;
    }
}

/// Runs one history: several processes on one disk, one after another.
fn history(seed: u64, disk: &Disk, lives: u64, steps: usize) {
    let (mut random, mut memory) = (Random(seed), Memory::default());
    let mut now = NOW;
    for no in 0..=lives {
        let mut options = Options {
            max_workers: 1 + random.below(3),
            on_orphan: [OnOrphan::Leave, OnOrphan::Retry][random.below(2)],
            idle_unload_ms: [0, 500, 30_000][random.below(3)],
            ..Options::default()
        };
        now = run_process(async {
            let clock = Clock::manual(now.plus(random.below(5_000) as u64));
            let world =
                World::boot(disk.clone(), options.clone(), vec![], clock, seed * 1_000 + 2 * no).await;
            let mut player = Player { world: &world, random: &mut random, memory: &mut memory };
            player.send_again().await;
            if no == lives {
                player.finish().await;
                return world.clock.now();
            }
            for _ in 0..player.random.below(steps) {
                player.step().await;
            }
            if player.random.below(4) == 0 {
                with_timeout(world.advance_until(100, world.kernel.shutdown())).await;
                for (run, ..) in &memory.runs {
                    let status = world.get(*run).await.state.status();
                    let rests = matches!(
                        status,
                        RunStatus::Queued | RunStatus::WaitingInput | RunStatus::WaitingApproval
                    );
                    assert!(status.is_ended() || rests, "{run} is {status} after a stop");
                }
            } else {
                player.crash_during_request().await;
                player.run_tasks().await;
            }
            world.clock.now()
        });
        // Checked by a process that only recovers.
        options.execute = false;
        run_process(async {
            let clock = Clock::manual(now);
            let world = World::boot(disk.clone(), options, vec![], clock, seed * 1_000 + 2 * no + 1).await;
            for (run, ..) in &memory.runs {
                let expired = |run: &Run| {
                    let open = run.state.wait().filter(|wait| wait.answer.is_none());
                    open.is_some_and(|wait| wait.expires_at <= Some(world.clock.now()))
                };
                world.advance_until(10, world.wait_until(*run, |run| !expired(run))).await;
            }
            check(&world, &mut memory).await;
        });
    }
    assert!(memory.runs.iter().all(|(run, ..)| memory.ended.contains_key(run)));
}

/// Runs the histories of these seeds, or only of `SEED`, and prints the seed that failed.
fn histories(seeds: std::ops::Range<u64>, disk: fn() -> Disk, lives: u64, steps: usize) {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => seeds.collect(),
    };
    for seed in seeds {
        let played = catch_unwind(AssertUnwindSafe(|| history(seed, &disk(), lives, steps)));
        if let Err(panic) = played {
            let told = panic.downcast_ref::<String>().cloned();
            let told = told.or_else(|| panic.downcast_ref::<&str>().map(|told| (*told).to_owned()));
            panic!("seed {seed}: {}", told.unwrap_or_default());
        }
    }
}

#[test]
fn the_invariants_hold_in_random_histories_with_crashes_in_memory() {
    histories(1..31, Disk::memory, 8, 50);
}

#[test]
fn the_invariants_hold_in_random_histories_with_crashes_on_disk() {
    histories(1..6, Disk::sqlite, 8, 40);
}

#[test]
fn the_invariants_hold_in_random_histories_with_crashes_on_postgresql() {
    histories(1..4, Disk::postgres, 8, 40);
}
