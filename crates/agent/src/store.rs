//! The service manager, if there is one: it is told when the agent answers, and keeps the
//! agent's sockets while that is started again, so that what arrives meanwhile waits in them.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use listenfd::ListenFd;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use sd_notify::NotifyState;

/// Sockets that an earlier agent left.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) directories: Vec<UdpSocket>,
    listeners: Vec<TcpListener>,
    /// What is no such socket, by the name under which it was kept.
    pub(super) others: Vec<(String, OwnedFd)>,
    count: usize,
}

impl Kept {
    /// Takes what the service manager hands over (`LISTEN_FDS`).
    pub(super) fn take() -> Kept {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut handed = ListenFd::from_env();
        let mut kept = Kept::default();
        for index in 0..handed.len() {
            let name = names.next().unwrap_or_default();
            if let Ok(Some(socket)) = handed.take_udp_socket(index) {
                kept.directories.push(socket);
            } else if let Ok(Some(listener)) = handed.take_tcp_listener(index) {
                kept.listeners.push(listener);
            } else if let Ok(Some(number)) = handed.take_raw_fd(index)
                && let Ok(file) = owned(number)
            {
                kept.others.push((name.to_owned(), file));
            }
        }
        kept.count = kept.directories.len() + kept.listeners.len();
        kept
    }

    /// How many there were.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The listener at an address, if there is one among them.
    pub(super) fn listener(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let at = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| at == address);
        let index = self.listeners.iter().position(at)?;
        Some(self.listeners.swap_remove(index))
    }
}

/// The descriptor with a number, for nobody else, and not for programs that are started.
fn owned(number: i32) -> io::Result<OwnedFd> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let file = pidfd_getfd(own, number, PidfdGetfdFlags::empty())?;
    nix::unistd::close(number)?;
    Ok(file)
}

/// Gives one descriptor into keeping, under a name of its own.
pub(super) fn keep_one(name: &str, file: BorrowedFd<'_>) {
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        let named = [NotifyState::FdStore, NotifyState::FdName(name)];
        told(sd_notify::notify_with_fds(&named, &[file]));
    }
}

/// What was kept under a name is kept no longer.
pub(super) fn forget(name: &str) {
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        let named = [NotifyState::FdStoreRemove, NotifyState::FdName(name)];
        told(sd_notify::notify(&named));
    }
}

fn told(result: io::Result<()>) {
    if let Err(cause) = result {
        tracing::warn!(%cause, "the service manager (NOTIFY_SOCKET) cannot be told");
    }
}

/// Gives the sockets into keeping, in place of those kept before, unless they are just those;
/// and says that the agent answers.
pub(super) fn keep<'a>(
    directories: impl Iterator<Item = &'a UdpSocket>,
    listeners: impl Iterator<Item = &'a TcpListener>,
    are_kept: bool,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let kinds: [(&str, Vec<BorrowedFd<'a>>); 2] = [
        ("directory", directories.map(AsFd::as_fd).collect()),
        ("listener", listeners.map(AsFd::as_fd).collect()),
    ];
    let mut changed = kinds.iter().filter(|_| !are_kept);
    let done = changed.try_for_each(|(name, sockets)| {
        sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])?;
        if sockets.is_empty() {
            return Ok(());
        }
        let named = [NotifyState::FdStore, NotifyState::FdName(name)];
        sd_notify::notify_with_fds(&named, sockets)
    });
    told(done.and_then(|()| sd_notify::notify(&[NotifyState::Ready])));
}
