//! Output of a chat. At a terminal all output goes there, wrapped. Elsewhere the agent's text goes unchanged to
//! standard output and everything else to standard error.

use std::io::{self, IsTerminal};

use super::wrap::{Wrap, one_line};
use crate::output::{DIM, Output, PLAIN, RED, Spinner, YELLOW};
use crate::safe_text::Style;

/// Maximum line width, however wide the terminal is: longer lines are hard to read.
const MAX_WIDTH_COLUMNS: usize = 100;

/// Writes the conversation.
pub(super) struct Screen<'a> {
    output: &'a Output,
    /// True when both results and notes go to a terminal.
    terminal: bool,
    /// The open answer.
    answer: Option<Wrap>,
    /// The open thought.
    thought: Option<Wrap>,
    /// True when the unwrapped text so far does not end with a line break.
    mid_line: bool,
    spinner: Option<Spinner>,
}

impl<'a> Screen<'a> {
    pub(super) fn new(output: &'a Output) -> Self {
        let terminal = !output.json && io::stdout().is_terminal() && io::stderr().is_terminal();
        Self { output, terminal, answer: None, thought: None, mid_line: false, spinner: None }
    }

    /// Width of a line in columns.
    pub(super) fn width(&self) -> usize {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|_| self.terminal);
        let columns = size.map_or(MAX_WIDTH_COLUMNS, |size| usize::from(size.ws_col));
        columns.clamp(16, MAX_WIDTH_COLUMNS)
    }

    /// Writes a piece of the agent's text.
    pub(super) fn print_answer(&mut self, text: &str) -> io::Result<()> {
        self.spinner = None;
        self.end_thought()?;
        if !self.terminal {
            if !text.is_empty() {
                self.mid_line = !text.ends_with('\n');
            }
            return self.output.print(text);
        }
        let width = self.width();
        let wrapped = self.answer.get_or_insert_with(|| Wrap::new(width, 0)).push(text);
        self.output.print(&wrapped)
    }

    /// Writes a piece of the agent's thoughts.
    pub(super) fn print_thought(&mut self, text: &str) -> io::Result<()> {
        self.spinner = None;
        if self.terminal {
            self.end_answer()?;
        }
        let width = self.width();
        let wrapped = self.thought.get_or_insert_with(|| Wrap::new(width, 2)).push(text);
        self.print_styled_part(&wrapped, DIM)
    }

    /// Ends the current text or thought.
    pub(super) fn end_text(&mut self) -> io::Result<()> {
        self.spinner = None;
        self.end_thought()?;
        self.end_answer()
    }

    fn end_answer(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.mid_line) {
            self.output.print("\n")?;
        }
        let Some(mut wrap) = self.answer.take() else { return Ok(()) };
        let rest = wrap.finish();
        let end = if wrap.is_mid_line() { "\n" } else { "" };
        self.output.print(&format!("{rest}{end}"))
    }

    fn end_thought(&mut self) -> io::Result<()> {
        let Some(mut wrap) = self.thought.take() else { return Ok(()) };
        let rest = wrap.finish();
        let end = if wrap.is_mid_line() { "\n" } else { "" };
        self.print_styled_part(&rest, DIM)?;
        self.print_styled_part(end, DIM)
    }

    /// Writes part of a line to standard error.
    fn print_styled_part(&self, text: &str, style: Style) -> io::Result<()> {
        match (text.is_empty() || self.output.json, text.trim().is_empty()) {
            (true, _) => Ok(()),
            (_, true) => self.output.print_note_part(text),
            _ => self.output.print_note_part(format_args!("{style}{text}{style:#}")),
        }
    }

    /// Writes a dimmed status line.
    pub(super) fn print_note(&mut self, text: &str) -> io::Result<()> {
        self.print_marked_line("·", DIM, DIM, text)
    }

    /// Writes an error line.
    pub(super) fn print_error(&mut self, text: &str) -> io::Result<()> {
        self.print_marked_line("✗", RED, PLAIN, text)
    }

    /// Writes a question to the person.
    pub(super) fn print_question(&mut self, text: &str) -> io::Result<()> {
        self.print_marked_line("?", YELLOW, PLAIN, text)
    }

    /// Writes a wrapped line of its own, with a marker before it.
    fn print_marked_line(&mut self, marker: &str, colour: Style, style: Style, text: &str) -> io::Result<()> {
        self.end_terminal_line()?;
        if self.output.json {
            return Ok(());
        }
        let mut wrap = Wrap::new(if self.terminal { self.width() } else { usize::MAX }, 2);
        let wrapped = format!("{}{}", wrap.push(text.trim_end()), wrap.finish());
        self.output
            .print_note(format_args!("{colour}{marker}{colour:#} {style}{}{style:#}", wrapped.trim_start()))
    }

    /// Writes an unwrapped line.
    pub(super) fn print_line(&mut self, text: &str, style: Style) -> io::Result<()> {
        self.end_terminal_line()?;
        if self.output.json {
            return Ok(());
        }
        self.output.print_note(format_args!("{style}{text}{style:#}"))
    }

    /// Shows a tool call and its result.
    pub(super) fn print_tool_call(
        &mut self,
        name: &str,
        input: &str,
        result: Result<&str, &str>,
    ) -> io::Result<()> {
        let columns = self.width().saturating_sub(6);
        let call = one_line(&format!("{name} {input}"), columns * 3 / 5);
        let (arrow, colour, text) = match result {
            Ok(text) => ("→", DIM, text),
            Err(text) => ("✗", RED, text),
        };
        let left = columns.saturating_sub(unicode_width::UnicodeWidthStr::width(call.as_str()));
        let text = one_line(text, left.max(8));
        self.end_terminal_line()?;
        if self.output.json {
            return Ok(());
        }
        self.output
            .print_note(format_args!("{DIM}· {call}{DIM:#} {colour}{arrow}{colour:#} {DIM}{text}{DIM:#}"))
    }

    /// Writes an empty line at a terminal.
    pub(super) fn print_gap(&mut self) -> io::Result<()> {
        self.end_text()?;
        if self.terminal { self.output.print("\n") } else { Ok(()) }
    }

    /// Ends the current line before a note. A result that does not go to the terminal is left as it is.
    fn end_terminal_line(&mut self) -> io::Result<()> {
        self.spinner = None;
        self.end_thought()?;
        if self.terminal { self.end_answer() } else { Ok(()) }
    }

    /// True when neither a spinner nor streaming text shows activity.
    pub(super) fn is_idle(&self) -> bool {
        let writing = |wrap: &Option<Wrap>| wrap.as_ref().is_some_and(Wrap::is_mid_line);
        self.terminal && self.spinner.is_none() && !writing(&self.answer) && !writing(&self.thought)
    }

    /// Shows a spinner until something else is written.
    pub(super) fn show_spinner(&mut self, what: &str) {
        if self.is_idle() {
            self.spinner = self.output.start_spinner(what);
        }
    }
}
