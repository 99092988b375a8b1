//! Copies bytes between a connection and the program's new end of it, in both directions.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

use super::closed::Identity;
use super::pair::Pair;
use crate::connection::Connection;
use crate::kernel;

const BUFFER: usize = 64 << 10;
/// How often a relay looks whether the program has closed a connection that it no longer writes to.
const LOOK: Duration = Duration::from_secs(5);

/// State of what one direction reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Open,
    /// No more bytes follow; the other end is not shut down yet.
    Ended,
    Reset,
    Finished,
}

/// Bytes on their way in one direction.
struct Half {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    /// The only byte in the buffer is urgent (`MSG_OOB`).
    is_urgent: bool,
    input: Input,
}

/// The relay of a connection.
pub(super) struct Pump<'a> {
    connection: &'a Connection,
    tcp: BorrowedFd<'a>,
    /// The relay's end of the local connection.
    local: BorrowedFd<'a>,
    program: Identity,
    to_program: Half,
    to_peer: Half,
    /// Other processes may use the socket as well, so that its options must stay as they are.
    is_shared: bool,
}

/// The other end of a direction has been reset or closed.
struct Broken;

impl Half {
    fn new() -> Result<Half, Errno> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(BUFFER).map_err(|_| Errno::NOMEM)?;
        buffer.resize(BUFFER, 0);
        Ok(Half {
            buffer,
            begin: 0,
            end: 0,
            is_urgent: false,
            input: Input::Open,
        })
    }

    fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Reads once, if there is room. True if bytes were read.
    fn fill(
        &mut self,
        at_mark: bool,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> bool {
        if !self.is_empty() || self.input != Input::Open {
            return false;
        }
        let length = if at_mark { 1 } else { self.buffer.len() };
        match read(&mut self.buffer[..length]) {
            Ok(0) => self.input = Input::Ended,
            Ok(count) => {
                (self.begin, self.end) = (0, count);
                self.is_urgent = at_mark;
                return true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.input = Input::Reset,
        }
        false
    }

    /// Writes what the other end takes without waiting. True if that was something.
    fn flush(&mut self, to: BorrowedFd<'_>) -> Result<bool, Broken> {
        if self.is_empty() {
            return Ok(false);
        }
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::OOB, self.is_urgent);
        match send(to, &self.buffer[self.begin..self.end], flags) {
            Ok(count) => {
                self.begin += count;
                Ok(count > 0)
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(false),
            Err(_) => Err(Broken),
        }
    }

    /// True once its input has ended and everything is written.
    fn is_due(&self, input: Input) -> bool {
        self.is_empty() && self.input == input
    }
}

fn reset_at_close(fd: BorrowedFd<'_>) {
    let _closes_normally = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        tcp: BorrowedFd<'a>,
        pair: &'a Pair,
    ) -> Result<Pump<'a>, Errno> {
        Ok(Pump {
            connection,
            tcp,
            local: pair.relay_end.as_fd(),
            program: Identity::of(pair.program_end.as_fd()),
            to_program: Half::new()?,
            to_peer: Half::new()?,
            is_shared: !connection.is_of_this_process(),
        })
    }

    /// Gives the program what can be read now, as far as its new end takes it.
    pub(super) fn prepare(&mut self) {
        if !self.is_shared {
            // Urgent bytes keep their place this way.
            for fd in [self.tcp, self.local] {
                let _without_urgent_bytes = sockopt::set_socket_oobinline(fd, true);
            }
            let _as_before = kernel::set_low_water(self.tcp, 1);
        }
        while self.move_to_program().unwrap_or(false) {}
    }

    fn move_to_program(&mut self) -> Result<bool, Broken> {
        let (connection, tcp) = (self.connection, self.tcp);
        let at_mark = !self.is_shared && kernel::is_at_mark(tcp);
        let read = self
            .to_program
            .fill(at_mark, |to| connection.receive(tcp, to, false));
        Ok(self.to_program.flush(self.local)? || read)
    }

    fn move_to_peer(&mut self) -> Result<bool, Broken> {
        let local = self.local;
        let at_mark = !self.is_shared && kernel::is_at_mark(local);
        let read = self.to_peer.fill(at_mark, |to| {
            recv(local, to, RecvFlags::DONTWAIT).map(|(count, _)| count)
        });
        Ok(self.to_peer.flush(self.tcp)? || read)
    }

    /// Runs in a process of its own until the connection has ended.
    pub(super) fn run(&mut self) {
        self.leave_program();
        loop {
            let moved = match self.move_to_program() {
                Ok(moved) => moved,
                // Bytes that the program did not read reset the connection, as when it closes a socket.
                Err(Broken) => {
                    self.to_peer.input = Input::Reset;
                    self.to_program.input = Input::Finished;
                    self.to_program.begin = self.to_program.end;
                    true
                }
            };
            let moved = match self.move_to_peer() {
                Ok(also) => moved || also,
                Err(Broken) => {
                    // What the peer sent before it reset the connection can still be read.
                    self.to_peer.input = Input::Finished;
                    self.to_peer.begin = self.to_peer.end;
                    true
                }
            };
            if self.has_ended() {
                return;
            }
            if !moved {
                self.wait();
            }
        }
    }

    /// Passes on the end of a direction; true if the connection is over.
    fn has_ended(&mut self) -> bool {
        if self.to_program.is_due(Input::Reset) {
            reset_at_close(self.local);
            return true;
        }
        if self.to_peer.is_due(Input::Reset) {
            if !self.is_shared {
                reset_at_close(self.tcp);
            }
            return true;
        }
        if self.to_program.is_due(Input::Ended) {
            let _is_gone = shutdown(self.local, Shutdown::Write);
            self.to_program.input = Input::Finished;
        }
        if self.to_peer.is_due(Input::Ended) {
            if self.program.is_closed() {
                // Another process may still use the connection.
                return true;
            }
            let _is_gone = shutdown(self.tcp, Shutdown::Write);
            self.to_peer.input = Input::Finished;
        }
        self.to_program.is_due(Input::Finished) && self.to_peer.is_due(Input::Finished)
            || self.to_peer.is_due(Input::Finished) && self.program.is_closed()
    }

    /// Waits until something can be read or written.
    fn wait(&self) {
        let wanted = |reads: &Half, writes: &Half| {
            let mut wanted = PollFlags::empty();
            wanted.set(
                PollFlags::IN,
                reads.is_empty() && reads.input == Input::Open,
            );
            wanted.set(PollFlags::OUT, !writes.is_empty());
            wanted
        };
        let of_tcp = wanted(&self.to_program, &self.to_peer);
        let of_local = wanted(&self.to_peer, &self.to_program);
        let mut both = [
            PollFd::from_borrowed_fd(self.tcp, of_tcp),
            PollFd::from_borrowed_fd(self.local, of_local),
        ];
        // The kernel also reports errors and ends that are not wanted, again and again.
        let begin = usize::from(of_tcp.is_empty());
        let end = 2 - usize::from(of_local.is_empty());
        let look = Timespec::try_from(LOOK).ok();
        let look = look.filter(|_| self.to_peer.input == Input::Finished);
        let _again = poll(&mut both[begin..end], look.as_ref());
    }

    /// Closes everything that the program had, except for both sockets.
    fn leave_program(&self) {
        let (one, other) = (self.tcp.as_raw_fd(), self.local.as_raw_fd());
        let (low, high) = (one.min(other).unsigned_abs(), one.max(other).unsigned_abs());
        // SAFETY: system calls with integers, or with memory that lives as long as the process, and
        // default actions for signals. Closes the copies that this process has, which does not use them.
        unsafe {
            for signal in 1..=libc::SIGRTMAX() {
                libc::signal(signal, libc::SIG_DFL);
            }
            let none = 0_u64;
            let (how, size) = (libc::SIG_SETMASK, size_of::<u64>());
            libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const none, 0, size);
            libc::syscall(
                libc::SYS_prctl,
                libc::PR_SET_NAME,
                c"dipole-relay".as_ptr(),
                0,
                0,
                0,
            );
            libc::syscall(libc::SYS_chdir, c"/".as_ptr());
            let ranges = [(0, low), (low + 1, high), (high + 1, u32::MAX)];
            for (begin, end) in ranges.into_iter().filter(|(begin, end)| begin < end) {
                libc::syscall(
                    libc::SYS_close_range,
                    begin,
                    end - u32::from(end < u32::MAX),
                    0,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_passes_its_bytes_before_its_end() {
        let mut half = Half::new().expect("memory");
        assert!(half.fill(false, |to| {
            to[..3].copy_from_slice(b"abc");
            Ok(3)
        }));
        assert!(!half.fill(false, |_| Err(Errno::IO)), "no room");
        let (to, from) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(matches!(half.flush(to.as_fd()), Ok(true)));
        assert!(!half.fill(false, |_| Err(Errno::CONNRESET)));
        assert!(half.is_due(Input::Reset));
        let mut got = [0; 3];
        let (count, _) = recv(&from, &mut got, RecvFlags::empty()).expect("there");
        assert_eq!(&got[..count], b"abc");
        half.input = Input::Open;
        drop(from);
        half.fill(false, |_| Ok(1));
        assert!(matches!(half.flush(to.as_fd()), Err(Broken)));
    }
}
