//! The TCP ports at which an interface accepts connections for the streams of a job.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The sockets of all ports. A client waits in a socket's backlog until a stream accepts it.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: Mutex<Vec<Arc<TcpListener>>>,
}

impl Listeners {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<TcpListener>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at an address; returns it with the port that was chosen if it is 0.
    pub(crate) fn listen(&self, at: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(at)?;
        // Several streams may wait for the same client.
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        self.all().push(Arc::new(listener));
        Ok(at)
    }

    /// The sockets that listen at a port.
    pub(crate) fn at(&self, port: u16) -> Vec<Arc<TcpListener>> {
        let has_port = |listener: &&Arc<TcpListener>| {
            listener
                .local_addr()
                .is_ok_and(|address| address.port() == port)
        };
        self.all().iter().filter(has_port).cloned().collect()
    }
}

/// Accepts a client of one of the sockets, with its address; `None` if none comes within `timeout`.
pub(crate) fn accept(
    listeners: &[Arc<TcpListener>],
    timeout: Duration,
) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    let mut polled: Vec<PollFd<'_>> = listeners
        .iter()
        .map(|listener| PollFd::new(listener, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(cause) => return Err(cause.into()),
    }
    for listener in listeners {
        match listener.accept() {
            Ok((socket, address)) => {
                socket.set_nonblocking(false)?;
                return Ok(Some((socket, address)));
            }
            // Another stream got the client, or the client has left.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
