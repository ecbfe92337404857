//! On-disk cache: uncompressed copies of gz files too large for memory, and the index of large sources.
//!
//! Several processes of a job use the folder at once. Every file in it is complete: files are written under a
//! temporary name and renamed. A lock lets one process decompress while the others wait; after a timeout a
//! process continues without the lock, so a stuck process cannot block the others.

pub(crate) mod eviction;
pub(crate) mod folder;

use crate::file_bytes::unpack_failed;
use eviction::evict_to;
use flate2::read::MultiGzDecoder;
use folder::CacheFolder;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};
use thalweg_core::{Error, Result, progress};

/// Maximum wait for another process that decompresses the same file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(300);

/// Changes with the format of stored indexes.
const INDEX_FORMAT: &str = "thalweg index 3";

/// Path, size and modification time: distinguishes versions of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    size: u64,
    modified: u128,
}

impl FileIdentity {
    pub(crate) fn of(path: &Path, file: &File) -> io::Result<FileIdentity> {
        let metadata = file.metadata()?;
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(FileIdentity { path, size: metadata.len(), modified })
    }

    /// A name for the path, independent of size and time.
    fn name(&self) -> String {
        hash(&[self.path.as_os_str().as_encoded_bytes()])
    }

    /// A name for this version of the file.
    fn state(&self) -> String {
        format!("{}-{}-{}", self.name(), self.size, self.modified)
    }
}

/// The uncompressed copy of a file, if the cache holds one.
pub(crate) fn find_unpacked(identity: &FileIdentity, folder: &CacheFolder) -> Option<File> {
    let prefix = format!("{}-", identity.state());
    for entry in fs::read_dir(folder.existing()?).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let length = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".unpacked"));
        let Some(length) = length.and_then(|length| length.parse::<u64>().ok()) else { continue };
        let file = File::open(entry.path()).ok()?;
        if file.metadata().ok()?.len() == length {
            return Some(file);
        }
    }
    None
}

/// The uncompressed copy of a gz file, created if the cache holds none.
pub(crate) fn unpack_cached(path: &Path, identity: &FileIdentity, folder: &CacheFolder) -> Result<File> {
    if let Some(file) = find_unpacked(identity, folder) {
        return Ok(file);
    }
    let failed = |error: &io::Error| {
        Error::io(format!("cannot unpack {} into {}", path.display(), folder.path().display()), error)
            .hint("choose a folder with enough space with data.cache, or unpack the file yourself")
    };
    let root = folder.create().map_err(|error| failed(&error))?;
    let lock =
        File::create(root.join(format!("{}.lock", identity.name()))).map_err(|error| failed(&error))?;
    wait_for_lock(|| lock.try_lock());
    if let Some(file) = find_unpacked(identity, folder) {
        return Ok(file);
    }
    let temporary = TemporaryFile::new(root, &identity.state());
    let limit = folder.max_file_bytes();
    let length =
        unpack(path, &temporary.path, limit, &failed)?.ok_or_else(|| too_large(path, folder, limit))?;
    remove_stale_copies(identity, root);
    evict_to(root, folder.limit().saturating_sub(length));
    let target = root.join(format!("{}-{length}.unpacked", identity.state()));
    fs::rename(&temporary.path, &target).map_err(|error| failed(&error))?;
    File::open(&target).map_err(|error| failed(&error))
}

/// Waits for the lock up to [`LOCK_TIMEOUT`]. Returns at once on file systems without locks.
fn wait_for_lock(mut try_lock: impl FnMut() -> Result<(), TryLockError>) {
    let start = Instant::now();
    while matches!(try_lock(), Err(TryLockError::WouldBlock)) && start.elapsed() < LOCK_TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn too_large(path: &Path, folder: &CacheFolder, limit: u64) -> Error {
    let (name, root, limit) = (path.display(), folder.path().display(), limit >> 20);
    Error::data(format!("{name} unpacks to more than {limit} MiB, the most that {root} may hold")).hint(
        "if it is not damaged, raise data.cache_limit, choose a folder on a larger disk with data.cache, \
         or unpack the file yourself",
    )
}

/// Decompresses a file and returns its size; `None` if that exceeds `limit`.
fn unpack(
    path: &Path,
    target: &Path,
    limit: u64,
    failed: &impl Fn(&io::Error) -> Error,
) -> Result<Option<u64>> {
    let name = path.display().to_string();
    let compressed = File::open(path).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
    let mut from = MultiGzDecoder::new(BufReader::with_capacity(1 << 20, compressed));
    let mut into = BufWriter::with_capacity(1 << 20, File::create(target).map_err(|error| failed(&error))?);
    let mut buffer = vec![0; 1 << 18];
    let mut length = 0;
    loop {
        let count = from.read(&mut buffer).map_err(|error| unpack_failed(&name, &error))?;
        if count == 0 {
            break;
        }
        length += count as u64;
        progress::advance();
        if length > limit {
            return Ok(None);
        }
        into.write_all(&buffer[..count]).map_err(|error| failed(&error))?;
    }
    // A copy is validated by its length only: without a sync, a power failure could leave zeros in it.
    let written = into.into_inner().map_err(|error| failed(error.error()))?;
    written.sync_all().map_err(|error| failed(&error))?;
    Ok(Some(length))
}

/// Removes uncompressed copies of earlier versions of the file.
fn remove_stale_copies(identity: &FileIdentity, folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".unpacked")
            && name.starts_with(&identity.name())
            && !name.starts_with(&identity.state())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The index of large files: loaded if files and options are unchanged, else built and stored. A folder that
/// cannot be written only costs the time of the pass.
pub(crate) fn cached_index<T: Serialize + DeserializeOwned>(
    identities: &[&FileIdentity],
    options: &str,
    folder: &CacheFolder,
    make: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let states: Vec<String> = identities.iter().map(|identity| identity.state()).collect();
    let mut parts = vec![INDEX_FORMAT.as_bytes(), options.as_bytes()];
    parts.extend(states.iter().map(|state| state.as_bytes()));
    let name = format!("{}.index", hash(&parts));
    if let Some(found) = folder.existing().and_then(|folder| read_index(&folder.join(&name))) {
        return Ok(found);
    }
    let made = make()?;
    let _ = write_index(folder, &name, &made);
    Ok(made)
}

/// A stored index; `None` if absent or damaged.
fn read_index<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = fs::read(path).ok()?;
    let (digest, body) = bytes.split_first_chunk::<32>()?;
    if Sha256::digest(body)[..] != digest[..] {
        return None;
    }
    postcard::from_bytes(body).ok()
}

fn write_index<T: Serialize>(folder: &CacheFolder, name: &str, index: &T) -> Option<()> {
    let body = postcard::to_stdvec(index).ok()?;
    if body.len() as u64 > folder.limit() {
        return None;
    }
    let root = folder.create().ok()?;
    evict_to(root, folder.limit() - body.len() as u64);
    let temporary = TemporaryFile::new(root, "index");
    fs::write(&temporary.path, [&Sha256::digest(&body)[..], &body].concat()).ok()?;
    fs::rename(&temporary.path, root.join(name)).ok()
}

/// A unique file name; the file is removed on drop unless it was renamed.
struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    fn new(folder: &Path, name: &str) -> TemporaryFile {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        TemporaryFile { path: folder.join(format!("{name}.{}-{count}.partial", std::process::id())) }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn hash(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    thalweg_core::hex::encode(&digest.finalize()[..12])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_bytes::tests::gzip;
    use std::cell::Cell;

    fn read(mut file: File) -> String {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }

    fn files_in(folder: &Path, ending: &str) -> Vec<PathBuf> {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_str().unwrap().ends_with(ending)).collect()
    }

    #[test]
    fn a_file_is_unpacked_once_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv.gz");
        let cache = folder.path().join("cache");
        let open = || {
            let identity = FileIdentity::of(&path, &File::open(&path).unwrap()).unwrap();
            read(unpack_cached(&path, &identity, &CacheFolder::at(&cache)).unwrap())
        };
        fs::write(&path, gzip(b"one")).unwrap();
        assert_eq!(open(), "one");
        let copy = files_in(&cache, ".unpacked").remove(0);
        fs::write(&copy, "tmp").unwrap();
        assert_eq!(open(), "tmp", "the copy is used");
        fs::write(&copy, "cut off").unwrap();
        assert_eq!(open(), "one", "a copy of the wrong length is not");
        fs::write(&path, gzip(b"another")).unwrap();
        assert_eq!(open(), "another");
        assert_eq!(files_in(&cache, ".unpacked").len(), 1, "the older copy is gone");
        assert!(files_in(&cache, ".partial").is_empty());
    }

    #[test]
    fn a_file_that_unpacks_beyond_the_limit_is_refused_and_leaves_no_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bomb.csv.gz");
        fs::write(&path, gzip(&vec![0; 8 << 20])).unwrap();
        let identity = FileIdentity::of(&path, &File::open(&path).unwrap()).unwrap();
        let cache = folder.path().join("cache");
        let error =
            unpack_cached(&path, &identity, &CacheFolder::at(&cache).with_limit(1 << 20)).unwrap_err();
        assert!(error.message.contains("bomb.csv.gz unpacks to more than 1 MiB"), "{error}");
        assert!(error.hint.unwrap().contains("data.cache_limit") && error.kind == thalweg_core::Kind::Data);
        assert!(files_in(&cache, ".unpacked").is_empty() && files_in(&cache, ".partial").is_empty());
        unpack_cached(&path, &identity, &CacheFolder::at(&cache).with_limit(8 << 20)).unwrap();
    }

    #[test]
    fn a_damaged_file_leaves_no_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv.gz");
        let packed = gzip(&b"1,2\n".repeat(1000));
        fs::write(&path, &packed[..packed.len() - 10]).unwrap();
        let identity = FileIdentity::of(&path, &File::open(&path).unwrap()).unwrap();
        let error = unpack_cached(&path, &identity, &CacheFolder::at(folder.path())).unwrap_err();
        assert!(error.message.contains("is incomplete"), "{error}");
        assert!(
            files_in(folder.path(), ".unpacked").is_empty() && files_in(folder.path(), ".partial").is_empty()
        );
    }

    #[test]
    fn many_threads_unpack_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv.gz");
        fs::write(&path, gzip(b"one")).unwrap();
        let identity = FileIdentity::of(&path, &File::open(&path).unwrap()).unwrap();
        let cache = CacheFolder::at(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(read(unpack_cached(&path, &identity, &cache).unwrap()), "one"));
            }
        });
        assert_eq!(files_in(folder.path(), ".unpacked").len(), 1);
    }

    #[test]
    fn waits_only_for_a_held_lock() {
        let mut answers = vec![Err(TryLockError::Error(io::ErrorKind::Unsupported.into()))];
        wait_for_lock(|| answers.pop().expect("asked once"));
        let mut answers = vec![Ok(()), Err(TryLockError::WouldBlock), Err(TryLockError::WouldBlock)];
        wait_for_lock(|| answers.pop().expect("asked until it is free"));
        assert!(answers.is_empty());
    }

    #[test]
    fn an_index_is_rebuilt_when_it_is_damaged_or_the_options_differ() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(&path, "x").unwrap();
        let identity = FileIdentity::of(&path, &File::open(&path).unwrap()).unwrap();
        let made = Cell::new(0);
        let get = |options: &str| {
            let make = || {
                made.set(made.get() + 1);
                Ok(vec![1u64, 2, 3])
            };
            assert_eq!(
                cached_index(&[&identity], options, &CacheFolder::at(folder.path()), make).unwrap(),
                [1, 2, 3]
            );
            made.get()
        };
        assert_eq!([get("a"), get("a"), get("b")], [1, 1, 2]);
        for index in files_in(folder.path(), ".index") {
            let mut bytes = fs::read(&index).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&index, bytes).unwrap();
        }
        assert_eq!([get("a"), get("b"), get("a")], [3, 4, 4]);
    }
}
