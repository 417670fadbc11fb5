//! Agent definitions: model, system prompt, tools and limits of an agent. The files `agents/*.toml` are read again when
//! they have changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use mainspring_core::limits::BadName;
use mainspring_core::{AgentDefinition, AgentName, Cost, Network, RunLimits, agent};
use mainspring_kernel::files::read_small_text;
use mainspring_kernel::policy::MAX_PATTERN_BYTES;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::output::OutputSchema;
use crate::{network, template};

/// The definition of sessions that name no other.
pub const GENERALIST: &str = "mainspring.generalist@1";

/// The lower bound of `result_bytes`: a smaller part of a tool result is useless to a model.
pub const MIN_RESULT_BYTES: usize = 1_000;

/// A valid agent definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// The name, without the version.
    pub id: String,
    /// The version.
    pub version: u32,
    /// The purpose, for people.
    pub description: String,
    /// The model, as `PROVIDER/MODEL`.
    pub model: Option<String>,
    /// The model profile.
    pub profile: Option<String>,
    /// The template of the system prompt, with the variables `session`, `run` and `state`.
    pub system: Option<String>,
    /// The tools that the agent may call: names, in which `*` matches anything. `*` alone matches no tool that leaves
    /// the session.
    pub tools: Vec<String>,
    /// The MCP servers whose tools the agent has: names, in which `*` matches anything. If not given, all that can be
    /// started.
    pub mcp: Option<Vec<String>>,
    /// The tools that need a person's approval for each call.
    pub approve: Vec<String>,
    /// The tools that the agent may not call.
    pub deny: Vec<String>,
    /// The limits of a run.
    pub limits: RunLimits,
    /// The schema of the agent's answers.
    pub output: Option<OutputSchema>,
    /// The maximum size of a tool result in a request; a larger one is stored as an artifact.
    pub result_bytes: Option<usize>,
    /// The members and the router of a network.
    pub network: Option<Network>,
}

/// The TOML form of a definition.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DefinitionFile {
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
    #[serde(default, skip_serializing_if = "LimitsFile::is_empty")]
    limits: LimitsFile,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "network::to_file")]
    network: Option<Network>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_steps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cost_usd: Option<Cost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_time_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<bool>,
}

impl LimitsFile {
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
    /// Parses and checks a TOML definition. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::new(from_toml(text)?)
    }

    /// Checks a definition. The error says what is wrong.
    pub fn new(record: AgentDefinition) -> Result<Self, String> {
        agent::check_id(&record.id)
            .map_err(|_| "id: 1 to 128 letters, digits, dots, underscores and hyphens".to_owned())?;
        if let Some(system) = &record.system {
            template::check(system).map_err(|error| format!("system: {error}"))?;
        }
        if record.result_bytes.is_some_and(|bytes| bytes < MIN_RESULT_BYTES) {
            return Err(format!("result_bytes: at least {MIN_RESULT_BYTES}"));
        }
        let patterns =
            [&record.tools, &record.approve, &record.deny].into_iter().chain(&record.mcp).flatten();
        if { patterns }.any(|pattern| pattern.len() > MAX_PATTERN_BYTES) {
            return Err(format!("a pattern for names has at most {MAX_PATTERN_BYTES} bytes"));
        }
        network::check(&record)?;
        let output = record.output_schema.map(|schema| OutputSchema::new(&schema)).transpose();
        Ok(Self {
            id: record.id,
            version: record.version,
            description: record.description,
            model: record.model,
            profile: record.profile,
            system: record.system,
            tools: record.tools,
            mcp: record.mcp,
            approve: record.approve,
            deny: record.deny,
            limits: record.limits,
            output: output.map_err(|error| format!("output_schema: {error}"))?,
            result_bytes: record.result_bytes,
            network: record.network,
        })
    }

    /// Returns the public record of the definition.
    pub fn to_record(&self) -> AgentDefinition {
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
            output_schema: self.output.as_ref().map(|output| output.schema().clone()),
            result_bytes: self.result_bytes,
            network: self.network.clone(),
        }
    }

    /// Returns the name with the version.
    pub fn name(&self) -> String {
        format!("{}@{}", self.id, self.version)
    }

    /// Returns true if the system prompt may use state.
    pub fn reads_state(&self) -> bool {
        // A false positive only costs a read of the state.
        self.system.as_ref().is_some_and(|system| system.contains('{') && system.contains("state"))
    }

    /// Renders the system prompt with `context`.
    pub fn render_system(&self, context: &Value) -> Result<Option<String>, String> {
        let Some(system) = &self.system else { return Ok(None) };
        let text = template::render(system, context)
            .map_err(|error| format!("the system prompt of the agent {}: {error}", self.name()))?;
        Ok(Some(text))
    }
}

/// Parses a TOML definition.
pub fn from_toml(text: &str) -> Result<AgentDefinition, String> {
    let file: DefinitionFile =
        toml::from_str(text).map_err(|error| error.to_string().trim().replace('\n', " "))?;
    let limits = file.limits;
    Ok(AgentDefinition {
        id: file.id,
        version: file.version,
        description: file.description,
        model: file.model,
        profile: file.profile,
        system: file.system,
        tools: file.tools,
        mcp: file.mcp,
        approve: file.approve,
        deny: file.deny,
        limits: RunLimits {
            max_steps: limits.max_steps,
            max_tokens: limits.max_tokens,
            max_cost: limits.max_cost_usd,
            max_time: limits.max_time_s.map(|seconds| seconds.saturating_mul(1000)),
            max_depth: limits.max_depth,
            ask: limits.ask,
            best_effort: None,
        },
        output_schema: file.output_schema,
        result_bytes: file.result_bytes,
        network: file.network,
    })
}

/// Returns the TOML form; `None` if TOML cannot express the definition, for example a null in a schema or a time limit
/// with a fraction of a second.
pub fn to_toml(record: &AgentDefinition) -> Option<String> {
    let AgentDefinition { limits, .. } = record;
    let file = DefinitionFile {
        id: record.id.clone(),
        version: record.version,
        description: record.description.clone(),
        model: record.model.clone(),
        profile: record.profile.clone(),
        system: record.system.clone(),
        tools: record.tools.clone(),
        mcp: record.mcp.clone(),
        approve: record.approve.clone(),
        deny: record.deny.clone(),
        limits: LimitsFile {
            max_steps: limits.max_steps,
            max_tokens: limits.max_tokens,
            max_cost_usd: limits.max_cost.filter(|cost| cost.is_known()),
            max_time_s: limits.max_time.map(|millis| millis / 1000),
            max_depth: limits.max_depth,
            ask: limits.ask,
        },
        output_schema: record.output_schema.clone(),
        result_bytes: record.result_bytes,
        network: record.network.clone(),
    };
    let toml = toml::to_string_pretty(&file).ok()?;
    from_toml(&toml).is_ok_and(|parsed| parsed == *record).then_some(toml)
}

/// An entry of the list of definitions: valid, or the error in its file.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedDefinition {
    /// The file; `None` if the definition is built in.
    pub path: Option<PathBuf>,
    /// The definition, or the error.
    pub definition: Result<Arc<Definition>, String>,
}

/// All agent definitions.
#[derive(Debug)]
pub struct Definitions {
    folder: Option<PathBuf>,
    built_in: Vec<Arc<Definition>>,
    cache: Mutex<BTreeMap<PathBuf, CachedFile>>,
}

/// A file that was read, with the modification time and size it had.
#[derive(Debug, Clone)]
struct CachedFile {
    stamp: (Option<SystemTime>, u64),
    definition: Result<Arc<Definition>, String>,
}

impl Definitions {
    /// The definitions in `folder`, which need not exist, and the built-in one.
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
            network: None,
        };
        Self { folder, built_in: vec![Arc::new(generalist)], cache: Mutex::default() }
    }

    /// Adds a built-in definition.
    #[must_use]
    pub fn with(mut self, definition: Definition) -> Self {
        self.built_in.push(Arc::new(definition));
        self
    }

    /// Lists every definition, including files with errors.
    pub fn list(&self) -> Vec<ListedDefinition> {
        let built_in = self
            .built_in
            .iter()
            .map(|definition| ListedDefinition { path: None, definition: Ok(definition.clone()) });
        let mut listed: Vec<ListedDefinition> = built_in.collect();
        let mut cache = self.cache.lock();
        let files = self.files();
        cache.retain(|path, _| files.contains(path));
        for path in files {
            let definition = load(&mut cache, &path);
            listed.push(ListedDefinition { path: Some(path), definition });
        }
        network::refuse_unknown_members(&mut listed);
        listed
    }

    /// Finds the definition `ID@VERSION`, or the latest version of `ID`.
    pub fn find(&self, name: &str) -> Result<Arc<Definition>, String> {
        let name: AgentName = name.parse().map_err(|bad: BadName| bad.to_string())?;
        self.find_for(&name, None)
    }

    /// Finds the definition `name` for an owner. `own` is the owner's own definition of this name, if there is one. If
    /// `name` has no version, the latest version is found.
    pub fn find_for(
        &self,
        name: &AgentName,
        own: Option<AgentDefinition>,
    ) -> Result<Arc<Definition>, String> {
        let listed = self.list();
        let valid = listed.iter().filter_map(|listed| listed.definition.as_ref().ok());
        let matches = |definition: &&Arc<Definition>| {
            definition.id == name.id && name.version.is_none_or(|version| definition.version == version)
        };
        let shared = valid.clone().filter(matches).max_by_key(|definition| definition.version);
        // An owner's definition takes precedence over a file of the same name and version.
        match (shared, own) {
            (Some(shared), Some(own)) if shared.version > own.version => return Ok(shared.clone()),
            (_, Some(own)) => return Definition::new(own).map(Arc::new),
            (Some(shared), None) => return Ok(shared.clone()),
            (None, None) => {}
        }
        let name = name.to_string();
        let names: Vec<String> = valid.map(|definition| definition.name()).collect();
        let mut message = format!("no agent definition {name:?}; there is {}", names.join(", "));
        for ListedDefinition { path, definition } in &listed {
            if let (Some(path), Err(error)) = (path, definition) {
                message = format!("{message}; {} cannot be read: {error}", path.display());
            }
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

/// Reads the file, or takes it from the cache if it has not changed.
fn load(cache: &mut BTreeMap<PathBuf, CachedFile>, path: &Path) -> Result<Arc<Definition>, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let stamp = (metadata.modified().ok(), metadata.len());
    if let Some(cached) = cache.get(path).filter(|cached| cached.stamp == stamp) {
        return cached.definition.clone();
    }
    let text = read_small_text(path).map_err(|error| error.to_string())?;
    let definition = Definition::parse(&text).map(Arc::new);
    cache.insert(path.to_owned(), CachedFile { stamp, definition: definition.clone() });
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
    fn a_definition_is_parsed_and_its_system_prompt_rendered() {
        let coder = Definition::parse(CODER).unwrap();
        assert_eq!(coder.name(), "coder@2");
        assert!(coder.reads_state());
        let record = coder.to_record();
        assert_eq!(Definition::new(record.clone()).unwrap(), coder);
        assert_eq!(from_toml(&to_toml(&record).unwrap()).unwrap(), record);
        assert_eq!(coder.limits.max_cost, Some(Cost::from(0.5)));
        let context = json!({"session": {"owner": "ada"}, "state": {"name": "engines"}});
        assert_eq!(coder.render_system(&context).unwrap().unwrap(), "You work for ada on engines.");
        let bare = json!({"session": {"owner": "ada"}});
        assert_eq!(coder.render_system(&bare).unwrap().unwrap(), "You work for ada.");
    }

    #[test]
    fn errors_name_the_field_and_a_template_cannot_run_forever() {
        let error = |text: &str| Definition::parse(text).unwrap_err();
        assert!(error("id = \"a b\"").starts_with("id:"));
        assert!(error("id = \"a\"\nsystem = \"{{ x\"").starts_with("system:"));
        assert!(error("id = \"a\"\noutput_schema = { type = \"nonsense\" }").starts_with("output_schema:"));
        assert!(error("id = \"a\"\ncolour = 1").contains("colour"));
        assert!(error("id = \"a\"\nresult_bytes = 3").starts_with("result_bytes:"));
        let endless = "id = \"a\"\nsystem = \"{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}\"";
        assert!(Definition::parse(endless).unwrap().render_system(&json!({})).is_err());
    }

    #[test]
    fn changed_files_are_read_again_and_an_invalid_one_affects_no_other() {
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
