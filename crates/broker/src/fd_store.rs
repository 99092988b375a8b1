//! systemd's file descriptor store: it keeps BPF programs attached while the broker restarts.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use listenfd::ListenFd;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use sd_notify::NotifyState;

/// Descriptors that an earlier broker stored (`LISTEN_FDS`), with the names it gave them.
pub(super) fn inherited() -> Vec<(String, OwnedFd)> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = ListenFd::from_env();
    let mut inherited = Vec::new();
    for index in 0..passed.len() {
        let name = names.next().unwrap_or_default();
        if let Ok(Some(number)) = passed.take_raw_fd(index)
            && let Ok(file) = owned(number)
        {
            inherited.push((name.to_owned(), file));
        }
    }
    inherited
}

/// Takes over a descriptor by its number, closed on exec.
fn owned(number: i32) -> io::Result<OwnedFd> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let file = pidfd_getfd(own, number, PidfdGetfdFlags::empty())?;
    nix::unistd::close(number)?;
    Ok(file)
}

/// Stores a descriptor under a name of its own.
pub(super) fn store(name: &str, file: BorrowedFd<'_>) {
    if has_manager() {
        let named = [NotifyState::FdStore, NotifyState::FdName(name)];
        log_failure(sd_notify::notify_with_fds(&named, &[file]));
    }
}

/// Removes the descriptor stored under a name.
pub(super) fn forget(name: &str) {
    if has_manager() {
        let named = [NotifyState::FdStoreRemove, NotifyState::FdName(name)];
        log_failure(sd_notify::notify(&named));
    }
}

/// Reports to the service manager that clients may connect.
pub(super) fn report_ready() {
    if has_manager() {
        log_failure(sd_notify::notify(&[NotifyState::Ready]));
    }
}

fn has_manager() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

fn log_failure(result: io::Result<()>) {
    if let Err(cause) = result {
        tracing::warn!(%cause, "cannot notify the service manager (NOTIFY_SOCKET)");
    }
}
