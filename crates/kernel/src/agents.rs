//! Agents: what whoever runs them knows. Definitions that an owner makes are in the store; those that are everybody's,
//! whether a definition makes sense, and which models there are, only a runtime can tell.

use std::fmt::Debug;

use mainspring_core::{AgentDefinition, ModelList, RunOptions};

/// What a runtime knows of agents.
pub trait Catalog: Debug + Send + Sync + 'static {
    /// The definitions that every owner has.
    fn shared(&self) -> Vec<AgentDefinition>;

    /// Says what is wrong with a definition.
    fn check(&self, definition: &AgentDefinition) -> Result<(), String>;

    /// The models that can be asked.
    fn models(&self) -> ModelList;

    /// Says what is wrong with the model, the profile or the model options that runs of `adapter` are to have.
    fn check_options(&self, adapter: &str, options: &RunOptions) -> Result<(), String>;
}

/// A kernel without a runtime that follows definitions: nobody has any from elsewhere, and all that have a name are well.
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
}
