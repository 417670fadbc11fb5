//! The table `goal_types` of the configuration file. It cannot be set by variables or flags.

use std::collections::BTreeMap;
use std::path::Path;

use mainspring_agent::OutputSchema;
use mainspring_core::GoalType;
use mainspring_core::goal::{built_in_goal_types, check_goal_type};
use serde::Deserialize;
use serde_json::Value;

use super::error::Problem;
use super::file::position;
use super::source::Origin;

/// The name of the table.
pub(super) const GOAL_TABLE: &str = "goal_types";

#[derive(Deserialize)]
struct Tables {
    #[serde(default)]
    goal_types: BTreeMap<String, GoalTable>,
}

/// `[goal_types.NAME]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GoalTable {
    #[serde(default)]
    description: String,
    schema: Value,
    #[serde(default)]
    data_schema: Option<Value>,
}

/// Reads the goal types of the file at `path`.
pub(super) fn read(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Vec<GoalType> {
    // TOML syntax errors were already reported.
    let has_table = text.parse::<toml::Table>().is_ok_and(|tables| tables.contains_key(GOAL_TABLE));
    if !has_table {
        return vec![];
    }
    let tables: Tables = match toml::from_str(text) {
        Ok(tables) => tables,
        Err(error) => {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            let message = error.message().trim_end().replace('\n', "; ");
            problems.push(Problem::Syntax { path: path.to_owned(), line, column, message });
            return vec![];
        }
    };
    let mut goal_types = vec![];
    for (name, GoalTable { description, schema, data_schema }) in tables.goal_types {
        let goal_type = GoalType { name: name.clone(), description, schema, data_schema };
        if let Err(reason) = check(&goal_type) {
            let origin =
                Origin::File { path: path.to_owned(), line: position(text, text.find(&name).unwrap_or(0)).0 };
            problems.push(Problem::Models { origin, key: format!("{GOAL_TABLE}.{name}"), reason });
        }
        goal_types.push(goal_type);
    }
    goal_types
}

fn check(goal_type: &GoalType) -> Result<(), String> {
    check_goal_type(goal_type).map_err(|bad| bad.to_string())?;
    if built_in_goal_types().iter().any(|built_in| built_in.name == goal_type.name) {
        return Err("a built-in goal type has this name; choose another one".into());
    }
    let schemas = [Some(&goal_type.schema), goal_type.data_schema.as_ref()];
    schemas.into_iter().flatten().try_for_each(|schema| OutputSchema::new(schema).map(drop))
}
