//! The files of the repository as git sees them, read once.

use crate::command::{Outcome, output};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A file; the path is relative to the root, with `/`.
pub struct File {
    pub path: String,
    pub bytes: u64,
    /// None for binary files.
    pub text: Option<String>,
}

impl File {
    /// The name without folder and extension.
    pub fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.split_once('.').map_or(name, |(stem, _)| if stem.is_empty() { name } else { stem })
    }

    /// The part of the name after its last dot.
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Its folder; empty for the root.
    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }
}

/// All files, sorted by path.
pub struct Tree {
    pub files: Vec<File>,
}

impl Tree {
    /// Reads what is tracked, or untracked and not ignored.
    pub fn read(root: &Path) -> Outcome<Tree> {
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let listed = String::from_utf8_lossy(&output(&mut list)?).into_owned();
        let paths: BTreeSet<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
        let files = paths.into_iter().filter_map(|path| read_file(root, path)).collect();
        Ok(Tree { files })
    }

    /// A tree of the given texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).into(),
            bytes: text.len() as u64,
            text: Some((*text).into()),
        };
        Tree { files: files.iter().map(file).collect() }
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path)?.text.as_deref()
    }

    /// Whether there is such a file or folder.
    pub fn holds(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }

    /// The text files with that extension.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a File, &'a str)> {
        let matching = self.files.iter().filter(move |file| file.extension() == extension);
        matching.filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// All text files.
    pub fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.text.as_deref()?)))
    }
}

/// None if it cannot be read: deleted and not yet committed, or a broken link.
fn read_file(root: &Path, path: &str) -> Option<File> {
    let content = fs::read(root.join(path)).ok()?;
    let bytes = content.len() as u64;
    let text = String::from_utf8(content).ok().filter(|text| !text.contains('\0'));
    Some(File { path: path.into(), bytes, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_into_folder_stem_and_extension() {
        let tree = Tree::of(&[("a/b/one.test.rs", ""), (".gitignore", ""), ("LICENSE", "")]);
        let parts: Vec<_> =
            tree.files.iter().map(|file| (file.folder(), file.stem(), file.extension())).collect();
        assert_eq!(parts, [("a/b", "one", "rs"), ("", ".gitignore", "gitignore"), ("", "LICENSE", "")]);
    }

    #[test]
    fn folders_are_held() {
        let tree = Tree::of(&[("docs/guide/a.md", "")]);
        assert!(tree.holds("docs") && tree.holds("docs/guide/a.md"));
        assert!(!tree.holds("doc") && !tree.holds("docs/guide/b.md"));
    }
}
