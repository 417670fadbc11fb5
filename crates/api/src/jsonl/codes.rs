//! Error codes: maps mainspring's own codes ("our codes") to the codes of the protocol.
//!
//! The protocol's codes are a closed list on which hosts base their decisions. Our codes are more specific,
//! and new ones are added. [`CODE_MAP`] maps each of our codes to a code of the protocol. Where the two
//! differ, our code is sent beside the protocol's as `reason`.

/// The codes of the protocol.
pub const PROTOCOL_CODES: [&str; 21] = [
    "authentication",
    "quota_exceeded",
    "invalid_request",
    "timeout",
    "transport_interruption",
    "adapter_unavailable",
    "adapter_incompatible",
    "malformed_or_oversized_tool_result",
    "cancelled",
    "stale_owner",
    "policy_denied",
    "unknown",
    "invalid_tool_input",
    "control_tool_failed",
    "unknown_control_tool",
    "runtime_not_ready",
    "adapter_not_registered",
    "binding_failed",
    "stale_binding",
    "adapter_execution_failed",
    "not_found",
];

/// Our codes by the protocol's code. A code of ours that the protocol has too is not listed here and is sent as it is.
pub const CODE_MAP: &[(&str, &[&str])] = &[
    ("authentication", &["login_failed", "model_key_missing", "model_unauthorized"]),
    (
        "quota_exceeded",
        &["limit_reached", "max_tokens", "max_turn_requests", "model_quota_exhausted", "model_rate_limited"],
    ),
    (
        "invalid_request",
        &[
            "abandoned_message",
            "agent_disabled",
            "agent_invalid",
            "agent_not_found",
            "agent_taken",
            "agent_template_failed",
            "already_answered",
            "already_exists",
            "ambiguous_mode",
            "answer_not_offered",
            "cursor_expired",
            "delegation_too_deep",
            "file_unusable",
            "folder_not_allowed",
            "goal_type_taken",
            "initial_messages_not_supported",
            "invalid_config",
            "invalid_import",
            "invalid_json",
            "invalid_model_options",
            "invalid_name",
            "invalid_output_schema",
            "invalid_tool",
            "limit_not_enforceable",
            "method_not_allowed",
            "model_context_too_long",
            "model_invalid_request",
            "model_price_unknown",
            "network_no_agent",
            "network_rule_failed",
            "no_model",
            "no_org",
            "not_assistant_message",
            "not_at_tip",
            "not_latest_run",
            "not_user_message",
            "not_waiting",
            "option_not_used",
            "range_not_satisfiable",
            "request_conflict",
            "router_not_found",
            "run_ended",
            "run_merged",
            "script_error",
            "session_busy",
            "session_closed",
            "too_large",
            "too_many",
            "too_many_children",
            "tool_name_taken",
            "tool_result_conflict",
            "unknown_tool_use",
            "unsupported_media_type",
            "value_invalid",
            "version_conflict",
            "would_deadlock",
            "wrong_answer",
            "wrong_state",
        ],
    ),
    ("timeout", &["request_timeout", "wait_expired"]),
    (
        "transport_interruption",
        &[
            "cancel_unproven",
            "connection_broken",
            "executor_lost",
            "model_connection_broken",
            "protocol",
            "unreachable",
        ],
    ),
    (
        "adapter_unavailable",
        &[
            "adapter_full",
            "mcp_unavailable",
            "model_not_configured",
            "model_overloaded",
            "sandbox_unavailable",
        ],
    ),
    ("stale_owner", &["no_authority", "stale_attempt"]),
    (
        "policy_denied",
        &[
            "denied",
            "forbidden",
            "forbidden_host",
            "forbidden_origin",
            "model_refused",
            "not_allowed_by_key",
            "refusal",
            "spend_limit_reached",
        ],
    ),
    (
        "runtime_not_ready",
        &[
            "audit_failed",
            "audit_unusable",
            "cannot_listen",
            "io",
            "not_responding",
            "overloaded",
            "quota_reached",
            "shutting_down",
            "state_dir_exposed",
            "state_dir_owned",
            "state_dir_unusable",
            "store_full",
            "store_lost",
            "store_unusable",
            "tls_required",
            "tls_unusable",
            "too_many_streams",
            "unavailable",
        ],
    ),
    (
        "adapter_execution_failed",
        &[
            "adapter_crashed",
            "members_failed",
            "output_invalid",
            "routing_failed",
            "script_failed",
            "tool_failed",
            "unknown_stop_reason",
            "wait_abandoned",
        ],
    ),
    ("unknown", &["corrupt", "goals_failed", "outcome_unknown", "request_failed", "session_failed"]),
];

/// Maps one of our codes to the protocol's code, and our own where the two differ. A code of an agent's own runtime maps to
/// `unknown`.
pub fn protocol_code(code: &str) -> (&'static str, Option<&str>) {
    if let Some(same) = PROTOCOL_CODES.iter().find(|known| **known == code) {
        return (same, None);
    }
    let known = CODE_MAP.iter().find(|(_, ours)| ours.contains(&code));
    (known.map_or("unknown", |(theirs, _)| theirs), Some(code))
}

/// True for a code in [`PROTOCOL_CODES`] or [`CODE_MAP`].
pub fn is_mapped(code: &str) -> bool {
    PROTOCOL_CODES.contains(&code) || CODE_MAP.iter().any(|(_, ours)| ours.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_maps_to_one_protocol_code() {
        let mut seen = std::collections::HashSet::new();
        for (theirs, ours) in CODE_MAP {
            assert!(PROTOCOL_CODES.contains(theirs), "{theirs} is no code of the protocol");
            assert!(ours.is_sorted(), "{theirs}");
            for code in *ours {
                assert!(seen.insert(code), "{code} is there twice");
                assert!(!PROTOCOL_CODES.contains(code), "{code} is sent as it is");
                assert_eq!(protocol_code(code), (*theirs, Some(*code)));
            }
        }
        assert_eq!(protocol_code("not_found"), ("not_found", None));
        assert_eq!(protocol_code("E_AGENTS_OWN"), ("unknown", Some("E_AGENTS_OWN")));
    }
}
