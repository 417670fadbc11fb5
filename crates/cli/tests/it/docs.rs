//! Checks the documents against the code.

use std::fmt::Write as _;

use mainspring::Config;
use mainspring::config::{ADAPTER_SETTINGS, AdapterConfig, SETTINGS, Sources, VARIABLES};
use mainspring::core::Body;

use crate::cli::run;

pub(crate) fn document(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_documented_event_types_match_the_code() {
    let text = document("docs/events.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.collect::<Vec<_>>(), Body::TYPES);
}

/// Lists the subcommands in the help of a command, and the empty name if the command works without one.
fn subcommands(command: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let help = run(folder.path(), &[command, &["--help"]].concat()).out;
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
    let alone = (!usage.contains("<COMMAND>")).then(String::new);
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    // The rest of a long description is indented further.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().map(str::to_owned));
    alone.into_iter().chain(names.filter(|name| !name.is_empty() && name != "help")).collect()
}

#[test]
fn the_documented_commands_match_the_program() {
    let mut commands = vec![];
    for noun in subcommands(&[]) {
        let verbs = subcommands(&[&noun]);
        commands.extend(verbs.iter().map(|verb| format!("{noun} {verb}").trim_end().to_owned()));
    }
    let text = document("docs/commands.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.collect::<Vec<_>>(), commands, "docs/commands.md against `mainspring --help`");
}

#[test]
fn the_documented_settings_match_the_code() {
    let mut table = String::new();
    for setting in SETTINGS {
        let alias = setting.alias().map(|alias| format!(", `{alias}`")).unwrap_or_default();
        let default = match setting.default().to_string() {
            empty if empty.is_empty() => "none".to_owned(),
            default => format!("`{default}`"),
        };
        writeln!(
            table,
            "| `{}` | {} | {} | `{}`{alias} | {} |",
            setting.key,
            default,
            setting.allowed(),
            setting.variable(),
            setting.description().trim(),
        )
        .unwrap();
    }
    let text = document("docs/configuration.md");
    assert!(text.contains(&table), "docs/configuration.md should hold:\n{table}");
    for variable in VARIABLES {
        assert!(text.contains(&format!("`{}`", variable.name)), "{} is not documented", variable.name);
    }
}

#[test]
fn the_documented_adapter_settings_match_the_code() {
    let mut table = String::new();
    for setting in ADAPTER_SETTINGS {
        writeln!(
            table,
            "| `{}` | {} | {} | {} |",
            setting.key,
            setting.default,
            setting.allowed(),
            setting.description
        )
        .unwrap();
    }
    let text = document("docs/adapters.md");
    assert!(text.contains(&table), "docs/adapters.md should hold:\n{table}");
}

#[test]
fn the_servers_of_the_compose_file_have_valid_configurations() {
    let text = document("examples/cluster/compose.yaml");
    let variables = |part: &str| -> Vec<(String, String)> {
        let settings = part.lines().filter_map(|line| line.trim().split_once(": "));
        let settings = settings.filter(|(name, _)| name.starts_with("MAINSPRING_"));
        settings.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect()
    };
    let (shared, services) = text.split_once("\nservices:\n").unwrap();
    let shared = variables(shared);
    let servers: Vec<&str> = services.split("<<: *server").skip(1).collect();
    assert_eq!(servers.len(), 3);
    let mut addresses = vec![];
    for server in servers {
        let (folder, env) = (tempfile::tempdir().unwrap(), [shared.clone(), variables(server)].concat());
        let (cwd, home) = (folder.path().to_owned(), Some(folder.path().to_owned()));
        let mut sources = Sources::default();
        (sources.env, sources.cwd, sources.home) = (env, cwd, home);
        let config = Config::load(&sources).unwrap().config;
        assert!(config.cluster.spread && config.insecure_http && config.cluster.secret_file.is_some());
        assert!(config.store.is_some());
        addresses.push(config.cluster.address.unwrap());
    }
    assert_eq!(addresses, ["http://a:7433", "http://b:7433", "http://c:7433"]);
    // The image is built with the toolchain that the project needs.
    let version = env!("CARGO_PKG_RUST_VERSION");
    assert!(document("examples/cluster/Dockerfile").contains(&format!("FROM rust:{version}-")), "{version}");
}

#[test]
fn the_adapter_examples_are_valid_configurations() {
    let text = document("docs/adapters.md");
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mainspring.toml");
        std::fs::write(&file, example).unwrap();
        let (cwd, home) = (folder.path().to_owned(), Some(folder.path().to_owned()));
        let mut sources = Sources::default();
        (sources.file, sources.cwd, sources.home) = (Some(file), cwd, home);
        let config = Config::load(&sources).unwrap_or_else(|error| panic!("{error}:\n{example}")).config;
        // The native adapter is built in.
        let has_kind =
            |(name, adapter): (&String, &AdapterConfig)| adapter.kind.is_some() || name == "native";
        assert!(config.adapters.iter().all(has_kind), "{example}");
    }
}

#[test]
fn the_script_examples_parse() {
    let text = document("docs/script.md");
    let examples: Vec<&str> =
        text.split("```script\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() > 3);
    for example in examples {
        let commands = mainspring_core::script::parse(example).unwrap();
        let is_echo = |command: &mainspring_core::script::Command| matches!(command, mainspring_core::script::Command::Say(text) if text.starts_with("You said:"));
        assert!(!commands.is_empty() && !commands.iter().any(is_echo), "{example}: {commands:?}");
    }
}

#[test]
fn links_in_the_documents_exist() {
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "docs/adapters.md",
        "docs/bridge.md",
        "docs/commands.md",
        "docs/decisions/0009-a-lost-query-is-asked-again.md",
        "docs/events.md",
        "docs/script.md",
        "docs/configuration.md",
        "docs/http.md",
        "docs/jsonl.md",
        "docs/metrics.md",
        "docs/models.md",
        "docs/serving.md",
    ] {
        let text = document(name);
        let folder = std::path::Path::new(name).parent().unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") || link.starts_with('#') {
                continue;
            }
            let link = link.split('#').next().unwrap_or_default();
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join(link);
            assert!(path.exists(), "{name} links to {link}, which does not exist");
        }
    }
}
