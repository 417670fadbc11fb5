//! Goal types of the file.

use super::*;

#[test]
fn goal_types_are_read_and_checked() {
    let valid = machine().file(
        "goal_reminders = 5\n[goal_types.count]\ndescription = \"Counts.\"\nschema = { type = \"object\", required = [\"n\"] }\n",
    );
    let config = valid.load().config;
    assert_eq!(config.goal_reminders, 5);
    let schema = serde_json::json!({"type": "object", "required": ["n"]});
    let (name, description) = ("count".to_owned(), "Counts.".to_owned());
    let expected = mainspring_core::GoalType { name, description, schema, data_schema: None };
    assert_eq!(config.goal_types, [expected]);
    let rows = valid.load().rows();
    let row = rows.iter().find(|row| row.key == "goal_types.count").unwrap();
    assert_eq!(row.value.to_string(), "Counts.");
    for (text, problem) in [
        ("[goal_types.dataset_summary]\nschema = {}", "a built-in goal type has this name"),
        ("[goal_types.Big]\nschema = {}", "lower-case letters"),
        (
            "[goal_types.a]\nschema = { type = \"nonsense\" }",
            "its schema must be a JSON Schema for an object",
        ),
        ("[goal_types.a]\nschema = { required = 1 }", "goal_types.a"),
        ("[goal_types.a]\ndescription = \"x\"", "missing field `schema`"),
        ("[goal_types.a]\nschema = {}\ncolour = 1", "unknown field `colour`"),
    ] {
        let problems = machine().file(text).problems();
        assert!(problems.contains(problem), "{text}: {problems}");
    }
}
