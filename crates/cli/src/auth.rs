//! `mainspring auth`: keys of model providers, in private files that the serving process reads for each request.

use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use clap::Subcommand;
use mainspring_agent::models::{StoredKey, stored_keys};
use mainspring_api::request::suggestion;
use mainspring_core::Time;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, format_time};

/// Add, list and remove keys of model providers
#[derive(Subcommand)]
pub(super) enum Auth {
    /// Store the key of a provider; it is read from a hidden prompt or from standard input
    Add {
        /// Provider, such as anthropic, openai or gemini
        provider: String,
    },
    /// List the providers that need a key, and where it comes from
    List,
    /// Delete the stored key of a provider; asks first on a terminal
    Remove {
        /// Provider
        provider: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

impl Auth {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        if let Some(url) = &context.config().url {
            let message =
                format!("keys are stored on the machine that serves {url}: run `mainspring auth` there");
            return Err(CliError::bad_request(message));
        }
        match self {
            Self::Add { provider } => add(context, &provider).await,
            Self::List => list(context),
            Self::Remove { provider, yes } => remove(context, &provider, yes),
        }
    }
}

/// Lists the providers whose keys can be stored, and the folder of the stored keys.
fn keys(context: &Context<'_>) -> (Vec<StoredKey>, PathBuf) {
    let config = context.config();
    (stored_keys(&config.models), config.keys_dir())
}

/// Finds the key of a provider, or refuses a provider whose key cannot be stored.
fn find_key(context: &Context<'_>, provider: &str) -> Result<StoredKey, CliError> {
    let (mut known, _) = keys(context);
    if let Some(at) = known.iter().position(|key| key.provider == provider) {
        return Ok(known.swap_remove(at));
    }
    let names: Vec<&str> = known.iter().map(|key| key.provider.as_str()).collect();
    let remedy = suggestion(provider, &names);
    Err(CliError::bad_request(format!("no provider {provider:?} that takes a stored key{remedy}")))
}

async fn add(context: &Context<'_>, provider: &str) -> Result<Exit, CliError> {
    let key = find_key(context, provider)?;
    let text = match std::io::stdin().is_terminal() {
        true => read_hidden(context, provider).await?,
        false => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
    };
    let secret = text.trim();
    if secret.is_empty() {
        return Err(CliError::bad_request("no key was given; nothing was changed"));
    }
    if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = "a key is one line without spaces; nothing was changed";
        return Err(CliError::bad_request(message));
    }
    let dir = context.config().keys_dir();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    // The key is written to a temporary file first, so that a reader never sees a partial key.
    let (file, part) = (dir.join(&key.file), dir.join(format!("{}.part", key.file)));
    // Removes a leftover file, which could have another mode than 0600.
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut written = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    writeln!(written, "{secret}")?;
    written.sync_all()?;
    std::fs::rename(&part, &file)?;
    context.output.print_note(format_args!(
        "{DIM}stored in {}, readable by you alone; every process on this state directory uses it from now on{DIM:#}",
        file.display()
    ))?;
    if let Some(variable) = key.variable.filter(|variable| std::env::var_os(variable).is_some()) {
        context.output.print_note(format_args!(
            "{DIM}{variable} is set here too: a process that has it uses it instead{DIM:#}"
        ))?;
    }
    Ok(Exit::Done)
}

/// Reads a line from the terminal without showing it. Ctrl-C restores the terminal first.
async fn read_hidden(context: &Context<'_>, provider: &str) -> Result<String, CliError> {
    context.output.print_note_part(format_args!("Key of {provider} (hidden): "))?;
    let hidden = HiddenInput::start()?;
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let outcome = tokio::select! {
        line = line => line.map_err(std::io::Error::other)?.map_err(CliError::from),
        _ = tokio::signal::ctrl_c() => Err(CliError {
            exit: Exit::Cancelled,
            code: "cancelled".into(),
            message: "cancelled; nothing was changed".into(),
            retryable: false,
        }),
    };
    drop(hidden);
    context.output.print_note("")?;
    outcome
}

/// Turns the terminal's echo off until dropped.
struct HiddenInput(Termios);

impl HiddenInput {
    fn start() -> std::io::Result<Self> {
        let shown = tcgetattr(std::io::stdin())?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(shown))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // An error means that the terminal is gone: there is no echo to restore.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// One row of `auth list`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyRow {
    provider: String,
    /// `environment`, `stored` or `missing`.
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_at_ms: Option<i64>,
}

fn list(context: &Context<'_>) -> Result<Exit, CliError> {
    let (keys, dir) = keys(context);
    let rows: Vec<KeyRow> = keys
        .into_iter()
        .map(|key| {
            let set = |name: &String| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
            let modified = std::fs::metadata(dir.join(&key.file)).and_then(|file| file.modified()).ok();
            let stored_at_ms = modified.and_then(|time| {
                let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
                i64::try_from(since.as_millis()).ok()
            });
            let source = match key.variable.as_ref().is_some_and(set) {
                true => "environment",
                false if stored_at_ms.is_some() => "stored",
                false => "missing",
            };
            KeyRow { provider: key.provider, source, variable: key.variable, stored_at_ms }
        })
        .collect();
    if context.output.json {
        rows.iter().try_for_each(|row| context.output.print_own_json(row))?;
        return Ok(Exit::Done);
    }
    let describe = |row: &KeyRow| match (row.source, &row.variable, row.stored_at_ms) {
        ("environment", Some(variable), _) => format!("from {variable} of this process"),
        (_, _, Some(at)) => format!("stored {}", format_time(Time(at))),
        (_, Some(variable), None) => {
            format!("missing: mainspring auth add {}, or set {variable}", row.provider)
        }
        (_, None, None) => format!("missing: mainspring auth add {}", row.provider),
    };
    let table = rows.iter().map(|row| vec![row.provider.clone(), describe(row)]).collect();
    context.output.print_table(&["provider", "key"], table)?;
    Ok(Exit::Done)
}

fn remove(context: &Context<'_>, provider: &str, yes: bool) -> Result<Exit, CliError> {
    let file = context.config().keys_dir().join(find_key(context, provider)?.file);
    if !yes && file.exists() {
        context.output.confirm(&format!("Delete the stored key of {provider}?"))?;
    }
    match std::fs::remove_file(file) {
        Ok(()) => {
            context.output.print_note(format_args!("{DIM}the stored key of {provider} is deleted{DIM:#}"))?;
            Ok(Exit::Done)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(CliError {
            exit: Exit::NotFound,
            code: "not_found".into(),
            message: format!(
                "no key of {provider} is stored; mainspring auth list shows where keys come from"
            ),
            retryable: false,
        }),
        Err(error) => Err(error.into()),
    }
}
