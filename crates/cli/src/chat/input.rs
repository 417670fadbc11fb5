//! Input lines: from a terminal, with editing and history, or from a file or a pipe.

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anstyle::Style;
use rustix::termios::{self, LocalModes, OptionalActions, QueueSelector, Termios};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::order::ORDERS;

/// Maximum number of lines in the history.
const HISTORY: usize = 10_000;

/// Result of reading a line.
pub(super) enum Read {
    Line(String),
    /// Ctrl-C, at a terminal.
    Interrupted,
    /// End of input.
    Ended,
}

/// Request for a line.
pub(super) struct Ask {
    /// Text shown before the line.
    pub(super) prompt: &'static str,
    /// Style of the prompt text.
    pub(super) style: Style,
    /// The line answers a question: keep it out of the history, and discard keys typed before the question was shown.
    pub(super) answer: bool,
}

/// Source of input lines.
pub(super) enum Input {
    Terminal(Terminal),
    Plain(Lines<BufReader<Stdin>>),
}

impl Input {
    /// Opens standard input; a terminal keeps its lines in the file `history`.
    pub(super) fn open(history: &Path, interactive: bool) -> io::Result<Self> {
        match interactive {
            true => Terminal::open(history).map(Self::Terminal),
            false => Ok(Self::Plain(BufReader::new(tokio::io::stdin()).lines())),
        }
    }

    /// Reads the next line. A trailing backslash continues the line.
    pub(super) async fn line(&mut self, ask: Ask) -> io::Result<Read> {
        match self {
            Self::Terminal(terminal) => terminal.line(ask).await,
            Self::Plain(lines) => {
                let mut whole = String::new();
                while let Some(line) = lines.next_line().await? {
                    whole.push_str(&line);
                    if !whole.ends_with('\\') {
                        return Ok(Read::Line(whole));
                    }
                    whole.pop();
                    whole.push('\n');
                }
                Ok(if whole.is_empty() { Read::Ended } else { Read::Line(whole) })
            }
        }
    }

    /// Turns the terminal's echo off until the guard is dropped; typed keys stay buffered for the next line.
    pub(super) fn quiet(&self) -> Option<Quiet> {
        match self {
            Self::Terminal(_) => Quiet::begin(),
            Self::Plain(_) => None,
        }
    }
}

/// Terminal input, read by an editor on a thread of its own.
pub(super) struct Terminal {
    asks: mpsc::Sender<Ask>,
    lines: UnboundedReceiver<io::Result<Read>>,
    /// True while the editor still reads a line whose request was dropped; the next request receives that line.
    asked: bool,
    /// The terminal's original attributes, restored when the chat ends in the middle of a line.
    before: Option<Termios>,
}

impl Terminal {
    fn open(history: &Path) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel::<Ask>();
        let (sender, lines) = unbounded_channel();
        let before = termios::tcgetattr(io::stdin()).ok();
        let mut editor = Typing::new(history.to_owned()).map_err(failed)?;
        // The editor blocks on key presses, so it needs a thread of its own.
        let read = move || {
            while let Ok(ask) = asked.recv() {
                if sender.send(editor.read(&ask)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("keys".into()).spawn(read)?;
        Ok(Self { asks, lines, asked: false, before })
    }

    async fn line(&mut self, ask: Ask) -> io::Result<Read> {
        if ask.answer && io::stdin().is_terminal() {
            termios::tcflush(io::stdin(), QueueSelector::IFlush)?;
        }
        if !self.asked && self.asks.send(ask).is_err() {
            return Ok(Read::Ended);
        }
        self.asked = true;
        let read = self.lines.recv().await.unwrap_or(Ok(Read::Ended));
        self.asked = false;
        read
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be closed already.
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// A line editor and its history.
struct Typing {
    editor: Editor<Slash, DefaultHistory>,
    history: PathBuf,
}

impl Typing {
    fn new(history: PathBuf) -> rustyline::Result<Self> {
        let config = Config::builder().max_history_size(HISTORY)?.history_ignore_dups(true)?;
        let mut editor = Editor::with_config(config.history_ignore_space(true).build())?;
        editor.set_helper(Some(Slash));
        // A missing or unreadable history is not an error.
        let _ = editor.load_history(&history);
        Ok(Self { editor, history })
    }

    fn read(&mut self, ask: &Ask) -> io::Result<Read> {
        let styled = format!("{}{}{:#}", ask.style, ask.prompt, ask.style);
        match self.editor.readline(&(ask.prompt, styled.as_str())) {
            Ok(line) => {
                let line = line.replace("\\\n", "\n");
                if !ask.answer && self.editor.add_history_entry(line.as_str()).unwrap_or(false) {
                    // A line that cannot be written to the history is still used.
                    let _ = self.editor.append_history(&self.history);
                }
                Ok(Read::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Read::Interrupted),
            Err(ReadlineError::Eof) => Ok(Read::Ended),
            Err(error) => Err(failed(error)),
        }
    }
}

fn failed(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Editor helper: completes slash commands and continues lines that end with a backslash.
struct Slash;

impl Completer for Slash {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _context: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(1..at).filter(|_| line.starts_with('/')).unwrap_or("-");
        let fit = ORDERS.iter().filter(|(name, ..)| name.starts_with(typed));
        Ok((0, fit.map(|(name, ..)| format!("/{name} ")).collect()))
    }
}

impl Validator for Slash {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        match context.input().ends_with('\\') {
            true => Ok(ValidationResult::Incomplete),
            false => Ok(ValidationResult::Valid(None)),
        }
    }
}

impl Highlighter for Slash {
    fn highlight_candidate<'c>(
        &self,
        candidate: &'c str,
        _completion: rustyline::CompletionType,
    ) -> Cow<'c, str> {
        Cow::Borrowed(candidate)
    }
}

impl Hinter for Slash {
    type Hint = String;
}

impl Helper for Slash {}

/// Guard that keeps the terminal's echo off.
pub(super) struct Quiet(Termios);

impl Quiet {
    fn begin() -> Option<Self> {
        let before = termios::tcgetattr(io::stdin()).ok()?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &quiet).ok()?;
        Some(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
