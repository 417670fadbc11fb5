//! mainspring as a library: durable sessions for AI agents.
//!
//! This crate is where concrete parts meet: it alone reads the configuration and names a store and adapters.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use mainspring::{Caller, Config, Item, Node, RunRequest, session_ref};
//!
//! let folder = tempfile::tempdir()?;
//! let node = Node::open(&Config::with_state_dir(folder.path())).await?;
//! let me = Caller::new("me");
//! let accepted = node.kernel().run_create(&me, RunRequest::text("greeting", "say hello")).await?;
//! let mut events = node.kernel().session_subscribe(&me, &session_ref("greeting")?, Some(accepted.position)).await?;
//! while let Some(Item::Event(_) | Item::Delta(_)) = events.next().await.transpose()? {
//!     if node.kernel().run_get(&me, accepted.run.id).await?.state.status().is_ended() { break }
//! }
//! node.close().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```

mod agents;
pub mod config;
mod node;
mod scripted;
mod server;
pub mod token;

pub use config::Config;
pub use mainspring_agent::provider::install_tls;
pub use mainspring_agent::{Toolbox, tool};
pub use mainspring_core as core;
pub use mainspring_kernel::feed::{Item, Subscription};
pub use mainspring_kernel::kernel::{Caller, RunRequest, SessionTarget, session_ref};
pub use mainspring_kernel::{Error, Kernel};
pub use node::{Node, NodeError};
pub use server::{ServeError, Server};
