//! Parked sessions: a run that waits for an answer needs no memory, and goes on when the answer comes.

use std::sync::Arc;

use mainspring_core::{RunId, RunStatus};
use mainspring_kernel::board::LiveStatus;
use mainspring_kernel::feed::Item;
use mainspring_reference_store::MemoryStore;

use crate::world::{Disk, World, by_key, every_store, input, kinds, run_ready_tasks, with_timeout};

/// The default of `idle_unload_ms`.
const IDLE_UNLOAD_MS: u64 = 30_000;

/// Asks a question in the session `a`, and waits until the session has left memory.
async fn park(world: &World) -> mainspring_core::Run {
    let run = world.prompt("a", "say one; ask what?; say two").await;
    world.wait_for_question(run.id).await;
    let left = async {
        while world.kernel.sessions_in_memory() > 0 {
            tokio::task::yield_now().await;
        }
    };
    world.advance_until(IDLE_UNLOAD_MS, left).await;
    run
}

#[tokio::test]
async fn a_session_that_waits_for_an_answer_leaves_memory_and_continues_with_the_answer() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = park(&world).await;
        let live = world.kernel.live_feed(&world.me).snapshot().to_vec();
        assert_eq!(live.iter().map(|live| live.status).collect::<Vec<_>>(), [LiveStatus::Paused]);
        assert_eq!(world.get(run.id).await.state.status(), RunStatus::WaitingInput, "{}", world.disk.name);
        assert_eq!(world.kernel.sessions_in_memory(), 0, "reading loads nothing");
        let wait = world.get(run.id).await.state.wait().unwrap().id;
        let mut events =
            with_timeout(world.kernel.session_observe(&world.me, &by_key("a"), None)).await.unwrap();
        with_timeout(world.kernel.run_answer(&world.me, run.id, wait, input("this"))).await.unwrap();
        let ended = world.ended(run.id).await;
        assert_eq!(ended.state.status(), RunStatus::Succeeded, "{}", world.disk.name);
        assert!(ended.final_text.unwrap().ends_with("two\n"), "{}", world.disk.name);
        let seen = async {
            loop {
                match events.next().await.unwrap().unwrap() {
                    Item::Event(event) if event.body.kind() == "run.succeeded" => return,
                    _ => {}
                }
            }
        };
        with_timeout(seen).await;
    }
}

/// Waits until the run has ended, without loading its session.
async fn ended_status(world: &World, run: RunId) -> RunStatus {
    loop {
        let status = world.get(run).await.state.status();
        if status.is_ended() {
            return status;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_question_of_a_parked_session_expires() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = park(&world).await;
        let status = world.advance_until(60 * 60 * 1_000, ended_status(&world, run.id)).await;
        assert_eq!(status, RunStatus::TimedOut, "{}", world.disk.name);
    }
}

#[tokio::test]
async fn a_question_that_expires_while_the_store_fails_expires_later() {
    let store = Arc::<MemoryStore>::default();
    let world = World::on(Disk::on_memory(store.clone())).await;
    let run = park(&world).await;
    let expires_at = world.get(run.id).await.state.wait().unwrap().expires_at.unwrap();
    store.set_sessions_unreadable(true);
    for pause in [expires_at.since(world.clock.now()), 60_000] {
        world.clock.advance(pause);
        run_ready_tasks().await;
        assert_eq!(world.get(run.id).await.state.status(), RunStatus::WaitingInput);
        assert_eq!(world.kernel.sessions_in_memory(), 0, "the load has failed");
    }
    store.set_sessions_unreadable(false);
    let status = world.advance_until(1_000, ended_status(&world, run.id)).await;
    assert_eq!(status, RunStatus::TimedOut);
}

#[tokio::test]
async fn a_parked_session_is_cancelled_and_prompted_like_any_other() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = park(&world).await;
        let status = async || world.kernel.session_view(&world.me, &by_key("a")).await.unwrap().live_status;
        assert_eq!(status().await, LiveStatus::Paused, "{}", world.disk.name);
        let next = world.prompt("a", "say next").await;
        assert_eq!(next.state.status(), RunStatus::Queued, "{}", world.disk.name);
        assert_eq!(status().await, LiveStatus::Paused, "loaded again, {}", world.disk.name);
        run_ready_tasks().await;
        world.clock.advance(2 * IDLE_UNLOAD_MS);
        run_ready_tasks().await;
        assert_eq!(world.kernel.sessions_in_memory(), 1, "a run is queued, on {}", world.disk.name);
        with_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        assert_eq!(world.ended(next.id).await.state.status(), RunStatus::Succeeded);
        assert!(kinds(&world.events("a").await).contains(&"run.cancelled"), "{}", world.disk.name);
    }
}
