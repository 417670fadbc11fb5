//! `query`: turns a prompt into a run; the end of the run is the end of the query.

use std::sync::Arc;

use mainspring_api::jsonl::{LineIds, Query as Line, Reply};
use mainspring_client::{BindingAdoption, Client, Error, Prompt, PromptContent, SessionTarget};
use mainspring_core::{Block, ExternalRef, LegacyAlias, RunOptions, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::live::Query;
use super::{
    DEFAULT_CLIENT_ID, DEFAULT_SURFACE_KIND, Options, SHUTTING_DOWN, Shared, code_and_message, image,
};

/// The scope of a session key for which the host names no scope.
pub(super) const SCOPE: &str = "default";

/// The refusal of a query: a stable code and a message.
pub(super) type Refused = (String, String);

/// The session key of queries that name neither a key nor a model.
pub(super) fn default_key(options: &Options) -> &str {
    options.model.as_deref().unwrap_or(SCOPE)
}

/// Starts a query. Queries are accepted in the order of the calls of this function.
pub(super) fn handle(shared: &Arc<Shared>, envelope: &Envelope, line: Line, permit: OwnedSemaphorePermit) {
    let owner = shared.owner(envelope).to_owned();
    let client = envelope.client.clone().unwrap_or_else(|| DEFAULT_CLIENT_ID.to_owned());
    // The replies carry the generated id, so the host learns it.
    let request = envelope.request.clone().unwrap_or_else(|| shared.ids.secret());
    let has_no_client_id = envelope.client.is_none();
    let adapter = shared.adapter(envelope, &line);
    // A live query with the same request id answers both lines.
    let query = match shared.live.begin(envelope.version, &client, &owner, request, adapter) {
        Ok(query) => {
            query.update(|known| known.questions = line.questions == Some(true));
            query
        }
        Err(live_query) => {
            tracing::debug!(request = live_query.request, "query was repeated while it is live");
            check_repeated(shared, live_query, line, has_no_client_id, permit);
            return;
        }
    };
    let mut turn = shared.intake.enter();
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        turn.wait().await;
        let accepted = match shared.intake.is_closed() {
            true => Err(("shutting_down".to_owned(), SHUTTING_DOWN.to_owned())),
            false => accept(&shared, &query, line, has_no_client_id).await,
        };
        drop((turn, permit));
        match accepted {
            Ok(accepted) => {
                query.accept(accepted.run.session, accepted.run.id);
                super::follow::follow(&shared, query, accepted).await;
            }
            Err((code, message)) => {
                // Removed before the line is sent: the host may reuse the request id as soon as it reads the line.
                if shared.live.end(&query) {
                    shared.reply(&Reply::error(&code, &message), &query.line_ids(None)).await;
                }
            }
        }
    });
}

/// Reports a conflict if the repeated query has a different body. The live query goes on, so the error does not carry
/// its ids: a host interprets an error with the id of a request as the end of that request.
fn check_repeated(
    shared: &Arc<Shared>,
    live_query: Arc<Query>,
    line: Line,
    has_no_client_id: bool,
    permit: OwnedSemaphorePermit,
) {
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        if live_query.run().await.is_some()
            && let Err((code, message)) = accept(&shared, &live_query, line, has_no_client_id).await
        {
            let message =
                format!("request {:?} of client {:?}: {message}", live_query.request, live_query.client);
            match live_query.version {
                Version::V2 => shared.reply(&Reply::error(&code, &message), &LineIds::default()).await,
                // A version 1 host would interpret any error as the end of its query.
                Version::V1 => tracing::warn!(code, message, "a query was repeated with another body"),
            }
        }
        drop(permit);
    });
}

fn scope(line: &Line) -> &str {
    line.legacy_client_scope.as_deref().unwrap_or(SCOPE)
}

/// Returns the line's session key, else its model, else the default key.
fn key<'a>(line: &'a Line, options: &'a Options) -> &'a str {
    let key = line.legacy_session_key.as_deref().or(line.session_key.as_deref());
    key.or(line.model.as_deref()).unwrap_or_else(|| default_key(options))
}

impl Shared {
    /// Resolves the adapter of a query. Version 1 uses that of `options`.
    fn adapter(&self, envelope: &Envelope, line: &Line) -> String {
        let named = line.adapter_id.as_ref().filter(|_| envelope.version == Version::V2);
        let name = named.unwrap_or(&self.options.adapter);
        self.options.aliases.get(name).unwrap_or(name).clone()
    }
}

/// Creates the run of a query. Idempotent for a client and request id.
async fn accept(
    shared: &Shared,
    query: &Query,
    line: Line,
    has_no_client_id: bool,
) -> Result<mainspring_client::AcceptedRun, Refused> {
    let options = &shared.options;
    let hint = shared.hints.get(&query.owner, key(&line, options));
    let cwd = line.cwd.clone().or(hint.cwd).or_else(|| options.cwd.clone());
    let system_prompt = line.system_prompt.clone().or(hint.system_prompt);
    let image = line.image_base64.as_deref().map(image::decode).transpose()?;
    let mut target = target(shared, query, &line).await?;
    if target.session_id.is_none() {
        target.surface_kind = Some(line.surface_kind.clone().unwrap_or_else(|| DEFAULT_SURFACE_KIND.into()));
        target.adapter = Some(query.adapter.clone());
        target.cwd.clone_from(&cwd);
    }
    let scoped = match has_no_client_id {
        true => format!("{DEFAULT_CLIENT_ID}#{}", shared.connection),
        false => query.client.clone(),
    };
    let mut prompt = vec![];
    let native = line.legacy_adapter_session_id.as_ref().or(line.resume.as_ref());
    if image.is_some() || native.is_some() {
        let opened = shared.link.ask(&query.owner, |client| {
            let target = &target;
            async move { client.session_resolve(target, None).await }
        });
        let session = opened.await.map_err(|error| code_and_message(&error))?.session.id;
        if let Some(native) = native {
            adopt(shared, query, session, native, cwd.as_deref(), system_prompt.as_deref()).await?;
        }
        target = SessionTarget { session_id: Some(session), ..SessionTarget::default() };
        if let Some(image) = image {
            prompt.push(image::store(shared, query, session, image, &scoped).await?);
        }
    }
    if !line.prompt.is_empty() || prompt.is_empty() {
        prompt.push(Block::text(line.prompt));
    }
    let prompt = Prompt {
        session: target,
        prompt: PromptContent::from_blocks(prompt),
        adapter: Some(query.adapter.clone()),
        mode: line.mode.unwrap_or_default(),
        options: RunOptions {
            system_prompt,
            // A profile replaces the default models, not a model that the line names.
            model: match line.model_profile {
                Some(_) => line.model,
                None => line.model.or(hint.model).or_else(|| options.model.clone()),
            },
            model_profile: line.model_profile,
            cwd,
            ..RunOptions::default()
        },
        // A host sends the same fields to every agent.
        ignore_unused_options: true,
        client_id: Some(scoped),
        request_id: Some(query.request.clone()),
        ..Prompt::default()
    };
    let ask = |client: Client| {
        let prompt = &prompt;
        let client = client.for_host(&shared.host);
        async move { client.run_create(prompt).await }
    };
    shared.link.ask(&query.owner, ask).await.map_err(|error| code_and_message(&error))
}

/// Binds the session to the native session that the host remembers. Ignores every refusal that is not
/// retryable, such as that of a session that is already bound, or of a native session that the agent does not
/// know.
async fn adopt(
    shared: &Shared,
    query: &Query,
    session: SessionId,
    native: &str,
    cwd: Option<&str>,
    system_prompt: Option<&str>,
) -> Result<(), Refused> {
    let adoption = BindingAdoption {
        adapter: query.adapter.clone(),
        adapter_native_session_id: native.to_owned(),
        cwd: cwd.map(str::to_owned),
        system_prompt: system_prompt.map(str::to_owned),
    };
    let adopted = shared.link.ask(&query.owner, |client: Client| {
        let adoption = &adoption;
        async move { client.binding_adopt(&session.to_string(), adoption).await }
    });
    match adopted.await {
        Ok(_) => Ok(()),
        Err(Error::Refused(problem)) if !problem.retryable => {
            tracing::info!(%session, native, why = problem.detail, "native session was not adopted");
            Ok(())
        }
        Err(error) => Err(code_and_message(&error)),
    }
}

/// Returns the session of a query: by its id if the owner has that session, else by its external reference, else by its
/// key.
async fn target(shared: &Shared, query: &Query, line: &Line) -> Result<SessionTarget, Refused> {
    let invalid = |message: &str| ("invalid_request".to_owned(), message.to_owned());
    let external = match (&line.external_ref_kind, &line.external_ref_id) {
        (Some(kind), Some(id)) => Some(ExternalRef { kind: kind.clone(), id: id.clone() }),
        (None, None) => None,
        _ => return Err(invalid("externalRefKind and externalRefId must be given together")),
    };
    let is_named = external.is_some() || line.legacy_session_key.is_some() || line.session_key.is_some();
    let named = match external {
        Some(external) => SessionTarget { external_ref: Some(external), ..SessionTarget::default() },
        None => {
            let (scope, key) = (scope(line).to_owned(), key(line, &shared.options).to_owned());
            SessionTarget { legacy_alias: Some(LegacyAlias { scope, key }), ..SessionTarget::default() }
        }
    };
    let Some(id) = line.session_id.as_ref().filter(|_| query.version == Version::V2) else {
        return Ok(named);
    };
    let by_id = |id| SessionTarget { session_id: Some(id), ..SessionTarget::default() };
    let id: SessionId = match id.parse() {
        Ok(id) => id,
        Err(_) if is_named => return Ok(named),
        Err(_) => return Err(("not_found".to_owned(), format!("no session {id:?}"))),
    };
    if !is_named {
        return Ok(by_id(id));
    }
    // If the id is unknown, the query's other name is used.
    let found =
        shared.link.ask(&query.owner, |client| async move { client.session_get(&id.to_string()).await });
    match found.await {
        Ok(_) => Ok(by_id(id)),
        Err(error) if error.is_not_found() => Ok(named),
        Err(error) => Err(code_and_message(&error)),
    }
}
