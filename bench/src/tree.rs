//! A tree: what a turn, a branch, a walk and a fork cost in a session of 100,000 messages in 1,000 branches, beside the
//! same in one of 100.

use std::sync::Arc;
use std::time::Instant;

use mainspring_core::{Line, MessageId, Place, Point, Role, Session, SessionId};
use mainspring_kernel::kernel::{ForkRequest, Kernel};
use mainspring_kernel::store::{Commit, Row, SessionRef, Store};
use tokio::runtime::Runtime;

use crate::history::Maker;
use crate::stats::{median, ms};
use crate::table::{Goal, Table};
use crate::turn::{one, prompt, succeeded};
use crate::world;

const ROUNDS: usize = 150;

/// Where the lines of a tree hang.
#[derive(Clone, Copy)]
enum Shape {
    /// Ten lines of ten messages, beneath messages anywhere.
    Small,
    /// A thousand lines of a hundred messages, beneath messages anywhere.
    Wide,
    /// The same, each beneath the middle of the one before.
    Deep,
}

impl Shape {
    /// How many lines, and how many messages each.
    fn size(self) -> (usize, u32) {
        match self {
            Self::Small => (10, 10),
            Self::Wide | Self::Deep => (1_000, 100),
        }
    }
}

const SHAPES: [(Shape, &str); 3] = [(Shape::Small, "small"), (Shape::Wide, "wide"), (Shape::Deep, "deep")];

/// What is measured, in the order of the table.
const ACTS: [&str; 6] = [
    "append a turn",
    "branch at the tip",
    "branch anywhere",
    "navigate between neighbours",
    "navigate anywhere",
    "fork anywhere",
];

/// A stored tree.
struct Grown {
    session: SessionId,
    /// Its messages with their roles; the last are those of the active path.
    messages: Vec<(MessageId, Role)>,
    /// Two answers to the same question.
    neighbours: [MessageId; 2],
}

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let store = world::store(&folder.file("tree.sqlite3"));
    let measured = runtime.spawn(async move {
        let maker = Maker::new();
        let mut dice = Dice(7);
        let mut grown = vec![];
        for (shape, _) in SHAPES {
            grown.push(grow(&maker, &*store, shape, &mut dice).await);
        }
        let opened = open(&*store, &grown).await;
        let kernel = world::kernel(store.clone()).await;
        for tree in &mut grown {
            tree.neighbours = neighbours(&kernel, tree).await;
        }
        let mut times = vec![vec![vec![]; SHAPES.len()]; ACTS.len()];
        for round in 0..ROUNDS {
            for (act, times) in times.iter_mut().enumerate() {
                // Each comes first in turn: what one leaves for the disk to do, the next one feels.
                for at in (0..grown.len()).map(|at| (at + round) % SHAPES.len()) {
                    times[at].push(play(&kernel, &grown[at], act, round, &mut dice).await);
                }
            }
        }
        kernel.shutdown().await;
        (times, opened)
    });
    let (times, opened) = runtime.block_on(measured).unwrap();
    for (act, times) in ACTS.iter().zip(&times) {
        lines(table, act, times);
    }
    lines(table, "open, and read the end of the path", &opened);
    table.note(
        "Wide and deep trees hold 100,000 messages in 1,000 branches, beneath messages anywhere or each beneath the \
         one before; the small one 100 messages in 10 branches. Anywhere in a deep tree lies hundreds of branches \
         away; those that were passed before are known.",
    );
}

/// The ratio is the median of those of each round: what slows a round slows all that is measured in it.
fn lines(table: &mut Table, act: &str, times: &[Vec<f64>]) {
    let (small, others) = times.split_first().unwrap();
    for ((_, name), ours) in SHAPES.iter().skip(1).zip(others) {
        // To open takes some microseconds for indexes that are deeper by a page.
        let goal = Goal::RatioAtMost(if act.starts_with("open") { 1.5 } else { 1.25 });
        let ratios: Vec<f64> = ours.iter().zip(small).map(|(ours, small)| ours / small).collect();
        let (measure, beside) = (format!("{act}, {name} tree, p50"), (median(small), "small tree"));
        table.line_with_ratio(measure, median(ours), Some(beside), Some(median(&ratios)), "ms", goal);
    }
}

/// A small generator, so that each run walks the same way.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

async fn grow(maker: &Maker, store: &dyn Store, shape: Shape, dice: &mut Dice) -> Grown {
    let mut session = maker.session();
    let node = maker.ids.node();
    let fence = store.lease_take(session.id, node).await.unwrap();
    let run = maker.ids.run();
    let mut messages: Vec<(MessageId, Role, Point)> = vec![];
    let (count, length) = shape.size();
    for no in 0..count {
        let parent = match (no, shape) {
            (0, _) => None,
            // After an answer, so that roles go on in turns.
            (_, Shape::Small | Shape::Wide) => Some(messages[dice.below(messages.len()) | 1].2),
            (_, Shape::Deep) => Some(messages[messages.len() - length as usize / 2 - 1].2),
        };
        let mut line = Line::open(maker.ids.line(), parent);
        let mut rows = vec![];
        for at in 0..length {
            let role = if at % 2 == 0 { Role::User } else { Role::Assistant };
            let message = maker.message(session.id, run, role);
            let point = Point { line: line.id, pos: line.end };
            messages.push((message.id, role, point));
            rows.push(Row::Message(message, Some(point)));
            line.end += 1;
        }
        session.tip = line.last();
        session.tip_message = messages.last().map(|(id, ..)| *id);
        rows.insert(0, Row::Line(line));
        rows.extend(parent.map(|parent| Row::Cursor(parent, Some(line.id))));
        rows.push(Row::Session(Box::new(Session { ..session.clone() })));
        store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.unwrap();
    }
    let messages: Vec<_> = messages.into_iter().map(|(id, role, _)| (id, role)).collect();
    let last = messages[messages.len() - 1].0;
    Grown { session: session.id, messages, neighbours: [last, last] }
}

/// The last answer of the path, and another one to the same question.
async fn neighbours(kernel: &Kernel, tree: &Grown) -> [MessageId; 2] {
    let question = tree.messages[tree.messages.len() - 2].0;
    branch(kernel, tree, Place::Regenerate { message_id: question }).await;
    let session = kernel.session_get(&world::caller(), &SessionRef::Id(tree.session)).await.unwrap();
    [tree.messages[tree.messages.len() - 1].0, session.tip_message.unwrap()]
}

/// How long it takes to load a session and to read its last 50 messages, from the store.
async fn open(store: &dyn Store, grown: &[Grown]) -> Vec<Vec<f64>> {
    let mut times = vec![vec![]; grown.len()];
    for _ in 0..ROUNDS {
        for (tree, times) in grown.iter().zip(&mut times) {
            let begin = Instant::now();
            let loaded = store.session_load(tree.session).await.unwrap().unwrap();
            store.path(loaded.session.tip.unwrap(), None, 50).await.unwrap();
            times.push(ms(begin.elapsed()));
        }
    }
    times
}

async fn play(kernel: &Kernel, tree: &Grown, act: usize, round: usize, dice: &mut Dice) -> f64 {
    let (caller, by) = (world::caller(), SessionRef::Id(tree.session));
    let somewhere = tree.messages[dice.below(tree.messages.len())];
    match act {
        0 => {
            let mut feed = kernel.session_subscribe(&caller, &by, None).await.unwrap();
            one(kernel, tree.session, &mut feed).await
        }
        1 => {
            let question = tree.messages[tree.messages.len() - 2].0;
            kernel.session_navigate(&caller, &by, Some(tree.neighbours[0]), None).await.unwrap();
            branch(kernel, tree, Place::Regenerate { message_id: question }).await
        }
        2 => {
            let (message_id, role) = somewhere;
            let place = match role {
                Role::User => Place::Regenerate { message_id },
                Role::Assistant => Place::Edit { message_id },
            };
            branch(kernel, tree, place).await
        }
        3 => {
            kernel
                .session_navigate(&caller, &by, Some(tree.neighbours[(round + 1) % 2]), None)
                .await
                .unwrap();
            walk(kernel, &by, tree.neighbours[round % 2]).await
        }
        4 => loop {
            // Where one is already is no way.
            let before = kernel.session_get(&caller, &by).await.unwrap().version;
            let somewhere = tree.messages[dice.below(tree.messages.len())].0;
            let time = walk(kernel, &by, somewhere).await;
            if kernel.session_get(&caller, &by).await.unwrap().version > before {
                return time;
            }
        },
        _ => {
            let fork = ForkRequest { message: somewhere.0, key: None, title: None };
            let begin = Instant::now();
            kernel.session_fork(&caller, &by, fork, None).await.unwrap();
            ms(begin.elapsed())
        }
    }
}

async fn walk(kernel: &Kernel, by: &SessionRef, to: MessageId) -> f64 {
    let begin = Instant::now();
    kernel.session_navigate(&world::caller(), by, Some(to), None).await.unwrap();
    ms(begin.elapsed())
}

async fn branch(kernel: &Kernel, tree: &Grown, place: Place) -> f64 {
    let mut feed =
        kernel.session_subscribe(&world::caller(), &SessionRef::Id(tree.session), None).await.unwrap();
    let mut request = prompt(tree.session, world::text(500));
    request.place = place;
    if matches!(place, Place::Regenerate { .. }) {
        request.prompt = vec![];
    }
    let begin = Instant::now();
    let run = kernel.run_create(&world::caller(), request).await.unwrap().run.id;
    succeeded(&mut feed, run).await;
    ms(begin.elapsed())
}
