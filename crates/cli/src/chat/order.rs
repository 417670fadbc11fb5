//! Parsing of an input line: a prompt, or a command that begins with a slash.

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    Say(String),
    Help,
    Quit,
    Tree,
    /// Regenerates or edits at the message of this number, or at the last prompt.
    Branch {
        at: Option<usize>,
        text: Option<String>,
    },
    Go(usize),
    Undo,
    Retry,
    Model(Option<String>),
}

/// The slash commands: name, arguments, description.
pub(super) const ORDERS: [(&str, &str, &str); 8] = [
    (
        "branch",
        "[N] [TEXT]",
        "answer the last prompt (or message N of /tree) again; with TEXT, say that instead",
    ),
    ("undo", "", "go on from before the last prompt; nothing is lost, it stays in the tree"),
    ("tree", "", "show the whole conversation with its branches, numbered"),
    ("go", "N", "go to message N of /tree and on from there"),
    ("model", "[NAME]", "show the model, or ask another: PROVIDER/MODEL, or a profile"),
    ("retry", "", "try the last prompt again if it failed"),
    ("help", "", "show this"),
    ("quit", "", "leave; the session stays"),
];

impl Order {
    /// Parses a line; none if the line is empty. An unknown command is refused with a suggestion.
    pub(super) fn read(line: &str) -> Result<Option<Self>, String> {
        let line = line.trim();
        let Some(order) = line.strip_prefix('/') else {
            return Ok((!line.is_empty()).then(|| Self::Say(line.to_owned())));
        };
        if order.starts_with('/') {
            return Ok(Some(Self::Say(order.to_owned())));
        }
        let (name, rest) = order.split_once(char::is_whitespace).unwrap_or((order, ""));
        let rest = rest.trim();
        let text = (!rest.is_empty()).then(|| rest.to_owned());
        let number = || rest.parse().map_err(|_| format!("/{name} needs the number of a message: see /tree"));
        let order = match name {
            "branch" => {
                let (first, others) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                match first.parse() {
                    Ok(at) => {
                        let text = (!others.trim().is_empty()).then(|| others.trim().to_owned());
                        Self::Branch { at: Some(at), text }
                    }
                    Err(_) => Self::Branch { at: None, text },
                }
            }
            "go" => Self::Go(number()?),
            "model" => Self::Model(text),
            _ if text.is_some() && ORDERS.iter().any(|(known, ..)| *known == name) => {
                return Err(format!("/{name} takes nothing after it"));
            }
            "tree" => Self::Tree,
            "undo" => Self::Undo,
            "retry" => Self::Retry,
            "help" | "?" => Self::Help,
            "quit" | "exit" | "q" => Self::Quit,
            unknown => return Err(unknown_order(unknown)),
        };
        Ok(Some(order))
    }
}

fn unknown_order(name: &str) -> String {
    let near = ORDERS.iter().map(|(known, ..)| (strsim::jaro_winkler(name, known), known));
    let near = near.filter(|(likeness, _)| *likeness > 0.75).max_by(|a, b| a.0.total_cmp(&b.0));
    let meant = near.map(|(_, known)| format!("did you mean /{known}? ")).unwrap_or_default();
    format!("no /{name}: {meant}/help lists what there is; // begins a text with a slash")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_said_or_obeyed() {
        let read = |line: &str| match Order::read(line) {
            Ok(order) => format!("{order:?}"),
            Err(why) => why,
        };
        assert_eq!(read("  hello "), r#"Some(Say("hello"))"#);
        assert_eq!(read(" "), "None");
        assert_eq!(read("//etc"), r#"Some(Say("/etc"))"#);
        assert_eq!(read("/branch"), "Some(Branch { at: None, text: None })");
        assert_eq!(read("/branch 3"), "Some(Branch { at: Some(3), text: None })");
        assert_eq!(read("/branch 3 more of it"), r#"Some(Branch { at: Some(3), text: Some("more of it") })"#);
        assert_eq!(read("/branch say it"), r#"Some(Branch { at: None, text: Some("say it") })"#);
        assert_eq!(read("/model a/b"), r#"Some(Model(Some("a/b")))"#);
        assert_eq!(read("/go"), "/go needs the number of a message: see /tree");
        assert_eq!(read("/undo 3"), "/undo takes nothing after it");
        assert!(read("/brunch").contains("did you mean /branch?"));
        assert!(read("/xyz").starts_with("no /xyz: /help"));
        for (name, ..) in ORDERS {
            let rest = if name == "go" { " 1" } else { "" };
            assert!(Order::read(&format!("/{name}{rest}")).is_ok(), "{name}");
        }
    }
}
