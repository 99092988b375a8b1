//! A network interface: a process that holds the TCP connections of streams.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dipole_node::{Address, Endpoint, EndpointId, Message as Received, Node, ReceiveError};

use crate::error::StreamError;
use crate::listeners::Listeners;
use crate::message::{Message, WireAddress, WireStatus};
use crate::progress::{Progress, StreamStatus};
use crate::session::{CHECK_INTERVAL, Caller, Peer, StreamSession};

/// Hosts to which ranks may open streams.
#[derive(Clone, Debug)]
pub enum Destinations {
    /// Any host and port.
    Any,
    /// These addresses only.
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
    /// Any process of the cluster may [stop](crate::stop) the interface.
    pub can_be_stopped: bool,
}

impl Default for InterfaceConfig {
    fn default() -> InterfaceConfig {
        InterfaceConfig {
            destinations: Destinations::Any,
            max_streams: 16,
            window: 4 << 20,
            connect_timeout: Duration::from_secs(10),
            can_be_stopped: false,
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
    shared: Arc<Shared>,
    /// A process has requested its end.
    is_stopped: bool,
}

/// State that a handle of the interface uses, too.
#[derive(Debug, Default)]
struct Shared {
    listeners: Listeners,
    /// The state of the stream in each slot.
    progress: Mutex<Vec<Weak<Progress>>>,
    is_closing: Arc<AtomicBool>,
}

/// A handle of an interface for other threads, while [`Interface::serve`] runs.
#[derive(Clone, Debug)]
pub struct InterfaceControl {
    shared: Arc<Shared>,
}

impl InterfaceControl {
    /// Accepts TCP connections at an address, for ranks that call
    /// [`Stream::accept`](crate::Stream::accept) with its port. Clients that connect earlier wait.
    /// Returns the address with the chosen port if that is 0.
    ///
    /// # Errors
    /// The address is in use or not of this host.
    pub fn listen(&self, at: SocketAddr) -> io::Result<SocketAddr> {
        self.shared.listeners.listen(at)
    }

    /// The state of all open streams.
    #[must_use]
    pub fn status(&self) -> Vec<StreamStatus> {
        let now = Instant::now();
        let open = self.shared.progress();
        let open = open.iter().filter_map(Weak::upgrade);
        open.map(|progress| progress.status(now)).collect()
    }
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Vec<Weak<Progress>>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            shared: Arc::default(),
            is_stopped: false,
        })
    }

    /// The address at which ranks open streams.
    #[must_use]
    pub fn address(&self) -> Address {
        self.control.address()
    }

    /// A handle to listen for TCP clients and to inspect the streams, also from other threads.
    #[must_use]
    pub fn control(&self) -> InterfaceControl {
        InterfaceControl {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Serves until `should_stop`, which is checked regularly, returns true, or a process [stops](crate::stop) it.
    /// Returns after the streams that are open then have ended; those that wait for a TCP client end at once.
    ///
    /// # Errors
    /// The endpoint is broken.
    pub fn serve(mut self, should_stop: impl Fn() -> bool) -> Result<(), StreamError> {
        while !self.is_stopped && !should_stop() {
            let received = match self.control.receive_timeout(CHECK_INTERVAL) {
                Ok(received) => received,
                Err(ReceiveError::TimedOut { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Err(why) = self.handle(&received) {
                // Rank 0 notifies the other ranks.
                let ended = Message::Ended { why: &why }.encode();
                let _gone = self.control.reply(&received, &ended);
            }
        }
        self.shared.is_closing.store(true, Ordering::Relaxed);
        for stream in self.streams.into_iter().flatten() {
            // A panic of one stream must not end the others.
            let _panic = stream.join();
        }
        Ok(())
    }

    fn handle(&mut self, received: &Received) -> Result<(), String> {
        match Message::decode(received) {
            Ok(Message::Open {
                to,
                ranks,
                timeout_ms,
            }) => {
                let peer = Peer::Host {
                    name: to.to_owned(),
                    targets: self.resolve(to)?,
                    timeout: self.config.connect_timeout,
                };
                self.begin(peer, ranks, timeout_ms)
            }
            Ok(Message::Accept {
                port,
                ranks,
                timeout_ms,
                wait_ms,
            }) => {
                let listeners = self.shared.listeners.at(port);
                if listeners.is_empty() {
                    return Err(format!("it does not listen at port {port}"));
                }
                let peer = Peer::Caller(Caller {
                    port,
                    listeners,
                    timeout: Duration::from_millis(wait_ms),
                    is_closing: Arc::clone(&self.shared.is_closing),
                });
                self.begin(peer, ranks, timeout_ms)
            }
            Ok(Message::GetStatus) => {
                self.reply_status(received);
                Ok(())
            }
            Ok(Message::Stop) if self.config.can_be_stopped => {
                self.is_stopped = true;
                self.reply_status(received);
                Ok(())
            }
            Ok(Message::Stop) => Err("it belongs to a program, which ends it itself".into()),
            _ => Err("the endpoint of an interface only accepts requests".into()),
        }
    }

    fn reply_status(&self, received: &Received) {
        let streams = self.control().status();
        let streams = streams.into_iter().map(WireStatus::from).collect();
        let status = Message::Status { streams }.encode();
        // A program that sends a request and does not read must not delay the others.
        let _gone = self.control.reply(received, &status);
    }

    fn begin(
        &mut self,
        peer: Peer,
        ranks: Vec<WireAddress>,
        timeout_ms: u64,
    ) -> Result<(), String> {
        let timeout = Duration::from_millis(timeout_ms);
        let ranks: Vec<Address> = ranks.into_iter().map(Address::from).collect();
        let is_free = |it: &Option<JoinHandle<()>>| it.as_ref().is_none_or(JoinHandle::is_finished);
        let free = self.streams.iter().position(is_free);
        let slot =
            free.ok_or_else(|| format!("all its {} streams are in use", self.config.max_streams))?;
        let number = u32::try_from(slot).unwrap_or(u32::MAX);
        let id = EndpointId(self.id.0.saturating_add(1).saturating_add(number));
        let endpoint = self.node.endpoint(id).map_err(|error| error.to_string())?;
        let progress = Arc::new(Progress::new(
            (endpoint.address(), ranks.clone()),
            peer.name(),
            peer.awaited(),
            Instant::now(),
        ));
        {
            let mut open = self.shared.progress();
            open.retain(|it| it.strong_count() > 0);
            open.push(Arc::downgrade(&progress));
        }
        let window = self.config.window;
        let stream = thread::Builder::new()
            .name("dipole-stream".into())
            .spawn(move || {
                let served = StreamSession::begin(endpoint, ranks, timeout, window, progress);
                served.run(&peer);
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
