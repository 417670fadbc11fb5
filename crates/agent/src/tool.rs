//! Tools that a model can call.
//!
//! A tool has a name, a description and the JSON Schema of its arguments, and is called with arguments that match it.
//! Each call has an id that stays the same if the call is repeated, so that a tool can recognize it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use mainspring_core::tool::is_tool_name;
use mainspring_core::{ClientTool, RunId, SessionId};
use serde_json::{Value, json};

use crate::output::{compile, validate};
use crate::provider::ToolSpec;

mod context;
mod control;
mod data;
mod function;
pub mod mcp;
mod memory;
mod plan;
mod state;
pub use context::ToolContext;
pub use function::{FunctionTool, function};
pub use mainspring_kernel::policy::matches_pattern;
pub use state::ToolState;

/// A tool that a model can call.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Returns the name, the description and the schema of the arguments.
    fn spec(&self) -> ToolSpec;

    /// Returns the properties of the tool.
    fn traits(&self) -> ToolTraits {
        ToolTraits::default()
    }

    /// Runs the tool. Dropping the future stops it.
    async fn call(&self, call: ToolCall) -> Result<String, ToolError>;
}

/// Properties of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolTraits {
    /// A second call with the same id does no harm, so a call is repeated after a crash.
    pub idempotent: bool,
    /// The timeout of a call in milliseconds.
    pub timeout_ms: u64,
    /// The tool reads or changes other sessions. An agent definition must name it: the pattern `*` alone does not select it.
    pub leaves_session: bool,
}

impl Default for ToolTraits {
    fn default() -> Self {
        Self { idempotent: false, timeout_ms: 5_000, leaves_session: false }
    }
}

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The id, which stays the same if the call is repeated.
    pub id: String,
    /// The arguments, which match the schema.
    pub input: Value,
    /// The session of the call.
    pub session: SessionId,
    /// The run of the call.
    pub run: RunId,
    /// The owner of the session and the run.
    pub owner: String,
    /// The working directory of the agent.
    pub cwd: Option<String>,
    /// Access to the session.
    pub context: ToolContext,
}

/// The error of a tool call. The model gets its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

impl ToolError {
    /// Creates an error.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The name of the tool with which a model asks a person.
pub const ASK_PERSON: &str = "ask_person";

/// A registered tool.
#[derive(Clone)]
pub struct ToolEntry {
    /// The description for the model.
    pub spec: ToolSpec,
    /// The properties of the tool.
    pub traits: ToolTraits,
    validator: LazyValidator,
    executor: Executor,
}

/// The compiled schema of the arguments. It is compiled on first use, since that takes milliseconds and megabytes.
type LazyValidator = Arc<OnceLock<Result<jsonschema::Validator, String>>>;

/// The executor of a tool's calls.
#[derive(Clone)]
enum Executor {
    /// The tool itself.
    Tool(Arc<dyn Tool>),
    /// A person.
    Person,
    /// The client that created the run.
    Client,
}

impl ToolEntry {
    /// Returns true for the tool that asks a person: the run waits for the answer.
    pub fn asks_person(&self) -> bool {
        matches!(self.executor, Executor::Person)
    }

    /// Returns true for a tool that the client executes: the run waits for the result.
    pub fn is_client(&self) -> bool {
        matches!(self.executor, Executor::Client)
    }

    /// Checks `input` against the schema.
    pub fn check(&self, input: &Value) -> Result<(), ToolError> {
        let name = &self.spec.name;
        let validator = self.validator().map_err(|reason| ToolError(format!("tool {name:?}: {reason}")))?;
        validate(&self.spec.schema, validator, input).map_err(|problems| {
            ToolError(format!("the arguments do not match the schema of the tool {name}: {problems}"))
        })
    }

    fn validator(&self) -> Result<&jsonschema::Validator, &String> {
        let compile =
            || compile(&self.spec.schema).map_err(|error| format!("its schema is not valid: {error}"));
        self.validator.get_or_init(compile).as_ref()
    }

    /// Calls the tool.
    pub async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        match &self.executor {
            Executor::Tool(tool) => tool.call(call).await,
            Executor::Person => Err(ToolError::new("a person answers this tool, it cannot be called")),
            Executor::Client => Err(ToolError::new("the client executes this tool, it cannot be called")),
        }
    }
}

/// Why a tool cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tool {name:?}: {reason}")]
pub struct InvalidTool {
    name: String,
    reason: String,
}

/// A set of tools.
#[derive(Clone, Default)]
pub struct Toolbox {
    /// Shared by the copies of the set: a plan is copied for each hook.
    entries: Arc<BTreeMap<String, ToolEntry>>,
}

impl Toolbox {
    /// Creates a set with the tool that asks a person.
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "question": {"type": "string", "description": "The question."},
                "approval": {"type": "boolean", "description": "True for a yes-or-no question."},
            },
            "required": ["question"],
        });
        let description = "Asks the person you work for and waits for the answer. Use it when you cannot continue without the answer.";
        let spec = ToolSpec { name: ASK_PERSON.into(), description: description.into(), schema };
        let traits = ToolTraits { idempotent: true, ..ToolTraits::default() };
        let (validator, executor) = (LazyValidator::default(), Executor::Person);
        let entry = ToolEntry { spec, traits, validator, executor };
        Self { entries: Arc::new([(ASK_PERSON.to_owned(), entry)].into()) }
    }

    /// Creates a set with all built-in tools: asking a person, state, artifacts, a plan, proposals to
    /// remember, delegation, other sessions.
    pub fn built_in() -> Self {
        let mut all = Self::new();
        for tool in data::tools().into_iter().chain(control::tools()).chain([memory::tool(), plan::tool()]) {
            // A test compiles every built-in schema, so they are not compiled here.
            let (spec, traits, validator) = (tool.spec(), tool.traits(), LazyValidator::default());
            let entry = ToolEntry { spec, traits, validator, executor: Executor::Tool(tool) };
            Arc::make_mut(&mut all.entries).insert(entry.spec.name.clone(), entry);
        }
        all
    }

    /// Adds a tool.
    pub fn add(&mut self, tool: Arc<dyn Tool>) -> Result<(), InvalidTool> {
        let (spec, traits) = (tool.spec(), tool.traits());
        self.insert(spec, traits, Executor::Tool(tool))
    }

    /// Adds a tool that the client executes.
    pub fn add_client(&mut self, tool: &ClientTool) -> Result<(), InvalidTool> {
        let spec = ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            schema: tool.input_schema.clone(),
        };
        self.insert(spec, ToolTraits::default(), Executor::Client)
    }

    fn insert(&mut self, spec: ToolSpec, traits: ToolTraits, executor: Executor) -> Result<(), InvalidTool> {
        let name = spec.name.clone();
        if !is_tool_name(&name) {
            let reason = "a name has 1 to 64 letters, digits, underscores and hyphens".into();
            return Err(InvalidTool { name, reason });
        }
        if self.entries.contains_key(&name) {
            return Err(InvalidTool { name, reason: "a tool of that name exists already".into() });
        }
        let entry = ToolEntry { spec, traits, validator: LazyValidator::default(), executor };
        // Reports an invalid schema when the tool is added, not at its first call.
        if let Some(reason) = entry.validator().err().cloned() {
            return Err(InvalidTool { name, reason });
        }
        Arc::make_mut(&mut self.entries).insert(name, entry);
        Ok(())
    }

    /// Adds a tool.
    pub fn with(mut self, tool: impl Tool) -> Result<Self, InvalidTool> {
        self.add(Arc::new(tool))?;
        Ok(self)
    }

    /// Returns the tool of this name.
    pub fn get(&self, name: &str) -> Option<&ToolEntry> {
        self.entries.get(name)
    }

    /// Iterates over the tools in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &ToolEntry> {
        self.entries.values()
    }

    /// Returns the tools whose names match one of `patterns`. `*` alone selects no tool that leaves the session.
    #[must_use]
    pub fn filter(&self, patterns: &[String]) -> Self {
        let selects = |pattern: &String, name: &str, entry: &ToolEntry| {
            matches_pattern(pattern, name) && (pattern != "*" || !entry.traits.leaves_session)
        };
        let entries = self
            .entries
            .iter()
            .filter(|(name, entry)| patterns.iter().any(|pattern| selects(pattern, name, entry)));
        let entries = entries.map(|(name, entry)| (name.clone(), entry.clone()));
        Self { entries: Arc::new(entries.collect()) }
    }

    /// Adds the tools of `others` whose names are not taken.
    #[must_use]
    pub fn merge(mut self, others: &Self) -> Self {
        let entries = Arc::make_mut(&mut self.entries);
        for (name, entry) in others.entries.iter() {
            entries.entry(name.clone()).or_insert_with(|| entry.clone());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    struct Numbers {
        a: f64,
        b: f64,
    }

    fn toolbox() -> Toolbox {
        let add =
            function(
                "add",
                "Adds.",
                |_, numbers: Numbers| async move { Ok((numbers.a + numbers.b).to_string()) },
            );
        Toolbox::new().with(add).unwrap()
    }

    #[test]
    fn the_schema_is_derived_from_the_type_and_enforced() {
        let toolbox = toolbox();
        let add = toolbox.get("add").unwrap();
        assert_eq!(add.spec.schema["required"], json!(["a", "b"]));
        assert!(add.check(&json!({"a": 1, "b": 2.5})).is_ok());
        let error = add.check(&json!({"a": "x"})).unwrap_err().to_string();
        assert!(error.contains("/a") && error.contains("\"b\" is a required"), "{error}");
        assert!(add.check(&json!("{broken")).is_err());
    }

    #[test]
    fn an_invalid_schema_is_rejected_at_once_and_built_in_schemas_are_valid() {
        let tool =
            ClientTool { name: "odd".into(), input_schema: json!({"type": 7}), ..ClientTool::default() };
        let error = Toolbox::new().add_client(&tool).unwrap_err().to_string();
        assert!(error.starts_with("tool \"odd\": its schema is not valid"), "{error}");
        let named =
            json!({"$defs": {"a": {"$id": "https://example.org/a"}}, "$ref": "https://example.org/a"});
        let tool = ClientTool { name: "named".into(), input_schema: named, ..ClientTool::default() };
        let error = Toolbox::new().add_client(&tool).unwrap_err().to_string();
        assert!(
            error.contains("its schema is not valid: $ref \"https://example.org/a\" is outside"),
            "{error}"
        );
        let toolbox = Toolbox::built_in();
        assert!(toolbox.iter().count() > 3);
        for entry in toolbox.iter() {
            assert!(is_tool_name(&entry.spec.name), "{}", entry.spec.name);
            assert!(entry.validator.get().is_none(), "{} is compiled on first use", entry.spec.name);
            assert_eq!(entry.validator().err(), None, "{}", entry.spec.name);
        }
    }

    #[test]
    fn names_are_unique_and_valid() {
        let error = |name: &str| {
            let tool = function(name, "", |_, _: Numbers| async { Ok(String::new()) });
            toolbox().with(tool).err().map(|bad| bad.to_string()).unwrap_or_default()
        };
        assert!(error("add").contains("already"));
        assert!(error("a b").contains("letters"));
        assert_eq!(error("sub"), "");
    }

    #[test]
    fn patterns_select_tools() {
        for (pattern, name, expected) in [
            ("add", "add", true),
            ("*", "x", true),
            ("fs__*", "fs__read", true),
            ("*_read", "fs_write", false),
            ("a*c*", "abcd", true),
            ("add", "adder", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
        assert_eq!(toolbox().filter(&["a*".into()]).iter().count(), 2);
        assert_eq!(toolbox().filter(&["add".into()]).iter().count(), 1);
        let selects = |pattern: &str, name| Toolbox::built_in().filter(&[pattern.into()]).get(name).is_some();
        for leaving in ["list_agent_sessions", "get_agent_run", "cancel_agent_run", "send_agent_message"] {
            assert!(!selects("*", leaving) && selects("*_agent_*", leaving) && selects(leaving, leaving));
        }
        assert!(selects("*", "delegate_agent"));
    }
}
