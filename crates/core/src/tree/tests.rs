use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

const A: LineId = LineId(1);
const B: LineId = LineId(2);
const C: LineId = LineId(3);

fn at(line: LineId, pos: u32) -> Point {
    Point { line, pos }
}

fn range(line: LineId, from: u32, to: u32) -> Range {
    Range { line, from, to }
}

/// A tree in memory that uses the same rules as the stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tree {
    lines: HashMap<LineId, Line>,
    /// The lines beneath each point, oldest first. Lines with a root are beneath `None`.
    beneath: BTreeMap<Option<Point>, Vec<LineId>>,
    cursors: BTreeMap<Point, LineId>,
    tip: Option<Point>,
}

impl TreeView for Tree {
    type Error = Infallible;

    fn ahead(&mut self, at: Point) -> Result<Vec<Range>, Infallible> {
        let line = self.lines.get(&at.line).filter(|_| self.contains(at));
        Ok(line.map(|line| Range { line: line.id, from: at.pos, to: line.end - 1 }).into_iter().collect())
    }

    fn cursor_target(&mut self, range: Range) -> Result<Option<Point>, Infallible> {
        let target =
            |(from, id): (&Point, &LineId)| self.first(*id).filter(|to| self.parent(*to) == Some(*from));
        Ok(self.cursors.range(range.first()..=range.last()).find_map(target))
    }

    fn newest(&mut self, at: Point) -> Result<Option<Point>, Infallible> {
        Ok(self.beneath.get(&Some(at)).and_then(|lines| lines.iter().rev().find_map(|id| self.first(*id))))
    }
}

impl Tree {
    fn put(&mut self, line: Line) {
        if self.lines.insert(line.id, line).is_none() {
            self.beneath.entry(line.parent).or_default().push(line.id);
        }
    }

    fn contains(&self, point: Point) -> bool {
        self.lines.get(&point.line).is_some_and(|line| (line.start()..line.end).contains(&point.pos))
    }

    /// Appends a message beneath `at` and returns its position; `fresh` is the id of a line that is opened for it.
    fn append(&mut self, at: Option<Point>, branch: bool, fresh: LineId) -> Point {
        let placed = place(at, at.and_then(|at| self.lines.get(&at.line)), branch, fresh);
        if let Some(line) = placed.opened {
            self.put(line);
        }
        self.lines.get_mut(&placed.point.line).unwrap().end = placed.point.pos + 1;
        placed.point
    }

    fn abandon(&mut self, line: LineId) {
        self.lines.get_mut(&line).unwrap().abandoned = true;
    }

    fn parent(&self, point: Point) -> Option<Point> {
        let line = self.lines.get(&point.line)?;
        if point.pos > line.start() { Some(Point { pos: point.pos - 1, ..point }) } else { line.parent }
    }

    fn children(&self, point: Option<Point>) -> Vec<Point> {
        let own =
            point.map(|point| Point { pos: point.pos + 1, ..point }).filter(|next| self.contains(*next));
        let opened = self.beneath.get(&point).into_iter().flatten().filter_map(|id| self.first(*id));
        own.into_iter().chain(opened).collect()
    }

    fn siblings(&self, point: Point) -> Vec<Point> {
        self.children(self.parent(point))
    }

    fn parent_of(&self, id: LineId) -> Result<Option<Point>, Infallible> {
        Ok(self.lines.get(&id).and_then(|line| line.parent))
    }

    fn path(&self, tip: Option<Point>) -> Vec<Range> {
        ranges(tip, |id| self.parent_of(id)).unwrap()
    }

    fn extend(&self, point: Point) -> Point {
        leaf(&mut self.clone(), point).unwrap()
    }

    /// The first message of a line that is neither empty nor abandoned.
    fn first(&self, id: LineId) -> Option<Point> {
        let line = self.lines.get(&id).filter(|line| !line.abandoned && line.end > line.start())?;
        Some(Point { line: id, pos: line.start() })
    }

    /// Makes the path to `point` the active path and updates the cursors along it.
    fn visit(&mut self, point: Option<Point>) {
        if let Some(to) = point {
            let diverging = diverging_ranges(self.tip, to, |id| self.parent_of(id)).unwrap();
            let within = |at: &Point| diverging.iter().any(|range| range.contains(*at));
            let cursors: Vec<_> =
                self.cursors.iter().map(|(at, to)| (*at, *to)).filter(|(at, _)| within(at)).collect();
            for (at, to) in visit(&diverging, &cursors) {
                match to {
                    Some(to) => drop(self.cursors.insert(at, to)),
                    None => drop(self.cursors.remove(&at)),
                }
            }
        }
        self.tip = point;
    }
}

/// The tree in the documentation of the module, with its path to (a, 4) visited.
fn example_tree() -> Tree {
    let mut tree = Tree::default();
    let mut tip = None;
    for _ in 0..5 {
        tip = Some(tree.append(tip, false, A));
    }
    tree.visit(tip);
    tree.append(Some(at(A, 2)), true, B);
    tree.append(Some(at(B, 3)), false, LineId(9));
    tree.append(Some(at(B, 4)), false, LineId(9));
    tree.append(Some(at(B, 4)), true, C);
    tree
}

#[test]
fn a_message_goes_to_the_end_of_its_line_or_opens_one() {
    let line = Line { id: A, parent: None, end: 3, abandoned: false };
    let opened =
        |parent: Option<Point>, pos| Placement { point: at(B, pos), opened: Some(Line::open(B, parent)) };

    assert_eq!(place(None, None, false, B), opened(None, 0), "the first message is a root");
    assert_eq!(
        place(Some(at(A, 2)), Some(&line), false, B),
        Placement { point: at(A, 3), opened: None },
        "at the end"
    );
    assert_eq!(
        place(Some(at(A, 1)), Some(&line), false, B),
        opened(Some(at(A, 1)), 2),
        "a message above the end opens a line"
    );
    assert_eq!(place(Some(at(A, 2)), Some(&line), true, B), opened(Some(at(A, 2)), 3), "a branch");
    assert_eq!(place(Some(at(A, 2)), None, false, B), opened(Some(at(A, 2)), 3), "a line of another session");
    let abandoned = Line { abandoned: true, ..line };
    assert_eq!(
        place(Some(at(A, 2)), Some(&abandoned), false, B),
        opened(Some(at(A, 2)), 3),
        "an abandoned line"
    );
}

#[test]
fn a_cursor_leads_to_a_line_that_is_opened_beneath_a_message() {
    let line = Line { id: A, parent: None, end: 3, abandoned: false };
    assert_eq!(place(Some(at(A, 1)), Some(&line), false, B).cursor(), Some((at(A, 1), B)));
    assert_eq!(place(Some(at(A, 2)), Some(&line), false, B).cursor(), None, "the same line goes on");
    assert_eq!(place(None, None, false, B).cursor(), None, "a root");
}

#[test]
fn an_empty_line_has_no_last_message() {
    let mut line = Line::open(B, Some(at(A, 2)));
    assert_eq!((line.start(), line.last()), (3, None));
    line.end += 1;
    assert_eq!(line.last(), Some(at(B, 3)));
}

#[test]
fn the_paths_of_the_example_tree() {
    let tree = example_tree();
    assert_eq!(tree.path(Some(at(C, 5))), [range(A, 0, 2), range(B, 3, 4), range(C, 5, 5)]);
    assert_eq!(tree.path(Some(at(A, 1))), [range(A, 0, 1)]);
    assert_eq!(tree.path(None), []);
}

#[test]
fn a_path_to_an_empty_line_ends_above_it() {
    let parent_of = |line| Ok::<_, ()>((line == B).then_some(at(A, 2)));
    assert_eq!(ranges(Some(at(B, 2)), parent_of), Ok(vec![range(A, 0, 2)]));
}

#[test]
fn two_paths_diverge_at_their_last_common_point() {
    let mut tree = example_tree();
    let d = tree.append(Some(at(A, 1)), true, LineId(4));
    let e = tree.append(None, true, LineId(5));
    let diverging = |from, to| diverging_ranges(from, to, |id| tree.parent_of(id)).unwrap();
    assert_eq!(diverging(Some(at(A, 4)), at(C, 5)), [range(A, 2, 2), range(B, 3, 4), range(C, 5, 5)]);
    assert_eq!(diverging(Some(at(C, 5)), at(A, 4)), [range(A, 2, 4)]);
    assert_eq!(diverging(Some(at(C, 5)), at(B, 5)), [range(B, 4, 5)]);
    assert_eq!(diverging(Some(at(C, 5)), d), [range(A, 1, 1), range(LineId(4), 2, 2)]);
    assert_eq!(diverging(Some(d), at(C, 5)), [range(A, 1, 2), range(B, 3, 4), range(C, 5, 5)]);
    assert_eq!(
        diverging(Some(at(C, 5)), e),
        [range(LineId(5), 0, 0)],
        "paths from different roots share nothing"
    );
    assert_eq!(diverging(None, at(B, 3)), [range(A, 0, 2), range(B, 3, 3)]);
    assert_eq!(diverging(Some(at(B, 5)), at(B, 5)), [range(B, 5, 5)]);
}

#[test]
fn lines_above_the_divergence_are_not_read() {
    let tree = example_tree();
    let mut asked = vec![];
    diverging_ranges(Some(at(B, 5)), at(C, 5), |id| {
        asked.push(id);
        tree.parent_of(id)
    })
    .unwrap();
    assert!(!asked.contains(&A), "{asked:?}");
}

#[test]
fn a_fork_inherits_the_path_to_its_base_and_nothing_else() {
    let inherited = Inherited::new(example_tree().path(Some(at(B, 4))));
    assert_eq!(inherited.ahead(at(A, 1)), [range(A, 1, 2), range(B, 3, 4)]);
    assert_eq!((inherited.ahead(at(A, 3)), inherited.ahead(at(C, 5))), (vec![], vec![]));
    let mut visited = vec![];
    while let Some(next) = inherited.next(visited.last().copied()) {
        visited.push(next);
    }
    assert_eq!(visited, [at(A, 0), at(A, 1), at(A, 2), at(B, 3), at(B, 4)]);
}

#[test]
fn a_path_that_cannot_be_read_is_an_error() {
    let parent_of = |line| {
        if line == B { Ok(Some(at(A, 0))) } else { Err("unreadable") }
    };
    assert_eq!(ranges(Some(at(B, 1)), parent_of), Err("unreadable"));
}

#[test]
fn parents_children_and_siblings() {
    let tree = example_tree();
    assert_eq!(tree.parent(at(A, 0)), None);
    assert_eq!(tree.parent(at(A, 3)), Some(at(A, 2)));
    assert_eq!(tree.parent(at(B, 3)), Some(at(A, 2)));
    assert_eq!(tree.children(None), [at(A, 0)]);
    assert_eq!(tree.children(Some(at(A, 2))), [at(A, 3), at(B, 3)]);
    assert_eq!(tree.children(Some(at(A, 4))), []);
    assert_eq!(tree.siblings(at(C, 5)), [at(B, 5), at(C, 5)]);
    assert_eq!(tree.siblings(at(A, 0)), [at(A, 0)]);
}

#[test]
fn roots_are_siblings() {
    let mut tree = example_tree();
    let root = tree.append(None, true, LineId(4));
    assert_eq!(tree.siblings(root), [at(A, 0), root]);
}

#[test]
fn a_missing_point_is_its_own_leaf() {
    let tree = example_tree();
    for point in [at(A, 5), at(LineId(8), 0), at(B, 0)] {
        assert!(!tree.contains(point), "{point:?}");
        assert_eq!(tree.extend(point), point);
    }
}

#[test]
fn only_a_visit_moves_the_cursors() {
    let mut tree = example_tree();
    assert_eq!(tree.extend(at(A, 0)), at(A, 4));
    tree.visit(Some(at(C, 5)));
    assert_eq!((tree.tip, tree.extend(at(A, 0))), (Some(at(C, 5)), at(C, 5)));
    tree.visit(Some(at(B, 5)));
    assert_eq!(tree.extend(at(A, 1)), at(B, 5));
    tree.visit(Some(at(A, 4)));
    assert_eq!(tree.extend(at(A, 1)), at(A, 4));
    assert_eq!(tree.extend(at(B, 3)), at(B, 5), "cursors off the path do not change");
    tree.visit(None);
    assert_eq!((tree.tip, tree.extend(at(A, 1))), (None, at(A, 4)));
}

#[test]
fn without_a_cursor_the_newest_child_is_followed() {
    let mut tree = Tree::default();
    let root = tree.append(None, false, A);
    tree.visit(Some(root));
    let older = tree.append(Some(root), true, B);
    assert_eq!(tree.extend(root), older);
    let newer = tree.append(Some(root), true, C);
    assert_eq!(tree.extend(root), newer);
    tree.abandon(C);
    assert_eq!((tree.extend(root), tree.children(Some(root))), (older, vec![older]));
}

#[test]
fn a_cursor_to_an_abandoned_line_is_not_followed() {
    let mut tree = example_tree();
    tree.visit(Some(at(C, 5)));
    tree.abandon(C);
    assert_eq!(tree.extend(at(A, 0)), at(B, 5));
    tree.abandon(B);
    assert_eq!(tree.extend(at(A, 0)), at(A, 4));
}

#[test]
fn a_cursor_to_a_line_of_another_parent_is_not_followed() {
    let mut tree = example_tree();
    tree.cursors.extend([(at(A, 1), A), (at(A, 3), C), (at(B, 4), A)]);
    assert_eq!((tree.extend(at(A, 0)), tree.extend(at(B, 3))), (at(A, 4), at(B, 5)));
}

/// The reference model: one node per message, each with a parent and a cursor.
#[derive(Debug, Default)]
struct Model {
    nodes: Vec<Node>,
    tip: Option<usize>,
}

#[derive(Debug)]
struct Node {
    point: Point,
    parent: Option<usize>,
    cursor: Option<usize>,
    abandoned: bool,
}

impl Model {
    fn visible(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| !self.nodes[*node].abandoned)
    }

    fn children(&self, parent: Option<usize>) -> impl DoubleEndedIterator<Item = usize> {
        self.visible().filter(move |node| self.nodes[*node].parent == parent)
    }

    fn path(&self, tip: Option<usize>) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(tip, |node| self.nodes[*node].parent).collect();
        path.reverse();
        path
    }

    fn extend(&self, node: usize) -> usize {
        let next = self.nodes[node].cursor.or_else(|| self.children(Some(node)).next_back());
        next.map_or(node, |next| self.extend(next))
    }

    fn visit(&mut self, tip: Option<usize>) {
        for pair in self.path(tip).windows(2) {
            self.nodes[pair[0]].cursor = Some(pair[1]);
        }
        self.tip = tip;
    }

    fn points(&self, nodes: impl IntoIterator<Item = usize>) -> Vec<Point> {
        nodes.into_iter().map(|node| self.nodes[node].point).collect()
    }
}

/// The tree and its reference model, changed together.
#[derive(Default)]
struct Pair {
    tree: Tree,
    model: Model,
    lines: i64,
}

impl Pair {
    /// Writes `count` messages beneath `head`, as a run does. Returns the last node and the line of the first one.
    fn write(
        &mut self,
        head: Option<usize>,
        branch: bool,
        count: usize,
    ) -> Result<(usize, LineId), TestCaseError> {
        let mut parent = head;
        for n in 0..count {
            self.lines += 1;
            let above = parent.map(|node| self.model.nodes[node].point);
            let point = self.tree.append(above, branch && n == 0, LineId(self.lines));
            self.model.nodes.push(Node { point, parent, cursor: None, abandoned: false });
            parent = Some(self.model.nodes.len() - 1);
            self.compare()?;
        }
        let last = self.model.nodes.len() - 1;
        Ok((last, self.model.nodes[last + 1 - count].point.line))
    }

    fn visit(&mut self, tip: Option<usize>) {
        self.model.visit(tip);
        self.tree.visit(tip.map(|node| self.model.nodes[node].point));
    }

    /// Picks a visible node; `None` if `which` is `None` or no node is visible.
    fn pick(&self, which: Option<prop::sample::Index>) -> Option<usize> {
        let visible: Vec<usize> = self.model.visible().collect();
        which.filter(|_| !visible.is_empty()).map(|which| *which.get(&visible))
    }

    fn play(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Prompt { count } => {
                let (tip, _) = self.write(self.model.tip, false, count)?;
                self.visit(Some(tip));
            }
            Step::Branch { beneath, count, succeeds } => {
                let before = self.model.nodes.len();
                let shape = (self.tree.tip, self.tree.cursors.clone());
                let (tip, line) = self.write(self.pick(beneath), true, count)?;
                if succeeds {
                    self.visit(Some(tip));
                } else {
                    self.tree.abandon(line);
                    self.model.nodes[before..].iter_mut().for_each(|node| node.abandoned = true);
                    prop_assert_eq!(
                        &shape,
                        &(self.tree.tip, self.tree.cursors.clone()),
                        "a rolled back branch leaves no trace"
                    );
                }
            }
            Step::Navigate { to } => {
                let tip = self.pick(to).map(|node| self.model.extend(node));
                let extended = self.pick(to).map(|node| self.tree.extend(self.model.nodes[node].point));
                prop_assert_eq!(extended, tip.map(|node| self.model.nodes[node].point));
                self.visit(tip);
            }
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let Self { tree, model, .. } = self;
        prop_assert_eq!(tree.tip, model.tip.map(|node| model.nodes[node].point));
        prop_assert_eq!(tree.children(None), model.points(model.children(None)));
        for node in model.visible() {
            let Node { point, parent, .. } = model.nodes[node];
            prop_assert!(tree.contains(point));
            prop_assert_eq!(tree.parent(point), parent.map(|node| model.nodes[node].point));
            prop_assert_eq!(tree.children(Some(point)), model.points(model.children(Some(node))));
            prop_assert_eq!(tree.siblings(point), model.points(model.children(parent)));
            prop_assert_eq!(tree.extend(point), model.nodes[model.extend(node)].point);
            let path: Vec<Point> = tree
                .path(Some(point))
                .iter()
                .flat_map(|r| (r.from..=r.to).map(|pos| at(r.line, pos)))
                .collect();
            prop_assert_eq!(path, model.points(model.path(Some(node))));
        }
        Ok(())
    }
}

/// A change of a session's tree.
#[derive(Debug, Clone)]
enum Step {
    /// A plain prompt: its messages go beneath the tip, and the tip moves with any outcome.
    Prompt { count: usize },
    /// A regenerate, an edit or a new root: the tip moves on success; otherwise the branch is rolled back.
    Branch { beneath: Option<prop::sample::Index>, count: usize, succeeds: bool },
    /// Navigation to a message, or to none.
    Navigate { to: Option<prop::sample::Index> },
}

fn step() -> impl Strategy<Value = Step> {
    let point = || prop::option::weighted(0.9, any::<prop::sample::Index>());
    prop_oneof![
        (1..4usize).prop_map(|count| Step::Prompt { count }),
        (point(), 1..4usize, any::<bool>()).prop_map(|(beneath, count, succeeds)| Step::Branch {
            beneath,
            count,
            succeeds
        }),
        point().prop_map(|to| Step::Navigate { to }),
    ]
}

proptest! {
    #[test]
    fn the_tree_behaves_like_the_reference_model(steps in prop::collection::vec(step(), 0..30)) {
        let mut pair = Pair::default();
        for step in &steps {
            pair.play(step)?;
        }
    }
}
