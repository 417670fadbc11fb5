use serde_json::json;

use super::*;

#[test]
fn a_record_is_parsed_with_its_old_field_names() {
    for id in ["thread_id", "session_id", "chat_id"] {
        let json = json!({
            id: "ses_1", "created": "2026-11-17T09:30:05+00:00", "created_by": "ada", "org_id": "acme",
            "continuation_token": "t", "status": "user_turn", "forked_from_session_id": "ses_0",
        });
        let record: AgentThreadRecord = serde_json::from_value(json).unwrap();
        assert_eq!(record.thread_id, "ses_1");
        assert_eq!(record.forked_from_thread_id.as_deref(), Some("ses_0"));
        assert_eq!((record.visibility, record.goals), (ThreadVisibility::Private, None));
    }
}

#[test]
fn blocks_are_distinguished_by_their_fields() {
    let json = json!([
        {"text": "hi"},
        {"content_type": "tool_use", "tool_name": "client_a", "tool_use_id": "t1", "input": {"a": 1}},
        {"content_type": "tool_result", "tool_name": "client_a", "tool_use_id": "t1", "runtime_ms": 4, "status": "success",
         "payload": [1], "raw_response": {"result": [1]}},
        {"content_type": "error", "error_message": "no", "error_code": "x"},
    ]);
    let blocks: Vec<AgentContent> = serde_json::from_value(json).unwrap();
    assert!(matches!(
        blocks.as_slice(),
        [
            AgentContent::Text(_),
            AgentContent::ToolUse(_),
            AgentContent::ToolResult(_),
            AgentContent::Error(_)
        ]
    ));
    let kinds: Vec<AgentContentType> = blocks.iter().map(AgentContent::content_type).collect();
    assert_eq!(serde_json::to_value(kinds).unwrap(), json!(["text", "tool_use", "tool_result", "error"]));
    assert_eq!(
        serde_json::to_value(&blocks[1]).unwrap(),
        json!({"content_type": "tool_use", "tool_name": "client_a", "tool_use_id": "t1", "input": {"a": 1},
               "raw_request": null, "answered_by_server": false}),
    );
}

#[test]
fn a_message_reports_its_state_and_a_goal_is_returned_as_declared() {
    let mut message = AgentMessage::text("hello");
    assert_eq!((message.role, message.all_text()), (AgentRole::User, "hello".into()));
    assert!(!message.is_complete());
    message.status = AgentMessageStatus::Failed;
    assert!(message.status.is_terminal() && !message.is_unsuccessful());
    message.role = AgentRole::Assistant;
    assert!(message.is_unsuccessful());
    assert!(!AgentMessageStatus::Generating.is_terminal());
    let goal: AgentGoal =
        serde_json::from_value(json!({"goal_type": "dataset_triage", "dataset_id": "ds_1"})).unwrap();
    let record = AgentThreadGoalRecord {
        goal_type: goal.goal_type.clone(),
        goal_data: serde_json::to_value(&goal).unwrap().as_object().unwrap().clone(),
        status: AgentGoalStatus::Pending,
        message_sequence_num: 0,
        created: Timestamp(mainspring_core::Time(0)),
        concluded_at: None,
        achieve_tool_use_id: None,
    };
    assert_eq!(record.goal_data["goal_type"], "dataset_triage");
    assert_eq!(record.to_agent_goal(), goal);
}

#[test]
fn names_of_client_tools_are_checked() {
    for name in ["client_a", "client_save_file2"] {
        assert!(is_client_tool_name(name), "{name}");
    }
    for name in ["client_", "client_A", "client_1", "save", "client_a-b", "client_é"] {
        assert!(!is_client_tool_name(name), "{name}");
    }
}

#[test]
fn merging_a_scope_replaces_the_dimensions_that_are_set() {
    let scope = |json: serde_json::Value| AnalysisScope(json.as_object().unwrap().clone());
    let mut kept = scope(json!({"start_time": 1, "end_time": 9}));
    kept.merge(&scope(json!({"start_time": 5, "end_time": null})));
    assert_eq!(kept, scope(json!({"start_time": 5, "end_time": 9})));
}

#[test]
fn answers_without_a_record_hold_the_id() {
    let changed = ChangedThread { thread_id: "ses_1".into() };
    assert_eq!(serde_json::to_string(&changed).unwrap(), r#"{"thread_id":"ses_1"}"#);
    let old: ChangedThread = serde_json::from_value(json!({"session_id": "ses_1"})).unwrap();
    assert_eq!(old, changed);
    let deleted = DeletedAgent { agent_id: "a1".into() };
    assert_eq!(serde_json::to_string(&deleted).unwrap(), r#"{"agent_id":"a1"}"#);
}

#[test]
fn a_query_has_only_the_parameters_that_are_set() {
    let get = ThreadGetQuery { load_messages: Some("false".into()) };
    assert_eq!(serde_json::to_value(&get).unwrap(), json!({"load_messages": "false"}));
    let delta = ThreadDeltaQuery { next_token: Some("t".into()) };
    assert_eq!(serde_json::to_value(&delta).unwrap(), json!({"next_token": "t"}));
    assert_eq!(serde_json::to_value(ThreadListQuery::default()).unwrap(), json!({}));
    assert_eq!(serde_json::to_value(ThreadAgentListQuery::default()).unwrap(), json!({}));
    let list: ThreadListQuery = serde_json::from_value(json!({"page_token": "p", "newer": 1})).unwrap();
    assert_eq!(list, ThreadListQuery { page_token: Some("p".into()), ..ThreadListQuery::default() });
}
