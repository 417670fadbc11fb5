//! The request that made a delegation, as its row keeps it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{DelegationMode, Mode, RunOptions};

/// The fields of a request that a delegation keeps. Absent fields are left out, except `context`. Settings of the child's
/// session are not among them: the session stores them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestFields<'a> {
    /// Whether the parent waits, and whether the child's session is new.
    pub mode: DelegationMode,
    /// The goal of the child.
    pub objective: &'a str,
    /// The context for the objective.
    pub context: Option<&'a str>,
    /// The adapter of the child run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<&'a str>,
    /// Whether the child may act.
    pub run_mode: Mode,
    /// The largest depth of delegation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
    /// The other options of the child run.
    #[serde(skip_serializing_if = "is_empty")]
    pub options: &'a RunOptions,
    /// The member of the parent's network that works in the child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<&'a NetworkMember>,
}

fn is_empty(options: &RunOptions) -> bool {
    json!(options) == json!({})
}

/// A member of a network that works in a child of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkMember {
    /// The number of the routing decision.
    pub route_no: u32,
    /// The member's name.
    pub name: String,
}

/// The request that made a delegation: its stored JSON, which is never changed, and typed readers of it.
///
/// The JSON of an imported delegation may have other fields, or may be no object. A reader returns `None` for a field
/// that is absent or has another type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoredRequest(Value);

impl StoredRequest {
    /// True for older delegations, which keep no request.
    pub fn is_absent(&self) -> bool {
        self.0.is_null()
    }

    /// The context for the objective.
    pub fn context(&self) -> Option<&str> {
        self.0.get("context")?.as_str()
    }

    /// The member of the parent's network that works in the child.
    pub fn member(&self) -> Option<NetworkMember> {
        NetworkMember::deserialize(self.0.get("member")?).ok()
    }

    /// True if the routing decision `route_no` called the member `name`, which works in the child.
    pub fn is_of_member(&self, route_no: u32, name: &str) -> bool {
        self.member().is_some_and(|member| member.route_no == route_no && member.name == name)
    }
}

impl From<RequestFields<'_>> for StoredRequest {
    fn from(fields: RequestFields<'_>) -> Self {
        Self(json!(fields))
    }
}

impl From<Value> for StoredRequest {
    fn from(stored: Value) -> Self {
        Self(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(options: &RunOptions) -> RequestFields<'_> {
        RequestFields {
            mode: DelegationMode::Call,
            objective: "count",
            context: None,
            adapter: None,
            run_mode: Mode::Ask,
            max_depth: None,
            options,
            member: None,
        }
    }

    /// Existing databases and callers depend on this form.
    #[test]
    fn the_stored_form_of_requests_does_not_change() {
        let (none, some) =
            (RunOptions::default(), RunOptions { model: Some("m".into()), ..RunOptions::default() });
        let request = StoredRequest::from(fields(&none));
        let short = json!({"mode": "call", "objective": "count", "context": null, "runMode": "ask"});
        assert_eq!(json!(request), short);
        assert_eq!((request.is_absent(), request.context(), request.member()), (false, None, None));

        let member = NetworkMember { route_no: 3, name: "writer".into() };
        let full = RequestFields {
            context: Some("in /tmp"),
            adapter: Some("acp"),
            run_mode: Mode::Act,
            max_depth: Some(2),
            member: Some(&member),
            ..fields(&some)
        };
        let request = StoredRequest::from(full);
        let stored = json!({
            "mode": "call", "objective": "count", "context": "in /tmp", "adapter": "acp", "runMode": "act",
            "maxDepth": 2, "options": {"model": "m"}, "member": {"routeNo": 3, "name": "writer"},
        });
        assert_eq!(json!(request), stored);
        assert_eq!(serde_json::from_value::<StoredRequest>(stored).unwrap(), request);
        assert_eq!((request.context(), request.member()), (Some("in /tmp"), Some(member)));
        assert!(request.is_of_member(3, "writer"));
        assert!(!request.is_of_member(2, "writer") && !request.is_of_member(3, "reader"));
    }

    #[test]
    fn a_request_of_another_shape_is_kept_unchanged() {
        for stored in [
            json!({"prompt": "x", "context": ["a"], "member": "writer"}),
            json!({"member": {"name": "writer"}, "later": {"a": 1}}),
            json!("text"),
            json!([1]),
        ] {
            let request: StoredRequest = serde_json::from_value(stored.clone()).unwrap();
            assert_eq!((request.is_absent(), request.context(), request.member()), (false, None, None));
            assert_eq!(json!(request), stored);
        }
        assert!(serde_json::from_value::<StoredRequest>(Value::Null).unwrap().is_absent());
    }
}
