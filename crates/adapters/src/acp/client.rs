//! The client's side: files and terminals that agents are offered, where the policy's rules let that happen at all.
//!
//! Every file and every terminal is decided by the policy, as `fs read`, `fs write` or `terminal run`, and the decision
//! is recorded. Paths lie in the session's folder, whatever they go through. An agent's own process can reach more than
//! that; what it is handed here it is handed by us.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_client_protocol::v1::schema::{
    ClientCapabilities, CreateTerminalRequest, FileSystemCapabilities, ReadTextFileRequest,
    WriteTextFileRequest,
};
use agent_client_protocol::{Error, ErrorCode, Responder};
use mainspring_core::Approval;
use mainspring_kernel::adapter::{AttemptHandle, Death, HandleError, Record};
use mainspring_kernel::policy::{Action, Rule, Rules, may_allow};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::files;
use super::terminal::Terminal;
use super::worker::Worker;
use crate::driver::{Ground, Turn, excerpt};
use crate::process::Launch;

/// How many terminals a turn has at once.
const TERMINALS: usize = 32;

/// What agents are offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Offer {
    read: bool,
    write: bool,
    terminal: bool,
}

impl Offer {
    /// What the rules let happen.
    pub(super) fn of(rules: &[Rule]) -> Self {
        Self {
            read: may_allow(rules, "fs", "read"),
            write: may_allow(rules, "fs", "write"),
            terminal: may_allow(rules, "terminal", "run"),
        }
    }

    pub(super) fn capabilities(self) -> ClientCapabilities {
        let fs = FileSystemCapabilities::new().read_text_file(self.read).write_text_file(self.write);
        ClientCapabilities::new().fs(fs).terminal(self.terminal)
    }

    /// Whether a request of this method is one that was offered.
    pub(super) fn has(self, method: &str) -> bool {
        match method {
            "fs/read_text_file" => self.read,
            "fs/write_text_file" => self.write,
            _ => self.terminal && method.starts_with("terminal/"),
        }
    }
}

/// What an agent asks of its client.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) params: Value,
    pub(super) responder: Responder,
}

/// What is answered: a result or an error.
type Answer = Result<Value, Error>;

/// The client's side of one turn. Cheap to clone.
#[derive(Clone)]
pub(super) struct Desk(Arc<Shared>);

struct Shared {
    attempt: AttemptHandle,
    rules: Arc<Rules>,
    standing: Option<mainspring_core::Grant>,
    /// The session's folder.
    cwd: PathBuf,
    launch: Launch,
    ground: Ground,
    terminals: Mutex<HashMap<String, Arc<Terminal>>>,
    made: AtomicU64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    terminal_id: String,
}

impl Desk {
    pub(super) fn new(turn: &Turn<'_, Worker>) -> Self {
        Self(Arc::new(Shared {
            attempt: turn.attempt.clone(),
            rules: turn.rules.clone(),
            standing: turn.standing.clone(),
            cwd: turn.launch.cwd.clone(),
            launch: turn.launch.clone(),
            ground: turn.ground.clone(),
            terminals: Mutex::default(),
            made: AtomicU64::new(0),
        }))
    }

    /// Serves what needs no decision; gives back what does.
    pub(super) fn serve(&self, request: Request) -> Option<Request> {
        let Request { method, params, responder } = request;
        match method.as_str() {
            "terminal/output" => {
                respond(responder, self.terminal(params).map(|terminal| terminal.output()));
            }
            "terminal/wait_for_exit" => match self.terminal(params) {
                Ok(terminal) => {
                    let exited = terminal.exited();
                    self.0.ground.tasks.spawn(async move { respond(responder, Ok(exited.await)) });
                }
                Err(error) => respond(responder, Err(error)),
            },
            "terminal/kill" | "terminal/release" => {
                let named = self.terminal(params.clone());
                if method == "terminal/release"
                    && let Ok(Named { terminal_id }) = read(params)
                {
                    self.0.terminals.lock().remove(&terminal_id);
                }
                self.0.ground.tasks.spawn(async move {
                    let answer = match named {
                        Ok(terminal) => {
                            terminal.kill().await;
                            Ok(json!({}))
                        }
                        Err(error) => Err(error),
                    };
                    respond(responder, answer);
                });
            }
            "fs/read_text_file" | "fs/write_text_file" | "terminal/create" => {
                return Some(Request { method, params, responder });
            }
            _ => respond(responder, Err(Error::method_not_found())),
        }
        None
    }

    /// Has it decided, does it, and answers.
    pub(super) async fn decide(self, request: Request) -> Result<(), HandleError> {
        let Request { method, params, responder } = request;
        let answered = match method.as_str() {
            "fs/read_text_file" => self.read(params).await,
            "fs/write_text_file" => self.write(params).await,
            _ => self.create(params).await,
        };
        match answered {
            Ok(answer) => {
                respond(responder, answer);
                Ok(())
            }
            Err(error) => {
                respond(responder, Err(Error::request_cancelled()));
                Err(error)
            }
        }
    }

    /// Ends every terminal.
    pub(super) async fn close(&self) -> Death {
        let all: Vec<Arc<Terminal>> = self.0.terminals.lock().drain().map(|(_, terminal)| terminal).collect();
        let mut death = Death::Proven;
        for killed in futures_util::future::join_all(all.iter().map(|terminal| terminal.kill())).await {
            if killed == Death::Unproven {
                death = Death::Unproven;
            }
        }
        death
    }

    /// What a terminal shows.
    pub(super) fn shown(&self, id: &str) -> Option<String> {
        self.0.terminals.lock().get(id).map(|terminal| terminal.text())
    }

    fn terminal(&self, params: Value) -> Result<Arc<Terminal>, Error> {
        let Named { terminal_id } = read(params)?;
        let terminals = self.0.terminals.lock();
        terminals.get(&terminal_id).cloned().ok_or_else(|| invalid(format!("no terminal {terminal_id:?}")))
    }

    async fn read(&self, params: Value) -> Result<Answer, HandleError> {
        let ReadTextFileRequest { path, line, limit, .. } = match read(params) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let path = match self.file("read", &path).await? {
            Ok(path) => path,
            Err(error) => return Ok(Err(error)),
        };
        let cwd = self.0.cwd.clone();
        let text = blocking(move || files::read(&cwd, &path, line, limit)).await;
        Ok(text.map(|content| json!({"content": content})))
    }

    async fn write(&self, params: Value) -> Result<Answer, HandleError> {
        let WriteTextFileRequest { path, content, .. } = match read(params) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let path = match self.file("write", &path).await? {
            Ok(path) => path,
            Err(error) => return Ok(Err(error)),
        };
        let cwd = self.0.cwd.clone();
        Ok(blocking(move || files::write(&cwd, &path, &content)).await.map(|()| json!({})))
    }

    /// The file that is meant, once it may be used for this operation.
    async fn file(&self, operation: &str, named: &Path) -> Result<Result<PathBuf, Error>, HandleError> {
        let (cwd, wanted) = (self.0.cwd.clone(), named.to_owned());
        let located = blocking(move || files::locate(&cwd, &wanted)).await;
        let path = match located {
            Ok(path) => path,
            Err(error) => {
                // Who tries it is seen.
                let question = excerpt(format!("Allow {operation} {}?", named.display()));
                let denied = Record::Decided { question, decision: Approval::Denied, grant: None };
                self.0.attempt.record(vec![denied]).await?;
                return Ok(Err(error));
            }
        };
        let resource = path.to_string_lossy().into_owned();
        Ok(self.permit("fs", operation, resource).await?.map(|()| path))
    }

    async fn permit(
        &self,
        capability: &'static str,
        operation: &str,
        resource: String,
    ) -> Result<Result<(), Error>, HandleError> {
        let question = excerpt(format!("Allow {operation} {resource}?"));
        let act = Action { capability, operation: operation.to_owned(), resource };
        let Shared { attempt, rules, standing, .. } = &*self.0;
        let decision = rules.request_permission(attempt, standing.as_ref(), &act, question.into()).await?;
        Ok(match decision {
            Approval::Allowed => Ok(()),
            Approval::Denied | Approval::Expired => {
                let message = format!("not allowed: {capability} {operation} {}", act.resource);
                Err(Error::new(ErrorCode::INVALID_REQUEST, message))
            }
        })
    }

    async fn create(&self, params: Value) -> Result<Answer, HandleError> {
        let request: CreateTerminalRequest = match read(params) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let (cwd, folder) = (self.0.cwd.clone(), request.cwd.clone().unwrap_or_else(|| self.0.cwd.clone()));
        let folder = match blocking(move || files::locate(&cwd, &folder)).await {
            Ok(folder) => folder,
            Err(error) => return Ok(Err(error)),
        };
        let command = std::iter::once(&request.command).chain(&request.args);
        let line = command.map(String::as_str).collect::<Vec<_>>().join(" ");
        if let Err(error) = self.permit("terminal", "run", line).await? {
            return Ok(Err(error));
        }
        if self.0.terminals.lock().len() >= TERMINALS {
            let message = format!("a turn has at most {TERMINALS} terminals: release one");
            return Ok(Err(Error::new(ErrorCode::INVALID_REQUEST, message)));
        }
        let no = self.0.made.fetch_add(1, Ordering::Relaxed) + 1;
        let launch =
            Launch { cwd: folder, name: format!("{}.{no}", self.0.attempt.id()), ..self.0.launch.clone() };
        let id = format!("terminal-{no}");
        Ok(match Terminal::start(launch, &request, &self.0.ground) {
            Ok(terminal) => {
                self.0.terminals.lock().insert(id.clone(), Arc::new(terminal));
                Ok(json!({"terminalId": id}))
            }
            Err(error) => Err(error),
        })
    }
}

fn respond(responder: Responder, answer: Answer) {
    // Who has gone needs no answer.
    let _ = match answer {
        Ok(result) => responder.respond(result),
        Err(error) => responder.respond_with_error(error),
    };
}

fn read<T: DeserializeOwned>(params: Value) -> Result<T, Error> {
    serde_json::from_value(params).map_err(|error| invalid(error.to_string()))
}

/// Says what is wrong with a request.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_PARAMS, message)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(Error::internal_error()))
}
