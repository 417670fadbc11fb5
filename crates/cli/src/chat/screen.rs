//! Output of a chat. At a terminal all output goes there, wrapped. Elsewhere the agent's text goes unchanged to
//! standard output and everything else to standard error.

use std::io::{self, IsTerminal};

use anstyle::Style;

use super::wrap::{Wrap, one_line};
use crate::output::{Busy, DIM, Output, RED, YELLOW};

/// Maximum line width in columns, however wide the terminal is: longer lines are hard to read.
const WIDEST: usize = 100;

/// Writes the conversation.
pub(super) struct Screen<'a> {
    output: &'a Output,
    /// True when both results and notes go to a terminal.
    terminal: bool,
    said: Option<Wrap>,
    thought: Option<Wrap>,
    /// True when an unwrapped result has begun a line.
    mid_line: bool,
    busy: Option<Busy>,
}

impl<'a> Screen<'a> {
    pub(super) fn new(output: &'a Output) -> Self {
        let terminal = !output.json && io::stdout().is_terminal() && io::stderr().is_terminal();
        Self { output, terminal, said: None, thought: None, mid_line: false, busy: None }
    }

    /// Width of a line in columns.
    pub(super) fn width(&self) -> usize {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|_| self.terminal);
        let columns = size.map_or(WIDEST, |size| usize::from(size.ws_col));
        columns.clamp(16, WIDEST)
    }

    /// Writes a piece of the agent's text.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        self.busy = None;
        self.end_thought()?;
        if !self.terminal {
            if !text.is_empty() {
                self.mid_line = !text.ends_with('\n');
            }
            return self.output.part(text);
        }
        let width = self.width();
        let wrapped = self.said.get_or_insert_with(|| Wrap::new(width, 0)).push(text);
        self.output.part(&wrapped)
    }

    /// Writes a piece of the agent's thoughts.
    pub(super) fn think(&mut self, text: &str) -> io::Result<()> {
        self.busy = None;
        if self.terminal {
            self.end_said()?;
        }
        let width = self.width();
        let wrapped = self.thought.get_or_insert_with(|| Wrap::new(width, 2)).push(text);
        self.aside(&wrapped, DIM)
    }

    /// Ends the current text or thought.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.busy = None;
        self.end_thought()?;
        self.end_said()
    }

    fn end_said(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.mid_line) {
            self.output.part("\n")?;
        }
        let Some(mut wrap) = self.said.take() else { return Ok(()) };
        let rest = wrap.rest();
        let end = if wrap.is_mid_line() { "\n" } else { "" };
        self.output.part(&format!("{rest}{end}"))
    }

    fn end_thought(&mut self) -> io::Result<()> {
        let Some(mut wrap) = self.thought.take() else { return Ok(()) };
        let rest = wrap.rest();
        let end = if wrap.is_mid_line() { "\n" } else { "" };
        self.aside(&rest, DIM)?;
        self.aside(end, DIM)
    }

    /// Writes part of a line to standard error.
    fn aside(&self, text: &str, style: Style) -> io::Result<()> {
        match (text.is_empty() || self.output.json, text.trim().is_empty()) {
            (true, _) => Ok(()),
            (_, true) => self.output.aside(text),
            _ => self.output.aside(format_args!("{style}{text}{style:#}")),
        }
    }

    /// Writes a dimmed status line.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        self.line("·", DIM, DIM, text)
    }

    /// Writes an error line.
    pub(super) fn problem(&mut self, text: &str) -> io::Result<()> {
        self.line("✗", RED, Style::new(), text)
    }

    /// Writes a question to the person.
    pub(super) fn question(&mut self, text: &str) -> io::Result<()> {
        self.line("?", YELLOW, Style::new(), text)
    }

    /// Writes a wrapped line of its own, with a mark before it.
    fn line(&mut self, mark: &str, colour: Style, style: Style, text: &str) -> io::Result<()> {
        self.step_aside()?;
        if self.output.json {
            return Ok(());
        }
        let mut wrap = Wrap::new(if self.terminal { self.width() } else { usize::MAX }, 2);
        let wrapped = format!("{}{}", wrap.push(text.trim_end()), wrap.rest());
        self.output.note(format_args!("{colour}{mark}{colour:#} {style}{}{style:#}", wrapped.trim_start()))
    }

    /// Writes an unwrapped line, cut to the terminal's width.
    pub(super) fn plain(&mut self, text: &str, style: Style) -> io::Result<()> {
        self.step_aside()?;
        if self.output.json {
            return Ok(());
        }
        self.output.note(format_args!("{style}{text}{style:#}"))
    }

    /// Shows a tool call and its result.
    pub(super) fn tool(&mut self, name: &str, input: &str, result: Result<&str, &str>) -> io::Result<()> {
        let room = self.width().saturating_sub(6);
        let call = one_line(&format!("{name} {input}"), room * 3 / 5);
        let (arrow, colour, text) = match result {
            Ok(text) => ("→", DIM, text),
            Err(text) => ("✗", RED, text),
        };
        let left = room.saturating_sub(unicode_width::UnicodeWidthStr::width(call.as_str()));
        let text = one_line(text, left.max(8));
        self.step_aside()?;
        if self.output.json {
            return Ok(());
        }
        self.output.note(format_args!("{DIM}· {call}{DIM:#} {colour}{arrow}{colour:#} {DIM}{text}{DIM:#}"))
    }

    /// Writes an empty line at a terminal.
    pub(super) fn gap(&mut self) -> io::Result<()> {
        self.end()?;
        if self.terminal { self.output.part("\n") } else { Ok(()) }
    }

    /// Ends the current line before a note. A result that does not go to the terminal is left as it is.
    fn step_aside(&mut self) -> io::Result<()> {
        self.busy = None;
        self.end_thought()?;
        if self.terminal { self.end_said() } else { Ok(()) }
    }

    /// True when neither a spinner nor streaming text shows activity.
    pub(super) fn is_still(&self) -> bool {
        let writing = |wrap: &Option<Wrap>| wrap.as_ref().is_some_and(Wrap::is_mid_line);
        self.terminal && self.busy.is_none() && !writing(&self.said) && !writing(&self.thought)
    }

    /// Shows a spinner until something else is written.
    pub(super) fn busy(&mut self, what: &str) {
        if self.is_still() {
            self.busy = self.output.busy(what);
        }
    }
}
