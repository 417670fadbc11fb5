//! mainspring as a library: durable sessions for AI agents.
//!
//! This is the only crate that reads the configuration and joins a store and adapters to a kernel.
//!
//! A [`Node`] is one running mainspring: it owns a state directory and executes runs. Its [`Kernel`] has all
//! operations. [`Node::builder`] takes the parts that an embedder supplies: tools, hooks, adapters, a store.
//!
//! The most used names are at the root. Modules re-export the crates with all other names: [`mod@core`] has the types
//! and rules of the domain, [`kernel`] the operations and their requests, [`storage`] the stores.
//!
//! # A prompt, followed to its end
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use mainspring::core::{Body, Role};
//! use mainspring::{Caller, Config, Item, Node, RunRequest, session_ref};
//!
//! let folder = tempfile::tempdir()?;
//! let node = Node::open(&Config::with_state_dir(folder.path())).await?;
//! let me = Caller::new("me");
//! let accepted = node.kernel().run_create(&me, RunRequest::text("greeting", "say hello")).await?;
//! let greeting = session_ref("greeting")?;
//! let mut stream = node.kernel().session_subscribe(&me, &greeting, Some(accepted.position)).await?;
//! let mut answer = String::new();
//! while let Some(item) = stream.next().await.transpose()? {
//!     match item {
//!         // Streamed text. The completed message replaces it, and may contain text that was not streamed.
//!         Item::Delta(delta) => answer.push_str(&delta.text),
//!         Item::Event(event) => match &event.body {
//!             Body::MessageCompleted { message, .. } if message.role == Role::Assistant => answer = message.text(),
//!             body if body.ends_run() => break,
//!             _ => {}
//!         },
//!         _ => {}
//!     }
//! }
//! assert_eq!(answer.trim_end(), "hello");
//! node.close().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # A tool over state
//!
//! The arguments of a tool are a type; its schema is derived. Through [`tool::ToolContext`] a tool reads and writes the
//! session's state, which branches and forks with the conversation.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use mainspring::core::{Expect, RunStatus, StateScope};
//! use mainspring::tool::{ToolCall, ToolError, function};
//! use mainspring::{Caller, Config, Node, RunRequest, StateOf, Toolbox, session_ref};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct WriteFile {
//!     /// The file's path.
//!     path: String,
//!     /// The whole content.
//!     content: String,
//! }
//!
//! async fn write_file(call: ToolCall, file: WriteFile) -> Result<String, ToolError> {
//!     let written = call.context.state_set(StateScope::Session, &file.path, Some(file.content.into()), Expect::Any);
//!     written.await?;
//!     Ok(format!("wrote {}", file.path))
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let config = Config::with_state_dir(folder.path()).adapter("native".into());
//! let tools = Toolbox::new().with(function("write_file", "Writes a file.", write_file))?;
//! let node = Node::builder(config).tools(tools).open().await?;
//! let me = Caller::new("me");
//! let mut request = RunRequest::text("work", r#"tool write_file {"path":"notes.txt","content":"tea"}"#);
//! request.options.model = Some("scripted/any".into());
//! let run = node.kernel().run_create(&me, request).await?.run;
//! let run = node.kernel().run_wait(&me, run.id, Duration::from_secs(30)).await?;
//! assert_eq!(run.state.status(), RunStatus::Succeeded);
//! let state = StateOf::Session(session_ref("work")?, None);
//! assert_eq!(node.kernel().state_get(&me, &state, "notes.txt").await?.value, "tea");
//! node.close().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Hooks
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use async_trait::async_trait;
//! use mainspring::hooks::{HookContext, Hooks, ToolDecision};
//! use mainspring::provider::ToolUse;
//! use mainspring::tool::{ToolCall, ToolError, function};
//! use mainspring::{Caller, Config, Node, RunRequest, Toolbox, session_ref};
//!
//! /// Refuses every tool that deletes.
//! struct Careful;
//!
//! #[async_trait]
//! impl Hooks for Careful {
//!     async fn on_tool_use(&self, _: HookContext, call: &ToolUse) -> ToolDecision {
//!         match call.name.starts_with("delete") {
//!             true => ToolDecision::Reject { reason: "nothing is deleted here".into() },
//!             false => ToolDecision::Execute,
//!         }
//!     }
//! }
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct DeleteFile {}
//!
//! async fn delete_file(_: ToolCall, _: DeleteFile) -> Result<String, ToolError> {
//!     unreachable!("the hook refuses it")
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let config = Config::with_state_dir(folder.path()).adapter("native".into());
//! let tools = Toolbox::new().with(function("delete_file", "Deletes the file.", delete_file))?;
//! let node = Node::builder(config).tools(tools).hooks(Careful).open().await?;
//! let me = Caller::new("me");
//! let mut request = RunRequest::text("work", "tool delete_file {}");
//! request.options.model = Some("scripted/any".into());
//! let run = node.kernel().run_create(&me, request).await?.run;
//! node.kernel().run_wait(&me, run.id, Duration::from_secs(30)).await?;
//! let path = node.kernel().session_path(&me, &session_ref("work")?, None, None).await?;
//! assert!(path.iter().any(|message| format!("{:?}", message.content).contains("nothing is deleted here")));
//! node.close().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # An adapter
//!
//! An agent runtime of your own implements [`adapter::Adapter`]; sessions, streaming, cancelling and retries come with it.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use async_trait::async_trait;
//! use mainspring::adapter::{Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed};
//! use mainspring::core::{AttemptId, RunStatus};
//! use mainspring::{Caller, Config, Node, RunRequest};
//!
//! struct Echo;
//!
//! #[async_trait]
//! impl Adapter for Echo {
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities { supports_cancellation: true, ..Capabilities::minimal("echo") }
//!     }
//!
//!     async fn execute(&self, attempt: AttemptHandle) -> Executed {
//!         match attempt.delta(0, &attempt.assignment().prompt.text()) {
//!             Ok(()) => End::succeeded(),
//!             Err(_) => End::stopped(),
//!         }
//!     }
//!
//!     async fn cancel(&self, _: AttemptId) -> Dispatch {
//!         Dispatch { dispatched: true, acknowledged: false }
//!     }
//!
//!     async fn kill(&self, _: AttemptId) -> Death {
//!         Death::Proven // Dropping the future has stopped everything.
//!     }
//!
//!     fn forget(&self, _: &str) {}
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let config = Config::with_state_dir(folder.path()).adapter("echo".into());
//! let node = Node::builder(config).adapter(Echo).open().await?;
//! let me = Caller::new("me");
//! let run = node.kernel().run_create(&me, RunRequest::text("a", "hello")).await?.run;
//! let run = node.kernel().run_wait(&me, run.id, Duration::from_secs(30)).await?;
//! assert_eq!(run.state.status(), RunStatus::Succeeded);
//! node.close().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # The life of a session
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use mainspring::core::Place;
//! use mainspring::{Caller, Config, ForkRequest, Node, RunRequest, SessionStart, session_ref};
//!
//! let folder = tempfile::tempdir()?;
//! let node = Node::open(&Config::with_state_dir(folder.path())).await?;
//! let (kernel, me, minute) = (node.kernel(), Caller::new("me"), Duration::from_secs(60));
//!
//! // New: the key must be free. Load: the session must exist.
//! let new = SessionStart { new: Some(Some("tea".into())), ..SessionStart::default() };
//! let session = kernel.session_start(&me, new, None).await?.session;
//! let tea = session_ref("tea")?;
//! let load = SessionStart { load: Some(tea.clone()), ..SessionStart::default() };
//! assert_eq!(kernel.session_start(&me, load, None).await?.session.id, session.id);
//!
//! // Prompt.
//! let run = kernel.run_create(&me, RunRequest::text("tea", "say green")).await?.run;
//! let first = kernel.run_wait(&me, run.id, minute).await?;
//! let (prompt, answer) = (first.prompt.unwrap(), first.final_message.unwrap());
//!
//! // Branch: another answer to the same prompt, beside the first.
//! let again = RunRequest {
//!     prompt: vec![],
//!     place: Place::Regenerate { message_id: prompt },
//!     ..RunRequest::text("tea", "")
//! };
//! let run = kernel.run_create(&me, again).await?.run;
//! let second = kernel.run_wait(&me, run.id, minute).await?;
//!
//! // Edit: another prompt after an earlier answer.
//! let edit = RunRequest { place: Place::Edit { message_id: answer }, ..RunRequest::text("tea", "say with milk") };
//! let run = kernel.run_create(&me, edit).await?.run;
//! kernel.run_wait(&me, run.id, minute).await?;
//!
//! // Navigate: back to the second answer. Fork: a session that continues from the first; nothing is copied.
//! kernel.session_navigate(&me, &tea, second.final_message, None).await?;
//! let fork = ForkRequest { message: answer, key: Some("tea-2".into()), title: None };
//! let (fork, created) = kernel.session_fork(&me, &tea, fork, None).await?;
//! assert!(created && fork.tip_message == Some(answer));
//! node.close().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```

mod agents;
pub mod artifact_store;
mod attention;
pub mod backup;
#[cfg_attr(not(feature = "postgres"), path = "no_cluster.rs")]
mod cluster;
mod cluster_secret;
pub mod config;
mod memory;
mod node;
mod scripted;
mod server;
pub mod store_copy;
pub mod token;

pub use cluster::Member;
pub use config::Config;
pub use mainspring_agent::provider::install_tls;
pub use mainspring_agent::{Toolbox, hooks, network, provider, tool};
pub use mainspring_kernel::feed::{Item, Subscription};
pub use mainspring_kernel::kernel::{
    Accepted, Caller, ForkRequest, NewSession, RunRequest, SessionPatch, SessionStart, SessionTarget,
    Started, StateOf, session_ref,
};
pub use mainspring_kernel::policy::Permissions;
pub use mainspring_kernel::store::SessionRef;
pub use mainspring_kernel::{Error, Kernel, adapter, policy, store};
// Re-exports every crate whose types occur in public signatures.
pub use {
    mainspring_adapters as adapters, mainspring_agent as agent, mainspring_api as api,
    mainspring_client as client, mainspring_core as core, mainspring_http as http,
    mainspring_kernel as kernel, mainspring_store as storage,
};

pub use node::{Node, NodeBuilder, NodeError};
pub use server::{Forwarding, ServeError, Server};
