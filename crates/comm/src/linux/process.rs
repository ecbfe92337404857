//! Processes: pidfds, signals, and resource usage.

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigHandler, Signal, killpg, signal};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// A pidfd of another process on this host. Unlike a PID, it never comes to mean another process.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// The process at the other end of a socket; `None` if it is this one.
    pub fn of_peer(socket: &UnixStream) -> io::Result<Option<PidFd>> {
        let process = getsockopt(socket, PeerCredentials)?.pid();
        if process <= 0 || process == std::process::id() as i32 {
            return Ok(None);
        }
        PidFd::open(process).map(Some)
    }

    /// The parent process; `None` if it has exited already, or is init.
    pub fn of_parent() -> io::Result<Option<PidFd>> {
        let parent = std::os::unix::process::parent_id();
        if parent <= 1 {
            return Ok(None);
        }
        let pidfd = PidFd::open(parent as i32)?;
        // If the parent exited before the call, its PID may belong to another process.
        Ok((std::os::unix::process::parent_id() == parent).then_some(pidfd))
    }

    fn open(process: i32) -> io::Result<PidFd> {
        // SAFETY: the call takes two numbers and returns a new descriptor or an error.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created it, and nothing else owns it.
        Ok(PidFd(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }))
    }

    /// Sends SIGKILL and waits until the kernel confirms the exit; false on a timeout.
    pub fn kill(&self, timeout: Duration) -> bool {
        let none: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: the descriptor is open, and the call takes no memory of ours. An error means that it has exited
        // already.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, none, 0) };
        self.has_exited(PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX))
    }

    /// Waits without a timeout.
    pub fn wait_for_exit(&self) {
        while !self.has_exited(PollTimeout::NONE) {}
    }

    fn has_exited(&self, timeout: PollTimeout) -> bool {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut polled, timeout), Ok(count) if count > 0)
    }
}

/// The name of the parent process, as the kernel keeps it: 15 bytes at most.
pub fn parent_name() -> Option<String> {
    let path = format!("/proc/{}/comm", std::os::unix::process::parent_id());
    Some(std::fs::read_to_string(path).ok()?.trim_end().to_string())
}

/// The executable of this process, even if its path was replaced since.
pub fn own_executable() -> io::Result<File> {
    File::open("/proc/self/exe")
}

/// A path to an open file, valid in this process and in a child until it calls exec.
pub fn fd_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Sends SIGKILL to the process group that this process leads.
pub fn kill_group(process: u32) {
    // An error means that the group has exited already.
    let _ = killpg(Pid::from_raw(process as i32), Signal::SIGKILL);
}

/// Sends SIGKILL to this process.
pub fn kill_self() {
    let _ = nix::sys::signal::raise(Signal::SIGKILL);
}

/// Exits at once (`_exit`), whatever locks the other threads hold.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Sends SIGSTOP to this process.
pub fn stop_self() {
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}

/// Ignores SIGXFSZ, here and in children: a write past the file size limit (`ulimit -f`) becomes an error instead of
/// the end of the process.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no code of ours. It fails only for unknown signals.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

/// Whether SIGHUP is ignored, as under `nohup`: then the process outlives its terminal.
pub fn ignores_hangup() -> bool {
    status_ignores_hangup("/proc/self/status")
}

/// Whether `nohup` applies to this process itself, not to its parent: then SIGHUP is ignored here and not there.
pub fn is_under_nohup() -> bool {
    ignores_hangup()
        && !status_ignores_hangup(&format!("/proc/{}/status", std::os::unix::process::parent_id()))
}

/// Whether the process with that status file ignores SIGHUP.
fn status_ignores_hangup(path: &str) -> bool {
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (Signal::SIGHUP as u64 - 1)) != 0)
}

/// The peak memory of any child that was waited for, in bytes.
pub fn peak_memory_of_children() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    u64::try_from(usage.max_rss()).ok().map(|kibibytes| kibibytes * 1024)
}

/// User CPU time of the children that were waited for so far.
pub fn cpu_time_of_children() -> Option<Duration> {
    let time = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?.user_time();
    let seconds = u64::try_from(time.tv_sec()).ok()?;
    Some(Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).ok()?))
}

/// The name of a signal: `SIGKILL`.
pub fn signal_name(number: i32) -> &'static str {
    Signal::try_from(number).map_or("an unknown signal", |signal| signal.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_killed_and_this_one_is_not() {
        let (here, there) = UnixStream::pair().unwrap();
        assert!(PidFd::of_peer(&here).unwrap().is_none(), "both ends are ours");
        drop(there);
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let name = format!("thalweg-pidfd-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let code = format!(
            "import socket,time;s=socket.socket(socket.AF_UNIX);s.connect('\\0{name}');time.sleep(600)"
        );
        let Ok(mut child) = std::process::Command::new("python3").args(["-c", &code]).spawn() else {
            use std::io::Write;
            return drop(writeln!(io::stderr(), "skipped: no python3 to start"));
        };
        let (stream, _) = listener.accept().unwrap();
        let pidfd = PidFd::of_peer(&stream).unwrap().unwrap();
        assert!(pidfd.kill(Duration::from_secs(60)));
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(pidfd.kill(Duration::ZERO), "it has exited");
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(-1), "an unknown signal");
    }
}
