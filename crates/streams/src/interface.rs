//! A network interface: a process that holds the TCP connections of streams.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Edge, Endpoint, EndpointId, Message as Received, Node, ReceiveError, SendError,
};

use crate::error::StreamError;
use crate::gather::Gather;
use crate::layout::{Cursor, Layout};
use crate::message::{BLOCK_BYTES, Message};

/// How often it checks whether the ranks are alive while it waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long it tries to notify a rank that the stream has ended.
const NOTIFY_TIMEOUT: Duration = Duration::from_millis(500);

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
        let config = self.config.clone();
        let (name, ranks) = (to.to_owned(), ranks.to_vec());
        let stream = thread::Builder::new()
            .name("dipole-stream".into())
            .spawn(move || {
                let served = StreamSession::begin(endpoint, ranks, timeout, &config);
                served.run(&name, &targets, config.connect_timeout);
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

/// A stream that is open, on the interface.
struct StreamSession {
    endpoint: Endpoint,
    ranks: Vec<Address>,
    edges: Vec<Edge>,
    timeout: Duration,
    window: u64,
}

type SessionResult<A> = Result<A, String>;

impl StreamSession {
    fn begin(
        endpoint: Endpoint,
        ranks: Vec<Address>,
        timeout: Duration,
        config: &InterfaceConfig,
    ) -> StreamSession {
        StreamSession {
            endpoint,
            ranks,
            edges: Vec::new(),
            timeout,
            window: config.window.max(1),
        }
    }

    fn run(mut self, name: &str, targets: &[SocketAddr], connect_timeout: Duration) {
        let outcome = self.serve(name, targets, connect_timeout);
        if let Err(why) = outcome {
            notify_end(&self.endpoint, &self.ranks, &why);
        }
    }

    fn serve(
        &mut self,
        name: &str,
        targets: &[SocketAddr],
        connect_timeout: Duration,
    ) -> SessionResult<()> {
        for rank in &self.ranks {
            let edge = self
                .endpoint
                .edge(*rank)
                .map_err(|error| error.to_string())?;
            self.edges.push(edge);
        }
        let mut socket = connect(name, targets, connect_timeout)?;
        // With these timeouts it detects that a rank has ended even while the TCP peer is silent.
        let timeouts = socket
            .set_read_timeout(Some(CHECK_INTERVAL))
            .and(socket.set_write_timeout(Some(CHECK_INTERVAL)));
        timeouts
            .and(socket.set_nodelay(true))
            .map_err(|error| format!("{name}: {error}"))?;
        let at = self.endpoint.address().into();
        self.send_to(0, &Message::Opened { at })?;
        loop {
            let received = self.receive(&BTreeSet::from([0]), Duration::MAX)?;
            if received.source() != self.ranks[0] {
                // A late reply of a transfer that has ended, or a message of a stranger.
                continue;
            }
            match Message::decode(&received) {
                Ok(Message::WriteRaw { bytes }) => self.write(&mut socket, bytes)?,
                Ok(Message::ReadRaw { max }) => {
                    let mut bytes = vec![0; usize::try_from(max.min(BLOCK_BYTES)).unwrap_or(0)];
                    let got = self.read(&mut socket, &mut bytes)?;
                    self.send_to(
                        0,
                        &Message::RawBytes {
                            bytes: &bytes[..got],
                        },
                    )?;
                }
                Ok(Message::Write {
                    transfer,
                    total,
                    layout,
                }) => {
                    self.gather(&mut socket, transfer, total, layout)?;
                }
                Ok(Message::Read {
                    transfer,
                    total,
                    layout,
                }) => {
                    self.scatter(&mut socket, transfer, total, &layout)?;
                }
                Ok(Message::Finish) => {
                    socket
                        .shutdown(Shutdown::Write)
                        .map_err(|error| format!("{name}: {error}"))?;
                }
                Ok(Message::Close) => return Ok(()),
                _ => return Err("rank 0 has sent an invalid message".into()),
            }
        }
    }

    fn check(&self, layout: &Layout, total: u64) -> SessionResult<()> {
        if layout.ranks() as usize > self.ranks.len() {
            let (wanted, found) = (layout.ranks(), self.ranks.len());
            return Err(format!(
                "the layout has {wanted} ranks, but the stream has {found}"
            ));
        }
        layout.error(total).map_or(Ok(()), Err)
    }

    /// Requests data from the ranks, and writes them in the order of the stream.
    fn gather(
        &self,
        socket: &mut TcpStream,
        transfer: u64,
        total: u64,
        layout: Layout,
    ) -> SessionResult<()> {
        self.check(&layout, total)?;
        let mut gather: Gather<Reply> = Gather::new(layout, total, self.window, BLOCK_BYTES);
        while !gather.is_done() {
            let now = Instant::now();
            while let Some(extent) = gather.next_request(now) {
                let (offset, local, length) = (extent.offset, extent.local, extent.length);
                self.send_to(
                    extent.rank,
                    &Message::Request {
                        transfer,
                        offset,
                        local,
                        length,
                    },
                )?;
            }
            let received = self.receive(&gather.awaited().collect(), self.timeout)?;
            if let Ok(Message::Data {
                transfer: of,
                offset,
                bytes,
            }) = Message::decode(&received)
                && of == transfer
                && let Some(rank) = self.rank_of(received.source())
            {
                let start = received.len() - bytes.len();
                let answer = Reply { received, start };
                let arrived = gather.accept_reply(rank, offset, answer);
                arrived
                    .map_err(|_| format!("rank {rank} has sent data that were not requested"))?;
            }
            if let Some(rank) = gather.overdue(Instant::now(), self.timeout) {
                return Err(self.silent(rank, "replied"));
            }
            while let Some(answer) = gather.take() {
                self.write(socket, answer.as_ref())?;
            }
        }
        self.send_to_all(&Message::Done {
            transfer,
            bytes: total,
        })
    }

    /// Reads data, and sends each rank its part.
    fn scatter(
        &self,
        socket: &mut TcpStream,
        transfer: u64,
        total: u64,
        layout: &Layout,
    ) -> SessionResult<()> {
        self.check(layout, total)?;
        let mut cursor = Cursor::new(layout.ranks());
        let mut buffer = vec![0; usize::try_from(BLOCK_BYTES).unwrap_or(0)];
        let mut bytes = 0;
        while let Some(extent) = cursor.next(layout, total, BLOCK_BYTES) {
            let wanted = usize::try_from(extent.length).unwrap_or(0);
            let mut got = 0;
            while got < wanted {
                match self.read(socket, &mut buffer[got..wanted])? {
                    0 => break,
                    more => got += more,
                }
            }
            bytes += got as u64;
            if got > 0 {
                let (local, bytes) = (extent.local, &buffer[..got]);
                self.send_to(
                    extent.rank,
                    &Message::Block {
                        transfer,
                        local,
                        bytes,
                    },
                )?;
            }
            if got < wanted {
                break;
            }
        }
        self.send_to_all(&Message::Done { transfer, bytes })
    }

    fn rank_of(&self, address: Address) -> Option<u32> {
        let found = self.ranks.iter().position(|rank| *rank == address)?;
        u32::try_from(found).ok()
    }

    fn silent(&self, rank: u32, what: &str) -> String {
        let (address, seconds) = (self.ranks[rank as usize], self.timeout.as_secs_f64());
        format!("rank {rank} at {address} has not {what} for {seconds} s")
    }

    fn send_to_all(&self, message: &Message<'_>) -> SessionResult<()> {
        (0..)
            .zip(&self.ranks)
            .try_for_each(|(rank, _)| self.send_to(rank, message))
    }

    /// Sends to a rank, which must accept the message within the stream's timeout.
    fn send_to(&self, rank: u32, message: &Message<'_>) -> SessionResult<()> {
        let edge = &self.edges[rank as usize];
        edge.send_timeout(&message.encode(), self.timeout)
            .map_err(|error| match error {
                SendError::TimedOut { .. } => self.silent(rank, "accepted its data"),
                error => format!("rank {rank}: {error}"),
            })
    }

    /// The next message. Fails if one of the ranks in `awaited` has ended. Between transfers, rank 0 may take any
    /// time while it lives.
    fn receive(&self, awaited: &BTreeSet<u32>, timeout: Duration) -> SessionResult<Received> {
        let began = Instant::now();
        loop {
            match self.endpoint.receive_timeout(CHECK_INTERVAL) {
                Ok(received) => return Ok(received),
                Err(ReceiveError::TimedOut { .. }) => self.check_ranks(awaited)?,
                Err(error) => return Err(error.to_string()),
            }
            if began.elapsed() >= timeout {
                let rank = awaited.first().copied().unwrap_or(0);
                return Err(self.silent(rank, "replied"));
            }
        }
    }

    fn check_ranks(&self, ranks: &BTreeSet<u32>) -> SessionResult<()> {
        for rank in ranks {
            match self.edges[*rank as usize].watch() {
                Ok(()) | Err(SendError::Full { .. }) => {}
                Err(error) => return Err(format!("rank {rank}: {error}")),
            }
        }
        Ok(())
    }

    fn all(&self) -> BTreeSet<u32> {
        (0..).zip(&self.ranks).map(|(rank, _)| rank).collect()
    }

    /// Writes all bytes. The TCP peer may take any time to accept them, while the ranks live.
    fn write(&self, socket: &mut TcpStream, bytes: &[u8]) -> SessionResult<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match socket.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if is_transient(error.kind()) => self.check_ranks(&self.all())?,
                Err(error) => return Err(format!("cannot write to the TCP peer: {error}")),
            }
        }
        Ok(())
    }

    /// Reads at least one byte, or none at the end of the stream.
    fn read(&self, socket: &mut TcpStream, into: &mut [u8]) -> SessionResult<usize> {
        loop {
            match socket.read(into) {
                Ok(got) => return Ok(got),
                Err(error) if is_transient(error.kind()) => self.check_ranks(&self.all())?,
                Err(error) => return Err(format!("cannot read from the TCP peer: {error}")),
            }
        }
    }
}

fn is_transient(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn connect(name: &str, targets: &[SocketAddr], timeout: Duration) -> SessionResult<TcpStream> {
    let mut last = format!("{name} has no address");
    for target in targets {
        match TcpStream::connect_timeout(target, timeout) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = format!("cannot connect to {target}: {error}"),
        }
    }
    Err(last)
}

/// Notifies ranks that the stream has ended. Ranks that have ended miss it.
fn notify_end(endpoint: &Endpoint, ranks: &[Address], why: &str) {
    let ended = Message::Ended { why }.encode();
    let edges: Vec<Edge> = (ranks.iter())
        .filter_map(|rank| endpoint.edge(*rank).ok())
        .collect();
    let notified = edges
        .iter()
        .filter(|edge| edge.send_timeout(&ended, NOTIFY_TIMEOUT).is_ok());
    let notified: Vec<&Edge> = notified.collect();
    for edge in notified {
        let _taken = edge.flush(NOTIFY_TIMEOUT);
    }
}

/// A message with data, of which `start` is the position.
struct Reply {
    received: Received,
    start: usize,
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.received[self.start..]
    }
}
