//! The native runtime: model providers, the agent loop and its tools.

pub mod catalog;
pub mod definition;
pub mod hooks;
pub mod models;
pub mod native;
pub mod network;
pub mod output;
pub mod price;
pub mod provider;
pub mod template;
pub mod tool;
pub mod window;

pub use catalog::NativeCatalog;
pub use definition::{Definition, Definitions};
pub use models::{Models, ModelsConfig};
pub use native::{NativeAdapter, NativeOptions};
pub use output::OutputSchema;
pub use tool::Toolbox;
