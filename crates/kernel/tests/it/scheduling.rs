//! Scheduling: who works, how many at once, in which order.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{RunId, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{Adapter, End, Executed};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{Caller, RunRequest, Work};
use mainspring_kernel::store::Store;
use mainspring_store::Fault;
use serde_json::Value;

use crate::puppet::{Hands, Manners, Strings, pull, puppet, question};
use crate::simulation::Dice;
use crate::world::{Disk, NOW, World, every_store, input, settle, soon};

fn workers(max_workers: usize) -> Options {
    Options { max_workers, ..Options::default() }
}

fn puppets(store: &Arc<dyn Store>, names: [&'static str; 2]) -> (Vec<Arc<dyn Adapter>>, Vec<Hands>) {
    names.into_iter().map(|name| puppet(store, Manners { name, ..Manners::default() })).unzip()
}

fn to(adapter: &str, key: &str) -> RunRequest {
    RunRequest { adapter: Some(adapter.into()), ..RunRequest::text(key, "go") }
}

#[tokio::test]
async fn no_more_than_max_workers_execute_and_the_rest_follow() {
    for disk in every_store() {
        let (adapter, mut hands) = puppet(&disk.store, Manners::default());
        let world = World::with(disk, workers(3), vec![adapter]).await;
        let mut runs = vec![];
        for no in 0..10 {
            runs.push(world.send(pull(&format!("s{no}"), "go")).await.unwrap().run.id);
        }
        let mut working: Vec<Strings> = vec![];
        for _ in 0..3 {
            working.push(hands.next().await);
        }
        for _ in 3..10 {
            settle().await;
            assert!(hands.is_idle(), "a fourth one works, on {}", world.disk.name);
            working.remove(0).end(End::succeeded());
            working.push(hands.next().await);
        }
        for strings in working {
            strings.end(End::succeeded());
        }
        for run in runs {
            assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        }
        soon(world.kernel.drain()).await;
        assert_eq!(*world.kernel.work().borrow(), Work::default());
    }
}

#[tokio::test]
async fn an_adapter_at_its_cap_does_not_hold_up_another() {
    let disk = Disk::memory();
    let (adapters, mut hands) = puppets(&disk.store, ["x", "y"]);
    let options = Options { adapter_workers: HashMap::from([("x".to_owned(), 1)]), ..workers(4) };
    let world = World::with(disk, options, adapters).await;
    for (adapter, key) in [("x", "a"), ("x", "b"), ("y", "c"), ("y", "d")] {
        world.send(to(adapter, key)).await.unwrap();
    }
    let first = hands[0].next().await;
    hands[1].next().await;
    hands[1].next().await;
    settle().await;
    assert!(hands[0].is_idle());
    first.end(End::succeeded());
    hands[0].next().await;
}

#[tokio::test]
async fn a_permit_of_one_adapter_is_not_used_for_another() {
    let disk = Disk::memory();
    let (adapters, mut hands) = puppets(&disk.store, ["x", "y"]);
    let options = Options { adapter_workers: HashMap::from([("y".to_owned(), 1)]), ..workers(2) };
    let world = World::with(disk, options, adapters).await;
    world.send(to("y", "a")).await.unwrap();
    world.send(to("x", "b")).await.unwrap();
    let (y, x) = (hands[1].next().await, hands[0].next().await);
    // In session c a run for x waits first, then one for y. The one for x is cancelled while its permit is on order.
    let waits = world.send(to("x", "c")).await.unwrap().run.id;
    world.send(to("y", "c")).await.unwrap();
    world.kernel.run_cancel(&world.me, waits).await.unwrap();
    x.end(End::succeeded());
    settle().await;
    assert!(hands[1].is_idle(), "a second one of y works");
    y.end(End::succeeded());
    hands[1].next().await;
}

#[tokio::test]
async fn a_session_runs_one_at_a_time_in_order() {
    for disk in every_store() {
        let (adapter, mut hands) = puppet(&disk.store, Manners::default());
        let world = World::with(disk, workers(8), vec![adapter]).await;
        let mut runs: Vec<RunId> = vec![];
        for _ in 0..5 {
            runs.push(world.send(pull("a", "go")).await.unwrap().run.id);
        }
        for (no, run) in runs.iter().enumerate() {
            let strings = hands.next().await;
            assert_eq!(strings.handle.assignment().run.id, *run);
            settle().await;
            assert!(hands.is_idle());
            strings.handle.delta(0, &format!("{no}")).unwrap();
            let path = strings.handle.path(100).await.unwrap();
            assert_eq!(path.len(), 2 * no + 1, "it sees what came before it");
            strings.end(End::succeeded());
        }
        world.ended(runs[4]).await;
        let texts: Vec<String> = world.path("a").await.iter().map(|message| message.text()).collect();
        assert_eq!(texts, ["go", "0", "go", "1", "go", "2", "go", "3", "go", "4"]);
    }
}

#[tokio::test]
async fn owners_take_turns() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let world = World::with(disk, workers(1), vec![adapter]).await;
    world.send(pull("first", "go")).await.unwrap();
    for no in 0..4 {
        world.send(pull(&format!("a{no}"), "go")).await.unwrap();
    }
    let eve = Caller::new("eve");
    for no in 0..2 {
        let request = pull(&format!("e{no}"), "go");
        soon(world.kernel.run_create(&eve, request)).await.unwrap();
    }
    let mut order = vec![];
    for _ in 0..7 {
        let strings = hands.next().await;
        order.push(strings.handle.assignment().session.key.clone().unwrap());
        strings.end(End::succeeded());
    }
    assert_eq!(order, ["first", "a0", "e0", "a1", "e1", "a2", "a3"]);
}

#[tokio::test]
async fn a_waiting_run_gives_its_worker_back_and_takes_one_again_once_answered() {
    for disk in every_store() {
        let (adapter, mut hands) = puppet(&disk.store, Manners::default());
        let world = World::with(disk, workers(1), vec![adapter]).await;
        let waits = world.send(pull("a", "go")).await.unwrap().run.id;
        let ask = question(mainspring_core::WaitRequest::Input, None);
        hands.next().await.end(Executed::Waiting(ask));
        let wait = world.asked(waits).await;
        let other = world.send(pull("b", "go")).await.unwrap().run.id;
        let strings = hands.next().await;
        assert_eq!(strings.handle.assignment().run.id, other, "the worker is free");
        world.kernel.run_answer(&world.me, waits, wait, input("yes")).await.unwrap();
        settle().await;
        assert!(hands.is_idle(), "no worker is free for the answered one");
        strings.end(End::succeeded());
        let strings = hands.next().await;
        assert_eq!(strings.handle.assignment().run.id, waits);
        let answered = strings.handle.answer().unwrap();
        assert_eq!((&answered.answer, &answered.resume), (&input("yes"), &Value::Null));
        strings.end(End::succeeded());
        assert_eq!(world.ended(waits).await.attempts, 1);
    }
}

#[tokio::test]
async fn a_held_wait_gives_its_worker_back_too() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let world = World::with(disk, workers(1), vec![adapter]).await;
    let waits = world.send(pull("a", "go")).await.unwrap().run.id;
    let holder = hands.next().await;
    let asking = holder.handle.ask(question(mainspring_core::WaitRequest::Input, None));
    let rest = async {
        let wait = world.asked(waits).await;
        world.send(pull("b", "go")).await.unwrap();
        let other = hands.next().await;
        world.kernel.run_answer(&world.me, waits, wait, input("yes")).await.unwrap();
        settle().await;
        assert_eq!(world.get(waits).await.state.status(), RunStatus::WaitingInput);
        other.end(End::succeeded());
    };
    let (answer, ()) = soon(async { tokio::join!(asking, rest) }).await;
    assert_eq!(answer.unwrap(), input("yes"));
    assert_eq!(world.get(waits).await.state.status(), RunStatus::Running);
}

/// A kernel that records and does not execute.
fn clerk() -> Options {
    Options { execute: false, ..Options::default() }
}

#[tokio::test]
async fn a_run_that_could_not_be_started_is_tried_again_after_a_pause() {
    let disk = Disk::memory();
    let world = World::with(disk.clone(), clerk(), vec![]).await;
    let run = world.prompt("a", "say hi").await;
    world.kernel.shutdown().await;
    disk.fault(Fault::CommitFails);
    let world = World::reboot(&disk).await;
    settle().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Queued, "not at once and for ever");
    let run = world.turning(10, world.ended(run.id)).await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 1));
}

#[tokio::test]
async fn an_answered_run_that_could_not_go_on_is_tried_again_after_a_pause() {
    let disk = Disk::memory();
    let world = World::on(disk.clone()).await;
    let run = world.prompt("a", "ask which?; say done").await;
    let wait = world.asked(run.id).await;
    world.kernel.shutdown().await;
    let world = World::boot(disk.clone(), clerk(), vec![], Clock::manual(NOW), 3).await;
    world.kernel.run_answer(&world.me, run.id, wait, input("x")).await.unwrap();
    world.kernel.shutdown().await;
    disk.fault(Fault::CommitFails);
    let world = World::reboot(&disk).await;
    settle().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::WaitingInput);
    let run = world.turning(10, world.ended(run.id)).await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 1));
}

#[tokio::test]
async fn a_session_whose_queue_was_emptied_lets_the_permit_it_ordered_go() {
    let world = World::with(Disk::memory(), workers(1), vec![]).await;
    let busy = world.prompt("a", "hang").await;
    let queued = world.prompt("b", "say hi").await;
    world.kernel.run_cancel(&world.me, queued.id).await.unwrap();
    world.clock.advance(3_600_000);
    settle().await;
    world.kernel.run_cancel(&world.me, busy.id).await.unwrap();
    world.ended(busy.id).await;
    assert_eq!(world.play("c", "say hi").await.state.status(), RunStatus::Succeeded);
    world
        .turning(10_000, async {
            while world.kernel.sessions_in_memory() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_permit_is_lost_whatever_becomes_of_the_runs() {
    for disk in every_store() {
        let (adapter, mut hands) = puppet(&disk.store, Manners::default());
        let options = Options { adapter_workers: HashMap::from([("puppet".to_owned(), 2)]), ..workers(3) };
        let world = World::with(disk, options, vec![adapter]).await;
        let scripts = [
            "say hi",
            "fail for good",
            "fail once; say hi",
            "crash once",
            "say stuck; hang",
            "ignore-cancel; hang",
            "ask which?",
            "sleep 10ms; say late",
        ];
        let mut dice = Dice(7);
        let mut runs = vec![];
        for no in 0..80 {
            let script = scripts[dice.below(scripts.len())];
            runs.push(world.prompt(&format!("s{}", no % 16), script).await.id);
            if dice.below(2) == 0 {
                let run = runs[dice.below(runs.len())];
                // Of one that has ended it is refused.
                let _ = world.turning(20, world.kernel.run_cancel(&world.me, run)).await;
            }
        }
        for run in runs {
            let _ = world.turning(100, world.kernel.run_cancel(&world.me, run)).await;
            world.turning(100, world.ended(run)).await;
        }
        world.turning(100, world.kernel.drain()).await;
        for no in 0..3 {
            world.send(pull(&format!("p{no}"), "go")).await.unwrap();
        }
        let working = [hands.next().await, hands.next().await];
        assert!(hands.is_idle(), "the adapter's cap holds: {}", world.disk.name);
        let run = world.play("more", "say the third worker is free").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        drop(working);
    }
}
