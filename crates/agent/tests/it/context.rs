//! The context: what a model is shown of a path that does not fit it.

use std::sync::Arc;

use mainspring_core::{
    Body, DigestBy, Message, MessageId, Place, Policy, Run, RunOptions, RunStatus, StopReason,
};
use mainspring_kernel::kernel::{ForkRequest, RunRequest};
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};
use serde_json::{Value, json};

use crate::world::{Setup, World, soon};

/// A model that takes 1000 tokens, of which 250 are left for an answer, and one that summarises.
const SUMMARISED: &str = "context_tokens = 1000\n\
    [models.summarizer]\nprovider = \"acme\"\nmodel = \"m-sum\"\n\
    [models.large]\nprovider = \"acme\"\nmodel = \"m-1\"\ncontext_tokens = 100000";

/// The same without one that summarises.
const BARE: &str = "context_tokens = 1000";

/// An answer to a prompt of so many tokens.
fn say(text: &str, input: u64) -> Reply {
    Reply::text(text).with_tokens(Tokens { input, output: 10, ..Tokens::default() })
}

impl World {
    /// Says `text`, is answered `answer`, and time goes on.
    async fn turn(&self, text: &str, answer: &str, input: u64) -> Run {
        self.server.enqueue(say(answer, input));
        let run = self.play(text).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        self.clock.advance(1);
        run
    }

    /// Two turns that fill the model.
    async fn filled(&self) -> (Run, Run) {
        let first = self.turn("my name is Ada", "hello Ada", 100).await;
        (first, self.turn("I like engines", "noted", 760).await)
    }

    async fn path(&self) -> Vec<Arc<Message>> {
        let key = SessionRef::Key("s".into());
        self.kernel.session_path(&self.me, &key, None, None).await.expect("a path")
    }

    async fn compacted(&self, run: &Run) -> Vec<Body> {
        let bodies = self.bodies(run.id).await;
        bodies.into_iter().filter(|body| matches!(body, Body::ContextCompacted { .. })).collect()
    }

    /// The last request that the server got.
    fn last(&self) -> Value {
        self.asked(self.server.counts().received - 1)
    }
}

#[tokio::test]
async fn what_does_not_fit_is_summarised_and_the_tree_keeps_it() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: SUMMARISED, ..Setup::protocol(protocol) }.start().await;
        world.filled().await;
        world.server.enqueue(say("Ada likes engines.", 50));
        let third = world.turn("what do I like?", "engines", 300).await;
        let requests = world.server.requests();
        assert_eq!(requests.len(), 4, "{protocol:?}");
        let asked = requests[2].body.to_string();
        assert!(asked.contains("my name is Ada") && asked.contains("noted"), "{protocol:?}: {asked}");
        assert!(!asked.contains("what do I like?"), "{protocol:?}: what is kept is not summarised: {asked}");
        let shown = requests[3].body.to_string();
        assert!(
            shown.contains("Ada likes engines.") && shown.contains("what do I like?"),
            "{protocol:?}: {shown}"
        );
        assert!(!shown.contains("my name is Ada") && !shown.contains("noted"), "{protocol:?}: {shown}");

        let path = world.path().await;
        assert_eq!(path.len(), 6, "{protocol:?}");
        let events = world.compacted(&third).await;
        let [Body::ContextCompacted { from_message_id, to_message_id, messages, total, by, summary, .. }] =
            &events[..]
        else {
            panic!("{protocol:?}: {events:?}")
        };
        assert_eq!((*from_message_id, *to_message_id), (path[0].id, path[3].id), "{protocol:?}");
        assert_eq!((*messages, *total, *by), (4, 4, DigestBy::Summarizer), "{protocol:?}");
        assert_eq!(summary.as_deref(), Some("Ada likes engines."), "{protocol:?}");
        let Body::ContextCompacted { tokens_before, tokens_after, .. } = &events[0] else { unreachable!() };
        assert!(*tokens_before > 750 && *tokens_after < 375, "{protocol:?}: {tokens_before} {tokens_after}");

        // Who was asked is told, what it cost is counted, and the answer says how much it was shown.
        let steps = world.steps(third.id).await;
        let told: Vec<_> = steps.iter().map(|step| (step.profile.as_deref(), step.prompt.messages)).collect();
        assert_eq!(told, [(Some("summarizer"), 4), (Some("main_reasoner"), 1)], "{protocol:?}");
        assert_eq!(steps[0].output, None);
        assert_eq!(third.usage.input_tokens, 350, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_summary_holds_for_later_turns_and_after_a_restart() {
    let setup = || Setup { profile: SUMMARISED, ..Setup::default() };
    let world = setup().start().await;
    world.filled().await;
    world.server.enqueue(say("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    let fourth = world.turn("fourth", "4", 320).await;
    assert_eq!(world.compacted(&fourth).await, []);
    let shown = world.last().to_string();
    assert!(shown.contains("Ada likes engines.") && shown.contains("third"), "{shown}");
    assert!(!shown.contains("my name is Ada"), "{shown}");
    assert_eq!(world.steps(fourth.id).await[0].prompt.messages, 3, "what is shown is read, not the history");

    let World { kernel, server, store, .. } = world;
    kernel.shutdown().await;
    drop(kernel);
    let world = Setup { store, seed: 2, ..setup() }.start_on(server).await;
    world.clock.advance(1_000);
    let fifth = world.turn("fifth", "5", 340).await;
    assert_eq!(world.compacted(&fifth).await, []);
    let shown = world.last().to_string();
    assert!(shown.contains("Ada likes engines.") && !shown.contains("my name is Ada"), "{shown}");
    assert_eq!(world.server.counts().received, 6);

    // The next summary is made of the last one and what came since.
    world.turn("sixth", "6", 740).await;
    world.server.enqueue(say("Ada still likes engines.", 50));
    let seventh = world.turn("seventh", "7", 200).await;
    let requests = world.server.requests();
    let asked = requests[requests.len() - 2].body.to_string();
    assert!(asked.contains("Ada likes engines.") && asked.contains("fifth"), "{asked}");
    assert!(!asked.contains("my name is Ada"), "{asked}");
    let events = world.compacted(&seventh).await;
    let [Body::ContextCompacted { messages, total, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*messages, *total), (8, 12));
    let shown = world.last().to_string();
    assert!(shown.contains("Ada still likes engines.") && !shown.contains("Ada likes engines."), "{shown}");
}

#[tokio::test]
async fn a_branch_from_before_does_not_see_a_summary_of_what_came_later() {
    let world = Setup { profile: SUMMARISED, ..Setup::default() }.start().await;
    world.filled().await;
    world.server.enqueue(say("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    let path = world.path().await;
    let branch = |place, text: &str| RunRequest { place, ..RunRequest::text("s", text) };
    let edit = |message_id: MessageId| Place::Edit { message_id };

    // After the first answer: the summary is of what is not there.
    world.server.enqueue(say("fine", 200));
    let run = world.send(branch(edit(path[1].id), "and now?")).await;
    world.ended(run.id).await;
    let shown = world.last().to_string();
    assert!(shown.contains("my name is Ada") && !shown.contains("likes engines"), "{shown}");

    // After what it stands for: it is the same past.
    world.server.enqueue(say("fine", 200));
    let run = world.send(branch(edit(path[3].id), "so?")).await;
    world.ended(run.id).await;
    let shown = world.last().to_string();
    assert!(!shown.contains("my name is Ada") && shown.contains("Ada likes engines."), "{shown}");

    // The last message it stands for is answered again: that one is shown as it is.
    world.server.enqueue(say("again", 200));
    let again = Place::Regenerate { message_id: path[2].id };
    let run = world.send(RunRequest { prompt: vec![], ..branch(again, "") }).await;
    world.ended(run.id).await;
    let shown = world.last().to_string();
    assert!(shown.contains("my name is Ada") && shown.contains("I like engines"), "{shown}");
    assert_eq!(world.server.counts().received, 7, "nobody summarised again");
}

#[tokio::test]
async fn a_model_that_takes_more_is_shown_what_another_could_not_take() {
    let world = Setup { profile: SUMMARISED, ..Setup::default() }.start().await;
    world.filled().await;
    world.server.enqueue(say("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    world.server.enqueue(say("ok", 900));
    let options = RunOptions { model_profile: Some("large".into()), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "fourth") }).await;
    world.ended(run.id).await;
    let shown = world.last().to_string();
    assert!(shown.contains("my name is Ada") && !shown.contains("Ada likes engines."), "{shown}");
}

/// The ids of the calls that a request of the Anthropic protocol holds, and of the results.
fn pairs(body: &Value) -> (Vec<String>, Vec<String>) {
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
async fn in_the_middle_of_a_run_calls_stay_with_their_answers_and_the_prompt_stays() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: SUMMARISED, ..Setup::protocol(protocol) }.start().await;
        let call = |input| {
            let tokens = Tokens { input, output: 10, ..Tokens::default() };
            let reply = Reply::tool("add", json!({"a": 1, "b": 1})).and_tool("add", json!({"a": 2, "b": 2}));
            reply.with_tokens(tokens)
        };
        for input in [200, 400, 600, 800] {
            world.server.enqueue(call(input));
        }
        world.server.enqueue(say("It added some.", 50)).enqueue(say("done", 300));
        let run = world.play("add until it is enough").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        let events = world.compacted(&run).await;
        assert_eq!(events.len(), 1, "{protocol:?}");
        let shown = world.last();
        let text = shown.to_string();
        assert!(
            text.contains("add until it is enough") && text.contains("It added some."),
            "{protocol:?}: {text}"
        );
        if protocol == Protocol::Anthropic {
            let (calls, results) = pairs(&shown);
            assert_eq!(calls, results);
            assert!(!calls.is_empty() && calls.len() < 8, "{calls:?}");
        }
        assert_eq!(world.results(run.id).await.len(), 8, "{protocol:?}");
        // The next run begins with a prompt of its own.
        let next = world.turn("and?", "yes", 320).await;
        assert_eq!(world.compacted(&next).await, [], "{protocol:?}");
        let text = world.last().to_string();
        assert!(
            !text.contains("add until it is enough") && text.contains("It added some."),
            "{protocol:?}: {text}"
        );
    }
}

#[tokio::test]
async fn without_a_summary_the_oldest_turns_are_left_out_and_counted() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: BARE, ..Setup::protocol(protocol) }.start().await;
        world.filled().await;
        let third = world.turn("third", "3", 300).await;
        let shown = world.last().to_string();
        assert!(
            shown.contains("[4 earlier messages of this conversation are left out"),
            "{protocol:?}: {shown}"
        );
        assert!(!shown.contains("my name is Ada") && shown.contains("third"), "{protocol:?}: {shown}");
        let events = world.compacted(&third).await;
        let [Body::ContextCompacted { by, summary, total, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((*by, summary, *total), (DigestBy::Fallback, &None, 4), "{protocol:?}");
        world.turn("fourth", "4", 745).await;
        world.turn("fifth", "5", 200).await;
        let shown = world.last().to_string();
        assert!(
            shown.contains("[8 earlier messages of this conversation are left out"),
            "{protocol:?}: {shown}"
        );
    }
}

#[tokio::test]
async fn a_summarizer_that_fails_costs_the_oldest_turns_and_not_the_run() {
    let world = Setup { profile: SUMMARISED, ..Setup::default() }.start().await;
    world.filled().await;
    world.server.enqueue(Reply::fail(Fault::Invalid));
    let third = world.turn("third", "3", 300).await;
    let events = world.compacted(&third).await;
    let [Body::ContextCompacted { by, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*by, DigestBy::Fallback);
    assert!(world.last().to_string().contains("[4 earlier messages"));
    let steps = world.steps(third.id).await;
    assert_eq!(steps[0].error.as_ref().unwrap().code, "model_invalid_request");
    assert_eq!(steps[0].stop_reason, StopReason::Error);

    // One that has too much to do is asked again.
    world.turn("fourth", "4", 745).await;
    world
        .server
        .enqueue(Reply::fail(Fault::Overloaded))
        .enqueue(say("They went on.", 50))
        .enqueue(say("5", 200));
    let run = world.prompt("fifth").await;
    world.happens(run.id, "progress.updated", 1).await;
    world.clock.advance(1_000);
    world.ended(run.id).await;
    let shown = world.last().to_string();
    assert!(shown.contains("[4 earlier messages") && shown.contains("They went on."), "{shown}");
}

#[tokio::test]
async fn what_a_provider_finds_too_long_is_shortened_once() {
    for protocol in Protocol::ALL {
        // Nobody knows how much this model takes.
        let profile = "[models.summarizer]\nprovider = \"acme\"\nmodel = \"m-sum\"";
        let world = Setup { profile, ..Setup::protocol(protocol) }.start().await;
        world.turn("my name is Ada", "hello Ada", 100).await;
        world.turn("I like engines", "noted", 200).await;
        world.server.enqueue(Reply::fail(Fault::ContextTooLong)).enqueue(say("Ada likes engines.", 50));
        let third = world.turn("third", "3", 100).await;
        assert_eq!(third.attempts, 1, "{protocol:?}");
        let shown = world.last().to_string();
        assert!(
            shown.contains("Ada likes engines.") && !shown.contains("my name is Ada"),
            "{protocol:?}: {shown}"
        );
        let steps = world.steps(third.id).await;
        let told: Vec<_> = steps.iter().map(|step| step.stop_reason).collect();
        assert_eq!(
            told.iter().filter(|stop| **stop == StopReason::Error).count(),
            1,
            "{protocol:?}: {told:?}"
        );
        // It is known from now on.
        world.turn("fourth", "4", 120).await;
        assert!(world.last().to_string().contains("Ada likes engines."), "{protocol:?}");

        // Still too long: that is that.
        world.server.enqueue(Reply::fail(Fault::ContextTooLong)).enqueue(say("A summary.", 50));
        world.server.enqueue(Reply::fail(Fault::ContextTooLong));
        let run = world.play("fifth").await;
        assert_eq!(run.state.error().unwrap().code, "model_context_too_long", "{protocol:?}");
    }
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_alone_fails_by_its_providers_word() {
    let world = Setup { profile: SUMMARISED, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::fail(Fault::ContextTooLong));
    let run = world.play(&"long ".repeat(2000)).await;
    assert_eq!(run.state.error().unwrap().code, "model_context_too_long");
    assert_eq!(world.server.counts().received, 1);
    assert_eq!(world.compacted(&run).await, []);
}

#[tokio::test]
async fn a_fork_goes_on_with_its_sources_summary() {
    let world = Setup { profile: SUMMARISED, ..Setup::default() }.start().await;
    world.filled().await;
    world.server.enqueue(say("Ada likes engines.", 50));
    world.turn("third", "3", 300).await;
    let path = world.path().await;
    let fork = ForkRequest { message: path[5].id, key: Some("f".into()), title: None };
    let source = SessionRef::Key("s".into());
    let (fork, _) = world.kernel.session_fork(&world.me, &source, fork, None).await.unwrap();
    world.server.enqueue(say("4", 300));
    let run = world.send(RunRequest::text("f", "fourth")).await;
    assert_eq!(run.session, fork.id);
    world.ended(run.id).await;
    let shown = world.last().to_string();
    assert!(shown.contains("Ada likes engines.") && !shown.contains("my name is Ada"), "{shown}");
    assert_eq!(world.server.counts().received, 5);
}

#[tokio::test]
async fn a_summary_is_part_of_the_budget() {
    let world = Setup { profile: SUMMARISED, ..Setup::default() }.start().await;
    world.filled().await;
    world.server.enqueue(say("Ada likes engines.", 5_000));
    let limits = mainspring_core::RunLimits { max_tokens: Some(4_000), ..Default::default() };
    let options = RunOptions { limits, ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "third") }).await;
    let run = world.ended(run.id).await;
    assert_eq!(run.state.error().unwrap().code, "limit_reached");
    assert_eq!(run.usage.input_tokens, 5_000);
    assert_eq!(world.server.counts().received, 3, "the model itself was not asked");
}

#[tokio::test]
async fn what_was_said_last_stays_even_if_it_was_said_while_the_run_worked() {
    let world = Setup { profile: SUMMARISED, ..Setup::default() }.start().await;
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
    world.server.enqueue(say("It added some.", 50)).enqueue(say("done", 300));
    let run = world.prompt("add until it is enough").await;
    soon(gate.reached()).await;
    let steer = RunRequest { policy: Policy::Steer, ..RunRequest::text("s", "and be polite") };
    let steered = world.send(steer).await;
    gate.open();
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
    world.ended(steered.id).await;
    let shown = world.last();
    let text = shown.to_string();
    assert!(text.contains("It added some.") && text.contains("add until it is enough"), "{text}");
    assert!(text.contains("and be polite"), "{text}");
    let (calls, results) = pairs(&shown);
    assert_eq!(calls, results);
    assert!(calls.len() < 5, "{calls:?}");
}
