//! The agent of a session: its tools, setting everything at once, and the session's present activity.

use std::sync::Arc;

use mainspring_api::{AgentChange, LiveStatus};
use mainspring_core::{
    AgentDefinition, Answer, ClientResult, ClientTool, GivenMessage, Mode, RunOptions, RunStatus, Session,
    Usage, WaitRequest,
};
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::kernel::{ForkRequest, RunRequest, SessionPatch, SessionQuery, TreeQuery};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use serde_json::{Value, json};

use crate::puppet::{PuppetBehavior, puppet, puppet_request, question};
use crate::world::{Disk, World, by_key, every_store, kinds, run_ready_tasks, with_timeout};

fn tool(name: &str) -> ClientTool {
    ClientTool { name: name.into(), input_schema: json!({"type": "object"}), ..ClientTool::default() }
}

fn messages(json: Value) -> Vec<GivenMessage> {
    serde_json::from_value(json).unwrap()
}

fn text(role: &str, text: &str) -> Value {
    json!({"role": role, "content": [{"type": "text", "text": text}]})
}

impl World {
    async fn set_agent(&self, key: &str, change: AgentChange) -> Result<Session, Error> {
        with_timeout(self.kernel.session_agent_set(&self.me, &by_key(key), change, None)).await
    }

    async fn put_tool(&self, key: &str, name: &str) -> Result<Session, Error> {
        with_timeout(self.kernel.session_tool_put(&self.me, &by_key(key), tool(name))).await
    }
}

#[tokio::test]
async fn given_messages_become_a_new_path_and_nothing_is_overwritten() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say first").await;
        let before = world.tree("a").await.nodes;
        let history = json!([
            text("user", "my name is Ada"),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "note", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "toolUseId": "t1", "name": "note", "content": [], "isError": false},
            ]},
            text("assistant", "hello Ada"),
        ]);
        let change = AgentChange { messages: Some(Some(messages(history))), ..AgentChange::default() };
        let session = world.set_agent("a", change).await.unwrap();
        let path = world.path("a").await;
        assert_eq!(path.len(), 4);
        assert_eq!(session.tip_message, Some(path[3].id));
        assert!(path.iter().all(|message| message.run.is_none()));
        let after = world.tree("a").await.nodes;
        assert_eq!(after.len(), before.len() + 4, "the messages that there were are still there");
        assert_eq!(after.iter().filter(|node| node.parent_id.is_none()).count(), 2, "there are two roots");

        // The next run continues from the given messages, and the earlier path can be taken up again.
        world.play("a", "say second").await;
        assert_eq!(world.path("a").await.len(), 6);
        let first = before[0].message.id;
        world.kernel.session_navigate(&world.me, &by_key("a"), Some(first), None).await.unwrap();
        assert_eq!(world.path("a").await.len(), 2);

        // A given path may end with a message of a person, like a path with an appended message.
        let change = AgentChange {
            messages: Some(Some(messages(json!([text("user", "who am I?")])))),
            ..AgentChange::default()
        };
        let session = world.set_agent("a", change).await.unwrap();
        assert_eq!(session.tip_message, Some(world.path("a").await[0].id));
        world.play("a", "say third").await;
        assert_eq!(world.path("a").await.len(), 3);

        // No messages: the path is empty, and the next prompt is a root.
        let change = AgentChange { messages: Some(Some(vec![])), ..AgentChange::default() };
        assert_eq!(world.set_agent("a", change).await.unwrap().tip_message, None);
        world.kernel.shutdown().await;
        let world = World::reboot(&world.disk).await;
        assert_eq!(world.path("a").await.len(), 0);
        world.play("a", "say third").await;
        assert_eq!(world.path("a").await.len(), 2);
        let tree = world.kernel.session_tree(&world.me, &by_key("a"), TreeQuery::default()).await.unwrap();
        assert_eq!(tree.nodes.iter().filter(|node| node.parent_id.is_none()).count(), 4);
    }
}

#[tokio::test]
async fn everything_is_set_at_once_and_replaces_what_was_there() {
    for disk in every_store() {
        let (adapter, mut control) =
            puppet(&disk.store, PuppetBehavior { client_tools: true, ..Default::default() });
        let options = Options { adapter: "puppet".into(), ..Options::default() };
        let world = World::with(disk, options, vec![adapter]).await;
        world.kernel.agent_create(&world.me, AgentDefinition::new("coder", 2)).await.unwrap();
        let first = world.send(puppet_request("a", "one")).await.unwrap().run;
        control.next().await.end(End::succeeded());
        world.ended(first.id).await;
        let options = |json: Value| Some(json.as_object().cloned());
        let change = AgentChange {
            agent_definition: Some("coder@2".into()),
            model: Some(Some("m1".into())),
            system_prompt: Some(Some("Be brief.".into())),
            model_options: options(json!({"temperature": 1, "seed": 7})),
            tools: Some(Some(vec![tool("rain"), tool("wind")])),
            messages: Some(Some(messages(json!([text("assistant", "Hello.")])))),
            ..AgentChange::default()
        };
        let version = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap().version;
        world.set_agent("a", change).await.unwrap();
        let change = AgentChange {
            model_options: options(json!({"seed": 8})),
            tools: Some(Some(vec![tool("wind")])),
            ..AgentChange::default()
        };
        let stale =
            world.kernel.session_agent_set(&world.me, &by_key("a"), change.clone(), Some(version)).await;
        assert_eq!(stale.unwrap_err().code(), "version_conflict");
        world.set_agent("a", change.clone()).await.unwrap();
        let run = world.send(puppet_request("a", "two")).await.unwrap().run;
        let execution = control.next().await;
        assert_eq!(execution.handle.path(9).await.unwrap()[0].text(), "Hello.");
        execution.end(End::succeeded());
        let run = world.ended(run.id).await;
        let expected = RunOptions {
            agent_definition: Some("coder@2".into()),
            model: Some("m1".into()),
            system_prompt: Some("Be brief.".into()),
            model_options: json!({"seed": 8}).as_object().cloned(),
            tools: vec![tool("wind")],
            ..RunOptions::default()
        };
        assert_eq!(run.options, expected, "options are replaced, not merged");
        let before = world.events("a").await;
        world.set_agent("a", change).await.unwrap();
        let mut reordered = tool("wind");
        reordered.input_schema = serde_json::from_str(r#"{"type":"object"}"#).unwrap();
        let same = AgentChange { tools: Some(Some(vec![reordered])), ..AgentChange::default() };
        world.set_agent("a", same).await.unwrap();
        assert_eq!(world.events("a").await, before, "the same values again write nothing");
    }
}

#[tokio::test]
async fn one_bad_key_changes_nothing_and_emits_nothing() {
    for disk in every_store() {
        let (adapter, mut control) =
            puppet(&disk.store, PuppetBehavior { client_tools: true, ..Default::default() });
        let options = Options { adapter: "puppet".into(), ..Options::default() };
        let world = World::with(disk, options, vec![adapter]).await;
        let run = world.send(puppet_request("a", "one")).await.unwrap().run;
        control.next().await.end(End::succeeded());
        world.ended(run.id).await;
        let before = (world.events("a").await, world.tree("a").await);
        let good = || AgentChange { system_prompt: Some(Some("Be brief.".into())), ..AgentChange::default() };
        let open_call = json!([
            text("user", "hi"),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {}}]},
        ]);
        for (change, key) in [
            (AgentChange { model: Some(Some(String::new())), ..good() }, "`model`"),
            (AgentChange { model_profile: Some(Some(String::new())), ..good() }, "`modelProfile`"),
            (AgentChange { agent_definition: Some("nobody".into()), ..good() }, "`agentDefinition`"),
            (AgentChange { tools: Some(Some(vec![tool("a b")])), ..good() }, "`tools`"),
            (AgentChange { tools: Some(Some(vec![tool("a"), tool("a")])), ..good() }, "`tools`"),
            (
                AgentChange {
                    messages: Some(Some(messages(json!([{"role": "user", "content": []}])))),
                    ..good()
                },
                "`messages`",
            ),
            (AgentChange { messages: Some(Some(messages(open_call))), ..good() }, "`messages`"),
        ] {
            let error = world.set_agent("a", change).await.unwrap_err();
            assert_eq!(error.code(), "invalid_request", "{key}: {error}");
            assert!(error.to_string().contains(key), "{key}: {error}");
        }
        assert_eq!((world.events("a").await, world.tree("a").await), before);
        let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
        assert_eq!(session.system_prompt, None);
    }
}

#[tokio::test]
async fn the_agent_is_set_only_while_the_session_is_idle() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "ask Well?").await;
    world.wait_for_question(run.id).await;
    let change = || AgentChange { messages: Some(Some(vec![])), ..AgentChange::default() };
    let refused = world.set_agent("a", change()).await.unwrap_err();
    assert_eq!(refused.code(), "session_busy");
    assert!(refused.to_string().contains("waiting_input"), "{refused}");
    world.kernel.run_cancel(&world.me, run.id).await.unwrap();
    world.ended(run.id).await;
    world.set_agent("a", change()).await.unwrap();
    let closed =
        SessionPatch { status: Some(mainspring_core::SessionStatus::Closed), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by_key("a"), closed).await.unwrap();
    assert_eq!(world.set_agent("a", change()).await.unwrap_err().code(), "session_closed");
}

#[tokio::test]
async fn the_tools_of_a_session_are_those_of_its_runs_and_of_its_forks() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say hi").await;
        world.put_tool("a", "rain").await.unwrap();
        let session = world.put_tool("a", "wind").await.unwrap();
        assert_eq!(session.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["rain", "wind"]);
        let version = session.version;
        assert_eq!(
            world.put_tool("a", "wind").await.unwrap().version,
            version,
            "the same tool writes nothing"
        );
        assert_eq!(world.put_tool("a", "a b").await.unwrap_err().code(), "invalid_request");

        // A restart keeps them, and the run waits for the caller's result.
        world.kernel.shutdown().await;
        let world = World::reboot(&world.disk).await;
        let run = world.prompt("a", r#"tool rain {"at":1}; say done"#).await;
        let wait = world.wait_for_question(run.id).await;
        let waiting = world.get(run.id).await;
        let asked = waiting.state.wait().unwrap();
        assert_eq!((asked.request, asked.calls[0].name.as_str()), (WaitRequest::Tools, "rain"));
        let result = ClientResult {
            tool_use_id: asked.calls[0].tool_use_id.clone(),
            content: "none".into(),
            ..ClientResult::default()
        };
        // Removed while the run waits: the run keeps the tools that it was accepted with.
        let removed = world.kernel.session_tool_delete(&world.me, &by_key("a"), "rain").await.unwrap();
        assert_eq!(removed.tools, [tool("wind")]);
        let again = world.kernel.session_tool_delete(&world.me, &by_key("a"), "rain").await.unwrap();
        assert_eq!(again.version, removed.version, "removing it again writes nothing");
        let answer = Answer::Tools { results: vec![result] };
        world.kernel.run_answer(&world.me, run.id, wait, answer).await.unwrap();
        let run = world.ended(run.id).await;
        assert_eq!((run.state.status(), run.options.tools.len()), (RunStatus::Succeeded, 2));

        let fork = ForkRequest { message: run.final_message.unwrap(), key: Some("b".into()), title: None };
        let (fork, _) = world.kernel.session_fork(&world.me, &by_key("a"), fork, None).await.unwrap();
        assert_eq!(fork.tools, [tool("wind")]);
        let run = world.play("b", "say hi").await;
        assert_eq!(run.options.tools, [tool("wind")]);
        let ask = RunRequest { mode: Mode::Ask, ..RunRequest::text("b", "say hi") };
        let run = world.send(ask).await.unwrap().run;
        assert_eq!(world.ended(run.id).await.options.tools, [], "a run that may only answer calls no tools");
    }
}

#[tokio::test]
async fn tools_need_an_adapter_that_calls_them_and_their_number_is_limited() {
    let disk = Disk::memory();
    let (adapter, mut control) =
        puppet(&disk.store, PuppetBehavior { client_tools: false, ..PuppetBehavior::default() });
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("p", "hi")).await.unwrap().run;
    control.next().await.end(End::succeeded());
    world.ended(run.id).await;
    assert_eq!(world.put_tool("p", "rain").await.unwrap_err().code(), "adapter_incompatible");
    world.play("a", "say hi").await;
    let limit = world.kernel.limits().client_tools;
    for no in 0..limit {
        world.put_tool("a", &format!("t{no}")).await.unwrap();
    }
    let refused = world.put_tool("a", "one-more").await.unwrap_err();
    assert!(refused.to_string().contains(&format!("at most {limit}")), "{refused}");
    // A run on the other adapter reports that the adapter does not use them.
    let run = world.send(puppet_request("a", "hi")).await.unwrap().run;
    control.next().await.end(End::succeeded());
    assert_eq!(world.ended(run.id).await.options.tools, []);
    let events = world.kernel.run_events(&world.me, run.id, Default::default(), None).await.unwrap();
    assert!(kinds(&events).contains(&"progress.updated"), "{events:?}");
}

#[tokio::test]
async fn a_run_keeps_the_agent_definition_that_it_was_accepted_with() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let options = Options { adapter: "puppet".into(), ..Options::default() };
        let world = World::with(disk, options, vec![adapter]).await;
        for id in ["coder", "critic"] {
            world.kernel.agent_create(&world.me, AgentDefinition::new(id, 1)).await.unwrap();
        }
        let agent =
            |name: &str| SessionPatch { agent_definition: Some(name.into()), ..SessionPatch::default() };
        let active = world.send(puppet_request("a", "one")).await.unwrap().run;
        let queued = world.send(puppet_request("a", "two")).await.unwrap().run;
        // A change is possible while the session is busy, and holds for runs that are accepted afterwards.
        world.kernel.session_patch(&world.me, &by_key("a"), agent("coder")).await.unwrap();
        let later = world.send(puppet_request("a", "three")).await.unwrap().run;
        let mut own = puppet_request("a", "four");
        own.options.agent_definition = Some("critic@1".into());
        let own = world.send(own).await.unwrap().run;
        let mut followed = vec![];
        for run in [active, queued, later, own] {
            let execution = control.next().await;
            let assignment = execution.handle.assignment();
            followed.push(assignment.run.agent_definition(&assignment.session).to_owned());
            execution.end(End::succeeded());
            world.ended(run.id).await;
        }
        let generalist = "mainspring.generalist@1";
        assert_eq!(followed, [generalist, generalist, "coder", "critic@1"]);
        let unknown = world.kernel.session_patch(&world.me, &by_key("a"), agent("poet")).await.unwrap_err();
        assert!(unknown.to_string().contains("\"poet\""), "{unknown}");
        let mut unknown = puppet_request("a", "five");
        unknown.options.agent_definition = Some("poet".into());
        assert_eq!(world.send(unknown).await.unwrap_err().code(), "invalid_request");
        // An adapter without definitions refuses one.
        let mut scripted = RunRequest { adapter: Some("script".into()), ..RunRequest::text("a", "say hi") };
        scripted.options.agent_definition = Some("coder".into());
        assert_eq!(world.send(scripted).await.unwrap_err().code(), "option_not_used");
    }
}

#[tokio::test]
async fn a_session_shows_its_activity_its_step_and_its_usage() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let view = async |key: &str| world.kernel.session_view(&world.me, &by_key(key)).await.unwrap();
        let run = world.send(puppet_request("a", "one")).await.unwrap().run;
        let execution = control.next().await;
        let busy = view("a").await;
        assert_eq!((busy.live_status, busy.current_step), (LiveStatus::Busy, Some(0)));
        let usage = Usage { input_tokens: 5, ..Usage::default() };
        execution.handle.record(vec![Record::Usage(usage)]).await.unwrap();
        execution.end(Executed::Waiting(question(WaitRequest::Input, None)));
        let wait = world.wait_for_question(run.id).await;
        let paused = view("a").await;
        assert_eq!((paused.live_status, paused.usage.input_tokens), (LiveStatus::Paused, 5));
        let latest = world.get(run.id).await;
        let listed = world.kernel.session_live_status(&paused.session, Some(&latest)).await.unwrap();
        assert_eq!(listed, LiveStatus::Paused);
        world.kernel.run_answer(&world.me, run.id, wait, Answer::Input { input: json!(1) }).await.unwrap();
        control.next().await.end(End::succeeded());
        world.ended(run.id).await;
        let idle = view("a").await;
        assert_eq!(
            (idle.live_status, idle.current_step, idle.usage.input_tokens),
            (LiveStatus::Idle, None, 5)
        );
    }
}

#[tokio::test]
async fn sessions_in_memory_are_listed_and_each_may_have_its_own_idle_time() {
    let world = World::on(Disk::memory()).await;
    let loaded = async || {
        let query = SessionQuery { open: true, ..SessionQuery::default() };
        let listed = world.kernel.session_list(&world.me, query).await.unwrap().items;
        listed.into_iter().map(|(session, _)| session.key.unwrap()).collect::<Vec<_>>()
    };
    world.play("a", "say hi").await;
    world.clock.advance(1);
    world.play("b", "say hi").await;
    assert_eq!(loaded().await, ["b", "a"], "the latest activity first");
    let idle = |millis| SessionPatch { idle_unload_ms: Some(millis), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by_key("a"), idle(Some(60_000))).await.unwrap();
    run_ready_tasks().await;
    world.clock.advance(30_000);
    run_ready_tasks().await;
    assert_eq!(loaded().await, ["a"], "the other one has the time of the server");
    world.clock.advance(30_000);
    run_ready_tasks().await;
    assert_eq!(loaded().await, [""; 0]);
    let long = world.kernel.session_patch(&world.me, &by_key("a"), idle(Some(86_400_001))).await.unwrap_err();
    assert!(long.to_string().contains("idleUnloadMs"), "{long}");
    let session = world.kernel.session_patch(&world.me, &by_key("a"), idle(None)).await.unwrap();
    assert_eq!(session.idle_unload_ms, None);
    let of_org =
        SessionQuery { open: true, scope: mainspring_kernel::kernel::Scope::Org, ..SessionQuery::default() };
    assert_eq!(world.kernel.session_list(&world.me, of_org).await.unwrap_err().code(), "invalid_request");
}

#[tokio::test]
async fn the_memory_of_a_session_lives_as_long_as_the_session_is_loaded() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let mut seen = vec![];
    for round in 0..3 {
        if round == 2 {
            world.kernel.session_close(&world.me, &by_key("a")).await.unwrap();
        }
        let run = world.send(puppet_request("a", "one")).await.unwrap().run;
        let execution = control.next().await;
        let memory = execution.handle.assignment().memory.clone();
        seen.push(memory.get::<String>().map(|kept| String::clone(&kept)));
        let kept: Arc<String> = memory.get_or_insert_with(|| "secret".to_owned());
        assert_eq!(*kept, "secret");
        execution.end(End::succeeded());
        world.ended(run.id).await;
    }
    assert_eq!(seen, [None, Some("secret".to_owned()), None]);
    let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
    let mut export = world.kernel.session_export(&world.me, &SessionRef::Id(session.id)).await.unwrap();
    while let Some(lines) = export.next().await.unwrap() {
        assert!(!lines.contains("secret"), "{lines}");
    }
}
