//! The catalog of the native runtime: the shared agent definitions and the models, for the kernel.

use std::fmt::Debug;
use std::sync::Arc;

use mainspring_core::{AgentDefinition, AgentName, ModelList, RunOptions};
use mainspring_kernel::agents::{Catalog, RuntimeAgent};
use serde_json::Value;

use crate::definition::{Definition, Definitions};
use crate::models::Models;
use crate::native::{self, NativeAdapter};
use crate::output::OutputSchema;
use crate::provider::ModelOptions;

/// The shared agent definitions and the models of the native runtime.
#[derive(Clone)]
pub struct NativeCatalog {
    definitions: Arc<Definitions>,
    models: Models,
    adapter: Option<NativeAdapter>,
}

impl Debug for NativeCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { definitions, models, .. } = self;
        f.debug_struct("NativeCatalog").field("definitions", definitions).field("models", models).finish()
    }
}

impl NativeCatalog {
    /// Creates the catalog.
    pub fn new(definitions: Arc<Definitions>, models: Models) -> Self {
        Self { definitions, models, adapter: None }
    }

    /// Lets the catalog describe the agents of `adapter`, which must be the adapter that the kernel runs.
    #[must_use]
    pub fn describing(mut self, adapter: NativeAdapter) -> Self {
        self.adapter = Some(adapter);
        self
    }
}

impl Catalog for NativeCatalog {
    fn shared(&self) -> Vec<AgentDefinition> {
        let valid = self.definitions.list().into_iter().filter_map(|listed| listed.definition.ok());
        valid.map(|definition| definition.to_record()).collect()
    }

    fn check(&self, definition: &AgentDefinition) -> Result<(), String> {
        Definition::new(definition.clone()).map(drop)
    }

    fn models(&self) -> ModelList {
        self.models.list()
    }

    fn check_options(&self, adapter: &str, options: &RunOptions) -> Result<(), String> {
        if adapter != native::NAME {
            return Ok(());
        }
        let (model, profile) = (options.model.as_deref(), options.model_profile.as_deref());
        if model.is_some() || profile.is_some() {
            self.models.select(model, profile).map_err(|error| error.message)?;
        }
        if let Some(given) = &options.model_options {
            ModelOptions::default().merge(given)?;
        }
        let schema =
            options.output_schema.as_ref().map_or(Ok(()), |schema| OutputSchema::new(schema).map(drop));
        schema.map_err(|error| format!("outputSchema: {error}"))
    }

    fn check_schema(&self, schema: &Value) -> Result<(), String> {
        OutputSchema::new(schema).map(drop)
    }

    fn check_value(&self, schema: &Value, value: &Value) -> Result<(), String> {
        OutputSchema::new(schema)?.check(value)
    }

    fn check_agent_name(&self, adapter: &str, name: &str) -> Result<(), String> {
        if adapter != native::NAME {
            return Ok(());
        }
        let name = name.parse::<AgentName>().map(drop);
        name.map_err(|error| format!("agentDefinition: {error}"))
    }

    fn describe(
        &self,
        adapter: &str,
        options: &RunOptions,
        definition: &AgentDefinition,
    ) -> Option<RuntimeAgent> {
        self.adapter.as_ref()?.describe(adapter, options, definition)
    }
}
