use serde_json::json;

use super::*;

fn network(text: Value) -> Network {
    serde_json::from_value(text).expect("a network")
}

fn pair() -> Value {
    json!({"members": [{"agent": "planner@1"}, {"agent": "writer@2"}], "router": {"sequence": ["planner", "writer"]}})
}

fn with(field: &str, value: Value) -> Network {
    let mut text = pair();
    *text.pointer_mut(field).expect("a field") = value;
    network(text)
}

#[test]
fn a_definition_is_refused_with_its_field_and_position() {
    let no_limits = RunLimits::default();
    let refused = |network: &Network| network.check(&no_limits, false).unwrap_err().to_string();
    assert_eq!(network(pair()).check(&no_limits, false), Ok(()));
    for (network, wanted) in [
        (with("/members", json!([])), "network.members: 1 to 64 agents, not 0"),
        (
            with("/members/1/agent", json!("a b")),
            "network.members[1].agent: an agent's id must have 1 to 128 letters, digits, dots, underscores and hyphens",
        ),
        (
            with("/members/1", json!({"agent": "planner@2"})),
            "network.members[1].name: another member is called \"planner\": give one of them a name",
        ),
        (
            with("/router/sequence", json!(["planner", "poet"])),
            "network.router.sequence[1]: no member \"poet\"; there is planner, writer",
        ),
        (
            with("/router", json!({"rules": [{"when": "true", "to": ["planner", ["writer", "poet"]]}]})),
            "network.router.rules[0].to[1]: no member \"poet\"; there is planner, writer",
        ),
        (
            with("/router", json!({"rules": [{"when": "true"}]})),
            "network.router.rules: no rule names an agent",
        ),
        (
            with("/router", json!({})),
            "network.router: it names no agents: give a sequence, rules, code or a model",
        ),
        (
            with("/router", json!({"sequence": ["planner"], "code": "mine"})),
            "network.router.sequence: a sequence stands alone: leave out rules, code and model",
        ),
        (
            with("/router", Value::Null),
            "network.router: there is neither a router nor a model: give a router, or the model that routes",
        ),
        (
            with("/router/sequence", json!([["planner"]])),
            "network.router.sequence[0]: parallel agents are two or more",
        ),
        (
            with(
                "/members",
                json!([{"agent": "planner", "enabled": "false"}, {"agent": "writer", "enabled": " false"}]),
            ),
            "network.members: no agent is enabled",
        ),
    ] {
        assert_eq!(refused(&network), wanted);
    }
    let unlimited = Network { max_iter: 0, ..network(pair()) };
    assert!(refused(&unlimited).starts_with("network.max_iter: 0 means no limit"));
    let limits = RunLimits { max_tokens: Some(1), ..no_limits };
    assert_eq!(unlimited.check(&limits, false), Ok(()));
    assert_eq!(with("/router", Value::Null).check(&no_limits, true), Ok(()), "the model routes");
    let reduced = Network { reduce: Reduce::Agent("poet".into()), ..network(pair()) };
    assert!(refused(&reduced).starts_with("network.reduce.agent: no member \"poet\""));
}

#[test]
fn unknown_fields_are_refused_and_defaults_are_not_written() {
    assert!(serde_json::from_value::<Network>(json!({"members": [], "colour": 1})).is_err());
    assert_eq!(
        serde_json::to_value(network(pair())).unwrap(),
        json!({"members": [{"agent": "planner@1"}, {"agent": "writer@2"}], "maxIter": 20,
               "router": {"sequence": ["planner", "writer"]}})
    );
}

/// Plays the choices of a router; `-` stands for no choice. Returns a line for each: the agents called, the rest of the
/// stack, the number of calls, the skipped agents and the end.
fn play(choices: &[&str], max_iter: u32, disabled: &[&str]) -> String {
    let mut earlier: Option<Route> = None;
    let mut lines = vec![];
    for choice in choices {
        let push = choice.split_whitespace().filter(|name| *name != "-");
        let push = push.map(|name| match name.split_once('+') {
            Some((a, b)) => Stage::Parallel(vec![a.into(), b.into()]),
            None => Stage::One(name.into()),
        });
        let choice = match *choice {
            "done" => Choice::done(RoutedBy::Model),
            _ => Choice::push(RoutedBy::Rules, push.collect()),
        };
        let progress = Progress { max_iter, ..Progress::default() };
        let route = Route::decide(earlier.as_ref(), choice, progress, |name| !disabled.contains(&name));
        let names = |stages: &[Stage]| stages.iter().map(|stage| stage.names().join("+")).collect::<Vec<_>>();
        lines.push(format!(
            "{} calls {:?} then {:?} of {} skipped {:?} {:?}",
            route.no,
            names(route.next.as_slice()),
            names(&route.stack),
            route.calls,
            route.skipped,
            route.end
        ));
        earlier = Some(route);
    }
    lines.join("\n")
}

#[test]
fn the_stack_is_first_in_first_out_and_pushes_go_to_its_end() {
    insta::assert_snapshot!(play(&["a b", "c", "-", "-"], 0, &[]), @r#"
    1 calls ["a"] then ["b"] of 1 skipped [] None
    2 calls ["b"] then ["c"] of 2 skipped [] None
    3 calls ["c"] then [] of 3 skipped [] None
    4 calls [] then [] of 3 skipped [] Some(StackEmpty)
    "#);
}

#[test]
fn max_iter_counts_agent_calls_and_leaves_the_rest_on_the_stack() {
    insta::assert_snapshot!(play(&["a b+c d", "-", "-"], 3, &[]), @r#"
    1 calls ["a"] then ["b+c", "d"] of 1 skipped [] None
    2 calls ["b+c"] then ["d"] of 3 skipped [] None
    3 calls [] then ["d"] of 3 skipped [] Some(MaxIter)
    "#);
}

#[test]
fn disabled_agents_are_skipped_when_their_turn_comes_and_done_ends_at_once() {
    insta::assert_snapshot!(play(&["a b+c b d", "done"], 0, &["a", "b"]), @r#"
    1 calls ["c"] then ["b", "d"] of 1 skipped ["a", "b"] None
    2 calls [] then ["b", "d"] of 1 skipped [] Some(Done)
    "#);
}

fn change(key: &str, value: Value) -> MemberChange {
    MemberChange { key: key.into(), value: Some(value) }
}

#[test]
fn reducers_make_one_value_in_the_order_of_the_members() {
    let members = [
        vec![change("notes", json!(["a"])), change("score", json!(1)), change("map", json!({"x": [1]}))],
        vec![
            change("notes", json!(["b"])),
            change("score", json!(2)),
            change("map", json!({"x": [2], "y": 1})),
        ],
        vec![change("score", json!(2))],
    ];
    let before = Map::from_iter([("score".to_owned(), json!(2))]);
    let reduced = |how: Reduce| json!(reduce(&how, &before, &members));
    assert_eq!(
        reduced(Reduce::Merge),
        json!({"map": {"x": [1, 2], "y": 1}, "notes": ["a", "b"], "score": 2})
    );
    assert_eq!(reduced(Reduce::First), json!({"map": {"x": [1]}, "notes": ["a"], "score": 1}));
    assert_eq!(reduced(Reduce::Vote), json!({"map": {"x": [1]}, "notes": ["a"], "score": 2}));
    assert_eq!(
        reduced(Reduce::List),
        json!({"map": [{"x": [1]}, {"x": [2], "y": 1}], "notes": [["a"], ["b"]], "score": [1, 2, 2]})
    );
    let removed = MemberChange { key: "gone".into(), value: None };
    let gone = reduce(&Reduce::Merge, &before, &[vec![removed.clone()], vec![removed]]);
    assert_eq!(gone.get("gone"), Some(&None));
}

#[test]
fn merged_values_hold_what_was_there_before_once() {
    let before = json!({"plan": {"steps": ["a", "b"], "done": {}, "next": 1}, "notes": ["start"]});
    let plan = |steps: Value, done: Value, next: u32| {
        change("plan", json!({"steps": steps, "done": done, "next": next}))
    };
    let merged =
        |members: &[Vec<MemberChange>]| json!(reduce(&Reduce::Merge, before.as_object().unwrap(), members));
    let (x, y) = (json!({"x": true}), json!({"y": true}));
    assert_eq!(
        merged(&[vec![plan(json!(["a", "b"]), x.clone(), 2)], vec![plan(json!(["a", "b"]), y.clone(), 1)]]),
        json!({"plan": {"steps": ["a", "b"], "done": {"x": true, "y": true}, "next": 2}}),
        "what one member leaves alone is as the other member made it"
    );
    assert_eq!(
        merged(&[vec![plan(json!(["a", "b"]), x, 1)], vec![plan(json!(["c"]), y, 3)]]),
        json!({"plan": {"steps": ["c"], "done": {"x": true, "y": true}, "next": 3}}),
    );
    let notes = |notes: &[&str]| vec![change("notes", json!(notes))];
    assert_eq!(
        merged(&[notes(&["start", "a"]), notes(&["start", "b"])]),
        json!({"notes": ["start", "a", "b"]})
    );
    assert_eq!(merged(&[notes(&["start", "a"]), notes(&["b"])]), json!({"notes": ["start", "a", "b"]}));
}

#[test]
fn a_reducer_is_a_name_or_an_object_and_an_unknown_key_is_named() {
    for text in [json!("merge"), json!("list"), json!("first"), json!("vote"), json!({"agent": "judge"})] {
        let reduce: Reduce = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&reduce).unwrap(), text);
    }
    let error = |value| serde_json::from_value::<Reduce>(value).unwrap_err().to_string();
    assert_eq!(error(json!({"agnt": "judge"})), "unknown field `agnt`, expected `agent`");
    assert!(error(json!("most")).starts_with("unknown variant `most`, expected one of `merge`"));
}
