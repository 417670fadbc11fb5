//! Tools from Rust functions. The schema is derived from the type of the arguments.

use std::future::Future;
use std::marker::PhantomData;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{Tool, ToolCall, ToolError, ToolTraits};
use crate::provider::ToolSpec;

/// A tool from a Rust function.
pub struct FunctionTool<F, I> {
    spec: ToolSpec,
    traits: ToolTraits,
    function: F,
    input: PhantomData<fn(I)>,
}

/// Creates the tool `name`, which calls `function`.
pub fn function<F, I, R>(name: &str, description: &str, function: F) -> FunctionTool<F, I>
where
    F: Fn(ToolCall, I) -> R + Send + Sync + 'static,
    I: DeserializeOwned + JsonSchema + 'static,
    R: Future<Output = Result<String, ToolError>> + Send,
{
    let schema = schemars::schema_for!(I).to_value();
    let spec = ToolSpec { name: name.into(), description: description.into(), schema };
    FunctionTool { spec, traits: ToolTraits::default(), function, input: PhantomData }
}

impl<F, I> FunctionTool<F, I> {
    /// Marks the tool as one that reads or changes more than its session: an agent definition must name it.
    #[must_use]
    pub fn leaves_session(mut self) -> Self {
        self.traits.leaves_session = true;
        self
    }

    /// Declares that a second call with the same id does no harm.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.traits.idempotent = true;
        self
    }

    /// Sets the timeout in milliseconds.
    #[must_use]
    pub fn timeout(mut self, millis: u64) -> Self {
        self.traits.timeout_ms = millis;
        self
    }
}

#[async_trait]
impl<F, I, R> Tool for FunctionTool<F, I>
where
    F: Fn(ToolCall, I) -> R + Send + Sync + 'static,
    I: DeserializeOwned + 'static,
    R: Future<Output = Result<String, ToolError>> + Send,
{
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn traits(&self) -> ToolTraits {
        self.traits
    }

    async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        let input = serde_json::from_value(call.input.clone());
        let input = input.map_err(|error| ToolError(format!("the arguments cannot be parsed: {error}")))?;
        (self.function)(call, input).await
    }
}
