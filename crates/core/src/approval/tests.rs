use serde_json::json;

use super::*;

fn wait() -> WaitId {
    WaitId::from_random([1; 16])
}

fn action(operation: &str, resource: &str) -> RequestedAction {
    RequestedAction { capability: "tool".into(), operation: operation.into(), resource: resource.into() }
}

/// A request to run a command.
fn command(text: &str) -> ApprovalRequest {
    let call = RequestedCall {
        tool_use_id: Some("t1".into()),
        name: "bash".into(),
        kind: Some("execute".into()),
        input: json!({"command": text}),
        ..RequestedCall::default()
    };
    ApprovalRequest::of(action("execute", "Run a command"), Some(call))
}

/// A request to change files.
fn edit(title: &str, paths: &[&str]) -> ApprovalRequest {
    let location = |path: &&str| FileLocation { path: (*path).into(), line: None };
    let call = RequestedCall {
        name: "edit".into(),
        kind: Some("edit".into()),
        input: json!({"text": title}),
        locations: paths.iter().map(location).collect(),
        ..RequestedCall::default()
    };
    ApprovalRequest::of(action("edit", title), Some(call))
}

fn here() -> Map<String, Value> {
    circumstances("acp", Mode::Act, Some("/repo"))
}

fn granted(request: &ApprovalRequest) -> Grant {
    let given = NewGrant {
        id: GrantId::from_random([2; 16]),
        session: SessionId::from_random([3; 16]),
        wait: wait(),
        by: Decider::Person { owner_id: "ada".into() },
        circumstances: here(),
        at: Time(10),
        expires_at: Time(20),
    };
    request.session_grant(given).unwrap()
}

#[test]
fn a_grant_for_the_session_covers_the_same_request_and_nothing_broader() {
    let grant = granted(&command("cargo test"));
    assert!(command("cargo test").is_covered_by(&grant, &here()));
    assert!(!command("cargo test; rm -rf ~").is_covered_by(&grant, &here()), "another input, the same title");
    for elsewhere in [
        circumstances("pi", Mode::Act, Some("/repo")),
        circumstances("acp", Mode::Act, Some("/home")),
        circumstances("acp", Mode::Ask, Some("/repo")),
    ] {
        assert!(!command("cargo test").is_covered_by(&grant, &elsewhere), "{elsewhere:?}");
    }
    let without_a_folder = circumstances("acp", Mode::Act, None);
    assert!(
        !command("cargo test").is_covered_by(&grant, &without_a_folder),
        "the grant was given for a folder"
    );
}

#[test]
fn a_grant_on_files_covers_those_files_whatever_the_change() {
    let grant = granted(&edit("Change a and b", &["/repo/a", "/repo/b"]));
    assert!(edit("Change b again", &["/repo/b"]).is_covered_by(&grant, &here()));
    assert!(!edit("Change b again", &["/repo/b", "/repo/c"]).is_covered_by(&grant, &here()));
    assert!(!edit("Change a and b", &[]).is_covered_by(&grant, &here()), "no file is named");
    let mut deletion = edit("Delete a", &["/repo/a"]);
    deletion.action = Some(action("delete", "Delete a"));
    assert!(!deletion.is_covered_by(&grant, &here()));
    let mut other_tool = edit("Change b again", &["/repo/b"]);
    other_tool.call.as_mut().unwrap().name = "move".into();
    assert!(!other_tool.is_covered_by(&grant, &here()));
    let mut hidden = edit("Change a", &["/repo/a"]);
    hidden.call.as_mut().unwrap().diff = vec![Block::Diff {
        path: "/etc/passwd".into(),
        before: None,
        after: None,
        before_artifact: None,
        after_artifact: None,
    }];
    assert!(!hidden.is_covered_by(&grant, &here()), "the change names another file than the location");
}

#[test]
fn a_star_in_a_granted_resource_stands_for_itself() {
    let plain = |resource: &str| ApprovalRequest::of(action("confirm", resource), None);
    let grant = granted(&plain("delete *"));
    assert!(plain("delete *").is_covered_by(&grant, &here()));
    assert!(!plain("delete everything").is_covered_by(&grant, &here()));
}

#[test]
fn only_a_grant_that_a_person_gave_for_the_session_covers_a_request() {
    let grant = granted(&command("ls"));
    let denied = Grant { effect: GrantEffect::Deny, ..grant.clone() };
    let of_policy = Grant { source: GrantSource::Policy, ..grant.clone() };
    let mut imported = grant;
    imported.constraints.remove("waitId");
    for grant in [denied, of_policy, imported] {
        assert!(!command("ls").is_covered_by(&grant, &here()), "{grant:?}");
    }
}

#[test]
fn a_request_that_is_too_long_to_remember_is_allowed_only_once() {
    use ApprovalChoice::{AllowOnce, AllowSession, Deny};
    assert_eq!(command("ls").answers, [AllowOnce, AllowSession, Deny]);
    let long = command(&"x".repeat(MAX_GRANTED_INPUT_BYTES));
    assert_eq!(long.answers, [AllowOnce, Deny]);
    assert!(!long.is_covered_by(&granted(&command("ls")), &here()));
    assert_eq!(ApprovalRequest::plain().answers, [AllowOnce, Deny]);
}

#[test]
fn an_answer_must_be_offered_and_consistent() {
    use ApprovalChoice::{AllowOnce, AllowSession, Deny, DenyWithReason, SupplyResult};
    let refused = |answer: Value, offered: &[ApprovalChoice]| {
        let answer: ApprovalAnswer = serde_json::from_value(answer).unwrap();
        answer
            .check(wait(), offered)
            .err()
            .map(|refusal| refusal.to_string().replace(&wait().to_string(), "it"))
    };
    let all = [AllowOnce, AllowSession, Deny, DenyWithReason, SupplyResult];
    let result = json!({"text": "42"});
    for answer in [
        json!({"decision": "allowed"}),
        json!({"decision": "allowed", "scope": "session", "expiresInMs": 1000}),
        json!({"decision": "denied"}),
        json!({"decision": "denied", "reason": "not on Fridays"}),
        json!({"decision": "supplied", "result": result}),
    ] {
        assert_eq!(refused(answer.clone(), &all), None, "{answer}");
    }
    for (answer, reason) in [
        (
            json!({"decision": "denied", "scope": "session"}),
            "the scope once, unless the decision is allowed, not session",
        ),
        (
            json!({"decision": "allowed", "reason": "x"}),
            "a reason only with the decision denied, not a reason",
        ),
        (
            json!({"decision": "allowed", "result": result}),
            "a result only with the decision supplied, not a result",
        ),
        (json!({"decision": "supplied"}), "a result with the decision supplied, not none"),
        (
            json!({"decision": "allowed", "expiresInMs": 5}),
            "expiresInMs only with the scope session, not expiresInMs",
        ),
        (
            json!({"decision": "allowed", "scope": "session", "expiresInMs": 0}),
            "expiresInMs from 1 to 2592000000, not another number",
        ),
    ] {
        assert_eq!(refused(answer, &all), Some(format!("it asks for {reason}")));
    }
    let few = [AllowOnce, Deny];
    assert_eq!(
        refused(json!({"decision": "allowed", "scope": "session"}), &few).as_deref(),
        Some("it cannot be answered with allow_session; it offers allow_once, deny")
    );
    assert!(refused(json!({"decision": "denied", "reason": "x"}), &few).is_some());
    assert!(refused(json!({"decision": "supplied", "result": {"text": ""}}), &few).is_some());
}

#[test]
fn a_grant_holds_until_it_expires_or_is_revoked() {
    let grant = granted(&command("ls"));
    assert!(grant.holds_at(Time(19)));
    assert!(!grant.holds_at(Time(20)));
    let revoked = Grant { revoked_at: Some(Time(12)), ..grant };
    assert!(!revoked.holds_at(Time(13)));
}
