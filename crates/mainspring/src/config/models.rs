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

/// Finds where a key such as `models.NAME.FIELD` is written: the field, else the innermost table around it that is there. A name
/// may contain dots.
fn find(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let found = table.iter().filter_map(|(name, value)| {
        let rest = key.strip_prefix(name.get_ref().as_ref())?;
        let inner = match rest.strip_prefix('.') {
            Some(rest) => value.get_ref().as_table().and_then(|table| find(table, rest)),
            None if rest.is_empty() => None,
            None => return None,
        };
        Some((name.get_ref().len(), inner.unwrap_or(name.span().start)))
    });
    found.max_by_key(|(length, _)| *length).map(|(_, start)| start)
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
        let root = DeTable::parse(text).ok();
        let start = root.and_then(|root| find(root.get_ref(), key)).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_its_own_table() {
        let text = "[models.a]\nprovider = \"x\"\n[models.\"a.1\"]\nmodel = \"m\"\nprovider = \"y\"\n";
        let root = DeTable::parse(text).unwrap();
        for (key, line) in [
            ("models.a.provider", Some(2)),
            ("models.a.1.provider", Some(5)),
            ("models.a.1.effort", Some(3)),
            ("models.a", Some(1)),
            ("prices.a", None),
        ] {
            let found = find(root.get_ref(), key).map(|start| position(text, start).0);
            assert_eq!(found, line, "{key}");
        }
    }
}
