//! The context: requests for paths that exceed the context window.

use std::sync::Arc;

use mainspring_core::{
    Body, DigestAuthor, Message, MessageId, Place, Policy, Run, RunOptions, RunStatus, StopReason,
};
use mainspring_kernel::kernel::{ForkRequest, RunRequest};
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};
use serde_json::{Value, json};

use crate::world::{Setup, World, within_timeout};

/// A model with a context window of 1000 tokens, 250 of them for an answer, and a summarizer.
const WITH_SUMMARIZER: &str = "context_tokens = 1000\n\
    [models.summarizer]\nprovider = \"acme\"\nmodel = \"m-sum\"\n\
    [models.large]\nprovider = \"acme\"\nmodel = \"m-1\"\ncontext_tokens = 100000";

/// The same model without a summarizer.
const WITHOUT_SUMMARIZER: &str = "context_tokens = 1000";

/// Returns an answer that reports `input` tokens.
fn answer(text: &str, input: u64) -> Reply {
    Reply::text(text).with_tokens(Tokens { input, output: 10, ..Tokens::default() })
}

impl World {
    /// Runs the prompt `text`, which is answered with `reply`, and advances the clock.
    async fn turn(&self, text: &str, reply: &str, input: u64) -> Run {
        self.server.enqueue(answer(reply, input));
        let run = self.run_prompt(text).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        self.clock.advance(1);
        run
    }

    /// Runs two turns that fill the context window.
    async fn fill_window(&self) -> (Run, Run) {
        let first = self.turn("my name is Ada", "hello Ada", 100).await;
        (first, self.turn("I like engines", "noted", 760).await)
    }

    async fn path(&self) -> Vec<Arc<Message>> {
        let key = SessionRef::Key("s".into());
        self.kernel.session_path(&self.me, &key, None, None).await.expect("a path")
    }

    async fn compacted(&self, run: &Run) -> Vec<Body> {
        let bodies = self.event_bodies(run.id).await;
        bodies.into_iter().filter(|body| matches!(body, Body::ContextCompacted { .. })).collect()
    }

    /// Returns the last request to the model server.
    fn last_request(&self) -> Value {
        self.request_body(self.server.counts().received - 1)
    }
}

#[tokio::test]
async fn messages_that_do_not_fit_are_summarized_and_stay_in_the_tree() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: WITH_SUMMARIZER, ..Setup::protocol(protocol) }.start().await;
        world.fill_window().await;
        world.server.enqueue(answer("Ada likes engines.", 50));
        let third = world.turn("what do I like?", "engines", 300).await;
        let requests = world.server.requests();
        assert_eq!(requests.len(), 4, "{protocol:?}");
        let summary_request = requests[2].body.to_string();
        assert!(
            summary_request.contains("my name is Ada") && summary_request.contains("noted"),
            "{protocol:?}: {summary_request}"
        );
        assert!(
            !summary_request.contains("what do I like?"),
            "{protocol:?}: kept messages are not summarized: {summary_request}"
        );
        let request = requests[3].body.to_string();
        assert!(
            request.contains("Ada likes engines.") && request.contains("what do I like?"),
            "{protocol:?}: {request}"
        );
        assert!(!request.contains("my name is Ada") && !request.contains("noted"), "{protocol:?}: {request}");

        let path = world.path().await;
        assert_eq!(path.len(), 6, "{protocol:?}");
        let events = world.compacted(&third).await;
        let [Body::ContextCompacted { from_message_id, to_message_id, messages, total, by, summary, .. }] =
            &events[..]
        else {
            panic!("{protocol:?}: {events:?}")
        };
        assert_eq!((*from_message_id, *to_message_id), (path[0].id, path[3].id), "{protocol:?}");
        assert_eq!((*messages, *total, *by), (4, 4, DigestAuthor::Summarizer), "{protocol:?}");
        assert_eq!(summary.as_deref(), Some("Ada likes engines."), "{protocol:?}");
        let Body::ContextCompacted { tokens_before, tokens_after, .. } = &events[0] else { unreachable!() };
        assert!(*tokens_before > 750 && *tokens_after < 375, "{protocol:?}: {tokens_before} {tokens_after}");

        // The summarizer's call is recorded and its usage counted, and the step says how many messages its prompt had.
        let steps = world.steps(third.id).await;
        let profiles: Vec<_> =
            steps.iter().map(|step| (step.profile.as_deref(), step.prompt.messages)).collect();
        assert_eq!(profiles, [(Some("summarizer"), 4), (Some("main_reasoner"), 1)], "{protocol:?}");
        assert_eq!(steps[0].output, None);
        assert_eq!(third.usage.input_tokens, 350, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_summary_is_used_by_later_turns_and_after_a_restart() {
    let setup = || Setup { profile: WITH_SUMMARIZER, ..Setup::default() };
    let world = setup().start().await;
    world.fill_window().await;
    world.server.enqueue(answer("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    let fourth = world.turn("fourth", "4", 320).await;
    assert_eq!(world.compacted(&fourth).await, []);
    let request = world.last_request().to_string();
    assert!(request.contains("Ada likes engines.") && request.contains("third"), "{request}");
    assert!(!request.contains("my name is Ada"), "{request}");
    assert_eq!(
        world.steps(fourth.id).await[0].prompt.messages,
        3,
        "only the messages after the digest are read"
    );

    let World { kernel, server, store, .. } = world;
    kernel.shutdown().await;
    drop(kernel);
    let world = Setup { store, seed: 2, ..setup() }.start_on(server).await;
    world.clock.advance(1_000);
    let fifth = world.turn("fifth", "5", 340).await;
    assert_eq!(world.compacted(&fifth).await, []);
    let request = world.last_request().to_string();
    assert!(request.contains("Ada likes engines.") && !request.contains("my name is Ada"), "{request}");
    assert_eq!(world.server.counts().received, 6);

    // The next summary covers the last one and the messages since.
    world.turn("sixth", "6", 740).await;
    world.server.enqueue(answer("Ada still likes engines.", 50));
    let seventh = world.turn("seventh", "7", 200).await;
    let requests = world.server.requests();
    let summary_request = requests[requests.len() - 2].body.to_string();
    assert!(
        summary_request.contains("Ada likes engines.") && summary_request.contains("fifth"),
        "{summary_request}"
    );
    assert!(!summary_request.contains("my name is Ada"), "{summary_request}");
    let events = world.compacted(&seventh).await;
    let [Body::ContextCompacted { messages, total, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*messages, *total), (8, 12));
    let request = world.last_request().to_string();
    assert!(
        request.contains("Ada still likes engines.") && !request.contains("Ada likes engines."),
        "{request}"
    );
}

#[tokio::test]
async fn a_branch_from_before_the_digest_does_not_use_its_summary() {
    let world = Setup { profile: WITH_SUMMARIZER, ..Setup::default() }.start().await;
    world.fill_window().await;
    world.server.enqueue(answer("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    let path = world.path().await;
    let branch = |place, text: &str| RunRequest { place, ..RunRequest::text("s", text) };
    let edit = |message_id: MessageId| Place::Edit { message_id };

    // After the first answer: the digest covers messages that are not on this branch.
    world.server.enqueue(answer("fine", 200));
    let run = world.send(branch(edit(path[1].id), "and now?")).await;
    world.wait_ended(run.id).await;
    let request = world.last_request().to_string();
    assert!(request.contains("my name is Ada") && !request.contains("likes engines"), "{request}");

    // After the last message that the digest covers: it applies.
    world.server.enqueue(answer("fine", 200));
    let run = world.send(branch(edit(path[3].id), "so?")).await;
    world.wait_ended(run.id).await;
    let request = world.last_request().to_string();
    assert!(!request.contains("my name is Ada") && request.contains("Ada likes engines."), "{request}");

    // Regenerating an answer that the digest covers: the original messages are sent.
    world.server.enqueue(answer("again", 200));
    let again = Place::Regenerate { message_id: path[2].id };
    let run = world.send(RunRequest { prompt: vec![], ..branch(again, "") }).await;
    world.wait_ended(run.id).await;
    let request = world.last_request().to_string();
    assert!(request.contains("my name is Ada") && request.contains("I like engines"), "{request}");
    assert_eq!(world.server.counts().received, 7, "no further summary was made");
}

#[tokio::test]
async fn a_model_with_a_larger_window_gets_the_original_messages() {
    let world = Setup { profile: WITH_SUMMARIZER, ..Setup::default() }.start().await;
    world.fill_window().await;
    world.server.enqueue(answer("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    world.server.enqueue(answer("ok", 900));
    let options = RunOptions { model_profile: Some("large".into()), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "fourth") }).await;
    world.wait_ended(run.id).await;
    let request = world.last_request().to_string();
    assert!(request.contains("my name is Ada") && !request.contains("Ada likes engines."), "{request}");
}

/// Returns the ids of the calls and of the results in a request of the Anthropic protocol.
fn call_and_result_ids(body: &Value) -> (Vec<String>, Vec<String>) {
    let blocks = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|message| message["content"].as_array().cloned().unwrap_or_default());
    let mut ids = (vec![], vec![]);
    for block in blocks {
        match block["type"].as_str() {
            Some("tool_use") => ids.0.push(block["id"].as_str().unwrap().to_owned()),
            Some("tool_result") => ids.1.push(block["tool_use_id"].as_str().unwrap().to_owned()),
            _ => {}
        }
    }
    ids
}

#[tokio::test]
async fn compaction_during_a_run_keeps_the_prompt_and_calls_with_their_results() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: WITH_SUMMARIZER, ..Setup::protocol(protocol) }.start().await;
        let call = |input| {
            let tokens = Tokens { input, output: 10, ..Tokens::default() };
            let reply = Reply::tool("add", json!({"a": 1, "b": 1})).and_tool("add", json!({"a": 2, "b": 2}));
            reply.with_tokens(tokens)
        };
        for input in [200, 400, 600, 800] {
            world.server.enqueue(call(input));
        }
        world.server.enqueue(answer("It added some.", 50)).enqueue(answer("done", 300));
        let run = world.run_prompt("add until it is enough").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        let events = world.compacted(&run).await;
        assert_eq!(events.len(), 1, "{protocol:?}");
        let request = world.last_request();
        let text = request.to_string();
        assert!(
            text.contains("add until it is enough") && text.contains("It added some."),
            "{protocol:?}: {text}"
        );
        if protocol == Protocol::Anthropic {
            let (calls, results) = call_and_result_ids(&request);
            assert_eq!(calls, results);
            assert!(!calls.is_empty() && calls.len() < 8, "{calls:?}");
        }
        assert_eq!(world.tool_results(run.id).await.len(), 8, "{protocol:?}");
        // The next run has its own prompt.
        let next = world.turn("and?", "yes", 320).await;
        assert_eq!(world.compacted(&next).await, [], "{protocol:?}");
        let text = world.last_request().to_string();
        assert!(
            !text.contains("add until it is enough") && text.contains("It added some."),
            "{protocol:?}: {text}"
        );
    }
}

#[tokio::test]
async fn without_a_summarizer_the_oldest_turns_are_left_out_and_counted() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: WITHOUT_SUMMARIZER, ..Setup::protocol(protocol) }.start().await;
        world.fill_window().await;
        let third = world.turn("third", "3", 300).await;
        let request = world.last_request().to_string();
        assert!(
            request.contains("[4 earlier messages of this conversation are left out"),
            "{protocol:?}: {request}"
        );
        assert!(!request.contains("my name is Ada") && request.contains("third"), "{protocol:?}: {request}");
        let events = world.compacted(&third).await;
        let [Body::ContextCompacted { by, summary, total, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((*by, summary, *total), (DigestAuthor::Fallback, &None, 4), "{protocol:?}");
        world.turn("fourth", "4", 745).await;
        world.turn("fifth", "5", 200).await;
        let request = world.last_request().to_string();
        assert!(
            request.contains("[8 earlier messages of this conversation are left out"),
            "{protocol:?}: {request}"
        );
    }
}

#[tokio::test]
async fn a_failing_summarizer_loses_the_oldest_turns_but_not_the_run() {
    let world = Setup { profile: WITH_SUMMARIZER, ..Setup::default() }.start().await;
    world.fill_window().await;
    world.server.enqueue(Reply::fail(Fault::Invalid));
    let third = world.turn("third", "3", 300).await;
    let events = world.compacted(&third).await;
    let [Body::ContextCompacted { by, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*by, DigestAuthor::Fallback);
    assert!(world.last_request().to_string().contains("[4 earlier messages"));
    let steps = world.steps(third.id).await;
    assert_eq!(steps[0].error.as_ref().unwrap().code.as_str(), "model_invalid_request");
    assert_eq!(steps[0].stop_reason, StopReason::Error);

    // An overloaded summarizer is retried.
    world.turn("fourth", "4", 745).await;
    world
        .server
        .enqueue(Reply::fail(Fault::Overloaded))
        .enqueue(answer("They went on.", 50))
        .enqueue(answer("5", 200));
    let run = world.send_prompt("fifth").await;
    world.wait_event(run.id, "progress.updated", 1).await;
    world.clock.advance(1_000);
    world.wait_ended(run.id).await;
    let request = world.last_request().to_string();
    assert!(request.contains("[4 earlier messages") && request.contains("They went on."), "{request}");
}

#[tokio::test]
async fn a_request_that_the_provider_finds_too_long_is_compacted_once() {
    for protocol in Protocol::ALL {
        // The context window of this model is unknown.
        let profile = "[models.summarizer]\nprovider = \"acme\"\nmodel = \"m-sum\"";
        let world = Setup { profile, ..Setup::protocol(protocol) }.start().await;
        world.turn("my name is Ada", "hello Ada", 100).await;
        world.turn("I like engines", "noted", 200).await;
        world.server.enqueue(Reply::fail(Fault::ContextTooLong)).enqueue(answer("Ada likes engines.", 50));
        let third = world.turn("third", "3", 100).await;
        assert_eq!(third.attempts, 1, "{protocol:?}");
        let request = world.last_request().to_string();
        assert!(
            request.contains("Ada likes engines.") && !request.contains("my name is Ada"),
            "{protocol:?}: {request}"
        );
        let steps = world.steps(third.id).await;
        let stops: Vec<_> = steps.iter().map(|step| step.stop_reason).collect();
        assert_eq!(
            stops.iter().filter(|stop| **stop == StopReason::Error).count(),
            1,
            "{protocol:?}: {stops:?}"
        );
        // Later runs use the digest.
        world.turn("fourth", "4", 120).await;
        assert!(world.last_request().to_string().contains("Ada likes engines."), "{protocol:?}");

        // If the request is still too long, the run fails.
        world.server.enqueue(Reply::fail(Fault::ContextTooLong)).enqueue(answer("A summary.", 50));
        world.server.enqueue(Reply::fail(Fault::ContextTooLong));
        let run = world.run_prompt("fifth").await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "model_context_too_long", "{protocol:?}");
    }
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_alone_fails_with_the_providers_error() {
    let world = Setup { profile: WITH_SUMMARIZER, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::fail(Fault::ContextTooLong));
    let run = world.run_prompt(&"long ".repeat(2000)).await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "model_context_too_long");
    assert_eq!(world.server.counts().received, 1);
    assert_eq!(world.steps(run.id).await.len(), 1);
    assert_eq!(world.compacted(&run).await, []);
}

#[tokio::test]
async fn a_fork_uses_the_summary_of_its_source() {
    let world = Setup { profile: WITH_SUMMARIZER, ..Setup::default() }.start().await;
    world.fill_window().await;
    world.server.enqueue(answer("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    let path = world.path().await;
    let fork = ForkRequest { message: path[5].id, key: Some("f".into()), title: None };
    let source = SessionRef::Key("s".into());
    let (fork, _) = world.kernel.session_fork(&world.me, &source, fork, None).await.unwrap();
    world.server.enqueue(answer("4", 300));
    let run = world.send(RunRequest::text("f", "fourth")).await;
    assert_eq!(run.session, fork.id);
    world.wait_ended(run.id).await;
    let request = world.last_request().to_string();
    assert!(request.contains("Ada likes engines.") && !request.contains("my name is Ada"), "{request}");
    assert_eq!(world.server.counts().received, 5);
}

#[tokio::test]
async fn a_summary_counts_against_the_limits() {
    let world = Setup { profile: WITH_SUMMARIZER, ..Setup::default() }.start().await;
    world.fill_window().await;
    world.server.enqueue(answer("Ada likes engines.", 5_000));
    let limits = mainspring_core::RunLimits { max_tokens: Some(4_000), ..Default::default() };
    let options = RunOptions { limits, ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "third") }).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "limit_reached");
    assert_eq!(run.usage.input_tokens, 5_000);
    assert_eq!(world.server.counts().received, 3, "the model itself was not called");
}

#[tokio::test]
async fn a_steering_prompt_is_kept_by_a_compaction() {
    let world = Setup { profile: WITH_SUMMARIZER, ..Setup::default() }.start().await;
    let gate = Gate::default();
    let call = |input| {
        let tokens = Tokens { input, output: 10, ..Tokens::default() };
        Reply::tool("add", json!({"a": 1, "b": 1})).with_tokens(tokens)
    };
    let mut first = call(100);
    first.actions.insert(0, Action::Hold(gate.clone()));
    world.server.enqueue(first);
    for input in [200, 400, 600, 800] {
        world.server.enqueue(call(input));
    }
    world.server.enqueue(answer("It added some.", 50)).enqueue(answer("done", 300));
    let run = world.send_prompt("add until it is enough").await;
    within_timeout(gate.reached()).await;
    let steer = RunRequest { policy: Policy::Steer, ..RunRequest::text("s", "and be polite") };
    let steered = world.send(steer).await;
    gate.open();
    assert_eq!(world.wait_ended(run.id).await.state.status(), RunStatus::Succeeded);
    world.wait_ended(steered.id).await;
    let request = world.last_request();
    let text = request.to_string();
    assert!(text.contains("It added some.") && text.contains("add until it is enough"), "{text}");
    assert!(text.contains("and be polite"), "{text}");
    let (calls, results) = call_and_result_ids(&request);
    assert_eq!(calls, results);
    assert!(calls.len() < 5, "{calls:?}");
}
