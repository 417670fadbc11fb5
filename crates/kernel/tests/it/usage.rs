//! Usage: unknown usage is never reported as zero.

use mainspring_api::UsageQuery;
use mainspring_core::{MessageId, Place, RunStatus, Usage};
use mainspring_kernel::Options;
use mainspring_kernel::kernel::RunRequest;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{World, by_key, every_store};

#[tokio::test]
async fn a_killed_or_crashed_attempt_has_used_at_least_what_it_reported() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        world.kernel.run_cancel(&world.me, run.id).await.unwrap();
        // Advanced once: a clock that goes on could reach the end of the time in which the kill must be proven.
        world.clock.advance(Options::default().cancel_grace_ms);
        let run = world.ended(run.id).await;
        drop(execution);
        assert_eq!((run.state.status(), run.usage), (RunStatus::Cancelled, Usage::UNKNOWN));
        let run = world.prompt("b", "usage 10 5; crash once; usage 1 1; say alive").await;
        let run = world.advance_until(100, world.ended(run.id)).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
        assert!(run.usage.at_least && run.usage.tokens() >= 15, "{:?}", run.usage);
        let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
        assert_eq!(attempts.iter().map(|attempt| attempt.usage.at_least).collect::<Vec<_>>(), [true, false]);
        let known = world.play("b", "usage 2 3; say hi").await;
        assert!(known.usage.is_known());
        let session = world.kernel.session_usage(&world.me, &by_key("b")).await.unwrap();
        assert_eq!((session.runs, session.usage), (2, run.usage + known.usage), "a sum is a lower bound too");
    }
}

#[tokio::test]
async fn the_usage_of_a_session_includes_its_branches() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "usage 10 5; say one").await;
        let prompt: MessageId = world.path("a").await[0].id;
        let again = RunRequest {
            prompt: vec![],
            place: Place::Regenerate { message_id: prompt },
            ..RunRequest::text("a", "")
        };
        let run = world.send(again).await.unwrap().run;
        world.ended(run.id).await;
        let used = world.kernel.session_usage(&world.me, &by_key("a")).await.unwrap();
        assert_eq!((used.runs, used.usage.input_tokens, used.usage.output_tokens), (2, 20, 10));
        assert!(used.usage.is_known(), "{}", world.disk.name);
    }
}

#[tokio::test]
async fn a_report_counts_runs_that_wait_for_a_retry_and_not_those_that_are_new() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "usage 10 5; fail retry").await;
        world.wait_until(run.id, |run| run.attempts == 1 && run.state.status() == RunStatus::Queued).await;
        world.prompt("a", "usage 1 1").await;
        let query = UsageQuery { to: Some(world.clock.now().plus(1)), ..UsageQuery::default() };
        let total = world.kernel.usage_report(&world.me, &query).await.unwrap().total;
        assert_eq!((total.runs, total.input_tokens), (1, 10), "{}", world.disk.name);
    }
}
