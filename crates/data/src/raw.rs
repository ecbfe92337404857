//! The bytes of one file: in memory, or read by position.
//!
//! Files are never mapped: one that shrinks while it is read must give an error, not end the process. What is read by
//! position must stay as it was when it was opened: the index says where rows stand, and a job that resumes must find
//! the same ones. So each read looks whether size and time of change are still the same.

use crate::checksum::Checksum;
use crate::folder::Folder;
use crate::spool::{self, Identity};
use flate2::read::MultiGzDecoder;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use thalweg_core::{Error, Kind, Result, progress};

/// Bytes read at once when a file is gone through from the start.
const CHUNK: usize = 1 << 20;

/// What to do about a file that changes under a job.
const LEAVE_ALONE: &str = "leave the file alone during training, or train on a copy";

/// How much may still be kept in memory, and the folder for what does not fit.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: u64,
    pub(crate) cache: Folder,
}

/// The bytes of one file, unpacked.
#[derive(Debug)]
pub(crate) struct Raw {
    name: String,
    /// Which state of which file; embedded bytes have none.
    identity: Option<Identity>,
    bytes: Bytes,
}

/// Where the bytes are.
#[derive(Debug)]
enum Bytes {
    Memory(Arc<Vec<u8>>),
    File(Streamed),
}

/// A file that is read by position, and its state when it was opened.
#[derive(Debug)]
struct Streamed {
    file: File,
    len: u64,
    modified: SystemTime,
    /// Of what has been read so far; the pass over the rows, which reads everything, brings it to the end.
    checksum: Mutex<Checksum>,
}

impl Streamed {
    fn new(file: File) -> io::Result<Streamed> {
        let metadata = file.metadata()?;
        Ok(Streamed { len: metadata.len(), modified: metadata.modified()?, file, checksum: Mutex::default() })
    }

    /// Fills a buffer from a place on.
    fn read(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, position)?;
        progress::advance();
        self.checksum.lock().unwrap_or_else(PoisonError::into_inner).follow(position, buffer);
        Ok(())
    }

    /// The checksum of all bytes; what nobody has read yet is read now.
    fn checksum(&self) -> io::Result<u32> {
        let mut buffer = Vec::new();
        loop {
            let (seen, value) = {
                let checksum = self.checksum.lock().unwrap_or_else(PoisonError::into_inner);
                (checksum.length(), checksum.value())
            };
            if seen >= self.len {
                return Ok(value);
            }
            buffer.resize((self.len - seen).min(CHUNK as u64) as usize, 0);
            self.read(&mut buffer, seen)?;
        }
    }

    /// Whether it is no longer what it was.
    fn changed(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        Ok(metadata.len() != self.len || metadata.modified()? != self.modified)
    }
}

impl Raw {
    /// Opens a file, unpacking it if its name ends in `.gz`.
    pub(crate) fn open(path: &Path, budget: &mut Budget) -> Result<Raw> {
        let name = path.display().to_string();
        let failed = |error: &io::Error| Error::io(format!("cannot read {name}"), error);
        let file = File::open(path).map_err(|error| failed(&error))?;
        let identity = Identity::of(path, &file).map_err(|error| failed(&error))?;
        let len = file.metadata().map_err(|error| failed(&error))?.len();
        let packed = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        let bytes = if packed {
            open_packed(path, &file, &identity, budget)?
        } else if len <= budget.bytes {
            let mut whole = Vec::with_capacity(len as usize);
            // One byte more than there should be: a file that grows meanwhile must not fill the memory.
            (&file).take(len + 1).read_to_end(&mut whole).map_err(|error| failed(&error))?;
            if whole.len() as u64 != len {
                return Err(Error::data(format!("{name} changed while it was read")).hint(LEAVE_ALONE));
            }
            Bytes::Memory(Arc::new(whole))
        } else {
            Bytes::File(Streamed::new(file).map_err(|error| failed(&error))?)
        };
        if let Bytes::Memory(bytes) = &bytes {
            budget.bytes = budget.bytes.saturating_sub(bytes.len() as u64);
        }
        Ok(Raw { name, identity: Some(identity), bytes })
    }

    /// An open file whose rows somebody else reads, by position: unpacked, if it was packed.
    pub(crate) fn by_position(name: &str, identity: Identity, file: File) -> Result<Raw> {
        let streamed =
            Streamed::new(file).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
        Ok(Raw { name: name.into(), identity: Some(identity), bytes: Bytes::File(streamed) })
    }

    /// Packed bytes that came with the program.
    pub(crate) fn embedded(name: &str, packed: &[u8]) -> Result<Raw> {
        let mut bytes = Vec::new();
        MultiGzDecoder::new(packed).read_to_end(&mut bytes).map_err(|error| unpack_failed(name, &error))?;
        Ok(Raw { name: name.into(), identity: None, bytes: Bytes::Memory(Arc::new(bytes)) })
    }

    /// The file's name as the user wrote it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.len() as u64,
            Bytes::File(streamed) => streamed.len,
        }
    }

    /// Which state of which file this is.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Whether the bytes are read from disk each time.
    pub(crate) fn streams(&self) -> bool {
        matches!(self.bytes, Bytes::File(_))
    }

    /// Some of the bytes, as they were when the file was opened; the range must lie inside.
    pub(crate) fn slice(&self, range: Range<u64>) -> Result<Slice> {
        match &self.bytes {
            Bytes::Memory(bytes) => {
                let range = range.start as usize..range.end as usize;
                Ok(Slice { buffer: bytes.clone(), range, shared: true })
            }
            Bytes::File(streamed) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                streamed.read(&mut bytes, range.start).map_err(|error| self.failed(&error))?;
                self.check_unchanged()?;
                let range = 0..bytes.len();
                Ok(Slice { buffer: Arc::new(bytes), range, shared: false })
            }
        }
    }

    /// The checksum of all bytes: the same in memory and by position, packed and not.
    pub(crate) fn checksum(&self) -> Result<u32> {
        match &self.bytes {
            Bytes::Memory(bytes) => Ok(Checksum::of(bytes)),
            Bytes::File(streamed) => streamed.checksum().map_err(|error| self.failed(&error)),
        }
    }

    /// Reads from a place to the end.
    pub(crate) fn reader(&self, position: u64) -> RawReader<'_> {
        RawReader { raw: self, position }
    }

    /// The line of the record at a place, counted from 1; blank lines before the record are passed over.
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

    /// Refuses a file that was changed since it was opened. After a read this means: what was read is still true.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match &self.bytes {
            Bytes::File(streamed) if streamed.changed().map_err(|error| self.failed(&error))? => {
                Err(self.changed())
            }
            _ => Ok(()),
        }
    }

    /// Something is not where it was.
    pub(crate) fn changed(&self) -> Error {
        Error::data(format!("{} changed while it was read", self.name)).hint(LEAVE_ALONE)
    }

    fn failed(&self, error: &io::Error) -> Error {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Error::new(Kind::Io, format!("{} became shorter while it was read", self.name))
                .hint(LEAVE_ALONE);
        }
        Error::io(format!("cannot read {}", self.name), error)
    }
}

/// A packed file: in memory if it fits, else its copy in the cache folder.
fn open_packed(path: &Path, file: &File, identity: &Identity, budget: &Budget) -> Result<Bytes> {
    let name = path.display().to_string();
    let large =
        |file: File| Streamed::new(file).map_err(|error| Error::io(format!("cannot read {name}"), &error));
    match spool::existing(identity, &budget.cache).map(large).transpose()? {
        Some(streamed) if streamed.len > budget.bytes => return Ok(Bytes::File(streamed)),
        _ => {}
    }
    match unpack(file, budget.bytes).map_err(|error| unpack_failed(&name, &error))? {
        Some(bytes) => Ok(Bytes::Memory(Arc::new(bytes))),
        None => spool::unpacked(path, identity, &budget.cache).and_then(large).map(Bytes::File),
    }
}

/// Unpacks a file unless it turns out larger than the limit.
fn unpack(file: &File, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    MultiGzDecoder::new(io::BufReader::with_capacity(CHUNK, file))
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

/// What is wrong with a packed file.
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

/// A `Raw` read in order.
pub(crate) struct RawReader<'a> {
    raw: &'a Raw,
    position: u64,
}

impl Read for RawReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.raw.len().saturating_sub(self.position).min(buffer.len() as u64) as usize;
        match &self.raw.bytes {
            Bytes::Memory(bytes) => {
                let start = self.position as usize;
                buffer[..left].copy_from_slice(&bytes[start..start + left]);
            }
            Bytes::File(streamed) => {
                streamed.read(&mut buffer[..left], self.position)?;
            }
        }
        self.position += left as u64;
        Ok(left)
    }
}

/// A stretch of bytes: a part of what is in memory, or its own.
#[derive(Clone)]
pub(crate) struct Slice {
    buffer: Arc<Vec<u8>>,
    range: Range<usize>,
    shared: bool,
}

impl Slice {
    /// Memory that would be free without it.
    pub(crate) fn own_bytes(&self) -> usize {
        if self.shared { 0 } else { self.range.len() }
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.range.len())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    /// Bytes packed as gzip.
    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn budget(bytes: u64) -> Budget {
        Budget { bytes, cache: Folder::at("no folder at all") }
    }

    #[test]
    fn bytes_are_the_same_in_memory_and_by_position() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"0123456789").unwrap();
        for limit in [0, 100] {
            let raw = Raw::open(&path, &mut budget(limit)).unwrap();
            assert_eq!(raw.streams(), limit == 0);
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
        let raw = Raw::open(&path, &mut budget(0)).unwrap();
        std::fs::write(&path, b"01").unwrap();
        assert!(raw.slice(3..7).unwrap_err().message.contains("became shorter"));
    }

    #[test]
    fn a_file_edited_in_place_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"0123456789").unwrap();
        let raw = Raw::open(&path, &mut budget(0)).unwrap();
        let kept = Raw::open(&path, &mut budget(100)).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(1);
        std::fs::write(&path, b"012x456789").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let error = raw.slice(3..7).unwrap_err();
        assert!(error.message.ends_with("a.csv changed while it was read"), "{error}");
        assert!(raw.check_unchanged().is_err() && kept.check_unchanged().is_ok());
        assert_eq!(&*kept.slice(3..7).unwrap(), b"3456", "what is in memory stays");
    }

    #[test]
    fn a_cut_or_foreign_gz_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv.gz");
        let packed = gzip(&b"1,2,3\n".repeat(1000));
        std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let error = Raw::open(&path, &mut budget(1 << 20)).unwrap_err();
        assert!(error.message.contains("a.csv.gz is incomplete"), "{error}");
        std::fs::write(&path, b"plain text, not packed at all").unwrap();
        let error = Raw::open(&path, &mut budget(1 << 20)).unwrap_err();
        assert!(error.message.contains("not a valid gzip file"), "{error}");
    }

    #[test]
    fn lines_are_counted_from_one_past_blank_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"a\r\n\r\nb\nc").unwrap();
        for limit in [0, 100] {
            let raw = Raw::open(&path, &mut budget(limit)).unwrap();
            let lines: Vec<u64> = [0, 2, 3, 5, 7].iter().map(|&offset| raw.line(offset).unwrap()).collect();
            assert_eq!(lines, [1, 3, 3, 3, 4]);
        }
    }
}
