//! Trees: the cost of a turn, a branch, a navigation and a fork in a session of 100,000 messages in 1,000 branches,
//! against a session of 100 messages.

use std::sync::Arc;
use std::time::Instant;

use mainspring_core::{Line, MessageId, Place, Point, Role, Session, SessionId};
use mainspring_kernel::kernel::{ForkRequest, Kernel};
use mainspring_kernel::store::{Commit, Row, SessionRef, Store};
use tokio::runtime::Runtime;

use crate::history::Builder;
use crate::stats::{median, ms};
use crate::table::{Goal, Table};
use crate::turn::{prompt, run_turn, wait_succeeded};
use crate::world;

const ROUNDS: usize = 150;

/// The shape of a tree: how its lines are attached.
#[derive(Clone, Copy)]
enum Shape {
    /// Ten lines of ten messages, beneath random messages.
    Small,
    /// A thousand lines of a hundred messages, beneath random messages.
    Wide,
    /// A thousand lines of a hundred messages, each beneath the middle of the previous line.
    Deep,
}

impl Shape {
    /// The number of lines and the messages per line.
    fn size(self) -> (usize, u32) {
        match self {
            Self::Small => (10, 10),
            Self::Wide | Self::Deep => (1_000, 100),
        }
    }
}

const SHAPES: [(Shape, &str); 3] = [(Shape::Small, "small"), (Shape::Wide, "wide"), (Shape::Deep, "deep")];

/// The measured operations, in the order of the table.
const OPERATIONS: [&str; 6] = [
    "append a turn",
    "branch at the tip",
    "branch anywhere",
    "navigate between neighbours",
    "navigate anywhere",
    "fork anywhere",
];

/// A stored tree.
struct StoredTree {
    session: SessionId,
    /// The messages with their roles; the last ones are on the active path.
    messages: Vec<(MessageId, Role)>,
    /// Two answers to the same question.
    neighbours: [MessageId; 2],
}

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let store = world::store(&folder.file("tree.sqlite3"));
    let measured = runtime.spawn(async move {
        let builder = Builder::new();
        let mut random = Random(7);
        let mut trees = vec![];
        for (shape, _) in SHAPES {
            trees.push(build(&builder, &*store, shape, &mut random).await);
        }
        let opened = open(&*store, &trees).await;
        let kernel = world::kernel(store.clone()).await;
        for tree in &mut trees {
            tree.neighbours = neighbours(&kernel, tree).await;
        }
        let mut times = vec![vec![vec![]; SHAPES.len()]; OPERATIONS.len()];
        for round in 0..ROUNDS {
            for (operation, times) in times.iter_mut().enumerate() {
                // Rotate the order: an operation may be slowed by disk writes of the one before it.
                for at in (0..trees.len()).map(|at| (at + round) % SHAPES.len()) {
                    times[at].push(perform(&kernel, &trees[at], operation, round, &mut random).await);
                }
            }
        }
        kernel.shutdown().await;
        (times, opened)
    });
    let (times, opened) = runtime.block_on(measured).unwrap();
    for (operation, times) in OPERATIONS.iter().zip(&times) {
        add_lines(table, operation, times);
    }
    add_lines(table, "open, and read the end of the path", &opened);
    table.note(
        "Wide and deep trees hold 100,000 messages in 1,000 branches, beneath messages anywhere or each beneath the \
         one before; the small one 100 messages in 10 branches. In a deep tree, `anywhere` is hundreds of branches \
         away from the tip; branches that were crossed before are cached.",
    );
}

/// Adds a line for each larger tree. The ratio is the median of the ratios per round, since a disturbance affects all
/// measurements of a round.
fn add_lines(table: &mut Table, operation: &str, times: &[Vec<f64>]) {
    let (small, others) = times.split_first().unwrap();
    for ((_, name), ours) in SHAPES.iter().skip(1).zip(others) {
        // Opening takes some microseconds more because the indexes are one page deeper.
        let goal = Goal::RatioAtMost(if operation.starts_with("open") { 1.5 } else { 1.25 });
        let ratios: Vec<f64> = ours.iter().zip(small).map(|(ours, small)| ours / small).collect();
        let (measure, baseline) = (format!("{operation}, {name} tree, p50"), (median(small), "small tree"));
        table.line_with_ratio(measure, median(ours), Some(baseline), Some(median(&ratios)), "ms", goal);
    }
}

/// A small random number generator, so that every run takes the same path.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

async fn build(builder: &Builder, store: &dyn Store, shape: Shape, random: &mut Random) -> StoredTree {
    let mut session = builder.session();
    let node = builder.ids.node();
    let fence = store.lease_take(session.id, node).await.unwrap();
    let run = builder.ids.run();
    let mut messages: Vec<(MessageId, Role, Point)> = vec![];
    let (count, length) = shape.size();
    for no in 0..count {
        let parent = match (no, shape) {
            (0, _) => None,
            // Beneath an answer, so that the roles alternate.
            (_, Shape::Small | Shape::Wide) => Some(messages[random.below(messages.len()) | 1].2),
            (_, Shape::Deep) => Some(messages[messages.len() - length as usize / 2 - 1].2),
        };
        let mut line = Line::open(builder.ids.line(), parent);
        let mut rows = vec![];
        for at in 0..length {
            let role = if at % 2 == 0 { Role::User } else { Role::Assistant };
            let message = builder.message(session.id, run, role);
            let point = Point { line: line.id, pos: line.end };
            messages.push((message.id, role, point));
            rows.push(Row::Message(message, Some(point)));
            line.end += 1;
        }
        session.tip = line.last();
        session.tip_message = messages.last().map(|(id, ..)| *id);
        rows.insert(0, Row::Line(line));
        rows.extend(parent.map(|parent| Row::Cursor(parent, Some(line.id))));
        rows.push(Row::Session(Arc::new(Session { ..session.clone() })));
        store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.unwrap();
    }
    let messages: Vec<_> = messages.into_iter().map(|(id, role, _)| (id, role)).collect();
    let last = messages[messages.len() - 1].0;
    StoredTree { session: session.id, messages, neighbours: [last, last] }
}

/// The last answer of the path, and another answer to the same question.
async fn neighbours(kernel: &Kernel, tree: &StoredTree) -> [MessageId; 2] {
    let question = tree.messages[tree.messages.len() - 2].0;
    branch(kernel, tree, Place::Regenerate { message_id: question }).await;
    let session = kernel.session_get(&world::caller(), &SessionRef::Id(tree.session)).await.unwrap();
    [tree.messages[tree.messages.len() - 1].0, session.tip_message.unwrap()]
}

/// Measures loading a session and reading its last 50 messages from the store.
async fn open(store: &dyn Store, trees: &[StoredTree]) -> Vec<Vec<f64>> {
    let mut times = vec![vec![]; trees.len()];
    for _ in 0..ROUNDS {
        for (tree, times) in trees.iter().zip(&mut times) {
            let begin = Instant::now();
            let loaded = store.session_load(tree.session).await.unwrap().unwrap();
            store.path(loaded.session.tip.unwrap(), None, 50).await.unwrap();
            times.push(ms(begin.elapsed()));
        }
    }
    times
}

async fn perform(
    kernel: &Kernel,
    tree: &StoredTree,
    operation: usize,
    round: usize,
    random: &mut Random,
) -> f64 {
    let (caller, by) = (world::caller(), SessionRef::Id(tree.session));
    let target = tree.messages[random.below(tree.messages.len())];
    match operation {
        0 => {
            let mut feed = kernel.session_subscribe(&caller, &by, None).await.unwrap();
            run_turn(kernel, tree.session, &mut feed).await
        }
        1 => {
            let question = tree.messages[tree.messages.len() - 2].0;
            kernel.session_navigate(&caller, &by, Some(tree.neighbours[0]), None).await.unwrap();
            branch(kernel, tree, Place::Regenerate { message_id: question }).await
        }
        2 => {
            let (message_id, role) = target;
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
            navigate(kernel, &by, tree.neighbours[round % 2]).await
        }
        4 => loop {
            // Navigating to the current tip does nothing: pick another message.
            let before = kernel.session_get(&caller, &by).await.unwrap().version;
            let target = tree.messages[random.below(tree.messages.len())].0;
            let time = navigate(kernel, &by, target).await;
            if kernel.session_get(&caller, &by).await.unwrap().version > before {
                return time;
            }
        },
        _ => {
            let fork = ForkRequest { message: target.0, key: None, title: None };
            let begin = Instant::now();
            kernel.session_fork(&caller, &by, fork, None).await.unwrap();
            ms(begin.elapsed())
        }
    }
}

async fn navigate(kernel: &Kernel, by: &SessionRef, to: MessageId) -> f64 {
    let begin = Instant::now();
    kernel.session_navigate(&world::caller(), by, Some(to), None).await.unwrap();
    ms(begin.elapsed())
}

async fn branch(kernel: &Kernel, tree: &StoredTree, place: Place) -> f64 {
    let mut feed =
        kernel.session_subscribe(&world::caller(), &SessionRef::Id(tree.session), None).await.unwrap();
    let mut request = prompt(tree.session, world::text(500));
    request.place = place;
    if matches!(place, Place::Regenerate { .. }) {
        request.prompt = vec![];
    }
    let begin = Instant::now();
    let run = kernel.run_create(&world::caller(), request).await.unwrap().run.id;
    wait_succeeded(&mut feed, run).await;
    ms(begin.elapsed())
}
