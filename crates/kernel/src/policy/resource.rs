//! Resources: the objects of actions, and how the pattern of a rule matches them.
//!
//! A path is compared part by part after its links were resolved, and a command word by word, so that no part of a
//! pattern matches across a boundary. A line for a shell can do anything: only the pattern `*` admits it.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::pattern::{matches_parts, matches_pattern};

/// The object of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// A text of the agent, such as the title of a tool call.
    Text(String),
    /// An absolute path whose links were resolved.
    Path(PathBuf),
    /// A program with its arguments.
    Command(Vec<String>),
    /// A line for a shell.
    ShellLine(String),
}

/// The programs that execute a line.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"];

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::ShellLine(text) => f.write_str(text),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Command(words) => f.write_str(&words.join(" ")),
        }
    }
}

impl Resource {
    /// True if an action on the resource is admitted by `pattern`: nothing that the pattern does not name is admitted.
    pub(super) fn is_admitted_by(&self, pattern: &str) -> bool {
        match self {
            Self::Text(text) => matches_pattern(pattern, text),
            Self::Path(path) => pattern == "*" || matches_path(pattern, path),
            Self::Command(words) => pattern == "*" || matches_command(pattern, words),
            Self::ShellLine(_) => pattern == "*",
        }
    }

    /// True if an action on the resource is stopped by `pattern`, which is more than the pattern admits: a program also
    /// under another path, and its name anywhere in a line for a shell.
    pub(super) fn is_stopped_by(&self, pattern: &str) -> bool {
        if self.is_admitted_by(pattern) {
            return true;
        }
        let program = pattern.split_whitespace().next().unwrap_or_default();
        match self {
            Self::Text(_) | Self::Path(_) => false,
            Self::ShellLine(line) => names_program(line, program),
            Self::Command(words) => {
                let mut named = words.clone();
                if let Some(name) = named.first_mut() {
                    *name = file_name(name).to_owned();
                }
                let runs_line = words.first().is_some_and(|name| SHELLS.contains(&file_name(name)));
                matches_command(pattern, &named)
                    || (runs_line && words.iter().skip(1).any(|word| names_program(word, program)))
            }
        }
    }
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// True if one of the words of a line for a shell is `program`, under any path.
fn names_program(line: &str, program: &str) -> bool {
    let is_separator = |c: char| c.is_whitespace() || "|&;<>()$`\"'{}\\=".contains(c);
    line.split(is_separator).any(|word| {
        !word.is_empty() && (matches_pattern(program, word) || matches_pattern(program, file_name(word)))
    })
}

/// True if a command matches word by word. After a last word that ends with `*`, any arguments may follow.
fn matches_command(pattern: &str, words: &[String]) -> bool {
    let patterns: Vec<&str> = pattern.split_whitespace().collect();
    let Some((last, first)) = patterns.split_last() else { return false };
    let fits = |patterns: &[&str]| patterns.iter().zip(words).all(|(one, word)| matches_pattern(one, word));
    match *last {
        "*" => words.len() >= first.len() && fits(first),
        open if open.ends_with('*') => words.len() >= patterns.len() && fits(&patterns),
        _ => words.len() == patterns.len() && fits(&patterns),
    }
}

/// True if `pattern` names the file, or a folder above it. A pattern that does not start with `/` may begin anywhere.
fn matches_path(pattern: &str, path: &Path) -> bool {
    let Some(parts) = parts_of(path) else { return false };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let resolved = resolve_beginning(pattern);
    let mut patterns: Vec<&str> =
        resolved.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if patterns.contains(&"..") {
        return false;
    }
    // `*` as a whole part at the beginning or the end stands for any number of parts.
    let is_anchored = resolved.starts_with('/');
    if let Some(first) = patterns.first_mut().filter(|part| **part == "*" && !is_anchored) {
        *first = "**";
    } else if !is_anchored {
        patterns.insert(0, "**");
    }
    match patterns.last_mut() {
        // `/*` at the end needs at least one more part: the folder itself does not match.
        Some(last) if *last == "*" => patterns.push("**"),
        // A folder stands for everything in it.
        Some(last) if *last != "**" => {
            return matches_parts(&patterns, &parts) || {
                patterns.push("**");
                matches_parts(&patterns, &parts)
            };
        }
        _ => {}
    }
    matches_parts(&patterns, &parts)
}

fn parts_of(path: &Path) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir | Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts)
}

/// Resolves the links in the folders that an absolute pattern names without `*`.
fn resolve_beginning(pattern: &str) -> String {
    if !pattern.starts_with('/') {
        return pattern.to_owned();
    }
    let star = pattern.find('*').unwrap_or(pattern.len());
    let fixed = match star < pattern.len() {
        true => pattern[..star].rfind('/').unwrap_or(0),
        false => pattern.len(),
    };
    let (mut folder, rest) = (Path::new(&pattern[..fixed]), &pattern[fixed..]);
    let mut missing = String::new();
    loop {
        if let Ok(real) = folder.canonicalize() {
            return format!("{}{missing}{rest}", real.to_string_lossy());
        }
        let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
            return pattern.to_owned();
        };
        missing = format!("/{}{missing}", name.to_string_lossy());
        folder = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Resource {
        Resource::Command(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn a_command_is_admitted_word_by_word() {
        for (pattern, words, admitted) in [
            ("git diff*", &["git", "diff"][..], true),
            ("git diff*", &["git", "diff", "--stat"], true),
            ("git diff*", &["git", "status"], false),
            ("git diff", &["git", "diff", "--stat"], false),
            ("git diff *", &["git", "diff"], true),
            ("git diff *", &["git", "diff", "a", "b"], true),
            ("git diff *", &["git", "difftool"], false),
            ("git diff*", &["git diff", "x"], false),
            ("git diff*", &["git diff; id"], false),
            ("git diff*", &["./git", "diff"], false),
            ("git diff*", &["sh", "-c", "git diff; id"], false),
            ("*", &["anything", "at", "all"], true),
        ] {
            assert_eq!(command(words).is_admitted_by(pattern), admitted, "{pattern} {words:?}");
        }
        let line = Resource::ShellLine("git diff; id".into());
        assert!(
            !line.is_admitted_by("git diff*") && !line.is_admitted_by("git*") && line.is_admitted_by("*")
        );
    }

    #[test]
    fn a_rule_stops_a_command_under_any_path_and_in_shell_lines() {
        for words in [
            &["rm", "-rf", "x"][..],
            &["/bin/rm", "x"],
            &["sh", "-c", "true; rm x"],
            &["bash", "-lc", "/bin/rm x"],
        ] {
            assert!(command(words).is_stopped_by("rm *"), "{words:?}");
        }
        for line in ["rm x", "true && rm x", "$(rm x)", "/bin/rm x", "X=1 rm x"] {
            assert!(Resource::ShellLine(line.into()).is_stopped_by("rm *"), "{line}");
        }
        assert!(!command(&["git", "rm", "x"]).is_stopped_by("rm *"));
        assert!(!Resource::ShellLine("echo farm".into()).is_stopped_by("rm *"));
    }

    #[test]
    fn a_path_is_compared_part_by_part() {
        for (pattern, path, admitted) in [
            ("*", "/a/b", true),
            ("/data", "/data", true),
            ("/data", "/data/a/b", true),
            ("/data", "/database/a", false),
            ("/data/*", "/data", false),
            ("/data/*", "/data/a/b", true),
            ("/data/*", "/database", false),
            ("/data*", "/database/a", true),
            ("/home/*/notes", "/home/ada/notes/x", true),
            ("/home/*/notes", "/home/ada/private/notes", false),
            ("*.md", "/x/y.md", true),
            ("*.md", "/x/y.mdx", false),
            ("*/.git/*", "/x/y/.git/config", true),
            ("*/.git/*", "/x/y/a.git/config", false),
            ("*/secret*", "/x/secret.txt", true),
            ("/data/../etc/*", "/etc/passwd", false),
        ] {
            assert_eq!(Resource::Path(path.into()).is_admitted_by(pattern), admitted, "{pattern} {path}");
        }
    }

    #[test]
    fn the_links_of_a_pattern_are_resolved() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        let pattern = format!("{}/*", folder.path().join("link").display());
        assert!(Resource::Path(real.join("file")).is_admitted_by(&pattern));
        let missing = format!("{}/none/*", folder.path().join("link").display());
        assert!(Resource::Path(real.join("none/file")).is_admitted_by(&missing));
    }
}
