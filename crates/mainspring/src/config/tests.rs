use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use mainspring_core::{Fallback, Limits, Quotas, SandboxProfile, Supervision};
use tempfile::TempDir;

use super::*;

/// An isolated machine: `project` is the current folder, `home` the user's home directory.
struct Machine {
    root: TempDir,
    sources: Sources,
}

impl Machine {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let (cwd, home) = (root.path().join("project"), root.path().join("home"));
        fs::create_dir_all(&cwd).unwrap();
        fs::create_dir_all(&home).unwrap();
        Self { root, sources: Sources { cwd, home: Some(home), ..Sources::default() } }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Writes a file and names it with `--config`.
    fn file(mut self, text: &str) -> Self {
        self.sources.file = Some("mainspring.toml".into());
        self.file_at("project/mainspring.toml", text)
    }

    fn file_at(self, path: &str, text: &str) -> Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.sources.env.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Self {
        self.sources.flags.push((key.into(), value.into()));
        self
    }

    fn load(&self) -> Resolved {
        Config::load(&self.sources).unwrap()
    }

    /// The problems as text, with the machine's root folder written as `$`.
    fn problems(&self) -> String {
        let error = Config::load(&self.sources).unwrap_err();
        error.to_string().replace(self.root.path().to_str().unwrap(), "$")
    }
}

fn machine() -> Machine {
    Machine::new()
}

mod goal_types;
mod secrets;
mod trust;

#[test]
fn the_defaults_are_as_documented() {
    let machine = machine();
    let Resolved { config, origins, file, ignored } = machine.load();
    assert_eq!(config.state_dir, machine.path("home/.local/state/mainspring"));
    assert_eq!(
        config,
        Config {
            state_dir: config.state_dir.clone(),
            agents_dir: machine.path("home/.local/state/mainspring/agents"),
            store: None,
            owner: "local".into(),
            adapter: "script".into(),
            max_workers: 8,
            max_in_process_runs: 256,
            durability: Durability::Full,
            cancel_grace_ms: 5000,
            wait_expiry_hours: 24,
            idle_unload_ms: 30_000,
            readers: 4,
            on_orphan: OnOrphan::Leave,
            titles: Titles::Heuristic,
            tool_result_bytes: 64 << 10,
            goal_reminders: 3,
            listen: "127.0.0.1:7433".into(),
            url: None,
            allowed_hosts: vec![],
            tls_cert: None,
            tls_key: None,
            insecure_http: false,
            tls_ca: None,
            cors_origins: vec![],
            webhooks_private: false,
            threads: false,
            on_attention: vec![],
            drain_ms: 10_000,
            rules: vec![],
            log: "warn".into(),
            guard: vec![],
            memory_command: vec![],
            supervision: Supervision::Tree,
            limits: Limits::default(),
            http: mainspring_http::HttpLimits::default(),
            oidc: mainspring_http::OidcConfig::default(),
            stdio: Stdio { tool_timeout_ms: 120_000, line_bytes: 32 << 20 },
            audit: Audit {
                file_bytes: 16 << 20,
                keep_bytes: 1 << 30,
                keep_days: 365,
                on_failure: mainspring_kernel::audit::OnAuditFailure::Refuse
            },
            artifacts: mainspring_core::ArtifactRetention { keep_days: 0, keep_bytes: 0 },
            artifact_store: ArtifactStore {
                url: None,
                endpoint: None,
                region: None,
                credentials_file: None,
                allow_http: false
            },
            cluster: Cluster {
                address: None,
                name: None,
                secret_file: None,
                lease_ms: 10_000,
                spread: false,
                folders: vec![],
                labels: vec![],
                max_workers: 0,
                max_in_process_runs: 0,
                listen_url: None
            },
            retry: Retry { base_ms: 500, max_ms: 30_000 },
            quotas: Quotas::default(),
            adapters: BTreeMap::new(),
            owners: BTreeMap::new(),
            models: ModelsConfig::default(),
            goal_types: vec![],
            config_file: None,
        }
    );
    assert!(origins.is_empty());
    assert_eq!((file, ignored), (None, vec![]));
}

#[test]
fn every_default_is_allowed_by_its_rule() {
    let machine = machine();
    for setting in SETTINGS {
        let value = setting.default();
        let resolved = Machine { root: TempDir::new().unwrap(), sources: machine.sources.clone() }
            .flag(setting.key, &value.to_string())
            .load();
        if !["state_dir", "agents_dir"].contains(&setting.key) {
            assert_eq!(setting.value(&resolved.config), value, "{}", setting.key);
        }
        assert!(resolved.origins.contains_key(setting.key), "{}", setting.key);
    }
}

#[test]
fn every_setting_has_unique_names_and_a_description() {
    let variables: std::collections::BTreeSet<_> = SETTINGS.iter().map(Setting::variable).collect();
    let flags: std::collections::BTreeSet<_> = SETTINGS.iter().map(Setting::flag).collect();
    assert_eq!(variables.len(), SETTINGS.len());
    assert_eq!(flags.len(), SETTINGS.len());
    assert!(variables.contains("MAINSPRING_LIMITS_PROMPT_BYTES"));
    assert!(flags.contains("--limits-prompt-bytes"));
    for setting in SETTINGS {
        assert!(setting.description().ends_with('.'), "{}", setting.key);
        assert!(!setting.allowed().is_empty(), "{}", setting.key);
        assert!(!VARIABLES.iter().any(|other| other.name == setting.variable()), "{}", setting.key);
    }
}

#[test]
fn each_layer_overrides_the_one_before() {
    let machine = machine().file("max_workers = 2");
    assert_eq!(machine.load().config.max_workers, 2);
    let machine = machine.env("OMI_AGENT_MAX_WORKERS", "3");
    assert_eq!(machine.load().config.max_workers, 3);
    let machine = machine.env("MAINSPRING_MAX_WORKERS", "4");
    assert_eq!(machine.load().config.max_workers, 4);
    let machine = machine.flag("max_workers", "5");
    assert_eq!(machine.load().config.max_workers, 5);
    let machine = machine.flag("max_workers", "6");
    assert_eq!(machine.load().config.max_workers, 6);
}

#[test]
fn an_alias_is_used_only_without_the_proper_name() {
    let machine = machine().env("MAINSPRING_MAX_WORKERS", "4").env("OMI_AGENT_MAX_WORKERS", "many");
    assert_eq!(machine.load().config.max_workers, 4);
    let machine = Machine::new().env("OMI_AGENT_STATE_DIR", "/srv/state");
    let resolved = machine.load();
    assert_eq!(resolved.config.state_dir, PathBuf::from("/srv/state"));
    assert_eq!(resolved.origins["state_dir"].to_string(), "OMI_AGENT_STATE_DIR");
    let machine = Machine::new().env("OMI_AGENT_MAX_WORKERS", "many");
    assert_eq!(
        machine.problems(),
        r#"max_workers = "many" (OMI_AGENT_MAX_WORKERS): must be a whole number from 1 to 1024"#
    );
}

#[test]
fn every_layer_is_checked_even_where_it_is_overridden() {
    let machine =
        machine().file("max_workers = 0").env("MAINSPRING_MAX_WORKERS", "x").flag("max_workers", "5");
    assert_eq!(
        machine.problems(),
        "max_workers = 0 ($/project/mainspring.toml line 1): must be a whole number from 1 to 1024\n\
         max_workers = \"x\" (MAINSPRING_MAX_WORKERS): must be a whole number from 1 to 1024"
    );
}

#[test]
fn every_kind_of_value_is_read_from_the_file() {
    let machine = machine().file(
        r#"
            state_dir = "state"
            owner = "ada"
            adapter = "acp-claude"
            max_workers = 16
            durability = "normal"
            cancel_grace_ms = 1_000
            wait_expiry_hours = 1
            idle_unload_ms = 0
            readers = 0x2
            on_orphan = "retry"
            titles = "off"
            log = "info,mainspring=debug"
            retry = { base_ms = 1, max_ms = 2 }
            limits.page = 7
            [adapters.pi]
            max_workers = 2
            [adapters.acp-claude]
        "#,
    );
    let Resolved { config, file, .. } = machine.load();
    assert_eq!(file, Some(machine.path("project/mainspring.toml")));
    assert_eq!(config.state_dir, machine.path("project/state"));
    assert_eq!(
        (config.owner.as_str(), config.adapter.as_str(), config.log.as_str()),
        ("ada", "acp-claude", "info,mainspring=debug")
    );
    assert_eq!((config.max_workers, config.readers), (16, 2));
    assert_eq!((config.cancel_grace_ms, config.wait_expiry_hours, config.idle_unload_ms), (1000, 1, 0));
    assert_eq!((config.durability, config.on_orphan), (Durability::Normal, OnOrphan::Retry));
    assert_eq!(config.titles, Titles::Off);
    assert_eq!(config.retry, Retry { base_ms: 1, max_ms: 2 });
    assert_eq!(config.limits.page, 7);
    assert_eq!(config.adapters["pi"].max_workers, Some(2));
}

#[test]
fn nested_keys_are_set_by_variables_and_flags() {
    let machine = machine()
        .env("MAINSPRING_LIMITS_PROMPT_BYTES", "1_000")
        .env("MAINSPRING_ADAPTERS_ACP_CLAUDE_MAX_WORKERS", "3")
        .flag("retry.base_ms", "7")
        .flag("adapters.pi.max_workers", "1");
    let config = machine.load().config;
    assert_eq!(config.limits.prompt_bytes, 1000);
    assert_eq!(config.retry.base_ms, 7);
    assert_eq!(config.adapters["acp-claude"].max_workers, Some(3));
    assert_eq!(config.adapters["pi"].max_workers, Some(1));
}

#[test]
fn quotas_are_set_for_all_owners_and_for_one() {
    let loaded = machine().file(
        r#"
            quotas = { artifacts = 5, streams = 9 }
            [owners.ada]
            artifacts = 7
            [owners."b@example.com"]
            stored_bytes = 1_000_000
        "#,
    );
    let resolved = loaded.load();
    let config = &resolved.config;
    assert_eq!((config.quotas.artifacts, config.quotas.streams, config.quotas.agents), (5, 9, 0));
    let ada = config.owners["ada"].quotas.or(&config.quotas);
    assert_eq!((ada.artifacts, ada.streams), (7, 9));
    assert_eq!(config.owners["b@example.com"].quotas.stored_bytes, Some(1_000_000));
    let rows = resolved.rows();
    let row = rows.iter().find(|row| row.key == "owners.b@example.com.stored_bytes").unwrap();
    assert_eq!((row.value.to_string().as_str(), row.description.is_empty()), ("1000000", false));
    for (wrong, problem) in [
        ("owners = 3", "a table: write [owners.NAME] for each owner"),
        ("[owners.ada]\nartefacts = 3", "owners.ada.artefacts"),
        ("[owners.ada]\nartifacts = -1", "owners.ada.artifacts"),
    ] {
        let error = machine().file(wrong).problems();
        assert!(error.contains(problem), "{wrong}: {error}");
    }
}

#[test]
fn the_file_is_searched_in_order() {
    let machine = machine().file_at("home/.config/mainspring/mainspring.toml", "owner = \"home\"");
    assert_eq!(machine.load().config.owner, "home");
    let xdg = machine.path("xdg").to_str().unwrap().to_owned();
    let machine = machine.env("XDG_CONFIG_HOME", &xdg);
    assert_eq!(machine.load().config.owner, "local", "XDG_CONFIG_HOME replaces ~/.config");
    let machine = machine.file_at("xdg/mainspring/mainspring.toml", "owner = \"xdg\"");
    assert_eq!(machine.load().config.owner, "xdg");
    let machine = machine.file_at("project/mainspring.toml", "owner = \"cwd\"");
    assert_eq!(machine.load().config.owner, "xdg", "the folder's file is not trusted");
    machine.trust();
    assert_eq!(machine.load().config.owner, "cwd");
    let machine =
        machine.file_at("home/own.toml", "owner = \"variable\"").env("MAINSPRING_CONFIG", "~/own.toml");
    assert_eq!(machine.load().config.owner, "variable");
    let mut machine = machine.file_at("project/flag.toml", "owner = \"flag\"");
    machine.sources.file = Some("flag.toml".into());
    assert_eq!(machine.load().config.owner, "flag");
}

#[test]
fn a_named_file_must_exist() {
    let mut machine = machine().env("MAINSPRING_CONFIG", "none.toml");
    assert_eq!(
        machine.problems(),
        "the configuration file $/project/none.toml (named by MAINSPRING_CONFIG) cannot be read: \
         No such file or directory (os error 2); correct its path or make it readable"
    );
    machine.sources.file = Some("nor.toml".into());
    assert!(machine.problems().contains("$/project/nor.toml (named by --config)"));
    let machine = Machine::new().env("MAINSPRING_CONFIG", "");
    assert_eq!(machine.problems(), r#"config = "" (MAINSPRING_CONFIG): must be a path that is not empty"#);
}

#[test]
fn an_unreadable_default_file_is_an_error() {
    let machine = machine();
    fs::create_dir_all(machine.path("home/.config/mainspring/mainspring.toml")).unwrap();
    let problems = machine.problems();
    assert!(
        problems
            .starts_with("the configuration file $/home/.config/mainspring/mainspring.toml cannot be read: "),
        "{problems}"
    );
}

#[test]
fn the_state_directory_is_resolved() {
    let state = |machine: &Machine| machine.load().config.state_dir;
    let machine = machine().env("XDG_STATE_HOME", "relative");
    assert_eq!(state(&machine), machine.path("home/.local/state/mainspring"), "a relative one is ignored");
    let machine = machine.env("XDG_STATE_HOME", "/xdg");
    assert_eq!(state(&machine), PathBuf::from("/xdg/mainspring"));
    let machine =
        machine.file_at("etc/m.toml", "state_dir = \"../state/.\"").env("MAINSPRING_CONFIG", "../etc/m.toml");
    assert_eq!(state(&machine), machine.path("project/../etc/../state"), "relative to the file");
    let machine = machine.env("MAINSPRING_STATE_DIR", "./here/");
    assert_eq!(state(&machine), machine.path("project/here"), "relative to the current folder");
    let machine = machine.flag("state_dir", "~/there");
    assert_eq!(state(&machine), machine.path("home/there"));
    let machine = machine.flag("state_dir", "~");
    assert_eq!(state(&machine), machine.path("home"));
}

#[test]
fn invalid_paths_are_refused() {
    let refused = |value: &str| Machine::new().env("MAINSPRING_STATE_DIR", value).problems();
    assert_eq!(refused(""), r#"state_dir = "" (MAINSPRING_STATE_DIR): must be a path that is not empty"#);
    assert!(refused("~ada/x").contains("without ~ada: only ~ alone is expanded"));
    assert!(refused("a\0b").contains("without NUL"));
    let machine = machine().file("state_dir = ''");
    assert!(machine.problems().contains("mainspring.toml line 1): must be a path that is not empty"));
}

#[test]
fn without_a_home_directory_the_state_directory_must_be_set() {
    let mut machine = machine();
    machine.sources.home = None;
    assert_eq!(machine.problems(), "no folder for state_dir: there is no HOME; set MAINSPRING_STATE_DIR");
    let machine = machine.env("MAINSPRING_STATE_DIR", "~/x");
    assert!(machine.problems().ends_with("must be a path without ~, since there is no HOME"));
    let machine = machine.env("MAINSPRING_STATE_DIR", "/x");
    assert_eq!(machine.sources.variable("MAINSPRING_STATE_DIR"), Some("/x"));
    assert!(Config::load(&machine.sources).is_err(), "the overridden value is checked too");
    let mut machine = Machine::new().flag("state_dir", "/x");
    machine.sources.home = None;
    assert_eq!(machine.load().config.state_dir, PathBuf::from("/x"));
}

#[test]
fn invalid_numbers_are_refused() {
    let number = "must be a whole number from 1 to 1024";
    for value in ["0", "1025", "-1", "8.0", "true", "[8]", "{ a = 1 }", "99999999999999999999", "nan"] {
        let machine = Machine::new().file(&format!("\nmax_workers = {value}"));
        let expected = format!("max_workers = {value} ($/project/mainspring.toml line 2): {number}");
        assert_eq!(machine.problems(), expected);
    }
    let machine = Machine::new().file("max_workers = \"8\"");
    assert!(machine.problems().ends_with("from 1 to 1024, without quotes"));
    for value in
        ["", " ", "0", "1025", "-1", "+1", "8.0", "eight", "_8", "8_", "1__0", "0x8", "99999999999999999999"]
    {
        let machine = Machine::new().flag("max_workers", value);
        assert_eq!(machine.problems(), format!("max_workers = {value:?} (--max-workers): {number}"));
    }
}

#[test]
fn invalid_keywords_and_texts_are_refused() {
    let refused = |key: &str, value: &str| Machine::new().flag(key, value).problems();
    assert_eq!(
        refused("durability", "Full"),
        r#"durability = "Full" (--durability): must be "full" or "normal""#
    );
    assert_eq!(refused("on_orphan", ""), r#"on_orphan = "" (--on-orphan): must be "leave" or "retry""#);
    for value in ["", "a\nb", &"x".repeat(513)] {
        assert!(
            refused("owner", value).ends_with("must be a text of 1 to 512 bytes without control characters")
        );
    }
    for value in ["", "Pi", "1x", "a_b", "a--b", "a-", "-a", "a.b", "ä"] {
        assert!(refused("adapter", value).contains("must be 1 to 64 lower-case letters"), "{value}");
    }
    let machine = Machine::new().file("owner = 5");
    assert!(machine.problems().starts_with("owner = 5 ($/project/mainspring.toml line 1): must be a text"));
}

#[test]
fn addresses_and_host_names_are_checked() {
    for value in ["0.0.0.0:80", "[::]:0", "192.168.1.2:7433"] {
        assert_eq!(Machine::new().flag("listen", value).load().config.listen, value);
    }
    for value in ["localhost:80", "127.0.0.1", "", ":80"] {
        assert!(Machine::new().flag("listen", value).problems().contains("must be an address and a port"));
    }
    let hosts = ["agents.example.com", "10.0.0.7", "::1"];
    let listed = machine().file(r#"allowed_hosts = ["agents.example.com", "10.0.0.7", "::1"]"#);
    let named = machine().env("MAINSPRING_ALLOWED_HOSTS", "agents.example.com, 10.0.0.7,::1");
    assert_eq!(listed.load().config.allowed_hosts, hosts);
    assert_eq!(named.load().config.allowed_hosts, hosts);
    assert_eq!(machine().flag("allowed_hosts", " ").load().config.allowed_hosts, [""; 0]);
    let value = listed.load().rows().into_iter().find(|row| row.key == "allowed_hosts").unwrap().value;
    assert_eq!(serde_json::to_value(value).unwrap(), serde_json::json!(hosts));
    for value in
        [r#""a.example""#, "1", "[1]", r#"["a", 1]"#, r#"["a:80"]"#, r#"["http://a"]"#, r#"[""]"#, r#"["*"]"#]
    {
        let problems = Machine::new().file(&format!("allowed_hosts = {value}")).problems();
        assert!(problems.contains("must be a list of host names"), "{value}: {problems}");
    }
}

#[test]
fn a_log_filter_is_checked() {
    for value in
        ["warn", "INFO", "off", "info,mainspring=debug,rusqlite=off", "mainspring[span]=trace", "hyper"]
    {
        assert_eq!(Machine::new().flag("log", value).load().config.log, value);
    }
    for value in ["", " ", "mainspring=loud", "wran", "warning", "info,debgu"] {
        let problems = Machine::new().flag("log", value).problems();
        assert!(problems.contains("must be a tracing filter such as \"warn\""), "{value}: {problems}");
    }
}

#[test]
fn an_unknown_key_suggests_a_similar_one() {
    let machine = machine().file(
        "max_worker = 1\nprompt_bytes = 1\nzzz = 1\n\"limits.page\" = 1\n\
         [limit]\npage = 1\n[limits]\npgae = 1\n[adapters.pi]\nmax_worker = 1\n",
    );
    let mut problems: Vec<_> = machine.problems().lines().map(str::to_owned).collect();
    problems.sort();
    assert_eq!(
        problems,
        [
            "unknown setting `\"limits.page\"` ($/project/mainspring.toml line 4): did you mean limits.page?",
            "unknown setting `adapters.pi.max_worker` ($/project/mainspring.toml line 10): did you mean adapters.NAME.max_workers?",
            "unknown setting `limit` ($/project/mainspring.toml line 5): did you mean limits?",
            "unknown setting `limits.pgae` ($/project/mainspring.toml line 8): did you mean limits.page?",
            "unknown setting `max_worker` ($/project/mainspring.toml line 1): did you mean max_workers?",
            "unknown setting `prompt_bytes` ($/project/mainspring.toml line 2): did you mean limits.prompt_bytes?",
            "unknown setting `zzz` ($/project/mainspring.toml line 3): remove it; `mainspring config show` lists what there is",
        ]
    );
    assert_eq!(
        Machine::new().flag("max-workers", "1").problems(),
        "unknown setting `max-workers` (--max-workers): did you mean max_workers?"
    );
}

#[test]
fn an_unknown_variable_suggests_a_similar_one() {
    let near = |name: &str| Machine::new().env(name, "1").problems();
    assert_eq!(
        near("MAINSPRING_MAX_WORKER"),
        "unknown variable MAINSPRING_MAX_WORKER: did you mean MAINSPRING_MAX_WORKERS?"
    );
    assert!(near("MAINSPRING_PROMPT_BYTES").ends_with("did you mean MAINSPRING_LIMITS_PROMPT_BYTES?"));
    assert!(near("MAINSPRING_CONFG").ends_with("did you mean MAINSPRING_CONFIG?"));
    assert!(
        near("MAINSPRING_ADAPTERS_PI_MAX_WORKER")
            .ends_with("did you mean MAINSPRING_ADAPTERS_NAME_MAX_WORKERS?")
    );
    assert!(near("MAINSPRING_ADAPTERS__MAX_WORKERS").starts_with("unknown variable"));
    assert!(near("MAINSPRING_ZZZ").ends_with("remove it; `mainspring config show` lists what there is"));
    let others = machine().env("MAINSPRINGS", "1").env("OMI_AGENT_OTHER", "1").env("PATH", "/bin");
    assert!(others.load().origins.is_empty());
}

#[test]
fn fallbacks_are_read_and_must_name_adapters() {
    let file = "[adapters.native]\nfallbacks = [\"pi\", \"script:any/m:7b\"]\n[adapters.pi]\nkind = \"pi\"\n";
    let adapters = machine().file(file).load().config.adapters;
    let fallback = |adapter: &str, model: Option<&str>| Fallback {
        adapter: adapter.into(),
        model: model.map(Into::into),
    };
    assert_eq!(
        adapters["native"].fallbacks.as_deref(),
        Some(&[fallback("pi", None), fallback("script", Some("any/m:7b"))][..])
    );
    let problems = machine().file("[adapters.native]\nfallbacks = [\"native\", \"codx\"]\n").problems();
    for expected in [
        r#"adapters.native.fallbacks names "native" itself: remove it"#,
        r#"adapters.native.fallbacks names "codx", which is no adapter: write [adapters.codx]"#,
    ] {
        assert!(problems.contains(expected), "{expected}\n{problems}");
    }
    let problems = machine().file("[adapters.native]\nfallbacks = [\"pi:\"]\n").problems();
    assert!(problems.contains("must be a list of adapters, each with a model if needed"), "{problems}");
}

#[test]
fn profiles_are_a_table_of_models() {
    let file =
        "[adapters.pi]\nkind = \"pi\"\n[adapters.pi.profiles]\nworker = \"haiku\"\nmain_reasoner = \"a/b\"\n";
    let adapters = machine().file(file).load().config.adapters;
    let profiles = adapters["pi"].profiles.clone().unwrap();
    assert_eq!(
        profiles.into_iter().map(|(name, model)| format!("{name}={model}")).collect::<Vec<_>>(),
        ["main_reasoner=a/b", "worker=haiku"]
    );
    let problems = machine().file("[adapters.pi]\nkind = \"pi\"\nprofiles = { worker = \"\" }\n").problems();
    assert!(problems.contains("must be a table of models in the file"), "{problems}");
    let problems = machine().file("[adapters.native]\nprofiles = { worker = \"x\" }\n").problems();
    assert!(problems.contains("adapters.native.profiles needs a kind"), "{problems}");
}

#[test]
fn tables_and_values_are_not_interchangeable() {
    let machine =
        machine().file("limits = 5\nretry = []\n[max_workers]\na = 1\n[adapters]\npi = 3\nPi = {}\n");
    let problems = machine.problems();
    for expected in [
        "limits = 5 ($/project/mainspring.toml line 1): must be a table: write [limits] and its keys below",
        "retry = [] ($/project/mainspring.toml line 2): must be a table: write [retry] and its keys below",
        "($/project/mainspring.toml line 3): must be a whole number from 1 to 1024",
        "adapters.pi = 3 ($/project/mainspring.toml line 6): must be a table: write [adapters.pi] and its keys below",
        "adapters = \"Pi\" ($/project/mainspring.toml line 7): must be [adapters.NAME], where NAME is 1 to 64",
    ] {
        assert!(problems.contains(expected), "{expected}\n{problems}");
    }
}

#[test]
fn syntax_errors_name_line_and_column() {
    let problems = machine().file("owner = \"a\"\nmax_workers = = 3\n").problems();
    assert!(problems.starts_with("$/project/mainspring.toml line 2, column 15: not TOML: "), "{problems}");
    let problems = machine().file("owner = \"a\"\nowner = \"b\"\n").problems();
    assert!(
        problems.starts_with("$/project/mainspring.toml line 2, column 1: not TOML: duplicate key"),
        "{problems}"
    );
}

#[test]
fn models_are_read_and_checked() {
    let valid = machine().file(
        "[providers.local]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:8080/v1\"\nkey_file = \"key\"\n\
         [models.main_reasoner]\nprovider = \"local\"\nmodel = \"m\"\ntemperature = 0.5\n\
         [prices.m]\ninput = 1.5\noutput = 2\n",
    );
    let models = valid.load().config.models;
    assert_eq!(models.providers["local"].key_file, Some(valid.path("project/key")));
    assert_eq!(models.models["main_reasoner"].temperature, Some(0.5));
    assert_eq!(models.prices["m"].input, 1.5);
    let rows = valid.load().rows();
    let row = |key: &str| {
        rows.iter().find(|row| row.key == key).map(|row| (row.value.to_string(), row.origin.to_string()))
    };
    let line = |line: u32| format!("{} line {line}", valid.path("project/mainspring.toml").display());
    assert_eq!(row("providers.local"), Some(("openai http://127.0.0.1:8080/v1".into(), line(1))));
    assert_eq!(row("models.main_reasoner"), Some(("local/m".into(), line(5))));
    assert_eq!(row("prices.m"), Some(("1.5/2".into(), line(9))));

    let problems = machine().file("\n[models.x]\nprovider = \"y\"\nmodel = \"z\"").problems();
    assert!(
        problems.starts_with(
            "models.x.provider ($/project/mainspring.toml line 3): no provider \"y\"; there is anthropic"
        ),
        "{problems}"
    );
    let problems = machine().file("[providers.x]\nkind = \"openai\"\nkey = \"sk\"").problems();
    assert!(problems.starts_with("$/project/mainspring.toml line 3, column 1: "), "{problems}");
    assert!(problems.contains("unknown field `key`"), "{problems}");
}

#[test]
fn agents_dir_defaults_to_a_folder_of_the_state_directory() {
    let config = machine().flag("state_dir", "/x").load().config;
    assert_eq!(config.agents_dir, PathBuf::from("/x/agents"));
    let config = machine().flag("state_dir", "/x").file("agents_dir = \"mine\"").load().config;
    assert!(config.agents_dir.ends_with("project/mine"));
}

#[test]
fn contradicting_values_are_refused() {
    let machine = machine().file("[retry]\nbase_ms = 40_000").env("MAINSPRING_LIMITS_MESSAGE_BYTES", "5");
    assert_eq!(
        machine.problems(),
        "retry.base_ms = 40000 ($/project/mainspring.toml line 2) is more than retry.max_ms = 30000 (default): \
         lower the first or raise the second\n\
         limits.prompt_bytes = 1048576 (default) is more than limits.message_bytes = 5 \
         (MAINSPRING_LIMITS_MESSAGE_BYTES): lower the first or raise the second"
    );
}

#[test]
fn rows_list_every_value_with_its_origin() {
    let machine = machine().file("\nowner = \"ada\"\n[adapters.pi]\nmax_workers = 2").flag("readers", "1");
    let rows = machine.load().rows();
    assert_eq!(rows.len(), SETTINGS.len() + 1);
    let row = |key: &str| {
        let row = rows.iter().find(|row| row.key == key).unwrap();
        serde_json::to_string(row).unwrap().replace(machine.root.path().to_str().unwrap(), "$")
    };
    assert_eq!(
        row("owner"),
        r#"{"key":"owner","value":"ada","origin":{"from":"file","path":"$/project/mainspring.toml","line":2},"description":"Default owner of new sessions."}"#
    );
    assert_eq!(
        row("readers"),
        r#"{"key":"readers","value":1,"origin":{"from":"flag","name":"--readers"},"description":"Number of database connections for reading."}"#
    );
    assert_eq!(
        row("adapters.pi.max_workers"),
        r#"{"key":"adapters.pi.max_workers","value":2,"origin":{"from":"file","path":"$/project/mainspring.toml","line":4},"description":"Maximum number of active runs of this adapter."}"#
    );
    assert!(row("max_workers").contains(r#""value":8,"origin":{"from":"default"}"#));
}

#[test]
fn only_relevant_variables_are_kept() {
    let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let all = [
        (os(b"SECRET"), os(b"x")),
        (os(b"\xff"), os(b"x")),
        (os(b"PATH"), os(b"\xff")),
        (os(b"MAINSPRING_OWNER"), os(b"ada")),
        (os(b"OMI_AGENT_STATE_DIR"), os(b"/x")),
        (os(b"XDG_STATE_HOME"), os(b"/y")),
    ];
    let relevant = source::relevant_variables(all.into_iter()).unwrap();
    let names: Vec<_> = relevant.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["MAINSPRING_OWNER", "OMI_AGENT_STATE_DIR", "XDG_STATE_HOME"]);
    let error =
        source::relevant_variables([(os(b"MAINSPRING_STATE_DIR"), os(b"/\xff"))].into_iter()).unwrap_err();
    assert_eq!(error.to_string(), "MAINSPRING_STATE_DIR is not valid UTF-8: give a value that is");
}

#[test]
fn an_adapter_is_configured_in_the_file_and_its_secrets_are_not_displayed() {
    let machine = machine().file(
        "[adapters.opencode]\nkind = \"acp\"\ncommand = [\"./bin/opencode\", \"acp\"]\n\
         env = { API_KEY = \"s3cret\" }\npass_env = [\"OTHER_KEY\"]\ncwd = \"work\"\npermissions = \"legacy\"\n\
         max_processes = 3\nmodel = \"m1\"\n",
    );
    let resolved = machine.load();
    let adapter = &resolved.config.adapters["opencode"];
    let command = [machine.path("project/bin/opencode").to_string_lossy().into_owned(), "acp".into()];
    assert_eq!(adapter.command.as_deref(), Some(&command[..]));
    assert_eq!(adapter.env.as_ref().unwrap()["API_KEY"], "s3cret");
    assert_eq!(adapter.cwd, Some(machine.path("project/work")));
    assert_eq!((adapter.kind, adapter.permissions), (Some(AdapterKind::Acp), Some(Permissions::Legacy)));
    let rows = serde_json::to_string(&resolved.rows()).unwrap();
    assert!(!rows.contains("s3cret"), "{rows}");
    for key in ["kind", "command", "env", "pass_env", "cwd", "permissions", "max_processes", "model"] {
        assert!(rows.contains(&format!("adapters.opencode.{key}")), "{key}: {rows}");
    }
}

#[test]
fn an_incomplete_adapter_is_refused() {
    let refused = |text: &str| machine().file(text).problems();
    for (text, problem) in [
        (
            "kind = \"acp\"",
            "adapters.x.command is missing: write the command that starts the agent, as a list",
        ),
        (
            "command = [\"a\"]",
            "adapters.x.command needs a kind: write kind = \"acp\" or kind = \"pi\" beside it",
        ),
        ("kind = \"acpp\"", "must be \"acp\" or \"pi\""),
        ("kind = \"pi\"\ncommand = []", "adapters.x.command is missing"),
        (
            "kind = \"pi\"\nask_mode = \"plan\"",
            "adapters.x.ask_mode is for agents of kind \"acp\": remove it",
        ),
        ("command = \"opencode acp\"", "must be a command and its arguments as a list"),
        ("kind = \"acp\"\ncommand = []", "adapters.x.command is missing"),
        ("command = [\"\"]", "must be a command and its arguments as a list"),
        ("env = { A = 1 }", "must be a table of texts"),
        ("env = { \"A=B\" = \"s3cret\" }", "must be a table of texts"),
        ("pass_env = [\"A B\"]", "must be a list of names of variables"),
        ("comand = [\"a\"]", "did you mean adapters.NAME.command?"),
        (
            "kind = \"acp\"\ncommand = [\"a\"]\nmcp = [\"b*\", \"fs\"]",
            "adapters.x.mcp names \"fs\", which is no MCP server: write [mcp.fs]",
        ),
        (
            "kind = \"pi\"\ncontrol_tools = true",
            "adapters.x.control_tools is for agents of kind \"acp\": remove it",
        ),
        ("control_tools = \"yes\"", "must be true or false, without quotes"),
        ("control_tools = 1", "must be true or false"),
        (
            "kind = \"acp\"\ncommand = [\"a\"]\ncontrol_tools = true\n[mcp.mainspring]\nurl = \"http://127.0.0.1:1\"",
            "adapters.x.control_tools needs the name \"mainspring\": rename [mcp.mainspring]",
        ),
        (
            "kind = \"acp\"\ncommand = [\"a\"]\nrules = [\"allow fs\"]",
            "must be a list of rules: allow, deny or ask",
        ),
    ] {
        let problems = refused(&format!("[adapters.x]\n{text}\n"));
        assert!(problems.contains(problem), "{text}: {problems}");
        assert!(!problems.contains("s3cret"), "{problems}");
    }
    for name in ["script", "native"] {
        let built_in = refused(&format!("[adapters.{name}]\nkind = \"acp\"\ncommand = [\"a\"]\n"));
        assert!(built_in.contains(&format!("adapters.{name}.kind must not be set")), "{built_in}");
    }
}

#[test]
fn the_sandbox_of_an_adapter_has_a_profile_folders_and_ports() {
    let machine = Machine::new().file(
        "[adapters.pi]\nkind = \"pi\"\nsandbox = \"read_only\"\nwritable = [\"~/tool\", \"here\"]\nports = [443, 8_080]\n",
    );
    let adapter = &machine.load().config.adapters["pi"];
    assert_eq!(adapter.sandbox, Some(SandboxProfile::ReadOnly));
    let writable = adapter.writable.clone().unwrap();
    assert!(writable[0] == machine.path("home/tool") && writable[1].ends_with("here"), "{writable:?}");
    assert_eq!(adapter.ports, Some(vec![443, 8_080]));
    for (line, allowed) in [
        ("sandbox = \"none\"", "\"read_only\" or \"workspace\" or \"off\""),
        ("ports = [0]", "a list of ports from 1 to 65535"),
        ("ports = [\"443\"]", "a list of ports from 1 to 65535"),
        ("writable = \"here\"", "a list of paths"),
        ("pass_env = [443]", "a list of names of variables"),
    ] {
        let problems = Machine::new().file(&format!("[adapters.pi]\nkind = \"pi\"\n{line}\n")).problems();
        assert!(problems.contains(allowed), "{line}: {problems}");
    }
}

#[test]
fn an_owner_has_rules() {
    let machine = Machine::new().file(
        "rules = [\"deny fs write /etc/*\"]\n[owners.ada]\nrules = [\"allow fs read *\"]\n[owners.\"eve@x.org\"]\nrules = []\n",
    );
    let resolved = machine.load();
    let rules = |owner: &str| resolved.config.owners[owner].rules.clone().unwrap();
    assert_eq!(rules("ada"), ["allow fs read *".parse().unwrap()]);
    assert_eq!(rules("eve@x.org"), []);
    let row = resolved.rows().into_iter().find(|row| row.key == "owners.ada.rules").unwrap();
    assert_eq!(row.value, Value::List(vec!["allow fs read *".into()]));
    assert!(matches!(row.origin, Origin::File { line: 3, .. }), "{:?}", row.origin);
    for (text, problem) in [
        ("[owners.ada]\nrules = [\"allow fs\"]", "must be a list of rules: allow, deny or ask"),
        ("[owners.ada]\nrule = []", "owners.ada.rule"),
        ("[owners.ada]\n\"x.rules\" = []", "owners.ada.x.rules"),
        ("[owners]\nada = 1", "must be a table: write [owners.ada] and its keys below"),
        ("owners = 1", "must be a table: write [owners.NAME] for each owner"),
        ("[owners.\"\"]\nrules = []", "owners"),
    ] {
        let problems = Machine::new().file(&format!("{text}\n")).problems();
        assert!(problems.contains(problem), "{text}: {problems}");
    }
}
