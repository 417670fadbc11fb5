//! Names of owners and orgs: refuses new names that could be mistaken for others.
//!
//! A new name is ASCII; or it is in the form NFC, has letters of one script, and does not look like ASCII. Scripts and
//! look-alikes come from the tables of Unicode's security mechanisms (UTS #39). Names that exist already stay valid.

use unicode_normalization::is_nfc;
use unicode_security::confusable_detection::skeleton;
use unicode_security::{GeneralSecurityProfile, MixedScript};

use crate::error::Error;

/// Refuses a new name that could be taken for another one.
pub fn check_new_name(what: &'static str, name: &str) -> Result<(), Error> {
    let reason = if name.starts_with(' ') || name.ends_with(' ') || name.contains("  ") {
        "begins or ends with a space, or has two in a row"
    } else if name.is_ascii() && !name.contains(|c: char| c.is_ascii_control()) {
        return Ok(());
    } else if !name.chars().all(is_visible) {
        "has an invisible character, or one that is not used in names"
    } else if !is_nfc(name) {
        "is not in the form NFC: send its composed form"
    } else if !name.is_single_script() {
        "mixes letters of different scripts"
    } else if skeleton(name).all(|c| c.is_ascii()) {
        "looks like a name in ASCII letters"
    } else {
        return Ok(());
    };
    Err(Error::UnsafeName { what, name: name.escape_debug().to_string(), reason })
}

/// True for printable ASCII, and for visible characters that Unicode allows in identifiers.
fn is_visible(c: char) -> bool {
    match c {
        ' ' => true,
        // Joiners are used within words of some scripts, but are invisible.
        '\u{200c}' | '\u{200d}' => false,
        _ if c.is_ascii() => c.is_ascii_graphic(),
        _ => c.identifier_allowed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_accepted() {
        for name in [
            "ann",
            "Ann Smith",
            "ann@example.com",
            "auth0|5f7",
            "jörg",
            "Łukasz",
            "иван",
            "山田太郎",
            "やまだ太郎",
            "José",
        ] {
            assert_eq!(check_new_name("an owner", name), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_could_be_taken_for_others_are_refused() {
        for (name, reason) in [
            (" ann", "space"),
            ("ann  b", "space"),
            ("ann\u{a0}b", "invisible"),
            ("a\u{200b}nn", "invisible"),
            ("a\u{200d}nn", "invisible"),
            ("ann\u{202e}", "invisible"),
            ("ann\u{feff}", "invisible"),
            ("ann\u{e0041}", "invisible"),
            ("a\u{34f}nn", "invisible"),
            ("ann\n", "invisible"),
            ("jo\u{308}rg", "NFC"),
            ("\u{430}nn", "scripts"),
            ("p\u{430}ypal", "scripts"),
            ("\u{440}\u{430}\u{443}", "ASCII"),
            ("\u{ff41}nn", "invisible"),
            ("\u{1d41a}nn", "invisible"),
        ] {
            let refused = check_new_name("an owner", name).unwrap_err();
            assert_eq!(refused.code(), "invalid_name");
            assert!(refused.to_string().contains(reason), "{name:?}: {refused}");
            assert!(refused.to_string().chars().all(|c| !c.is_control() && c != '\u{202e}'), "{refused:?}");
        }
    }
}
