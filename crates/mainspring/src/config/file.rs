//! The file layer: TOML in which every key must be known.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Entry;
use super::error::Problem;
use super::goal_types::GOAL_TABLE;
use super::models::MODEL_TABLES;
use super::owners::owner_key;
use super::rule::{ADAPTER_NAME, RawValue, is_adapter_name};
use super::settings::{self, GROUPS};
use super::source::Origin;

/// Reads the values of the file at `path` with the content `text`.
pub(super) fn entries(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let mut reader = Reader { path, text, entries: Vec::new(), problems };
    match DeTable::parse(text) {
        Ok(root) => reader.read_table("", root.get_ref()),
        Err(error) => {
            let start = error.span().map_or(0, |span| span.start);
            let (line, column) = position(text, start);
            let message = error.message().trim_end().replace('\n', "; ");
            reader.problems.push(Problem::Syntax { path: path.to_owned(), line, column, message });
        }
    }
    reader.entries
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    entries: Vec<Entry>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    /// Reads the table with the key `prefix`, which is empty or ends with a dot.
    fn read_table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let key = format!("{prefix}{}", name.get_ref());
            // A quoted key with a dot in it looks like two keys but is one.
            let is_plain = !name.get_ref().contains('.');
            if is_plain && settings::find_target(&key).is_some() {
                self.read_value(key, value);
            } else if is_plain && prefix.is_empty() && GROUPS.contains(&key.as_str()) {
                self.read_nested(&key, value);
            } else if is_plain && key == "adapters" {
                self.read_adapters(value);
            } else if is_plain && key == "owners" {
                self.read_owners(value);
            } else if is_plain && (MODEL_TABLES.contains(&key.as_str()) || key == GOAL_TABLE) {
                // Read as a whole by `models` and `goal_types`.
            } else {
                let origin = self.origin(name.span().start);
                let key = if is_plain { key } else { format!("{prefix}{:?}", name.get_ref()) };
                self.problems.push(Problem::unknown_key(key, origin));
            }
        }
    }

    fn read_nested(&mut self, key: &str, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.read_table(&format!("{key}."), table),
            _ => self.report_invalid(key, value, &format!("a table: write [{key}] and its keys below")),
        }
    }

    fn read_adapters(&mut self, value: &Spanned<DeValue<'_>>) {
        let DeValue::Table(table) = value.get_ref() else {
            return self.report_invalid("adapters", value, "a table: write [adapters.NAME] for each adapter");
        };
        for (name, value) in table {
            let key = format!("adapters.{}", name.get_ref());
            if is_adapter_name(name.get_ref()) {
                self.read_nested(&key, value);
            } else {
                let allowed = format!("[adapters.NAME], where NAME is {ADAPTER_NAME}");
                let (written, origin) = (format!("{:?}", name.get_ref()), self.origin(name.span().start));
                self.problems.push(Problem::Invalid { key: "adapters".into(), written, origin, allowed });
            }
        }
    }

    fn read_owners(&mut self, value: &Spanned<DeValue<'_>>) {
        let DeValue::Table(table) = value.get_ref() else {
            return self.report_invalid("owners", value, "a table: write [owners.NAME] for each owner");
        };
        for (name, value) in table {
            let owner = name.get_ref().as_ref();
            let key = format!("owners.{owner}");
            let DeValue::Table(settings) = value.get_ref() else {
                let allowed = format!("a table: write [{key}] and its keys below");
                self.report_invalid(&key, value, &allowed);
                continue;
            };
            for (setting, value) in settings {
                let key = owner_key(owner, setting.get_ref());
                match settings::find_target(&key) {
                    Some(_) if !setting.get_ref().contains('.') => self.read_value(key, value),
                    _ => {
                        let origin = self.origin(setting.span().start);
                        self.problems.push(Problem::unknown_key(key, origin));
                    }
                }
            }
        }
    }

    fn read_value(&mut self, key: String, value: &Spanned<DeValue<'_>>) {
        let raw = match value.get_ref() {
            DeValue::String(text) => RawValue::Text(text.to_string()),
            DeValue::Integer(integer) => {
                RawValue::Integer(u64::from_str_radix(integer.as_str(), integer.radix()).ok())
            }
            DeValue::Array(values) => {
                let texts = values.iter().map(|value| value.get_ref().as_str().map(str::to_owned));
                let numbers = values.iter().map(|value| match value.get_ref() {
                    DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
                    _ => None,
                });
                let numbers = numbers.collect::<Option<Vec<_>>>().map(RawValue::Integers);
                let texts = texts.collect::<Option<Vec<_>>>().map(RawValue::List);
                texts.or(numbers).unwrap_or(RawValue::Other)
            }
            DeValue::Table(table) => {
                let text = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
                let texts =
                    table.iter().map(|(name, value)| Some((name.get_ref().to_string(), text(value)?)));
                texts.collect::<Option<BTreeMap<_, _>>>().map_or(RawValue::Other, RawValue::Table)
            }
            DeValue::Boolean(is_on) => RawValue::Switch(*is_on),
            _ => RawValue::Other,
        };
        let folder = self.path.parent().map(PathBuf::from).unwrap_or_default();
        let written = if settings::is_secret(&key) { "…".to_owned() } else { self.excerpt(value) };
        let origin = self.origin(value.span().start);
        self.entries.push(Entry { key, raw, written, folder, origin });
    }

    fn report_invalid(&mut self, key: &str, value: &Spanned<DeValue<'_>>, allowed: &str) {
        let (written, origin) = (self.excerpt(value), self.origin(value.span().start));
        self.problems.push(Problem::Invalid {
            key: key.to_owned(),
            written,
            origin,
            allowed: allowed.to_owned(),
        });
    }

    fn origin(&self, start: usize) -> Origin {
        Origin::File { path: self.path.to_owned(), line: position(self.text, start).0 }
    }

    /// Returns the value as written in the file, on one line and shortened.
    fn excerpt(&self, value: &Spanned<DeValue<'_>>) -> String {
        const MAX_CHARS: usize = 60;
        let source = self.text.get(value.span()).unwrap_or_default();
        let mut excerpt: String =
            source.chars().take(MAX_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if source.chars().nth(MAX_CHARS).is_some() {
            excerpt.push('…');
        }
        excerpt
    }
}

/// Returns the line and column of the byte at `start`, counted from 1.
pub(super) fn position(text: &str, start: usize) -> (usize, usize) {
    let before = text.get(..start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}
