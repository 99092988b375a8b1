//! One stream on the interface: moves its bytes between the TCP connection and the ranks.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipole_node::{Address, Edge, Endpoint, Message as Received, ReceiveError, SendError};

use crate::gather::Gather;
use crate::layout::{Cursor, Layout};
use crate::listeners;
use crate::message::{BLOCK_BYTES, Message};
use crate::progress::{Progress, WaitsFor};

/// How often it checks whether the ranks are alive while it waits.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long it tries to notify a rank that the stream has ended.
const NOTIFY_TIMEOUT: Duration = Duration::from_millis(500);

/// The other end of a stream's TCP connection.
pub(crate) enum Peer {
    /// The interface connects to a host.
    Host {
        name: String,
        targets: Vec<SocketAddr>,
        timeout: Duration,
    },
    /// A TCP client connects to the interface.
    Caller(Caller),
}

/// A TCP client that is yet to connect.
pub(crate) struct Caller {
    pub(crate) port: u16,
    /// The sockets of the port.
    pub(crate) listeners: Vec<Arc<TcpListener>>,
    pub(crate) timeout: Duration,
    /// The interface accepts no more clients.
    pub(crate) is_closing: Arc<AtomicBool>,
}

impl Peer {
    pub(crate) fn name(&self) -> String {
        match self {
            Peer::Host { name, .. } => name.clone(),
            Peer::Caller(caller) => format!("port {}", caller.port),
        }
    }

    /// The first party that the stream waits for.
    pub(crate) fn awaited(&self) -> WaitsFor {
        match self {
            Peer::Host { .. } => WaitsFor::Connection,
            Peer::Caller(_) => WaitsFor::Caller,
        }
    }
}

/// A stream that is open, on the interface.
pub(crate) struct StreamSession {
    pub(crate) endpoint: Endpoint,
    pub(crate) ranks: Vec<Address>,
    edges: Vec<Edge>,
    timeout: Duration,
    window: u64,
    progress: Arc<Progress>,
}

type SessionResult<A> = Result<A, String>;

impl StreamSession {
    pub(crate) fn begin(
        endpoint: Endpoint,
        ranks: Vec<Address>,
        timeout: Duration,
        window: u64,
        progress: Arc<Progress>,
    ) -> StreamSession {
        StreamSession {
            endpoint,
            ranks,
            edges: Vec::new(),
            timeout,
            window: window.max(1),
            progress,
        }
    }

    pub(crate) fn run(mut self, peer: &Peer) {
        let outcome = self.serve(peer);
        if let Err(why) = outcome {
            self.notify_end(&why);
        }
    }

    /// Notifies the ranks that the stream has ended. Ranks that have ended miss it, and so do their
    /// successors at the same addresses.
    fn notify_end(&self, why: &str) {
        let ended = Message::Ended { why }.encode();
        let edges = self.edges.iter();
        let notified = edges.filter(|edge| edge.send_timeout(&ended, NOTIFY_TIMEOUT).is_ok());
        let notified: Vec<&Edge> = notified.collect();
        for edge in notified {
            let _taken = edge.flush(NOTIFY_TIMEOUT);
        }
    }

    fn serve(&mut self, peer: &Peer) -> SessionResult<()> {
        for rank in &self.ranks {
            let edge = self
                .endpoint
                .edge(*rank)
                .map_err(|error| error.to_string())?;
            self.edges.push(edge);
        }
        let name = peer.name();
        let (mut socket, address) = match peer {
            Peer::Host {
                name,
                targets,
                timeout,
            } => connect(name, targets, *timeout)?,
            Peer::Caller(caller) => self.accept(caller)?,
        };
        // With these timeouts it detects that a rank has ended even while the TCP peer is silent.
        let timeouts = socket
            .set_read_timeout(Some(CHECK_INTERVAL))
            .and(socket.set_write_timeout(Some(CHECK_INTERVAL)));
        timeouts
            .and(socket.set_nodelay(true))
            .map_err(|error| format!("{name}: {error}"))?;
        let (at, peer) = (self.endpoint.address().into(), address.to_string());
        self.progress.set_peer(peer.clone());
        self.send_to(0, &Message::Opened { at, peer: &peer })?;
        loop {
            self.wait_for(WaitsFor::Call);
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

    /// Waits for a TCP client, while rank 0 lives.
    fn accept(&self, caller: &Caller) -> SessionResult<(TcpStream, SocketAddr)> {
        let Caller {
            port,
            listeners,
            timeout,
            is_closing,
        } = caller;
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let accepted = listeners::accept(listeners, left.min(CHECK_INTERVAL));
            let accepted = accepted.map_err(|error| format!("port {port}: {error}"))?;
            if let Some(accepted) = accepted {
                return Ok(accepted);
            }
            self.check_ranks(&BTreeSet::from([0]))?;
            if is_closing.load(Ordering::Relaxed) {
                return Err("it closes".into());
            }
            if left.is_zero() {
                let seconds = timeout.as_secs_f64();
                return Err(format!(
                    "no TCP client has connected to port {port} within {seconds} s"
                ));
            }
        }
    }

    fn wait_for(&self, party: WaitsFor) {
        self.progress.wait_for(party, Instant::now());
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
            let awaited: BTreeSet<u32> = gather.awaited().collect();
            self.wait_for(WaitsFor::Data(awaited.iter().copied().collect()));
            let received = self.receive(&awaited, self.timeout)?;
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
        self.wait_for(WaitsFor::Reader(rank));
        edge.send_timeout(&message.encode(), self.timeout)
            .map_err(|error| match error {
                SendError::TimedOut { .. } => self.silent(rank, "accepted its data"),
                error => format!("rank {rank}: {error}"),
            })
    }

    /// The next message. Fails if one of the ranks in `awaited` has ended. Between transfers, rank
    /// 0 may take any time while it lives.
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
        self.wait_for(WaitsFor::PeerToRead);
        while !rest.is_empty() {
            match socket.write(rest) {
                Ok(written) => {
                    self.progress.count_written(written, Instant::now());
                    rest = &rest[written..];
                }
                Err(error) if is_transient(error.kind()) => self.check_ranks(&self.all())?,
                Err(error) => return Err(format!("cannot write to the TCP peer: {error}")),
            }
        }
        Ok(())
    }

    /// Reads at least one byte, or none at the end of the stream.
    fn read(&self, socket: &mut TcpStream, into: &mut [u8]) -> SessionResult<usize> {
        self.wait_for(WaitsFor::PeerToWrite);
        loop {
            match socket.read(into) {
                Ok(got) => {
                    self.progress.count_read(got, Instant::now());
                    return Ok(got);
                }
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

fn connect(
    name: &str,
    targets: &[SocketAddr],
    timeout: Duration,
) -> SessionResult<(TcpStream, SocketAddr)> {
    let mut last = format!("{name} has no address");
    for target in targets {
        match TcpStream::connect_timeout(target, timeout) {
            Ok(socket) => return Ok((socket, *target)),
            Err(error) => last = format!("cannot connect to {target}: {error}"),
        }
    }
    Err(last)
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
