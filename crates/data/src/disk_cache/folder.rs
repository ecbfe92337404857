//! The cache folder: its location, and whether its content can be trusted.
//!
//! A folder named by the job or inside the user's home is used as it is. Without a home the cache lies in the
//! temporary folder, which is writable by every user: there it is one folder per user with mode 0700, and a
//! folder owned by another user is refused.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A folder that is created on first write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CacheFolder {
    path: PathBuf,
    /// The required owner, if the parent folder is writable by every user.
    owner: Option<u32>,
    /// Maximum bytes in the folder.
    limit: u64,
}

impl CacheFolder {
    /// A folder that is trusted without an ownership check.
    pub(crate) fn at(path: impl Into<PathBuf>) -> CacheFolder {
        CacheFolder { path: path.into(), owner: None, limit: u64::MAX }
    }

    pub(crate) fn with_limit(self, limit: u64) -> CacheFolder {
        CacheFolder { limit, ..self }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Maximum size of one file. A tenth of the free disk space stays unused.
    pub(crate) fn max_file_bytes(&self) -> u64 {
        let free = nix::sys::statvfs::statvfs(&self.path)
            .map_or(u64::MAX, |disk| disk.blocks_available().saturating_mul(disk.fragment_size()) / 10 * 9);
        free.min(self.limit)
    }

    /// The folder named by the job, or the user's.
    pub(crate) fn choose(requested: Option<&str>) -> CacheFolder {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        requested.map_or_else(|| CacheFolder::of_user(variable, &std::env::temp_dir()), CacheFolder::at)
    }

    fn of_user(variable: impl Fn(&str) -> Option<PathBuf>, temporary: &Path) -> CacheFolder {
        let variable = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
        let home = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        match (home, user()) {
            (Some(home), _) => CacheFolder::at(home.join("thalweg")),
            (None, user) => {
                let path = temporary.join(format!("thalweg-{user}"));
                CacheFolder { owner: Some(user), ..CacheFolder::at(path) }
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder, if it exists and is trusted.
    pub(crate) fn existing(&self) -> Option<&Path> {
        self.check().ok().map(|()| self.path.as_path())
    }

    /// Creates the folder if needed; an error if it is not trusted.
    pub(crate) fn create(&self) -> io::Result<&Path> {
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
        // Without following a link: its target is chosen by the owner of the link.
        let found = fs::symlink_metadata(&self.path)?;
        if found.is_dir() && found.uid() == owner && found.mode() & 0o077 == 0 {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::PermissionDenied, "it is not a folder of this user alone (mode 0700)"))
    }
}

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
            CacheFolder::of_user(variable, Path::new("/t"))
        };
        assert_eq!(of(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), CacheFolder::at("/c/thalweg"));
        assert_eq!(of(&[("XDG_CACHE_HOME", ""), ("HOME", "/h")]), CacheFolder::at("/h/.cache/thalweg"));
        for without in [of(&[]), of(&[("HOME", "")])] {
            assert_eq!(without.owner, Some(user()));
            assert_eq!(without.path, Path::new("/t").join(format!("thalweg-{}", user())));
        }
    }

    #[test]
    fn a_folder_in_the_temporary_folder_must_be_private() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = CacheFolder::of_user(|_| None, temporary.path());
        assert_eq!(folder.existing(), None);
        for _ in 0..2 {
            assert_eq!(folder.create().unwrap(), folder.path());
            assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
        }
        assert!(folder.existing().is_some());

        let foreign = CacheFolder { owner: Some(user() + 1), ..folder.clone() };
        assert!(foreign.existing().is_none());
        assert!(foreign.create().unwrap_err().to_string().contains("this user alone"));

        fs::set_permissions(folder.path(), Permissions::from_mode(0o770)).unwrap();
        assert!(folder.existing().is_none() && folder.create().is_err(), "others may write to it");

        fs::remove_dir(folder.path()).unwrap();
        let elsewhere = temporary.path().join("elsewhere");
        DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path()).unwrap();
        assert!(folder.existing().is_none() && folder.create().is_err(), "a link leads anywhere");
    }
}
