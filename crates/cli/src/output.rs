//! Output: results on standard output, everything else on standard error, colour only on a terminal. Text for people
//! is printed without control characters of terminals.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::AnsiColor;
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use mainspring_api::ToJson;
use mainspring_core::{Damage, RunStatus, Time, Usage};
use mainspring_kernel::clock::Clock;
use serde::Serialize;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::error::{CliError, Exit};
use super::safe_text::{Style, safe};

pub(super) const DIM: Style = Style::DIM;
pub(super) const PLAIN: Style = Style::PLAIN;
pub(super) const BOLD: Style = Style::BOLD;
pub(super) const RED: Style = Style::colour(AnsiColor::Red);
pub(super) const GREEN: Style = Style::colour(AnsiColor::Green);
pub(super) const YELLOW: Style = Style::colour(AnsiColor::Yellow);
pub(super) const CYAN: Style = Style::colour(AnsiColor::Cyan);

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

    /// Writes bytes of the result unchanged and flushes them: an error of the write at exit would be lost.
    pub(super) fn print_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout();
        ignore_broken_pipe(out.write_all(bytes).and_then(|()| out.flush()))
    }

    /// Prints a value of the wire contract as JSON on one line.
    pub(super) fn print_json(&self, value: &impl ToJson) -> io::Result<()> {
        print_json_line(&value.to_json()?)
    }

    /// Prints a structure of the command line as JSON on one line.
    pub(super) fn print_own_json(&self, value: &impl Serialize) -> io::Result<()> {
        print_json_line(&serde_json::to_string(value)?)
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

    /// Names the damaged rows of a list on standard error.
    pub(super) fn print_damaged(&self, damaged: &[Damage]) -> io::Result<()> {
        damaged
            .iter()
            .try_for_each(|damage| self.print_note(format_args!("{RED}damaged{RED:#}: {}", damage.message)))
    }

    /// Shows a spinner with the text `what` until the guard is dropped; none without a terminal.
    pub(super) fn start_spinner(&self, what: &str) -> Option<Spinner> {
        if self.json || !io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::new_spinner().with_message(safe(what).into_owned());
        bar.set_style(ProgressStyle::with_template("{spinner:.cyan} {msg:.dim} {elapsed:.dim}").ok()?);
        bar.enable_steady_tick(Duration::from_millis(80));
        Some(Spinner(bar))
    }

    /// Prints rows under headings. On a terminal, long cells are cut so that every row fits on a line.
    pub(super) fn print_table(&self, headings: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
        let headings: Vec<String> = headings.iter().map(|heading| heading.to_uppercase()).collect();
        // Made safe before the layout, which measures the cells.
        let safe_row = |row: Vec<String>| row.iter().map(|cell| safe(cell).into_owned()).collect();
        let rows: Vec<Vec<String>> = rows.into_iter().map(safe_row).collect();
        let all = [std::slice::from_ref(&headings), rows.as_slice()].concat();
        let widths = column_widths(&all, terminal_width());
        let fit = |row: Vec<String>| -> Vec<String> {
            row.into_iter().zip(&widths).map(|(cell, width)| cut_cell(cell, *width)).collect()
        };
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(fit(headings));
        for row in rows {
            table.add_row(fit(row));
        }
        let text = table.to_string();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_end().strip_prefix(' ').unwrap_or(line.trim_end());
            if at == 0 {
                self.print_line(format_args!("{DIM}{line}{DIM:#}"))?;
            } else {
                ignore_broken_pipe(writeln!(anstream::stdout(), "{line}"))?;
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

    /// Asks the person at the terminal to confirm, and fails if they do not. Does not ask without a terminal.
    pub(super) fn confirm(&self, question: &str) -> Result<(), CliError> {
        if !self.is_interactive() {
            return Ok(());
        }
        self.print_note_part(format_args!("{question} [y/N] "))?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(CliError {
                exit: Exit::Cancelled,
                code: "cancelled".into(),
                message: "not confirmed; nothing was changed".into(),
                retryable: false,
            }),
        }
    }

    /// Prints the command's error.
    pub(super) fn print_error(&self, error: &CliError) {
        // If standard error is closed, the exit code still reports the failure.
        let _ = match self.json {
            true => writeln!(io::stderr(), "{}", error.json()),
            false => {
                let line = format!("{RED}error[{}]{RED:#}: {}", error.code, error.message);
                writeln!(anstream::stderr(), "{}", safe(&line))
            }
        };
    }
}

/// A spinner, removed on drop.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    /// Shows another text.
    pub(super) fn update(&self, what: &str) {
        self.0.set_message(safe(what).into_owned());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn print_json_line(json: &str) -> io::Result<()> {
    ignore_broken_pipe(writeln!(io::stdout(), "{json}"))
}

/// Returns a value of the wire contract as a JSON value.
pub(super) fn json_value(value: &impl ToJson) -> Value {
    let json = value.to_json().expect("the keys of every map in the wire contract are strings");
    serde_json::from_str(&json).expect("the text was written as JSON")
}

/// Ignores a broken pipe: a reader such as `head` may close its end early.
fn ignore_broken_pipe(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// The narrowest width that a column of a table is cut to.
const MIN_COLUMN_WIDTH: usize = 8;

/// Returns the width of the terminal; none if the output goes elsewhere.
pub(super) fn terminal_width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Computes the width of each column. If the rows do not fit, the widest columns shrink first.
fn column_widths(rows: &[Vec<String>], available: Option<usize>) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widest =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell_width(cell)).max();
    let mut widths: Vec<usize> = (0..columns).map(|column| widest(column).unwrap_or_default()).collect();
    let Some(available) = available else { return widths };
    // Two spaces separate the columns.
    let gaps = 2 * columns.saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > available {
        match widths.iter_mut().max().filter(|width| **width > MIN_COLUMN_WIDTH) {
            Some(width) => *width -= 1,
            None => break,
        }
    }
    widths
}

/// Returns the width of a safe cell on the terminal, without its colours.
fn cell_width(cell: &str) -> usize {
    anstream::adapter::strip_str(cell).to_string().width()
}

/// Cuts a cell to `width`, and marks the cut. A cell with colours is short and is not cut.
fn cut_cell(cell: String, width: usize) -> String {
    if cell.contains('\x1b') || cell_width(&cell) <= width {
        return cell;
    }
    let (mut cut, mut used) = (String::new(), 0);
    for char in cell.chars() {
        used += char.width().unwrap_or_default();
        if used >= width {
            break;
        }
        cut.push(char);
    }
    format!("{}…", cut.trim_end())
}

/// Formats an id for a table: on a terminal its beginning, which every command accepts.
pub(super) fn format_id(id: impl Display) -> String {
    const SHOWN_CHARS: usize = "run_00000000".len();
    let id = id.to_string();
    match terminal_width() {
        Some(_) => id.chars().take(SHOWN_CHARS).collect(),
        None => id,
    }
}

/// Formats a time for a table: on a terminal, as short as its distance from now allows.
pub(super) fn format_table_time(time: Time) -> String {
    let zoned = |time: Time| {
        let timestamp = jiff::Timestamp::from_millisecond(time.0).ok()?;
        Some(timestamp.to_zoned(jiff::tz::TimeZone::system()))
    };
    let (Some(_), Some(at), Some(now)) = (terminal_width(), zoned(time), zoned(Clock::system().now())) else {
        return format_time(time);
    };
    let pattern = match (at.date() == now.date(), at.year() == now.year()) {
        (true, _) => "%H:%M:%S",
        (false, true) => "%b %e %H:%M",
        (false, false) => "%Y-%m-%d",
    };
    at.strftime(pattern).to_string()
}

/// Formats a time without its year, in the local time zone.
pub(super) fn format_clock(time: Time) -> String {
    match jiff::Timestamp::from_millisecond(time.0) {
        Ok(timestamp) => {
            timestamp.to_zoned(jiff::tz::TimeZone::system()).strftime("%m-%d %H:%M:%S").to_string()
        }
        Err(_) => time.0.to_string(),
    }
}

/// Describes tokens and cost, with "at least" if they are lower bounds.
pub(super) fn format_usage(usage: &Usage) -> String {
    let at_least = if usage.at_least { "at least " } else { "" };
    format!("{at_least}{} in, {} out, {}", usage.input_tokens, usage.output_tokens, usage.cost)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_cut_to_the_terminal_and_marks_the_cut() {
        let rows = vec![vec!["run_1".to_owned(), "a title that is far too long".to_owned(), "ok".to_owned()]];
        assert_eq!(column_widths(&rows, None), [5, 28, 2]);
        assert_eq!(column_widths(&rows, Some(30)), [5, 19, 2]);
        assert_eq!(cut_cell(rows[0][1].clone(), 19), "a title that is fa…");
        assert_eq!(column_widths(&rows, Some(3)), [5, 8, 2], "a column stays readable");
        assert_eq!(cell_width(&safe(&format_status(RunStatus::Succeeded))), "succeeded".len());
        assert_eq!(cut_cell("日本語テキスト".to_owned(), 7), "日本語…");
    }
}
