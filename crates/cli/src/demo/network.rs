//! The network of the demo: a planner, two workers in parallel and a verifier, on the scripted model.

use std::path::Path;

use anstyle::AnsiColor;
use mainspring_core::Mode;
use mainspring_kernel::kernel::{Kernel, NewSession, RunRequest};

use super::runner::DemoRunner;
use super::scenario::Scenario;
use crate::drawing;
use crate::error::CliError;

const NETWORK_SCENARIO: Scenario = Scenario {
    key: "network",
    description: "four agents in one run",
    prompt: "Count the ticks twice, and check the counts.",
    colour: AnsiColor::Cyan,
};

/// The definitions: file name and content. The lines `script:` tell the scripted model what each agent does.
const DEFINITIONS: [(&str, &str); 4] = [
    (
        "planner.toml",
        r#"id = "planner"
description = "Plans the work."
system = """You plan.
script: say Two workers count at the same time.; tool state_set {"key": "plan", "value": ["count", "count again"]}"""
"#,
    ),
    (
        "worker.toml",
        r#"id = "worker"
description = "Counts."
system = """You count.
script: sleep 200ms; tool state_set {"key": "counts", "value": [42]}; say I counted 42."""
"#,
    ),
    (
        "verifier.toml",
        r#"id = "verifier"
description = "Checks the counts."
system = """You verify. The counts: {{ network.state.counts }}
script: say Both counts agree: APPROVED"""
"#,
    ),
    (
        "team.toml",
        r#"id = "team"
description = "A planner, two workers in parallel and a verifier."
[network]
max_iter = 8
members = [
    { agent = "planner@1" },
    { agent = "worker@1", name = "left" },
    { agent = "worker@1", name = "right" },
    { agent = "verifier@1" },
]
[network.router]
rules = [
    { when = "calls == 0", to = ["planner"] },
    { when = "'APPROVED' in last.text", to = [] },
    { when = "last.agent == 'planner'", to = [["left", "right"], "verifier"] },
]
"#,
    ),
];

/// Writes the definitions of the network into the folder of agents.
pub(super) fn write_definitions(agents: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(agents)?;
    for (name, content) in DEFINITIONS {
        std::fs::write(agents.join(name), content)?;
    }
    Ok(())
}

impl DemoRunner<'_> {
    /// Runs the network and draws the route of the run.
    pub(super) async fn run_network(&self, kernel: &Kernel) -> Result<(), CliError> {
        let scenario = &NETWORK_SCENARIO;
        let mut request = RunRequest::text(scenario.key, scenario.prompt);
        request.mode = Mode::Act;
        request.session.new = NewSession {
            title: Some(scenario.description.into()),
            agent_definition: Some("team@1".into()),
            ..NewSession::default()
        };
        let accepted = kernel.run_create(&self.caller, request).await?;
        let run = self.follow(kernel, scenario, &accepted.run, accepted.position).await?;
        let route = kernel.run_route(&self.caller, run.id).await?;
        for line in drawing::route_text(&route).lines() {
            self.print_line(&format!("  {line}"))?;
        }
        if self.output.json {
            self.output.print_json(&run)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mainspring_agent::Definitions;

    use super::*;

    #[test]
    fn the_definitions_of_the_demo_are_valid() {
        let folder = tempfile::tempdir().expect("a folder");
        write_definitions(folder.path()).expect("written");
        let definitions = Definitions::new(Some(folder.path().to_owned()));
        for listed in definitions.list() {
            assert_eq!(listed.definition.as_ref().err(), None, "{:?}", listed.path);
        }
        assert!(definitions.find("team@1").expect("the network").network.is_some());
    }
}
