//! `mainspring config`

use clap::Subcommand;
use serde_json::json;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, YELLOW};
use mainspring::config::Resolved;

/// Show the configuration
#[derive(Subcommand)]
pub(super) enum Config {
    /// Print every setting, its value and where the value came from, and what was ignored
    Show,
}

impl Config {
    pub(super) fn execute(&self, context: &Context<'_>) -> Result<Exit, CliError> {
        let Self::Show = self;
        let rows = context.resolved.rows();
        if context.output.json {
            let Resolved { file, ignored, .. } = &context.resolved;
            let file = file.as_ref().map(|file| file.to_string_lossy());
            context.output.print_json(&json!({"file": file, "ignored": ignored, "settings": rows}))?;
            return Ok(Exit::Done);
        }
        match &context.resolved.file {
            Some(file) => context.output.print_note(format_args!("{DIM}file: {}{DIM:#}", file.display()))?,
            None => context.output.print_note(format_args!("{DIM}no configuration file{DIM:#}"))?,
        }
        for ignored in &context.resolved.ignored {
            context.output.print_note(format_args!("{YELLOW}{ignored}{YELLOW:#}"))?;
        }
        let rows = rows.into_iter().map(|row| {
            vec![row.key, row.value.to_string(), row.origin.to_string(), row.description.trim().to_owned()]
        });
        context.output.print_table(&["setting", "value", "source", "description"], rows.collect())?;
        Ok(Exit::Done)
    }
}
