//! What is kept in the cache folder: packed files too large for memory, unpacked once, and the index of large sources.
//!
//! Several processes of a job come here at the same time. What is in the folder is complete: files are written under
//! another name and renamed. A lock lets one process unpack while the others wait, but a process that waited too long
//! goes on alone, so a stuck one cannot hold up the others.

use crate::eviction::make_room;
use crate::folder::Folder;
use crate::raw::unpack_failed;
use flate2::read::MultiGzDecoder;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};
use thalweg_core::{Error, Result, progress};

/// How long to wait for another process that unpacks the same file.
const PATIENCE: Duration = Duration::from_secs(300);

/// Changes when the form of stored indexes does.
const INDEX_FORMAT: &str = "thalweg index 3";

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    path: PathBuf,
    size: u64,
    modified: u128,
}

impl Identity {
    /// Of a file as it is now.
    pub(crate) fn of(path: &Path, file: &File) -> io::Result<Identity> {
        let metadata = file.metadata()?;
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Identity { path, size: metadata.len(), modified })
    }

    /// A name for the file, whatever its state.
    fn name(&self) -> String {
        hash(&[self.path.as_os_str().as_encoded_bytes()])
    }

    /// A name for this state of the file.
    fn state(&self) -> String {
        format!("{}-{}-{}", self.name(), self.size, self.modified)
    }
}

/// The unpacked copy of a file, if there is one already.
pub(crate) fn existing(identity: &Identity, folder: &Folder) -> Option<File> {
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

/// The unpacked copy of a packed file: the one that is there, or a new one.
pub(crate) fn unpacked(path: &Path, identity: &Identity, folder: &Folder) -> Result<File> {
    if let Some(file) = existing(identity, folder) {
        return Ok(file);
    }
    let failed = |error: &io::Error| {
        Error::io(format!("cannot unpack {} into {}", path.display(), folder.path().display()), error)
            .hint("choose a folder with enough space with data.cache, or unpack the file yourself")
    };
    let place = folder.make().map_err(|error| failed(&error))?;
    let lock =
        File::create(place.join(format!("{}.lock", identity.name()))).map_err(|error| failed(&error))?;
    wait_for(|| lock.try_lock());
    if let Some(file) = existing(identity, folder) {
        return Ok(file);
    }
    let temporary = Temporary::new(place, &identity.state());
    let most = folder.room();
    let length =
        unpack(path, &temporary.path, most, &failed)?.ok_or_else(|| too_large(path, folder, most))?;
    forget_older(identity, place);
    make_room(place, folder.limit().saturating_sub(length));
    let target = place.join(format!("{}-{length}.unpacked", identity.state()));
    fs::rename(&temporary.path, &target).map_err(|error| failed(&error))?;
    File::open(&target).map_err(|error| failed(&error))
}

/// Waits for whoever holds the lock, but not for ever. Where files cannot be locked there is nobody to wait for.
fn wait_for(mut try_lock: impl FnMut() -> Result<(), TryLockError>) {
    let start = Instant::now();
    while matches!(try_lock(), Err(TryLockError::WouldBlock)) && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A file that is larger than the cache folder may become, or than its disk has room for.
fn too_large(path: &Path, folder: &Folder, most: u64) -> Error {
    let (name, place, most) = (path.display(), folder.path().display(), most >> 20);
    Error::data(format!("{name} unpacks to more than {most} MiB, which is all there may be in {place}")).hint(
        "if it is not damaged, raise data.cache_limit, choose a folder on a larger disk with data.cache, \
         or unpack the file yourself",
    )
}

/// Unpacks a file and says how long it is; nothing if that is more than `most`.
fn unpack(
    path: &Path,
    target: &Path,
    most: u64,
    failed: &impl Fn(&io::Error) -> Error,
) -> Result<Option<u64>> {
    let name = path.display().to_string();
    let packed = File::open(path).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
    let mut from = MultiGzDecoder::new(BufReader::with_capacity(1 << 20, packed));
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
        if length > most {
            return Ok(None);
        }
        into.write_all(&buffer[..count]).map_err(|error| failed(&error))?;
    }
    // Only its length vouches for a copy: it must not outlive a power cut with zeros in it.
    let written = into.into_inner().map_err(|error| failed(error.error()))?;
    written.sync_all().map_err(|error| failed(&error))?;
    Ok(Some(length))
}

/// Removes unpacked copies of earlier states of the same file.
fn forget_older(identity: &Identity, folder: &Path) {
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

/// What a pass over large files found: read from the cache folder if the files and options are still the same, else
/// made now and kept. A folder that cannot be written costs only the time of the pass.
pub(crate) fn remembered<T: Serialize + DeserializeOwned>(
    identities: &[&Identity],
    options: &str,
    folder: &Folder,
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

/// A stored index; nothing if it is not there or damaged.
fn read_index<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = fs::read(path).ok()?;
    let (digest, body) = bytes.split_first_chunk::<32>()?;
    if Sha256::digest(body)[..] != digest[..] {
        return None;
    }
    postcard::from_bytes(body).ok()
}

fn write_index<T: Serialize>(folder: &Folder, name: &str, index: &T) -> Option<()> {
    let body = postcard::to_stdvec(index).ok()?;
    if body.len() as u64 > folder.limit() {
        return None;
    }
    let place = folder.make().ok()?;
    make_room(place, folder.limit() - body.len() as u64);
    let temporary = Temporary::new(place, "index");
    fs::write(&temporary.path, [&Sha256::digest(&body)[..], &body].concat()).ok()?;
    fs::rename(&temporary.path, place.join(name)).ok()
}

/// A name of its own, removed again unless the file was renamed.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn new(folder: &Path, name: &str) -> Temporary {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Temporary { path: folder.join(format!("{name}.{}-{count}.partial", std::process::id())) }
    }
}

impl Drop for Temporary {
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
    digest.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::tests::gzip;
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
            let identity = Identity::of(&path, &File::open(&path).unwrap()).unwrap();
            read(unpacked(&path, &identity, &Folder::at(&cache)).unwrap())
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
    fn a_file_that_unpacks_beyond_the_limit_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bomb.csv.gz");
        fs::write(&path, gzip(&vec![0; 8 << 20])).unwrap();
        let identity = Identity::of(&path, &File::open(&path).unwrap()).unwrap();
        let cache = folder.path().join("cache");
        let error = unpacked(&path, &identity, &Folder::at(&cache).limited_to(1 << 20)).unwrap_err();
        assert!(error.message.contains("bomb.csv.gz unpacks to more than 1 MiB"), "{error}");
        assert!(error.hint.unwrap().contains("data.cache_limit") && error.kind == thalweg_core::Kind::Data);
        assert!(files_in(&cache, ".unpacked").is_empty() && files_in(&cache, ".partial").is_empty());
        unpacked(&path, &identity, &Folder::at(&cache).limited_to(8 << 20)).unwrap();
    }

    #[test]
    fn a_damaged_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv.gz");
        let packed = gzip(&b"1,2\n".repeat(1000));
        fs::write(&path, &packed[..packed.len() - 10]).unwrap();
        let identity = Identity::of(&path, &File::open(&path).unwrap()).unwrap();
        let error = unpacked(&path, &identity, &Folder::at(folder.path())).unwrap_err();
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
        let identity = Identity::of(&path, &File::open(&path).unwrap()).unwrap();
        let cache = Folder::at(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(read(unpacked(&path, &identity, &cache).unwrap()), "one"));
            }
        });
        assert_eq!(files_in(folder.path(), ".unpacked").len(), 1);
    }

    #[test]
    fn only_a_lock_that_is_held_is_waited_for() {
        let mut answers = vec![Err(TryLockError::Error(io::ErrorKind::Unsupported.into()))];
        wait_for(|| answers.pop().expect("asked once"));
        let mut answers = vec![Ok(()), Err(TryLockError::WouldBlock), Err(TryLockError::WouldBlock)];
        wait_for(|| answers.pop().expect("asked until it is free"));
        assert!(answers.is_empty());
    }

    #[test]
    fn an_index_is_made_again_when_it_is_damaged_or_the_options_differ() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(&path, "x").unwrap();
        let identity = Identity::of(&path, &File::open(&path).unwrap()).unwrap();
        let made = Cell::new(0);
        let get = |options: &str| {
            let make = || {
                made.set(made.get() + 1);
                Ok(vec![1u64, 2, 3])
            };
            assert_eq!(
                remembered(&[&identity], options, &Folder::at(folder.path()), make).unwrap(),
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
