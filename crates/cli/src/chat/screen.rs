//! What the person sees. At a terminal everything goes there, wrapped and calm; elsewhere what the agent says is the
//! result, as it is, and all else goes to standard error.

use std::io::{self, IsTerminal};

use anstyle::Style;

use super::wrap::{Wrap, one_line};
use crate::output::{Busy, DIM, Output, RED, YELLOW};

/// Lines are not longer than this, however wide the terminal is: nobody reads those.
const WIDEST: usize = 100;

/// What the person sees.
pub(super) struct Screen<'a> {
    output: &'a Output,
    /// Both results and notes go to a terminal.
    terminal: bool,
    said: Option<Wrap>,
    thought: Option<Wrap>,
    /// Where the result is not wrapped: whether its line has begun.
    mid_line: bool,
    busy: Option<Busy>,
}

impl<'a> Screen<'a> {
    pub(super) fn new(output: &'a Output) -> Self {
        let terminal = !output.json && io::stdout().is_terminal() && io::stderr().is_terminal();
        Self { output, terminal, said: None, thought: None, mid_line: false, busy: None }
    }

    /// How many columns a line has.
    pub(super) fn width(&self) -> usize {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|_| self.terminal);
        let columns = size.map_or(WIDEST, |size| usize::from(size.ws_col));
        columns.clamp(16, WIDEST)
    }

    /// Something the agent says, as it comes.
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

    /// Something the agent thinks, as it comes.
    pub(super) fn think(&mut self, text: &str) -> io::Result<()> {
        self.busy = None;
        if self.terminal {
            self.end_said()?;
        }
        let width = self.width();
        let wrapped = self.thought.get_or_insert_with(|| Wrap::new(width, 2)).push(text);
        self.aside(&wrapped, DIM)
    }

    /// What was said or thought is whole.
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

    /// Part of a line beside the result.
    fn aside(&self, text: &str, style: Style) -> io::Result<()> {
        match (text.is_empty() || self.output.json, text.trim().is_empty()) {
            (true, _) => Ok(()),
            (_, true) => self.output.aside(text),
            _ => self.output.aside(format_args!("{style}{text}{style:#}")),
        }
    }

    /// A line about what happens, in the background.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        self.line("·", DIM, DIM, text)
    }

    /// A line about what went wrong.
    pub(super) fn problem(&mut self, text: &str) -> io::Result<()> {
        self.line("✗", RED, Style::new(), text)
    }

    /// A question to the person.
    pub(super) fn question(&mut self, text: &str) -> io::Result<()> {
        self.line("?", YELLOW, Style::new(), text)
    }

    /// A line of its own, wrapped, with a mark before it.
    fn line(&mut self, mark: &str, colour: Style, style: Style, text: &str) -> io::Result<()> {
        self.step_aside()?;
        if self.output.json {
            return Ok(());
        }
        let mut wrap = Wrap::new(if self.terminal { self.width() } else { usize::MAX }, 2);
        let wrapped = format!("{}{}", wrap.push(text.trim_end()), wrap.rest());
        self.output.note(format_args!("{colour}{mark}{colour:#} {style}{}{style:#}", wrapped.trim_start()))
    }

    /// A line as it is, cut to the terminal's width.
    pub(super) fn plain(&mut self, text: &str, style: Style) -> io::Result<()> {
        self.step_aside()?;
        if self.output.json {
            return Ok(());
        }
        self.output.note(format_args!("{style}{text}{style:#}"))
    }

    /// A tool was called, and this came of it.
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

    /// An empty line at a terminal.
    pub(super) fn gap(&mut self) -> io::Result<()> {
        self.end()?;
        if self.terminal { self.output.part("\n") } else { Ok(()) }
    }

    /// Leaves the line. A result that goes elsewhere is not touched by what is said beside it.
    fn step_aside(&mut self) -> io::Result<()> {
        self.busy = None;
        self.end_thought()?;
        if self.terminal { self.end_said() } else { Ok(()) }
    }

    /// True when nothing shows that something is being done.
    pub(super) fn is_still(&self) -> bool {
        let writing = |wrap: &Option<Wrap>| wrap.as_ref().is_some_and(Wrap::is_mid_line);
        self.terminal && self.busy.is_none() && !writing(&self.said) && !writing(&self.thought)
    }

    /// Turns a spinner until something else is shown.
    pub(super) fn busy(&mut self, what: &str) {
        if self.is_still() {
            self.busy = self.output.busy(what);
        }
    }
}
