//! systemd's file descriptor store: it keeps the agent's sockets while the agent restarts, so that
//! packets queue up in them. systemd is also notified when the agent is ready.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use listenfd::ListenFd;
use sd_notify::NotifyState;

/// Sockets that an earlier agent stored.
#[derive(Default)]
pub(super) struct InheritedSockets {
    pub(super) directories: Vec<UdpSocket>,
    listeners: Vec<TcpListener>,
    count: usize,
}

impl InheritedSockets {
    /// Takes the sockets that the service manager passes (`LISTEN_FDS`).
    pub(super) fn take() -> InheritedSockets {
        let mut handed = ListenFd::from_env();
        let mut inherited = InheritedSockets::default();
        for index in 0..handed.len() {
            if let Ok(Some(socket)) = handed.take_udp_socket(index) {
                inherited.directories.push(socket);
            } else if let Ok(Some(listener)) = handed.take_tcp_listener(index) {
                inherited.listeners.push(listener);
            }
        }
        inherited.count = inherited.directories.len() + inherited.listeners.len();
        inherited
    }

    /// Number of inherited sockets.
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

fn log_failure(result: io::Result<()>) {
    if let Err(cause) = result {
        tracing::warn!(%cause, "cannot notify the service manager (NOTIFY_SOCKET)");
    }
}

/// Stores the sockets, replacing earlier ones unless they are the same, and notifies the service
/// manager that the agent is ready.
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
