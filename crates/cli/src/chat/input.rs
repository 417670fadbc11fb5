//! Input lines: from a terminal, with editing and history, or from a file or a pipe.

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

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

use super::command::SLASH_COMMANDS;
use crate::safe_text::{Style, safe};
use crate::signals::Signal;

/// Maximum number of lines in the history.
const MAX_HISTORY_LINES: usize = 10_000;

/// The result of reading a line.
pub(super) enum LineInput {
    Line(String),
    /// Ctrl-C, at a terminal.
    Interrupted,
    /// End of input.
    Ended,
}

impl From<Signal> for LineInput {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Interrupt => Self::Interrupted,
            Signal::Terminate => Self::Ended,
        }
    }
}

/// A request for a line.
pub(super) struct LineRequest {
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
    pub(super) async fn read_line(&mut self, request: LineRequest) -> io::Result<LineInput> {
        match self {
            Self::Terminal(terminal) => terminal.read_line(request).await,
            Self::Plain(lines) => read_plain(lines).await,
        }
    }

    /// Turns the terminal's echo off until the guard is dropped; typed keys stay buffered for the next line.
    pub(super) fn disable_echo(&self) -> Option<EchoGuard> {
        match self {
            Self::Terminal(_) => EchoGuard::new(),
            Self::Plain(_) => None,
        }
    }
}

async fn read_plain(lines: &mut Lines<BufReader<Stdin>>) -> io::Result<LineInput> {
    let mut joined = String::new();
    while let Some(line) = lines.next_line().await? {
        joined.push_str(&line);
        if !joined.ends_with('\\') {
            return Ok(LineInput::Line(joined));
        }
        joined.pop();
        joined.push('\n');
    }
    Ok(if joined.is_empty() { LineInput::Ended } else { LineInput::Line(joined) })
}

/// Terminal input, read by an editor on a thread of its own.
pub(super) struct Terminal {
    requests: mpsc::Sender<LineRequest>,
    lines: UnboundedReceiver<io::Result<LineInput>>,
    /// True while the editor still reads a line whose request was dropped; the next request receives that line.
    pending: bool,
    /// The terminal's original attributes, restored when the chat ends in the middle of a line.
    original: Option<Termios>,
}

impl Terminal {
    fn open(history: &Path) -> io::Result<Self> {
        let (requests, receiver) = mpsc::channel::<LineRequest>();
        let (sender, lines) = unbounded_channel();
        let original = termios::tcgetattr(io::stdin()).ok();
        let mut editor = LineEditor::new(history.to_owned()).map_err(to_io_error)?;
        // The editor blocks on key presses, so it needs a thread of its own.
        let read = move || {
            while let Ok(request) = receiver.recv() {
                if sender.send(editor.read(&request)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("keys".into()).spawn(read)?;
        Ok(Self { requests, lines, pending: false, original })
    }

    async fn read_line(&mut self, request: LineRequest) -> io::Result<LineInput> {
        if request.answer && io::stdin().is_terminal() {
            termios::tcflush(io::stdin(), QueueSelector::IFlush)?;
        }
        if !self.pending && self.requests.send(request).is_err() {
            return Ok(LineInput::Ended);
        }
        self.pending = true;
        let read = self.lines.recv().await.unwrap_or(Ok(LineInput::Ended));
        self.pending = false;
        read
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(original) = &self.original {
            // The terminal may be closed already.
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, original);
        }
    }
}

/// A line editor and its history.
struct LineEditor {
    editor: Editor<EditorHelper, DefaultHistory>,
    history: PathBuf,
}

impl LineEditor {
    fn new(history: PathBuf) -> rustyline::Result<Self> {
        let config = Config::builder().max_history_size(MAX_HISTORY_LINES)?.history_ignore_dups(true)?;
        let mut editor = Editor::with_config(config.history_ignore_space(true).build())?;
        editor.set_helper(Some(EditorHelper));
        // A missing or unreadable history is not an error.
        let _ = editor.load_history(&history);
        Ok(Self { editor, history })
    }

    fn read(&mut self, request: &LineRequest) -> io::Result<LineInput> {
        let styled = format!("{}{}{:#}", request.style, request.prompt, request.style);
        match self.editor.readline(&(request.prompt, &*safe(&styled))) {
            Ok(line) => {
                let line = line.replace("\\\n", "\n");
                if !request.answer && self.editor.add_history_entry(line.as_str()).unwrap_or(false) {
                    // A line that cannot be written to the history is still used.
                    let _ = self.editor.append_history(&self.history);
                }
                Ok(LineInput::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(LineInput::Interrupted),
            Err(ReadlineError::Eof) => Ok(LineInput::Ended),
            Err(error) => Err(to_io_error(error)),
        }
    }
}

fn to_io_error(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Editor helper: completes slash commands and continues lines that end with a backslash.
struct EditorHelper;

impl Completer for EditorHelper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _context: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(1..at).filter(|_| line.starts_with('/')).unwrap_or("-");
        let matching = SLASH_COMMANDS.iter().filter(|(name, ..)| name.starts_with(typed));
        Ok((0, matching.map(|(name, ..)| format!("/{name} ")).collect()))
    }
}

impl Validator for EditorHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        match context.input().ends_with('\\') {
            true => Ok(ValidationResult::Incomplete),
            false => Ok(ValidationResult::Valid(None)),
        }
    }
}

impl Highlighter for EditorHelper {
    fn highlight_candidate<'c>(
        &self,
        candidate: &'c str,
        _completion: rustyline::CompletionType,
    ) -> Cow<'c, str> {
        Cow::Borrowed(candidate)
    }
}

impl Hinter for EditorHelper {
    type Hint = String;
}

impl Helper for EditorHelper {}

/// Guard that keeps the terminal's echo off.
pub(super) struct EchoGuard(Termios);

impl EchoGuard {
    fn new() -> Option<Self> {
        let original = termios::tcgetattr(io::stdin()).ok()?;
        let mut silent = original.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &silent).ok()?;
        Some(Self(original))
    }
}

impl Drop for EchoGuard {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
