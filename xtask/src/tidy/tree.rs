//! The files of the repository as git sees them, read once.

use crate::command::{Outcome, output};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// One file; the path is relative to the root, with `/`.
pub struct File {
    pub path: String,
    pub bytes: u64,
    /// What it says, unless it is binary.
    pub text: Option<String>,
}

impl File {
    /// The name without folder and extension.
    pub fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.split_once('.').map_or(name, |(stem, _)| if stem.is_empty() { name } else { stem })
    }

    /// What stands behind the last dot of the name.
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// The folder it lies in; empty for the root.
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

    /// A tree made of texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).into(),
            bytes: text.len() as u64,
            text: Some((*text).into()),
        };
        Tree { files: files.iter().map(file).collect() }
    }

    /// The text of the file at that path.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path)?.text.as_deref()
    }

    /// Whether there is such a file, or a folder with files in it.
    pub fn holds(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }

    /// The text files with that extension.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a File, &'a str)> {
        let matching = self.files.iter().filter(move |file| file.extension() == extension);
        matching.filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// Every file that is not binary.
    pub fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.text.as_deref()?)))
    }
}

/// Nothing if it is not there: deleted and not yet committed, or a link to nowhere.
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
    fn names_are_taken_apart() {
        let tree = Tree::of(&[("a/b/one.test.rs", ""), (".gitignore", ""), ("LICENSE", "")]);
        let parts: Vec<_> =
            tree.files.iter().map(|file| (file.folder(), file.stem(), file.extension())).collect();
        assert_eq!(parts, [("a/b", "one", "rs"), ("", ".gitignore", "gitignore"), ("", "LICENSE", "")]);
    }

    #[test]
    fn folders_count_as_held() {
        let tree = Tree::of(&[("docs/guide/a.md", "")]);
        assert!(tree.holds("docs") && tree.holds("docs/guide/a.md"));
        assert!(!tree.holds("doc") && !tree.holds("docs/guide/b.md"));
    }
}
