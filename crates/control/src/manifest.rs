//! The manifest of the control tools. MCP, the native agent, the relay of a host, `GET /v1/tools` and
//! docs/control-tools.md all use it.

use std::sync::OnceLock;

use mainspring_api::control::{
    ArtifactList, CancelRun, CancelledRun, ControlTool, ControlToolHints, ControlToolPages, ControlToolRule,
    DelegateWork, DelegatedWork, GetRun, InspectArtifacts, ListSessions, MessageReply, RunDetails,
    SendMessage, SessionList, ToolAccess,
};
use serde_json::{Map, Value};

use crate::bounds::ANSWER_MAX_BYTES;
use crate::schema::{answer, self_contained};

/// The name of the tool that lists sessions.
pub const LIST: &str = "list_agent_sessions";
/// The name of the tool that reads a run.
pub const GET: &str = "get_agent_run";
/// The name of the tool that cancels a run.
pub const CANCEL: &str = "cancel_agent_run";
/// The name of the tool that lists artifacts.
pub const INSPECT: &str = "inspect_agent_artifacts";
/// The name of the tool that sends a message.
pub const SEND: &str = "send_agent_message";
/// The name of the tool that delegates.
pub const DELEGATE: &str = "delegate_agent";

/// The hints of a tool that only reads.
const READS: ControlToolHints = ControlToolHints {
    read_only_hint: true,
    destructive_hint: false,
    idempotent_hint: true,
    open_world_hint: false,
};
/// The hints of a tool that ends work.
const ENDS: ControlToolHints = ControlToolHints {
    read_only_hint: false,
    destructive_hint: true,
    idempotent_hint: true,
    open_world_hint: false,
};
/// The hints of a tool that starts work of an agent, which may change anything that the agent may change.
const STARTS: ControlToolHints = ControlToolHints {
    read_only_hint: false,
    destructive_hint: true,
    idempotent_hint: false,
    open_world_hint: true,
};

/// One tool of the manifest.
struct Entry {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    hints: ControlToolHints,
    is_paged: bool,
    input: fn() -> Map<String, Value>,
    output: fn() -> Map<String, Value>,
}

const MANIFEST: [Entry; 6] = [
    Entry {
        name: LIST,
        title: "List agent sessions",
        description: "Lists the owner's agent sessions, latest activity first, each with its latest run, its active \
            run and the native sessions of its agents. Use it to find a session, or to see what is running. Do not use \
            it to read what an agent wrote: texts are shortened here, and get_agent_run has them in full. Pass \
            nextCursor as cursor to read the next page.",
        hints: READS,
        is_paged: true,
        input: self_contained::<ListSessions>,
        output: answer::<SessionList>,
    },
    Entry {
        name: GET,
        title: "Read an agent run",
        description: "Returns a run with its prompt and its final text, its session, attempts, artifacts, delegations and \
            latest events. Use it to see how far a run is and what its agent answered. Do not use it to wait for a run: \
            send_agent_message and delegate_agent wait by themselves. Pass nextTextOffset as textOffset to read the rest \
            of a long text, and nextCursor as cursor to read earlier events. Lists that truncated names are shortened: \
            inspect_agent_artifacts reads all artifacts.",
        hints: READS,
        is_paged: true,
        input: self_contained::<GetRun>,
        output: answer::<RunDetails>,
    },
    Entry {
        name: CANCEL,
        title: "Cancel an agent run",
        description: "Cancels a run that has not ended. Use it to stop work that is no longer wanted; the session keeps what \
            was done and takes new prompts. The run is cancelled when its agent and every process that it started have \
            stopped, which may be after this answer: get_agent_run shows it. Do not use it to correct an agent: send it a \
            message instead.",
        hints: ENDS,
        is_paged: false,
        input: self_contained::<CancelRun>,
        output: answer::<CancelledRun>,
    },
    Entry {
        name: INSPECT,
        title: "List artifacts of an agent",
        description: "Lists the artifacts (files and results) of a session, a run or an attempt, newest first: name exactly \
            one of the three. Use it to find out what an agent has produced. It returns no content: GET \
            /v1/artifacts/ID/content does. Pass nextCursor as cursor to read the next page.",
        hints: READS,
        is_paged: true,
        input: self_contained::<InspectArtifacts>,
        output: answer::<ArtifactList>,
    },
    Entry {
        name: SEND,
        title: "Send a message to an agent session",
        description: "Sends a prompt to another, existing agent session and waits for its answer. Use it to ask an agent that \
            already knows the matter. Do not use it for new work, which delegate_agent gives a session of its own, nor for \
            your own session, which would wait for itself. The agent only answers unless mode is act. If the call is cut \
            off, the run goes on: repeat the call with the same requestId, or read the run with get_agent_run.",
        hints: STARTS,
        is_paged: false,
        input: self_contained::<SendMessage>,
        output: answer::<MessageReply>,
    },
    Entry {
        name: DELEGATE,
        title: "Delegate work to an agent",
        description: "Hands work to a child agent session, which sees only the objective and the context you give it. mode call \
            waits for the result; spawn returns at once; continue gives an earlier child (childSessionId) more work and \
            waits. Make several calls at once to run them in parallel. Use it for work that can be described on its own. \
            spawn works in the background: it opens no window and no tab, shows nothing to anybody, and its result is not \
            returned; do not use it when a person should see or continue the work in an application. The child only \
            answers unless runMode is act, and never may do more than the run that delegates.",
        hints: STARTS,
        is_paged: false,
        input: self_contained::<DelegateWork>,
        output: answer::<DelegatedWork>,
    },
];

impl Entry {
    fn tool(&self) -> ControlTool {
        ControlTool {
            name: self.name.into(),
            title: self.title.into(),
            description: self.description.into(),
            access: if self.hints.read_only_hint { ToolAccess::Read } else { ToolAccess::Act },
            rule: ControlToolRule {
                capability: "tool".into(),
                operation: "call".into(),
                resource: self.name.into(),
            },
            annotations: self.hints,
            pages: self.is_paged.then(|| ControlToolPages {
                max_bytes: ANSWER_MAX_BYTES,
                cursor: "cursor".into(),
                next: "nextCursor".into(),
            }),
            input_schema: (self.input)(),
            output_schema: (self.output)(),
        }
    }
}

/// Returns all control tools.
pub fn tools() -> &'static [ControlTool] {
    static TOOLS: OnceLock<Vec<ControlTool>> = OnceLock::new();
    TOOLS.get_or_init(|| MANIFEST.iter().map(Entry::tool).collect())
}

/// The part of a control tool that a model reads.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlToolSpec {
    /// The name.
    pub name: &'static str,
    /// The description: the tool's effect, and when to use it.
    pub description: &'static str,
    /// The JSON Schema of the input.
    pub input_schema: Map<String, Value>,
}

/// Returns the parts of all control tools that models read. Cheaper than [`tools`], because it does not build the
/// schemas of answers, which are large.
pub fn specs() -> impl Iterator<Item = ControlToolSpec> {
    MANIFEST.iter().map(|entry| ControlToolSpec {
        name: entry.name,
        description: entry.description,
        input_schema: (entry.input)(),
    })
}

/// True if `name` is the name of a control tool.
pub fn is_control_tool(name: &str) -> bool {
    MANIFEST.iter().any(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> &'static ControlTool {
        tools().iter().find(|tool| tool.name == name).unwrap()
    }

    #[test]
    fn only_control_tools_are_recognized() {
        assert!(tools().iter().all(|tool| is_control_tool(&tool.name)));
        assert!(!is_control_tool("execute_sql"));
    }

    #[test]
    fn models_get_the_same_descriptions_and_schemas_as_other_clients() {
        let specs =
            specs().map(|spec| (spec.name.to_owned(), spec.description.to_owned(), spec.input_schema));
        let tools = tools().iter().cloned().map(|tool| (tool.name, tool.description, tool.input_schema));
        assert!(specs.eq(tools));
    }

    #[test]
    fn every_tool_has_self_contained_schemas() {
        for tool in tools() {
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            assert_eq!(tool.output_schema["type"], "object", "{}", tool.name);
            assert_eq!(tool.output_schema["properties"]["ok"]["const"], true, "{}", tool.name);
            let required = tool.output_schema["required"].as_array().unwrap();
            assert!(required.contains(&json!("ok")), "{}", tool.name);
            let both = json!([tool.input_schema, tool.output_schema]).to_string();
            assert!(!both.contains("$ref"), "{}: {both}", tool.name);
        }
        let owner = "The owner; must be the one that the caller acts for.";
        let cancel = json!({"type": "object", "required": ["runId"], "additionalProperties": false, "properties": {
            "ownerId": {"type": ["string", "null"], "description": owner},
            "runId": {"type": "string", "description": "The run."},
        }});
        assert_eq!(json!(tool(CANCEL).input_schema), cancel);
        assert_eq!(tool(SEND).input_schema["required"], json!(["sessionId", "prompt"]));
        let session = &tool(GET).output_schema["properties"]["session"]["properties"];
        assert_eq!(session["omiSessionId"]["pattern"], "^ses_[0-9a-f]{32}$", "{session}");
    }

    #[test]
    fn hints_agree_with_the_access_of_a_tool() {
        for tool in tools() {
            let reads = tool.access == ToolAccess::Read;
            assert_eq!(tool.annotations.read_only_hint, reads, "{}", tool.name);
            assert_eq!(tool.pages.is_some(), reads, "{}: answers of tools that read are bounded", tool.name);
            let cursor = tool.input_schema["properties"].get("cursor");
            assert_eq!(cursor.is_some(), tool.pages.is_some(), "{}", tool.name);
        }
    }

    #[test]
    fn descriptions_say_when_to_use_a_tool() {
        for tool in tools() {
            let text = &tool.description;
            assert!(text.contains("Use it") && !text.contains("  "), "{}: {text}", tool.name);
        }
        assert!(tool(DELEGATE).description.contains("opens no window"));
    }
}
