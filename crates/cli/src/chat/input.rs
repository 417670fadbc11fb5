//! Where lines come from: a person at a terminal, with editing and history, or a file or a pipe, line by line.

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

/// How many lines are remembered.
const HISTORY: usize = 10_000;

/// What came.
pub(super) enum Read {
    Line(String),
    /// Ctrl-C, at a terminal.
    Interrupted,
    /// Nothing more will come.
    Ended,
}

/// What is asked for.
pub(super) struct Ask {
    /// What stands before the line.
    pub(super) prompt: &'static str,
    /// How that looks.
    pub(super) style: Style,
    /// An answer to a question, which is not remembered, and is not what was typed before the question was seen.
    pub(super) answer: bool,
}

/// Where lines come from.
pub(super) enum Input {
    Terminal(Terminal),
    Plain(Lines<BufReader<Stdin>>),
}

impl Input {
    /// Standard input; a terminal remembers what was said in `history`.
    pub(super) fn open(history: &Path, interactive: bool) -> io::Result<Self> {
        match interactive {
            true => Terminal::open(history).map(Self::Terminal),
            false => Ok(Self::Plain(BufReader::new(tokio::io::stdin()).lines())),
        }
    }

    /// The next line. A line that ends with a backslash goes on in the next one.
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

    /// Shows nothing of what is typed while this lives; it waits for the next line.
    pub(super) fn quiet(&self) -> Option<Quiet> {
        match self {
            Self::Terminal(_) => Quiet::begin(),
            Self::Plain(_) => None,
        }
    }
}

/// A person at a terminal.
pub(super) struct Terminal {
    asks: mpsc::Sender<Ask>,
    lines: UnboundedReceiver<io::Result<Read>>,
    /// True while a line is being read that nobody waits for any more: whoever asks next gets it.
    asked: bool,
    /// As it was: whoever leaves in the middle of a line puts it back.
    before: Option<Termios>,
}

impl Terminal {
    fn open(history: &Path) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel::<Ask>();
        let (sender, lines) = unbounded_channel();
        let before = termios::tcgetattr(io::stdin()).ok();
        let mut editor = Typing::new(history.to_owned()).map_err(failed)?;
        // The editor waits for keys, which no runtime can do for it.
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
            // A terminal that has gone needs no care.
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
        // There is none yet, or it is not ours to read: one begins without.
        let _ = editor.load_history(&history);
        Ok(Self { editor, history })
    }

    fn read(&mut self, ask: &Ask) -> io::Result<Read> {
        let styled = format!("{}{}{:#}", ask.style, ask.prompt, ask.style);
        match self.editor.readline(&(ask.prompt, styled.as_str())) {
            Ok(line) => {
                let line = line.replace("\\\n", "\n");
                if !ask.answer && self.editor.add_history_entry(line.as_str()).unwrap_or(false) {
                    // What cannot be remembered was said all the same.
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

/// Knows the orders, and that a backslash goes on.
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

/// A terminal that does not show what is typed.
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
