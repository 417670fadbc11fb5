//! Death of the daemon: every query is sent again and answered exactly once.

use std::os::unix::fs::PermissionsExt;

use mainspring::core::RunStatus;
use mainspring_client::RunListQuery;
use mainspring_client::bridge::{
    BridgeError, Launch, Phase, Query, QueryEvent, Restart, RuntimeProcess, Surface, Warmup, WarmupSession,
};

use super::{kill, launch, read_rest, read_until, start, start_query, wait_for_new_process};
use crate::guests::serve;

#[tokio::test]
async fn a_query_of_a_dead_process_receives_its_outcome_once() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    let (one, other) = (process.bridge(), process.bridge());
    let hint =
        WarmupSession { key: "k".into(), system_prompt: Some("be kind".into()), ..WarmupSession::default() };
    one.warmup(Warmup { sessions: Some(vec![hint]), ..Warmup::default() });
    let first = start_query(&other, Surface::task_chat("1"), "say done").result().await.unwrap();
    // The query depends on a warmup hint, which the next process must know to recognise the same request.
    let asked = Query { legacy_key: Some("k".into()), prompt: "say half; hang".into(), ..Query::default() };
    let mut lost = one.query(asked).unwrap();
    read_until(&mut lost, "half").await;
    let mut queued = start_query(&other, Surface::task_chat("1"), "sleep 100ms; say later");
    let pid = kill(&process);
    let health = wait_for_new_process(&process, pid).await;
    assert_eq!((health.restarts, health.failures), (1, 1), "{health:?}");
    // The run was lost with its process: it ends as orphaned, not as succeeded.
    let (_, events) = read_rest(&mut lost).await;
    assert!(matches!(events[..], [QueryEvent::Restarted]), "{events:?}");
    let run = lost.ids().run_id.unwrap();
    let error = lost.result().await.unwrap_err();
    let BridgeError::Failed { code, ids, .. } = &error else { panic!("{error:?}") };
    assert_eq!((code.as_str(), ids.run_id), ("executor_lost", Some(run)));
    let client = process.client().unwrap();
    assert_eq!(client.run_get(run).await.unwrap().state.status(), RunStatus::Orphaned);
    // The second query is lost too if it had started; if it was queued or never received, it is executed.
    read_rest(&mut queued).await;
    let session = first.session_id.to_string();
    match queued.result().await {
        Ok(result) => assert_eq!((result.text.as_str(), result.session_id), ("later\n", first.session_id)),
        Err(error) => assert_eq!(error.code(), "executor_lost"),
    }
    assert_eq!(
        client
            .run_list(&RunListQuery { session: Some(session.clone()), ..RunListQuery::default() })
            .await
            .unwrap()
            .items
            .len(),
        2,
        "each query is one run"
    );
}

#[tokio::test]
async fn a_query_continued_by_another_process_is_replayed_and_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path());
    let process = start(dir.path()).await;
    let bridge = process.bridge();
    let mut stream = start_query(&bridge, Surface::main_chat(None), "say before; hang");
    read_until(&mut stream, "before").await;
    // The server owns the sessions: the run survives the death of the process that asked.
    let pid = kill(&process);
    assert!(matches!(stream.next().await, Some(QueryEvent::Restarted)));
    assert_eq!(
        read_until(&mut stream, "before").await,
        "before\n",
        "the text is replayed from its beginning"
    );
    wait_for_new_process(&process, pid).await;
    assert!(bridge.interrupt().await.unwrap().accepted);
    let result = stream.result().await.unwrap();
    assert_eq!((result.terminal_status, result.text.as_str()), (RunStatus::Cancelled, "before\n"));
}

#[tokio::test]
async fn a_process_that_cannot_start_is_given_up_with_its_reason_and_retried_by_the_next_query() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("mainspring.toml");
    std::fs::write(&broken, "max_workers = \"many\"\n").unwrap();
    let restart =
        Restart { max_failures: 2, initial_delay: std::time::Duration::from_millis(1), ..Restart::default() };
    let quick = Launch { restart, ..launch(dir.path()) };
    let error = RuntimeProcess::start(quick.clone()).await.err().unwrap();
    assert_eq!(error.code(), "process_lost");
    assert!(error.to_string().contains("max_workers"), "{error}");
    // A failed start can be repeated, and works once the cause is removed.
    std::fs::write(&broken, "").unwrap();
    let process = RuntimeProcess::start(quick).await.unwrap();
    let answer = start_query(&process.bridge(), Surface::main_chat(None), "say well").result().await.unwrap();
    assert_eq!(answer.text, "well\n");
    let nowhere = Launch::new(dir.path().join("nowhere"), dir.path().join("other"));
    let error = RuntimeProcess::start(nowhere).await.err().unwrap();
    assert!(error.to_string().contains("nowhere cannot be started"), "{error}");
}

#[tokio::test]
async fn a_process_that_keeps_dying_is_given_up_and_restarted_by_the_next_query() {
    let dir = tempfile::tempdir().unwrap();
    // The program exits on its first request as long as the file `poison` exists.
    let (program, poison) = (dir.path().join("program"), dir.path().join("poison"));
    std::fs::write(&poison, "").unwrap();
    let real = env!("CARGO_BIN_EXE_mainspring");
    let script = format!(
        "#!/bin/sh\nif [ -e '{poison}' ]; then echo '{{\"type\":\"init\",\"sessionId\":\"\"}}'; read line; \
         echo 'no strength left' >&2; exit 7; fi\nexec '{real}' \"$@\"\n",
        poison = poison.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let restart =
        Restart { max_failures: 3, initial_delay: std::time::Duration::from_millis(1), ..Restart::default() };
    let launch = Launch { program, restart, ..launch(dir.path()) };
    let again = launch.clone();
    let process = RuntimeProcess::start(launch).await.unwrap();
    let bridge = process.bridge();
    let error = start_query(&bridge, Surface::main_chat(None), "say hi").result().await.unwrap_err();
    assert_eq!(error.code(), "process_lost");
    assert!(error.to_string().contains("exit status: 7; it said last: no strength left"), "{error}");
    assert_eq!(process.stderr(), "no strength left\n");
    let health = process.health().borrow().clone();
    assert_eq!((health.phase, health.failures, health.pid), (Phase::Failed, 3, None));
    std::fs::remove_file(&poison).unwrap();
    assert_eq!(start_query(&bridge, Surface::main_chat(None), "say hi").result().await.unwrap().text, "hi\n");
    assert_eq!(process.health().borrow().phase, Phase::Ready);
    // Starting the same launch counts as a request and restarts the failed process.
    std::fs::write(&poison, "").unwrap();
    kill(&process);
    let lost = start_query(&bridge, Surface::main_chat(None), "say hi").result().await;
    assert_eq!(lost.unwrap_err().code(), "process_lost");
    std::fs::remove_file(&poison).unwrap();
    let again = RuntimeProcess::start(again).await.unwrap();
    assert_eq!(again.health().borrow().pid, process.health().borrow().pid);
}

#[tokio::test]
async fn dropping_the_last_handle_stops_the_process_gracefully() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    let client = process.client().unwrap();
    let mut stream = start_query(&process.bridge(), Surface::main_chat(None), "say here; hang");
    read_until(&mut stream, "here").await;
    let (run, mut health) = (stream.ids().run_id.unwrap(), process.health());
    drop((stream, process));
    health.wait_for(|health| health.phase == Phase::Stopped).await.unwrap();
    assert!(client.run_get(run).await.unwrap_err().is_gone(), "no process serves there any more");
    // Nothing was left unknown: the run was stopped and recorded as cancelled.
    let process = start(dir.path()).await;
    assert_eq!(process.client().unwrap().run_get(run).await.unwrap().state.status(), RunStatus::Cancelled);
}
