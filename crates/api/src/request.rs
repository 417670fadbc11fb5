//! Strict reading of requests: an unknown key is refused, and named with the nearest known one.
//!
//! A request may hold values that are also stored and sent as answers, such as the options of a run. Those types accept
//! keys of newer versions. The forms in this file read the same values from a request and refuse unknown keys. Each form
//! is a serde `remote`: it does not compile unless it has the fields of its type.

use mainspring_core::{
    AgentDefinition, Answer, Approval, ApprovalAnswer, ApprovalScope, ArtifactId, Block, ClientResult,
    ClientTool, Cost, DeclaredGoal, ExternalRef, FileLocation, GivenMessage, GoalType, KeyLists, LegacyAlias,
    MessageId, Network, OnExpiry, Place, ResultStatus, Role, RunLimits, RunOptions, SandboxProfile,
    SandboxReach, SuppliedResult, Usage,
};
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::PromptContent;

/// Parses a request. The error names the place, and for an unknown key the nearest known one.
pub fn parse<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(describe)?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// Converts a request that is a JSON value already. The errors are those of [`parse`].
pub fn convert<T: DeserializeOwned>(json: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(json).map_err(describe)
}

fn describe(error: serde_path_to_error::Error<serde_json::Error>) -> String {
    let path = error.path().to_string();
    let text = error.into_inner().to_string();
    match unknown_key(&text) {
        Some((key, known)) => {
            // The path of an unknown key ends with the key, unless the object was buffered to find its kind.
            let object = path.strip_suffix(key).unwrap_or(&path).trim_end_matches(['.', '?']);
            let place = if object.is_empty() { String::new() } else { format!(" in `{}`", abridged(object)) };
            let key = cut(key);
            format!("unknown key `{key}`{place}{}", suggestion(key, &known))
        }
        None if path == "." => abridged(&text),
        None => format!("`{}`: {}", abridged(&path), abridged(&text)),
    }
}

/// Finds the unknown key and the known ones in serde's message.
fn unknown_key(message: &str) -> Option<(&str, Vec<&str>)> {
    let message = message.strip_prefix("unknown field `")?;
    // The key may contain any text, so it ends where serde's own words begin for the last time.
    let ends = ["`, expected ", "`, there are no fields"].map(|words| message.rfind(words));
    let (key, known) = message.split_at(ends.into_iter().max()??);
    Some((key, known.split('`').skip(2).step_by(2).collect()))
}

/// The longest part of a caller's word that is compared with others or comes back in an error.
const WORD_MAX_CHARS: usize = 64;
/// The characters that are kept at each end of a long text in an error.
const KEPT_CHARS: usize = 400;

/// Returns the beginning of a caller's word.
fn cut(word: &str) -> &str {
    word.char_indices().nth(WORD_MAX_CHARS).map_or(word, |(end, _)| &word[..end])
}

/// Leaves out the middle of a text that quotes a long value of the caller: the words about it are at both ends.
fn abridged(text: &str) -> String {
    let start = text.char_indices().nth(KEPT_CHARS).map(|(at, _)| at);
    let end = text.char_indices().nth_back(KEPT_CHARS - 1).map(|(at, _)| at);
    match start.zip(end) {
        Some((start, end)) if start < end => format!("{} … {}", &text[..start], &text[end..]),
        _ => text.to_owned(),
    }
}

/// Builds the end of an error message: suggests the word of `known` that is nearest to `word`, or lists all of them.
pub fn suggestion(word: &str, known: &[&str]) -> String {
    match (nearest(word, known), known) {
        (Some(near), _) => format!(": did you mean `{near}`?"),
        (None, []) => ": there are none".into(),
        (None, known) => format!(": there is {}", known.join(", ")),
    }
}

/// Returns the word of `known` that is most similar to `word`, unless even that word differs too much.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    const MIN_SIMILARITY: f64 = 0.6;
    let plain = |text: &str| text.to_lowercase().replace(['-', '_'], "");
    // The time and the memory that a comparison takes grow with the length of the word.
    let word = plain(cut(word));
    let score = |known: &str| strsim::normalized_damerau_levenshtein(&word, &plain(known));
    let scored = known.iter().map(|known| (score(known), *known));
    let (score, near) = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score >= MIN_SIMILARITY).then_some(near)
}

#[derive(Deserialize)]
#[serde(remote = "RunOptions", rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OptionsForm {
    #[serde(default)]
    system_prompt: Option<String>,
    #[serde(default)]
    model_profile: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    model_options: Option<Map<String, Value>>,
    #[serde(default)]
    output_schema: Option<Value>,
    #[serde(default, deserialize_with = "LimitsForm::deserialize")]
    limits: RunLimits,
    #[serde(default, deserialize_with = "tools")]
    tools: Vec<ClientTool>,
    #[serde(skip)]
    folders: Option<Vec<String>>,
    #[serde(skip)]
    sandbox: Option<SandboxProfile>,
    #[serde(skip)]
    denied: Vec<String>,
    #[serde(skip)]
    bounds: Vec<Vec<String>>,
    #[serde(skip)]
    sandbox_reach: Option<SandboxReach>,
    #[serde(skip)]
    key: Option<Box<KeyLists>>,
    #[serde(default)]
    agent_definition: Option<String>,
    #[serde(default, deserialize_with = "goals")]
    goals: Vec<DeclaredGoal>,
}

#[derive(Deserialize)]
#[serde(remote = "DeclaredGoal", rename_all = "camelCase", deny_unknown_fields)]
struct GoalForm {
    goal_type: String,
    #[serde(default)]
    data: Map<String, Value>,
    #[serde(skip)]
    definition: Option<Box<GoalType>>,
}

#[derive(Deserialize)]
#[serde(remote = "RunLimits", rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LimitsForm {
    #[serde(default)]
    max_steps: Option<u32>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default, rename = "maxCostUsd")]
    max_cost: Option<Cost>,
    #[serde(default, rename = "maxTimeMs")]
    max_time: Option<u64>,
    #[serde(default)]
    max_depth: Option<u32>,
    #[serde(default)]
    ask: Option<bool>,
    #[serde(default)]
    best_effort: Option<bool>,
}

#[derive(Deserialize)]
#[serde(remote = "ClientTool", rename_all = "camelCase", deny_unknown_fields)]
struct ToolForm {
    name: String,
    #[serde(default)]
    description: String,
    input_schema: Value,
    #[serde(default)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    on_timeout: OnExpiry,
}

#[derive(Deserialize)]
#[serde(remote = "ClientResult", rename_all = "camelCase", deny_unknown_fields)]
struct ResultForm {
    tool_use_id: String,
    content: Value,
    #[serde(default)]
    is_error: bool,
    #[serde(default)]
    status: Option<ResultStatus>,
    #[serde(default)]
    runtime_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(remote = "ExternalRef", deny_unknown_fields)]
struct ExternalRefForm {
    kind: String,
    id: String,
}

#[derive(Deserialize)]
#[serde(remote = "LegacyAlias", deny_unknown_fields)]
struct LegacyAliasForm {
    scope: String,
    key: String,
}

// `Tip {}` and `Root {}` have braces because a unit variant would accept unknown keys.
#[derive(Deserialize)]
#[serde(remote = "Place", tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PlaceForm {
    Tip {},
    #[serde(rename_all = "camelCase")]
    Regenerate {
        message_id: MessageId,
    },
    #[serde(rename_all = "camelCase")]
    Edit {
        message_id: MessageId,
    },
    Root {},
}

#[derive(Deserialize)]
#[serde(remote = "Answer", tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum AnswerForm {
    Input {
        input: Value,
    },
    Approval(#[serde(deserialize_with = "ApprovalForm::deserialize")] ApprovalAnswer),
    Tools {
        #[serde(deserialize_with = "results")]
        results: Vec<ClientResult>,
    },
}

#[derive(Deserialize)]
#[serde(remote = "ApprovalAnswer", rename_all = "camelCase", deny_unknown_fields)]
struct ApprovalForm {
    decision: Approval,
    #[serde(default)]
    scope: ApprovalScope,
    #[serde(default)]
    expires_in_ms: Option<i64>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default, deserialize_with = "supplied_result")]
    result: Option<SuppliedResult>,
}

#[derive(Deserialize)]
#[serde(remote = "SuppliedResult", rename_all = "camelCase", deny_unknown_fields)]
struct SuppliedForm {
    text: String,
    #[serde(default)]
    is_error: bool,
}

#[derive(Deserialize)]
#[serde(remote = "Block", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum BlockForm {
    Text {
        text: String,
    },
    Thinking {},
    #[serde(rename_all = "camelCase")]
    Attachment {
        artifact: ArtifactId,
        #[serde(default)]
        mime_type: String,
        #[serde(default)]
        name: Option<String>,
    },
    ToolUse {
        id: String,
        name: String,
        input: Value,
        #[serde(default)]
        title: Option<String>,
        #[serde(default)]
        kind: Option<String>,
        #[serde(default, deserialize_with = "locations")]
        locations: Vec<FileLocation>,
    },
    #[serde(rename_all = "camelCase")]
    Diff {
        path: String,
        #[serde(default)]
        before: Option<String>,
        #[serde(default)]
        after: Option<String>,
        #[serde(default)]
        before_artifact: Option<ArtifactId>,
        #[serde(default)]
        after_artifact: Option<ArtifactId>,
    },
    #[serde(rename_all = "camelCase")]
    ToolResult {
        tool_use_id: String,
        name: String,
        #[serde(deserialize_with = "blocks")]
        content: Vec<Block>,
        #[serde(default)]
        is_error: bool,
        #[serde(default)]
        declined: bool,
        #[serde(default)]
        runtime_ms: Option<u64>,
    },
    Error {
        code: String,
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(remote = "GivenMessage", deny_unknown_fields)]
struct MessageForm {
    role: Role,
    #[serde(deserialize_with = "blocks")]
    content: Vec<Block>,
}

#[derive(Deserialize)]
#[serde(remote = "FileLocation", rename_all = "camelCase", deny_unknown_fields)]
struct LocationForm {
    path: String,
    #[serde(default)]
    line: Option<u32>,
}

#[derive(Deserialize)]
#[serde(remote = "Usage", rename_all = "camelCase", deny_unknown_fields)]
struct UsageForm {
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    #[serde(default)]
    cache_read_tokens: u64,
    #[serde(default)]
    cache_write_tokens: u64,
    #[serde(default, rename = "costUsd")]
    cost: Cost,
    #[serde(default)]
    at_least: bool,
}

#[derive(Deserialize)]
#[serde(remote = "AgentDefinition", rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AgentForm {
    id: String,
    #[serde(default = "first_version")]
    version: u32,
    #[serde(default)]
    description: String,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    profile: Option<String>,
    #[serde(default)]
    system: Option<String>,
    #[serde(default = "all_tools")]
    tools: Vec<String>,
    #[serde(default)]
    mcp: Option<Vec<String>>,
    #[serde(default)]
    approve: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
    #[serde(default, deserialize_with = "LimitsForm::deserialize")]
    limits: RunLimits,
    #[serde(default)]
    output_schema: Option<Value>,
    #[serde(default)]
    result_bytes: Option<usize>,
    #[serde(default)]
    network: Option<Network>,
}

fn first_version() -> u32 {
    AgentDefinition::new("", 1).version
}

fn all_tools() -> Vec<String> {
    AgentDefinition::new("", 1).tools
}

/// Defines a type that a form of this file reads, for elements of lists and for options.
macro_rules! items {
    ($($name:ident($type:ty) by $form:literal;)*) => {
        $(
            #[derive(Deserialize)]
            struct $name(#[serde(deserialize_with = $form)] $type);
        )*
    };
}

items! {
    GoalItem(DeclaredGoal) by "GoalForm::deserialize";
    ToolItem(ClientTool) by "ToolForm::deserialize";
    ResultItem(ClientResult) by "ResultForm::deserialize";
    BlockItem(Block) by "BlockForm::deserialize";
    MessageItem(GivenMessage) by "MessageForm::deserialize";
    LocationItem(FileLocation) by "LocationForm::deserialize";
    ExternalRefItem(ExternalRef) by "ExternalRefForm::deserialize";
    LegacyAliasItem(LegacyAlias) by "LegacyAliasForm::deserialize";
    SuppliedItem(SuppliedResult) by "SuppliedForm::deserialize";
    UsageItem(Usage) by "UsageForm::deserialize";
}

/// Reads the goals of a run. Null means none.
fn goals<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<DeclaredGoal>, D::Error> {
    let goals = Option::<Vec<GoalItem>>::deserialize(from)?;
    Ok(goals.unwrap_or_default().into_iter().map(|item| item.0).collect())
}

/// Reads client tools.
pub fn tools<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ClientTool>, D::Error> {
    Ok(Vec::<ToolItem>::deserialize(from)?.into_iter().map(|item| item.0).collect())
}

/// Reads client tools, or null.
pub(crate) fn tools_or_null<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<Vec<ClientTool>>>, D::Error> {
    let tools = Option::<Vec<ToolItem>>::deserialize(from)?;
    Ok(Some(tools.map(|tools| tools.into_iter().map(|item| item.0).collect())))
}

/// Reads a history, or null.
pub(crate) fn messages_or_null<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<Vec<GivenMessage>>>, D::Error> {
    let messages = Option::<Vec<MessageItem>>::deserialize(from)?;
    Ok(Some(messages.map(|messages| messages.into_iter().map(|item| item.0).collect())))
}

/// Reads results of client tools.
pub fn results<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ClientResult>, D::Error> {
    Ok(Vec::<ResultItem>::deserialize(from)?.into_iter().map(|item| item.0).collect())
}

/// Reads the usage of a message or a turn.
pub fn usage<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Usage>, D::Error> {
    Ok(Option::<UsageItem>::deserialize(from)?.map(|item| item.0))
}

fn supplied_result<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SuppliedResult>, D::Error> {
    Ok(Option::<SuppliedItem>::deserialize(from)?.map(|item| item.0))
}

fn locations<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<FileLocation>, D::Error> {
    Ok(Vec::<LocationItem>::deserialize(from)?.into_iter().map(|item| item.0).collect())
}

fn blocks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Block>, D::Error> {
    Ok(Vec::<BlockItem>::deserialize(from)?.into_iter().map(|item| item.0).collect())
}

pub(crate) fn external_ref<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ExternalRef>, D::Error> {
    Ok(Option::<ExternalRefItem>::deserialize(from)?.map(|item| item.0))
}

pub(crate) fn legacy_alias<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LegacyAlias>, D::Error> {
    Ok(Option::<LegacyAliasItem>::deserialize(from)?.map(|item| item.0))
}

/// Reads the content of a prompt by its JSON type: an untagged enum would hide the reason of a refusal.
impl<'de> Deserialize<'de> for PromptContent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Content;

        impl<'de> Visitor<'de> for Content {
            type Value = PromptContent;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, or a list of blocks")
            }

            fn visit_str<E>(self, text: &str) -> Result<PromptContent, E> {
                Ok(PromptContent::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<PromptContent, E> {
                Ok(PromptContent::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PromptContent, A::Error> {
                let mut blocks = vec![];
                while let Some(BlockItem(block)) = items.next_element()? {
                    blocks.push(block);
                }
                Ok(PromptContent::Blocks(blocks))
            }
        }
        from.deserialize_any(Content)
    }
}

#[cfg(test)]
mod tests;
