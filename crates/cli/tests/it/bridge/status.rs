//! Status projection: the shown state of a session follows from its canonical run events.

use mainspring::core::{RunId, RunStatus};
use mainspring_client::bridge::{Launch, Phase, Restart, RuntimeProcess, Surface};
use mainspring_client::status::{Freshness, RunView, StatusStore};

use super::{kill, launch, read_until, start, start_query};
use crate::cli::run;

/// Waits until the latest run of a surface satisfies `is`.
async fn latest(store: &StatusStore, surface: &Surface, is: impl Fn(&RunView) -> bool) -> RunView {
    store.until(|store| store.surface(surface)?.1.filter(|run| is(run))).await
}

async fn reaches(store: &StatusStore, surface: &Surface, status: RunStatus) -> RunView {
    latest(store, surface, |run| run.status == status).await
}

async fn current(store: &StatusStore) {
    store.until(|store| (store.freshness() == Freshness::Current).then_some(())).await;
}

#[tokio::test]
async fn main_chat_task_chat_and_pill_statuses_follow_canonical_run_events() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    let [main, task, pill] = [Surface::main_chat(None), Surface::task_chat("1"), Surface::floating_pill("p")];
    let earlier = start_query(&process.bridge(), main.clone(), "say earlier").result().await.unwrap();
    let store = StatusStore::follow(process.client().unwrap());
    assert_eq!((store.freshness(), store.surface(&main)), (Freshness::Unknown, None));
    // Earlier runs are known, and later ones follow.
    assert_eq!(reaches(&store, &main, RunStatus::Succeeded).await.run_id, earlier.run_id);
    let bridges = [process.bridge(), process.bridge(), process.bridge()];
    let mut hangs =
        start_query(&bridges[0], main.clone(), "usage 10 5 0.5; usage 1 1; progress half way; say x; hang");
    let fails = start_query(&bridges[1], task.clone(), "fail no luck");
    let _asks = start_query(&bridges[2], pill.clone(), "ask which?");
    read_until(&mut hangs, "x").await;
    let shown = latest(&store, &main, |run| run.progress.is_some()).await;
    assert_eq!((shown.status, shown.progress.as_deref()), (RunStatus::Running, Some("half way")));
    assert_eq!((shown.usage.input_tokens, shown.usage.cost.usd()), (11, Some(0.5)));
    let ids = hangs.ids();
    assert_eq!((Some(shown.run_id), shown.active_attempt), (ids.run_id, ids.attempt_id));
    let failed = reaches(&store, &task, RunStatus::Failed).await;
    assert_eq!(failed.error.unwrap().code.as_str(), "script_failed");
    assert_eq!(fails.result().await.unwrap_err().code(), "script_failed");
    reaches(&store, &pill, RunStatus::WaitingInput).await;
    bridges[0].interrupt().await.unwrap();
    let cancelled = reaches(&store, &main, RunStatus::Cancelled).await;
    assert_eq!((cancelled.run_id, cancelled.active_attempt), (shown.run_id, None));
    assert_eq!(hangs.result().await.unwrap().usage, cancelled.usage);
    // Lookups by session and by run agree.
    let (session, run) = store.surface(&pill).unwrap();
    assert_eq!(session.surface_kind.as_deref(), Some("floating_pill"));
    assert_eq!(store.latest_run(session.session_id), run);
    assert_eq!(store.run(run.clone().unwrap().run_id), run);
    process.client().unwrap().run_cancel(run.unwrap().run_id).await.unwrap();
    reaches(&store, &pill, RunStatus::Cancelled).await;
    let client = process.client().unwrap();
    client.session_delete(&session.session_id.to_string()).await.unwrap();
    store.until(|store| store.surface(&pill).is_none().then_some(())).await;
}

#[tokio::test]
async fn closing_or_dropping_a_handle_does_not_fabricate_terminal_success() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    let store = StatusStore::follow(process.client().unwrap());
    current(&store).await;
    let task = Surface::task_chat("1");
    let bridge = process.bridge();
    let mut stream = start_query(&bridge, task.clone(), "say here; hang");
    read_until(&mut stream, "here").await;
    let run = stream.ids().run_id.unwrap();
    // The chat is closed: nothing reads the query any more.
    drop((stream, bridge));
    // A later event gives a wrong status the time to appear.
    start_query(&process.bridge(), Surface::main_chat(None), "say later").result().await.unwrap();
    reaches(&store, &Surface::main_chat(None), RunStatus::Succeeded).await;
    assert_eq!(store.run(run).unwrap().status, RunStatus::Running);
    let client = process.client().unwrap();
    assert_eq!(client.run_get(run).await.unwrap().state.status(), RunStatus::Running, "the run goes on");
    client.run_cancel(run).await.unwrap();
    reaches(&store, &task, RunStatus::Cancelled).await;
}

#[tokio::test]
async fn process_restart_produces_orphaned_status_rather_than_silent_completion() {
    let dir = tempfile::tempdir().unwrap();
    // With one try, a dead process stays dead until the next request, so that the state in between can be checked.
    let restart = Restart { max_failures: 1, ..Restart::default() };
    let process = RuntimeProcess::start(Launch { restart, ..launch(dir.path()) }).await.unwrap();
    let store = StatusStore::follow(process.client().unwrap());
    let (task, bridge) = (Surface::task_chat("1"), process.bridge());
    let mut stream = start_query(&bridge, task.clone(), "say here; hang");
    read_until(&mut stream, "here").await;
    let shown: RunId = reaches(&store, &task, RunStatus::Running).await.run_id;
    kill(&process);
    assert_eq!(stream.result().await.unwrap_err().code(), "process_lost");
    process.health().wait_for(|health| health.phase == Phase::Failed).await.unwrap();
    // The run's outcome is unknown: its last status is shown, marked as stale.
    store.until(|store| matches!(store.freshness(), Freshness::Stale { .. }).then_some(())).await;
    assert_eq!(store.run(shown).unwrap().status, RunStatus::Running);
    // Another process takes over the sessions: events missed in between are known afterwards.
    let output =
        run(dir.path(), &["prompt", "--owner", "desktop-local-user", "--session", "k", "say elsewhere"]);
    assert_eq!(output.code, 0, "{}", output.err);
    start_query(&bridge, Surface::main_chat(None), "say back").result().await.unwrap();
    let orphaned = reaches(&store, &task, RunStatus::Orphaned).await;
    assert_eq!((orphaned.run_id, orphaned.error.unwrap().code.as_str()), (shown, "executor_lost"));
    assert_eq!(store.freshness(), Freshness::Current);
    let client = process.client().unwrap();
    let elsewhere = client.session_get("k").await.unwrap().id;
    assert_eq!(store.latest_run(elsewhere).unwrap().status, RunStatus::Succeeded);
}
