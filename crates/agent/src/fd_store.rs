//! The service manager's file descriptor store: systemd keeps the agent's sockets while the agent
//! restarts, so that packets wait in them; it is also notified when the agent is ready.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use listenfd::ListenFd;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use sd_notify::NotifyState;

/// Descriptors that an earlier agent left in the store.
#[derive(Default)]
pub(super) struct InheritedSockets {
    pub(super) directories: Vec<UdpSocket>,
    listeners: Vec<TcpListener>,
    /// Other descriptors, by the names under which they were stored.
    pub(super) others: Vec<(String, OwnedFd)>,
    count: usize,
}

impl InheritedSockets {
    /// Takes what the service manager passes on (`LISTEN_FDS`).
    pub(super) fn take() -> InheritedSockets {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut handed = ListenFd::from_env();
        let mut inherited = InheritedSockets::default();
        for index in 0..handed.len() {
            let name = names.next().unwrap_or_default();
            if let Ok(Some(socket)) = handed.take_udp_socket(index) {
                inherited.directories.push(socket);
            } else if let Ok(Some(listener)) = handed.take_tcp_listener(index) {
                inherited.listeners.push(listener);
            } else if let Ok(Some(number)) = handed.take_raw_fd(index)
                && let Ok(file) = owned(number)
            {
                inherited.others.push((name.to_owned(), file));
            }
        }
        inherited.count = inherited.directories.len() + inherited.listeners.len();
        inherited
    }

    /// How many sockets there were.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The listener at an address, if it was stored.
    pub(super) fn listener(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let at = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| at == address);
        let index = self.listeners.iter().position(at)?;
        Some(self.listeners.swap_remove(index))
    }
}

/// Takes over a descriptor by its number, closed on exec.
fn owned(number: i32) -> io::Result<OwnedFd> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let file = pidfd_getfd(own, number, PidfdGetfdFlags::empty())?;
    nix::unistd::close(number)?;
    Ok(file)
}

/// Stores one descriptor under a name of its own.
pub(super) fn store_one(name: &str, file: BorrowedFd<'_>) {
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        let named = [NotifyState::FdStore, NotifyState::FdName(name)];
        log_failure(sd_notify::notify_with_fds(&named, &[file]));
    }
}

/// Removes the descriptors stored under a name.
pub(super) fn forget(name: &str) {
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        let named = [NotifyState::FdStoreRemove, NotifyState::FdName(name)];
        log_failure(sd_notify::notify(&named));
    }
}

fn log_failure(result: io::Result<()>) {
    if let Err(cause) = result {
        tracing::warn!(%cause, "cannot notify the service manager (NOTIFY_SOCKET)");
    }
}

/// Stores the sockets in place of those stored before, unless they are the same, and notifies
/// the service manager that the agent is ready.
pub(super) fn store_sockets<'a>(
    directories: impl Iterator<Item = &'a UdpSocket>,
    listeners: impl Iterator<Item = &'a TcpListener>,
    are_stored: bool,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let kinds: [(&str, Vec<BorrowedFd<'a>>); 2] = [
        ("directory", directories.map(AsFd::as_fd).collect()),
        ("listener", listeners.map(AsFd::as_fd).collect()),
    ];
    let mut changed = kinds.iter().filter(|_| !are_stored);
    let done = changed.try_for_each(|(name, sockets)| {
        sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])?;
        if sockets.is_empty() {
            return Ok(());
        }
        let named = [NotifyState::FdStore, NotifyState::FdName(name)];
        sd_notify::notify_with_fds(&named, sockets)
    });
    log_failure(done.and_then(|()| sd_notify::notify(&[NotifyState::Ready])));
}
