//! Sources: the inputs of a configuration, and the origin of each value.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fmt};

use mainspring_kernel::files::read_small_text;
use serde::{Serialize, Serializer};

use super::error::{ConfigError, Problem};
use super::rule::expand_path;
use super::settings::SETTINGS;
use super::trust::{self, FolderFile, Ignored};

pub(super) const FILE_NAME: &str = "mainspring.toml";

/// An environment variable that mainspring reads and that is not a setting.
pub struct Variable {
    /// The variable's name.
    pub name: &'static str,
    /// The variable's purpose.
    pub description: &'static str,
}

/// The variables that are not settings. Any other unknown `MAINSPRING_*` variable is an error.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "MAINSPRING_CONFIG", description: "The configuration file; --config takes precedence." },
    Variable {
        name: "MAINSPRING_KEY",
        description: "The API key that the command line sends to the server of `url`; never stored.",
    },
    Variable {
        name: "XDG_CONFIG_HOME",
        description: "Folder of configuration files, if absolute; otherwise ~/.config.",
    },
    Variable {
        name: "XDG_STATE_HOME",
        description: "Folder of state, if absolute; otherwise ~/.local/state.",
    },
];

/// All inputs of a configuration.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Sources {
    /// The file given by `--config`.
    pub file: Option<PathBuf>,
    /// The environment variables; the last of a name wins. Unrelated variables are ignored.
    pub env: Vec<(String, String)>,
    /// The current folder, absolute.
    pub cwd: PathBuf,
    /// The user's home directory, absolute.
    pub home: Option<PathBuf>,
    /// Keys and values given as flags; the last of a key wins.
    pub flags: Vec<(String, String)>,
}

impl Sources {
    /// Collects the sources of this process. The caller sets `file` from `--config`.
    pub fn from_process(flags: Vec<(String, String)>) -> Result<Self, ConfigError> {
        let cwd = env::current_dir().map_err(|error| Problem::NoCurrentDir { reason: error.to_string() })?;
        let home = env::home_dir().filter(|home| home.is_absolute());
        Ok(Self { file: None, env: relevant_variables(env::vars_os())?, cwd, home, flags })
    }

    /// Returns the value of the variable `name`.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Keeps only the variables that concern the configuration: the others may hold secrets.
pub(super) fn relevant_variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, Problem> {
    let mut relevant = Vec::new();
    for (name, value) in all {
        let Some(name) = name.to_str().filter(|name| is_relevant(name)) else {
            continue;
        };
        let value = value.into_string().map_err(|_| Problem::NotUnicode { name: name.to_owned() })?;
        relevant.push((name.to_owned(), value));
    }
    Ok(relevant)
}

fn is_relevant(name: &str) -> bool {
    // Variables with this prefix describe the run of an agent; an agent may start mainspring.
    let is_context = name.starts_with("MAINSPRING_CONTEXT_");
    (name.starts_with("MAINSPRING_") && !is_context)
        || VARIABLES.iter().any(|variable| variable.name == name)
        || SETTINGS.iter().any(|setting| setting.alias() == Some(name))
}

/// The configuration files that apply, and those that were found and are not used.
#[derive(Default)]
pub(super) struct Files {
    /// The file whose values apply.
    pub(super) file: Option<ConfigFile>,
    /// True if `file` is the trusted file of a folder.
    pub(super) is_of_folder: bool,
    /// The user's own file, if the trusted file of a folder is used. Only the settings that a folder cannot set are
    /// read from the user's file.
    pub(super) beneath: Option<ConfigFile>,
    pub(super) ignored: Vec<Ignored>,
}

/// A configuration file with its text.
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl Files {
    /// Returns the files that apply when the file of a folder is trusted.
    pub(super) fn of_folder(
        sources: &Sources,
        FolderFile { path, text }: FolderFile,
    ) -> Result<Self, Problem> {
        let file = Some(ConfigFile { path, text });
        Ok(Self { file, is_of_folder: true, beneath: user_file(sources)?, ignored: vec![] })
    }
}

/// Finds the configuration file and reads its text, if there is one.
pub(super) fn find_files(sources: &Sources) -> Result<Files, Problem> {
    if let Some(file) = named_file(sources)? {
        return Ok(Files { file: Some(file), ..Files::default() });
    }
    // If the current folder is the user's configuration folder, its file is the user's own.
    let is_user_file = user_path(sources)
        .and_then(|path| path.canonicalize().ok())
        .is_some_and(|user| trust::path_in(&sources.cwd).canonicalize().is_ok_and(|path| path == user));
    if is_user_file {
        return Ok(Files { file: user_file(sources)?, ..Files::default() });
    }
    match trust::read_if_trusted(sources) {
        Ok(Some(file)) => Files::of_folder(sources, file),
        Ok(None) => Ok(Files { file: user_file(sources)?, ..Files::default() }),
        Err(ignored) => Ok(Files { file: user_file(sources)?, ignored: vec![ignored], ..Files::default() }),
    }
}

/// Reads the file that `--config` or `MAINSPRING_CONFIG` names. It must exist.
fn named_file(sources: &Sources) -> Result<Option<ConfigFile>, Problem> {
    let (path, origin) = match (&sources.file, sources.variable("MAINSPRING_CONFIG")) {
        (Some(path), _) => (path.as_path(), Origin::Flag { name: "--config".into() }),
        (None, Some(path)) => (Path::new(path), Origin::Environment { name: "MAINSPRING_CONFIG".into() }),
        (None, None) => return Ok(None),
    };
    let invalid = |allowed| Problem::Invalid {
        key: "config".into(),
        written: format!("{:?}", path.to_string_lossy()),
        origin: origin.clone(),
        allowed,
    };
    let path = expand_path(path, &sources.cwd, sources.home.as_deref()).map_err(invalid)?;
    match read_small_text(&path) {
        Ok(text) => Ok(Some(ConfigFile { path, text })),
        Err(error) => Err(Problem::Unreadable { path, named_by: Some(origin), reason: error.to_string() }),
    }
}

/// Reads the user's own file, if there is one.
fn user_file(sources: &Sources) -> Result<Option<ConfigFile>, Problem> {
    let Some(path) = user_path(sources) else { return Ok(None) };
    match read_small_text(&path) {
        Ok(text) => Ok(Some(ConfigFile { path, text })),
        Err(error) if trust::is_absent(&error) => Ok(None),
        Err(error) => Err(Problem::Unreadable { path, named_by: None, reason: error.to_string() }),
    }
}

fn user_path(sources: &Sources) -> Option<PathBuf> {
    Some(user_folder(sources)?.join(FILE_NAME))
}

/// Returns the user's own configuration folder.
pub(super) fn user_folder(sources: &Sources) -> Option<PathBuf> {
    Some(xdg_folder(sources, "XDG_CONFIG_HOME", ".config")?.join("mainspring"))
}

/// Returns the default state directory.
pub(super) fn default_state_dir(sources: &Sources) -> Option<PathBuf> {
    xdg_folder(sources, "XDG_STATE_HOME", ".local/state").map(|folder| folder.join("mainspring"))
}

/// Returns the folder named by `variable`, else `below` in the home directory. Relative paths are ignored, as the XDG
/// specification requires.
fn xdg_folder(sources: &Sources, variable: &str, below: &str) -> Option<PathBuf> {
    let named = sources.variable(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(sources.home.as_ref()?.join(below)))
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    /// The default.
    Default,
    /// The configuration file.
    File {
        /// The file.
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// The variable's name.
        name: String,
    },
    /// A command line flag.
    Flag {
        /// The flag, with its hyphens.
        name: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Environment { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

/// Serializes a path as text; a path that is not Unicode would otherwise fail.
pub(super) fn serialize_lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
