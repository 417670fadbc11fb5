//! Networks of agents: routers, the stack, shared state, prompts and failures.

use std::sync::Arc;

use mainspring_agent::Toolbox;
use mainspring_core::network::{RouteEnd, RoutedBy};
use mainspring_core::{AgentDefinition, Block, Body, DeclaredGoal, Failure, Route, Run, RunStatus};
use mainspring_kernel::kernel::{NewSession, OnOrphan, RunRequest, SessionTarget, StateOf};
use mainspring_kernel::store::Store;
use mainspring_model_server::{Action, Fault, Gate, ModelServer, Protocol, Reply};
use mainspring_reference_store::MemoryStore;
use serde_json::{Value, json};

use crate::world::{Setup, World, run_until_crash, within_timeout};

mod code;
mod durable;
mod examples;
mod lifecycle;
mod parallel;

const PLANNER: &str = "id = \"planner\"\ndescription = \"Plans.\"\nsystem = \"You plan.\"";
const WRITER: &str = "id = \"writer\"\ndescription = \"Writes.\"\nsystem = \"You write.\"";
const CRITIC: &str = "id = \"critic\"\nsystem = \"You judge.\"";

fn setup() -> Setup {
    let tools = Toolbox::built_in().merge(&crate::world::tools());
    Setup { tools, ..Setup::default() }.agent(PLANNER).agent(WRITER).agent(CRITIC)
}

/// A network of these members with a router.
fn team(members: &str, router: &str) -> String {
    let members: String = members
        .split_whitespace()
        .map(|name| format!("[[network.members]]\nagent = \"{name}@1\"\n"))
        .collect();
    format!("id = \"team\"\nsystem = \"We are a team.\"\n[network]\n{members}{router}")
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

async fn start(members: &str, router: &str) -> World {
    setup().agent(leaked(team(members, router))).start().await
}

impl World {
    /// The decisions of the run's router.
    async fn routes(&self, run: &Run) -> Vec<Route> {
        let bodies = self.event_bodies(run.id).await;
        let route = |body| match body {
            Body::RunRouted { route } => Some(*route),
            _ => None,
        };
        bodies.into_iter().filter_map(route).collect()
    }

    /// The members that each decision called, in order; the last entry says why the network ended.
    async fn route_text(&self, run: &Run) -> String {
        let routes = self.routes(run).await;
        let called = routes.iter().map(|route| match (&route.next, &route.end) {
            (Some(stage), _) => stage.names().join("+"),
            (None, end) => format!("{end:?}"),
        });
        called.collect::<Vec<_>>().join(" ")
    }

    /// The agents of the run's steps.
    async fn agents(&self, run: &Run) -> Vec<String> {
        self.steps(run.id).await.into_iter().map(|step| step.agent).collect()
    }

    async fn run_state(&self, run: &Run) -> Value {
        let page = self.kernel.state_list(&self.me, &StateOf::Run(run.id), None, None).await.expect("state");
        page.items.into_iter().map(|entry| (entry.key, entry.value)).collect()
    }
}

fn system_of(body: &Value) -> String {
    body["system"].to_string()
}

#[tokio::test]
async fn a_sequence_calls_each_member_once_within_one_run() {
    let world = start("planner writer", "[network.router]\nsequence = [\"planner\", \"writer\"]").await;
    world.server.enqueue(Reply::text("first think")).enqueue(Reply::text("a poem"));
    let run = world.run_prompt_as("team", "a poem, please").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.agents(&run).await, ["planner@1", "writer@1"], "each step has its agent's name");
    assert_eq!(world.route_text(&run).await, "planner writer Some(StackEmpty)");
    let messages = world.messages(run.id).await;
    let texts: Vec<String> = messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["a poem, please", "first think", "a poem"], "the messages are nodes of the tree");
    let steps = world.steps(run.id).await;
    assert_eq!(steps[1].output, Some(messages[2].id));
    assert_eq!(run.usage.input_tokens, 20, "the usage of all members is the run's");
    let (first, second) = (world.request_body(0), world.request_body(1));
    assert!(
        system_of(&first).contains("We are a team.") && system_of(&first).contains("You plan."),
        "{first}"
    );
    assert!(
        system_of(&second).contains("You write.") && !system_of(&second).contains("You plan."),
        "{second}"
    );
    assert!(second["messages"].to_string().contains("planner said:\\nfirst think"), "{second}");
}

#[tokio::test]
async fn any_member_may_achieve_a_goal_and_no_member_is_reminded() {
    let router = "[network.router]\nsequence = [\"planner\", \"writer\"]";
    let achieve = Reply::tool("achieve_dataset_summary", json!({"summary": "fine"}));
    for (last, status) in [(achieve, RunStatus::Succeeded), (Reply::text("done"), RunStatus::Failed)] {
        let world = start("planner writer", router).await;
        world.server.enqueue(Reply::text("first think")).enqueue(last);
        let data = json!({"dataset_id": "ds_1"}).as_object().unwrap().clone();
        let goal = DeclaredGoal { goal_type: "dataset_summary".into(), data, definition: None };
        let mut request = RunRequest { prompt: vec![Block::text("look")], ..RunRequest::default() };
        request.session = as_team("s");
        request.options.goals = vec![goal];
        let run = world.send(request).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), status, "{:?}", run.state);
        assert_eq!(
            run.state.error().map(|error| error.code.as_str()),
            (status == RunStatus::Failed).then_some("goals_failed")
        );
        assert_eq!(world.server.counts().received, 2, "one call of each member");
    }
}

/// The planner achieves the goal. The next calls offer neither its tool nor the instruction; after a crash,
/// only the tool is checked.
#[test]
fn a_member_is_not_offered_the_tool_of_an_achieved_goal() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let router = "[network.router]\nsequence = [\"planner\", \"writer\", \"critic\"]";
    let network = leaked(team("planner writer critic", router));
    let names_tool = |body: &Value| body.to_string().contains("achieve_dataset_summary");
    let gate = Gate::default();
    let run = run_until_crash(async {
        let world = Setup { store: store.clone(), ..setup() }.agent(network).start().await;
        world.server.enqueue(Reply::tool("achieve_dataset_summary", json!({"summary": "fine"})));
        world.server.enqueue(Reply::text("good")).enqueue(Reply::default().and(Action::Hold(gate.clone())));
        let data = json!({"dataset_id": "ds_1"}).as_object().unwrap().clone();
        let goal = DeclaredGoal { goal_type: "dataset_summary".into(), data, definition: None };
        let mut request = RunRequest { prompt: vec![Block::text("look")], ..RunRequest::default() };
        request.session = as_team("s");
        request.options.goals = vec![goal];
        let run = world.send(request).await;
        within_timeout(gate.reached()).await;
        assert!(names_tool(&world.request_body(0)["tools"]), "the goal is pending");
        for later in [1, 2] {
            let body = world.request_body(later);
            assert!(!names_tool(&body["tools"]), "{body}");
            assert!(!system_of(&body).contains("This run has goals"), "{body}");
        }
        run.id
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("done"));
        let setup = Setup { store: store.clone(), seed: 2, on_orphan: OnOrphan::Retry, ..setup() };
        let world = setup.agent(network).start_on(server).await;
        let run = world.wait_ended(run).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        let body = world.request_body(0);
        assert!(!names_tool(&body["tools"]), "after a crash: {body}");
    });
}

#[tokio::test]
async fn a_request_of_a_member_has_system_prompt_history_input_and_prefill_in_this_order() {
    let router = "prefill = \"Dear \"\n[network.router]\nsequence = [\"writer\"]";
    let world = start("writer", router).await;
    world.server.enqueue(Reply::text("old answer")).enqueue(Reply::text("new answer"));
    world.run_prompt_as("team", "old question").await;
    world.run_prompt_as("team", "new question").await;
    let body = world.request_body(1);
    let spoken: Vec<(String, String)> = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let content = &message["content"];
            let text = content.as_str().map_or_else(|| content[0]["text"].to_string(), str::to_owned);
            (message["role"].as_str().unwrap().to_owned(), text.trim_matches('"').to_owned())
        })
        .collect();
    let spoken: Vec<(&str, &str)> = spoken.iter().map(|(role, text)| (role.as_str(), text.trim())).collect();
    assert_eq!(
        spoken,
        [
            ("user", "old question"),
            ("assistant", "old answer"),
            ("user", "new question"),
            ("assistant", "Dear")
        ]
    );
    assert!(system_of(&body).contains("You write."));
}

#[tokio::test]
async fn rules_read_the_state_and_the_last_result() {
    let router = r#"
[[network.router.rules]]
when = "state.plan is not defined"
to = ["planner"]
[[network.router.rules]]
when = "last.agent == 'critic' and 'APPROVED' in last.text"
[[network.router.rules]]
when = "last.agent == 'writer'"
to = ["critic"]
[[network.router.rules]]
when = "true"
to = ["writer"]
"#;
    let world = start("planner writer critic", router).await;
    let plan = json!({"key": "plan", "value": ["rhyme"]});
    world.server.enqueue(Reply::tool("state_set", plan));
    world.server.enqueue(Reply::text("roses")).enqueue(Reply::text("no")).enqueue(Reply::text("red roses"));
    world.server.enqueue(Reply::text("APPROVED"));
    let mut request = RunRequest { prompt: vec![Block::text("a poem")], ..RunRequest::default() };
    request.session = as_team("s");
    request.mode = mainspring_core::Mode::Act;
    let run = world.send(request).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(
        world.route_text(&run).await,
        "planner writer critic writer critic Some(Done)",
        "{:?}",
        run.state
    );
    assert_eq!(world.run_state(&run).await, json!({"plan": ["rhyme"]}), "tools write the state of the run");
    let by: Vec<RoutedBy> = world.routes(&run).await.into_iter().map(|route| route.by).collect();
    assert_eq!(by[0], RoutedBy::Rule { rule: 1 });
    assert_eq!(by[5], RoutedBy::Rule { rule: 2 });
    // The planner made one model call; the router was asked after its tool result.
    assert_eq!(world.steps(run.id).await.iter().filter(|step| step.agent == "planner@1").count(), 1);
    let second = world.request_body(1);
    assert!(second["messages"].to_string().contains("planner called state_set"), "{second}");
    let mut called: Vec<String> = vec![];
    let mut answered: Vec<String> = vec![];
    for message in world.messages(run.id).await {
        for block in &message.content {
            match block {
                Block::ToolUse { id, .. } => called.push(id.clone()),
                Block::ToolResult { tool_use_id, .. } => answered.push(tool_use_id.clone()),
                _ => {}
            }
        }
    }
    assert_eq!(called, answered, "every tool call has its result");
}

fn as_team(key: &str) -> SessionTarget {
    let new = NewSession { agent_definition: Some("team".into()), ..NewSession::default() };
    SessionTarget { key: Some(key.into()), new, ..SessionTarget::default() }
}

#[tokio::test]
async fn a_router_is_asked_after_every_call_and_sees_the_remaining_stack() {
    let router = r#"
[[network.router.rules]]
when = "calls == 0"
to = ["planner", "writer"]
[[network.router.rules]]
when = "calls == 1 and stack == ['writer']"
to = ["critic"]
"#;
    let world = start("planner writer critic", router).await;
    for text in ["one", "two", "three"] {
        world.server.enqueue(Reply::text(text));
    }
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(world.route_text(&run).await, "planner writer critic Some(StackEmpty)", "first in, first out");
    assert_eq!(world.agents(&run).await, ["planner@1", "writer@1", "critic@1"]);
}

#[tokio::test]
async fn the_routing_model_selects_agents_and_is_asked_again_after_an_unknown_name() {
    for protocol in Protocol::ALL {
        let team = leaked(team("planner writer", "[network.router.model]\nsystem = \"Be quick.\""));
        let world = Setup { protocol, ..setup() }.agent(team).start().await;
        world.server.enqueue(Reply::tool("select_agent", json!({"name": "poet"})));
        world.server.enqueue(Reply::text("hm")).enqueue(Reply::tool("fly", json!({})));
        world
            .server
            .enqueue(Reply::tool("select_agent", json!({"name": "planner", "reason": "a plan first"})));
        world.server.enqueue(Reply::text("think"));
        world.server.enqueue(Reply::tool("done", json!({"summary": "planned"})));
        let run = world.run_prompt_as("team", "go").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?} {:?}", run.state);
        assert_eq!(world.route_text(&run).await, "planner Some(Done)", "{protocol:?}");
        let routes = world.routes(&run).await;
        assert_eq!((&routes[0].by, routes[0].reason.as_deref()), (&RoutedBy::Model, Some("a plan first")));
        assert_eq!(routes[1].reason.as_deref(), Some("planned"), "{protocol:?}");
        let again = world.request_body(3).to_string();
        assert!(again.contains("no agent \\\"poet\\\"; there is planner, writer"), "{protocol:?}: {again}");
        assert!(
            again.contains("call a tool") && again.contains("no tool \\\"fly\\\""),
            "{protocol:?}: {again}"
        );
        assert!(again.contains("Be quick.") && again.contains("- planner: Plans."), "{protocol:?}: {again}");
        // A routing call is a step with the name of the network, and adds no message. Its usage counts.
        let steps = world.steps(run.id).await;
        let routing = steps.iter().filter(|step| step.agent == "team@1").count();
        assert_eq!((steps.len(), routing), (6, 5), "{protocol:?}");
        assert_eq!(world.messages(run.id).await.len(), 2, "{protocol:?}");
        assert_eq!(run.usage.input_tokens, 60, "{protocol:?}");
        assert_eq!(routes[1].calls, 1, "{protocol:?}: routing calls are not agent calls");
    }
}

#[tokio::test]
async fn the_routing_model_is_asked_again_a_bounded_number_of_times() {
    let world = start("planner", "[network.router.model]").await;
    for _ in 0..9 {
        world.server.enqueue(Reply::text("I cannot decide"));
    }
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "routing_failed", "{:?}", run.state);
    assert_eq!(world.server.counts().received, 4);
    assert_eq!(world.messages(run.id).await[0].text(), "go", "the user's message is saved");
    assert_eq!(run.usage.input_tokens, 40, "the usage of failed routing is counted");
}

#[tokio::test]
async fn max_iter_counts_agent_calls_and_is_reported() {
    let router = "[network.router]\nrules = [{ when = \"true\", to = [\"planner\"] }]";
    let team = leaked(team("planner", router).replace("[network]\n", "[network]\nmax_iter = 3\n"));
    let world = setup().agent(team).start().await;
    for _ in 0..9 {
        world.server.enqueue(Reply::text("more"));
    }
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    assert_eq!(world.server.counts().received, 3);
    let end = world.routes(&run).await.pop().unwrap();
    assert_eq!((end.end, end.calls), (Some(RouteEnd::MaxIter), 3));
    let reports_maximum = |body: &Body| matches!(body, Body::ProgressUpdated { text } if text.contains("maximum of 3 agent calls"));
    assert!(world.event_bodies(run.id).await.iter().any(reports_maximum), "it is reported");
}

#[tokio::test]
async fn a_disabled_agent_is_refused_by_rules_and_skipped_in_a_sequence() {
    let disabled = "enabled = \"state.plan is defined\"\n";
    let rules = format!("{disabled}[network.router]\nrules = [{{ when = \"true\", to = [\"writer\"] }}]");
    let world = start("planner writer", &rules).await;
    let run = world.run_prompt_as("team", "go").await;
    let error = run.state.error().unwrap();
    assert_eq!(error.code.as_str(), "agent_disabled", "{error:?}");
    assert!(error.message.contains("rules[0]") && error.message.contains("enabled: planner"), "{error:?}");
    assert_eq!(world.server.counts().received, 0);
    assert_terminal_events(&world, &run).await;

    let sequence = format!("{disabled}[network.router]\nsequence = [\"writer\", \"planner\"]");
    let world = start("planner writer", &sequence).await;
    world.server.enqueue(Reply::text("a plan"));
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(world.route_text(&run).await, "planner Some(StackEmpty)", "{:?}", run.state);
    assert_eq!(world.routes(&run).await[0].skipped, ["writer"]);

    let never = format!("{disabled}[network.router]\nsequence = [\"writer\"]");
    let world = start("writer", &never).await;
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "network_no_agent");
    assert_eq!(world.server.counts().received, 0);
}

async fn assert_terminal_events(world: &World, run: &Run) {
    let bodies = world.event_bodies(run.id).await;
    assert_eq!(bodies.iter().filter(|body| body.ends_run()).count(), 1, "exactly one terminal event");
    assert!(bodies.last().unwrap().ends_run(), "{bodies:?}");
}

#[tokio::test]
async fn finished_results_are_kept_when_a_later_agent_fails_and_a_retry_continues_after_them() {
    let world = start("planner writer", "[network.router]\nsequence = [\"planner\", \"writer\"]").await;
    world.server.enqueue(Reply::text("a plan")).enqueue(Reply::fail(Fault::Unauthorized));
    let run = world.run_prompt_as("team", "go").await;
    assert_eq!(run.state.status(), RunStatus::Failed);
    let texts: Vec<String> = world.messages(run.id).await.iter().map(|message| message.text()).collect();
    assert_eq!(texts[..2], ["go", "a plan"], "the message and the finished result are saved");
    assert_terminal_events(&world, &run).await;
    world.server.enqueue(Reply::text("the end"));
    world.kernel.run_retry(&world.me, run.id, Default::default()).await.unwrap();
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.server.counts().received, 3, "the planner was not called again");
    assert_eq!(world.route_text(&run).await, "planner writer Some(StackEmpty)", "no decision was made again");
    assert_eq!(world.answer_text(run.id).await, "the end");
}

#[tokio::test]
async fn each_run_starts_with_the_default_state_of_its_network() {
    let router = "[network.router]\nsequence = [\"planner\"]";
    let state = "[network]\nstate = { list = [1], nested = { a = { b = 1 } } }\n";
    let team = leaked(team("planner", router).replace("[network]\n", state));
    let world = setup().agent(team).start().await;
    let change = json!({"key": "nested", "value": {"a": {"b": 2}}});
    world.server.enqueue(Reply::tool("state_set", change)).enqueue(Reply::text("again"));
    let send = async || {
        let mut request = RunRequest { prompt: vec![Block::text("go")], ..RunRequest::default() };
        (request.session, request.mode) = (as_team("s"), mainspring_core::Mode::Act);
        let run = world.send(request).await;
        world.wait_ended(run.id).await
    };
    let (first, second) = (send().await, send().await);
    assert_eq!(world.run_state(&first).await, json!({"list": [1], "nested": {"a": {"b": 2}}}));
    assert_eq!(world.run_state(&second).await, json!({"list": [1], "nested": {"a": {"b": 1}}}));
    let session = StateOf::Session(mainspring_kernel::store::SessionRef::Id(first.session), None);
    let of_session = world.kernel.state_list(&world.me, &session, None, None).await.unwrap();
    assert_eq!(of_session.items, [], "the run's state is not the session's");
}

#[tokio::test]
async fn a_surface_kind_does_not_make_a_session_a_network_member() {
    let world = setup().start().await;
    let change = json!({"key": "k", "value": 1});
    world.server.enqueue(Reply::tool("state_set", change)).enqueue(Reply::text("done"));
    let mut request = RunRequest { mode: mainspring_core::Mode::Act, ..RunRequest::text("s", "go") };
    request.session.new.surface_kind = Some("network_member".into());
    let run = world.send(request).await;
    world.wait_ended(run.id).await;
    assert_eq!(world.run_state(&run).await, json!({}), "it is the state of the session");
    let session = StateOf::Session(mainspring_kernel::store::SessionRef::Id(run.session), None);
    let of_session = world.kernel.state_list(&world.me, &session, None, None).await.unwrap();
    assert_eq!(of_session.items.len(), 1);
}

#[tokio::test]
async fn a_call_of_a_member_may_have_several_steps_and_ends_with_its_answer() {
    let router = "steps = 0\n[network.router]\nsequence = [\"planner\", \"writer\"]";
    let world = start("planner writer", router).await;
    let mut request = RunRequest { prompt: vec![Block::text("go")], ..RunRequest::default() };
    (request.session, request.mode) = (as_team("s"), mainspring_core::Mode::Act);
    world.server.enqueue(Reply::tool("fail", json!({}))).enqueue(Reply::tool("panic", json!({})));
    world.server.enqueue(Reply::tool("add", json!({"a": "x"}))).enqueue(Reply::tool("nothing", json!({})));
    world.server.enqueue(Reply::text("done"));
    let run = world.send(request).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.agents(&run).await, ["planner@1", "writer@1", "writer@1", "writer@1", "writer@1"]);
    // A tool that fails, one that panics, bad arguments and an unknown tool are all results for the model.
    let results = world.tool_results(run.id).await;
    assert_eq!(results.len(), 4);
    assert!(
        results.iter().all(|(text, is_error)| *is_error && !text.contains("stack backtrace")),
        "{results:?}"
    );
    assert!(results[1].0.contains("panicked") && results[3].0.contains("no tool \"nothing\""), "{results:?}");
}

#[tokio::test]
async fn an_invalid_network_is_refused_over_the_api_with_field_and_position() {
    let world = setup().start().await;
    let make = async |network: Value| {
        let definition = json!({"id": "mine", "network": network});
        let definition: AgentDefinition = serde_json::from_value(definition).unwrap();
        world.kernel.agent_create(&world.me, definition).await.map(drop).map_err(|error| error.to_string())
    };
    let unknown =
        json!({"members": [{"agent": "planner"}, {"agent": "poet@2"}], "router": {"sequence": ["planner"]}});
    let refused = make(unknown).await.unwrap_err();
    assert!(refused.contains("network.members[1].agent: there is no agent poet@2"), "{refused}");
    let rule = json!({"members": [{"agent": "planner"}], "router": {"rules": [{"when": "last.", "to": ["planner"]}]}});
    let refused = make(rule).await.unwrap_err();
    assert!(refused.contains("network.router.rules[0].when: line 1"), "{refused}");
    make(json!({"members": [{"agent": "planner"}], "router": {"sequence": ["planner"]}})).await.unwrap();
    let nested = json!({"members": [{"agent": "mine@1"}], "router": {"sequence": ["mine"]}});
    let nested: AgentDefinition = serde_json::from_value(json!({"id": "outer", "network": nested})).unwrap();
    let refused = world.kernel.agent_create(&world.me, nested).await.unwrap_err().to_string();
    assert!(refused.contains("mine@1 is a network"), "{refused}");
    world.server.enqueue(Reply::text("a plan"));
    let run = world.run_prompt_as("mine", "go").await;
    assert_eq!(world.route_text(&run).await, "planner Some(StackEmpty)", "{:?}", run.state);
}

#[tokio::test]
async fn the_limits_of_the_run_are_shared_by_all_members() {
    let router = "[network.router]\nrules = [{ when = \"true\", to = [\"planner\", \"writer\"] }]";
    let world = start("planner writer", router).await;
    for _ in 0..9 {
        world.server.enqueue(Reply::text("more"));
    }
    let mut request = RunRequest { prompt: vec![Block::text("go")], ..RunRequest::default() };
    request.session = as_team("s");
    request.options.limits.max_steps = Some(3);
    let run = world.send(request).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.error().map(|error: &Failure| error.code.as_str()), Some("limit_reached"));
    assert_eq!(world.server.counts().received, 3);
}

#[tokio::test]
async fn the_route_of_a_run_survives_export_and_import() {
    let world = start("planner writer", "[network.router]\nsequence = [\"planner\", \"writer\"]").await;
    world.server.enqueue(Reply::text("a plan")).enqueue(Reply::text("a poem"));
    let run = world.run_prompt_as("team", "go").await;
    let other = setup().start().await;
    let by = mainspring_kernel::store::SessionRef::Id(run.session);
    let mut export = world.kernel.session_export(&world.me, &by).await.unwrap();
    let mut import = other.kernel.session_import(&other.me).unwrap();
    while let Some(lines) = export.next().await.unwrap() {
        import.push(lines.as_bytes()).await.unwrap();
    }
    import.finish().await.unwrap();
    let before = world.kernel.run_route(&world.me, run.id).await.unwrap();
    assert_eq!(other.kernel.run_route(&other.me, run.id).await.unwrap(), before, "ids included");
    assert_eq!(before.decisions.len(), 3);
    let steps: Vec<(&str, u32)> =
        before.members.iter().map(|total| (total.member.as_str(), total.steps)).collect();
    assert_eq!(steps, [("planner", 1), ("writer", 1)]);
}
