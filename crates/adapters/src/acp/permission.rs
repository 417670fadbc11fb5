//! Permission requests of ACP agents, in the terms of the policy.

use agent_client_protocol::v1::schema::{
    PermissionOption, PermissionOptionKind, RequestPermissionRequest, ToolKind,
};
use mainspring_core::{Approval, ApprovalRequest, Block, Replies, RequestedCall};
use mainspring_kernel::policy::{Action, Resource};
use serde_json::Value;

use super::tool_call::location;
use crate::driver::excerpt;

/// The requested action in the terms of the policy's rules: `tool KIND TITLE`, with the kind and the title that the
/// agent reports.
pub(super) fn requested_action(request: &RequestPermissionRequest) -> Action {
    let fields = &request.tool_call.fields;
    let kind = fields.kind.and_then(kind_name).unwrap_or("other");
    let title = fields.title.as_deref().or(fields.name.as_deref()).unwrap_or_default();
    Action { capability: "tool", operation: kind.to_owned(), resource: Resource::Text(title.to_owned()) }
}

/// Builds the request for approval: the tool call, with the file changes that it would make.
pub(super) fn approval_request(request: &RequestPermissionRequest, diff: Vec<Block>) -> ApprovalRequest {
    let fields = &request.tool_call.fields;
    let kind = fields.kind.and_then(kind_name);
    let names = [fields.name.as_deref(), fields.title.as_deref(), kind];
    let call = RequestedCall {
        tool_use_id: Some(request.tool_call.tool_call_id.to_string()),
        name: names.into_iter().flatten().next().unwrap_or("tool").to_owned(),
        title: fields.title.clone(),
        kind: kind.map(str::to_owned),
        input: fields.raw_input.clone().unwrap_or_default(),
        locations: fields.locations.iter().flatten().map(location).collect(),
        diff,
        truncated: false,
    };
    ApprovalRequest::of(requested_action(request).requested(), Some(call))
}

/// The name of a tool kind, unless it is the unspecific "other".
pub(super) fn kind_name(kind: ToolKind) -> Option<&'static str> {
    Some(match kind {
        ToolKind::Read => "read",
        ToolKind::Edit => "edit",
        ToolKind::Delete => "delete",
        ToolKind::Move => "move",
        ToolKind::Search => "search",
        ToolKind::Execute => "execute",
        ToolKind::Think => "think",
        ToolKind::Fetch => "fetch",
        ToolKind::SwitchMode => "switch_mode",
        _ => return None,
    })
}

/// The question to a person.
pub(super) fn question(request: &RequestPermissionRequest) -> String {
    let fields = &request.tool_call.fields;
    let title = fields.title.as_deref().or(fields.name.as_deref()).unwrap_or("a tool call");
    match fields.raw_input.as_ref().filter(|input| !is_empty(input)) {
        Some(input) => excerpt(format!("Allow {title}? {input}")),
        None => excerpt(format!("Allow {title}?")),
    }
}

/// The narrowest option that expresses the decision.
pub(super) fn narrowest_option(
    options: &[PermissionOption],
    decision: Approval,
) -> Option<&PermissionOption> {
    let kinds = match decision {
        Approval::Allowed => [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways],
        // The protocol cannot return a supplied result in place of the tool's own.
        Approval::Denied | Approval::Supplied | Approval::Expired => {
            [PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways]
        }
    };
    kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind))
}

/// The reply to the agent for each decision: the kind of the chosen option, or `cancelled` if no option fits.
pub(super) fn replies(options: &[PermissionOption]) -> Replies {
    let reply = |decision| match narrowest_option(options, decision).map(|option| option.kind) {
        Some(PermissionOptionKind::AllowOnce) => "allow_once",
        Some(PermissionOptionKind::AllowAlways) => "allow_always",
        Some(PermissionOptionKind::RejectOnce) => "reject_once",
        Some(PermissionOptionKind::RejectAlways) => "reject_always",
        _ => "cancelled",
    };
    Replies { allowed: reply(Approval::Allowed).to_owned(), denied: reply(Approval::Denied).to_owned() }
}

/// Reports whether a tool call's input holds no information.
pub(super) fn is_empty(input: &Value) -> bool {
    input.is_null() || input.as_object().is_some_and(serde_json::Map::is_empty)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_narrowest_option_is_chosen() {
        let options = |kinds: &[&str]| -> Vec<PermissionOption> {
            let option = |kind: &&str| json!({"optionId": *kind, "name": "", "kind": *kind});
            kinds.iter().map(|kind| serde_json::from_value(option(kind)).unwrap()).collect()
        };
        let all = options(&["reject_always", "allow_always", "allow_once", "reject_once"]);
        let always = options(&["reject_always", "allow_always"]);
        for (options, decision, chosen) in [
            (&all, Approval::Allowed, Some("allow_once")),
            (&all, Approval::Denied, Some("reject_once")),
            (&all, Approval::Expired, Some("reject_once")),
            (&always, Approval::Allowed, Some("allow_always")),
            (&always, Approval::Denied, Some("reject_always")),
            (&options(&["allow_once"]), Approval::Denied, None),
            (&vec![], Approval::Allowed, None),
        ] {
            let option = narrowest_option(options, decision).map(|option| option.option_id.to_string());
            assert_eq!(option.as_deref(), chosen, "{decision:?} of {options:?}");
        }
    }

    #[test]
    fn a_question_names_the_tool_and_its_input() {
        let ask = |call: Value| {
            let request = json!({"sessionId": "s", "toolCall": call, "options": []});
            let request: RequestPermissionRequest = serde_json::from_value(request).unwrap();
            let action = requested_action(&request);
            (question(&request), format!("{} {} {}", action.capability, action.operation, action.resource))
        };
        let call = json!({"toolCallId": "1", "title": "rm x", "kind": "delete", "rawInput": {"path": "x"}});
        assert_eq!(ask(call), (r#"Allow rm x? {"path":"x"}"#.into(), "tool delete rm x".into()));
        let call = json!({"toolCallId": "1", "rawInput": {}});
        assert_eq!(ask(call), ("Allow a tool call?".into(), "tool other ".into()));
    }
}
