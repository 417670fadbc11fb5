//! Simulation: a random history of many processes, each of which may die anywhere. The seed tells which history.
//!
//! After each start the invariants are checked: nothing acknowledged is lost, nothing that ended changes, what is
//! stored agrees with what was told, and in the end everything ends.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainspring_core::{
    Answer, Block, Event, Place, Policy, RequestName, Role, Run, RunId, RunStatus, WaitRequest,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{OnOrphan, RunRequest, SessionPatch};
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;

use crate::check::check;
use crate::world::{Disk, NOW, World, allowed, by, input, live, named, soon};

/// Rolls that a seed decides.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Less than `n`.
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

/// What the world outside remembers of all the processes.
#[derive(Default)]
pub(crate) struct Memory {
    /// Runs that were acknowledged: the session's key and, if it was asked for under a name, that name.
    pub(crate) runs: Vec<(RunId, &'static str, Option<String>)>,
    /// Runs that were seen to have ended, as they were then.
    pub(crate) ended: HashMap<RunId, Run>,
    /// Events that were seen, by session.
    pub(crate) events: BTreeMap<&'static str, Vec<Event>>,
    named: usize,
    /// What was being sent when a process died: whether it was accepted is not known.
    pending: Option<(&'static str, RunRequest)>,
}

struct Player<'a> {
    world: &'a World,
    dice: &'a mut Dice,
    memory: &'a mut Memory,
}

impl Player<'_> {
    async fn step(&mut self) {
        let roll = self.dice.below(100);
        if let 0..10 = self.dice.below(100) {
            let fault = [Fault::CommitFails, Fault::OutcomeUnknown][self.dice.below(2)];
            self.world.disk.fault(fault);
        }
        match roll {
            0..35 => self.prompt().await,
            35..45 => self.branch().await,
            45..60 => self.cancel().await,
            60..75 => self.answer().await,
            75..82 => self.retry().await,
            82..86 => self.rename().await,
            86..92 => self.world.clock.advance(self.dice.below(2_000) as u64),
            92..93 => self.world.clock.advance(25 * 3_600_000),
            _ => self.wander().await,
        }
    }

    /// Lets the processes' tasks go on for a while, and no further.
    async fn wander(&mut self) {
        for _ in 0..self.dice.below(60) {
            tokio::task::yield_now().await;
        }
    }

    /// Sends again what was being sent when the last process died: it is accepted once in all.
    async fn send_again(&mut self) {
        let Some((key, request)) = self.memory.pending.take() else {
            return;
        };
        let name = request.name.request_id.clone();
        loop {
            let sent = self.world.kernel.run_create(&self.world.me, request.clone());
            match self.world.turning(20, sent).await {
                Ok(accepted) => return self.memory.runs.push((accepted.run.id, key, name)),
                Err(Error::Unavailable(_)) => {}
                Err(other) => panic!("{other}: {request:?}"),
            }
        }
    }

    /// Sends something and dies, perhaps before it is answered.
    async fn last_words(&mut self) {
        let key = KEYS[self.dice.below(KEYS.len())];
        self.memory.named += 1;
        let name = format!("r{}", self.memory.named);
        let request = named(key, self.dice.pick(&SCRIPTS).unwrap(), "app", &name);
        let world = self.world;
        let sent = world.kernel.run_create(&world.me, request.clone());
        tokio::select! {
            biased;
            sent = sent => match sent {
                Ok(accepted) => self.memory.runs.push((accepted.run.id, key, Some(name))),
                Err(Error::Unavailable(_)) => {}
                Err(other) => panic!("{other}"),
            },
            () = self.wander() => self.memory.pending = Some((key, request)),
        }
    }

    async fn prompt(&mut self) {
        let key = KEYS[self.dice.below(KEYS.len())];
        let policies = [
            Policy::Enqueue,
            Policy::Enqueue,
            Policy::Enqueue,
            Policy::Replace,
            Policy::Interrupt,
            Policy::Reject,
        ];
        let mut request = RunRequest {
            policy: *self.dice.pick(&policies).unwrap(),
            ..RunRequest::text(key, *self.dice.pick(&SCRIPTS).unwrap())
        };
        let mut name = None;
        if self.dice.below(3) == 0 {
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
        let key = KEYS[self.dice.below(KEYS.len())];
        if self.world.kernel.session_get(&self.world.me, &by(key)).await.is_err() {
            return;
        }
        let tree = self.world.tree(key).await;
        let Some(node) = self.dice.pick(&tree.nodes) else {
            return;
        };
        let message_id = node.message.id;
        let script = vec![Block::text(*self.dice.pick(&SCRIPTS).unwrap())];
        let (place, prompt) = match (self.dice.below(5), node.message.role) {
            (0, _) => (Place::Root, script),
            // The results of tools are the user's side too, and cannot be answered again as a script.
            (_, Role::User) if node.message.text().is_empty() => return,
            (_, Role::User) => (Place::Regenerate { message_id }, vec![]),
            (_, Role::Assistant) => (Place::Edit { message_id }, script),
        };
        let request = RunRequest { place, prompt, ..RunRequest::text(key, "") };
        self.send(key, request, None).await;
    }

    async fn send(&mut self, key: &'static str, request: RunRequest, name: Option<String>) {
        let sent = self.world.kernel.run_create(&self.world.me, request.clone());
        match self.world.turning(20, sent).await {
            Ok(accepted) => self.memory.runs.push((accepted.run.id, key, name)),
            Err(Error::Busy { .. } | Error::Abandoned(_) | Error::Unavailable(_)) => return,
            Err(other) => panic!("{other}: {request:?}"),
        }
        if request.name.request_id.is_some() && self.dice.below(2) == 0 {
            let again = self.world.kernel.run_create(&self.world.me, request);
            match self.world.turning(20, again).await {
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
        // Mostly one of the latest: they are the ones that live.
        let from = self.memory.runs.len().saturating_sub(1 + self.dice.below(8));
        self.dice.pick(&self.memory.runs[from..]).map(|(run, ..)| *run)
    }

    async fn cancel(&mut self) {
        let Some(run) = self.any_run() else { return };
        let cancelled = self.world.kernel.run_cancel(&self.world.me, run);
        match self.world.turning(20, cancelled).await {
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
        match self.world.turning(20, answered).await {
            Ok(_) | Err(Error::Refused(_) | Error::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    async fn retry(&mut self) {
        let Some(run) = self.any_run() else { return };
        // From now on it may change again, whether or not we learn that it was accepted.
        let before = self.memory.ended.remove(&run);
        let retried = self.world.kernel.run_retry(&self.world.me, run);
        match self.world.turning(20, retried).await {
            Ok(_) => assert!(before.is_none_or(|run| run.state.status().is_settled())),
            Err(Error::Refused(_) | Error::Unavailable(_) | Error::Busy { .. } | Error::NotLatest(_)) => {
                self.memory.ended.extend(before.map(|before| (run, before)));
            }
            Err(other) => panic!("{other}"),
        }
    }

    async fn rename(&mut self) {
        let session = by(KEYS[self.dice.below(KEYS.len())]);
        let title = format!("title {}", self.dice.below(3));
        let renamed = self.world.kernel.session_patch(
            &self.world.me,
            &session,
            SessionPatch { title: Some(Some(title)), ..SessionPatch::default() },
        );
        match self.world.turning(20, renamed).await {
            Ok(_) | Err(Error::NotFound { .. } | Error::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Brings everything to its end.
    async fn finish(&mut self) {
        let runs: Vec<RunId> = self.memory.runs.iter().map(|(run, ..)| *run).collect();
        for run in runs {
            if self.world.get(run).await.state.status().is_ended() {
                continue;
            }
            loop {
                let cancelled = self.world.kernel.run_cancel(&self.world.me, run);
                match self.world.turning(50, cancelled).await {
                    Ok(_) | Err(Error::Refused(_)) => break,
                    Err(Error::Unavailable(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            self.world.turning(50, self.world.ended(run)).await;
        }
        self.world.turning(50, self.world.kernel.drain()).await;
    }
}

/// One history: several processes on one disk, one after another.
fn history(seed: u64, disk: &Disk, lives: u64, steps: usize) {
    let (mut dice, mut memory) = (Dice(seed), Memory::default());
    let mut now = NOW;
    for no in 0..=lives {
        let mut options = Options {
            max_workers: 1 + dice.below(3),
            on_orphan: [OnOrphan::Leave, OnOrphan::Retry][dice.below(2)],
            idle_unload_ms: [0, 500, 30_000][dice.below(3)],
            ..Options::default()
        };
        now = live(async {
            let clock = Clock::manual(now.plus(dice.below(5_000) as u64));
            let world =
                World::boot(disk.clone(), options.clone(), vec![], clock, seed * 1_000 + 2 * no).await;
            let mut player = Player { world: &world, dice: &mut dice, memory: &mut memory };
            player.send_again().await;
            if no == lives {
                player.finish().await;
                return world.clock.now();
            }
            for _ in 0..player.dice.below(steps) {
                player.step().await;
            }
            if player.dice.below(4) == 0 {
                soon(world.turning(100, world.kernel.shutdown())).await;
                for (run, ..) in &memory.runs {
                    let status = world.get(*run).await.state.status();
                    let rests = matches!(
                        status,
                        RunStatus::Queued | RunStatus::WaitingInput | RunStatus::WaitingApproval
                    );
                    assert!(status.is_ended() || rests, "{run} is {status} after a stop");
                }
            } else {
                player.last_words().await;
                player.wander().await;
            }
            world.clock.now()
        });
        // Looked at by a process that takes up what is left and does nothing else.
        options.execute = false;
        live(async {
            let clock = Clock::manual(now);
            let world = World::boot(disk.clone(), options, vec![], clock, seed * 1_000 + 2 * no + 1).await;
            for (run, ..) in &memory.runs {
                let expired = |run: &Run| {
                    let open = run.state.wait().filter(|wait| wait.answer.is_none());
                    open.is_some_and(|wait| wait.expires_at <= Some(world.clock.now()))
                };
                world.turning(10, world.reaches(*run, |run| !expired(run))).await;
            }
            check(&world, &mut memory).await;
        });
    }
    assert!(memory.runs.iter().all(|(run, ..)| memory.ended.contains_key(run)));
}

/// Plays the histories of these seeds, or of `SEED` alone, and says which one went wrong.
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
fn whatever_happens_and_wherever_it_dies_the_invariants_hold_in_memory() {
    histories(1..31, Disk::memory, 8, 50);
}

#[test]
fn whatever_happens_and_wherever_it_dies_the_invariants_hold_on_disk() {
    histories(1..6, Disk::sqlite, 8, 40);
}
