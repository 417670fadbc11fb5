//! Adapters, their logins, models, and the control tools.

use mainspring_api::control::ControlTool;
use mainspring_api::{Capabilities, Login};
use mainspring_core::{AuthMethod, ModelList};
use reqwest::Method;

use super::{Client, with_json};
use crate::Error;

impl Client {
    /// Lists the adapters with their capabilities.
    pub async fn adapter_list(&self) -> Result<Vec<Capabilities>, Error> {
        self.get(&["v1", "adapters"], &()).await
    }

    /// Lists the login methods that an adapter's agent has reported. An agent reports them once it has been started.
    pub async fn login_list(&self, adapter: &str) -> Result<Vec<AuthMethod>, Error> {
        self.get(&["v1", "adapters", adapter, "logins"], &()).await
    }

    /// Logs in to an adapter's agent. Returns once the person has finished.
    pub async fn login_create(&self, adapter: &str, method: &str) -> Result<(), Error> {
        let login = Login { method_id: method.to_owned() };
        let request = self.request(Method::POST, &["v1", "adapters", adapter, "logins"]);
        self.send_unlimited(with_json(request, &login)?).await.map(drop)
    }

    /// Lists the control tools with their schemas.
    pub async fn tool_list(&self) -> Result<Vec<ControlTool>, Error> {
        self.get(&["v1", "tools"], &()).await
    }

    /// Lists the configured models and providers.
    pub async fn model_list(&self) -> Result<ModelList, Error> {
        self.get(&["v1", "models"], &()).await
    }
}
