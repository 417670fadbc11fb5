//! The Rust client of mainspring: typed operations over HTTP, on TCP or on the state directory's Unix socket.
//!
//! An event stream reconnects by itself, resumes at its position, and returns each event and each streamed byte once.
//!
//! ```no_run
//! # async fn example() -> Result<(), mainspring_client::Error> {
//! use mainspring_client::{Client, Prompt};
//!
//! let client = Client::over_tcp("http://127.0.0.1:7433", "the token or a key")?;
//! let run = client.run_create(&Prompt::text("greeting", "say hello")).await?;
//! let mut events = client.run_events(run.run.id, Some(run.position));
//! while let Some(item) = events.next().await.transpose()? {
//!     print!("{}", item.text());
//! }
//! # Ok(())
//! # }
//! ```

mod backoff;
pub mod bridge;
mod client;
mod error;
mod events;
mod feed;
mod json;
mod owner_events;
mod socket;
mod state;
pub mod status;
mod stream;
mod thread_client;

pub use client::Client;
pub use error::Error;
pub use events::{Events, Item};
pub use feed::Feed;
pub use mainspring_api::*;
pub use owner_events::{OwnerEvents, OwnerItem};
pub use socket::{Socket, TOKEN_FILE, fits_socket};
pub use state::State;
pub use thread_client::Threads;
