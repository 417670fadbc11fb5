//! Random trees: thousands of prompts, branches, navigations and forks with crashes in between, each compared with a
//! simple reference tree. The seed determines the history.
//!
//! The reference is built from the events alone: a node per message with a parent and a cursor. This checks that trees,
//! paths and cursors agree with the events, and that events never change.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainspring_core::{Block, Body, Cursor, Event, MessageId, Place, Role, RunId, SessionChange};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{ForkRequest, RunRequest};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};

use crate::simulation::Random;
use crate::world::{Disk, NOW, World, by_key, run_process, with_timeout};

const SCRIPTS: [&str; 4] = [
    "say yes",
    r#"say look; tool add {"a": 1, "b": 2}; say done"#,
    "say no; fail for good",
    "say never; hang",
];
/// The number of sessions above which sessions are deleted.
const SESSIONS: usize = 6;

/// The reference tree.
#[derive(Debug, Clone, Default)]
struct ReferenceTree {
    nodes: Vec<Node>,
    index: HashMap<MessageId, usize>,
    tip: Option<usize>,
    /// For each run, whether it is a branch.
    branches: HashMap<RunId, bool>,
    events: Vec<Event>,
}

#[derive(Debug, Clone)]
struct Node {
    id: MessageId,
    role: Role,
    parent: Option<usize>,
    cursor: Option<usize>,
    abandoned: bool,
    run: Option<RunId>,
}

impl ReferenceTree {
    fn path(&self, tip: Option<usize>) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(tip, |node| self.nodes[*node].parent).collect();
        path.reverse();
        path
    }

    fn children(&self, parent: Option<usize>) -> Vec<usize> {
        let child = |node: &usize| self.nodes[*node].parent == parent && !self.nodes[*node].abandoned;
        (0..self.nodes.len()).filter(child).collect()
    }

    fn extend(&self, node: usize) -> usize {
        let mut node = node;
        while let Some(next) = self.nodes[node].cursor.or_else(|| self.children(Some(node)).last().copied()) {
            node = next;
        }
        node
    }

    fn visit(&mut self, tip: Option<MessageId>) {
        let tip = tip.map(|tip| self.index[&tip]);
        for pair in self.path(tip).windows(2) {
            self.nodes[pair[0]].cursor = Some(pair[1]);
        }
        self.tip = tip;
    }

    fn apply(&mut self, event: &Event) {
        match &event.body {
            Body::MessageCompleted { message, parent_id } => {
                let node = Node {
                    id: message.id,
                    role: message.role,
                    parent: parent_id.map(|parent| self.index[&parent]),
                    cursor: None,
                    abandoned: false,
                    run: message.run,
                };
                assert!(
                    self.index.insert(message.id, self.nodes.len()).is_none(),
                    "{} was published twice",
                    message.id
                );
                self.nodes.push(node);
            }
            Body::SessionUpdated { change: SessionChange::Tip { tip } } => self.visit(*tip),
            body if body.ends_run() => match body.clone().close_mut().and_then(|close| close.tip) {
                Some(tip) => self.visit(Some(tip)),
                None => {
                    let of = |node: &&mut Node| node.run.is_some() && node.run == event.run;
                    self.nodes.iter_mut().filter(of).for_each(|node| node.abandoned = true);
                }
            },
            _ => {}
        }
    }

    /// Returns a fork of this tree at a message: only the path to the message.
    fn fork(&self, at: MessageId) -> Self {
        let mut fork = Self::default();
        for node in self.path(self.index.get(&at).copied()) {
            let parent = fork.nodes.len().checked_sub(1);
            fork.index.insert(self.nodes[node].id, fork.nodes.len());
            fork.nodes.push(Node { parent, cursor: None, abandoned: false, ..self.nodes[node].clone() });
        }
        fork.visit(Some(at));
        fork
    }

    fn ids(&self, nodes: impl IntoIterator<Item = usize>) -> Vec<MessageId> {
        nodes.into_iter().map(|node| self.nodes[node].id).collect()
    }

    /// Picks a message that is not abandoned.
    fn pick(&self, random: &mut Random) -> Option<usize> {
        let kept: Vec<usize> = (0..self.nodes.len()).filter(|node| !self.nodes[*node].abandoned).collect();
        kept.get(random.below(kept.len())).copied()
    }
}

/// An operation of a caller.
#[derive(Debug, Clone)]
enum Act {
    Run(Place, &'static str),
    Navigate(Option<MessageId>),
    Fork(MessageId, String),
    Delete,
}

/// All sessions by key, as built from the events.
#[derive(Default)]
struct Model {
    sessions: BTreeMap<String, ReferenceTree>,
    made: usize,
    acts: usize,
}

impl Model {
    fn next(&mut self, random: &mut Random) -> (String, Act) {
        let keys: Vec<&String> = self.sessions.keys().collect();
        let key = keys.get(random.below(keys.len())).map_or("s0".into(), |key| (*key).clone());
        let picked = self.sessions.get(&key).and_then(|plain| Some((plain, plain.pick(random)?)));
        let script = SCRIPTS[[0, 0, 1, 2, 3][random.below(5)]];
        let Some((plain, node)) = picked else { return (key, Act::Run(Place::Tip, script)) };
        let Node { id: message_id, role, .. } = plain.nodes[node];
        let crowded = self.sessions.len() > SESSIONS;
        let act = match (random.below(100), role) {
            (0..25, _) => Act::Run(Place::Tip, script),
            (25..35, _) => Act::Run(Place::Root, script),
            // Tool results have the user role too, but are not scripts.
            (35..60, Role::User) if plain.children(Some(node)).is_empty() => Act::Navigate(Some(message_id)),
            (35..60, Role::User) => Act::Run(Place::Regenerate { message_id }, ""),
            (35..60, Role::Assistant) => Act::Run(Place::Edit { message_id }, script),
            (60..90, _) => Act::Navigate(Some(message_id)),
            (90..94, _) => Act::Navigate(None),
            _ if crowded && key != "s0" => Act::Delete,
            _ => {
                self.made += 1;
                Act::Fork(message_id, format!("f{}", self.made))
            }
        };
        (key, act)
    }
}

struct Player<'a> {
    world: &'a World,
    random: &'a mut Random,
    model: &'a mut Model,
}

impl Player<'_> {
    /// Performs the operation and waits for its end. A refused one changes nothing.
    async fn act(world: &World, key: &str, act: &Act) -> Result<Option<MessageId>, Error> {
        let (kernel, me) = (&world.kernel, &world.me);
        match act.clone() {
            Act::Run(place, script) => {
                let prompt = if script.is_empty() { vec![] } else { vec![Block::text(script)] };
                let request = RunRequest { place, prompt, ..RunRequest::text(key, "") };
                let run = kernel.run_create(me, request).await?.run;
                // A run whose script never ends is cancelled, also a regenerated one.
                let cancelled = match never_ends(world, &run).await {
                    true => kernel.run_cancel(me, run.id).await.map(drop),
                    false => Ok(()),
                };
                cancelled.or_else(|error| matches!(error, Error::Refused(_)).then_some(()).ok_or(error))?;
                kernel.drain().await;
                Ok(world.get(run.id).await.final_message)
            }
            Act::Navigate(to) => Ok(kernel.session_navigate(me, &by_key(key), to, None).await?.tip_message),
            Act::Fork(message, fork) => {
                let request = ForkRequest { message, key: Some(fork), title: None };
                Ok(kernel.session_fork(me, &by_key(key), request, None).await?.0.tip_message)
            }
            Act::Delete => kernel.session_delete(me, &by_key(key)).await.map(|_| None),
        }
    }

    async fn step(&mut self) {
        let (key, act) = self.model.next(self.random);
        self.model.acts += 1;
        let before = self.model.sessions.get(&key);
        let cursors: Vec<_> =
            before.into_iter().flat_map(|plain| plain.nodes.iter().map(|node| node.cursor)).collect();
        let tip = before.and_then(|plain| plain.tip);
        let leaf = match (&act, before) {
            (Act::Navigate(Some(to)), Some(plain)) => Some(plain.nodes[plain.extend(plain.index[to])].id),
            _ => None,
        };
        let outcome = with_timeout(Self::act(self.world, &key, &act)).await;
        let came = outcome.unwrap_or_else(|error| panic!("{act:?} in {key}: {error}"));
        self.update_model(&key, &act).await;
        let Some(plain) = self.model.sessions.get(&key) else { return };
        match act {
            Act::Navigate(_) => assert_eq!(came, leaf, "where {act:?} leads"),
            Act::Run(place, _) if place.is_branch() && plain.tip == tip => {
                let now = plain.nodes.iter().map(|node| node.cursor);
                assert!(cursors.into_iter().zip(now).all(|(was, is)| was == is), "{act:?} was rolled back");
            }
            _ => {}
        }
        self.check_relatives(&key).await;
    }

    /// Starts an operation and crashes, perhaps in the middle of it.
    async fn crash_during_act(&mut self) -> (String, Act) {
        let (key, act) = self.model.next(self.random);
        let yields = self.random.below(60);
        let wander = async {
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = Self::act(self.world, &key, &act) => {}
            () = wander => {}
        }
        (key, act)
    }

    /// Updates the model from the events, and from the sessions created and deleted.
    async fn update_model(&mut self, key: &str, act: &Act) {
        let world = self.world;
        let found = world.kernel.session_get(&world.me, &by_key(key)).await.ok();
        if let (Act::Fork(_, fork), Some(source)) = (act, self.model.sessions.get(key))
            && let Ok(session) = world.kernel.session_get(&world.me, &by_key(fork)).await
        {
            let origin = session.forked_from.unwrap();
            let plain = source.fork(origin.message);
            self.model.sessions.entry(fork.clone()).or_insert(plain);
        }
        match found {
            None => drop(self.model.sessions.remove(key)),
            Some(_) => drop(self.model.sessions.entry(key.to_owned()).or_default()),
        }
        for key in
            [Some(key), if let Act::Fork(_, fork) = act { Some(fork) } else { None }].into_iter().flatten()
        {
            if let Some(plain) = self.model.sessions.get_mut(key) {
                let after = plain.events.last().map_or(Cursor::START, |event| event.cursor);
                let events =
                    world.kernel.session_events(&world.me, &by_key(key), after, Some(500)).await.unwrap();
                for event in events {
                    if let Some(run) = event.run.filter(|_| event.body.kind() == "run.queued") {
                        plain.branches.insert(run, world.get(run).await.place.is_branch());
                    }
                    plain.apply(&event);
                    plain.events.push(event);
                }
            }
        }
    }

    /// Checks the parent, siblings and children of a random message.
    async fn check_relatives(&mut self, key: &str) {
        let Some(plain) = self.model.sessions.get(key) else { return };
        let session = self.world.kernel.session_get(&self.world.me, &by_key(key)).await.unwrap();
        assert_eq!(session.tip_message, plain.tip.map(|tip| plain.nodes[tip].id), "the tip of {key}");
        let Some(node) = plain.pick(self.random) else { return };
        let at = &plain.nodes[node];
        let view = self.world.kernel.session_message(&self.world.me, &by_key(key), at.id).await.unwrap();
        let parent = at.parent.map(|parent| plain.nodes[parent].id);
        assert_eq!((view.node.parent_id, view.node.abandoned), (parent, false));
        assert_eq!(view.children, plain.ids(plain.children(Some(node))), "beneath {}", at.id);
        assert_eq!(view.siblings, plain.ids(plain.children(at.parent)), "beside {}", at.id);
        assert_eq!(view.node.cursor, at.cursor.map(|cursor| plain.nodes[cursor].id), "from {}", at.id);
    }

    /// Compares the session of this key, or every session, with the model.
    async fn compare(&mut self, only: Option<&str>) {
        let wanted = |key: &String| only.is_none_or(|wanted| wanted == key);
        for (key, plain) in self.model.sessions.iter().filter(|(key, _)| wanted(key)) {
            let path = plain.ids(plain.path(plain.tip));
            let mut found: Vec<MessageId> = vec![];
            let (mut before, by) = (None, by_key(key));
            loop {
                let page =
                    self.world.kernel.session_path(&self.world.me, &by, before, Some(500)).await.unwrap();
                let depth = u32::try_from(path.len() - found.len() - page.len()).unwrap();
                found.splice(0..0, page.iter().map(|message| message.id));
                before = Some(depth);
                if depth == 0 {
                    break;
                }
            }
            assert_eq!(found, path, "the path of {key}");
            let active: std::collections::HashSet<MessageId> = path.into_iter().collect();
            let nodes = self.world.tree(key).await.nodes;
            assert_eq!(nodes.len(), plain.nodes.len(), "the tree of {key}");
            for node in nodes {
                let id = node.message.id;
                let at = &plain.nodes[plain.index[&id]];
                let expected =
                    (at.parent.map(|parent| plain.nodes[parent].id), at.abandoned, active.contains(&id));
                assert_eq!((node.parent_id, node.abandoned, node.active), expected, "{id} of {key}");
                if !at.abandoned {
                    assert_eq!(
                        node.cursor,
                        at.cursor.map(|cursor| plain.nodes[cursor].id),
                        "from {id} of {key}"
                    );
                }
            }
            let mut after = Cursor::START;
            for page in plain.events.chunks(500) {
                let events =
                    self.world.kernel.session_events(&self.world.me, &by, after, Some(page.len())).await;
                assert_eq!(events.unwrap(), page, "the past of {key}");
                after = page.last().map_or(after, |event| event.cursor);
            }
        }
    }
}

/// Returns whether the script of a run never ends.
async fn never_ends(world: &World, run: &mainspring_core::Run) -> bool {
    let id = match run.place {
        Place::Regenerate { message_id } => Some(message_id),
        _ => run.prompt,
    };
    let Some(id) = id else { return false };
    let found = world.kernel.session_message(&world.me, &SessionRef::Id(run.session), id).await;
    found.is_ok_and(|view| view.node.message.text().contains("hang"))
}

/// Runs one history of `acts` operations in many processes.
fn history(seed: u64, disk: &Disk, acts: usize) {
    let (mut random, mut model) = (Random(seed), Model::default());
    let mut unknown: Option<(String, Act)> = None;
    let mut lives = 0;
    while model.acts < acts {
        lives += 1;
        run_process(async {
            let clock = Clock::manual(NOW.plus(lives * 1_000));
            let options = Options { idle_unload_ms: [0, 30_000][random.below(2)], ..Options::default() };
            let world = World::boot(disk.clone(), options, vec![], clock, seed * 100_000 + lives).await;
            let mut player = Player { world: &world, random: &mut random, model: &mut model };
            if let Some((key, act)) = unknown.take() {
                player.update_model(&key, &act).await;
                player.compare(Some(&key)).await;
            }
            for _ in 0..10 + player.random.below(30) {
                player.step().await;
            }
            unknown = Some(player.crash_during_act().await);
        });
    }
    run_process(async {
        let clock = Clock::manual(NOW.plus((lives + 1) * 1_000));
        let world =
            World::boot(disk.clone(), Options::default(), vec![], clock, seed * 100_000 + lives + 1).await;
        let mut player = Player { world: &world, random: &mut random, model: &mut model };
        if let Some((key, act)) = unknown.take() {
            player.update_model(&key, &act).await;
        }
        player.compare(None).await;
    });
}

/// Runs the histories of these seeds, or only of `SEED`, and prints the seed that failed.
fn histories(seeds: std::ops::Range<u64>, disk: fn() -> Disk, acts: usize) {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => seeds.collect(),
    };
    for seed in seeds {
        let played = catch_unwind(AssertUnwindSafe(|| history(seed, &disk(), acts)));
        if let Err(panic) = played {
            let message = panic.downcast_ref::<String>().cloned();
            let message =
                message.or_else(|| panic.downcast_ref::<&str>().map(|message| (*message).to_owned()));
            panic!("seed {seed}: {}", message.unwrap_or_default());
        }
    }
}

#[test]
fn random_trees_in_memory_agree_with_their_events() {
    histories(1..21, Disk::memory, 100);
}

#[test]
fn random_trees_in_sqlite_agree_with_their_events() {
    histories(21..25, Disk::sqlite, 1_000);
}

#[test]
fn more_random_trees_in_sqlite_agree_with_their_events() {
    histories(25..29, Disk::sqlite, 1_000);
}
