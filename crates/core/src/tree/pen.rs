//! The pen: the place of the next message that a run writes.

use super::{Line, Point};
use crate::LineId;

/// The point just before `point` on its path; none before a root. The point may lie on the parent line (see
/// [`super::ranges`]).
pub fn before(point: Point) -> Option<Point> {
    point.pos.checked_sub(1).map(|pos| Point { pos, ..point })
}

/// The place of the message above `pen`. `line` is the line of the pen; the message above its first place is on
/// another line.
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

/// Returns the abandoned lines of a path that becomes active again, without their mark as abandoned.
pub fn taken_up(lines: Vec<Line>) -> impl Iterator<Item = Line> {
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
    fn the_first_place_of_a_line_lies_beneath_its_parent() {
        let line = Line { id: B, parent: Some(at(A, 4)), end: 7, abandoned: false };
        assert_eq!(above(at(B, 7), Some(&line)), Some(at(B, 6)));
        assert_eq!(above(at(B, 5), Some(&line)), Some(at(A, 4)));
        assert_eq!(above(at(A, 0), Some(&Line::open(A, None))), None, "a root has nothing above it");
        assert_eq!(above(at(B, 5), None), Some(at(B, 4)), "a line that is not known is taken as it is");
    }

    #[test]
    fn a_message_set_aside_is_alone_on_an_abandoned_line() {
        let (line, point) = aside(B, Some(at(A, 2)));
        assert_eq!(line, Line { id: B, parent: Some(at(A, 2)), end: 4, abandoned: true });
        assert_eq!(point, at(B, 3));
        assert_eq!(line.last(), Some(point));
        assert_eq!(aside(B, None).1, at(B, 0), "beneath nothing it is a root");
    }

    #[test]
    fn only_abandoned_lines_are_taken_up_again() {
        let kept = Line::open(A, None);
        let (left, _) = aside(B, Some(at(A, 0)));
        let taken: Vec<Line> = taken_up(vec![kept, left]).collect();
        assert_eq!(taken, [Line { abandoned: false, ..left }]);
    }
}
