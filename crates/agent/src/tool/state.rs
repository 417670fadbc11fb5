//! Typed access of a tool to state.

use std::collections::BTreeMap;

use mainspring_core::{Expect, StateScope};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ToolContext, ToolError};

/// Entries read at a time.
const PAGE_SIZE: usize = 500;

/// The state of one scope, as Rust values. Every change is durable before its method returns.
#[derive(Debug, Clone, Copy)]
pub struct ToolState<'a> {
    context: &'a ToolContext,
    scope: StateScope,
}

impl<'a> ToolState<'a> {
    pub(super) fn new(context: &'a ToolContext, scope: StateScope) -> Self {
        Self { context, scope }
    }

    /// Returns the value of a key; `None` if the key is absent.
    pub async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ToolError> {
        Ok(self.get_versioned(key).await?.map(|(value, _)| value))
    }

    /// Returns the value of a key with its version, for [`Self::set_if`].
    pub async fn get_versioned<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, ToolError> {
        let Some(entry) = self.context.state_get(self.scope, key).await? else { return Ok(None) };
        Ok(Some((read(key, entry.value)?, entry.version)))
    }

    /// Sets a key and returns its version.
    pub async fn set(&self, key: &str, value: &impl Serialize) -> Result<u64, ToolError> {
        self.set_if(key, value, Expect::Any).await
    }

    /// Sets a key if its present entry is as expected, and returns its version.
    pub async fn set_if(&self, key: &str, value: &impl Serialize, expect: Expect) -> Result<u64, ToolError> {
        let value = serde_json::to_value(value)
            .map_err(|error| ToolError(format!("the value of {key:?} is no JSON: {error}")))?;
        let outcome = self.context.state_set(self.scope, key, Some(value), expect).await?;
        Ok(outcome.entry.map_or(0, |entry| entry.version))
    }

    /// True if the key has a value.
    pub async fn has(&self, key: &str) -> Result<bool, ToolError> {
        Ok(self.context.state_get(self.scope, key).await?.is_some())
    }

    /// Removes a key. Returns false if there was none.
    pub async fn delete(&self, key: &str) -> Result<bool, ToolError> {
        let existed = self.has(key).await?;
        self.context.state_set(self.scope, key, None, Expect::Any).await?;
        Ok(existed)
    }

    /// Removes a key if its present entry is as expected.
    pub async fn delete_if(&self, key: &str, expect: Expect) -> Result<(), ToolError> {
        self.context.state_set(self.scope, key, None, expect).await.map(drop)
    }

    /// Returns all entries by key.
    pub async fn all<T: DeserializeOwned>(&self) -> Result<BTreeMap<String, T>, ToolError> {
        let mut all = BTreeMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.context.state_list(self.scope, after.as_deref(), PAGE_SIZE).await?;
            let is_last = page.len() < PAGE_SIZE;
            for entry in page {
                all.insert(entry.key.clone(), read(&entry.key, entry.value)?);
                after = Some(entry.key);
            }
            if is_last {
                return Ok(all);
            }
        }
    }
}

fn read<T: DeserializeOwned>(key: &str, value: serde_json::Value) -> Result<T, ToolError> {
    serde_json::from_value(value)
        .map_err(|error| ToolError(format!("the value of {key:?} has another type: {error}")))
}
