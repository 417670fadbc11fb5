//! Parsing of an input line: a prompt, or a command that begins with a slash.

/// A parsed input line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    Prompt(String),
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
    /// Logs in to the agent with this login method, or with the only method that the agent has.
    Login(Option<String>),
    Model(Option<String>),
}

/// The slash commands: name, arguments, description.
pub(super) const SLASH_COMMANDS: [(&str, &str, &str); 9] = [
    (
        "branch",
        "[N] [TEXT]",
        "answer the last prompt (or message N of /tree) again; with TEXT, send TEXT instead",
    ),
    ("undo", "", "continue from before the last prompt, which stays in the tree"),
    ("tree", "", "show all messages and branches, numbered"),
    ("go", "N", "continue from message N of /tree"),
    ("model", "[NAME]", "show the model, or select another: PROVIDER/MODEL or a profile"),
    ("retry", "", "retry the last run if it failed"),
    ("login", "[METHOD]", "log in to the agent; a run that failed without the login goes on"),
    ("help", "", "show this list"),
    ("quit", "", "leave the chat; the session is kept"),
];

impl ChatCommand {
    /// Parses a line; none if the line is empty. An unknown command is refused with a suggestion.
    pub(super) fn parse(line: &str) -> Result<Option<Self>, String> {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/') else {
            return Ok((!line.is_empty()).then(|| Self::Prompt(line.to_owned())));
        };
        if command.starts_with('/') {
            return Ok(Some(Self::Prompt(command.to_owned())));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let text = (!rest.is_empty()).then(|| rest.to_owned());
        let number = || rest.parse().map_err(|_| format!("/{name} needs the number of a message: see /tree"));
        let command = match name {
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
            "login" => Self::Login(text),
            _ if text.is_some() && SLASH_COMMANDS.iter().any(|(known, ..)| *known == name) => {
                return Err(format!("/{name} takes no arguments"));
            }
            "tree" => Self::Tree,
            "undo" => Self::Undo,
            "retry" => Self::Retry,
            "help" | "?" => Self::Help,
            "quit" | "exit" | "q" => Self::Quit,
            unknown => return Err(unknown_command(unknown)),
        };
        Ok(Some(command))
    }
}

fn unknown_command(name: &str) -> String {
    let near = SLASH_COMMANDS.iter().map(|(known, ..)| (strsim::jaro_winkler(name, known), known));
    let near = near.filter(|(similarity, _)| *similarity > 0.75).max_by(|a, b| a.0.total_cmp(&b.0));
    let suggestion = near.map(|(_, known)| format!("did you mean /{known}? ")).unwrap_or_default();
    format!(
        "unknown command /{name}: {suggestion}/help lists the commands; start with // to send a text that begins with a slash"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_prompt_or_a_command() {
        let parse = |line: &str| match ChatCommand::parse(line) {
            Ok(command) => format!("{command:?}"),
            Err(message) => message,
        };
        assert_eq!(parse("  hello "), r#"Some(Prompt("hello"))"#);
        assert_eq!(parse(" "), "None");
        assert_eq!(parse("//etc"), r#"Some(Prompt("/etc"))"#);
        assert_eq!(parse("/branch"), "Some(Branch { at: None, text: None })");
        assert_eq!(parse("/branch 3"), "Some(Branch { at: Some(3), text: None })");
        assert_eq!(
            parse("/branch 3 more of it"),
            r#"Some(Branch { at: Some(3), text: Some("more of it") })"#
        );
        assert_eq!(parse("/branch say it"), r#"Some(Branch { at: None, text: Some("say it") })"#);
        assert_eq!(parse("/model a/b"), r#"Some(Model(Some("a/b")))"#);
        assert_eq!(parse("/login token"), r#"Some(Login(Some("token")))"#);
        assert_eq!(parse("/go"), "/go needs the number of a message: see /tree");
        assert_eq!(parse("/undo 3"), "/undo takes no arguments");
        assert!(parse("/brunch").contains("did you mean /branch?"));
        assert!(parse("/xyz").starts_with("unknown command /xyz: /help"));
        for (name, ..) in SLASH_COMMANDS {
            let rest = if name == "go" { " 1" } else { "" };
            assert!(ChatCommand::parse(&format!("/{name}{rest}")).is_ok(), "{name}");
        }
    }
}
