//! The folders in which known agents keep their settings, logins and sessions, and the caches of common tools.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::links;

/// A folder or file that an agent writes outside its working folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnFolder {
    /// The home folder of the user, or the folder that a variable names.
    base: PathBuf,
    /// The path below the base.
    rest: PathBuf,
    /// How the path is created if it does not exist: a rule of a sandbox needs an existing path.
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

/// The caches of common tools. No shell looks for programs in any of them.
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

/// Returns the folders of the agent that `command` starts, and the caches of common tools. `variable` looks up a
/// variable of the agent's environment.
pub fn own_folders(command: &[String], variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<OwnFolder> {
    let of_agent =
        AGENTS.iter().filter(|(name, _)| starts_agent(command, name)).flat_map(|(_, entries)| *entries);
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let to_folder = |(base, rest, missing): &Entry| {
        let in_home = |default: &str| Some((absolute("HOME")?, Path::new(default).join(rest)));
        let (base, rest) = match base {
            Base::Home => in_home("")?,
            Base::Variable(name, default) => {
                absolute(name).map(|base| (base, rest.into())).or_else(|| in_home(default))?
            }
            Base::OnlyVariable(name) => (absolute(name)?, rest.into()),
        };
        Some(OwnFolder { base, rest, missing: *missing })
    };
    of_agent.chain(CACHES).filter_map(to_folder).collect()
}

/// Reports whether `command` starts the agent `name`. The arguments count only if the program is not a known agent.
pub(super) fn starts_agent(command: &[String], name: &str) -> bool {
    let Some((program, arguments)) = command.split_first() else { return false };
    match AGENTS.iter().any(|(known, _)| names_agent(program, known)) {
        true => names_agent(program, name),
        false => arguments.iter().filter(|word| !word.starts_with('-')).any(|word| names_agent(word, name)),
    }
}

/// Reports whether `argument` is a program, a script or a package with the word `name` in its name. The folders of a
/// path that begins with `/`, `.` or `~` do not count, because a user may have the name of an agent. The folders of a
/// package in `node_modules` do count.
fn names_agent(argument: &str, name: &str) -> bool {
    let file = argument.rsplit('/').next().unwrap_or_default();
    let named = match argument.rsplit_once("node_modules/") {
        Some((_, package)) => package,
        None if argument.starts_with(['/', '.', '~']) => file,
        None => argument,
    };
    named.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word.eq_ignore_ascii_case(name))
}

impl OwnFolder {
    /// The path of the folder.
    pub fn path(&self) -> PathBuf {
        // Without the slash at the end that an empty rest adds.
        self.base.join(&self.rest).components().collect()
    }

    /// Makes the folder or the file if it does not exist. Returns its path without links. Returns `None` if it does not
    /// exist even then, or if it is a link: an agent that worked in the home folder may have made the link.
    pub(super) fn prepare(&self) -> Option<PathBuf> {
        self.create_if_missing();
        let resolved = links::resolve_base(&self.base, &self.rest);
        let path = self.path();
        if resolved.is_none() && path.exists() {
            tracing::warn!(
                path = %path.display(),
                "an agent's own folder is a link and is not writable: add the folder that it names to `writable`"
            );
        }
        resolved
    }

    /// An error is only logged here: the agent reports that it cannot write the folder.
    fn create_if_missing(&self) {
        let path = self.path();
        let created = match self.missing {
            _ if path.exists() => return,
            Missing::Nothing => return,
            Missing::Folder => fs::DirBuilder::new().recursive(true).mode(0o700).create(&path),
            Missing::File(content) => {
                let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
                file.and_then(|mut file| file.write_all(content.as_bytes()))
            }
        };
        if let Err(error) = created {
            tracing::warn!(path = %path.display(), %error, "an agent's own folder could not be created");
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
        folders.iter().map(|folder| folder.path().display().to_string()).collect()
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
    fn only_the_program_or_its_package_identifies_the_agent() {
        let has = |command: &[&str], agent: &str| {
            let command: Vec<String> = command.iter().map(ToString::to_string).collect();
            starts_agent(&command, agent)
        };
        assert!(has(&["/home/pi/bin/codex-acp"], "codex") && !has(&["/home/pi/bin/codex-acp"], "pi"));
        assert!(!has(&["node", "/home/pi/agent.js"], "pi") && has(&["node", "/home/ada/pi.js"], "pi"));
        assert!(!has(&["node", "/home/pi/node_modules/opencode/x.js"], "pi"));
        assert!(has(&["npx", "-y", "@zed-industries/codex-acp@1"], "codex"));
        assert!(has(&["sh", "-c", "exec codex-acp"], "codex"));
        assert!(!has(&["opencode", "--model", "claude"], "claude") && !has(&[], "pi"));
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
            folder.prepare();
        }
        let read = |path: &str| fs::read_to_string(home.path().join(path)).unwrap();
        assert_eq!((read(".claude.json"), read(".claude/settings.json")), ("{}\n".into(), "kept".into()));
        assert!(home.path().join(".npm").is_dir() && !home.path().join(".m2").exists());
    }
}
