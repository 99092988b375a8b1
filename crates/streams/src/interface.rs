//! A network-interface process: it holds the connections to the outside.

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

/// How long it waits for a message before it looks after its peers.
const LOOK: Duration = Duration::from_millis(50);
/// How long it tries to tell a rank that the stream is over.
const TO_TELL: Duration = Duration::from_millis(500);

/// Whom ranks may be connected with.
#[derive(Clone, Debug)]
pub enum Destinations {
    /// Whatever they name.
    Any,
    /// These addresses only.
    Only(Vec<SocketAddr>),
}

/// What an interface may do.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// Whom ranks may be connected with.
    pub destinations: Destinations,
    /// Streams at once; more are refused. Each has an endpoint, numbered on from the interface's own.
    pub most_streams: u32,
    /// Bytes of each stream that lie here at most.
    pub window: u64,
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

impl Default for InterfaceConfig {
    fn default() -> InterfaceConfig {
        InterfaceConfig {
            destinations: Destinations::Any,
            most_streams: 16,
            window: 4 << 20,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Interface<'a> {
    node: &'a Node,
    control: Endpoint,
    id: EndpointId,
    config: InterfaceConfig,
    streams: Vec<Option<JoinHandle<()>>>,
}

impl<'a> Interface<'a> {
    /// Opens it at an endpoint.
    ///
    /// # Errors
    /// The endpoint cannot be opened.
    pub fn open(
        node: &'a Node,
        id: EndpointId,
        config: InterfaceConfig,
    ) -> Result<Interface<'a>, StreamError> {
        let control = node.endpoint(id)?;
        let streams = (0..config.most_streams).map(|_| None).collect();
        Ok(Interface {
            node,
            control,
            id,
            config,
            streams,
        })
    }

    /// Where ranks ask for streams.
    #[must_use]
    pub fn address(&self) -> Address {
        self.control.address()
    }

    /// Serves until `is_over` says so, which is asked now and then; streams that are open then go on to
    /// their ends before this returns.
    ///
    /// # Errors
    /// The endpoint is broken.
    pub fn serve(mut self, is_over: impl Fn() -> bool) -> Result<(), StreamError> {
        while !is_over() {
            let received = match self.control.receive_timeout(LOOK) {
                Ok(received) => received,
                Err(ReceiveError::TimedOut { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let why = match Message::decode(&received) {
                Ok(Message::Open {
                    to,
                    ranks,
                    patience_ms,
                }) => {
                    let patience = Duration::from_millis(patience_ms);
                    let begun = self.begin(to, &ranks, patience);
                    // Rank 0 tells the others.
                    begun.err().map(|why| (why, vec![received.source()]))
                }
                _ => {
                    let why = "this is the interface's endpoint, where streams are opened only";
                    Some((why.to_owned(), vec![received.source()]))
                }
            };
            if let Some((why, ranks)) = why {
                tell_end(&self.control, &ranks, &why);
            }
        }
        for stream in self.streams.into_iter().flatten() {
            // A panic of one stream is not the others'.
            let _panic = stream.join();
        }
        Ok(())
    }

    fn begin(&mut self, to: &str, ranks: &[Address], patience: Duration) -> Result<(), String> {
        let targets = self.resolve(to)?;
        let is_free = |it: &Option<JoinHandle<()>>| it.as_ref().is_none_or(JoinHandle::is_finished);
        let free = self.streams.iter().position(is_free);
        let slot =
            free.ok_or_else(|| format!("all its {} streams are in use", self.config.most_streams))?;
        let number = u32::try_from(slot).unwrap_or(u32::MAX);
        let id = EndpointId(self.id.0.saturating_add(1).saturating_add(number));
        let endpoint = self.node.endpoint(id).map_err(|error| error.to_string())?;
        let config = self.config.clone();
        let (name, ranks) = (to.to_owned(), ranks.to_vec());
        let stream = thread::Builder::new()
            .name("dipole-stream".into())
            .spawn(move || {
                let served = Served::begin(endpoint, ranks, patience, &config);
                served.run(&name, &targets, config.connect_timeout);
            });
        self.streams[slot] =
            Some(stream.map_err(|error| format!("no thread can be had: {error}"))?);
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
                "{to} is not among the destinations that it may connect to"
            )),
            false => Ok(allowed),
        }
    }
}

/// A stream that is open, at the interface.
struct Served {
    endpoint: Endpoint,
    ranks: Vec<Address>,
    edges: Vec<Edge>,
    patience: Duration,
    window: u64,
}

type Outcome<A> = Result<A, String>;

impl Served {
    fn begin(
        endpoint: Endpoint,
        ranks: Vec<Address>,
        patience: Duration,
        config: &InterfaceConfig,
    ) -> Served {
        Served {
            endpoint,
            ranks,
            edges: Vec::new(),
            patience,
            window: config.window.max(1),
        }
    }

    fn run(mut self, name: &str, targets: &[SocketAddr], connect_timeout: Duration) {
        let outcome = self.serve(name, targets, connect_timeout);
        if let Err(why) = outcome {
            tell_end(&self.endpoint, &self.ranks, &why);
        }
    }

    fn serve(
        &mut self,
        name: &str,
        targets: &[SocketAddr],
        connect_timeout: Duration,
    ) -> Outcome<()> {
        for rank in &self.ranks {
            let edge = self
                .endpoint
                .edge(*rank)
                .map_err(|error| error.to_string())?;
            self.edges.push(edge);
        }
        let mut outside = connect(name, targets, connect_timeout)?;
        // A rank that is gone must be noticed while the outside is silent.
        let timeouts = outside
            .set_read_timeout(Some(LOOK))
            .and(outside.set_write_timeout(Some(LOOK)));
        timeouts
            .and(outside.set_nodelay(true))
            .map_err(|error| format!("{name}: {error}"))?;
        let at = self.endpoint.address();
        self.tell(0, &Message::Opened { at })?;
        loop {
            let received = self.receive(&BTreeSet::from([0]), Duration::MAX)?;
            if received.source() != self.ranks[0] {
                // A late answer of a transfer that has ended, or a stranger's.
                continue;
            }
            match Message::decode(&received) {
                Ok(Message::WriteRaw { bytes }) => self.write(&mut outside, bytes)?,
                Ok(Message::ReadRaw { most }) => {
                    let mut bytes = vec![0; usize::try_from(most.min(BLOCK_BYTES)).unwrap_or(0)];
                    let got = self.read(&mut outside, &mut bytes)?;
                    self.tell(
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
                    self.gather(&mut outside, transfer, total, layout)?;
                }
                Ok(Message::Read {
                    transfer,
                    total,
                    layout,
                }) => {
                    self.scatter(&mut outside, transfer, total, &layout)?;
                }
                Ok(Message::Finish) => {
                    outside
                        .shutdown(Shutdown::Write)
                        .map_err(|error| format!("{name}: {error}"))?;
                }
                Ok(Message::Close) => return Ok(()),
                _ => return Err("a message of rank 0 makes no sense here".into()),
            }
        }
    }

    fn check(&self, layout: &Layout, total: u64) -> Outcome<()> {
        if layout.ranks() as usize > self.ranks.len() {
            let (wanted, found) = (layout.ranks(), self.ranks.len());
            return Err(format!(
                "a layout of {wanted} ranks, and the stream has {found}"
            ));
        }
        layout.why_not(total).map_or(Ok(()), Err)
    }

    /// Asks the ranks for what they write, and writes it in the stream's order.
    fn gather(
        &self,
        outside: &mut TcpStream,
        transfer: u64,
        total: u64,
        layout: Layout,
    ) -> Outcome<()> {
        self.check(&layout, total)?;
        let mut gather: Gather<Answer> = Gather::new(layout, total, self.window, BLOCK_BYTES);
        while !gather.is_done() {
            let now = Instant::now();
            while let Some(extent) = gather.ask(now) {
                let (offset, local, length) = (extent.offset, extent.local, extent.length);
                self.tell(
                    extent.rank,
                    &Message::Want {
                        transfer,
                        offset,
                        local,
                        length,
                    },
                )?;
            }
            let received = self.receive(&gather.awaited().collect(), self.patience)?;
            if let Ok(Message::Data {
                transfer: of,
                offset,
                bytes,
            }) = Message::decode(&received)
                && of == transfer
                && let Some(rank) = self.rank_of(received.source())
            {
                let start = received.len() - bytes.len();
                let answer = Answer { received, start };
                let arrived = gather.arrived(rank, offset, answer);
                arrived.map_err(|_| format!("rank {rank} sends what nobody has asked it for"))?;
            }
            if let Some(rank) = gather.late(Instant::now(), self.patience) {
                return Err(self.silent(rank, "answered"));
            }
            while let Some(answer) = gather.take() {
                self.write(outside, answer.as_ref())?;
            }
        }
        self.tell_all(&Message::Done {
            transfer,
            bytes: total,
        })
    }

    /// Reads, and sends each rank what is its.
    fn scatter(
        &self,
        outside: &mut TcpStream,
        transfer: u64,
        total: u64,
        layout: &Layout,
    ) -> Outcome<()> {
        self.check(layout, total)?;
        let mut cursor = Cursor::new(layout.ranks());
        let mut buffer = vec![0; usize::try_from(BLOCK_BYTES).unwrap_or(0)];
        let mut bytes = 0;
        while let Some(extent) = cursor.next(layout, total, BLOCK_BYTES) {
            let wanted = usize::try_from(extent.length).unwrap_or(0);
            let mut got = 0;
            while got < wanted {
                match self.read(outside, &mut buffer[got..wanted])? {
                    0 => break,
                    more => got += more,
                }
            }
            bytes += got as u64;
            if got > 0 {
                let (local, bytes) = (extent.local, &buffer[..got]);
                self.tell(
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
        self.tell_all(&Message::Done { transfer, bytes })
    }

    fn rank_of(&self, address: Address) -> Option<u32> {
        let found = self.ranks.iter().position(|rank| *rank == address)?;
        u32::try_from(found).ok()
    }

    fn silent(&self, rank: u32, what: &str) -> String {
        let (address, seconds) = (self.ranks[rank as usize], self.patience.as_secs_f64());
        format!("rank {rank} at {address} has not {what} for {seconds} s")
    }

    fn tell_all(&self, message: &Message<'_>) -> Outcome<()> {
        (0..)
            .zip(&self.ranks)
            .try_for_each(|(rank, _)| self.tell(rank, message))
    }

    /// Sends to a rank, which takes it within the stream's patience.
    fn tell(&self, rank: u32, message: &Message<'_>) -> Outcome<()> {
        let edge = &self.edges[rank as usize];
        edge.send_timeout(&message.encode(), self.patience)
            .map_err(|error| match error {
                SendError::TimedOut { .. } => self.silent(rank, "taken what was sent to it"),
                error => format!("rank {rank}: {error}"),
            })
    }

    /// The next message; ends if one of the ranks that are waited for is gone. Between transfers rank 0 may
    /// compute as long as it likes, while it lives.
    fn receive(&self, awaited: &BTreeSet<u32>, patience: Duration) -> Outcome<Received> {
        let began = Instant::now();
        loop {
            match self.endpoint.receive_timeout(LOOK) {
                Ok(received) => return Ok(received),
                Err(ReceiveError::TimedOut { .. }) => self.look_after(awaited)?,
                Err(error) => return Err(error.to_string()),
            }
            if began.elapsed() >= patience {
                let rank = awaited.first().copied().unwrap_or(0);
                return Err(self.silent(rank, "answered"));
            }
        }
    }

    fn look_after(&self, ranks: &BTreeSet<u32>) -> Outcome<()> {
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

    /// Writes all of it; how slowly is the outside's affair, while the ranks live.
    fn write(&self, outside: &mut TcpStream, bytes: &[u8]) -> Outcome<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match outside.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if may_pass(error.kind()) => self.look_after(&self.all())?,
                Err(error) => return Err(format!("the outside takes no more: {error}")),
            }
        }
        Ok(())
    }

    /// What has come, at least one byte unless the outside has ended.
    fn read(&self, outside: &mut TcpStream, into: &mut [u8]) -> Outcome<usize> {
        loop {
            match outside.read(into) {
                Ok(got) => return Ok(got),
                Err(error) if may_pass(error.kind()) => self.look_after(&self.all())?,
                Err(error) => return Err(format!("the outside cannot be read: {error}")),
            }
        }
    }
}

fn may_pass(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn connect(name: &str, targets: &[SocketAddr], timeout: Duration) -> Outcome<TcpStream> {
    let mut last = format!("{name} has no address");
    for target in targets {
        match TcpStream::connect_timeout(target, timeout) {
            Ok(outside) => return Ok(outside),
            Err(error) => last = format!("{target} cannot be connected to: {error}"),
        }
    }
    Err(last)
}

/// Tells ranks that the stream is over; those who are gone are not told.
fn tell_end(endpoint: &Endpoint, ranks: &[Address], why: &str) {
    let ended = Message::Ended { why }.encode();
    let edges: Vec<Edge> = (ranks.iter())
        .filter_map(|rank| endpoint.edge(*rank).ok())
        .collect();
    let told = edges
        .iter()
        .filter(|edge| edge.send_timeout(&ended, TO_TELL).is_ok());
    let told: Vec<&Edge> = told.collect();
    for edge in told {
        let _taken = edge.flush(TO_TELL);
    }
}

/// Bytes of a message as they came.
struct Answer {
    received: Received,
    start: usize,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.received[self.start..]
    }
}
