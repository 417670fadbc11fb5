//! The live feed: a snapshot of all sessions of an owner, followed by their changes.

use std::collections::BTreeMap;

use mainspring_core::SessionId;
use mainspring_kernel::board::{LiveChange, LiveFeed, LiveSession, LiveStatus};
use mainspring_kernel::kernel::{Caller, SessionPatch};

use crate::world::{Disk, World, by_key, every_store, input, run_ready_tasks, with_timeout};

/// Reads all pending changes, as text.
async fn read_changes(feed: &mut LiveFeed) -> Vec<String> {
    let mut changes = vec![];
    loop {
        tokio::select! {
            biased;
            change = feed.next() => changes.push(change_text(&change.expect("the kernel lives"))),
            () = run_ready_tasks() => return changes,
        }
    }
}

fn change_text(change: &LiveChange) -> String {
    let kind = change.kind();
    match change {
        LiveChange::Opened(LiveSession { key, status, .. }) => {
            format!("{kind} {} {status:?}", key.as_deref().unwrap_or("?"))
        }
        LiveChange::Status { status, .. } => format!("{kind} {status:?}"),
        LiveChange::Title { title, .. } => format!("{kind} {}", title.as_deref().unwrap_or("none")),
        _ => kind.to_owned(),
    }
}

async fn rename(world: &World, key: &str, title: &str) {
    let patch = SessionPatch { title: Some(Some(title.into())), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by_key(key), patch).await.unwrap();
}

#[tokio::test]
async fn a_session_is_followed_from_its_first_prompt_to_its_end() {
    let world = World::on(Disk::memory()).await;
    let mut feed = world.kernel.live_feed(&world.me);
    assert_eq!(feed.snapshot(), []);
    let run = world.prompt("a", "ask which?; say fine").await;
    let wait = world.wait_for_question(run.id).await;
    assert_eq!(read_changes(&mut feed).await, ["opened a Paused"]);
    world.kernel.run_answer(&world.me, run.id, wait, input("this")).await.unwrap();
    world.ended(run.id).await;
    assert_eq!(
        read_changes(&mut feed).await,
        ["title ask which?; say fine", "status Idle"],
        "intermediate changes are coalesced"
    );
    let hang = world.prompt("a", "hang").await;
    assert_eq!(read_changes(&mut feed).await, ["status Busy"]);
    let queued = world.prompt("a", "say later").await;
    assert_eq!(read_changes(&mut feed).await, Vec::<String>::new(), "a status set to itself is nothing new");
    world.kernel.run_cancel(&world.me, hang.id).await.unwrap();
    world.ended(queued.id).await;
    rename(&world, "a", "Tea").await;
    rename(&world, "a", "Tea").await;
    assert_eq!(read_changes(&mut feed).await, ["title Tea", "status Idle"]);
    let late = world.kernel.live_feed(&world.me);
    let [known] = late.snapshot() else { panic!("{:?}", late.snapshot()) };
    assert_eq!(
        (known.key.as_deref(), known.title.as_deref(), known.status),
        (Some("a"), Some("Tea"), LiveStatus::Idle)
    );
    world.kernel.session_close(&world.me, &by_key("a")).await.unwrap();
    assert_eq!(read_changes(&mut feed).await, ["closed"]);
    world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
    assert_eq!(read_changes(&mut feed).await, Vec::<String>::new(), "it was loaded only to be deleted");
    world.play("b", "say hi").await;
    assert_eq!(read_changes(&mut feed).await, ["opened b Idle"]);
    world.kernel.session_delete(&world.me, &by_key("b")).await.unwrap();
    assert_eq!(read_changes(&mut feed).await, ["deleted"]);
}

#[tokio::test]
async fn the_feed_contains_only_sessions_of_the_owner() {
    let world = World::on(Disk::memory()).await;
    let mut feed = world.kernel.live_feed(&Caller::new("eve"));
    world.play("a", "say hi").await;
    assert_eq!((feed.snapshot().len(), read_changes(&mut feed).await.len()), (0, 0));
    assert_eq!(world.kernel.live_feed(&Caller::new("eve")).snapshot(), []);
}

#[tokio::test]
async fn the_feed_ends_when_the_kernel_stops_after_all_changes() {
    let world = World::on(Disk::memory()).await;
    let mut feed = world.kernel.live_feed(&world.me);
    world.play("a", "say hi").await;
    with_timeout(world.kernel.shutdown()).await;
    let mut all = vec![];
    while let Some(change) = with_timeout(feed.next()).await {
        all.push(change_text(&change));
    }
    assert_eq!(all, Vec::<String>::new(), "it came and went");
}

/// Applies a change to the state of a client.
fn apply(known: &mut BTreeMap<SessionId, LiveSession>, change: LiveChange) {
    match change {
        LiveChange::Opened(session) => {
            assert!(known.insert(session.session_id, session).is_none(), "opened twice");
        }
        LiveChange::Status { session_id, status } => {
            let session = known.get_mut(&session_id).expect("a session that was opened");
            assert_ne!(session.status, status, "the same status again");
            session.status = status;
        }
        LiveChange::Title { session_id, title } => known.get_mut(&session_id).unwrap().title = title,
        LiveChange::Closed { session_id } | LiveChange::Deleted { session_id } => {
            assert!(known.remove(&session_id).is_some(), "it left twice");
        }
        LiveChange::StoreFailed { .. } | LiveChange::StoreRecovered {} => {}
    }
}

/// Readers of any speed end with the same state, and the feed buffers no more than that state.
#[tokio::test]
async fn fast_and_slow_readers_end_with_the_same_state() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let mut feeds: Vec<_> =
            (0..3).map(|_| (world.kernel.live_feed(&world.me), BTreeMap::new())).collect();
        for no in 0..120 {
            let key = format!("s{}", no % 12);
            world.play(&key, "say hi").await;
            match no % 7 {
                0 => drop(world.kernel.session_close(&world.me, &by_key(&key)).await.unwrap()),
                1 => rename(&world, &key, &format!("title {no}")).await,
                2 => drop(world.kernel.session_delete(&world.me, &by_key(&key)).await.unwrap()),
                _ => {}
            }
            // The first reader reads at once, the second now and then, the third only at the end.
            for (at, (feed, known)) in feeds.iter_mut().enumerate().take(2) {
                if at == 0 || no % 20 == 0 {
                    drain(feed, known).await;
                }
                assert!(feed.buffered() <= 24, "{}", feed.buffered());
            }
        }
        let now: BTreeMap<_, _> = (world.kernel.live_feed(&world.me).snapshot().iter())
            .map(|session| (session.session_id, session.clone()))
            .collect();
        assert!(now.len() > 3);
        for (feed, known) in &mut feeds {
            drain(feed, known).await;
            assert_eq!(*known, now, "{}", world.disk.name);
        }
    }
}

async fn drain(feed: &mut LiveFeed, known: &mut BTreeMap<SessionId, LiveSession>) {
    loop {
        tokio::select! {
            biased;
            change = feed.next() => apply(known, change.unwrap()),
            () = tokio::task::yield_now() => return,
        }
    }
}
