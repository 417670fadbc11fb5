//! Sources: what a configuration is read from, and where a value of it came from.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fmt, fs, io};

use serde::{Serialize, Serializer};

use super::error::{ConfigError, Problem};
use super::rule::expand;
use super::settings::SETTINGS;

const FILE: &str = "mainspring.toml";

/// A variable that mainspring reads and that is not a setting.
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub description: &'static str,
}

/// The variables that are not settings. Any other `MAINSPRING_*` that is not one either is an error.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "MAINSPRING_CONFIG", description: "The configuration file; --config wins over it." },
    Variable {
        name: "MAINSPRING_KEY",
        description: "The key that the command line shows to the server of `url`; never stored.",
    },
    Variable {
        name: "XDG_CONFIG_HOME",
        description: "Folder of configuration files, if absolute; else ~/.config.",
    },
    Variable { name: "XDG_STATE_HOME", description: "Folder of state, if absolute; else ~/.local/state." },
];

/// Everything that a configuration is made of.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file given by `--config`.
    pub file: Option<PathBuf>,
    /// The variables, the last of a name winning; those that concern nothing here are ignored.
    pub env: Vec<(String, String)>,
    /// The current folder, absolute.
    pub cwd: PathBuf,
    /// The user's home, absolute.
    pub home: Option<PathBuf>,
    /// Keys and values given as flags, the last of a key winning.
    pub flags: Vec<(String, String)>,
}

impl Sources {
    /// The sources of this process; set `file` to what `--config` says.
    pub fn from_process(flags: Vec<(String, String)>) -> Result<Self, ConfigError> {
        let cwd = env::current_dir().map_err(|error| Problem::NoFolder { reason: error.to_string() })?;
        let home = env::home_dir().filter(|home| home.is_absolute());
        Ok(Self { file: None, env: variables(env::vars_os())?, cwd, home, flags })
    }

    /// What `name` is set to.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Those of `all` that concern the configuration: the rest is nobody's business and may hold secrets.
pub(super) fn variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, Problem> {
    let mut kept = Vec::new();
    for (name, value) in all {
        let Some(name) = name.to_str().filter(|name| concerns(name)) else {
            continue;
        };
        let value = value.into_string().map_err(|_| Problem::NotUnicode { name: name.to_owned() })?;
        kept.push((name.to_owned(), value));
    }
    Ok(kept)
}

fn concerns(name: &str) -> bool {
    name.starts_with("MAINSPRING_")
        || VARIABLES.iter().any(|variable| variable.name == name)
        || SETTINGS.iter().any(|setting| setting.alias() == Some(name))
}

/// The configuration file and its text, if there is one.
pub(super) fn locate(sources: &Sources) -> Result<Option<(PathBuf, String)>, Problem> {
    let home = sources.home.as_deref();
    let named = match (&sources.file, sources.variable("MAINSPRING_CONFIG")) {
        (Some(path), _) => Some((path.as_path(), Origin::Flag { name: "--config".into() })),
        (None, Some(path)) => {
            Some((Path::new(path), Origin::Environment { name: "MAINSPRING_CONFIG".into() }))
        }
        (None, None) => None,
    };
    if let Some((path, origin)) = named {
        let invalid = |must| Problem::Invalid {
            key: "config".into(),
            shown: format!("{:?}", path.to_string_lossy()),
            origin: origin.clone(),
            must,
        };
        let path = expand(path, &sources.cwd, home).map_err(invalid)?;
        return match fs::read_to_string(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(error) => {
                Err(Problem::Unreadable { path, named_by: Some(origin), reason: error.to_string() })
            }
        };
    }
    let config_home = xdg(sources, "XDG_CONFIG_HOME", ".config");
    let places =
        [Some(sources.cwd.join(FILE)), config_home.map(|folder| folder.join("mainspring").join(FILE))];
    for path in places.into_iter().flatten() {
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => {
                return Err(Problem::Unreadable { path, named_by: None, reason: error.to_string() });
            }
        }
    }
    Ok(None)
}

/// The state folder where nobody chose one.
pub(super) fn default_state_dir(sources: &Sources) -> Option<PathBuf> {
    xdg(sources, "XDG_STATE_HOME", ".local/state").map(|folder| folder.join("mainspring"))
}

/// The folder that `variable` names, else `below` in the home. The XDG specification has relative ones ignored.
fn xdg(sources: &Sources, variable: &str, below: &str) -> Option<PathBuf> {
    let named = sources.variable(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(sources.home.as_ref()?.join(below)))
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File {
        /// The file.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// A variable of the environment.
    Environment {
        /// The variable.
        name: String,
    },
    /// A flag.
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

/// A path as text, for a path that is not Unicode would fail to serialise.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
