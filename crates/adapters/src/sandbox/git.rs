//! The git directory of a working folder, which `git commit` writes to.
//!
//! In a linked worktree and in a submodule, `.git` is a file that names a directory elsewhere. An agent can write
//! that file, so the directory is accepted only if it names the working folder too. A symbolic link is not accepted.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the git directories of the repository that contains `folder`: its own and the one it shares with other
/// worktrees.
pub(super) fn folders(folder: &Path) -> Vec<PathBuf> {
    let kind = |path: PathBuf| Some((fs::symlink_metadata(&path).ok()?.file_type(), path));
    let Some((kind, dot_git)) = folder.ancestors().find_map(|parent| kind(parent.join(".git"))) else {
        return vec![];
    };
    if kind.is_symlink() {
        return vec![];
    }
    if kind.is_dir() {
        return if is_git_directory(&dot_git) { vec![dot_git] } else { vec![] };
    }
    let Some(named) = named_directory(&dot_git) else { return vec![] };
    worktree(&dot_git, &named).or_else(|| submodule(&dot_git, &named)).unwrap_or_default()
}

/// The directory that the file `.git` names.
fn named_directory(dot_git: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(dot_git).ok()?;
    let named = text.strip_prefix("gitdir:")?.trim();
    dot_git.parent()?.join(named).canonicalize().ok()
}

/// The directories of a linked worktree: the one below `worktrees`, and the common one above that.
fn worktree(dot_git: &Path, named: &Path) -> Option<Vec<PathBuf>> {
    let back = fs::read_to_string(named.join("gitdir")).ok()?;
    let names_folder = named.join(back.trim()).canonicalize().ok()? == dot_git.canonicalize().ok()?;
    let worktrees =
        named.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "worktrees"))?;
    let common = worktrees.parent().filter(|common| is_git_directory(common))?;
    names_folder.then(|| vec![named.to_owned(), common.to_owned()])
}

/// The directory of a submodule.
fn submodule(dot_git: &Path, named: &Path) -> Option<Vec<PathBuf>> {
    let config = fs::read_to_string(named.join("config")).ok()?;
    let value = config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "worktree").then(|| value.trim().to_owned())
    })?;
    let names_folder = named.join(value).canonicalize().ok()? == dot_git.parent()?.canonicalize().ok()?
        && is_git_directory(named);
    names_folder.then(|| vec![named.to_owned()])
}

fn is_git_directory(path: &Path) -> bool {
    path.join("HEAD").exists() && path.join("objects").is_dir() && path.join("refs").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the parts of a repository that the code inspects.
    fn make_git_directory(path: &Path) {
        fs::create_dir_all(path.join("objects")).unwrap();
        fs::create_dir_all(path.join("refs")).unwrap();
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    /// A folder without links in its path.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        (folder, real)
    }

    #[test]
    fn a_folder_within_a_repository_has_its_git_directory() {
        let (_kept, root) = folder();
        make_git_directory(&root.join(".git"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        assert_eq!(folders(&root), [root.join(".git")]);
        assert_eq!(folders(&root.join("a/b")), [root.join(".git")]);
    }

    #[test]
    fn a_linked_worktree_has_the_common_directory() {
        let (_kept, root) = folder();
        let (common, linked) = (root.join("main/.git"), root.join("linked"));
        make_git_directory(&common);
        let own = common.join("worktrees/linked");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir(&linked).unwrap();
        fs::write(own.join("gitdir"), format!("{}\n", linked.join(".git").display())).unwrap();
        fs::write(linked.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
        assert_eq!(folders(&linked), [own, common]);
    }

    #[test]
    fn a_submodule_has_its_directory() {
        let (_kept, root) = folder();
        let (own, module) = (root.join(".git/modules/m"), root.join("m"));
        make_git_directory(&own);
        fs::create_dir(&module).unwrap();
        fs::write(own.join("config"), "[core]\n\tworktree = ../../../m\n").unwrap();
        fs::write(module.join(".git"), "gitdir: ../.git/modules/m\n").unwrap();
        assert_eq!(folders(&module), [own]);
    }

    #[test]
    fn a_git_file_that_an_agent_forged_grants_nothing() {
        let (_kept, root) = folder();
        let (victim, work) = (root.join("other/.git"), root.join("work"));
        make_git_directory(&victim);
        fs::create_dir(&work).unwrap();
        for named in [&victim, &root.join("other")] {
            fs::write(work.join(".git"), format!("gitdir: {}\n", named.display())).unwrap();
            assert_eq!(folders(&work), [] as [PathBuf; 0], "{}", named.display());
        }
        fs::remove_file(work.join(".git")).unwrap();
        std::os::unix::fs::symlink(&victim, work.join(".git")).unwrap();
        assert_eq!(folders(&work), [] as [PathBuf; 0], "a link");
        fs::remove_file(work.join(".git")).unwrap();
        // A directory within the workspace that names the victim as its common directory.
        let forged = work.join("worktrees/x");
        fs::create_dir_all(&forged).unwrap();
        fs::write(forged.join("gitdir"), work.join(".git").display().to_string()).unwrap();
        fs::write(forged.join("commondir"), victim.display().to_string()).unwrap();
        fs::write(work.join(".git"), "gitdir: worktrees/x").unwrap();
        assert_eq!(folders(&work), [] as [PathBuf; 0]);
    }
}
