//! The provider `scripted`: models that need no key and follow their prompt as a script.
//!
//! The model server starts with the first request, inside this process, and is called over real HTTP.

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use mainspring_agent::models::SCRIPTED;
use mainspring_agent::provider::{
    Connections, ErrorKind, GenaiProvider, KeySource, Kind, ModelError, Piece, Provider, Request,
};
use mainspring_core::KeyPresence;
use mainspring_model_server::{ModelServer, Protocol};
use tokio::sync::OnceCell;

/// The address of the model server: any free port, reachable from this machine only.
const LISTEN_ADDRESS: &str = "127.0.0.1:0";

/// Calls the model server of this process.
#[derive(Default)]
pub(crate) struct ScriptedProvider(OnceCell<(ModelServer, GenaiProvider)>);

impl ScriptedProvider {
    async fn provider(&self) -> Result<&GenaiProvider, ModelError> {
        let start = async || {
            let server = ModelServer::listen(LISTEN_ADDRESS).await?;
            let (base, connections) = (server.base_url(Protocol::Anthropic), Connections::direct());
            let provider =
                GenaiProvider::new(SCRIPTED, Kind::Anthropic, &base, KeySource::None, &connections);
            Ok::<_, std::io::Error>((server, provider))
        };
        let started = self.0.get_or_try_init(start).await;
        let failed = |error| {
            ModelError::new(ErrorKind::Overloaded, format!("the script server cannot listen: {error}"))
        };
        started.map(|(_, provider)| provider).map_err(failed)
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    async fn stream(&self, request: Request) -> BoxStream<'static, Result<Piece, ModelError>> {
        match self.provider().await {
            Ok(provider) => provider.stream(request).await,
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn kind(&self) -> &'static str {
        SCRIPTED
    }

    fn key(&self) -> KeyPresence {
        KeyPresence::NotNeeded
    }
}
