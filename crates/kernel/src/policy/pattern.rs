//! Patterns: texts in which `*` stands for any text. Matching takes time linear in the pattern and the text.

/// The maximum length of a pattern in bytes.
pub const MAX_PATTERN_BYTES: usize = 1024;

/// True if `text` matches `pattern`, in which `*` stands for any text.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(text) = text.strip_prefix(start).and_then(|text| text.strip_suffix(end)) else { return false };
    // The leftmost place of each part leaves the most text for the parts after it, so no other place need be tried.
    let mut text = text;
    middle.split('*').all(|part| match text.split_once(part) {
        Some((_, after)) => {
            text = after;
            true
        }
        None => false,
    })
}

/// True if the parts of a path match the parts of a pattern: a part `**` stands for any number of parts, every other
/// part is a pattern for one part.
pub(super) fn matches_parts(pattern: &[&str], parts: &[&str]) -> bool {
    let fits = |pattern: &[&str], parts: &[&str]| {
        pattern.len() <= parts.len()
            && pattern.iter().zip(parts).all(|(one, part)| matches_pattern(one, part))
    };
    let mut sections = pattern.split(|part| *part == "**");
    let (Some(start), end) = (sections.next(), sections.next_back()) else { return parts.is_empty() };
    let Some(end) = end else { return start.len() == parts.len() && fits(start, parts) };
    if start.len() + end.len() > parts.len()
        || !fits(start, parts)
        || !fits(end, &parts[parts.len() - end.len()..])
    {
        return false;
    }
    let mut rest = &parts[start.len()..parts.len() - end.len()];
    for section in sections {
        let Some(at) = (0..=rest.len()).find(|at| fits(section, &rest[*at..])) else { return false };
        rest = &rest[at + section.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("*b", "ab", true),
            ("*b", "ba", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("**", "x", true),
            ("a**b", "ab", true),
            ("*é*", "caféé", true),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "ab", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn matching_agrees_with_trying_every_position() {
        fn tried(pattern: &str, text: &str) -> bool {
            match pattern.split_once('*') {
                None => pattern == text,
                Some((start, rest)) => text
                    .strip_prefix(start)
                    .is_some_and(|text| (0..=text.len()).any(|at| tried(rest, &text[at..]))),
            }
        }
        let all = |letters: &str, len: usize| -> Vec<String> {
            (0..len).fold(vec![String::new()], |shorter, _| {
                let longer =
                    shorter.iter().flat_map(|text| letters.chars().map(move |c| format!("{text}{c}")));
                shorter.iter().cloned().chain(longer.collect::<Vec<_>>()).collect()
            })
        };
        let texts = all("ab", 5);
        for pattern in all("ab*", 5) {
            for text in &texts {
                assert_eq!(matches_pattern(&pattern, text), tried(&pattern, text), "{pattern:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_pattern_with_many_stars_is_matched_in_linear_time() {
        // Trying every position takes time that is exponential in the number of stars.
        let pattern = format!("{}b", "*a".repeat(500));
        let text = "a".repeat(1 << 20);
        assert!(!matches_pattern(&pattern, &text));
        assert!(matches_pattern(&format!("{pattern}*"), &(text + "b")));
    }

    #[test]
    fn parts_match_one_by_one() {
        let split = |text: &'static str| text.split('/').collect::<Vec<_>>();
        for (pattern, path, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/**", "a/b/c", true),
            ("a/**", "ab/c", false),
            ("**/c", "a/b/c", true),
            ("**/b/**", "a/b/c", true),
            ("**/x/**", "a/b/c", false),
            ("a/*/c", "a/b/c", true),
            ("a/*/c", "a/b/b/c", false),
            ("a/**/b/**/c", "a/b/b/x/c", true),
        ] {
            assert_eq!(matches_parts(&split(pattern), &split(path)), expected, "{pattern} {path}");
        }
    }
}
