//! Stops the main thread of a process with ptrace, or makes it spin, while its other threads keep running.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Holds the main thread of a process until this is dropped or the process exits.
pub struct HeldThread {
    release: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HeldThread {
    /// Returns once the thread has stopped.
    pub fn hold(process: Pid) -> HeldThread {
        let release = Arc::new(AtomicBool::new(false));
        let (released, (stopped, confirmed)) = (Arc::clone(&release), channel());
        // ptrace binds the tracee to the tracing thread: when that exits, the tracee continues.
        let thread = std::thread::spawn(move || {
            stop(process);
            stopped.send(()).unwrap();
            while !released.load(Ordering::Relaxed) && !has_ended(process) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        confirmed.recv().expect("the thread has stopped");
        HeldThread { release, thread: Some(thread) }
    }
}

impl Drop for HeldThread {
    fn drop(&mut self) {
        self.release.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn stop(process: Pid) {
    ptrace::seize(process, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(process).unwrap();
    waitpid(process, Some(WaitPidFlag::__WALL)).unwrap();
}

/// The exit of a traced process is reported to the tracer before its parent, and the tracer must reap it.
fn has_ended(process: Pid) -> bool {
    match waitpid(process, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD | Errno::ESRCH) => true,
        Ok(_) | Err(_) => false,
    }
}

/// Makes the main thread of a process spin in an endless loop from now on.
#[cfg(target_arch = "x86_64")]
pub fn spin(process: Pid) {
    /// An instruction that jumps to itself (`jmp -2`), and the key of the program's entry point in the auxiliary
    /// vector.
    const SPIN: i64 = 0xfeeb;
    const ENTRY: u64 = 9;
    let vector = std::fs::read(format!("/proc/{process}/auxv")).unwrap();
    let words: Vec<u64> =
        vector.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let entry = words.chunks_exact(2).find(|pair| pair[0] == ENTRY).unwrap()[1];
    std::thread::spawn(move || {
        stop(process);
        // No thread executes the entry point again.
        ptrace::write(process, entry as ptrace::AddressType, SPIN).unwrap();
        let mut registers = ptrace::getregs(process).unwrap();
        // Prevents the restart of an interrupted system call.
        (registers.rip, registers.orig_rax) = (entry, u64::MAX);
        ptrace::setregs(process, registers).unwrap();
        ptrace::detach(process, None).unwrap();
    })
    .join()
    .unwrap();
}
