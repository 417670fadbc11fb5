//! Digests: found on every path through their point, by their session and its forks.

use mainspring_core::*;
use mainspring_kernel::store::Row;

use crate::fixtures::*;

#[tokio::test]
async fn the_nearest_digest_above_the_tip_is_found() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let lines = vec![
            Row::Line(line(1, None, 6)),
            Row::Line(line(2, Some(point(1, 1)), 3)),
            Row::Line(line(3, Some(point(1, 4)), 7)),
        ];
        commit(store, fence, lines, vec![progress(1)]).await.unwrap();
        let found = async |line, pos| store.digest(session_id(1), point(line, pos)).await.unwrap();
        assert_eq!(found(1, 5).await, None, "{name}");
        let rows = vec![row(digest(1, 2)), row(digest(1, 4)), row(digest(2, 3))];
        commit(store, fence, rows, vec![progress(2)]).await.unwrap();
        assert_eq!(found(1, 5).await, Some(digest(1, 4)), "{name}");
        assert_eq!(
            found(1, 4).await,
            Some(digest(1, 2)),
            "{name}: a digest covers only the messages above it"
        );
        assert_eq!(found(1, 2).await, None, "{name}: above all digests");
        assert_eq!(found(2, 2).await, None, "{name}: a branch above the digests");
        assert_eq!(found(2, 4).await, Some(digest(2, 3)), "{name}");
        assert_eq!(found(3, 6).await, Some(digest(1, 4)), "{name}: a branch below the digest");
        // A digest replaces an older one at the same point.
        let newer = Digest { summary: None, left_out: 9, below_tokens: u64::MAX, ..digest(1, 4) };
        commit(store, fence, vec![row(newer.clone())], vec![]).await.unwrap();
        assert_eq!(found(1, 5).await, Some(newer), "{name}");
        let lost = commit(store, fence, vec![row(digest(77, 1))], vec![]).await;
        assert!(lost.is_err(), "{name}: there is no such line");
    }
}

#[tokio::test]
async fn a_fork_uses_the_digests_of_its_source_but_not_the_reverse() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (origin, fork) = (create_session(store, 1).await, lease(store, 2).await);
        commit(store, origin, vec![Row::Line(line(1, None, 6)), row(digest(1, 2))], vec![]).await.unwrap();
        let forked = Session { base: Some(point(1, 5)), tip: Some(point(1, 5)), ..session(2) };
        commit(store, fork, vec![row_session(forked)], vec![progress(1)]).await.unwrap();
        let found = async |n| store.digest(session_id(n), point(1, 5)).await.unwrap();
        assert_eq!((found(1).await, found(2).await), (Some(digest(1, 2)), Some(digest(1, 2))), "{name}");
        commit(store, fork, vec![row(digest(1, 4))], vec![]).await.unwrap();
        assert_eq!((found(1).await, found(2).await), (Some(digest(1, 2)), Some(digest(1, 4))), "{name}");
        // Digests are removed with the session that wrote them.
        delete_session(store, fork).await;
        while store.session_purge(session_id(2)).await.unwrap() {}
        assert_eq!((found(1).await, found(2).await), (Some(digest(1, 2)), Some(digest(1, 2))), "{name}");
        delete_session(store, origin).await;
        while store.session_purge(session_id(1)).await.unwrap() {}
        assert!(store.digest(session_id(1), point(1, 5)).await.is_err(), "{name}: the line is gone");
    }
}

fn row(digest: Digest) -> Row {
    Row::Digest(Box::new(digest))
}

/// Builds the digest at this point.
pub(crate) fn digest(line: i64, pos: u32) -> Digest {
    Digest {
        at: point(line, pos),
        message: message_id(u64::from(pos)),
        prompt: pos.is_multiple_of(2).then(|| message_id(9)),
        summary: (!pos.is_multiple_of(3)).then(|| format!("what {line}.{pos} was about")),
        left_out: pos,
        below_tokens: 1000,
        made_at: NOW,
    }
}
