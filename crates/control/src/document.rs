//! docs/control-tools.md, generated from the manifest.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use mainspring_api::control::{ControlTool, ToolAccess};
use serde_json::{Map, Value};

use crate::bounds::ANSWER_MAX_BYTES;
use crate::tools;

/// The text before the tools.
const INTRODUCTION: &str = "\
# Control tools

<!-- Generated from the manifest in crates/control/src/manifest.rs: \
cargo run -p mainspring-control --example document > docs/control-tools.md -->

With these tools an agent, or any program, reads and directs agent sessions. The same tools are served

- by the server over MCP: streamable HTTP at `/mcp` ([http.md](http.md#mcp));
- by `mainspring mcp` over MCP on standard input and output;
- to native agents whose definition names them ([models.md](models.md));
- to ACP agents with `control_tools = true` ([adapters.md](adapters.md#mcp-servers));
- to the agents of a host over the relay ([jsonl.md](jsonl.md)).

`GET /v1/tools` returns this manifest with the complete JSON Schemas of inputs and answers.

An answer is `{\"ok\": true, …}`, or `{\"ok\": false, \"error\": {\"code\", \"reason\", \"message\"}}`. Over MCP an answer is \
structured content that matches the output schema, and the same JSON as text; a call that fails is a result with `isError`.

The tools act for the owner of the credential, an agent's token only for the session of that agent. Tools that `read` are \
open to every role, tools that `act` to members, admins and agents. The `rules` of the native agent match \
the rule of a tool ([models.md](models.md)), for example `deny tool call delegate_agent`.
";

/// Returns the text of docs/control-tools.md.
pub fn document() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n| tool | access | rule | MCP annotations |\n|---|---|---|---|\n");
    for tool in tools() {
        let rule = format!("{} {} {}", tool.rule.capability, tool.rule.operation, tool.rule.resource);
        let row =
            [format!("[`{0}`](#{0})", tool.name), access(tool).into(), format!("`{rule}`"), hints(tool)];
        push_row(&mut text, &row);
    }
    let _ = write!(
        text,
        "\n## Pages\n\nAnswers of tools that list things have at most {} KiB, unless a single item is larger. A list ends when \
         the answer is full or `limit` is reached; then `nextCursor` is the `cursor` of the next page. Long texts, large \
         objects and lists within an item are cut, and `truncated` lists JSON pointers to them. `get_agent_run` returns its \
         prompt and final text in pages of their own: `nextTextOffset` is the `textOffset` of the next one. All artifacts of a \
         run are listed by `inspect_agent_artifacts`, its attempts, delegations and bindings by the API ([http.md](http.md)).\n",
        ANSWER_MAX_BYTES >> 10,
    );
    tools().iter().for_each(|tool| describe(&mut text, tool));
    text
}

fn describe(text: &mut String, tool: &ControlTool) {
    let _ = write!(text, "\n## {}\n\n{}.\n\n{}\n", tool.name, tool.title, tool.description);
    text.push_str("\n| input | type | description |\n|---|---|---|\n");
    push_fields(text, &tool.input_schema);
    text.push_str("\n| answer | type | description |\n|---|---|---|\n");
    push_fields(text, &tool.output_schema);
}

/// Adds a row for each property of a schema.
fn push_fields(text: &mut String, schema: &Map<String, Value>) {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &String| required.is_some_and(|names| names.iter().any(|known| known == name));
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    // The order in a JSON object depends on how serde_json is built.
    for (name, field) in fields.collect::<BTreeMap<_, _>>() {
        let mark = if is_required(name) { ", required" } else { "" };
        let description = field["description"].as_str().unwrap_or_default().to_owned();
        push_row(text, &[format!("`{name}`"), format!("{}{mark}", kind(field)), description]);
    }
}

fn push_row(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | ").replace('\n', " "));
}

/// Names the type of a field for people.
fn kind(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let values = values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`"));
        return values.collect::<Vec<_>>().join(" or ");
    }
    // The schema of a type that may be null is a choice between null and that type.
    let variants = field["oneOf"].as_array().or_else(|| field["anyOf"].as_array()).into_iter().flatten();
    if let Some(variant) = variants.clone().find(|variant| variant["type"] != "null") {
        return kind(variant);
    }
    let named = |name: &str| match name {
        "array" => format!("list of {}", kind(&field["items"])),
        name => name.to_owned(),
    };
    match &field["type"] {
        Value::String(name) => named(name),
        Value::Array(names) => {
            let name = names.iter().filter_map(Value::as_str).find(|name| *name != "null");
            name.map_or_else(|| "any".into(), named)
        }
        _ => "any".into(),
    }
}

fn access(tool: &ControlTool) -> &'static str {
    match tool.access {
        ToolAccess::Read => "read",
        ToolAccess::Act => "act",
    }
}

/// Lists the annotations that are true.
fn hints(tool: &ControlTool) -> String {
    let hints = tool.annotations;
    let all = [
        ("readOnlyHint", hints.read_only_hint),
        ("destructiveHint", hints.destructive_hint),
        ("idempotentHint", hints.idempotent_hint),
        ("openWorldHint", hints.open_world_hint),
    ];
    all.iter()
        .filter(|(_, is_set)| *is_set)
        .map(|(name, _)| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
