//! A stream, on a rank.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use dipole_node::{Address, Edge, Endpoint, Message as Received, ReceiveError, SendError};

use crate::error::StreamError;
use crate::layout::Layout;
use crate::message::{BLOCK_BYTES, Message, WireAddress};
use crate::progress::StreamStatus;
use crate::session::CHECK_INTERVAL;
use crate::status;

/// How long rank 0 tries to notify the others that a stream could not be opened.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// The ranks that read and write together.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// Rank of this process.
    pub own: u32,
    /// The endpoint of each rank. It must be used for this stream only.
    pub addresses: Vec<Address>,
}

/// The TCP clients that a stream accepts.
#[derive(Clone, Copy, Debug)]
pub struct Callers {
    /// The port at which the interface listens.
    pub port: u16,
    /// The longest time to wait for a client.
    pub wait: Duration,
}

/// A rank's handle of a stream. Owns or borrows its rank's endpoint, to which nothing else may be sent meanwhile. All ranks
/// open the stream, and make the calls marked "all ranks" in the same order.
#[derive(Debug)]
pub struct Stream<E> {
    endpoint: E,
    ranks: Ranks,
    interface: Address,
    /// The edge to the stream's endpoint on the interface; `None` while the stream is being opened.
    edge: Option<Edge>,
    /// The address of the TCP peer.
    peer: String,
    transfer: u64,
    timeout: Duration,
    /// Messages of a transfer that this rank has not begun.
    early: Vec<Received>,
}

impl<E: Borrow<Endpoint>> Stream<E> {
    /// Opens a TCP stream to `to` (`host:port`) through the interface at an address. All ranks. A rank that does
    /// not reply, or accept data, within `timeout` during a transfer ends the stream for all.
    ///
    /// # Errors
    /// The interface refuses, cannot connect or does not reply, or a rank does not reply.
    pub fn open(
        endpoint: E,
        ranks: Ranks,
        interface: Address,
        to: &str,
        timeout: Duration,
    ) -> Result<Stream<E>, StreamError> {
        let stream = Stream::new(endpoint, ranks, interface, timeout)?;
        let request = Message::Open {
            to,
            ranks: stream.wire_ranks(),
            timeout_ms: milliseconds(timeout),
        };
        stream.start(&request, timeout)
    }

    /// Accepts a TCP client that connects to a port at which the interface
    /// [listens](crate::InterfaceControl::listen). All ranks. Waits for up to `callers.wait`; clients that have
    /// connected before are accepted in their order. See [`open`](Self::open) for `timeout`.
    ///
    /// A server opens a stream for each client. To serve several at once, each rank needs an endpoint for each.
    ///
    /// # Errors
    /// [`StreamError::Ended`] if no client connects, the interface does not listen there, or rank 0 dies.
    /// The errors of [`open`](Self::open).
    pub fn accept(
        endpoint: E,
        ranks: Ranks,
        interface: Address,
        callers: Callers,
        timeout: Duration,
    ) -> Result<Stream<E>, StreamError> {
        let stream = Stream::new(endpoint, ranks, interface, timeout)?;
        let request = Message::Accept {
            port: callers.port,
            ranks: stream.wire_ranks(),
            timeout_ms: milliseconds(timeout),
            wait_ms: milliseconds(callers.wait),
        };
        stream.start(&request, timeout.saturating_add(callers.wait))
    }

    fn new(
        endpoint: E,
        ranks: Ranks,
        interface: Address,
        timeout: Duration,
    ) -> Result<Stream<E>, StreamError> {
        let address = endpoint.borrow().address();
        if ranks.addresses.get(ranks.own as usize) != Some(&address) {
            let own = ranks.own;
            return Err(StreamError::Misuse(format!(
                "rank {own} is not at {address} in the list of ranks: give each rank's own endpoint"
            )));
        }
        Ok(Stream {
            endpoint,
            ranks,
            interface,
            edge: None,
            peer: String::new(),
            transfer: 0,
            timeout,
            early: Vec::new(),
        })
    }

    fn wire_ranks(&self) -> Vec<WireAddress> {
        let ranks = self.ranks.addresses.iter();
        ranks.map(|it| (*it).into()).collect()
    }

    /// Sends the request on rank 0, and waits for up to `patience` for its result on the others.
    fn start(
        mut self,
        request: &Message<'_>,
        patience: Duration,
    ) -> Result<Stream<E>, StreamError> {
        if self.ranks.own == 0 {
            match self.request_open(request) {
                Ok((edge, peer)) => {
                    let at = edge.target().into();
                    self.notify_others(&Message::Opened { at, peer: &peer }, self.timeout)?;
                    (self.edge, self.peer) = (Some(edge), peer);
                }
                Err(error) => {
                    let why = match &error {
                        StreamError::Ended { why, .. } => why.clone(),
                        error => error.to_string(),
                    };
                    // The other ranks may have ended, or the interface may have notified them as well.
                    let ended = Message::Ended { why: &why };
                    let _gone = self.notify_others(&ended, NOTIFY_TIMEOUT.min(self.timeout));
                    return Err(error);
                }
            }
        } else {
            // Only from rank 0: the interface may still send messages to a former user of this endpoint.
            let first = self.ranks.addresses[0];
            let edge = self.endpoint.borrow().edge(first)?;
            let received = self.receive(&Sender::FirstRank { edge, patience }, Some(first))?;
            match Message::decode(&received) {
                Ok(Message::Opened { at, peer }) => {
                    self.edge = Some(self.endpoint.borrow().edge(at.into())?);
                    self.peer = peer.to_owned();
                }
                _ => return Err(self.unexpected()),
            }
        }
        Ok(self)
    }

    /// Requests the interface to open the stream. Returns the edge to the stream's endpoint there, and the
    /// address of the TCP peer.
    fn request_open(&self, open: &Message<'_>) -> Result<(Edge, String), StreamError> {
        let interface = self.endpoint.borrow().edge(self.interface)?;
        interface.send_timeout(&open.encode(), self.timeout)?;
        loop {
            let received = self.receive(&Sender::Interface(&interface), None)?;
            match Message::decode(&received) {
                Ok(Message::Opened { at, peer }) => {
                    return Ok((self.endpoint.borrow().edge(at.into())?, peer.to_owned()));
                }
                // A late reply to a status request of an earlier stream.
                Ok(Message::Status { .. }) => {}
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// The address of the TCP peer.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The state of this stream on the interface: bytes, rates, and who waits for whom. Any rank, between its
    /// other calls; the others may be in the middle of a transfer.
    ///
    /// # Errors
    /// The stream or the interface has ended, or does not reply within the stream's timeout.
    pub fn status(&mut self) -> Result<StreamStatus, StreamError> {
        let (at, interface) = (self.edge()?.target(), self.interface);
        let (endpoint, early) = (self.endpoint.borrow(), &mut self.early);
        let streams = status::request(
            endpoint,
            interface,
            &Message::GetStatus,
            self.timeout,
            |received| {
                if received.source() != at {
                    return Ok(());
                }
                if let Ok(Message::Ended { why }) = Message::decode(&received) {
                    let why = why.to_owned();
                    return Err(StreamError::Ended { interface, why });
                }
                // A message of a transfer that this rank has yet to begin.
                early.push(received);
                Ok(())
            },
        );
        let streams = streams.map_err(|error| match error {
            StreamError::Send(error) => self.gone(error),
            error => error,
        })?;
        let own = streams.into_iter().find(|stream| stream.at == at);
        own.ok_or_else(|| self.ended("the stream is not open there"))
    }

    /// Sends a message to the other ranks, which may open the stream later.
    fn notify_others(&self, message: &Message<'_>, timeout: Duration) -> Result<(), StreamError> {
        let mut edges = Vec::new();
        for rank in &self.ranks.addresses[1..] {
            edges.push(self.endpoint.borrow().edge(*rank)?);
        }
        let bytes = message.encode();
        let sent = edges.iter().map(|edge| edge.send_timeout(&bytes, timeout));
        // Sends to all ranks, even if some have ended.
        let sent: Vec<Result<(), SendError>> = sent.collect();
        for (edge, sent) in edges.iter().zip(sent) {
            sent.and_then(|()| edge.flush(timeout))?;
        }
        Ok(())
    }

    /// Writes bytes outside of transfers. Rank 0 only.
    ///
    /// # Errors
    /// The interface has ended.
    pub fn write_raw(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        for bytes in bytes.chunks(usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX)) {
            self.control(&Message::WriteRaw { bytes })?;
        }
        Ok(())
    }

    /// Reads between 1 and `max` bytes outside of transfers, or none at the end of the stream. Rank 0 only.
    ///
    /// # Errors
    /// The stream has failed, or the interface has ended.
    pub fn read_raw(&mut self, max: usize) -> Result<Vec<u8>, StreamError> {
        self.control(&Message::ReadRaw { max: max as u64 })?;
        loop {
            let received = self.receive_from_stream()?;
            if let Ok(Message::RawBytes { bytes }) = Message::decode(&received) {
                return Ok(bytes.to_vec());
            }
            // Skips late messages of an earlier transfer.
        }
    }

    /// Reads until `is_end` accepts the bytes read so far. Reads byte by byte, so that the bytes after the end
    /// stay unread. Rank 0 only.
    ///
    /// # Errors
    /// The errors of [`read_raw`](Self::read_raw), or the stream or `max` bytes end before.
    pub fn read_raw_until(
        &mut self,
        is_end: impl Fn(&[u8]) -> bool,
        max: usize,
    ) -> Result<Vec<u8>, StreamError> {
        let mut all = Vec::new();
        while !is_end(&all) {
            let more = match all.len() < max {
                true => self.read_raw(1)?,
                false => return Err(StreamError::Misuse(format!("no end within {max} bytes"))),
            };
            if more.is_empty() {
                return Err(StreamError::Ended {
                    interface: self.interface,
                    why: format!("the TCP peer has closed it after {} bytes", all.len()),
                });
            }
            all.extend(more);
        }
        Ok(all)
    }

    /// Ends the stream in the direction to the TCP peer. Rank 0 only.
    ///
    /// # Errors
    /// The interface has ended.
    pub fn finish(&mut self) -> Result<(), StreamError> {
        self.control(&Message::Finish)
    }

    fn control(&mut self, message: &Message<'_>) -> Result<(), StreamError> {
        let edge = self.edge.as_ref().filter(|_| self.ranks.own == 0);
        let edge =
            edge.ok_or_else(|| StreamError::Misuse("only rank 0 may make this call".into()))?;
        edge.send_timeout(&message.encode(), self.timeout)
            .map_err(|error| self.gone(error))
    }

    /// The error if the interface has ended: the reason that it has sent, if any.
    fn gone(&self, error: SendError) -> StreamError {
        while let Ok(Some(received)) = self.endpoint.borrow().try_receive() {
            if let Ok(Message::Ended { why }) = Message::decode(&received) {
                return self.ended(why);
            }
        }
        error.into()
    }

    fn ended(&self, why: &str) -> StreamError {
        StreamError::Ended {
            interface: self.interface,
            why: why.to_owned(),
        }
    }

    fn unexpected(&self) -> StreamError {
        self.ended("it has sent an invalid message: do both run the same version?")
    }

    fn check_part(&self, layout: &Layout, total: u64, found: usize) -> Result<(), StreamError> {
        if let Some(why) = layout.error(total) {
            return Err(StreamError::Misuse(why));
        }
        let wanted = layout.part(self.ranks.own, total);
        match found as u64 == wanted {
            true => Ok(()),
            false => Err(StreamError::Misuse(format!(
                "rank {} has {found} bytes, but its part of the layout has {wanted}",
                self.ranks.own
            ))),
        }
    }

    /// Writes `total` bytes in the order of the layout; `part` is this rank's part. All ranks. Returns when the
    /// interface has written all of them to the TCP connection.
    ///
    /// # Errors
    /// A rank, the interface or the TCP peer has failed.
    pub fn write(&mut self, layout: &Layout, total: u64, part: &[u8]) -> Result<(), StreamError> {
        self.check_part(layout, total, part.len())?;
        let transfer = self.begin();
        if self.ranks.own == 0 {
            let layout = layout.clone();
            self.control(&Message::Write {
                transfer,
                total,
                layout,
            })?;
        }
        loop {
            let received = self.next(transfer)?;
            match Message::decode(&received) {
                Ok(Message::Request {
                    transfer: of,
                    offset,
                    local,
                    length,
                }) if of == transfer => {
                    let end = local
                        .checked_add(length)
                        .and_then(|end| usize::try_from(end).ok());
                    let bytes = usize::try_from(local).ok().zip(end);
                    let bytes = bytes.and_then(|(start, end)| part.get(start..end));
                    let bytes = bytes.ok_or_else(|| self.unexpected())?;
                    let answer = Message::Data {
                        transfer,
                        offset,
                        bytes,
                    }
                    .encode();
                    let timeout = self.timeout;
                    let sent = self.edge()?.send_timeout(&answer, timeout);
                    sent.map_err(|error| self.gone(error))?;
                }
                Ok(Message::Done { transfer: of, .. }) if of == transfer => return Ok(()),
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Reads `total` bytes in the order of the layout; `part` is this rank's part. All ranks. Returns the number
    /// of bytes read for all ranks, which is less than `total` only at the end of the stream.
    ///
    /// # Errors
    /// A rank, the interface or the TCP peer has failed.
    pub fn read(
        &mut self,
        layout: &Layout,
        total: u64,
        part: &mut [u8],
    ) -> Result<u64, StreamError> {
        self.check_part(layout, total, part.len())?;
        let transfer = self.begin();
        if self.ranks.own == 0 {
            let layout = layout.clone();
            self.control(&Message::Read {
                transfer,
                total,
                layout,
            })?;
        }
        loop {
            let received = self.next(transfer)?;
            match Message::decode(&received) {
                Ok(Message::Block {
                    transfer: of,
                    local,
                    bytes,
                }) if of == transfer => {
                    let start = usize::try_from(local).unwrap_or(usize::MAX);
                    let end = start.saturating_add(bytes.len());
                    let place = part.get_mut(start..end).ok_or_else(|| self.unexpected())?;
                    place.copy_from_slice(bytes);
                }
                Ok(Message::Done {
                    transfer: of,
                    bytes,
                }) if of == transfer => return Ok(bytes),
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Closes the stream in both directions. All ranks.
    ///
    /// # Errors
    /// The interface has ended.
    pub fn close(mut self) -> Result<(), StreamError> {
        match self.ranks.own {
            0 => {
                self.control(&Message::Close)?;
                match &self.edge {
                    Some(edge) => Ok(edge.flush(self.timeout)?),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self) -> u64 {
        self.transfer += 1;
        self.transfer
    }

    fn edge(&self) -> Result<&Edge, StreamError> {
        let closed = || StreamError::Misuse("the stream is not open".into());
        self.edge.as_ref().ok_or_else(closed)
    }

    /// The next message of a transfer. Messages of later transfers are kept.
    fn next(&mut self, transfer: u64) -> Result<Received, StreamError> {
        loop {
            let is_now = |received: &Received| match Message::decode(received) {
                Ok(
                    Message::Request { transfer: of, .. }
                    | Message::Block { transfer: of, .. }
                    | Message::Done { transfer: of, .. },
                ) => of <= transfer,
                _ => true,
            };
            if let Some(at) = self.early.iter().position(is_now) {
                return Ok(self.early.remove(at));
            }
            let received = self.receive_from_stream()?;
            if is_now(&received) {
                return Ok(received);
            }
            self.early.push(received);
        }
    }

    /// The next message of the stream's endpoint on the interface.
    fn receive_from_stream(&self) -> Result<Received, StreamError> {
        let edge = self.edge()?;
        self.receive(&Sender::Interface(edge), Some(edge.target()))
    }

    /// The next message, from `only` if that is given. Waits as long as its sender lives.
    fn receive(&self, sender: &Sender<'_>, only: Option<Address>) -> Result<Received, StreamError> {
        let began = Instant::now();
        loop {
            match self.endpoint.borrow().receive_timeout(CHECK_INTERVAL) {
                Ok(received) if only.is_some_and(|only| only != received.source()) => {}
                Ok(received) => {
                    if let Ok(Message::Ended { why }) = Message::decode(&received) {
                        return Err(self.ended(why));
                    }
                    return Ok(received);
                }
                Err(ReceiveError::TimedOut { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            match sender {
                Sender::Interface(edge) => match edge.watch() {
                    Ok(()) | Err(SendError::Full { .. }) => {}
                    Err(error) => return Err(self.gone(error)),
                },
                Sender::FirstRank { edge, patience } => {
                    let seen = edge.watch();
                    if let Err(error @ SendError::PeerGone { .. }) = seen {
                        return Err(self.ended(&format!("rank 0: {error}")));
                    }
                    // While it lives it may wait for a TCP client, otherwise it may still be starting.
                    let limit = if seen.is_ok() {
                        *patience
                    } else {
                        self.timeout
                    };
                    if began.elapsed() >= limit {
                        return Err(StreamError::Silent {
                            interface: self.interface,
                            seconds: limit.as_secs(),
                        });
                    }
                }
            }
        }
    }
}

/// The process that a rank waits for.
enum Sender<'a> {
    Interface(&'a Edge),
    /// Rank 0, while the stream is being opened.
    FirstRank {
        edge: Edge,
        patience: Duration,
    },
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
