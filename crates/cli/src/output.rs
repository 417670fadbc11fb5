//! Output: results on standard output, everything else on standard error, colour only on a terminal. Text for people
//! is printed without characters that a terminal would obey.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use mainspring_core::{RunStatus, Time};
use serde::Serialize;

use super::error::CliError;
use super::safe_text::safe;

pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const PLAIN: Style = Style::new();
pub(super) const BOLD: Style = Style::new().bold();
pub(super) const RED: Style = AnsiColor::Red.on_default();
pub(super) const GREEN: Style = AnsiColor::Green.on_default();
pub(super) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(super) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Prints a command's results and notes.
pub(super) struct Output {
    pub(super) json: bool,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// True when a person is at the terminal.
    pub(super) fn is_interactive(&self) -> bool {
        !self.json && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Prints a line of the result.
    pub(super) fn print_line(&self, line: impl Display) -> io::Result<()> {
        ignore_broken_pipe(writeln!(anstream::stdout(), "{}", safe(&line.to_string())))
    }

    /// Prints part of a line of the result and flushes it.
    pub(super) fn print(&self, text: &str) -> io::Result<()> {
        let mut out = anstream::stdout();
        ignore_broken_pipe(out.write_all(safe(text).as_bytes()).and_then(|()| out.flush()))
    }

    /// Writes bytes of the result unchanged.
    pub(super) fn print_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        ignore_broken_pipe(io::stdout().write_all(bytes))
    }

    /// Prints a JSON object on one line.
    pub(super) fn print_json(&self, value: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_string(value)?;
        ignore_broken_pipe(writeln!(io::stdout(), "{json}"))
    }

    /// Prints a note to standard error.
    pub(super) fn print_note(&self, note: impl Display) -> io::Result<()> {
        ignore_broken_pipe(writeln!(anstream::stderr(), "{}", safe(&note.to_string())))
    }

    /// Prints part of a note and flushes it.
    pub(super) fn print_note_part(&self, text: impl Display) -> io::Result<()> {
        let mut out = anstream::stderr();
        ignore_broken_pipe(write!(out, "{}", safe(&text.to_string())).and_then(|()| out.flush()))
    }

    /// Shows a spinner with the text `what` until the guard is dropped; none without a terminal.
    pub(super) fn start_spinner(&self, what: &str) -> Option<Spinner> {
        if self.json || !io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        bar.set_style(ProgressStyle::with_template("{spinner:.cyan} {msg:.dim} {elapsed:.dim}").ok()?);
        bar.enable_steady_tick(Duration::from_millis(80));
        Some(Spinner(bar))
    }

    /// Prints rows under headings.
    pub(super) fn print_table(&self, headings: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
        for row in rows {
            table.add_row(row);
        }
        let text = table.to_string();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_end().strip_prefix(' ').unwrap_or(line.trim_end());
            if at == 0 {
                self.print_line(format_args!("{DIM}{line}{DIM:#}"))?;
            } else {
                self.print_line(line)?;
            }
        }
        Ok(())
    }

    /// Notes that a list may have more items.
    pub(super) fn print_limit_note(&self, count: usize, limit: usize) -> io::Result<()> {
        match count < limit {
            true => Ok(()),
            false => {
                self.print_note(format_args!("{DIM}showing the first {count}; raise --limit for more{DIM:#}"))
            }
        }
    }

    /// Prints the command's error.
    pub(super) fn print_error(&self, error: &CliError) {
        // If standard error is closed, the exit code still reports the failure.
        let _ = match self.json {
            true => writeln!(io::stderr(), "{}", error.json()),
            false => {
                let message = safe(&error.message);
                writeln!(anstream::stderr(), "{RED}error[{}]{RED:#}: {message}", error.code)
            }
        };
    }
}

/// A spinner, removed on drop.
pub(super) struct Spinner(ProgressBar);

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Ignores a broken pipe: a reader such as `head` may close its end early.
fn ignore_broken_pipe(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Formats a status in its colour.
pub(super) fn format_status(status: RunStatus) -> String {
    let style = match status {
        RunStatus::Succeeded => GREEN,
        RunStatus::Failed | RunStatus::TimedOut | RunStatus::Orphaned => RED,
        RunStatus::Cancelled | RunStatus::Cancelling => DIM,
        RunStatus::WaitingInput | RunStatus::WaitingApproval => YELLOW,
        RunStatus::Queued | RunStatus::Starting | RunStatus::Running => CYAN,
    };
    format!("{style}{status}{style:#}")
}

/// Formats a time in the local time zone.
pub(super) fn format_time(time: Time) -> String {
    match jiff::Timestamp::from_millisecond(time.0) {
        Ok(timestamp) => {
            timestamp.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => time.0.to_string(),
    }
}

/// Formats a duration briefly.
pub(super) fn format_duration(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", millis as f64 / 1_000.0),
        _ => format!("{} min {} s", millis / 60_000, millis / 1_000 % 60),
    }
}

/// Returns the first line of a text, cut to `max_chars` characters.
pub(super) fn excerpt(text: &str, max_chars: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(max_chars) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None if text.trim().lines().nth(1).is_some() => format!("{line} …"),
        None => line.to_owned(),
    }
}
