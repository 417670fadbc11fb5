//! `query`: a prompt becomes a run, and the run's end the query's.

use std::sync::Arc;

use mainspring_api::jsonl::{Query as Line, Reply};
use mainspring_client::{BindingAdoption, Client, Error, Prompt, PromptContent, SessionTarget};
use mainspring_core::{Block, ExternalRef, LegacyAlias, RunOptions, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::live::Query;
use super::{CLIENT, Options, SURFACE, Shared, image, told};

/// The scope of session keys that name none.
pub(super) const SCOPE: &str = "default";

/// Why a query is not carried out: a stable code, and a sentence for people.
pub(super) type Refused = (String, String);

/// The session key of queries that name neither a key nor a model.
pub(super) fn default_key(options: &Options) -> &str {
    options.model.as_deref().unwrap_or(SCOPE)
}

/// Takes a query up. What a line does to the order of others is done before this returns.
pub(super) fn hear(shared: &Arc<Shared>, envelope: &Envelope, line: Line, weight: OwnedSemaphorePermit) {
    let owner = shared.owner(envelope).to_owned();
    let client = envelope.client.clone().unwrap_or_else(|| CLIENT.to_owned());
    // Its lines carry the name, so that a host that gave none learns it.
    let request = envelope.request.clone().unwrap_or_else(|| shared.ids.secret());
    let unnamed = envelope.client.is_none();
    shared.calls.asked_for(&owner);
    let adapter = shared.adapter(envelope, &line);
    // One that lives already under this name gives both their answer.
    let query = match shared.live.begin(envelope.version, &client, &owner, request, adapter) {
        Ok(query) => query,
        Err(living) => {
            tracing::debug!(request = living.request, "a query was sent again while it lives");
            again(shared, living, line, unnamed, weight);
            return;
        }
    };
    let turn = shared.lanes.enter(lane(&query, &line, &shared.options));
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let mut turn = turn;
        turn.come().await;
        let accepted = accept(&shared, &query, line, unnamed).await;
        drop((turn, weight));
        match accepted {
            Ok(accepted) => {
                query.accept(accepted.run.session, accepted.run.id);
                super::follow::follow(&shared, query, accepted).await;
            }
            Err((code, message)) => {
                shared.say(&Reply::error(&code, &message), &query.names(None)).await;
                shared.live.end(&query);
            }
        }
    });
}

/// The same name with another body is a conflict, which the host is told; the living query goes on.
fn again(shared: &Arc<Shared>, living: Arc<Query>, line: Line, unnamed: bool, weight: OwnedSemaphorePermit) {
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        if living.run().await.is_some()
            && let Err((code, message)) = accept(&shared, &living, line, unnamed).await
        {
            // It says nothing of the living one's run.
            shared.say(&Reply::error(&code, &message), &living.request_names()).await;
        }
        drop(weight);
    });
}

/// Queries of one lane are accepted one after another.
fn lane(query: &Query, line: &Line, options: &Options) -> String {
    let name = match (&line.session_id, &line.external_ref_kind, &line.external_ref_id) {
        (Some(id), ..) if query.version == Version::V2 => format!("i{id}"),
        (_, Some(kind), Some(id)) => format!("e{kind}\0{id}"),
        _ => return lane_of(&query.owner, scope(line), key(line, options)),
    };
    format!("{}\0{name}", query.owner)
}

/// The lane of a session key.
pub(super) fn lane_of(owner: &str, scope: &str, key: &str) -> String {
    format!("{owner}\0l{scope}\0{key}")
}

fn scope(line: &Line) -> &str {
    line.legacy_client_scope.as_deref().unwrap_or(SCOPE)
}

/// The session key: the line's own, else the model's name.
fn key<'a>(line: &'a Line, options: &'a Options) -> &'a str {
    let key = line.legacy_session_key.as_deref().or(line.session_key.as_deref());
    key.or(line.model.as_deref()).unwrap_or_else(|| default_key(options))
}

impl Shared {
    /// The adapter of a query, by the name it has here. Version 1 takes the one that the host was started with.
    fn adapter(&self, envelope: &Envelope, line: &Line) -> String {
        let named = line.adapter_id.as_ref().filter(|_| envelope.version == Version::V2);
        let name = named.unwrap_or(&self.options.adapter);
        self.options.aliases.get(name).unwrap_or(name).clone()
    }
}

/// Has the prompt accepted, once, however often it is sent under its name.
async fn accept(
    shared: &Shared,
    query: &Query,
    line: Line,
    unnamed: bool,
) -> Result<mainspring_client::AcceptedRun, Refused> {
    let options = &shared.options;
    let hint = shared.hints.get(&query.owner, key(&line, options));
    let cwd = line.cwd.clone().or(hint.cwd).unwrap_or_else(|| options.cwd.clone());
    let system_prompt = line.system_prompt.clone().or(hint.system_prompt);
    let image = line.image_base64.as_deref().map(image::read).transpose()?;
    let mut target = target(shared, query, &line).await?;
    if target.session_id.is_none() {
        target.surface_kind = Some(line.surface_kind.clone().unwrap_or_else(|| SURFACE.into()));
        target.adapter = Some(query.adapter.clone());
        target.cwd = Some(cwd.clone());
    }
    let scoped = match unnamed {
        true => format!("{CLIENT}#{}", shared.connection),
        false => query.client.clone(),
    };
    let mut prompt = vec![];
    let native = line.legacy_adapter_session_id.as_ref().or(line.resume.as_ref());
    if image.is_some() || native.is_some() {
        let opened = shared.link.ask(&query.owner, |client| {
            let target = &target;
            async move { client.session_resolve(target, None).await }
        });
        let session = opened.await.map_err(|error| told(&error))?.session.id;
        if let Some(native) = native {
            adopt(shared, query, session, native, &cwd, system_prompt.as_deref()).await?;
        }
        target = SessionTarget { session_id: Some(session), ..SessionTarget::default() };
        if let Some(image) = image {
            prompt.push(image::keep(shared, query, session, image, &scoped).await?);
        }
    }
    if !line.prompt.is_empty() || prompt.is_empty() {
        prompt.push(Block::text(line.prompt));
    }
    let prompt = Prompt {
        session: target,
        prompt: PromptContent::of(prompt),
        adapter: Some(query.adapter.clone()),
        mode: line.mode.unwrap_or_default(),
        options: RunOptions {
            system_prompt,
            model: line.model.or(hint.model).or_else(|| options.model.clone()),
            cwd: Some(cwd),
            ..RunOptions::default()
        },
        client_id: Some(scoped),
        request_id: Some(query.request.clone()),
        ..Prompt::default()
    };
    let ask = |client: Client| {
        let prompt = &prompt;
        async move { client.run_create(prompt).await }
    };
    shared.link.ask(&query.owner, ask).await.map_err(|error| told(&error))
}

/// Ties the session to the agent's own session that the host remembers, unless it is tied to one already, or the agent has
/// none: then the host's is old news.
async fn adopt(
    shared: &Shared,
    query: &Query,
    session: SessionId,
    native: &str,
    cwd: &str,
    system_prompt: Option<&str>,
) -> Result<(), Refused> {
    let adoption = BindingAdoption {
        adapter: query.adapter.clone(),
        adapter_native_session_id: native.to_owned(),
        cwd: Some(cwd.to_owned()),
        system_prompt: system_prompt.map(str::to_owned),
    };
    let adopted = shared.link.ask(&query.owner, |client: Client| {
        let adoption = &adoption;
        async move { client.binding_adopt(&session.to_string(), adoption).await }
    });
    match adopted.await {
        Ok(_) => Ok(()),
        Err(Error::Refused(problem)) if !problem.retryable => {
            tracing::info!(%session, native, why = problem.detail, "the agent's own session was not adopted");
            Ok(())
        }
        Err(error) => Err(told(&error)),
    }
}

/// Which session: by its id if it is the owner's, else by what it stands for, else by its key.
async fn target(shared: &Shared, query: &Query, line: &Line) -> Result<SessionTarget, Refused> {
    let invalid = |message: &str| ("invalid_request".to_owned(), message.to_owned());
    let external = match (&line.external_ref_kind, &line.external_ref_id) {
        (Some(kind), Some(id)) => Some(ExternalRef { kind: kind.clone(), id: id.clone() }),
        (None, None) => None,
        _ => return Err(invalid("externalRefKind and externalRefId go together")),
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
    // An id that leads nowhere is no reason to refuse a query that says what it is for.
    let found =
        shared.link.ask(&query.owner, |client| async move { client.session_get(&id.to_string()).await });
    match found.await {
        Ok(_) => Ok(by_id(id)),
        Err(error) if error.is_not_found() => Ok(named),
        Err(error) => Err(told(&error)),
    }
}
