//! Each tool answers the same over both planes.

use mainspring_core::{ArtifactRole, RequestName, SessionId};
use mainspring_kernel::kernel::{NewArtifact, RunRequest};
use mainspring_kernel::store::SessionRef;
use serde_json::{Value, json};

use crate::world::{OWNER, World, call};

/// Returns protocol code and reason of an error.
fn error(answer: &Value) -> (&str, Option<&str>) {
    (answer["error"]["code"].as_str().unwrap(), answer["error"]["reason"].as_str())
}

#[tokio::test]
async fn sessions_are_listed_with_their_runs() {
    let world = World::start().await;
    let old = world.run("old", "say hello").await;
    world.clock.advance(1_000);
    let busy = world.send("busy", "hang").await;
    world.executing(busy.session).await;
    let all = world.call("list_agent_sessions", json!({"ownerId": OWNER})).await;
    let [first, second] = all["sessions"].as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!(first["session"]["omiSessionId"], json!(busy.session));
    assert_eq!(first["activeRun"]["runId"], json!(busy.id));
    assert_eq!(second["latestRun"]["finalText"], "hello\n");
    assert_eq!(
        (&second["latestRun"]["input"], &second["activeRun"]),
        (&json!({"prompt": "say hello"}), &Value::Null)
    );
    let at = &first["session"]["lastActivityAtMs"];
    let before = world.call("list_agent_sessions", json!({"beforeUpdatedAtMs": at})).await;
    assert_eq!(before["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(before["sessions"][0]["session"]["omiSessionId"], json!(old.session));
    let none = world.call("list_agent_sessions", json!({"status": "archived"})).await;
    assert_eq!(none["sessions"], json!([]));
}

#[tokio::test]
async fn a_run_is_returned_with_its_latest_events() {
    let world = World::start().await;
    let run = world.run("s", &format!("{}; say a; tool echo {{}}; say b", "progress on ;".repeat(600))).await;
    let shown = world.call("get_agent_run", json!({"runId": run.id, "eventLimit": 3})).await;
    assert_eq!(shown["session"]["omiSessionId"], json!(run.session));
    assert_eq!(
        (&shown["run"]["status"], &shown["run"]["finalText"]),
        (&json!("succeeded"), &json!("a\nb\n"))
    );
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 1);
    let attempt = &shown["attempts"][0];
    assert_eq!(attempt["adapterInstanceId"], attempt["runtimeNodeId"], "mainspring executes it itself");
    assert_eq!(attempt["adapterNativeRunId"], Value::Null);
    assert_eq!(shown["run"]["systemPromptHash"], Value::Null);
    let classes = world.call("get_agent_run", json!({"runId": run.id, "eventLimit": 500})).await;
    let class = |kind: &str| {
        let events = classes["events"].as_array().unwrap();
        let event = events.iter().find(|event| event["type"] == kind).unwrap();
        (event["retentionClass"].as_str().unwrap(), event["visibility"].as_str().unwrap())
    };
    assert_eq!(class("progress.updated"), ("transient", "ui"));
    assert_eq!(class("run.succeeded"), ("core", "ui"));
    let events: Vec<_> = shown["events"].as_array().unwrap().iter().map(|event| &event["type"]).collect();
    assert_eq!((events.len(), events.last()), (3, Some(&&json!("run.succeeded"))));
    let shown = world.call("get_agent_run", json!({"runId": run.id, "includeEvents": false})).await;
    assert_eq!(shown["events"], json!([]));
}

#[tokio::test]
async fn artifacts_of_a_session_or_a_run_are_listed() {
    let world = World::start().await;
    let run = world.run("s", "say hello").await;
    let metadata = serde_json::Map::from_iter([("page".to_owned(), json!(1))]);
    let role = ArtifactRole::Input;
    let new = NewArtifact { name: Some("a.txt".into()), role, metadata, ..NewArtifact::default() };
    let by = SessionRef::Id(run.session);
    let put = world.kernel.artifact_put(&world.me, &by, new, None, &mut &b"text"[..]).await;
    let id = put.unwrap().0.id;
    let of_session = world.call("inspect_agent_artifacts", json!({"sessionId": run.session})).await;
    assert_eq!(of_session["artifacts"][0]["artifactId"], json!(id));
    assert_eq!(of_session["artifacts"][0]["sizeBytes"], 4);
    assert_eq!(of_session["artifacts"][0]["metadata"], json!({"page": 1}));
    let results = json!({"sessionId": run.session, "role": "result"});
    assert_eq!(world.call("inspect_agent_artifacts", results).await["artifacts"], json!([]));
    let of_run = world.call("inspect_agent_artifacts", json!({"runId": run.id})).await;
    assert_eq!(of_run["artifacts"], json!([]));
}

#[tokio::test]
async fn both_planes_refuse_bad_inputs_with_the_same_error() {
    let world = World::start().await;
    let run = world.run("s", "say hello").await;
    let unknown = "run_00000000000000000000000000000000";
    for (tool, input, refused) in [
        ("get_agent_run", json!({}), ("invalid_tool_input", None)),
        ("get_agent_run", json!({"runId": "x"}), ("not_found", None)),
        ("get_agent_run", json!({"runId": unknown}), ("not_found", None)),
        ("get_agent_run", json!({"runId": run.id, "ownerId": "bob"}), ("not_found", None)),
        ("cancel_agent_run", json!({"runId": unknown}), ("not_found", None)),
        ("cancel_agent_run", json!({"runId": run.id}), ("invalid_request", Some("run_ended"))),
        ("list_agent_sessions", json!({"limit": 201}), ("invalid_tool_input", None)),
        ("inspect_agent_artifacts", json!({}), ("invalid_tool_input", None)),
        ("inspect_agent_artifacts", json!({"attemptId": "x"}), ("not_found", None)),
        ("inspect_agent_artifacts", json!({"attemptId": unknown.replace("run", "att")}), ("not_found", None)),
        ("list_agent_sessions", json!({"cursor": "x"}), ("invalid_tool_input", None)),
        ("get_agent_run", json!({"runId": run.id, "cursor": "x"}), ("invalid_tool_input", None)),
        ("send_agent_message", json!({"sessionId": run.session, "prompt": ""}), ("invalid_request", None)),
        (
            "send_agent_message",
            json!({"sessionId": run.session, "prompt": "say x", "adapterId": "none"}),
            ("adapter_not_registered", None),
        ),
        (
            "send_agent_message",
            json!({"sessionId": run.session, "prompt": "say x", "modelProfile": "worker"}),
            ("invalid_request", Some("option_not_used")),
        ),
        ("delegate_agent", json!({"mode": "call", "objective": "x"}), ("invalid_tool_input", None)),
        (
            "delegate_agent",
            json!({"mode": "call", "objective": "x", "parentRunId": run.id}),
            ("invalid_request", Some("run_ended")),
        ),
        ("no_such_tool", json!({}), ("unknown_control_tool", None)),
    ] {
        let answer = world.call(tool, input.clone()).await;
        assert_eq!(error(&answer), refused, "{tool} {input}: {answer}");
    }
}

#[tokio::test]
async fn runs_are_cancelled() {
    let world = World::start().await;
    for (name, plane) in world.planes() {
        let run = world.send(name, "hang").await;
        world.executing(run.session).await;
        let cancelled = call(&*plane, None, "cancel_agent_run", json!({"runId": run.id})).await;
        assert_eq!(cancelled["cancellation"]["accepted"], true, "{name}: {cancelled}");
        assert_eq!(cancelled["cancellation"]["dispatchAttempted"], true, "{name}: {cancelled}");
        assert_eq!(cancelled["run"]["runId"], json!(run.id), "{name}");
        assert!(cancelled["attempts"][0]["cancellationRequestedAtMs"].is_number(), "{name}: {cancelled}");
    }
}

#[tokio::test]
async fn a_message_is_answered_once_and_waits_for_the_end_of_its_run() {
    let world = World::start().await;
    let session = world.run("s", "say hello").await.session;
    let message =
        json!({"sessionId": session, "prompt": "say a; tool echo {}; say b", "adapterId": "scripted"});
    // The second plane repeats the request of the first one, and finds its run.
    let reply = world.call("send_agent_message", message.clone()).await;
    assert_eq!((&reply["terminalStatus"], &reply["text"]), (&json!("succeeded"), &json!("a\nb\n")));
    assert_eq!(
        (&reply["run"]["mode"], &reply["run"]["clientId"]),
        (&json!("ask"), &json!("omi-control-tools"))
    );
    let own = world.call_from(Some(session), "send_agent_message", message).await;
    assert_eq!(error(&own), ("invalid_request", Some("would_deadlock")));
    for (name, plane) in world.planes() {
        let message = json!({"sessionId": session, "prompt": "hang", "requestId": name});
        let (reply, ()) = tokio::join!(call(&*plane, None, "send_agent_message", message), async {
            let run = world.executing(session).await.id;
            world.kernel.run_cancel(&world.me, run).await.unwrap();
        });
        assert_eq!(reply["terminalStatus"], "cancelled", "{name}: {reply}");
    }
}

#[tokio::test]
async fn the_client_of_a_run_is_named_without_its_connection() {
    let world = World::start().await;
    for (stored, shown) in [
        ("team#1", "team#1"),
        ("#", "#"),
        ("legacy-jsonl-client#con_1", "legacy-jsonl-client"),
        ("desk", "desk"),
    ] {
        let request = RunRequest::text("s", "say hi");
        let name = RequestName { client_id: Some(stored.into()), ..RequestName::default() };
        let run = world.kernel.run_create(&world.me, RunRequest { name, ..request }).await.unwrap().run;
        let reply = world.call("get_agent_run", json!({"runId": run.id, "includeEvents": false})).await;
        assert_eq!(reply["run"]["clientId"], shown, "{stored}");
    }
}

#[tokio::test]
async fn the_text_of_a_reply_is_returned_after_its_events_are_pruned() {
    let world = World::start().await;
    let session = world.run("s", "say hello").await.session;
    let message = json!({"sessionId": session, "prompt": "say a; tool echo {}; say b"});
    let reply = world.call("send_agent_message", message.clone()).await;
    let by = SessionRef::Id(session);
    let end = world.kernel.session_snapshot(&world.me, &by).await.unwrap().position.cursor;
    world.kernel.session_compact(&world.me, &by, end).await.unwrap();
    let pruned = world.call("get_agent_run", json!({"runId": reply["run"]["runId"]})).await;
    assert_eq!(error(&pruned), ("invalid_request", Some("cursor_expired")));
    assert_eq!(world.call("send_agent_message", message).await["text"], "a\nb\n");
}

#[tokio::test]
async fn work_is_delegated_once_in_every_mode() {
    let world = World::start().await;
    let parent = world.send("s", "hang").await;
    world.executing(parent.session).await;
    let call =
        json!({"mode": "call", "objective": "say done", "parentRunId": parent.id, "childTitle": "Child"});
    let called = world.call("delegate_agent", call).await;
    assert_eq!(
        (&called["terminalStatus"], &called["result"]["summary"]),
        (&json!("succeeded"), &json!("done\n"))
    );
    assert_eq!(called["childSession"]["title"], "Child");
    let request = json!({"mode": "call", "objective": "say done", "context": null});
    assert_eq!(called["delegation"]["request"], request);
    let child: SessionId = serde_json::from_value(called["childSession"]["omiSessionId"].clone()).unwrap();
    // A run of the calling session delegates without naming itself.
    let more =
        json!({"mode": "continue", "objective": "say more", "childSessionId": child, "requestId": "more"});
    let continued = world.call_from(Some(parent.session), "delegate_agent", more.clone()).await;
    assert_eq!(continued["result"]["summary"], "more\n");
    assert_eq!(continued["delegation"]["parentRunId"], json!(parent.id));
    let foreign = world
        .call_from(
            Some(child),
            "delegate_agent",
            json!({"mode": "spawn", "objective": "x", "parentRunId": parent.id}),
        )
        .await;
    assert_eq!(error(&foreign), ("not_found", None), "the run of another session");
    let spawn = json!({"mode": "spawn", "objective": "hang", "requestId": "spawn", "parentRunId": parent.id});
    for (name, plane) in world.planes() {
        let spawned = crate::world::call(&*plane, None, "delegate_agent", spawn.clone()).await;
        assert_eq!((&spawned["terminalStatus"], &spawned["result"]), (&Value::Null, &Value::Null), "{name}");
    }
    let shown = world.call("get_agent_run", json!({"runId": parent.id, "includeEvents": false})).await;
    assert_eq!(shown["childDelegations"].as_array().unwrap().len(), 3, "no request made a second child");
    let shown = world.call("get_agent_run", json!({"runId": called["childRun"]["runId"]})).await;
    assert_eq!(shown["parentDelegations"][0], called["delegation"], "the request is included");
}

#[tokio::test]
async fn delegated_work_can_name_a_model_profile() {
    let world = World::start().await;
    let parent = world.send("s", "hang").await;
    world.executing(parent.session).await;
    let call = |adapter: &str, profile: &str| {
        json!({"mode": "call", "objective": "say done", "parentRunId": parent.id, "adapterId": adapter,
               "modelProfile": profile, "requestId": format!("{adapter} {profile}")})
    };
    let called = world.call("delegate_agent", call("profiled", "worker")).await;
    assert_eq!(called["terminalStatus"], "succeeded", "{called}");
    let child = called["childRun"]["runId"].as_str().unwrap().parse().unwrap();
    let child = world.kernel.run_get(&world.me, child).await.unwrap();
    assert_eq!(
        (child.adapter.as_str(), child.options.model_profile.as_deref()),
        ("profiled", Some("worker"))
    );
    let unknown = world.call("delegate_agent", call("profiled", "wroker")).await;
    assert_eq!(error(&unknown), ("invalid_request", None), "{unknown}");
    assert!(unknown.to_string().contains("there is worker"), "{unknown}");
    let unused = world.call("delegate_agent", call("script", "worker")).await;
    assert_eq!(error(&unused), ("invalid_request", Some("option_not_used")), "{unused}");
}
