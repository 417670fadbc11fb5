//! Agent definitions: who an agent is. A file each, `agents/*.toml`, read anew when it has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use mainspring_core::limits::BadName;
use mainspring_core::{AgentDefinition, AgentName, Cost, RunLimits, agent};
use minijinja::{Environment, UndefinedBehavior};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::output::Form;

/// The definition of sessions that name none.
pub const GENERALIST: &str = "mainspring.generalist@1";

/// Bytes of a tool's answer that a model is shown at least: less says nothing.
pub const MIN_RESULT: usize = 1_000;

/// Who an agent is.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its name, without the version.
    pub id: String,
    /// Which edition of it.
    pub version: u32,
    /// What it is for, for people.
    pub description: String,
    /// The model, as `PROVIDER/MODEL`.
    pub model: Option<String>,
    /// The model profile.
    pub profile: Option<String>,
    /// What the model is told beforehand: a template over `session`, `run` and `state`.
    pub system: Option<String>,
    /// The tools it may call: names, in which `*` stands for anything.
    pub tools: Vec<String>,
    /// The MCP servers whose tools it has: names, in which `*` stands for anything. If not given, all that answer.
    pub mcp: Option<Vec<String>>,
    /// The tools that a person must allow each time.
    pub approve: Vec<String>,
    /// The tools it may not call.
    pub deny: Vec<String>,
    /// How much a run may use.
    pub limits: RunLimits,
    /// The form its answers have.
    pub output: Option<Form>,
    /// Bytes of a tool's answer that the model is shown; the rest becomes an artifact.
    pub result_bytes: Option<usize>,
}

/// A definition as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    #[serde(default = "one")]
    version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    #[serde(default = "all")]
    tools: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mcp: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    approve: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<String>,
    #[serde(default, skip_serializing_if = "WrittenLimits::is_empty")]
    limits: WrittenLimits,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_bytes: Option<usize>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_steps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_time_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<bool>,
}

impl WrittenLimits {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

const fn one() -> u32 {
    1
}

fn all() -> Vec<String> {
    vec!["*".into()]
}

impl Definition {
    /// Reads a definition, and says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::new(read(text)?)
    }

    /// What `described` comes to; or what is wrong with it.
    pub fn new(described: AgentDefinition) -> Result<Self, String> {
        agent::check_id(&described.id)
            .map_err(|_| "id: 1 to 128 letters, digits, dots, underscores and hyphens".to_owned())?;
        if let Some(system) = &described.system {
            environment().template_from_str(system).map_err(|error| format!("system: {error:#}"))?;
        }
        if described.result_bytes.is_some_and(|bytes| bytes < MIN_RESULT) {
            return Err(format!("result_bytes: at least {MIN_RESULT}"));
        }
        let output = described.output_schema.map(|schema| Form::new(&schema)).transpose();
        Ok(Self {
            id: described.id,
            version: described.version,
            description: described.description,
            model: described.model,
            profile: described.profile,
            system: described.system,
            tools: described.tools,
            mcp: described.mcp,
            approve: described.approve,
            deny: described.deny,
            limits: described.limits,
            output: output.map_err(|error| format!("output_schema: {error}"))?,
            result_bytes: described.result_bytes,
        })
    }

    /// What it says, for others to read.
    pub fn described(&self) -> AgentDefinition {
        AgentDefinition {
            id: self.id.clone(),
            version: self.version,
            description: self.description.clone(),
            model: self.model.clone(),
            profile: self.profile.clone(),
            system: self.system.clone(),
            tools: self.tools.clone(),
            mcp: self.mcp.clone(),
            approve: self.approve.clone(),
            deny: self.deny.clone(),
            limits: self.limits,
            output_schema: self.output.as_ref().map(|form| form.schema().clone()),
            result_bytes: self.result_bytes,
        }
    }

    /// Its name with its version.
    pub fn name(&self) -> String {
        format!("{}@{}", self.id, self.version)
    }

    /// True when what the model is told beforehand depends on state.
    pub fn reads_state(&self) -> bool {
        let Some(system) = &self.system else { return false };
        let environment = environment();
        let template = environment.template_from_str(system);
        template.is_ok_and(|template| template.undeclared_variables(false).contains("state"))
    }

    /// What the model is told beforehand, with `context` put in.
    pub fn system(&self, context: &impl Serialize) -> Result<Option<String>, String> {
        let Some(system) = &self.system else { return Ok(None) };
        let text = environment()
            .render_str(system, minijinja::value::Serde(context))
            .map_err(|error| format!("{error:#}"))?;
        Ok(Some(text))
    }
}

/// What a file says, if it says it right.
pub fn read(text: &str) -> Result<AgentDefinition, String> {
    let written: Written =
        toml::from_str(text).map_err(|error| error.to_string().trim().replace('\n', " "))?;
    let limits = written.limits;
    Ok(AgentDefinition {
        id: written.id,
        version: written.version,
        description: written.description,
        model: written.model,
        profile: written.profile,
        system: written.system,
        tools: written.tools,
        mcp: written.mcp,
        approve: written.approve,
        deny: written.deny,
        limits: RunLimits {
            max_steps: limits.max_steps,
            max_tokens: limits.max_tokens,
            max_cost: limits.max_cost_usd.map(Cost::from),
            max_time: limits.max_time_s.map(|seconds| seconds.saturating_mul(1000)),
            ask: limits.ask,
        },
        output_schema: written.output_schema,
        result_bytes: written.result_bytes,
    })
}

/// The file that says this; none if there are no words for it: a null in a schema, parts of a second.
pub fn write(described: &AgentDefinition) -> Option<String> {
    let AgentDefinition { limits, .. } = described;
    let written = Written {
        id: described.id.clone(),
        version: described.version,
        description: described.description.clone(),
        model: described.model.clone(),
        profile: described.profile.clone(),
        system: described.system.clone(),
        tools: described.tools.clone(),
        mcp: described.mcp.clone(),
        approve: described.approve.clone(),
        deny: described.deny.clone(),
        limits: WrittenLimits {
            max_steps: limits.max_steps,
            max_tokens: limits.max_tokens,
            max_cost_usd: limits.max_cost.and_then(Cost::usd),
            max_time_s: limits.max_time.map(|millis| millis / 1000),
            ask: limits.ask,
        },
        output_schema: described.output_schema.clone(),
        result_bytes: described.result_bytes,
    };
    let file = toml::to_string_pretty(&written).ok()?;
    read(&file).is_ok_and(|same| same == *described).then_some(file)
}

/// Templates cannot run for ever, and what is not there is empty.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(100_000));
    environment
}

/// A definition as it is listed: what it is, or what is wrong with its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Where it is written; none if it is built in.
    pub path: Option<PathBuf>,
    /// What it says.
    pub definition: Result<Arc<Definition>, String>,
}

/// The definitions there are.
#[derive(Debug)]
pub struct Definitions {
    folder: Option<PathBuf>,
    built_in: Vec<Arc<Definition>>,
    read: Mutex<BTreeMap<PathBuf, Read>>,
}

/// A file as it was read, and by what it is known to be the same.
#[derive(Debug, Clone)]
struct Read {
    stamp: (Option<SystemTime>, u64),
    definition: Result<Arc<Definition>, String>,
}

impl Definitions {
    /// The definitions in `folder`, which need not exist, and the one that is built in.
    pub fn new(folder: Option<PathBuf>) -> Self {
        let generalist = Definition {
            id: GENERALIST.trim_end_matches("@1").into(),
            version: 1,
            description: "Helps with anything.".into(),
            model: None,
            profile: None,
            system: None,
            tools: all(),
            mcp: None,
            approve: vec![],
            deny: vec![],
            limits: RunLimits::default(),
            output: None,
            result_bytes: None,
        };
        Self { folder, built_in: vec![Arc::new(generalist)], read: Mutex::default() }
    }

    /// With another one.
    #[must_use]
    pub fn with(mut self, definition: Definition) -> Self {
        self.built_in.push(Arc::new(definition));
        self
    }

    /// Every definition, and every file that is none.
    pub fn list(&self) -> Vec<Listed> {
        let built_in = self.built_in.iter().map(|one| Listed { path: None, definition: Ok(one.clone()) });
        let mut listed: Vec<Listed> = built_in.collect();
        let mut read = self.read.lock();
        let files = self.files();
        read.retain(|path, _| files.contains(path));
        for path in files {
            let definition = read_again(&mut read, &path);
            listed.push(Listed { path: Some(path), definition });
        }
        listed
    }

    /// The definition of this name, `ID@VERSION`, or the latest version of `ID`.
    pub fn find(&self, name: &str) -> Result<Arc<Definition>, String> {
        let wanted: AgentName = name.parse().map_err(|bad: BadName| bad.to_string())?;
        self.find_for(&wanted, None)
    }

    /// The definition of this name for an owner who has made `own` under it.
    pub fn find_for(
        &self,
        name: &AgentName,
        own: Option<AgentDefinition>,
    ) -> Result<Arc<Definition>, String> {
        let listed = self.list();
        let known = listed.iter().filter_map(|one| one.definition.as_ref().ok());
        let wanted = |one: &&Arc<Definition>| {
            one.id == name.id && name.version.is_none_or(|version| one.version == version)
        };
        let shared = known.clone().filter(wanted).max_by_key(|one| one.version);
        // What an owner made comes before a file of the same name and version.
        match (shared, own) {
            (Some(shared), Some(own)) if shared.version > own.version => return Ok(shared.clone()),
            (_, Some(own)) => return Definition::new(own).map(Arc::new),
            (Some(shared), None) => return Ok(shared.clone()),
            (None, None) => {}
        }
        let name = name.to_string();
        let broken =
            listed.iter().filter_map(|one| Some((one.path.as_ref()?, one.definition.as_ref().err()?)));
        let broken: Vec<String> =
            broken.map(|(path, error)| format!("{} cannot be read: {error}", path.display())).collect();
        let names: Vec<String> = known.map(|one| one.name()).collect();
        let mut message = format!("no agent definition {name:?}; there is {}", names.join(", "));
        for problem in broken {
            message = format!("{message}; {problem}");
        }
        Err(message)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = self.folder.as_ref().and_then(|folder| std::fs::read_dir(folder).ok());
        let paths = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let mut files: Vec<PathBuf> =
            paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
        files.sort();
        files
    }
}

fn read_again(read: &mut BTreeMap<PathBuf, Read>, path: &Path) -> Result<Arc<Definition>, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let stamp = (metadata.modified().ok(), metadata.len());
    if let Some(known) = read.get(path).filter(|known| known.stamp == stamp) {
        return known.definition.clone();
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let definition = Definition::parse(&text).map(Arc::new);
    read.insert(path.to_owned(), Read { stamp, definition: definition.clone() });
    definition
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CODER: &str = r#"
id = "coder"
version = 2
model = "anthropic/claude-x"
system = "You work for {{ session.owner }}{% if state.name %} on {{ state.name }}{% endif %}."
tools = ["fs__*"]
approve = ["fs__write"]
output_schema = { type = "object", required = ["ok"] }
[limits]
max_steps = 5
max_cost_usd = 0.5
ask = true
"#;

    #[test]
    fn a_definition_is_read_and_its_system_prompt_filled_in() {
        let coder = Definition::parse(CODER).unwrap();
        assert_eq!(coder.name(), "coder@2");
        assert!(coder.reads_state());
        let described = coder.described();
        assert_eq!(Definition::new(described.clone()).unwrap(), coder);
        assert_eq!(read(&write(&described).unwrap()).unwrap(), described);
        assert_eq!(coder.limits.max_cost, Some(Cost::from(0.5)));
        let context = json!({"session": {"owner": "ada"}, "state": {"name": "engines"}});
        assert_eq!(coder.system(&context).unwrap().unwrap(), "You work for ada on engines.");
        let bare = json!({"session": {"owner": "ada"}});
        assert_eq!(coder.system(&bare).unwrap().unwrap(), "You work for ada.");
    }

    #[test]
    fn what_is_wrong_is_named_and_a_template_cannot_run_for_ever() {
        let wrong = |text: &str| Definition::parse(text).unwrap_err();
        assert!(wrong("id = \"a b\"").starts_with("id:"));
        assert!(wrong("id = \"a\"\nsystem = \"{{ x\"").starts_with("system:"));
        assert!(wrong("id = \"a\"\noutput_schema = { type = \"nonsense\" }").starts_with("output_schema:"));
        assert!(wrong("id = \"a\"\ncolour = 1").contains("colour"));
        assert!(wrong("id = \"a\"\nresult_bytes = 3").starts_with("result_bytes:"));
        let endless = "id = \"a\"\nsystem = \"{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}\"";
        assert!(Definition::parse(endless).unwrap().system(&json!({})).is_err());
    }

    #[test]
    fn files_are_read_anew_and_a_broken_one_harms_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let definitions = Definitions::new(Some(folder.path().join("agents")));
        assert_eq!(definitions.find("mainspring.generalist").unwrap().name(), GENERALIST);
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        std::fs::write(agents.join("coder.toml"), CODER).unwrap();
        assert_eq!(definitions.find("coder").unwrap().version, 2);
        std::fs::write(agents.join("newer.toml"), CODER.replace("version = 2", "version = 10")).unwrap();
        std::fs::write(agents.join("broken.toml"), "id =").unwrap();
        assert_eq!(definitions.find("coder").unwrap().version, 10);
        assert_eq!(definitions.find("coder@2").unwrap().version, 2);
        let missing = definitions.find("poet").unwrap_err();
        assert!(missing.contains("coder@10") && missing.contains("broken.toml"), "{missing}");
        std::fs::remove_file(agents.join("newer.toml")).unwrap();
        assert_eq!(definitions.find("coder").unwrap().version, 2);
    }
}
