//! Shared memory segments of processes of one host (memfd). They have no name in any file system and are freed with
//! their last user.
//!
//! A segment is sealed before its descriptor is passed on. It can neither shrink nor grow, so that no access can end
//! in a bus error, and the segment of one owner can be mapped read-only by all others. A receiver verifies both
//! before it maps.

use super::machine::Machine;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Which processes may write to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Only the process that created it.
    Owner,
    All,
}

/// Fixed size, and no further seals.
const FIXED: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

impl Writers {
    fn seals(self) -> SealFlag {
        match self {
            Writers::Owner => FIXED | SealFlag::F_SEAL_FUTURE_WRITE,
            Writers::All => FIXED,
        }
    }
}

/// A mapped segment. Other processes change its contents at any time: it is accessed through pointers and atomics,
/// and code that makes slices of it must know that no process writes there meanwhile.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
}

// SAFETY: a segment is an address range that stays mapped until it is dropped; the users of its
// pointers are responsible for accesses to its contents.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new zeroed segment, populated and sealed, and the descriptor to pass on.
    pub fn create(length: usize, writers: Writers) -> io::Result<(Segment, OwnedFd)> {
        check_room(length, length)?;
        let descriptor = memfd_create("thalweg", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&descriptor, i64::try_from(length).map_err(io::Error::other)?)?;
        let segment = Segment::map(&descriptor, length, true)?;
        segment.advise_huge_pages();
        segment.populate(&descriptor)?;
        // The mapping made before the seal stays writable; later ones are not.
        fcntl(&descriptor, FcntlArg::F_ADD_SEALS(writers.seals()))?;
        Ok((segment, descriptor))
    }

    /// Maps a segment that another process created; an error unless it has the expected length and seals.
    pub fn attach(descriptor: &OwnedFd, length: usize, writers: Writers) -> io::Result<Segment> {
        let seals = SealFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GET_SEALS)?);
        let actual = fstat(descriptor)?.st_size;
        if !seals.contains(writers.seals()) || usize::try_from(actual) != Ok(length) {
            let what =
                format!("{actual} bytes of shared memory with seals {seals:?} are not the agreed segment");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let segment = Segment::map(descriptor, length, writers == Writers::All)?;
        segment.advise_huge_pages();
        Ok(segment)
    }

    fn map(descriptor: &OwnedFd, length: usize, writable: bool) -> io::Result<Segment> {
        let size = NonZeroUsize::new(length).ok_or(io::ErrorKind::InvalidInput)?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        // SAFETY: the kernel chooses a free range; nothing that exists is touched.
        let base = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, descriptor, 0)? };
        Ok(Segment { base: base.cast(), length, writable })
    }

    /// Huge pages save time where the machine allows them for shared memory; elsewhere the call has no effect.
    fn advise_huge_pages(&self) {
        // SAFETY: advice on our own mapping; it changes no contents.
        let _ = unsafe { madvise(self.base.cast(), self.length, MmapAdvise::MADV_HUGEPAGE) };
    }

    /// Allocates all pages now: a lack of memory is an error here and would be a signal later.
    fn populate(&self, descriptor: &OwnedFd) -> io::Result<()> {
        // SAFETY: it only makes pages of our own mapping present and changes no contents.
        let made = unsafe { madvise(self.base.cast(), self.length, MmapAdvise::MADV_POPULATE_WRITE) };
        match made {
            Err(Errno::EINVAL) => {
                // Before Linux 5.14.
                Ok(fallocate(descriptor.as_fd(), FallocateFlags::empty(), 0, self.length as i64)?)
            }
            result => Ok(result?),
        }
    }

    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// In bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The counter at this byte offset, below [`COUNTER_BYTES`]. To store to it the segment must be writable.
    pub(crate) fn counter(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= COUNTER_BYTES.min(self.length),
            "a counter of the segment"
        );
        // SAFETY: aligned and inside the mapping, which lives as long as the borrow; all other data begins behind
        // `COUNTER_BYTES`, so that every process accesses this place only through an atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The first words of the segment as counters. To store to them the segment must be writable.
    ///
    /// # Safety
    /// No process may access these words in another way.
    pub(crate) unsafe fn counters(&self, count: usize) -> &[AtomicU64] {
        assert!(count <= self.length / size_of::<AtomicU64>(), "inside the segment");
        // SAFETY: inside the mapping, which begins at a page and lives as long as the borrow; an atomic has the layout of
        // its integer; the rest is up to the caller.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), count) }
    }
}

/// Bytes at the beginning of a segment that hold only counters.
pub(crate) const COUNTER_BYTES: usize = 4096;

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it outlives the segment.
        let _ = unsafe { munmap(self.base.cast(), self.length) };
    }
}

/// Refuses segments if the longest one, or the total of all ranks of this machine, does not fit, before the kernel
/// has to kill a process for lack of memory.
pub fn check_room(longest: usize, total: usize) -> io::Result<()> {
    // Past this limit the kernel refuses, or ends a process that does not ignore its signal.
    let (files, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if longest as u64 > files {
        let what = format!(
            "{} KiB of shared memory are more than the {} KiB that a file may have here (ulimit -f)",
            longest >> 10,
            files >> 10
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    check_memory(total, &Machine::read())
}

fn check_memory(total: usize, machine: &Machine) -> io::Result<()> {
    let limits = [machine.memory_available, machine.memory_limit];
    match limits.into_iter().flatten().min() {
        Some(room) if total as u64 > room => {
            let what = format!(
                "{} MiB of shared memory are more than the {} MiB this machine can give",
                total >> 20,
                room >> 20
            );
            Err(io::Error::new(io::ErrorKind::OutOfMemory, what))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::sync::atomic::Ordering;

    #[test]
    fn others_read_the_owners_segment_and_cannot_write_it() {
        let (mine, descriptor) = Segment::create(8192, Writers::Owner).unwrap();
        let theirs = Segment::attach(&descriptor, 8192, Writers::Owner).unwrap();
        mine.counter(COUNTER_BYTES - 8).store(7, Ordering::Release);
        assert_eq!(theirs.counter(COUNTER_BYTES - 8).load(Ordering::Acquire), 7);
        assert!(mine.is_writable() && !theirs.is_writable());
        assert!(Segment::map(&descriptor, 8192, true).is_err(), "sealed against writers");
        assert!(File::from(descriptor).write_all(&[1]).is_err(), "sealed against writers");
    }

    #[test]
    fn its_size_is_fixed() {
        let (_mine, descriptor) = Segment::create(8192, Writers::All).unwrap();
        assert!(ftruncate(&descriptor, 4096).is_err() && ftruncate(&descriptor, 16384).is_err());
        assert!(Segment::attach(&descriptor, 8192, Writers::All).unwrap().is_writable());
    }

    #[test]
    fn segments_without_seals_or_of_another_size_are_refused() {
        let unsealed = memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        assert!(Segment::attach(&unsealed, 4096, Writers::All).is_err());
        let (_common, descriptor) = Segment::create(4096, Writers::All).unwrap();
        assert!(Segment::attach(&descriptor, 4096, Writers::Owner).is_err(), "others could write to it");
        assert!(Segment::attach(&descriptor, 8192, Writers::All).is_err());
    }

    #[test]
    fn more_memory_than_available_is_an_error() {
        let error = Segment::create(1 << 60, Writers::All).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        let limited = Machine { memory_limit: Some(10 << 20), ..Machine::default() };
        assert!(check_memory(10 << 20, &limited).is_ok());
        let message = check_memory(20 << 20, &limited).unwrap_err().to_string();
        assert_eq!(message, "20 MiB of shared memory are more than the 10 MiB this machine can give");
        assert!(check_room(4096, 4096).is_ok());
        let error = check_room(4096, 1 << 60).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "each fits, the total does not");
    }
}
