//! `mainspring trust`: whether the `mainspring.toml` of a folder is used.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use mainspring::config::{Config, Effect, EffectKind, FolderFile, Resolved, TrustStore};
use serde_json::json;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{BOLD, DIM};

/// Use the `mainspring.toml` of a folder, after showing what it would run
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Trust {
    /// Folder with the file [default: the current one]
    folder: Option<PathBuf>,
    /// Do not ask; required without a terminal and with `--json`
    #[arg(long, short)]
    yes: bool,
    #[command(subcommand)]
    command: Option<TrustCommand>,
}

#[derive(Subcommand)]
enum TrustCommand {
    /// Show what the file of a folder would run, send and set, and trust nothing
    Show {
        /// Folder with the file [default: the current one]
        folder: Option<PathBuf>,
    },
    /// List the trusted files
    List,
    /// Stop trusting the file of a folder
    Remove {
        /// Folder with the file [default: the current one]
        folder: Option<PathBuf>,
    },
}

impl Trust {
    pub(super) fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        match self.command {
            None => trust(context, &folder(context, self.folder.as_deref())?, self.yes)?,
            Some(TrustCommand::Show { folder: given }) => {
                let (file, resolved) = load(context, &folder(context, given.as_deref())?)?;
                print_file(context, &file, &resolved, None)?;
            }
            Some(TrustCommand::List) => list(context)?,
            Some(TrustCommand::Remove { folder: given }) => {
                remove(context, &folder(context, given.as_deref())?)?;
            }
        }
        Ok(Exit::Done)
    }
}

/// Resolves the folder that the caller names; a path of the file itself names its folder.
fn folder(context: &Context<'_>, given: Option<&Path>) -> Result<PathBuf, CliError> {
    let folder = context.sources.cwd.join(given.unwrap_or(Path::new("")));
    let is_file = folder.file_name().is_some_and(|name| name == "mainspring.toml");
    Ok(match folder.parent() {
        Some(parent) if is_file && !folder.is_dir() => parent.to_owned(),
        _ => folder,
    })
}

fn store(context: &Context<'_>) -> Result<TrustStore, CliError> {
    TrustStore::of_user(&context.sources).ok_or_else(|| {
        CliError::bad_request(
            "there is no folder for the record of trusted files: set HOME or XDG_CONFIG_HOME",
        )
    })
}

/// Reads the file of `folder` and checks it as if it were trusted.
fn load(context: &Context<'_>, folder: &Path) -> Result<(FolderFile, Resolved), CliError> {
    let file = FolderFile::read(folder).map_err(mainspring::config::ConfigError::from)?;
    let file = file
        .ok_or_else(|| CliError::not_found(format!("there is no mainspring.toml in {}", folder.display())))?;
    let resolved = Config::load_trusting(&context.sources, file.clone())?;
    Ok((file, resolved))
}

fn trust(context: &Context<'_>, folder: &Path, yes: bool) -> Result<(), CliError> {
    let (file, resolved) = load(context, folder)?;
    let (store, output) = (store(context)?, context.output);
    if !output.json {
        print_file(context, &file, &resolved, None)?;
    }
    match yes {
        true => {}
        false if output.is_interactive() && !output.json => output.confirm("Trust this file?")?,
        // A script, or an agent, must not trust a file by accident.
        false => {
            return Err(CliError::bad_request(
                "nobody can be asked whether to trust this file: run the command in a terminal, or add --yes",
            ));
        }
    }
    store.trust(&file)?;
    match output.json {
        true => print_file(context, &file, &resolved, Some(true)),
        false => Ok(output.print_line(format_args!("trusted {}", file.path.display()))?),
    }
}

/// Prints the effects of a file.
fn print_file(
    context: &Context<'_>,
    file: &FolderFile,
    resolved: &Resolved,
    trusted: Option<bool>,
) -> Result<(), CliError> {
    let (output, effects) = (context.output, resolved.file_effects());
    if output.json {
        let mut printed = json!({
            "path": file.path.to_string_lossy(), "hash": file.hash(), "effects": effects, "ignored": resolved.ignored,
        });
        if let Some(trusted) = trusted {
            printed["trusted"] = trusted.into();
        }
        return Ok(output.print_json(&printed)?);
    }
    output.print_line(format_args!("{BOLD}{}{BOLD:#}", file.path.display()))?;
    for (kind, title) in [
        (EffectKind::Runs, "It would run:"),
        (EffectKind::Sends, "It would send:"),
        (EffectKind::Sets, "It would set:"),
    ] {
        let of_kind: Vec<&Effect> = effects.iter().filter(|effect| effect.kind == kind).collect();
        if !of_kind.is_empty() {
            output.print_line(title)?;
        }
        for Effect { key, value, .. } in of_kind {
            output.print_line(format_args!("  {}  {}", on_one_line(key), on_one_line(value)))?;
        }
    }
    for ignored in &resolved.ignored {
        output.print_line(format_args!("{DIM}{ignored}{DIM:#}"))?;
    }
    Ok(())
}

/// Replaces line breaks, so that a name or a value cannot look like a line of the list.
fn on_one_line(value: &str) -> String {
    value.replace('\n', "␊").replace('\t', "␉")
}

fn list(context: &Context<'_>) -> Result<(), CliError> {
    let (files, output) = (store(context)?.list()?, context.output);
    if output.json {
        return Ok(files.iter().try_for_each(|file| output.print_own_json(file))?);
    }
    if files.is_empty() {
        return Ok(output.print_note("no trusted files; `mainspring trust` trusts the one of a folder")?);
    }
    let rows = files.into_iter().map(|file| vec![file.path, file.status.to_string()]);
    Ok(output.print_table(&["file", "status"], rows.collect())?)
}

fn remove(context: &Context<'_>, folder: &Path) -> Result<(), CliError> {
    let (path, removed) = store(context)?.remove(folder)?;
    let path = path.display().to_string();
    match removed {
        false => Err(CliError::not_found(format!(
            "{path} is not trusted; `mainspring trust list` lists the trusted files"
        ))),
        true if context.output.json => {
            Ok(context.output.print_json(&json!({"path": path, "removed": true}))?)
        }
        true => Ok(context.output.print_line(format_args!("no longer trusted: {path}"))?),
    }
}
