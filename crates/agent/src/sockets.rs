//! The network sockets of an agent.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use dipole_node::Config;
use dipole_node::hosts::Host;
use dipole_node::registry::{DirectoryLock, Registry};

use super::fd_store::InheritedSockets;
use super::{AgentError, system};

/// How long the new address of a device may take until it can be bound, and the pause between two
/// attempts.
const REOPEN_TIME: Duration = Duration::from_secs(10);
const REOPEN_PAUSE: Duration = Duration::from_millis(250);

/// The network sockets of an agent.
pub(super) struct Sockets {
    pub(super) directory: DirectoryLock,
    pub(super) members: Vec<UdpSocket>,
    /// Empty without a cluster key.
    pub(super) listeners: Vec<TcpListener>,
}

impl Sockets {
    pub(super) fn open(
        config: &Config,
        registry: &Registry,
        host: &Host,
        inherited: &mut InheritedSockets,
    ) -> Result<Sockets, AgentError> {
        let addresses = host.directories();
        let directories = std::mem::take(&mut inherited.directories);
        let directory = DirectoryLock::take(registry, &addresses, directories)?;
        let members = addresses.iter().map(|address| {
            let socket = UdpSocket::bind((address.ip(), 0))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let members: io::Result<_> = members.collect();
        Ok(Sockets {
            directory,
            members: members.map_err(system("binding ports for other agents"))?,
            listeners: match config.key {
                Some(_) => listen(&addresses, inherited)?,
                None => Vec::new(),
            },
        })
    }

    /// Opens the sockets at new addresses. An IPv6 address cannot be bound in its first second.
    pub(super) fn reopen(
        config: &Config,
        registry: &Registry,
        host: &Host,
    ) -> Result<Sockets, AgentError> {
        let begun = Instant::now();
        loop {
            match Sockets::open(config, registry, host, &mut InheritedSockets::default()) {
                Err(cause) if begun.elapsed() < REOPEN_TIME => {
                    tracing::warn!(%cause, "cannot serve at the new address yet");
                    std::thread::sleep(REOPEN_PAUSE);
                }
                opened => return opened,
            }
        }
    }
}

/// Opens the listeners for work requests, one per interface.
fn listen(
    addresses: &[SocketAddr],
    inherited: &mut InheritedSockets,
) -> Result<Vec<TcpListener>, AgentError> {
    let listener = |address: &SocketAddr| {
        let listener = match inherited.listener(*address) {
            Some(listener) => Ok(listener),
            None => TcpListener::bind(address),
        };
        listener
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|cause| AgentError::Port {
                address: *address,
                cause,
            })
    };
    addresses.iter().map(listener).collect()
}
