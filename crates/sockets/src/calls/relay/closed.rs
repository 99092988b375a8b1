//! Whether a program has closed its end of a connection, or only stopped writing.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, fstat, open};

use super::registrations::each_line;

/// Column of the inode number in the kernel's lists of connections.
const INODE_COLUMN: usize = 9;

/// Identifies the socket of another end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity(Option<u64>);

impl Identity {
    pub(super) fn of(fd: BorrowedFd<'_>) -> Identity {
        Identity(fstat(fd).ok().map(|found| found.st_ino))
    }

    /// True if no process has the socket any more: the kernel lists it without its inode. Allocates
    /// nothing.
    pub(super) fn is_closed(self) -> bool {
        let Some(inode) = self.0 else { return false };
        let mut is_open = false;
        let mut lists = 0;
        for path in [
            "/proc/self/net/tcp",
            "/proc/self/net/tcp6",
            "/proc/self/net/unix",
        ] {
            let Ok(list) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
                continue;
            };
            lists += 1;
            // The column differs between the kinds of sockets.
            let column = if path.ends_with("unix") {
                6
            } else {
                INODE_COLUMN
            };
            each_line(list.as_fd(), |line| {
                let text = std::str::from_utf8(line).unwrap_or_default();
                let found = text.split_ascii_whitespace().nth(column);
                is_open |= found.is_some_and(|found| found.parse() == Ok(inode));
            });
        }
        lists > 0 && !is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_closed_when_its_last_descriptor_is() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                eprintln!("SKIPPED: this machine has no {address}");
                continue;
            };
            let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
            let (_other, _) = listener.accept().expect("connected");
            let identity = Identity::of(one.as_fd());
            one.shutdown(Shutdown::Write).expect("open");
            let copy = one.try_clone().expect("a descriptor");
            drop(one);
            assert!(!identity.is_closed());
            drop(copy);
            assert!(identity.is_closed());
        }
        let (one, _other) = UnixStream::pair().expect("a pair");
        let identity = Identity::of(one.as_fd());
        one.shutdown(Shutdown::Write).expect("open");
        assert!(!identity.is_closed());
        drop(one);
        assert!(identity.is_closed());
    }
}
