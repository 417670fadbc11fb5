//! Steps: written with their run, read in order, and stripped of private data when the run ends.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{EndedToolCall, OpenToolCall, Row, StepInputRow};
use serde_json::{Value, json};

use crate::fixtures::*;

#[tokio::test]
async fn steps_are_read_in_order_and_sealed_with_their_run() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let running = row_run(run(1, 1, 1, RunState::Running { attempt: attempt_id(1) }));
        let (first, second) = (step(1, 1, 1), step(2, 1, 2));
        let row = |step: &Step| Row::Step(Box::new(step.clone()));
        commit(store, fence, vec![running, row(&second)], vec![progress(1)]).await.unwrap();
        commit(store, fence, vec![row(&first)], vec![progress(2)]).await.unwrap();
        assert_eq!(store.steps(run_id(1)).await.unwrap().items, [first.clone(), second.clone()], "{name}");
        assert_eq!(store.steps(run_id(2)).await.unwrap().items, [], "{name}");

        // The private data of a step that the same commit stores is erased too.
        let third = step(3, 1, 3);
        commit(store, fence, vec![Row::StepsSeal(run_id(1)), row(&third)], vec![progress(3)]).await.unwrap();
        let sealed = |step: Step| Step { private: None, ..step };
        let all = [first, second, third].map(sealed);
        assert_eq!(store.steps(run_id(1)).await.unwrap().items, all, "{name}");

        delete_session(store, fence).await;
        while store.session_purge(session_id(1)).await.unwrap() {}
        assert_eq!(store.steps(run_id(1)).await.unwrap().items, [], "{name}");
    }
}

#[tokio::test]
async fn a_step_names_the_artifact_of_its_raw_response() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let artifact = ArtifactId::from_random([7; 16]);
        let made = Step { raw: json!({"artifact": artifact, "bytes": 20_000}), ..step(1, 1, 1) };
        let rows = vec![row_run(run(1, 1, 1, queued())), Row::Step(Box::new(made))];
        commit(store, fence, rows, vec![progress(1)]).await.unwrap();
        let named = store.artifacts_named().await.unwrap();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), [artifact], "{name}");
        delete_session(store, fence).await;
        while store.session_purge(session_id(1)).await.unwrap() {}
        assert!(store.artifacts_named().await.unwrap().is_empty(), "{name}: not after the step is gone");
    }
}

#[tokio::test]
async fn results_that_no_message_holds_yet_name_their_artifacts() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let [of_call, of_wait] = [7, 8].map(|n| ArtifactId::from_random([n; 16]));
        let content = vec![Block::text(format!("stored as {of_call}"))];
        let ended = EndedToolCall {
            result: CallResult { content, ..CallResult::default() }.into(),
            message: message_id(7),
        };
        let call = OpenToolCall {
            run: run_id(1),
            tool_use_id: "t1".into(),
            name: "draw".into(),
            started_at: Some(NOW),
            ended: Some(ended),
        };
        let provided = ClientResult {
            tool_use_id: "t2".into(),
            content: json!({"file": of_wait}),
            ..ClientResult::default()
        };
        let wait = Wait {
            id: wait_id(1),
            request: WaitRequest::Tools,
            question: String::new(),
            expires_at: None,
            on_expiry: OnExpiry::TimeOut,
            approval: None,
            held: false,
            calls: vec![],
            results: vec![provided],
            resume: Value::Null,
            replies: None,
            answer: None,
        };
        let waiting = RunState::WaitingInput { attempt: attempt_id(1), wait: Box::new(wait) };
        let rows = vec![row_run(run(1, 1, 1, waiting)), Row::ToolCall(Box::new(call))];
        commit(store, fence, rows, vec![progress(1)]).await.unwrap();
        assert_eq!(store.artifacts_named().await.unwrap(), [of_call, of_wait].into(), "{name}");
    }
}

#[tokio::test]
async fn a_step_without_its_run_is_refused() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let refused = commit(store, fence, vec![Row::Step(Box::new(step(1, 9, 1)))], vec![]).await;
        assert!(refused.is_err(), "{name}");
    }
}

/// Builds step `n`, number `no` of run `of`.
pub(crate) fn step(n: u64, of: u64, no: u32) -> Step {
    Step {
        id: step_id(n),
        run: run_id(of),
        attempt: attempt_id(1),
        no,
        agent: "generalist@1".into(),
        provider: "acme".into(),
        model: "m-1".into(),
        profile: n.is_multiple_of(2).then(|| "worker".into()),
        prompt: PromptRef {
            last: Some(message_id(n)),
            messages: 3,
            digest: n.is_multiple_of(4).then(|| message_id(1)),
        },
        output: (!n.is_multiple_of(2)).then(|| message_id(n)),
        tool_calls: vec!["t1".into()],
        stop_reason: StopReason::ToolUse,
        error: n.is_multiple_of(2).then(|| Failure::new("model_overloaded", "later")),
        usage: (!n.is_multiple_of(3)).then(|| Usage {
            input_tokens: n,
            output_tokens: 2,
            cost: Cost(7),
            ..Usage::default()
        }),
        raw_usage: json!({"n": n}),
        started_at: NOW,
        first_piece_at: Some(NOW.plus(1)),
        completed_at: NOW.plus(n),
        input_hash: n.is_multiple_of(2).then(|| "ab".repeat(32)),
        raw: if n.is_multiple_of(3) { json!({"stop": n}) } else { Value::Null },
        private: Some(json!({"signature": n})),
    }
}

#[tokio::test]
async fn inputs_are_kept_once_per_session_and_purged_with_it() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (hash, other) = ("ab".repeat(32), "cd".repeat(32));
        let row = |hash: &str, json: &str| {
            Row::StepInput(Arc::new(StepInputRow { hash: hash.to_owned(), json: json.to_owned() }))
        };
        let fence = create_session(store, 1).await;
        let second = create_session(store, 2).await;
        commit(store, fence, vec![row(&hash, "{}"), row(&other, "[]")], vec![]).await.unwrap();
        // The same hash stands for the same content, so the first row stays.
        commit(store, fence, vec![row(&hash, "{\"a\":1}")], vec![]).await.unwrap();
        commit(store, second, vec![row(&hash, "{}")], vec![]).await.unwrap();
        let input = async |of, hash: &str| store.step_input(session_id(of), hash).await.unwrap();
        assert_eq!(input(1, &hash).await.as_deref(), Some("{}"), "{name}");
        assert_eq!(input(1, &other).await.as_deref(), Some("[]"), "{name}");
        assert_eq!(input(2, &other).await, None, "{name}");
        delete_session(store, fence).await;
        while store.session_purge(session_id(1)).await.unwrap() {}
        assert_eq!((input(1, &hash).await, input(2, &hash).await), (None, Some("{}".into())), "{name}");
    }
}
