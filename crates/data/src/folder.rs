//! The cache folder: which one it is, and whether what lies in it can be believed.
//!
//! A folder that the job names, or the one in the user's home, is taken as it is. Without a home there is only the
//! temporary folder, which everybody may write to: there it is one folder per user, readable by nobody else, and one
//! that somebody else made beforehand is refused.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A folder for what is made once and used again. It comes into being when something is put into it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Folder {
    path: PathBuf,
    /// The user that it must belong to, if it lies where everybody may write.
    owner: Option<u32>,
    /// The most bytes that stay in it.
    limit: u64,
}

impl Folder {
    /// This one, taken as it is.
    pub(crate) fn at(path: impl Into<PathBuf>) -> Folder {
        Folder { path: path.into(), owner: None, limit: u64::MAX }
    }

    /// The same with no more than so many bytes in it.
    pub(crate) fn limited_to(self, limit: u64) -> Folder {
        Folder { limit, ..self }
    }

    /// The most bytes that stay in it.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The most bytes that one file in it may have: a tenth of what is free on its disk is left to others.
    pub(crate) fn room(&self) -> u64 {
        let free = nix::sys::statvfs::statvfs(&self.path)
            .map_or(u64::MAX, |disk| disk.blocks_available().saturating_mul(disk.fragment_size()) / 10 * 9);
        free.min(self.limit)
    }

    /// The one that a job names, or the user's.
    pub(crate) fn choose(asked: Option<&str>) -> Folder {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        asked.map_or_else(|| Folder::of_user(variable, &std::env::temp_dir()), Folder::at)
    }

    fn of_user(variable: impl Fn(&str) -> Option<PathBuf>, temporary: &Path) -> Folder {
        let variable = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
        let home = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        match (home, user()) {
            (Some(home), _) => Folder::at(home.join("thalweg")),
            (None, user) => {
                let path = temporary.join(format!("thalweg-{user}"));
                Folder { owner: Some(user), ..Folder::at(path) }
            }
        }
    }

    /// Its path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder if it is there and can be believed.
    pub(crate) fn existing(&self) -> Option<&Path> {
        self.check().ok().map(|()| self.path.as_path())
    }

    /// The folder, made if it is not there.
    pub(crate) fn make(&self) -> io::Result<&Path> {
        let made = match self.owner {
            None => fs::create_dir_all(&self.path),
            Some(_) => DirBuilder::new().mode(0o700).create(&self.path),
        };
        match made {
            Err(error) if self.owner.is_none() || error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => self.check().map(|()| self.path.as_path()),
        }
    }

    fn check(&self) -> io::Result<()> {
        let Some(owner) = self.owner else { return Ok(()) };
        // Of the link, if it is one: where that leads is up to whoever made it.
        let found = fs::symlink_metadata(&self.path)?;
        if found.is_dir() && found.uid() == owner && found.mode() & 0o077 == 0 {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::PermissionDenied, "it is not a folder of this user alone (mode 0700)"))
    }
}

/// The user who runs this, by number.
fn user() -> u32 {
    nix::unistd::Uid::effective().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_users_own_folder_comes_before_the_temporary_one() {
        let of = |set: &[(&str, &str)]| {
            let variable = |name: &str| Some(set.iter().find(|(key, _)| *key == name)?.1.into());
            Folder::of_user(variable, Path::new("/t"))
        };
        assert_eq!(of(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), Folder::at("/c/thalweg"));
        assert_eq!(of(&[("XDG_CACHE_HOME", ""), ("HOME", "/h")]), Folder::at("/h/.cache/thalweg"));
        for without in [of(&[]), of(&[("HOME", "")])] {
            assert_eq!(without.owner, Some(user()));
            assert_eq!(without.path, Path::new("/t").join(format!("thalweg-{}", user())));
        }
    }

    #[test]
    fn in_the_temporary_folder_only_a_folder_of_ones_own_is_believed() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::of_user(|_| None, temporary.path());
        assert_eq!(folder.existing(), None);
        for _ in 0..2 {
            assert_eq!(folder.make().unwrap(), folder.path());
            assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
        }
        assert!(folder.existing().is_some());

        let foreign = Folder { owner: Some(user() + 1), ..folder.clone() };
        assert!(foreign.existing().is_none());
        assert!(foreign.make().unwrap_err().to_string().contains("this user alone"));

        fs::set_permissions(folder.path(), Permissions::from_mode(0o770)).unwrap();
        assert!(folder.existing().is_none() && folder.make().is_err(), "others may write to it");

        fs::remove_dir(folder.path()).unwrap();
        let elsewhere = temporary.path().join("elsewhere");
        DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path()).unwrap();
        assert!(folder.existing().is_none() && folder.make().is_err(), "a link leads anywhere");
    }
}
