//! The pen: the place of the next message that a run writes.

use super::{Line, Point};
use crate::LineId;

/// The point just before `point` on its path; none before a root. The result keeps the line of `point` even
/// if the message is on the parent line (see [`super::ranges`]).
pub fn before(point: Point) -> Option<Point> {
    point.pos.checked_sub(1).map(|pos| Point { pos, ..point })
}

/// The position of the message above `pen`, whose line is `line`. The message above the first position of a line is on
/// the parent line.
pub fn above(pen: Point, line: Option<&Line>) -> Option<Point> {
    let above = before(pen)?;
    match line {
        Some(line) if above.pos < line.start() => line.parent,
        _ => Some(above),
    }
}

/// Places a message that an attempt left behind: alone on an abandoned line beneath `above`, off the path.
pub fn aside(fresh: LineId, above: Option<Point>) -> (Line, Point) {
    let line = Line::open(fresh, above);
    let point = Point { line: fresh, pos: line.end };
    (Line { abandoned: true, end: line.end + 1, ..line }, point)
}

/// Returns the abandoned lines of a path that becomes active again, no longer marked as abandoned.
pub fn reopened(lines: Vec<Line>) -> impl Iterator<Item = Line> {
    lines.into_iter().filter(|line| line.abandoned).map(|line| Line { abandoned: false, ..line })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LineId = LineId(1);
    const B: LineId = LineId(2);

    fn at(line: LineId, pos: u32) -> Point {
        Point { line, pos }
    }

    #[test]
    fn the_message_above_a_lines_first_position_is_on_the_parent_line() {
        let line = Line { id: B, parent: Some(at(A, 4)), end: 7, abandoned: false };
        assert_eq!(above(at(B, 7), Some(&line)), Some(at(B, 6)));
        assert_eq!(above(at(B, 5), Some(&line)), Some(at(A, 4)));
        assert_eq!(above(at(A, 0), Some(&Line::open(A, None))), None, "a root has nothing above it");
        assert_eq!(above(at(B, 5), None), Some(at(B, 4)), "without the line, its start is not considered");
    }

    #[test]
    fn a_message_set_aside_is_alone_on_an_abandoned_line() {
        let (line, point) = aside(B, Some(at(A, 2)));
        assert_eq!(line, Line { id: B, parent: Some(at(A, 2)), end: 4, abandoned: true });
        assert_eq!(point, at(B, 3));
        assert_eq!(line.last(), Some(point));
        assert_eq!(aside(B, None).1, at(B, 0), "without a message above, the message is a root");
    }

    #[test]
    fn only_abandoned_lines_are_reopened() {
        let kept = Line::open(A, None);
        let (left, _) = aside(B, Some(at(A, 0)));
        let lines: Vec<Line> = reopened(vec![kept, left]).collect();
        assert_eq!(lines, [Line { abandoned: false, ..left }]);
    }
}
