//! Offers the import of a database of the original daemon that lies in the state directory.

use std::path::{Path, PathBuf};

use mainspring_store::{OMI_DATABASE, OmiOffer};

use super::Context;
use super::output::YELLOW;

/// Prints the offer to standard error. `in_use`: this process has the state directory, and must end before the import.
pub(super) fn print_offer(context: &Context<'_>, offer: OmiOffer, in_use: bool) -> std::io::Result<()> {
    let text = offer_text(&context.config().state_dir, offer, in_use);
    context.output.print_note(format_args!("{YELLOW}note{YELLOW:#} {text}"))
}

/// Names the database, and the command that imports it.
pub(super) fn offer_text(state_dir: &Path, offer: OmiOffer, in_use: bool) -> String {
    let dir = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    let database = dir.join(OMI_DATABASE);
    let found = format!("{} of the original daemon is not imported", database.display());
    let command = |target: &Path| {
        format!("mainspring import omi {} --state-dir {}", shell_word(&dir), shell_word(target))
    };
    match offer {
        OmiOffer::Here if in_use => {
            format!("{found}: stop this process before the first prompt, then run `{}`", command(&dir))
        }
        OmiOffer::Here => format!("{found}: before the first prompt, run `{}`", command(&dir)),
        OmiOffer::Elsewhere => {
            let command = command(&free_sibling(&dir));
            format!(
                "{found}, and this state directory holds other sessions: import it into another one with `{command}`, \
                 or move the file away"
            )
        }
    }
}

/// Returns the first folder beside `dir` that does not exist: `DIR-imported`, `DIR-imported-2` and so on.
fn free_sibling(dir: &Path) -> PathBuf {
    let with_suffix = |suffix: String| {
        let mut name = dir.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let numbered = (2..).map(|number| with_suffix(format!("-imported-{number}")));
    let candidates = std::iter::once(with_suffix("-imported".into())).chain(numbered);
    { candidates }.find(|candidate| !candidate.exists()).unwrap_or_else(|| dir.to_owned())
}

/// Quotes a path for a shell if it needs that.
fn shell_word(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/._-+:@%".contains(char);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_names_a_command_that_a_shell_can_run() {
        let text = |dir: &str, offer, in_use| offer_text(Path::new(dir), offer, in_use);
        assert_eq!(
            text("/a b/it's", OmiOffer::Here, false),
            "/a b/it's/omi-agentd.sqlite3 of the original daemon is not imported: before the first prompt, run \
             `mainspring import omi '/a b/it'\\''s' --state-dir '/a b/it'\\''s'`"
        );
        assert!(text("/state", OmiOffer::Here, true).contains("stop this process"));
        let elsewhere = text("/state", OmiOffer::Elsewhere, true);
        assert!(
            elsewhere.contains("`mainspring import omi /state --state-dir /state-imported`"),
            "{elsewhere}"
        );
    }

    #[test]
    fn the_other_state_directory_does_not_exist_yet() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        assert_eq!(free_sibling(&dir), folder.path().join("state-imported"));
        std::fs::create_dir(folder.path().join("state-imported")).unwrap();
        assert_eq!(free_sibling(&dir), folder.path().join("state-imported-2"));
    }
}
