//! Published agents, unmodified, in the sandbox of a workspace, with the scripted model server as their model: each edits,
//! builds and commits there and writes nothing elsewhere, and a cancel ends its commands.

use std::path::Path;

use mainspring::config::Permissions;
use mainspring::core::SandboxProfile;
use mainspring_model_server::{ModelServer, Protocol};
use serde_json::{Value, json};

use super::*;

/// A published agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agent {
    Claude,
    Codex,
    Gemini,
    Opencode,
    Pi,
    PiAcp,
}

impl Agent {
    /// The agent's command.
    fn command(self) -> Vec<PathBuf> {
        let modules = installed().join("node_modules");
        let script = |path: &str| vec![node(), modules.join(path)];
        match self {
            Self::Claude => script("@agentclientprotocol/claude-agent-acp/dist/index.js"),
            Self::Codex => script("@agentclientprotocol/codex-acp/dist/index.js"),
            Self::Gemini => [script("@google/gemini-cli/bundle/gemini.js"), vec!["--acp".into()]].concat(),
            Self::Opencode => vec![modules.join("opencode-linux-x64/bin/opencode"), "acp".into()],
            Self::Pi => {
                let pi = script("@earendil-works/pi-coding-agent/dist/bundle/cli.js");
                [pi, vec!["--mode".into(), "rpc".into()]].concat()
            }
            Self::PiAcp => script("pi-acp/dist/index.js"),
        }
    }

    /// Writes the agent's settings into the folder `home` and returns its variables.
    fn set_up(self, home: &Path, model: &ModelServer) -> Vec<(&'static str, String)> {
        let write = |path: &str, text: &str| {
            let path = home.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let chat = model.base_url(Protocol::Chat);
        let chat = chat.trim_end_matches('/');
        match self {
            Self::Claude => vec![
                ("ANTHROPIC_BASE_URL", model.url()),
                ("ANTHROPIC_API_KEY", "fake".into()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()),
            ],
            Self::Codex => {
                let config = format!(
                    "model = \"stub-1\"\nmodel_provider = \"stub\"\n[model_providers.stub]\nname = \"stub\"\n\
                     base_url = {chat:?}\nwire_api = \"responses\"\nrequires_openai_auth = false\n"
                );
                write(".codex/config.toml", &config);
                vec![("NO_BROWSER", "1".into())]
            }
            // With a fixed model, Gemini does not ask a model to classify the prompt, which the scripted model cannot
            // do.
            Self::Gemini => vec![
                ("GOOGLE_GEMINI_BASE_URL", model.url()),
                ("GEMINI_API_KEY", "fake".into()),
                ("GEMINI_MODEL", "gemini-2.5-flash".into()),
            ],
            Self::Opencode => {
                let settings = json!({
                    "autoupdate": false, "model": "stub/stub-1", "small_model": "stub/stub-1",
                    "enabled_providers": ["stub"],
                    "provider": {"stub": {"npm": "@ai-sdk/openai-compatible",
                        "options": {"baseURL": chat, "apiKey": "fake"},
                        "models": {"stub-1": {"tool_call": true, "limit": {"context": 100_000, "output": 8_000}}}}},
                });
                write(".config/opencode/opencode.json", &settings.to_string());
                ["OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH"]
                    .map(|name| (name, "1".into()))
                    .into()
            }
            Self::Pi | Self::PiAcp => {
                let model = json!({"id": "stub-1", "reasoning": false, "input": ["text"], "contextWindow": 100_000,
                    "maxTokens": 8_000, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}});
                let provider = json!({"baseUrl": chat, "api": "openai-completions", "apiKey": "fake", "models": [model]});
                write(".pi/agent/models.json", &json!({"providers": {"stub": provider}}).to_string());
                let settings = json!({"defaultProvider": "stub", "defaultModel": "stub-1"});
                write(".pi/agent/settings.json", &settings.to_string());
                vec![("PI_OFFLINE", "1".into())]
            }
        }
    }

    /// Returns a prompt that makes the agent run a command.
    fn run_command(self, command: &str) -> String {
        let (tool, input): (&str, Value) = match self {
            Self::Codex => ("exec_command", json!({"cmd": command})),
            Self::Claude => ("Bash", json!({"command": command, "description": "runs it"})),
            Self::Gemini => ("run_shell_command", json!({"command": command, "description": "runs it"})),
            Self::Opencode => ("bash", json!({"command": command, "description": "runs it"})),
            Self::Pi | Self::PiAcp => ("bash", json!({"command": command})),
        };
        format!("tool {tool} {input}\nsay done")
    }

    /// Opens a node with this agent. All its permission requests are allowed, so that only the sandbox restricts it.
    async fn open(self, model: &ModelServer) -> World {
        let kind = if self == Self::Pi { AdapterKind::Pi } else { AdapterKind::Acp };
        let set_up = |adapter: &mut AdapterConfig| {
            let folder = folder_of(adapter);
            std::fs::create_dir_all(folder.join("work")).unwrap();
            let programs = [node().parent().unwrap().to_owned(), installed().join("node_modules/.bin")];
            let inherited = std::env::var_os("PATH").unwrap();
            let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&inherited)));
            let home = folder.join("home");
            let env = adapter.env.get_or_insert_default();
            env.insert("HOME".into(), home.to_string_lossy().into_owned());
            env.insert("PATH".into(), path.unwrap().into_string().unwrap());
            env.extend(self.set_up(&home, model).into_iter().map(|(name, value)| (name.to_owned(), value)));
            let command = self.command();
            adapter.command = Some(command.iter().map(|word| word.to_string_lossy().into_owned()).collect());
            adapter.cwd = Some(folder.join("work"));
            adapter.permissions = Some(Permissions::Legacy);
            adapter.sandbox = Some(SandboxProfile::Workspace);
            adapter.auth_method = (self == Self::Gemini).then(|| "gemini-api-key".to_owned());
        };
        let mut world = World::open(kind, set_up).await;
        // Time for the agent to stop on a busy machine.
        world.config.cancel_grace_ms = 20_000;
        world.reopen().await;
        world
    }
}

/// Has an agent edit, build and commit in its working folder, and write elsewhere.
async fn works_in_its_workspace_only(agent: Agent) {
    let model = ModelServer::start().await.unwrap();
    let world = agent.open(&model).await;
    let work = world.folder.path().join("work");
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").current_dir(&work).args(arguments).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "--quiet"]);
    // Not in the system's temporary folder, which a workspace may write.
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(work.join("main.c"), "int main(void) { return 1; }\n").unwrap();
    let build = "sed -i 's/return 1/return 0/' main.c && cc main.c -o main && ./main && touch built";
    let commit = "git add main.c && git -c user.name=a -c user.email=a@b commit --quiet -m built";
    for command in [build, commit, &format!("touch {}/written", outside.path().display())] {
        let run = world.run_to_end("a", &agent.run_command(command)).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
    }
    assert!(work.join("built").exists(), "{}", world.last_message("a").await.text());
    assert_eq!(git(&["log", "--format=%s"]), "built\n");
    assert!(
        !outside.path().join("written").exists(),
        "the agent's own sandbox is off, but that of mainspring is not"
    );
    // A run that may only answer writes nothing.
    let ask = RunRequest { mode: Mode::Ask, ..request("b", &agent.run_command("touch answered")) };
    let run = world.send(ask).await;
    world.wait_ended(run).await;
    assert!(!work.join("answered").exists());
    world.close().await;
}

/// Cancels a turn whose command has started others, one of them in another session.
async fn a_cancel_ends_every_command(agent: Agent) {
    let model = ModelServer::start().await.unwrap();
    let world = agent.open(&model).await;
    let sleeps = || {
        let name = |pid: rustix::process::Pid| {
            std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap_or_default()
        };
        world.agent_pids().into_iter().filter(|pid| name(*pid) == "sleep\n").count()
    };
    let command = "setsid sh -c 'sleep 4322 & sleep 4322' & sleep 4322";
    let run = world.prompt("a", &agent.run_command(command)).await;
    let started = async {
        while sleeps() < 3 {
            crate::pace::pause().await;
        }
    };
    with_timeout(started).await;
    with_timeout(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(sleeps(), 0, "cancelled means stopped");
    let text = world.prompt_answer("a", "say still here").await;
    assert!(text.contains("still here"), "{text}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_works_in_its_workspace_only() {
    works_in_its_workspace_only(Agent::Claude).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_works_in_its_workspace_only() {
    works_in_its_workspace_only(Agent::Codex).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_works_in_its_workspace_only() {
    works_in_its_workspace_only(Agent::Gemini).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_works_in_its_workspace_only() {
    works_in_its_workspace_only(Agent::Opencode).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_works_in_its_workspace_only() {
    works_in_its_workspace_only(Agent::Pi).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_acp_works_in_its_workspace_only() {
    works_in_its_workspace_only(Agent::PiAcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_every_command_of_claude() {
    a_cancel_ends_every_command(Agent::Claude).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_every_command_of_codex() {
    a_cancel_ends_every_command(Agent::Codex).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_every_command_of_gemini() {
    a_cancel_ends_every_command(Agent::Gemini).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_every_command_of_pi_acp() {
    a_cancel_ends_every_command(Agent::PiAcp).await;
}
