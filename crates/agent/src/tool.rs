//! Tools: what a model may call.
//!
//! A tool says its name, what it does and the JSON Schema of its arguments, and is called with arguments that obey it.
//! Each call carries an id that stays the same if the call is made again, for tools to recognise it by.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use mainspring_core::tool::is_tool_name;
use mainspring_core::{ClientTool, RunId, SessionId};
use serde_json::{Value, json};

use crate::provider::ToolSpec;

mod data;
mod delegate;
mod desk;
mod function;
pub mod mcp;
pub use desk::Desk;
pub use function::{FunctionTool, function};
pub use mainspring_kernel::policy::matches_pattern;

/// What a model may call.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Its name, what it does, and the schema of its arguments.
    fn spec(&self) -> ToolSpec;

    /// How it behaves.
    fn traits(&self) -> ToolTraits {
        ToolTraits::default()
    }

    /// Does it. To drop the future is to stop it.
    async fn call(&self, call: ToolCall) -> Result<String, ToolError>;
}

/// How a tool behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolTraits {
    /// A second call with the same id does no harm: after a crash it is simply made again.
    pub idempotent: bool,
    /// Milliseconds that it may take.
    pub timeout_ms: u64,
}

impl Default for ToolTraits {
    fn default() -> Self {
        Self { idempotent: false, timeout_ms: 5_000 }
    }
}

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// Stable: the same if the call is made again.
    pub id: String,
    /// The arguments, which obey the schema.
    pub input: Value,
    /// The session it is made for.
    pub session: SessionId,
    /// The run it is made for.
    pub run: RunId,
    /// Whose they are.
    pub owner: String,
    /// The folder the agent works in.
    pub cwd: Option<String>,
    /// What it may read and write of the session.
    pub desk: Desk,
}

/// Why a tool did not do as asked; the model is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

impl ToolError {
    /// A failure.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The name of the tool by which a model asks a person.
pub const ASK_PERSON: &str = "ask_person";

/// A tool, ready to be called.
#[derive(Clone)]
pub struct Entry {
    /// What a model is told of it.
    pub spec: ToolSpec,
    /// How it behaves.
    pub traits: ToolTraits,
    schema: Schema,
    by: By,
}

/// What holds arguments to a schema, made when it is first needed: it takes milliseconds and megabytes.
type Schema = Arc<OnceLock<Result<jsonschema::Validator, String>>>;

/// Who does what a tool does.
#[derive(Clone)]
enum By {
    /// The tool.
    Tool(Arc<dyn Tool>),
    /// A person.
    Person,
    /// Whoever made the run.
    Caller,
}

impl Entry {
    /// True for the tool that asks a person: the run waits instead.
    pub fn asks(&self) -> bool {
        matches!(self.by, By::Person)
    }

    /// True for a tool that the run's caller executes: the run waits instead.
    pub fn is_client(&self) -> bool {
        matches!(self.by, By::Caller)
    }

    /// What is wrong with `input`; nothing if it obeys the schema.
    pub fn check(&self, input: &Value) -> Result<(), ToolError> {
        let schema =
            self.schema().map_err(|reason| ToolError(format!("tool {:?}: {reason}", self.spec.name)))?;
        let problems: Vec<String> = schema
            .iter_errors(input)
            .take(5)
            .map(|error| match error.instance_path().to_string().as_str() {
                "" => error.to_string(),
                at => format!("{at}: {error}"),
            })
            .collect();
        if problems.is_empty() {
            return Ok(());
        }
        Err(ToolError(format!(
            "the arguments do not fit the tool {}: {}",
            self.spec.name,
            problems.join("; ")
        )))
    }

    fn schema(&self) -> Result<&jsonschema::Validator, &String> {
        let make = || jsonschema::validator_for(&self.spec.schema);
        let made =
            self.schema.get_or_init(|| make().map_err(|error| format!("its schema is not one: {error}")));
        made.as_ref()
    }

    /// Calls it.
    pub async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        match &self.by {
            By::Tool(tool) => tool.call(call).await,
            By::Person => Err(ToolError::new("a person is asked by waiting")),
            By::Caller => Err(ToolError::new("the caller is asked by waiting")),
        }
    }
}

/// Why a tool cannot be offered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tool {name:?}: {reason}")]
pub struct BadTool {
    name: String,
    reason: String,
}

/// The tools there are.
#[derive(Clone, Default)]
pub struct Toolbox {
    entries: BTreeMap<String, Entry>,
}

impl Toolbox {
    /// A box with the tool that asks a person.
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "question": {"type": "string", "description": "What to ask."},
                "approval": {"type": "boolean", "description": "True for a question of yes or no."},
            },
            "required": ["question"],
        });
        let description = "Asks the person you work for, and waits for the answer. Use it when you cannot go on without it.";
        let spec = ToolSpec { name: ASK_PERSON.into(), description: description.into(), schema };
        let traits = ToolTraits { idempotent: true, ..ToolTraits::default() };
        let entry = Entry { spec, traits, schema: Schema::default(), by: By::Person };
        Self { entries: [(ASK_PERSON.to_owned(), entry)].into() }
    }

    /// A box with all tools that are built in: those that ask a person, keep state, keep artifacts, and delegate.
    pub fn built_in() -> Self {
        let mut all = Self::new();
        for tool in data::tools().into_iter().chain([delegate::tool()]) {
            // Their schemas are ours, and a test makes every one of them.
            let (spec, traits, schema) = (tool.spec(), tool.traits(), Schema::default());
            all.entries.insert(spec.name.clone(), Entry { spec, traits, schema, by: By::Tool(tool) });
        }
        all
    }

    /// Puts a tool in.
    pub fn add(&mut self, tool: Arc<dyn Tool>) -> Result<(), BadTool> {
        let (spec, traits) = (tool.spec(), tool.traits());
        self.insert(spec, traits, By::Tool(tool))
    }

    /// Puts a tool in that the run's caller executes.
    pub fn add_client(&mut self, tool: &ClientTool) -> Result<(), BadTool> {
        let spec = ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            schema: tool.input_schema.clone(),
        };
        self.insert(spec, ToolTraits::default(), By::Caller)
    }

    fn insert(&mut self, spec: ToolSpec, traits: ToolTraits, by: By) -> Result<(), BadTool> {
        let bad = |reason: String| BadTool { name: spec.name.clone(), reason };
        if !is_tool_name(&spec.name) {
            return Err(bad("a name has 1 to 64 letters, digits, underscores and hyphens".into()));
        }
        if self.entries.contains_key(&spec.name) {
            return Err(bad("there is one of that name already".into()));
        }
        let entry = Entry { spec, traits, schema: Schema::default(), by };
        // Whoever brings a tool is told at once what is wrong with it.
        let wrong = entry
            .schema()
            .err()
            .map(|reason| BadTool { name: entry.spec.name.clone(), reason: reason.clone() });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        self.entries.insert(entry.spec.name.clone(), entry);
        Ok(())
    }

    /// With another tool.
    pub fn with(mut self, tool: impl Tool) -> Result<Self, BadTool> {
        self.add(Arc::new(tool))?;
        Ok(self)
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Every tool, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The tools whose names one of `patterns` fits.
    #[must_use]
    pub fn only(&self, patterns: &[String]) -> Self {
        let wanted = |name: &String| patterns.iter().any(|pattern| matches_pattern(pattern, name));
        let entries = self.entries.iter().filter(|(name, _)| wanted(name));
        Self { entries: entries.map(|(name, entry)| (name.clone(), entry.clone())).collect() }
    }

    /// These tools and those of `others` whose names are free.
    #[must_use]
    pub fn and(mut self, others: &Self) -> Self {
        for (name, entry) in &others.entries {
            self.entries.entry(name.clone()).or_insert_with(|| entry.clone());
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
    fn the_schema_comes_from_the_type_and_is_held_to() {
        let toolbox = toolbox();
        let add = toolbox.get("add").unwrap();
        assert_eq!(add.spec.schema["required"], json!(["a", "b"]));
        assert!(add.check(&json!({"a": 1, "b": 2.5})).is_ok());
        let wrong = add.check(&json!({"a": "x"})).unwrap_err().to_string();
        assert!(wrong.contains("/a") && wrong.contains("\"b\" is a required"), "{wrong}");
        assert!(add.check(&json!("{broken")).is_err());
    }

    #[test]
    fn a_schema_that_is_none_is_refused_at_once_and_those_built_in_are_sound() {
        let tool =
            ClientTool { name: "odd".into(), description: String::new(), input_schema: json!({"type": 7}) };
        let refused = Toolbox::new().add_client(&tool).unwrap_err().to_string();
        assert!(refused.starts_with("tool \"odd\": its schema is not one"), "{refused}");
        let toolbox = Toolbox::built_in();
        assert!(toolbox.iter().count() > 3);
        for entry in toolbox.iter() {
            assert!(is_tool_name(&entry.spec.name), "{}", entry.spec.name);
            assert!(entry.schema.get().is_none(), "{} is made when it is needed", entry.spec.name);
            assert_eq!(entry.schema().err(), None, "{}", entry.spec.name);
        }
    }

    #[test]
    fn a_name_is_taken_once_and_must_be_plain() {
        let again = |name: &str| {
            let tool = function(name, "", |_, _: Numbers| async { Ok(String::new()) });
            toolbox().with(tool).err().map(|bad| bad.to_string()).unwrap_or_default()
        };
        assert!(again("add").contains("already"));
        assert!(again("a b").contains("letters"));
        assert_eq!(again("sub"), "");
    }

    #[test]
    fn patterns() {
        for (pattern, name, wanted) in [
            ("add", "add", true),
            ("*", "x", true),
            ("fs__*", "fs__read", true),
            ("*_read", "fs_write", false),
            ("a*c*", "abcd", true),
            ("add", "adder", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), wanted, "{pattern} {name}");
        }
        assert_eq!(toolbox().only(&["a*".into()]).iter().count(), 2);
        assert_eq!(toolbox().only(&["add".into()]).iter().count(), 1);
    }
}
