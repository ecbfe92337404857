//! Processes: a grip on one that holds whatever becomes of its number, signals to groups, and what processes used.

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

/// A grip on another process of this host: its number may be given to another one, this never means another one.
#[derive(Debug)]
pub struct Grip(OwnedFd);

impl Grip {
    /// On the process at the other end of a socket, if it is not this one.
    pub fn on_peer(socket: &UnixStream) -> io::Result<Option<Grip>> {
        let process = getsockopt(socket, PeerCredentials)?.pid();
        if process <= 0 || process == std::process::id() as i32 {
            return Ok(None);
        }
        Grip::on(process).map(Some)
    }

    /// On the process that started this one; nothing if it has ended already, or is the system's first.
    pub fn on_parent() -> io::Result<Option<Grip>> {
        let parent = std::os::unix::process::parent_id();
        if parent <= 1 {
            return Ok(None);
        }
        let grip = Grip::on(parent as i32)?;
        // If it has ended meanwhile, its number may be another one's.
        Ok((std::os::unix::process::parent_id() == parent).then_some(grip))
    }

    fn on(process: i32) -> io::Result<Grip> {
        // SAFETY: the call takes two numbers and returns a new descriptor or an error.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nobody else knows of it.
        Ok(Grip(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }))
    }

    /// Ends it at once and waits until the kernel confirms that; false if it does not in time.
    pub fn end(&self, patience: Duration) -> bool {
        let none: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: the descriptor is open, and the call takes no memory of ours. One that is gone already is what we want.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, none, 0) };
        self.has_ended(PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX))
    }

    /// Waits until it has ended, however long that takes.
    pub fn await_end(&self) {
        while !self.has_ended(PollTimeout::NONE) {}
    }

    fn has_ended(&self, timeout: PollTimeout) -> bool {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut polled, timeout), Ok(count) if count > 0)
    }
}

/// The name of the process that started this one, as the kernel keeps it: 15 bytes at most.
pub fn parent_name() -> Option<String> {
    let path = format!("/proc/{}/comm", std::os::unix::process::parent_id());
    Some(std::fs::read_to_string(path).ok()?.trim_end().to_string())
}

/// The file of the program that runs here, whatever stands in its place by now.
pub fn own_program() -> io::Result<File> {
    File::open("/proc/self/exe")
}

/// A name for an open file, for this process and for a child until it has become another program.
pub fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Ends a process and all that it started, at once. It must lead its own process group.
pub fn kill_group(process: u32) {
    // A group that is gone already is what we want: nothing to do about an error.
    let _ = killpg(Pid::from_raw(process as i32), Signal::SIGKILL);
}

/// Kills this very process.
pub fn kill_self() {
    let _ = nix::sys::signal::raise(Signal::SIGKILL);
}

/// Ends this very process with that code, whatever its other threads do or hold.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Stops this very process until somebody lets it go on.
pub fn stop_self() {
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}

/// From now on a file of this process, or of those it starts, that would grow past its limit (`ulimit -f`) is an error
/// where it is written, and not the end of the process.
pub fn outlive_file_limits() {
    // SAFETY: to ignore a signal runs no code of ours. It fails only for signals that do not exist.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

/// Whether this process was started so that it outlives its terminal: `nohup` ignores SIGHUP for it.
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (Signal::SIGHUP as u64 - 1)) != 0)
}

/// The most memory that any process held which this one started and saw the end of, in bytes.
pub fn peak_memory_of_children() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    u64::try_from(usage.max_rss()).ok().map(|kibibytes| kibibytes * 1024)
}

/// User CPU time of the children that have ended so far.
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
    fn a_process_is_ended_and_this_one_is_not() {
        let (here, there) = UnixStream::pair().unwrap();
        assert!(Grip::on_peer(&here).unwrap().is_none(), "both ends are ours");
        drop(there);
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let name = format!("thalweg-grip-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let code = format!(
            "import socket,time;s=socket.socket(socket.AF_UNIX);s.connect('\\0{name}');time.sleep(600)"
        );
        let Ok(mut child) = std::process::Command::new("python3").args(["-c", &code]).spawn() else {
            use std::io::Write;
            return drop(writeln!(io::stderr(), "skipped: there is no python3 to be ended"));
        };
        let (stream, _) = listener.accept().unwrap();
        let grip = Grip::on_peer(&stream).unwrap().unwrap();
        assert!(grip.end(Duration::from_secs(60)));
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(grip.end(Duration::ZERO), "it has ended");
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(-1), "an unknown signal");
    }
}
