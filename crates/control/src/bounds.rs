//! Bounds of the answers that contain lists, so that an answer fits into the context of a model.
//!
//! A list ends when the answer is full, and the answer names the cursor of the next page. Long texts, large objects and
//! the lists within an item are cut; the answer lists them in `truncated`.

use serde::Serialize;
use serde_json::{Map, Value};

/// The maximum size of an answer in bytes. Only an answer with a single larger item exceeds it.
pub const ANSWER_MAX_BYTES: usize = 48 << 10;
/// The maximum encoded size of one page of a prompt or final text.
const TEXT_PAGE_BYTES: usize = 8_000;
/// The maximum encoded size of any other text.
const TEXT_MAX_BYTES: usize = 1_000;
/// The maximum encoded size of an object whose content mainspring does not define.
const OBJECT_MAX_BYTES: usize = 2_000;
/// The fields that hold objects whose content mainspring does not define.
const OPEN_OBJECTS: [&str; 3] = ["metadata", "payload", "result"];
/// Space for the fields around the items.
const ENVELOPE_BYTES: usize = 512;
/// Space for a JSON pointer in `truncated`.
const POINTER_BYTES: usize = 64;

/// The end of a list that is kept when the list is cut.
#[derive(Clone, Copy)]
enum Keep {
    First,
    Last,
}

/// The bounds of one kind of answer.
pub(crate) struct Bounds {
    /// The lists within an item: the field, the end that is kept, and the maximum size in bytes.
    lists: &'static [(&'static str, Keep, usize)],
    /// Texts that are read page by page.
    paged_texts: &'static [&'static str],
}

/// The bounds of a list of sessions.
pub(crate) const SESSIONS: Bounds =
    Bounds { lists: &[("adapterBindings", Keep::First, 2_000)], paged_texts: &[] };

/// The bounds of one run.
pub(crate) const RUN: Bounds = Bounds {
    lists: &[
        ("attempts", Keep::Last, 4_000),
        ("adapterBindings", Keep::First, 3_000),
        ("artifacts", Keep::First, 4_000),
        ("childDelegations", Keep::Last, 4_000),
    ],
    paged_texts: &["/run/input/prompt", "/run/finalText"],
};

/// The bounds of a list of artifacts.
pub(crate) const ARTIFACTS: Bounds = Bounds { lists: &[], paged_texts: &[] };

impl Bounds {
    /// Cuts long texts, large objects and inner lists. Returns JSON pointers to them.
    pub(crate) fn cut(&self, value: &mut Value) -> Vec<String> {
        let mut cut = vec![];
        self.cut_value(value, "", &mut cut);
        cut
    }

    /// Returns the size of an item in the answer, after it is cut.
    pub(crate) fn size_of(&self, item: &impl Serialize) -> usize {
        let mut value = serde_json::to_value(item).unwrap_or_default();
        let cut = self.cut(&mut value);
        encoded_bytes(&value) + cut.len() * POINTER_BYTES + 1
    }

    fn cut_value(&self, value: &mut Value, pointer: &str, cut: &mut Vec<String>) {
        match value {
            Value::String(text) if !self.paged_texts.contains(&pointer) => {
                let end = prefix_bytes(text, TEXT_MAX_BYTES);
                if end < text.len() {
                    text.truncate(end);
                    cut.push(pointer.to_owned());
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.cut_value(item, &format!("{pointer}/{index}"), cut);
                }
            }
            Value::Object(fields) => self.cut_fields(fields, pointer, cut),
            _ => {}
        }
    }

    fn cut_fields(&self, fields: &mut Map<String, Value>, pointer: &str, cut: &mut Vec<String>) {
        for (name, field) in fields {
            let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            if let (Some((_, keep, bytes)), Value::Array(items)) =
                (self.lists.iter().find(|(list, ..)| list == name), &mut *field)
                && self.cut_list(items, *keep, *bytes)
            {
                cut.push(pointer.clone());
            }
            let known = cut.len();
            self.cut_value(field, &pointer, cut);
            if OPEN_OBJECTS.contains(&name.as_str()) && encoded_bytes(field) > OBJECT_MAX_BYTES {
                *field = if field.is_array() { Value::Array(vec![]) } else { Value::Object(Map::new()) };
                cut.truncate(known);
                cut.push(pointer);
            }
        }
    }

    /// Removes items of a list until the rest fits. Keeps at least one item. Returns true if an item was removed.
    fn cut_list(&self, items: &mut Vec<Value>, keep: Keep, bytes: usize) -> bool {
        let mut budget = PageBudget::of(bytes);
        let mut fits = |item: &Value| budget.admits(self.size_of(item));
        let kept = match keep {
            Keep::First => items.iter().take_while(|item| fits(item)).count(),
            Keep::Last => items.iter().rev().take_while(|item| fits(item)).count(),
        };
        let removed = items.len() - kept;
        match keep {
            Keep::First => items.truncate(kept),
            Keep::Last => drop(items.drain(..removed)),
        }
        removed > 0
    }
}

/// The space that is left on a page.
pub(crate) struct PageBudget {
    bytes: usize,
    is_empty: bool,
}

impl PageBudget {
    /// The budget of an answer whose other parts have `used` bytes.
    pub(crate) fn after(used: usize) -> Self {
        Self::of(ANSWER_MAX_BYTES.saturating_sub(used + ENVELOPE_BYTES))
    }

    fn of(bytes: usize) -> Self {
        Self { bytes, is_empty: true }
    }

    /// Reserves the space of an item. Returns false if the item does not fit; the first item always fits.
    pub(crate) fn admits(&mut self, bytes: usize) -> bool {
        let fits = self.is_empty || bytes <= self.bytes;
        self.bytes = if fits { self.bytes.saturating_sub(bytes) } else { 0 };
        self.is_empty = false;
        fits
    }
}

/// Cuts each text to the page that starts at the byte `offset`. Returns the offset of the next page; `None` if this is
/// the last one.
pub(crate) fn text_page<const N: usize>(texts: [&mut Option<String>; N], offset: usize) -> Option<usize> {
    let start = |text: &str| text.floor_char_boundary(offset.min(text.len()));
    let end = |text: &str| start(text) + prefix_bytes(&text[start(text)..], TEXT_PAGE_BYTES);
    // All texts end at the same offset, so that one number continues each of them.
    let open = texts.iter().filter_map(|text| text.as_deref()).filter(|text| end(text) < text.len());
    let next = open.map(end).min();
    for text in texts.into_iter().flatten() {
        let end = text.floor_char_boundary(next.unwrap_or(text.len()).min(text.len()));
        *text = text[start(text)..end.max(start(text))].to_owned();
    }
    next
}

fn encoded_bytes(value: &Value) -> usize {
    value.to_string().len()
}

/// Returns the length of the longest prefix of `text` that has at most `max` bytes in JSON.
fn prefix_bytes(text: &str, max: usize) -> usize {
    let mut left = max;
    for (at, letter) in text.char_indices() {
        let bytes = match letter {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            letter if letter < ' ' => 6,
            letter => letter.len_utf8(),
        };
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => return at,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_and_large_objects_are_cut_and_named() {
        let mut value = json!({
            "short": "x", "long": "ä".repeat(600), "list": [{"a/b": "y".repeat(1_001)}],
            "metadata": {"many": vec!["z".repeat(900); 3]}, "payload": {"text": "t".repeat(5_000)},
        });
        let mut cut = SESSIONS.cut(&mut value);
        cut.sort();
        assert_eq!(cut, ["/list/0/a~1b", "/long", "/metadata", "/payload/text"]);
        assert_eq!(value["long"], "ä".repeat(500));
        assert_eq!(value["metadata"], json!({}));
        assert_eq!(value["payload"]["text"], "t".repeat(1_000));
    }

    #[test]
    fn cut_lists_keep_the_last_attempts_and_the_first_bindings() {
        let attempts: Vec<Value> = (0..99).map(|no| json!({"no": no, "text": "x".repeat(90)})).collect();
        let mut value = json!({"attempts": attempts, "adapterBindings": attempts});
        let mut cut = RUN.cut(&mut value);
        cut.sort();
        assert_eq!(cut, ["/adapterBindings", "/attempts"]);
        assert_eq!(value["attempts"].as_array().unwrap().last().unwrap()["no"], 98);
        assert_eq!(value["adapterBindings"][0]["no"], 0);
        assert!(value["attempts"].to_string().len() <= 4_000, "{value}");
    }

    #[test]
    fn the_pages_of_a_text_add_up_to_the_whole_text() {
        let (prompt, whole) = ("short".to_owned(), "aä\u{1b}\n\"".repeat(9_000));
        let (mut read, mut offset) = (String::new(), Some(0));
        while let Some(at) = offset {
            let (mut first, mut second) = (Some(prompt.clone()), Some(whole.clone()));
            offset = text_page([&mut first, &mut second], at);
            assert_eq!(first.as_deref(), Some(if at == 0 { "short" } else { "" }));
            assert!(json!(second).to_string().len() <= TEXT_PAGE_BYTES + 2);
            read += &second.unwrap();
        }
        assert!(read == whole, "{} and {} bytes", read.len(), whole.len());
    }

    #[test]
    fn a_page_has_at_least_one_item() {
        let mut budget = PageBudget::after(ANSWER_MAX_BYTES);
        assert!(budget.admits(7) && !budget.admits(1));
    }
}
