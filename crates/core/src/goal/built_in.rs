//! The goal types that every server has, as examples and for clients that know them.

use serde_json::{Value, json};

use super::GoalType;

/// The goal types that every server has.
pub fn built_in_goal_types() -> Vec<GoalType> {
    vec![dataset_summary(), dataset_triage(), create_events()]
}

/// The schema of a word list with a description for each word: at least `min`, at most `max` words.
fn vocabulary(min: u32, max: u32) -> Value {
    json!({
        "type": "object",
        "minProperties": min,
        "maxProperties": max,
        "additionalProperties": {"type": "string"},
    })
}

/// The schema of a goal's data: these properties, and `goal_type`, which some clients repeat there.
fn data_schema(mut properties: Value, required: &[&str]) -> Value {
    properties["goal_type"] = json!({"type": "string"});
    json!({"type": "object", "properties": properties, "required": required})
}

fn dataset_summary() -> GoalType {
    GoalType {
        name: "dataset_summary".into(),
        description: "Reports the summary of the dataset.".into(),
        schema: json!({
            "type": "object",
            "properties": {"summary": {"type": "string", "pattern": "\\S", "description": "The summary."}},
            "required": ["summary"],
        }),
        data_schema: Some(data_schema(
            json!({
                "dataset_id": {"type": "string"},
                "summary_format_spec_prompt": {"type": ["string", "null"], "maxLength": 4000},
            }),
            &["dataset_id"],
        )),
    }
}

fn dataset_triage() -> GoalType {
    GoalType {
        name: "dataset_triage".into(),
        description: "Reports for each label of the vocabulary whether it applies to the dataset.".into(),
        schema: json!({
            "type": "object",
            "properties": {"label_decisions": {
                "type": "array",
                "minItems": 1,
                "x-unique-by": "label",
                "items": {
                    "type": "object",
                    "properties": {
                        "label": {"type": "string"},
                        "applies": {"type": "boolean"},
                        "justification": {"type": "string", "pattern": "\\S"},
                        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
                    },
                    "required": ["label", "applies", "justification", "confidence"],
                },
            }},
            "required": ["label_decisions"],
        }),
        data_schema: Some(data_schema(
            json!({"dataset_id": {"type": "string"}, "label_vocabulary": vocabulary(1, 1000)}),
            &["dataset_id", "label_vocabulary"],
        )),
    }
}

fn create_events() -> GoalType {
    GoalType {
        name: "create_events".into(),
        description: "Reports the events found in the dataset. Times are integer nanoseconds.".into(),
        schema: json!({
            "type": "object",
            "properties": {"events": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "start_time": {"type": "integer"},
                        "end_time": {"type": "integer"},
                        "description": {"type": ["string", "null"]},
                        "tags": {"type": "array", "items": {"type": "string"}},
                        "target_id": {"type": ["string", "null"]},
                    },
                    "required": ["name", "start_time", "end_time"],
                },
            }},
            "required": ["events"],
        }),
        data_schema: Some(data_schema(
            json!({
                "dataset_id": {"type": "string"},
                "event_vocabulary": vocabulary(1, 1000),
                "tag_vocabulary": vocabulary(0, 1000),
                "collection_id": {"type": ["string", "null"]},
                "event_focus_prompt": {"type": ["string", "null"]},
            }),
            &["dataset_id", "event_vocabulary"],
        )),
    }
}
