//! `mainspring run retry`

use clap::Args;
use mainspring_client::RetryOptions;

use crate::limits::LimitArgs;

#[derive(Args)]
pub(crate) struct RetryArgs {
    /// Run id, or its beginning
    pub(super) run: String,
    /// Adapter that continues the run [default: the run's]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Model that continues the run
    #[arg(long, value_name = "NAME", conflicts_with = "model_profile")]
    model: Option<String>,
    /// Model profile that continues the run
    #[arg(long, alias = "profile", value_name = "NAME")]
    model_profile: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
}

impl RetryArgs {
    pub(super) fn options(&self) -> RetryOptions {
        RetryOptions {
            adapter: self.adapter.clone(),
            model: self.model.clone(),
            model_profile: self.model_profile.clone(),
            limits: self.limits.limits(),
        }
    }
}
