//! The folders in which known agents keep their settings, logins and sessions, and the caches of usual tools.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

/// A folder or file that an agent writes outside its working folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnFolder {
    /// Its path.
    pub path: PathBuf,
    /// How it is created if it does not exist: a rule of a sandbox needs something that exists.
    missing: Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// A folder is made.
    Folder,
    /// A file with this content is made.
    File(&'static str),
    /// Nothing is made, and the agent cannot make it either.
    Nothing,
}

/// The base of a path of the table.
#[derive(Debug, Clone, Copy)]
enum Base {
    Home,
    /// The folder that a variable names, else a path in the home folder.
    Variable(&'static str, &'static str),
    /// The folder that a variable names, if it is set.
    OnlyVariable(&'static str),
}

const CONFIG: Base = Base::Variable("XDG_CONFIG_HOME", ".config");
const DATA: Base = Base::Variable("XDG_DATA_HOME", ".local/share");
const STATE: Base = Base::Variable("XDG_STATE_HOME", ".local/state");
const CACHE: Base = Base::Variable("XDG_CACHE_HOME", ".cache");

/// A path of the table: its base, the rest, and how it is created.
type Entry = (Base, &'static str, Missing);

/// The folders of known agents, by a word of the agent's command.
const AGENTS: &[(&str, &[Entry])] = &[
    (
        "claude",
        &[
            (Base::OnlyVariable("CLAUDE_CONFIG_DIR"), "", Missing::Folder),
            (Base::Home, ".claude", Missing::Folder),
            (Base::Home, ".claude.json", Missing::File("{}\n")),
            (DATA, "claude", Missing::Nothing),
            (STATE, "claude", Missing::Nothing),
        ],
    ),
    ("codex", &[(Base::Variable("CODEX_HOME", ".codex"), "", Missing::Folder)]),
    (
        "opencode",
        &[
            (CONFIG, "opencode", Missing::Folder),
            (DATA, "opencode", Missing::Folder),
            (STATE, "opencode", Missing::Folder),
            (CACHE, "opencode", Missing::Folder),
        ],
    ),
    (
        "pi",
        &[
            (Base::Home, ".pi", Missing::Folder),
            (Base::OnlyVariable("PI_CODING_AGENT_DIR"), "", Missing::Folder),
        ],
    ),
    ("gemini", &[(Base::Home, ".gemini", Missing::Folder)]),
];

/// The caches of usual tools. None of them holds programs that a shell would find.
const CACHES: &[Entry] = &[
    (CACHE, "", Missing::Folder),
    (Base::Variable("npm_config_cache", ".npm"), "", Missing::Folder),
    (Base::Home, ".bun/install/cache", Missing::Nothing),
    (DATA, "pnpm/store", Missing::Nothing),
    (Base::Variable("CARGO_HOME", ".cargo"), "registry", Missing::Nothing),
    (Base::Variable("CARGO_HOME", ".cargo"), "git", Missing::Nothing),
    (Base::Variable("CARGO_HOME", ".cargo"), ".package-cache", Missing::Nothing),
    (Base::Variable("GOPATH", "go"), "pkg", Missing::Nothing),
    (Base::Home, ".gradle/caches", Missing::Nothing),
    (Base::Home, ".gradle/daemon", Missing::Nothing),
    (Base::Home, ".gradle/native", Missing::Nothing),
    (Base::Home, ".m2/repository", Missing::Nothing),
    (Base::Home, ".nuget/packages", Missing::Nothing),
];

/// Returns the folders of the agent that `command` starts, and those of caches. `variable` looks a variable of its
/// environment up.
pub fn own_folders(command: &[String], variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<OwnFolder> {
    let of_agent =
        AGENTS.iter().filter(|(name, _)| has_word(command, name)).flat_map(|(_, entries)| *entries);
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let to_folder = |(base, rest, missing): &Entry| {
        let base = match base {
            Base::Home => absolute("HOME")?,
            Base::Variable(name, default) => {
                absolute(name).or_else(|| absolute("HOME").map(|home| home.join(default)))?
            }
            Base::OnlyVariable(name) => absolute(name)?,
        };
        // Joining an empty path would add a slash.
        let path = if rest.is_empty() { base } else { base.join(rest) };
        Some(OwnFolder { path, missing: *missing })
    };
    of_agent.chain(CACHES).filter_map(to_folder).collect()
}

/// Reports whether an argument of the command contains `name` as a word.
pub(super) fn has_word(command: &[String], name: &str) -> bool {
    let mut words = command.iter().flat_map(|argument| argument.split(|c: char| !c.is_ascii_alphanumeric()));
    words.any(|word| word.eq_ignore_ascii_case(name))
}

impl OwnFolder {
    /// Makes the folder or the file if it does not exist. The agent reports the error if that fails.
    pub(super) fn create_if_missing(&self) {
        let created = match self.missing {
            _ if self.path.exists() => return,
            Missing::Nothing => return,
            Missing::Folder => fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path),
            Missing::File(content) => {
                let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path);
                file.and_then(|mut file| file.write_all(content.as_bytes()))
            }
        };
        if let Err(error) = created {
            tracing::warn!(path = %self.path.display(), %error, "an agent's own folder could not be created");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(command: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
        let command: Vec<String> = command.iter().map(ToString::to_string).collect();
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        let folders = own_folders(&command, &variable);
        folders.iter().map(|folder| folder.path.display().to_string()).collect()
    }

    #[test]
    fn each_known_agent_has_its_folders() {
        let home = [("HOME", "/home/ada")];
        let has = |command: &[&str], folder: &str| {
            let paths = paths(command, &home);
            assert!(paths.iter().any(|path| path == folder), "{command:?} lacks {folder}: {paths:?}");
        };
        has(&["claude-agent-acp"], "/home/ada/.claude");
        has(&["claude-agent-acp"], "/home/ada/.claude.json");
        has(&["node", "/x/node_modules/@zed-industries/claude-code-acp/dist/index.js"], "/home/ada/.claude");
        has(&["npx", "@zed-industries/codex-acp"], "/home/ada/.codex");
        has(&["opencode", "acp"], "/home/ada/.local/share/opencode");
        has(&["opencode", "acp"], "/home/ada/.config/opencode");
        has(&["pi", "--mode", "rpc"], "/home/ada/.pi");
        has(&["pi-acp"], "/home/ada/.pi");
        has(&["gemini", "--acp"], "/home/ada/.gemini");
        has(&["anything"], "/home/ada/.npm");
        has(&["anything"], "/home/ada/.cache");
    }

    #[test]
    fn an_agent_does_not_get_the_folders_of_another() {
        let paths = paths(&["codex-acp"], &[("HOME", "/home/ada")]);
        for folder in [".claude", ".pi", ".gemini", "opencode"] {
            assert!(!paths.iter().any(|path| path.ends_with(folder)), "{folder}: {paths:?}");
        }
    }

    #[test]
    fn variables_move_folders() {
        let found = paths(&["codex-acp"], &[("HOME", "/home/ada"), ("CODEX_HOME", "/srv/codex")]);
        assert_eq!(found[0], "/srv/codex");
        let found = paths(&["opencode"], &[("HOME", "/h"), ("XDG_DATA_HOME", "/data")]);
        assert!(found.contains(&"/data/opencode".to_owned()), "{found:?}");
        let found = paths(&["claude"], &[("CLAUDE_CONFIG_DIR", "/srv/claude")]);
        assert_eq!(found, ["/srv/claude"], "without a home there is nothing else");
        let found = paths(&["codex"], &[("HOME", "relative")]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn missing_folders_and_files_are_made_and_existing_ones_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let home_text = home.path().to_string_lossy().into_owned();
        fs::create_dir(home.path().join(".claude")).unwrap();
        fs::write(home.path().join(".claude/settings.json"), "kept").unwrap();
        let variable = |name: &str| (name == "HOME").then(|| OsString::from(&home_text));
        for folder in own_folders(&["claude".into()], &variable) {
            folder.create_if_missing();
        }
        let read = |path: &str| fs::read_to_string(home.path().join(path)).unwrap();
        assert_eq!((read(".claude.json"), read(".claude/settings.json")), ("{}\n".into(), "kept".into()));
        assert!(home.path().join(".npm").is_dir() && !home.path().join(".m2").exists());
    }
}
