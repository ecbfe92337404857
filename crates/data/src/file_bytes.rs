//! The bytes of one file, in memory or read by position.
//!
//! Files are not memory-mapped: a file that is truncated while in use must return an error instead of raising
//! SIGBUS. A file on disk must not change after it was opened, because the index holds offsets into it and a
//! resumed job must find the same rows. Each read therefore checks size and modification time.

use crate::checksum::Checksum;
use crate::disk_cache::folder::CacheFolder;
use crate::disk_cache::{self, FileIdentity};
use crate::disk_file::{CHUNK, DiskFile};
use flate2::read::MultiGzDecoder;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use thalweg_core::{Error, Kind, Result};

const KEEP_UNCHANGED: &str = "leave the file alone during training, or train on a copy";

/// Memory left for file contents, and the cache folder for files that do not fit.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    pub(crate) bytes: u64,
    pub(crate) cache: CacheFolder,
}

/// The uncompressed bytes of one file.
#[derive(Debug)]
pub(crate) struct FileBytes {
    name: String,
    /// `None` for embedded bytes.
    identity: Option<FileIdentity>,
    bytes: Storage,
}

#[derive(Debug)]
enum Storage {
    Memory(Arc<Vec<u8>>),
    Disk(DiskFile),
}

impl FileBytes {
    /// Opens a file, decompressing it if its name ends in `.gz`.
    pub(crate) fn open(path: &Path, budget: &mut MemoryBudget) -> Result<FileBytes> {
        let name = path.display().to_string();
        let failed = |error: &io::Error| Error::io(format!("cannot read {name}"), error);
        let file = File::open(path).map_err(|error| failed(&error))?;
        let identity = FileIdentity::of(path, &file).map_err(|error| failed(&error))?;
        let len = file.metadata().map_err(|error| failed(&error))?.len();
        let compressed = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        let bytes = if compressed {
            open_compressed(path, &file, &identity, budget)?
        } else if len <= budget.bytes {
            let mut whole = Vec::with_capacity(len as usize);
            // One byte beyond the expected size: a file that grows meanwhile must not exhaust memory.
            (&file).take(len + 1).read_to_end(&mut whole).map_err(|error| failed(&error))?;
            if whole.len() as u64 != len {
                return Err(Error::data(format!("{name} changed while it was read")).hint(KEEP_UNCHANGED));
            }
            Storage::Memory(Arc::new(whole))
        } else {
            Storage::Disk(DiskFile::new(file).map_err(|error| failed(&error))?)
        };
        if let Storage::Memory(bytes) = &bytes {
            budget.bytes = budget.bytes.saturating_sub(bytes.len() as u64);
        }
        Ok(FileBytes { name, identity: Some(identity), bytes })
    }

    /// An open file read by position; of a gz file, its uncompressed copy.
    pub(crate) fn on_disk(name: &str, identity: FileIdentity, file: File) -> Result<FileBytes> {
        let disk = DiskFile::new(file).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
        Ok(FileBytes { name: name.into(), identity: Some(identity), bytes: Storage::Disk(disk) })
    }

    /// gz data compiled into the binary.
    pub(crate) fn embedded(name: &str, compressed: &[u8]) -> Result<FileBytes> {
        let mut bytes = Vec::new();
        MultiGzDecoder::new(compressed)
            .read_to_end(&mut bytes)
            .map_err(|error| unpack_failed(name, &error))?;
        Ok(FileBytes { name: name.into(), identity: None, bytes: Storage::Memory(Arc::new(bytes)) })
    }

    /// The file name as given by the user.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.bytes {
            Storage::Memory(bytes) => bytes.len() as u64,
            Storage::Disk(disk) => disk.len,
        }
    }

    pub(crate) fn identity(&self) -> Option<&FileIdentity> {
        self.identity.as_ref()
    }

    /// Whether every read goes to disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self.bytes, Storage::Disk(_))
    }

    /// Bytes of a range as they were when the file was opened; the range must lie within the file.
    pub(crate) fn slice(&self, range: Range<u64>) -> Result<ByteSlice> {
        match &self.bytes {
            Storage::Memory(bytes) => {
                let range = range.start as usize..range.end as usize;
                Ok(ByteSlice { buffer: bytes.clone(), range, shared: true })
            }
            Storage::Disk(disk) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                disk.read(&mut bytes, range.start).map_err(|error| self.failed(&error))?;
                self.check_unchanged()?;
                let range = 0..bytes.len();
                Ok(ByteSlice { buffer: Arc::new(bytes), range, shared: false })
            }
        }
    }

    /// The checksum of the uncompressed bytes, independent of storage and compression.
    pub(crate) fn checksum(&self) -> Result<u32> {
        match &self.bytes {
            Storage::Memory(bytes) => Ok(Checksum::of(bytes)),
            Storage::Disk(disk) => disk.checksum().map_err(|error| self.failed(&error)),
        }
    }

    /// Reads from `position` to the end.
    pub(crate) fn reader(&self, position: u64) -> FileBytesReader<'_> {
        FileBytesReader { raw: self, position }
    }

    /// Line number, from 1, of the record at an offset; blank lines before the record are skipped.
    pub(crate) fn line(&self, offset: u64) -> Result<u64> {
        let mut line = 1;
        let mut position = 0;
        while position < self.len() {
            let end = (position + CHUNK as u64).min(self.len());
            let bytes = self.slice(position..end)?;
            let before = (offset.saturating_sub(position) as usize).min(bytes.len());
            line += memchr::memchr_iter(b'\n', &bytes[..before]).count() as u64;
            for &byte in &bytes[before..] {
                match byte {
                    b'\n' => line += 1,
                    b'\r' => {}
                    _ => return Ok(line),
                }
            }
            position = end;
        }
        Ok(line)
    }

    /// Returns an error if the file has changed since it was opened. After a read: the bytes read are valid.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match &self.bytes {
            Storage::Disk(disk) if disk.has_changed().map_err(|error| self.failed(&error))? => {
                Err(self.changed_error())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn changed_error(&self) -> Error {
        Error::data(format!("{} changed while it was read", self.name)).hint(KEEP_UNCHANGED)
    }

    fn failed(&self, error: &io::Error) -> Error {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Error::new(Kind::Io, format!("{} became shorter while it was read", self.name))
                .hint(KEEP_UNCHANGED);
        }
        Error::io(format!("cannot read {}", self.name), error)
    }
}

/// Opens a gz file in memory if it fits, else its copy in the cache folder.
fn open_compressed(
    path: &Path,
    file: &File,
    identity: &FileIdentity,
    budget: &MemoryBudget,
) -> Result<Storage> {
    let name = path.display().to_string();
    let large =
        |file: File| DiskFile::new(file).map_err(|error| Error::io(format!("cannot read {name}"), &error));
    match disk_cache::find_unpacked(identity, &budget.cache).map(large).transpose()? {
        Some(disk) if disk.len > budget.bytes => return Ok(Storage::Disk(disk)),
        _ => {}
    }
    match unpack(file, budget.bytes).map_err(|error| unpack_failed(&name, &error))? {
        Some(bytes) => Ok(Storage::Memory(Arc::new(bytes))),
        None => disk_cache::unpack_cached(path, identity, &budget.cache).and_then(large).map(Storage::Disk),
    }
}

/// Decompresses a file; `None` if it exceeds the limit.
fn unpack(file: &File, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    MultiGzDecoder::new(io::BufReader::with_capacity(CHUNK, file))
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

pub(crate) fn unpack_failed(name: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::data(format!("{name} is incomplete: it ends in the middle of the packed data"))
                .hint("copy or download it again")
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            Error::data(format!("{name} is not a valid gzip file: {error}"))
                .hint("copy or download it again, or rename it if it is not packed")
        }
        _ => Error::io(format!("cannot read {name}"), error),
    }
}

/// Sequential reader over [`FileBytes`].
pub(crate) struct FileBytesReader<'a> {
    raw: &'a FileBytes,
    position: u64,
}

impl Read for FileBytesReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.raw.len().saturating_sub(self.position).min(buffer.len() as u64) as usize;
        match &self.raw.bytes {
            Storage::Memory(bytes) => {
                let start = self.position as usize;
                buffer[..left].copy_from_slice(&bytes[start..start + left]);
            }
            Storage::Disk(disk) => {
                disk.read(&mut buffer[..left], self.position)?;
            }
        }
        self.position += left as u64;
        Ok(left)
    }
}

/// A range of bytes, shared with a file in memory or owned.
#[derive(Clone)]
pub(crate) struct ByteSlice {
    buffer: Arc<Vec<u8>>,
    range: Range<usize>,
    shared: bool,
}

impl ByteSlice {
    /// Memory released when the slice is dropped.
    pub(crate) fn owned_bytes(&self) -> usize {
        if self.shared { 0 } else { self.range.len() }
    }
}

impl Deref for ByteSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl fmt::Debug for ByteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.range.len())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;
    use std::time::SystemTime;

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn budget(bytes: u64) -> MemoryBudget {
        MemoryBudget { bytes, cache: CacheFolder::at("no folder at all") }
    }

    #[test]
    fn bytes_are_the_same_in_memory_and_by_position() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"0123456789").unwrap();
        for limit in [0, 100] {
            let raw = FileBytes::open(&path, &mut budget(limit)).unwrap();
            assert_eq!(raw.is_on_disk(), limit == 0);
            assert_eq!(&*raw.slice(3..7).unwrap(), b"3456");
            assert_eq!(raw.checksum().unwrap(), Checksum::of(b"0123456789"));
            let mut rest = String::new();
            raw.reader(8).read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "89");
        }
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"0123456789").unwrap();
        let raw = FileBytes::open(&path, &mut budget(0)).unwrap();
        std::fs::write(&path, b"01").unwrap();
        assert!(raw.slice(3..7).unwrap_err().message.contains("became shorter"));
    }

    #[test]
    fn a_file_edited_in_place_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"0123456789").unwrap();
        let raw = FileBytes::open(&path, &mut budget(0)).unwrap();
        let kept = FileBytes::open(&path, &mut budget(100)).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(1);
        std::fs::write(&path, b"012x456789").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let error = raw.slice(3..7).unwrap_err();
        assert!(error.message.ends_with("a.csv changed while it was read"), "{error}");
        assert!(raw.check_unchanged().is_err() && kept.check_unchanged().is_ok());
        assert_eq!(&*kept.slice(3..7).unwrap(), b"3456", "what is in memory stays");
    }

    #[test]
    fn a_truncated_or_invalid_gz_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv.gz");
        let packed = gzip(&b"1,2,3\n".repeat(1000));
        std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let error = FileBytes::open(&path, &mut budget(1 << 20)).unwrap_err();
        assert!(error.message.contains("a.csv.gz is incomplete"), "{error}");
        std::fs::write(&path, b"plain text, not packed at all").unwrap();
        let error = FileBytes::open(&path, &mut budget(1 << 20)).unwrap_err();
        assert!(error.message.contains("not a valid gzip file"), "{error}");
    }

    #[test]
    fn line_numbers_start_at_one_and_skip_blank_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"a\r\n\r\nb\nc").unwrap();
        for limit in [0, 100] {
            let raw = FileBytes::open(&path, &mut budget(limit)).unwrap();
            let lines: Vec<u64> = [0, 2, 3, 5, 7].iter().map(|&offset| raw.line(offset).unwrap()).collect();
            assert_eq!(lines, [1, 3, 3, 3, 4]);
        }
    }
}
