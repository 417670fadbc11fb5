//! Scheduling: which runs execute, how many at once, and in which order.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use mainspring_core::permits::PermitPool;
use mainspring_core::{Failure, RunId, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{Adapter, End, Executed};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{Caller, Kernel, RunRequest, Work};
use mainspring_kernel::store::Store;
use mainspring_store::Fault;
use parking_lot::Mutex;
use serde_json::Value;

use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request, question};
use crate::simulation::Random;
use crate::world::{Disk, NOW, World, every_store, input, run_ready_tasks, with_timeout};

fn workers(max_workers: usize) -> Options {
    Options { max_workers, ..Options::default() }
}

fn puppets(store: &Arc<dyn Store>, names: [&'static str; 2]) -> (Vec<Arc<dyn Adapter>>, Vec<PuppetControl>) {
    names.into_iter().map(|name| puppet(store, PuppetBehavior { name, ..PuppetBehavior::default() })).unzip()
}

fn request_to(adapter: &str, key: &str) -> RunRequest {
    RunRequest { adapter: Some(adapter.into()), ..RunRequest::text(key, "go") }
}

#[tokio::test]
async fn at_most_max_workers_runs_execute_at_once() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, workers(3), vec![adapter]).await;
        let mut runs = vec![];
        for no in 0..10 {
            runs.push(world.send(puppet_request(&format!("s{no}"), "go")).await.unwrap().run.id);
        }
        let mut working: Vec<Execution> = vec![];
        for _ in 0..3 {
            working.push(control.next().await);
        }
        for _ in 3..10 {
            run_ready_tasks().await;
            assert!(control.is_idle(), "a fourth run executes, on {}", world.disk.name);
            working.remove(0).end(End::succeeded());
            working.push(control.next().await);
        }
        for execution in working {
            execution.end(End::succeeded());
        }
        for run in runs {
            assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        }
        with_timeout(world.kernel.drain()).await;
        assert_eq!(*world.kernel.work().borrow(), Work::default());
    }
}

#[tokio::test]
async fn an_adapter_at_its_limit_does_not_block_another() {
    let disk = Disk::memory();
    let (adapters, mut control) = puppets(&disk.store, ["x", "y"]);
    let options = Options { adapter_workers: HashMap::from([("x".to_owned(), 1)]), ..workers(4) };
    let world = World::with(disk, options, adapters).await;
    for (adapter, key) in [("x", "a"), ("x", "b"), ("y", "c"), ("y", "d")] {
        world.send(request_to(adapter, key)).await.unwrap();
    }
    let first = control[0].next().await;
    control[1].next().await;
    control[1].next().await;
    run_ready_tasks().await;
    assert!(control[0].is_idle());
    first.end(End::succeeded());
    control[0].next().await;
}

#[tokio::test]
async fn a_permit_of_one_adapter_is_not_used_for_another() {
    let disk = Disk::memory();
    let (adapters, mut control) = puppets(&disk.store, ["x", "y"]);
    let options = Options { adapter_workers: HashMap::from([("y".to_owned(), 1)]), ..workers(2) };
    let world = World::with(disk, options, adapters).await;
    world.send(request_to("y", "a")).await.unwrap();
    world.send(request_to("x", "b")).await.unwrap();
    let (y, x) = (control[1].next().await, control[0].next().await);
    // In session c a run for x is queued before one for y. The run for x is cancelled while it waits for its permit.
    let waits = world.send(request_to("x", "c")).await.unwrap().run.id;
    world.send(request_to("y", "c")).await.unwrap();
    world.kernel.run_cancel(&world.me, waits).await.unwrap();
    x.end(End::succeeded());
    run_ready_tasks().await;
    assert!(control[1].is_idle(), "a second run of y executes");
    y.end(End::succeeded());
    control[1].next().await;
}

#[tokio::test]
async fn a_queued_run_waits_for_its_permit_before_its_caller_is_answered() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, workers(1), vec![adapter]).await;
    world.send(puppet_request("a", "go")).await.unwrap();
    control.next().await;
    let seen = Arc::new(SeenWhenWoken { kernel: world.kernel.clone(), runs: Mutex::default() });
    let mut sent = pin!(world.send(puppet_request("b", "go")));
    // The actor wakes the caller while it answers, so the waker sees what the actor has done by then.
    let sent = poll_fn(|context| {
        let waker = Waker::from(Arc::new(WithWaker(seen.clone(), context.waker().clone())));
        sent.as_mut().poll(&mut Context::from_waker(&waker))
    });
    sent.await.unwrap();
    assert_eq!(seen.runs.lock().last(), Some(&2), "runs that have a permit or wait for one");
}

/// The number of runs that had a permit or waited for one, each time that a task was woken.
struct SeenWhenWoken {
    kernel: Kernel,
    runs: Mutex<Vec<usize>>,
}

struct WithWaker(Arc<SeenWhenWoken>, Waker);

impl Wake for WithWaker {
    fn wake(self: Arc<Self>) {
        let (demand, _) = self.0.kernel.permit_demand(PermitPool::Workers);
        self.0.runs.lock().push(demand.owners.values().sum());
        self.1.wake_by_ref();
    }
}

#[tokio::test]
async fn a_session_runs_one_at_a_time_in_order() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, workers(8), vec![adapter]).await;
        let mut runs: Vec<RunId> = vec![];
        for _ in 0..5 {
            runs.push(world.send(puppet_request("a", "go")).await.unwrap().run.id);
        }
        for (no, run) in runs.iter().enumerate() {
            let execution = control.next().await;
            assert_eq!(execution.handle.assignment().run.id, *run);
            run_ready_tasks().await;
            assert!(control.is_idle());
            execution.handle.delta(0, &format!("{no}")).unwrap();
            let path = execution.handle.path(100).await.unwrap();
            assert_eq!(path.len(), 2 * no + 1, "the run sees the messages before it");
            execution.end(End::succeeded());
        }
        world.ended(runs[4]).await;
        let texts: Vec<String> = world.path("a").await.iter().map(|message| message.text()).collect();
        assert_eq!(texts, ["go", "0", "go", "1", "go", "2", "go", "3", "go", "4"]);
    }
}

#[tokio::test]
async fn owners_take_turns() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, workers(1), vec![adapter]).await;
    world.send(puppet_request("first", "go")).await.unwrap();
    for no in 0..4 {
        world.send(puppet_request(&format!("a{no}"), "go")).await.unwrap();
    }
    let eve = Caller::new("eve");
    for no in 0..2 {
        let request = puppet_request(&format!("e{no}"), "go");
        with_timeout(world.kernel.run_create(&eve, request)).await.unwrap();
    }
    let mut order = vec![];
    for _ in 0..7 {
        let execution = control.next().await;
        order.push(execution.handle.assignment().session.key.clone().unwrap());
        execution.end(End::succeeded());
    }
    assert_eq!(order, ["first", "a0", "e0", "a1", "e1", "a2", "a3"]);
}

#[tokio::test]
async fn a_waiting_run_releases_its_worker_until_it_is_answered() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, workers(1), vec![adapter]).await;
        let waits = world.send(puppet_request("a", "go")).await.unwrap().run.id;
        let ask = question(mainspring_core::WaitRequest::Input, None);
        control.next().await.end(Executed::Waiting(ask));
        let wait = world.wait_for_question(waits).await;
        let other = world.send(puppet_request("b", "go")).await.unwrap().run.id;
        let execution = control.next().await;
        assert_eq!(execution.handle.assignment().run.id, other, "the worker is free");
        world.kernel.run_answer(&world.me, waits, wait, input("yes")).await.unwrap();
        run_ready_tasks().await;
        assert!(control.is_idle(), "no worker is free for the answered run");
        execution.end(End::succeeded());
        let execution = control.next().await;
        assert_eq!(execution.handle.assignment().run.id, waits);
        let answered = execution.handle.answer().unwrap();
        assert_eq!((&answered.answer, &answered.resume), (&input("yes"), &Value::Null));
        execution.end(End::succeeded());
        assert_eq!(world.ended(waits).await.attempts, 1);
    }
}

#[tokio::test]
async fn a_held_wait_releases_its_worker() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, workers(1), vec![adapter]).await;
    let waits = world.send(puppet_request("a", "go")).await.unwrap().run.id;
    let holder = control.next().await;
    let asking = holder.handle.ask(question(mainspring_core::WaitRequest::Input, None));
    let rest = async {
        let wait = world.wait_for_question(waits).await;
        world.send(puppet_request("b", "go")).await.unwrap();
        let other = control.next().await;
        world.kernel.run_answer(&world.me, waits, wait, input("yes")).await.unwrap();
        run_ready_tasks().await;
        assert_eq!(world.get(waits).await.state.status(), RunStatus::WaitingInput);
        other.end(End::succeeded());
    };
    let (answer, ()) = Box::pin(with_timeout(async { tokio::join!(asking, rest) })).await;
    assert_eq!(answer.unwrap(), input("yes"));
    assert_eq!(world.get(waits).await.state.status(), RunStatus::Running);
}

#[tokio::test]
async fn a_run_that_fails_while_it_waits_for_a_permit_pauses_before_its_retry() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, workers(1), vec![adapter]).await;
    let fails = world.send(puppet_request("a", "go")).await.unwrap().run.id;
    let holder = control.next().await;
    let handle = holder.handle.clone();
    let asking = handle.ask(question(mainspring_core::WaitRequest::Input, None));
    let rest = async {
        let wait = world.wait_for_question(fails).await;
        world.send(puppet_request("b", "go")).await.unwrap();
        let other = control.next().await;
        world.kernel.run_answer(&world.me, fails, wait, input("yes")).await.unwrap();
        holder.end(End::failed(Failure::new("x", "y"), true));
        world.wait_until(fails, |run| run.state.status() == RunStatus::Queued).await;
        other.end(End::succeeded());
        run_ready_tasks().await;
    };
    let (_, ()) = Box::pin(with_timeout(async { tokio::join!(asking, rest) })).await;
    assert_eq!((control.is_idle(), world.get(fails).await.attempts), (true, 1), "the pause is not over");
    world.clock.advance(500);
    control.next().await;
    assert_eq!(world.get(fails).await.attempts, 2);
}

/// Options of a kernel that accepts runs but does not execute them.
fn without_workers() -> Options {
    Options { execute: false, ..Options::default() }
}

#[tokio::test]
async fn a_run_whose_start_failed_is_started_again_after_a_pause() {
    let disk = Disk::memory();
    let world = World::with(disk.clone(), without_workers(), vec![]).await;
    let run = world.prompt("a", "say hi").await;
    world.kernel.shutdown().await;
    disk.inject_fault(Fault::CommitFails);
    let world = World::reboot(&disk).await;
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Queued, "the start is not retried yet");
    let run = world.advance_until(10, world.ended(run.id)).await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 1));
}

#[tokio::test]
async fn an_answered_run_whose_resumption_failed_is_resumed_after_a_pause() {
    let disk = Disk::memory();
    let world = World::on(disk.clone()).await;
    let run = world.prompt("a", "ask which?; say done").await;
    let wait = world.wait_for_question(run.id).await;
    world.kernel.shutdown().await;
    let world = World::boot(disk.clone(), without_workers(), vec![], Clock::manual(NOW), 3).await;
    world.kernel.run_answer(&world.me, run.id, wait, input("x")).await.unwrap();
    world.kernel.shutdown().await;
    disk.inject_fault(Fault::CommitFails);
    let world = World::reboot(&disk).await;
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::WaitingInput);
    let run = world.advance_until(10, world.ended(run.id)).await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 1));
}

#[tokio::test]
async fn a_session_with_an_empty_queue_releases_the_permit_it_requested() {
    let world = World::with(Disk::memory(), workers(1), vec![]).await;
    let busy = world.prompt("a", "hang").await;
    let queued = world.prompt("b", "say hi").await;
    world.kernel.run_cancel(&world.me, queued.id).await.unwrap();
    world.clock.advance(3_600_000);
    run_ready_tasks().await;
    world.kernel.run_cancel(&world.me, busy.id).await.unwrap();
    world.ended(busy.id).await;
    assert_eq!(world.play("c", "say hi").await.state.status(), RunStatus::Succeeded);
    world
        .advance_until(10_000, async {
            while world.kernel.sessions_in_memory() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_permit_leaks_for_any_outcome_of_a_run() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
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
        let mut random = Random(7);
        let mut runs = vec![];
        for no in 0..80 {
            let script = scripts[random.below(scripts.len())];
            runs.push(world.prompt(&format!("s{}", no % 16), script).await.id);
            if random.below(2) == 0 {
                let run = runs[random.below(runs.len())];
                // Refused if the run has ended.
                let _ = world.advance_until(20, world.kernel.run_cancel(&world.me, run)).await;
            }
        }
        for run in runs {
            let _ = world.advance_until(100, world.kernel.run_cancel(&world.me, run)).await;
            world.advance_until(100, world.ended(run)).await;
        }
        world.advance_until(100, world.kernel.drain()).await;
        for no in 0..3 {
            world.send(puppet_request(&format!("p{no}"), "go")).await.unwrap();
        }
        let working = [control.next().await, control.next().await];
        assert!(control.is_idle(), "the adapter's cap holds: {}", world.disk.name);
        let run = world.play("more", "say the third worker is free").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        drop(working);
    }
}
