//! The script agent under another name, with model profiles. It writes an artifact in every attempt.

use async_trait::async_trait;
use mainspring_adapters::ScriptAdapter;
use mainspring_core::{AttemptId, RunOption};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, Executed, NewArtifact,
};

/// The only profile.
const PROFILE: &str = "worker";

pub(crate) struct ProfiledAdapter;

#[async_trait]
impl Adapter for ProfiledAdapter {
    fn capabilities(&self) -> Capabilities {
        let options = vec![RunOption::Model, RunOption::ModelProfile];
        Capabilities { adapter: "profiled".into(), options, ..ScriptAdapter.capabilities() }
    }

    fn check_profile(&self, profile: &str) -> Result<(), String> {
        if profile == PROFILE { Ok(()) } else { Err(format!("no profile {profile:?}; there is {PROFILE}")) }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let new = NewArtifact { name: Some("log.txt".into()), ..NewArtifact::default() };
        attempt.artifact(new, &mut &b"started"[..]).await.unwrap();
        ScriptAdapter.execute(attempt).await
    }

    async fn cancel(&self, attempt: AttemptId) -> Dispatch {
        ScriptAdapter.cancel(attempt).await
    }

    async fn kill(&self, attempt: AttemptId) -> Death {
        ScriptAdapter.kill(attempt).await
    }

    fn forget(&self, native: &str) {
        ScriptAdapter.forget(native);
    }
}
