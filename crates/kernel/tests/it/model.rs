//! Random trees: thousands of prompts, branches, navigations and forks with crashes in between, each compared with the
//! plainest tree there is. The seed tells which history.
//!
//! The reference is made of nothing but the events: a node per message, a parent and a cursor each. So trees, paths and
//! cursors are what the events say, and the events stay what they were.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainspring_core::{Block, Body, Cursor, Event, MessageId, Place, Role, RunId, SessionChange};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{ForkRequest, RunRequest};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};

use crate::simulation::Dice;
use crate::world::{Disk, NOW, World, by, live, soon};

const SCRIPTS: [&str; 4] = [
    "say yes",
    r#"say look; tool add {"a": 1, "b": 2}; say done"#,
    "say no; fail for good",
    "say never; hang",
];
/// Sessions beyond this many are deleted again.
const SESSIONS: usize = 6;

/// The plainest tree there is.
#[derive(Debug, Clone, Default)]
struct Plain {
    nodes: Vec<Node>,
    index: HashMap<MessageId, usize>,
    tip: Option<usize>,
    /// Whether a run is a branch.
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

impl Plain {
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
                    "{} is told twice",
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

    /// A fork of this tree at a message: the path to it, and nothing else.
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

    /// One of the messages that were not rolled back.
    fn pick(&self, dice: &mut Dice) -> Option<usize> {
        let kept: Vec<usize> = (0..self.nodes.len()).filter(|node| !self.nodes[*node].abandoned).collect();
        kept.get(dice.below(kept.len())).copied()
    }
}

/// What somebody does.
#[derive(Debug, Clone)]
enum Act {
    Run(Place, &'static str),
    Navigate(Option<MessageId>),
    Fork(MessageId, String),
    Delete,
}

/// All the sessions, by key, as the events have told.
#[derive(Default)]
struct Model {
    sessions: BTreeMap<String, Plain>,
    made: usize,
    acts: usize,
}

impl Model {
    fn next(&mut self, dice: &mut Dice) -> (String, Act) {
        let keys: Vec<&String> = self.sessions.keys().collect();
        let key = keys.get(dice.below(keys.len())).map_or("s0".into(), |key| (*key).clone());
        let picked = self.sessions.get(&key).and_then(|plain| Some((plain, plain.pick(dice)?)));
        let script = SCRIPTS[[0, 0, 1, 2, 3][dice.below(5)]];
        let Some((plain, node)) = picked else { return (key, Act::Run(Place::Tip, script)) };
        let Node { id: message_id, role, .. } = plain.nodes[node];
        let crowded = self.sessions.len() > SESSIONS;
        let act = match (dice.below(100), role) {
            (0..25, _) => Act::Run(Place::Tip, script),
            (25..35, _) => Act::Run(Place::Root, script),
            // The results of tools are the user's side too, and are no script.
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
    dice: &'a mut Dice,
    model: &'a mut Model,
}

impl Player<'_> {
    /// Does it to its end; what is refused changes nothing.
    async fn act(world: &World, key: &str, act: &Act) -> Result<Option<MessageId>, Error> {
        let (kernel, me) = (&world.kernel, &world.me);
        match act.clone() {
            Act::Run(place, script) => {
                let prompt = if script.is_empty() { vec![] } else { vec![Block::text(script)] };
                let request = RunRequest { place, prompt, ..RunRequest::text(key, "") };
                let run = kernel.run_create(me, request).await?.run;
                // What hangs is cancelled, also where the message that is answered again says so.
                if hangs(world, &run).await {
                    match kernel.run_cancel(me, run.id).await {
                        Ok(_) | Err(Error::Refused(_)) => {}
                        Err(other) => return Err(other),
                    }
                }
                kernel.drain().await;
                Ok(world.get(run.id).await.final_message)
            }
            Act::Navigate(to) => Ok(kernel.session_navigate(me, &by(key), to, None).await?.tip_message),
            Act::Fork(message, fork) => {
                let request = ForkRequest { message, key: Some(fork), title: None };
                Ok(kernel.session_fork(me, &by(key), request, None).await?.0.tip_message)
            }
            Act::Delete => kernel.session_delete(me, &by(key)).await.map(|_| None),
        }
    }

    async fn step(&mut self) {
        let (key, act) = self.model.next(self.dice);
        self.model.acts += 1;
        let before = self.model.sessions.get(&key);
        let cursors: Vec<_> =
            before.into_iter().flat_map(|plain| plain.nodes.iter().map(|node| node.cursor)).collect();
        let tip = before.and_then(|plain| plain.tip);
        let leaf = match (&act, before) {
            (Act::Navigate(Some(to)), Some(plain)) => Some(plain.nodes[plain.extend(plain.index[to])].id),
            _ => None,
        };
        let outcome = soon(Self::act(self.world, &key, &act)).await;
        let came = outcome.unwrap_or_else(|error| panic!("{act:?} in {key}: {error}"));
        self.learn(&key, &act).await;
        let Some(plain) = self.model.sessions.get(&key) else { return };
        match act {
            Act::Navigate(_) => assert_eq!(came, leaf, "where {act:?} leads"),
            Act::Run(place, _) if place.is_branch() && plain.tip == tip => {
                let now = plain.nodes.iter().map(|node| node.cursor);
                assert!(cursors.into_iter().zip(now).all(|(was, is)| was == is), "{act:?} was rolled back");
            }
            _ => {}
        }
        self.family(&key).await;
    }

    /// Does something and dies, perhaps in the middle of it.
    async fn die(&mut self) -> (String, Act) {
        let (key, act) = self.model.next(self.dice);
        let yields = self.dice.below(60);
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

    /// Takes in what the events say, and what was made and deleted.
    async fn learn(&mut self, key: &str, act: &Act) {
        let world = self.world;
        let found = world.kernel.session_get(&world.me, &by(key)).await.ok();
        if let (Act::Fork(_, fork), Some(source)) = (act, self.model.sessions.get(key))
            && let Ok(session) = world.kernel.session_get(&world.me, &by(fork)).await
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
                    world.kernel.session_events(&world.me, &by(key), after, Some(500)).await.unwrap();
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

    /// A message somewhere has the family that the model says.
    async fn family(&mut self, key: &str) {
        let Some(plain) = self.model.sessions.get(key) else { return };
        let session = self.world.kernel.session_get(&self.world.me, &by(key)).await.unwrap();
        assert_eq!(session.tip_message, plain.tip.map(|tip| plain.nodes[tip].id), "the tip of {key}");
        let Some(node) = plain.pick(self.dice) else { return };
        let at = &plain.nodes[node];
        let view = self.world.kernel.session_message(&self.world.me, &by(key), at.id).await.unwrap();
        let parent = at.parent.map(|parent| plain.nodes[parent].id);
        assert_eq!((view.node.parent_id, view.node.abandoned), (parent, false));
        assert_eq!(view.children, plain.ids(plain.children(Some(node))), "beneath {}", at.id);
        assert_eq!(view.siblings, plain.ids(plain.children(at.parent)), "beside {}", at.id);
        assert_eq!(view.node.cursor, at.cursor.map(|cursor| plain.nodes[cursor].id), "from {}", at.id);
    }

    /// The session of this key, or every one, is as the model says.
    async fn compare(&mut self, only: Option<&str>) {
        let wanted = |key: &String| only.is_none_or(|wanted| wanted == key);
        for (key, plain) in self.model.sessions.iter().filter(|(key, _)| wanted(key)) {
            let path = plain.ids(plain.path(plain.tip));
            let mut found: Vec<MessageId> = vec![];
            let (mut before, by) = (None, by(key));
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
                let told =
                    (at.parent.map(|parent| plain.nodes[parent].id), at.abandoned, active.contains(&id));
                assert_eq!((node.parent_id, node.abandoned, node.active), told, "{id} of {key}");
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

/// Whether a run follows a script that never ends.
async fn hangs(world: &World, run: &mainspring_core::Run) -> bool {
    let id = match run.place {
        Place::Regenerate { message_id } => Some(message_id),
        _ => run.prompt,
    };
    let Some(id) = id else { return false };
    let found = world.kernel.session_message(&world.me, &SessionRef::Id(run.session), id).await;
    found.is_ok_and(|view| view.node.message.text().contains("hang"))
}

/// One history of `acts` acts in many processes.
fn history(seed: u64, disk: &Disk, acts: usize) {
    let (mut dice, mut model) = (Dice(seed), Model::default());
    let mut unknown: Option<(String, Act)> = None;
    let mut lives = 0;
    while model.acts < acts {
        lives += 1;
        live(async {
            let clock = Clock::manual(NOW.plus(lives * 1_000));
            let options = Options { idle_unload_ms: [0, 30_000][dice.below(2)], ..Options::default() };
            let world = World::boot(disk.clone(), options, vec![], clock, seed * 100_000 + lives).await;
            let mut player = Player { world: &world, dice: &mut dice, model: &mut model };
            if let Some((key, act)) = unknown.take() {
                player.learn(&key, &act).await;
                player.compare(Some(&key)).await;
            }
            for _ in 0..10 + player.dice.below(30) {
                player.step().await;
            }
            unknown = Some(player.die().await);
        });
    }
    live(async {
        let clock = Clock::manual(NOW.plus((lives + 1) * 1_000));
        let world =
            World::boot(disk.clone(), Options::default(), vec![], clock, seed * 100_000 + lives + 1).await;
        let mut player = Player { world: &world, dice: &mut dice, model: &mut model };
        if let Some((key, act)) = unknown.take() {
            player.learn(&key, &act).await;
        }
        player.compare(None).await;
    });
}

/// Plays the histories of these seeds, or of `SEED` alone, and says which one went wrong.
fn histories(seeds: std::ops::Range<u64>, disk: fn() -> Disk, acts: usize) {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => seeds.collect(),
    };
    for seed in seeds {
        let played = catch_unwind(AssertUnwindSafe(|| history(seed, &disk(), acts)));
        if let Err(panic) = played {
            let told = panic.downcast_ref::<String>().cloned();
            let told = told.or_else(|| panic.downcast_ref::<&str>().map(|told| (*told).to_owned()));
            panic!("seed {seed}: {}", told.unwrap_or_default());
        }
    }
}

#[test]
fn random_trees_in_memory_are_what_their_events_say() {
    histories(1..21, Disk::memory, 100);
}

#[test]
fn random_trees_in_sqlite_are_what_their_events_say() {
    histories(21..25, Disk::sqlite, 1_000);
}

#[test]
fn more_random_trees_in_sqlite_are_what_their_events_say() {
    histories(25..29, Disk::sqlite, 1_000);
}
