//! Links in paths that a sandbox grants. If an agent could replace a part of such a path by a link, the next agent that
//! starts would be granted the target of the link.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The most links that are followed in one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// Resolves the links of a path that exists. Returns `None` if one of them lies in a folder of `writable`: an agent may
/// have made it.
pub(super) fn resolve_unless_writable(path: &Path, writable: &[PathBuf]) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    let parts = |path: &Path| -> VecDeque<Part> { path.components().filter_map(Part::of).collect() };
    let mut rest = parts(path);
    let mut resolved = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        let Part::Name(name) = part else {
            resolved.pop();
            continue;
        };
        let next = resolved.join(name);
        if !fs::symlink_metadata(&next).ok()?.is_symlink() {
            resolved = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS || writable.iter().any(|folder| resolved.starts_with(folder)) {
            return None;
        }
        let target = fs::read_link(&next).ok()?;
        if target.is_absolute() {
            resolved = PathBuf::from("/");
        }
        let mut followed = parts(&target);
        followed.append(&mut rest);
        rest = followed;
    }
    Some(resolved)
}

/// Resolves the links of `base`, but none in `rest` below it. Returns `None` if the path does not exist or `rest` has a
/// link.
pub(super) fn resolve_base(base: &Path, rest: &Path) -> Option<PathBuf> {
    let path = base.canonicalize().ok()?.join(rest);
    let path: PathBuf = path.components().collect();
    (path.canonicalize().ok()? == path).then_some(path)
}

/// A part of a path.
enum Part {
    Name(OsString),
    Parent,
}

impl Part {
    fn of(component: Component<'_>) -> Option<Self> {
        match component {
            Component::Normal(name) => Some(Self::Name(name.to_owned())),
            Component::ParentDir => Some(Self::Parent),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_unless_an_agent_may_have_made_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("real/deep")).unwrap();
        fs::create_dir(root.join("work")).unwrap();
        symlink("real", root.join("link")).unwrap();
        symlink(root.join("real"), root.join("work/out")).unwrap();
        symlink(root.join("loop"), root.join("loop")).unwrap();
        let writable = [root.join("work")];
        let resolved = |path: &str| resolve_unless_writable(&root.join(path), &writable);
        assert_eq!(resolved("link/deep"), Some(root.join("real/deep")));
        assert_eq!(resolved("link/deep/../deep"), Some(root.join("real/deep")));
        assert_eq!(resolved("work"), Some(root.join("work")));
        for refused in ["work/out", "work/out/deep", "loop", "missing"] {
            assert_eq!(resolved(refused), None, "{refused}");
        }
        assert_eq!(resolve_unless_writable(Path::new("relative"), &[]), None);
    }

    #[test]
    fn no_link_below_a_base_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("home/.agent")).unwrap();
        symlink(root.join("home"), root.join("alias")).unwrap();
        symlink(&root, root.join("home/.link")).unwrap();
        let resolved = |rest: &str| resolve_base(&root.join("alias"), Path::new(rest));
        assert_eq!(resolved(".agent"), Some(root.join("home/.agent")));
        assert_eq!(resolved(""), Some(root.join("home")));
        for refused in [".link", ".link/home", "missing"] {
            assert_eq!(resolved(refused), None, "{refused}");
        }
    }
}
