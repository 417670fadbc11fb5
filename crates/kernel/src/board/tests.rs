use super::*;
use crate::store_health::StoreHealth;

fn id(n: u16) -> SessionId {
    let mut bytes = [0; 16];
    bytes[14..].copy_from_slice(&n.to_be_bytes());
    SessionId::from_random(bytes)
}

fn session(n: u16) -> LiveSession {
    LiveSession { session_id: id(n), key: None, title: None, status: LiveStatus::Idle }
}

fn all_changes(feed: &mut LiveFeed) -> Vec<LiveChange> {
    let mut all = vec![];
    loop {
        feed.queue_next();
        match feed.pending.pop_front() {
            Some(change) => all.push(change),
            None => return all,
        }
    }
}

#[test]
fn a_reader_far_behind_finds_dropped_removals_by_comparing() {
    let board = Board::default();
    let count = u16::try_from(MAX_REMOVED * 2).unwrap();
    (0..count).for_each(|n| board.put("a", session(n)));
    let mut feed = board.subscribe("a", StoreWatch::new(&StoreHealth::default()));
    (0..count).for_each(|n| board.remove("a", id(n), n % 2 == 0));
    board.put("a", session(count));
    let changes = all_changes(&mut feed);
    let of = |kind: &str| changes.iter().filter(|change| change.kind() == kind).count();
    assert_eq!(changes.len(), usize::from(count) + 1);
    // Deletions are reported for the remembered half; the others are reported as closed, which is true as well.
    assert_eq!((of("deleted"), of("closed"), of("opened")), (MAX_REMOVED / 2, MAX_REMOVED * 3 / 2, 1));
    assert_eq!(feed.buffered(), 1);
}

#[test]
fn an_owner_without_sessions_and_readers_is_dropped() {
    let board = Board::default();
    board.put("a", session(1));
    let feed = board.subscribe("a", StoreWatch::new(&StoreHealth::default()));
    board.remove("a", id(1), false);
    assert_eq!(board.0.lock().owners.len(), 1);
    drop(feed);
    assert_eq!(board.0.lock().owners.len(), 0);
    board.put("a", session(1));
    board.remove("a", id(1), false);
    assert_eq!(board.0.lock().owners.len(), 0);
}

#[test]
fn a_status_that_is_set_again_is_not_reported() {
    let board = Board::default();
    let mut feed = board.subscribe("ada", StoreWatch::new(&StoreHealth::default()));
    let busy = LiveSession { status: LiveStatus::Busy, ..session(1) };
    for session in [session(1), busy.clone(), busy.clone(), busy] {
        board.put("ada", session);
    }
    let changes = all_changes(&mut feed);
    board.put("ada", LiveSession { status: LiveStatus::Busy, ..session(1) });
    assert_eq!(all_changes(&mut feed), [], "after {changes:?}");
}
