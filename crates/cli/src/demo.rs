//! `mainspring demo`: shows the main features on a fresh state directory. Agents run on the native loop, which calls a
//! scripted model over HTTP in this process: no API key is needed, and everything but the model is real.

use std::path::{Path, PathBuf};

use clap::Args;
use mainspring::Node;
use mainspring::config::Config;
use mainspring_agent::models::{DEFAULT_PROFILE, SCRIPTED};
use mainspring_agent::{ModelsConfig, Toolbox, native};
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::store::SessionRef;

use super::error::{CliError, Exit};
use super::output::DIM;
use super::{Context, drawing};

mod cluster;
mod crash;
mod network;
mod runner;
mod scenario;
mod tool;

use runner::DemoRunner;
use scenario::SCENARIOS;

/// Show the main features in a temporary directory, without any configuration
#[derive(Args)]
pub(super) struct Demo {
    /// Use this directory and keep it afterwards
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Show three servers on one PostgreSQL, of which one is killed; PostgreSQL must be installed
    #[arg(long, conflicts_with = "keep")]
    cluster: bool,
}

impl Demo {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        if self.cluster {
            let runner = DemoRunner { output: context.output, caller: Caller::new("demo") };
            return Box::pin(runner.run_cluster()).await;
        }
        let temporary = tempfile::tempdir()?;
        let dir = self.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
        let config = config(&dir)?;
        network::write_definitions(&dir.join("agents"))?;
        let runner = DemoRunner { output: context.output, caller: Caller::new("demo") };
        runner.print_title("Six agents side by side")?;
        runner.print_line(&format!(
            "{DIM}The native agent calls a scripted model over HTTP: no key is needed.{DIM:#}"
        ))?;
        let tools = Toolbox::new().with(tool::Add).map_err(|bad| CliError::bad_request(bad.to_string()))?;
        let node = Node::builder(config.clone()).tools(tools).open().await?;
        let kernel = node.kernel();
        let [stream, tool, retry, cancel, ask, branch] = &SCENARIOS;
        let (a, b, c, d, e, f) = tokio::join!(
            runner.run_scenario(kernel, stream),
            runner.run_scenario(kernel, tool),
            runner.run_scenario(kernel, retry),
            runner.run_scenario(kernel, cancel),
            runner.run_scenario(kernel, ask),
            runner.run_branch_scenario(kernel, branch),
        );
        let runs = [a?, b?, c?, d?, e?, f?];

        runner.print_title("How they ended")?;
        runner.print_summary(kernel, &runs).await?;
        runner.print_title("The tree of \"branch\": ● is the active path; the first answer is kept")?;
        let by = SessionRef::Key("branch".into());
        let nodes = kernel.session_tree(&runner.caller, &by, Default::default()).await?.nodes;
        for line in drawing::to_text(&nodes).lines() {
            runner.print_line(&format!("  {line}"))?;
        }
        runner.print_title("A network in one run: a planner, two workers in parallel, a verifier")?;
        runner.run_network(kernel).await?;
        let before = runner.count_events(kernel).await?;
        node.close().await;

        runner.print_title("Now a process is killed while it streams (kill -9)")?;
        runner.kill_child(&dir).await?;
        let node = Node::open(&config).await?;
        let recovered = runner.show_recovery(node.kernel(), before).await;
        node.close().await;
        recovered?;

        runner.print_line("")?;
        if self.keep.is_some() {
            let dir = dir.display();
            runner.print_line(&format!(
                "Kept in {dir}: mainspring --config {dir}/{CONFIG_FILE} session list"
            ))?;
        }
        runner.print_line("Try it yourself: mainspring chat")?;
        Ok(Exit::Done)
    }
}

/// Name of the configuration file within the demo's folder.
const CONFIG_FILE: &str = "demo.toml";

/// Builds the demo's configuration, independent of the user's. Also written to a file, for the process that is killed
/// and for a folder that is kept.
fn config(dir: &Path) -> Result<Config, CliError> {
    let models = format!("[models.{DEFAULT_PROFILE}]\nprovider = \"{SCRIPTED}\"\nmodel = \"demo\"\n");
    std::fs::create_dir_all(dir)?;
    let file = format!("state_dir = \".\"\nowner = \"demo\"\nadapter = \"{}\"\n\n{models}", native::NAME);
    std::fs::write(dir.join(CONFIG_FILE), file)?;
    let models: ModelsConfig =
        toml::from_str(&models).map_err(|error| CliError::bad_request(error.to_string()))?;
    let mut config = Config::with_state_dir(dir);
    config.retry.base_ms = 400;
    Ok(config.adapter(native::NAME.into()).models(models))
}
