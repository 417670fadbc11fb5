//! The client's side of ACP: file and terminal requests of agents. They are offered only if some rule can allow them.
//!
//! The policy decides every request, as `fs read`, `fs write` or `terminal run`, and the decision is recorded. Paths
//! must be inside the session's folder after resolving links, and never inside the state directory. These checks cover
//! only what mainspring does on the agent's behalf: the agent's own process may reach other paths.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_client_protocol::v1::schema::{
    ClientCapabilities, CreateTerminalRequest, FileSystemCapabilities, ReadTextFileRequest,
    WriteTextFileRequest,
};
use agent_client_protocol::{Error, ErrorCode, Responder};
use mainspring_core::{
    Approval, ApprovalChoice, ApprovalRequest, Block, FileLocation, Replies, RequestedCall,
};
use mainspring_kernel::adapter::{AttemptHandle, Death, HandleError};
use mainspring_kernel::policy::{self, Action, Question, Resource, Rule, Rules, may_allow};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::files::Workspace;
use super::terminal::{self, Terminal};
use super::worker::AcpWorker;
use crate::driver::{ProcessContext, TurnContext, diff_block, excerpt};
use crate::process::Launch;

/// The most terminals a turn can have at once.
const MAX_TERMINALS: usize = 32;

/// The client features that agents are offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ClientFeatures {
    read: bool,
    write: bool,
    terminal: bool,
}

impl ClientFeatures {
    /// The features that some rule allows or leaves to a person.
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

    /// Reports whether requests of this method were offered.
    pub(super) fn include(self, method: &str) -> bool {
        match method {
            "fs/read_text_file" => self.read,
            "fs/write_text_file" => self.write,
            _ => self.terminal && method.starts_with("terminal/"),
        }
    }
}

/// A file or terminal request of an agent.
pub(super) struct ClientRequest {
    pub(super) method: String,
    pub(super) params: Value,
    pub(super) responder: Responder,
}

/// A JSON-RPC response: a result or an error.
type Response = Result<Value, Error>;

/// Serves the file and terminal requests of one turn. Cheap to clone.
#[derive(Clone)]
pub(super) struct ClientServices(Arc<ClientInner>);

struct ClientInner {
    attempt: AttemptHandle,
    rules: Arc<Rules>,
    default_grant: Option<mainspring_core::Grant>,
    workspace: Arc<Workspace>,
    launch: Launch,
    context: ProcessContext,
    terminals: Mutex<HashMap<String, Arc<Terminal>>>,
    terminal_count: AtomicU64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminalParams {
    terminal_id: String,
}

impl ClientServices {
    pub(super) fn new(turn: &TurnContext<'_, AcpWorker>, attempt: AttemptHandle) -> Self {
        Self(Arc::new(ClientInner {
            attempt,
            rules: turn.rules.clone(),
            default_grant: turn.default_grant.clone(),
            workspace: Arc::new(Workspace { folder: turn.folder.clone(), folders: turn.folders.clone() }),
            launch: turn.launch.clone(),
            context: turn.context.clone(),
            terminals: Mutex::default(),
            terminal_count: AtomicU64::new(0),
        }))
    }

    /// Serves a request that needs no decision. Returns any other request.
    pub(super) fn serve(&self, request: ClientRequest) -> Option<ClientRequest> {
        let ClientRequest { method, params, responder } = request;
        match method.as_str() {
            "terminal/output" => {
                respond(responder, self.terminal(params).map(|terminal| terminal.output()));
            }
            "terminal/wait_for_exit" => match self.terminal(params) {
                Ok(terminal) => self.respond_at_exit(&terminal, responder),
                Err(error) => respond(responder, Err(error)),
            },
            "terminal/kill" => self.kill_terminal(self.terminal(params), responder),
            "terminal/release" => {
                let found = self.terminal(params.clone());
                if let Ok(TerminalParams { terminal_id }) = parse(params) {
                    self.0.terminals.lock().remove(&terminal_id);
                }
                self.kill_terminal(found, responder);
            }
            "fs/read_text_file" | "fs/write_text_file" | "terminal/create" => {
                return Some(ClientRequest { method, params, responder });
            }
            _ => respond(responder, Err(Error::method_not_found())),
        }
        None
    }

    /// Responds with the exit status of a terminal once its command has ended.
    fn respond_at_exit(&self, terminal: &Terminal, responder: Responder) {
        let exited = terminal.exited();
        self.0.context.tasks.spawn(async move { respond(responder, Ok(exited.await)) });
    }

    /// Kills the command of a terminal, and then responds.
    fn kill_terminal(&self, found: Result<Arc<Terminal>, Error>, responder: Responder) {
        self.0.context.tasks.spawn(async move {
            let response = match found {
                Ok(terminal) => {
                    terminal.kill().await;
                    Ok(json!({}))
                }
                Err(error) => Err(error),
            };
            respond(responder, response);
        });
    }

    /// Serves a request that needs a decision: decides it, executes it if allowed, and responds.
    pub(super) async fn decide_and_serve(self, request: ClientRequest) -> Result<(), HandleError> {
        let ClientRequest { method, params, responder } = request;
        let response = match method.as_str() {
            "fs/read_text_file" => self.read_file(params).await,
            "fs/write_text_file" => self.write_file(params).await,
            _ => self.create_terminal(params).await,
        };
        match response {
            Ok(response) => {
                respond(responder, response);
                Ok(())
            }
            Err(error) => {
                respond(responder, Err(Error::request_cancelled()));
                Err(error)
            }
        }
    }

    /// Kills every terminal.
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

    /// The output of a terminal so far.
    pub(super) fn terminal_text(&self, id: &str) -> Option<String> {
        self.0.terminals.lock().get(id).map(|terminal| terminal.text())
    }

    fn terminal(&self, params: Value) -> Result<Arc<Terminal>, Error> {
        let TerminalParams { terminal_id } = parse(params)?;
        let terminals = self.0.terminals.lock();
        let found = terminals.get(&terminal_id).cloned();
        found.ok_or_else(|| invalid_params(format!("no terminal {terminal_id:?}")))
    }

    async fn read_file(&self, params: Value) -> Result<Response, HandleError> {
        let ReadTextFileRequest { path, line, limit, .. } = match parse(params) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let path = match self.permit_file("read", &path, None).await? {
            Ok(path) => path,
            Err(error) => return Ok(Err(error)),
        };
        let workspace = self.0.workspace.clone();
        let text = blocking(move || workspace.read(&path, line, limit)).await;
        Ok(text.map(|content| json!({"content": content})))
    }

    async fn write_file(&self, params: Value) -> Result<Response, HandleError> {
        let WriteTextFileRequest { path, content, .. } = match parse(params) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let path = match self.permit_file("write", &path, Some(&content)).await? {
            Ok(path) => path,
            Err(error) => return Ok(Err(error)),
        };
        let workspace = self.0.workspace.clone();
        Ok(blocking(move || workspace.write(&path, &content)).await.map(|()| json!({})))
    }

    /// Locates a file and decides whether the operation is allowed; `written` is the text to write. Returns the resolved
    /// path of the file.
    async fn permit_file(
        &self,
        operation: &str,
        requested: &Path,
        written: Option<&str>,
    ) -> Result<Result<PathBuf, Error>, HandleError> {
        let (workspace, path) = (self.0.workspace.clone(), requested.to_owned());
        let located = blocking(move || workspace.locate(&path)).await;
        let path = match located {
            Ok(path) => path,
            Err(error) => {
                // Record the attempt to leave the folder.
                let question = excerpt(format!("Allow {operation} {}?", requested.display()));
                policy::refuse(&self.0.attempt, with_replies(question), "session_folder").await?;
                return Ok(Err(error));
            }
        };
        let action = action("fs", operation, Resource::Path(path.clone()));
        let diff = match written {
            Some(after) => vec![self.written_diff(&path, after).await?],
            None => vec![],
        };
        let call = RequestedCall {
            name: format!("fs/{operation}_text_file"),
            kind: Some(if written.is_some() { "edit" } else { "read" }.to_owned()),
            locations: vec![FileLocation { path: path.to_string_lossy().into_owned(), line: None }],
            diff,
            ..RequestedCall::default()
        };
        Ok(self.permit(&action, call).await?.map(|()| path))
    }

    /// The change that writing `after` to a file would make.
    async fn written_diff(&self, path: &Path, after: &str) -> Result<Block, HandleError> {
        let (workspace, read) = (self.0.workspace.clone(), path.to_owned());
        // A file that cannot be read as text is shown as a new one.
        let before = blocking(move || workspace.read(&read, None, None)).await.ok();
        let path = path.to_string_lossy().into_owned();
        diff_block(&self.0.attempt, path, before, after.to_owned()).await
    }

    async fn permit(&self, action: &Action, call: RequestedCall) -> Result<Result<(), Error>, HandleError> {
        let Action { capability, operation, resource } = action;
        let text = excerpt(format!("Allow {operation} {resource}?"));
        let request = ApprovalRequest::of(action.requested(), Some(call));
        let request = request.offer(&[ApprovalChoice::DenyWithReason]);
        let question = Question { request: Some(Box::new(request)), ..with_replies(text) };
        let ClientInner { attempt, rules, default_grant, .. } = &*self.0;
        let answer = rules.request_permission(attempt, default_grant.as_ref(), action, question).await?;
        if answer.decision == Approval::Allowed {
            return Ok(Ok(()));
        }
        let reason = answer.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let message = format!("not allowed: {capability} {operation} {resource}{reason}");
        Ok(Err(Error::new(ErrorCode::INVALID_REQUEST, message)))
    }

    /// Refuses a command once the turn has ended: the end of a turn kills every terminal.
    async fn within_turn(&self, action: &Action) -> Result<Result<(), Error>, HandleError> {
        if self.0.attempt.may_ask() {
            return Ok(Ok(()));
        }
        let question = excerpt(format!("Allow {} {}?", action.operation, action.resource));
        policy::refuse(&self.0.attempt, with_replies(question), "turn_ended").await?;
        Ok(Err(Error::request_cancelled()))
    }

    async fn create_terminal(&self, params: Value) -> Result<Response, HandleError> {
        let mut request: CreateTerminalRequest = match parse(params) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let workspace = self.0.workspace.clone();
        let folder = request.cwd.clone().unwrap_or_else(|| workspace.folder.clone());
        let folder = match blocking(move || workspace.locate(&folder)).await {
            Ok(folder) => folder,
            Err(error) => return Ok(Err(error)),
        };
        let action = action("terminal", "run", terminal::resource(&request));
        if !self.0.rules.admits_everything(&action) {
            // A person or a rule allows only this program. An environment variable could make it run another program.
            request.env.retain(|variable| terminal::is_harmless_variable(&variable.name));
        }
        let env: Vec<Value> =
            request.env.iter().map(|var| json!({"name": var.name, "value": var.value})).collect();
        let call = RequestedCall {
            name: "terminal/create".to_owned(),
            kind: Some("execute".to_owned()),
            input: json!({"command": request.command, "args": request.args, "cwd": folder, "env": env}),
            ..RequestedCall::default()
        };
        if let Err(error) = self.within_turn(&action).await? {
            return Ok(Err(error));
        }
        if let Err(error) = self.permit(&action, call).await? {
            return Ok(Err(error));
        }
        // While a person decided, the folder may have been replaced by a link.
        let (workspace, decided) = (self.0.workspace.clone(), folder.clone());
        match blocking(move || workspace.locate(&decided)).await {
            Ok(now) if now == folder => {}
            Ok(_) => {
                let message = format!("{} was replaced by a link", folder.display());
                return Ok(Err(invalid_params(message)));
            }
            Err(error) => return Ok(Err(error)),
        }
        // The turn may have ended during the decision.
        if let Err(error) = self.within_turn(&action).await? {
            return Ok(Err(error));
        }
        if self.0.terminals.lock().len() >= MAX_TERMINALS {
            let message = format!("a turn has at most {MAX_TERMINALS} terminals: release one");
            return Ok(Err(Error::new(ErrorCode::INVALID_REQUEST, message)));
        }
        let no = self.0.terminal_count.fetch_add(1, Ordering::Relaxed) + 1;
        let launch =
            Launch { cwd: folder, name: format!("{}.{no}", self.0.attempt.id()), ..self.0.launch.clone() };
        let id = format!("terminal-{no}");
        Ok(match Terminal::start(launch, &request, &self.0.context) {
            Ok(terminal) => {
                self.0.terminals.lock().insert(id.clone(), Arc::new(terminal));
                Ok(json!({"terminalId": id}))
            }
            Err(error) => Err(error),
        })
    }
}

/// The question of a request that is served if it is allowed, and answered with an error otherwise.
fn with_replies(text: String) -> Question {
    let replies = Replies { allowed: "served".to_owned(), denied: "error".to_owned() };
    Question { replies: Some(replies), ..text.into() }
}

fn action(capability: &'static str, operation: &str, resource: Resource) -> Action {
    Action { capability, operation: operation.to_owned(), resource }
}

fn respond(responder: Responder, response: Response) {
    // Fails only if the connection is closed.
    let _ = match response {
        Ok(result) => responder.respond(result),
        Err(error) => responder.respond_with_error(error),
    };
}

fn parse<T: DeserializeOwned>(params: Value) -> Result<T, Error> {
    serde_json::from_value(params).map_err(|error| invalid_params(error.to_string()))
}

pub(super) fn invalid_params(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_PARAMS, message)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(Error::internal_error()))
}
