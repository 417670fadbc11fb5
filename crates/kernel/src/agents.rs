//! Agents: the part of the agent catalog that only a runtime knows.
//!
//! Definitions made by an owner are in the store. The shared definitions, the validity of a definition and the list of
//! models come from the runtime.

use std::collections::BTreeMap;
use std::fmt::Debug;

use mainspring_api::{SourcedText, SourcedValue};
use mainspring_core::{AgentDefinition, ModelList, OfferedTool, RunLimits, RunOptions};
use serde_json::Value;

/// A runtime's knowledge of agents and models.
pub trait Catalog: Debug + Send + Sync + 'static {
    /// The definitions that every owner may use.
    fn shared(&self) -> Vec<AgentDefinition>;

    /// Checks a definition; the error text says what is wrong.
    fn check(&self, definition: &AgentDefinition) -> Result<(), String>;

    /// The models that can be used.
    fn models(&self) -> ModelList;

    /// Checks the model, profile, model options and output schema for runs of `adapter`; the error text says what is wrong.
    fn check_options(&self, adapter: &str, options: &RunOptions) -> Result<(), String>;

    /// Checks a JSON Schema; the error text says what is wrong.
    fn check_schema(&self, schema: &Value) -> Result<(), String>;

    /// Checks a value against a valid JSON Schema; the error text says where it does not fit.
    fn check_value(&self, schema: &Value, value: &Value) -> Result<(), String>;

    /// Checks the name of an agent definition for sessions of `adapter`; the error text says what is wrong. The definition
    /// need not exist yet.
    fn check_agent_name(&self, adapter: &str, name: &str) -> Result<(), String>;

    /// Describes what a run of `adapter` with these options would use under `definition`; `None` if the adapter is another
    /// runtime's.
    fn describe(
        &self,
        adapter: &str,
        options: &RunOptions,
        definition: &AgentDefinition,
    ) -> Option<RuntimeAgent>;
}

/// The parts of an agent that only its runtime knows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuntimeAgent {
    /// The model, as `PROVIDER/MODEL`.
    pub model: Option<SourcedText>,
    /// The model profile.
    pub model_profile: Option<SourcedText>,
    /// Options of the model that the options of the run do not set.
    pub model_options: BTreeMap<String, SourcedValue>,
    /// The tools of the runtime that the agent may call.
    pub tools: Vec<OfferedTool>,
    /// The MCP servers whose tools are added when a run starts.
    pub mcp_servers: Vec<String>,
    /// The limits that apply where neither the run nor the agent sets one.
    pub limits: RunLimits,
    /// Why a run would fail.
    pub problems: Vec<String>,
}

/// The catalog of a kernel without such a runtime: no shared definitions, no models; every definition and
/// every value is valid.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCatalog;

impl Catalog for NoCatalog {
    fn shared(&self) -> Vec<AgentDefinition> {
        vec![]
    }

    fn check(&self, _definition: &AgentDefinition) -> Result<(), String> {
        Ok(())
    }

    fn models(&self) -> ModelList {
        ModelList::default()
    }

    fn check_options(&self, _adapter: &str, _options: &RunOptions) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self, _: &str, _: &RunOptions, _: &AgentDefinition) -> Option<RuntimeAgent> {
        None
    }

    fn check_schema(&self, _schema: &Value) -> Result<(), String> {
        Ok(())
    }

    fn check_value(&self, _schema: &Value, _value: &Value) -> Result<(), String> {
        Ok(())
    }

    fn check_agent_name(&self, _adapter: &str, _name: &str) -> Result<(), String> {
        Ok(())
    }
}
