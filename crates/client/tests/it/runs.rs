//! Runs: created once, read, answered, cancelled and retried.

use std::sync::Arc;

use mainspring_client::{EventsQuery, IdQuery, Prompt, PromptContent, RetryOptions, RunListQuery};
use mainspring_core::{
    Answer, Approval, Block, Cost, Grant, GrantEffect, GrantSource, IdKind, PromptRef, RetryReason, Route,
    Run, RunLimits, RunStatus, StepInput, StopReason, Usage, WaitRequest,
};
use mainspring_kernel::adapter::{AttemptHandle, Capabilities, End, Executed, Record, StepTaken};
use serde_json::json;

use crate::world::{World, code};

#[tokio::test]
async fn a_run_is_found_by_the_beginning_of_its_id() {
    let World { client, .. } = &World::start().await;
    let run = client.run_create(&Prompt::text("a", "say hi")).await.unwrap().run.id.to_string();
    let query = |kind| IdQuery { kind, prefix: run[..16].into(), session: None };
    assert_eq!(client.id_find(&query(IdKind::Run)).await.unwrap().ids, std::slice::from_ref(&run));
    assert_eq!(code(client.id_find(&query(IdKind::Session)).await), "invalid_request");
}

#[tokio::test]
async fn the_same_idempotency_key_creates_one_run() {
    let World { client, .. } = &World::start().await;
    let once = |text: &str| Prompt { idempotency_key: Some("k".into()), ..Prompt::text("a", text) };
    let first = client.run_create(&once("say hi")).await.unwrap();
    let again = client.run_create(&once("say hi")).await.unwrap();
    assert_eq!((first.run.id, first.replayed, again.replayed), (again.run.id, false, true));
    assert_eq!(code(client.run_create(&once("say bye")).await), "request_conflict");
}

#[tokio::test]
async fn a_prompt_goes_to_a_session_that_exists() {
    let world = World::start().await;
    let client = &world.client;
    let first = world.play("a", "say one").await;
    world.node.clock.advance(1);
    let prompt = Prompt { prompt: Some(PromptContent::Text("say two".into())), ..Prompt::default() };
    let second = client.run_create_in("a", &prompt).await.unwrap().run;
    assert_eq!((second.session, second.no), (first.session, 2));
    assert!(client.run_create_in("nobody", &prompt).await.unwrap_err().is_not_found());
    assert_eq!(code(client.run_create_in("a", &Prompt::text("a", "say x")).await), "invalid_request");
    world.ended(second.id).await;
    let query = RunListQuery { session: Some("a".into()), limit: Some(1), ..RunListQuery::default() };
    let page = client.run_list(&query).await.unwrap();
    assert_eq!(page.items[0].id, second.id, "the newest first");
    let rest = client.run_list(&RunListQuery { before: page.next, ..query }).await.unwrap();
    let alone = client.run_get(first.id).await.unwrap();
    assert_eq!(alone.final_text.as_deref(), Some("one\n"));
    assert_eq!(rest.items, [Run { final_text: None, ..alone }]);
    let failed = RunListQuery { status: Some(RunStatus::Failed), ..RunListQuery::default() };
    assert_eq!(client.run_list(&failed).await.unwrap().items, []);
}

#[tokio::test]
async fn a_waiting_run_takes_one_answer_of_the_right_kind() {
    let world = World::start().await;
    let client = &world.client;
    let run = world.prompt("a", "approve Sure?; say done").await.run;
    let wait = world.question(run.id).await;
    assert_eq!(wait.request, WaitRequest::Approval);
    let input = Answer::Input { input: json!("yes") };
    assert_eq!(code(client.run_answer(run.id, wait.id, &input).await), "wrong_answer");
    let allowed = Approval::Allowed.into();
    client.run_answer(run.id, wait.id, &allowed).await.unwrap();
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
    let snapshot = client.session_snapshot("a").await.unwrap();
    assert_eq!(snapshot.messages.last().unwrap().text(), "Approved.\ndone\n");
    assert_eq!(code(client.run_answer(run.id, wait.id, &input).await), "already_answered");
}

#[tokio::test]
async fn cancelling_returns_the_steps_done_and_the_run_is_not_retried() {
    let world = World::start().await;
    let client = &world.client;
    let run = world.prompt("a", "say begun; hang").await.run;
    let outcome = client.run_cancel(run.id).await.unwrap();
    assert_eq!((outcome.accepted, outcome.run_id), (true, run.id));
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled);
    assert_eq!(code(client.run_retry(run.id, &RetryOptions::default()).await), "wrong_state");
    assert_eq!(code(client.run_cancel(run.id).await), "run_ended");
}

#[tokio::test]
async fn a_failed_run_is_retried_as_another_attempt() {
    let world = World::start().await;
    let client = &world.client;
    let run = world.play("a", "fail no luck").await;
    assert_eq!(run.state.status(), RunStatus::Failed);
    let retried = client.run_retry(run.id, &RetryOptions::default()).await.unwrap();
    assert_eq!((retried.id, retried.state.status()), (run.id, RunStatus::Queued));
    let mut events = client.run_events(run.id, None);
    let mut ends = 0;
    // The stream of a retried run goes on to the run's next end.
    while ends < 2 {
        match events.next().await.transpose().unwrap() {
            Some(mainspring_client::Item::Event(event)) => ends += usize::from(event.body.ends_run()),
            Some(_) => {}
            None => events = client.run_events(run.id, events.position()),
        }
    }
    let attempts = client.run_attempts(run.id).await.unwrap().items;
    assert_eq!(client.attempt_get(attempts[0].id).await.unwrap(), attempts[0]);
    assert_eq!(attempts.iter().map(|attempt| attempt.no).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(attempts[1].resume_from, Some(attempts[0].id));
    let reasons = attempts.iter().map(|attempt| attempt.retry_reason).collect::<Vec<_>>();
    assert_eq!(reasons, [None, Some(RetryReason::User)]);
    let limits = RunLimits { max_tokens: Some(7), ..RunLimits::default() };
    let model = RetryOptions { limits, model: Some("m".into()), ..RetryOptions::default() };
    assert_eq!(
        code(client.run_retry(run.id, &model).await),
        "option_not_used",
        "the script agent has no model"
    );
    let retried =
        client.run_retry(run.id, &RetryOptions { limits, ..RetryOptions::default() }).await.unwrap();
    assert_eq!(retried.options.limits, limits);
    let unknown = RetryOptions { adapter: Some("nobody".into()), ..RetryOptions::default() };
    assert_eq!(code(client.run_retry(run.id, &unknown).await), "adapter_not_registered");
}

#[tokio::test]
async fn the_events_of_a_run_are_read_by_page() {
    let world = World::start().await;
    let client = &world.client;
    world.play("a", "say before").await;
    let run = world.play("a", "say hi").await;
    let all = client.run_events_page(run.id, &EventsQuery::default()).await.unwrap();
    assert!(all.items.iter().all(|event| event.run == Some(run.id)), "{all:?}");
    let query = EventsQuery { limit: Some(2), ..EventsQuery::default() };
    let first = client.run_events_page(run.id, &query).await.unwrap();
    let rest = EventsQuery { after: first.next, ..EventsQuery::default() };
    let rest = client.run_events_page(run.id, &rest).await.unwrap();
    assert_eq!([first.items, rest.items].concat(), all.items);
}

/// Calls a model once, with a permission that was granted in advance.
async fn call_model(attempt: AttemptHandle) -> Executed {
    let run = &attempt.assignment().run;
    let grant = Grant {
        id: attempt.new_grant(),
        session: run.session,
        run: Some(run.id),
        capability: "fs".into(),
        operation: "read".into(),
        resource_pattern: "*".into(),
        effect: GrantEffect::Allow,
        source: GrantSource::Policy,
        constraints: serde_json::Map::new(),
        created_at: attempt.now(),
        expires_at: None,
        revoked_at: None,
        revoked_by: None,
    };
    let usage = Usage { input_tokens: 7, output_tokens: 3, cost: Cost::default(), ..Usage::default() };
    let step = StepTaken {
        no: 1,
        agent: "tester@1".into(),
        provider: "none".into(),
        model: "m".into(),
        profile: None,
        prompt: PromptRef { last: run.prompt, messages: 1, digest: None },
        tool_calls: vec![],
        stop_reason: StopReason::Stop,
        error: None,
        usage: Some(usage),
        raw_usage: json!({"in": 7}),
        started_at: attempt.now(),
        first_piece_at: None,
        private: None,
        budget: None,
        input: Some(Arc::new(StepInput { system_prompt: Some("Be brief.".into()), ..StepInput::default() })),
        raw: json!({"stopReason": "end"}),
    };
    let message = Record::Message { blocks: vec![Block::text("hi")], usage: None };
    let route: Route = serde_json::from_value(json!({
        "routeNo": 1, "by": {"kind": "rule", "rule": 2}, "next": "tester", "calls": 1,
    }))
    .unwrap();
    let records = vec![
        Record::Routed(Box::new(route)),
        Record::Granted(Box::new(grant)),
        message,
        Record::Step(Box::new(step)),
    ];
    attempt.record(records).await.unwrap();
    End::succeeded()
}

#[tokio::test]
async fn the_steps_and_grants_of_a_run_are_listed() {
    let world = World::with_agent(Capabilities::minimal("agent"), call_model).await;
    let client = &world.client;
    let run = world.prompt_agent("a", "go").await.run;
    let run = world.ended(run.id).await;
    let steps = client.run_steps(run.id).await.unwrap().items;
    assert_eq!((steps.len(), steps[0].no, steps[0].model.as_str()), (1, 1, "m"));
    assert_eq!((steps[0].output, steps[0].usage.unwrap().input_tokens), (run.final_message, 7));
    let step = client.run_step(run.id, 1).await.unwrap();
    assert_eq!((step.step, step.input.unwrap().system_prompt), (steps[0].clone(), Some("Be brief.".into())));
    assert_eq!(step.output.map(|output| (output.text(), output.agent.clone())), Some(("hi".into(), None)));
    assert_eq!((step.checksum.unwrap().len(), step.answered_calls), (64, vec![]));
    assert_eq!(code(client.run_step(run.id, 2).await), "not_found");
    let way = client.run_route(run.id).await.unwrap();
    assert_eq!((way.run_id, way.decisions.len(), way.decisions[0].route.calls), (run.id, 1, 1));
    assert_eq!((way.members[0].member.as_str(), way.members[0].steps), ("tester", 1));
    let grants = client.run_grants(run.id).await.unwrap();
    assert_eq!((grants.len(), grants[0].capability.as_str(), grants[0].run), (1, "fs", Some(run.id)));
    let scripted = world.play("b", "say hi").await;
    assert_eq!(client.run_steps(scripted.id).await.unwrap().items, []);
    assert_eq!(client.run_route(scripted.id).await.unwrap().decisions, []);
    assert_eq!(client.run_grants(scripted.id).await.unwrap(), []);
    assert_eq!(client.run_processes(scripted.id).await.unwrap(), []);
    assert_eq!(client.run_processes_end(scripted.id).await.unwrap(), []);
}
