//! The tables `providers`, `models`, `prices` and `mcp` of the file. They have no variables and no flags.

use std::path::Path;

use mainspring_agent::ModelsConfig;
use toml::de::DeTable;

use super::error::Problem;
use super::file::position;
use super::goal_types::GOAL_TABLE;
use super::rule::expand_path;
use super::source::Origin;

/// The tables that are read here.
pub(super) const MODEL_TABLES: [&str; 4] = ["providers", "models", "prices", "mcp"];

/// Returns the origin of each table within the model tables and the table of goal types: `providers.NAME` and so on.
pub(super) fn origins(path: &Path, text: &str) -> Vec<(String, Origin)> {
    let Ok(root) = DeTable::parse(text) else { return vec![] };
    let is_table = |name: &str| MODEL_TABLES.contains(&name) || name == GOAL_TABLE;
    let tables = root.get_ref().iter().filter(|(name, _)| is_table(name.get_ref().as_ref()));
    let named = tables.flat_map(|(name, table)| {
        let entries = table.get_ref().as_table().into_iter().flat_map(|table| table.keys());
        entries.map(move |entry| {
            let line = position(text, entry.span().start).0;
            (format!("{}.{}", name.get_ref(), entry.get_ref()), Origin::File { path: path.to_owned(), line })
        })
    });
    named.collect()
}

/// Reads the model tables of the file at `path`.
pub(super) fn read(
    path: &Path,
    text: &str,
    home: Option<&Path>,
    problems: &mut Vec<Problem>,
) -> ModelsConfig {
    // TOML syntax errors were already reported.
    let Ok(tables) = text.parse::<toml::Table>() else {
        return ModelsConfig::default();
    };
    if !MODEL_TABLES.iter().any(|name| tables.contains_key(*name)) {
        return ModelsConfig::default();
    }
    let mut config: ModelsConfig = match toml::from_str(text) {
        Ok(config) => config,
        Err(error) => {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            let message = error.message().trim_end().replace('\n', "; ");
            problems.push(Problem::Syntax { path: path.to_owned(), line, column, message });
            return ModelsConfig::default();
        }
    };
    let origin = |key: &str| {
        let (table, field) = key.rsplit_once('.').unwrap_or(("", key));
        // A table that is written in another way than by its header is searched from the start of the file.
        let from = text.find(&format!("[{table}]")).unwrap_or(0);
        let start = text[from..].find(field).map_or(from, |at| from + at);
        Origin::File { path: path.to_owned(), line: position(text, start).0 }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    for (name, provider) in &mut config.providers {
        let key = format!("providers.{name}.key_file");
        if let Some(file) = &provider.key_file {
            match expand_path(file, folder, home) {
                Ok(absolute) => provider.key_file = Some(absolute),
                Err(allowed) => {
                    let written = format!("{:?}", file.display().to_string());
                    problems.push(Problem::Invalid { origin: origin(&key), key, written, allowed });
                }
            }
        }
    }
    if let Err(bad) = config.check() {
        problems.push(Problem::Models { origin: origin(&bad.key), key: bad.key, reason: bad.reason });
    }
    config
}
