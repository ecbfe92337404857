//! What a debugger can do to a process: its main thread is held, or runs in a circle, while its other threads go on.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Holds the main thread of a process until it is dropped or the process has ended.
pub struct Held {
    release: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Held {
    /// Holds it, and returns once it stands still.
    pub fn hold(process: Pid) -> Held {
        let release = Arc::new(AtomicBool::new(false));
        let (released, (stands, told)) = (Arc::clone(&release), channel());
        // A debugger is one thread: what it holds goes on when that thread ends.
        let thread = std::thread::spawn(move || {
            stop(process);
            stands.send(()).unwrap();
            while !released.load(Ordering::Relaxed) && !has_ended(process) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        told.recv().expect("it stands still");
        Held { release, thread: Some(thread) }
    }
}

impl Drop for Held {
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

/// Whoever holds a process hears of its end before its parent does, and has to take note of it.
fn has_ended(process: Pid) -> bool {
    match waitpid(process, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD | Errno::ESRCH) => true,
        Ok(_) | Err(_) => false,
    }
}

/// From now on the main thread of a process runs in a circle, wherever it was, and does nothing else.
#[cfg(target_arch = "x86_64")]
pub fn spin(process: Pid) {
    /// The instruction that jumps to itself, and the entry of the auxiliary vector that says where a program began.
    const CIRCLE: i64 = 0xfeeb;
    const ENTRY: u64 = 9;
    let vector = std::fs::read(format!("/proc/{process}/auxv")).unwrap();
    let words: Vec<u64> =
        vector.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let entry = words.chunks_exact(2).find(|pair| pair[0] == ENTRY).unwrap()[1];
    std::thread::spawn(move || {
        stop(process);
        // No thread comes to the first instruction of the program again.
        ptrace::write(process, entry as ptrace::AddressType, CIRCLE).unwrap();
        let mut registers = ptrace::getregs(process).unwrap();
        // It does not go back into a system call.
        (registers.rip, registers.orig_rax) = (entry, u64::MAX);
        ptrace::setregs(process, registers).unwrap();
        ptrace::detach(process, None).unwrap();
    })
    .join()
    .unwrap();
}
