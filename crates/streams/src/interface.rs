//! A network interface: a process that holds the TCP connections of streams.

use std::net::{SocketAddr, ToSocketAddrs};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dipole_node::{Address, Endpoint, EndpointId, Node, ReceiveError};

use crate::error::StreamError;
use crate::message::Message;
use crate::session::{CHECK_INTERVAL, StreamSession, notify_end};

/// Hosts to which ranks may open streams.
#[derive(Clone, Debug)]
pub enum Destinations {
    /// Any host and port.
    Any,
    /// Listens on these addresses only.
    Only(Vec<SocketAddr>),
}

/// Settings of an interface.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// Hosts to which ranks may open streams.
    pub destinations: Destinations,
    /// Maximum number of concurrent streams. Each has an endpoint; they follow that of the interface.
    pub max_streams: u32,
    /// Maximum number of bytes of each stream that the interface buffers.
    pub window: u64,
    /// Maximum time to connect.
    pub connect_timeout: Duration,
}

impl Default for InterfaceConfig {
    fn default() -> InterfaceConfig {
        InterfaceConfig {
            destinations: Destinations::Any,
            max_streams: 16,
            window: 4 << 20,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// The interface process of a program.
#[derive(Debug)]
pub struct Interface<'a> {
    node: &'a Node,
    control: Endpoint,
    id: EndpointId,
    config: InterfaceConfig,
    streams: Vec<Option<JoinHandle<()>>>,
}

impl<'a> Interface<'a> {
    /// Opens an interface at an endpoint.
    ///
    /// # Errors
    /// The endpoint cannot be opened.
    pub fn open(
        node: &'a Node,
        id: EndpointId,
        config: InterfaceConfig,
    ) -> Result<Interface<'a>, StreamError> {
        let control = node.endpoint(id)?;
        let streams = (0..config.max_streams).map(|_| None).collect();
        Ok(Interface {
            node,
            control,
            id,
            config,
            streams,
        })
    }

    /// The address at which ranks open streams.
    #[must_use]
    pub fn address(&self) -> Address {
        self.control.address()
    }

    /// Serves until `should_stop`, which is checked regularly, returns true. Returns after the streams that are open
    /// then have ended.
    ///
    /// # Errors
    /// The endpoint is broken.
    pub fn serve(mut self, should_stop: impl Fn() -> bool) -> Result<(), StreamError> {
        while !should_stop() {
            let received = match self.control.receive_timeout(CHECK_INTERVAL) {
                Ok(received) => received,
                Err(ReceiveError::TimedOut { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let why = match Message::decode(&received) {
                Ok(Message::Open {
                    to,
                    ranks,
                    timeout_ms,
                }) => {
                    let timeout = Duration::from_millis(timeout_ms);
                    let ranks: Vec<Address> = ranks.into_iter().map(Address::from).collect();
                    let begun = self.begin(to, &ranks, timeout);
                    // Rank 0 notifies the other ranks.
                    begun.err().map(|why| (why, vec![received.source()]))
                }
                _ => {
                    let why = "the endpoint of an interface only accepts requests to open streams";
                    Some((why.to_owned(), vec![received.source()]))
                }
            };
            if let Some((why, ranks)) = why {
                notify_end(&self.control, &ranks, &why);
            }
        }
        for stream in self.streams.into_iter().flatten() {
            // A panic of one stream must not end the others.
            let _panic = stream.join();
        }
        Ok(())
    }

    fn begin(&mut self, to: &str, ranks: &[Address], timeout: Duration) -> Result<(), String> {
        let targets = self.resolve(to)?;
        let is_free = |it: &Option<JoinHandle<()>>| it.as_ref().is_none_or(JoinHandle::is_finished);
        let free = self.streams.iter().position(is_free);
        let slot =
            free.ok_or_else(|| format!("all its {} streams are in use", self.config.max_streams))?;
        let number = u32::try_from(slot).unwrap_or(u32::MAX);
        let id = EndpointId(self.id.0.saturating_add(1).saturating_add(number));
        let endpoint = self.node.endpoint(id).map_err(|error| error.to_string())?;
        let (window, connect_timeout) = (self.config.window, self.config.connect_timeout);
        let (name, ranks) = (to.to_owned(), ranks.to_vec());
        let stream = thread::Builder::new()
            .name("dipole-stream".into())
            .spawn(move || {
                let served = StreamSession::begin(endpoint, ranks, timeout, window);
                served.run(&name, &targets, connect_timeout);
            });
        self.streams[slot] =
            Some(stream.map_err(|error| format!("cannot start a thread: {error}"))?);
        Ok(())
    }

    fn resolve(&self, to: &str) -> Result<Vec<SocketAddr>, String> {
        let found = to.to_socket_addrs();
        let found: Vec<SocketAddr> = found.map_err(|error| format!("{to}: {error}"))?.collect();
        let allowed: Vec<SocketAddr> = match &self.config.destinations {
            Destinations::Any => found,
            Destinations::Only(all) => found.into_iter().filter(|it| all.contains(it)).collect(),
        };
        match allowed.is_empty() {
            true => Err(format!(
                "{to} is not among the destinations allowed by the interface"
            )),
            false => Ok(allowed),
        }
    }
}
