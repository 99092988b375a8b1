//! A stream, at a rank.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use dipole_node::{Address, Edge, Endpoint, Message as Received, ReceiveError, SendError};

use crate::error::StreamError;
use crate::layout::Layout;
use crate::message::{BLOCK_BYTES, Message};

const LOOK: Duration = Duration::from_millis(50);
/// How long the others are told that a stream could not be opened.
const TO_TELL: Duration = Duration::from_secs(2);

/// Who reads and writes together.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// Which of them this process is.
    pub own: u32,
    /// The endpoint of each, this stream's alone.
    pub addresses: Vec<Address>,
}

/// See the module. It has its rank's endpoint, by reference or as its own. All ranks open it and make the calls marked "all ranks" in the same order; control is
/// rank 0's. Nothing else may be sent to the endpoint meanwhile.
#[derive(Debug)]
pub struct Stream<E> {
    endpoint: E,
    ranks: Ranks,
    interface: Address,
    /// To the stream's endpoint there; none while it is opened.
    edge: Option<Edge>,
    transfer: u64,
    patience: Duration,
    /// What came for a transfer that this rank has not begun.
    early: Vec<Received>,
}

impl<E: Borrow<Endpoint>> Stream<E> {
    /// Opens a TCP stream to `to` (`host:port`) through the interface at an address. All ranks. Whoever
    /// does not answer, or take, for `patience` during a transfer ends the stream for all.
    ///
    /// # Errors
    /// The interface refuses or cannot connect, or is silent, or a rank is.
    pub fn open(
        endpoint: E,
        ranks: Ranks,
        interface: Address,
        to: &str,
        patience: Duration,
    ) -> Result<Stream<E>, StreamError> {
        let address = endpoint.borrow().address();
        if ranks.addresses.get(ranks.own as usize) != Some(&address) {
            let own = ranks.own;
            return Err(StreamError::Misuse(format!(
                "rank {own} is not at {address} in the list of ranks: give each rank's own endpoint"
            )));
        }
        let mut stream = Stream {
            endpoint,
            ranks,
            interface,
            edge: None,
            transfer: 0,
            patience,
            early: Vec::new(),
        };
        if stream.ranks.own == 0 {
            let open = Message::Open {
                to,
                ranks: stream.ranks.addresses.clone(),
                patience_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
            };
            let opened = stream.ask(&open);
            match &opened {
                Ok(edge) => {
                    let at = edge.target();
                    stream.tell_others(&Message::Opened { at }, patience)?;
                }
                Err(error) => {
                    let why = match error {
                        StreamError::Ended { why, .. } => why.clone(),
                        error => error.to_string(),
                    };
                    // The interface may have told them, too, and they may be gone.
                    let ended = Message::Ended { why: &why };
                    let _gone = stream.tell_others(&ended, TO_TELL.min(patience));
                }
            }
            stream.edge = Some(opened?);
        } else {
            // Nobody else: the interface may still be telling those who were at this endpoint before.
            let first = stream.ranks.addresses[0];
            let received = stream.receive(None, Some(first))?;
            match Message::decode(&received) {
                Ok(Message::Opened { at }) => {
                    stream.edge = Some(stream.endpoint.borrow().edge(at)?)
                }
                _ => return Err(stream.unexpected()),
            }
        }
        Ok(stream)
    }

    /// Asks the interface to open it; an edge to the stream's endpoint there.
    fn ask(&self, open: &Message<'_>) -> Result<Edge, StreamError> {
        let interface = self.endpoint.borrow().edge(self.interface)?;
        interface.send_timeout(&open.encode(), self.patience)?;
        let received = self.receive(Some(&interface), None)?;
        match Message::decode(&received) {
            Ok(Message::Opened { at }) => Ok(self.endpoint.borrow().edge(at)?),
            _ => Err(self.unexpected()),
        }
    }

    /// Tells the other ranks, who may come later, how that went.
    fn tell_others(&self, told: &Message<'_>, patience: Duration) -> Result<(), StreamError> {
        let mut edges = Vec::new();
        for rank in &self.ranks.addresses[1..] {
            edges.push(self.endpoint.borrow().edge(*rank)?);
        }
        let bytes = told.encode();
        let sent = edges.iter().map(|edge| edge.send_timeout(&bytes, patience));
        // All are told, whoever is gone.
        let sent: Vec<Result<(), SendError>> = sent.collect();
        for (edge, sent) in edges.iter().zip(sent) {
            sent.and_then(|()| edge.flush(patience))?;
        }
        Ok(())
    }

    /// Writes bytes as they stand. Rank 0.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn write_raw(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        for bytes in bytes.chunks(usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX)) {
            self.control(&Message::WriteRaw { bytes })?;
        }
        Ok(())
    }

    /// Reads some bytes, at most so many; none at the end of the stream. Rank 0.
    ///
    /// # Errors
    /// The stream is over, or the interface gone.
    pub fn read_raw(&mut self, most: usize) -> Result<Vec<u8>, StreamError> {
        self.control(&Message::ReadRaw { most: most as u64 })?;
        loop {
            let received =
                self.receive(self.edge.as_ref(), self.edge.as_ref().map(Edge::target))?;
            if let Ok(Message::RawBytes { bytes }) = Message::decode(&received) {
                return Ok(bytes.to_vec());
            }
            // What it told all of a transfer before.
        }
    }

    /// Reads until `is_end` says so of what has come, byte by byte as far as it matters: what is behind stays
    /// unread. Rank 0.
    ///
    /// # Errors
    /// Those of [`read_raw`](Self::read_raw); the stream ends before, or `most` bytes have come.
    pub fn read_raw_until(
        &mut self,
        is_end: impl Fn(&[u8]) -> bool,
        most: usize,
    ) -> Result<Vec<u8>, StreamError> {
        let mut all = Vec::new();
        while !is_end(&all) {
            let more = match all.len() < most {
                true => self.read_raw(1)?,
                false => return Err(StreamError::Misuse(format!("no end among {most} bytes"))),
            };
            if more.is_empty() {
                return Err(StreamError::Ended {
                    interface: self.interface,
                    why: format!("the outside has closed it after {} bytes", all.len()),
                });
            }
            all.extend(more);
        }
        Ok(all)
    }

    /// Tells the outside that nothing more comes. Rank 0.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn finish(&mut self) -> Result<(), StreamError> {
        self.control(&Message::Finish)
    }

    fn control(&mut self, message: &Message<'_>) -> Result<(), StreamError> {
        let edge = self.edge.as_ref().filter(|_| self.ranks.own == 0);
        let edge = edge.ok_or_else(|| StreamError::Misuse("control is rank 0's".into()))?;
        edge.send_timeout(&message.encode(), self.patience)
            .map_err(|error| self.gone(error))
    }

    /// Why the interface is gone: what it has said, if that has come.
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
        self.ended("it has sent what makes no sense here: do both run the same version?")
    }

    fn check_part(&self, layout: &Layout, total: u64, found: usize) -> Result<(), StreamError> {
        if let Some(why) = layout.why_not(total) {
            return Err(StreamError::Misuse(why));
        }
        let wanted = layout.part(self.ranks.own, total);
        match found as u64 == wanted {
            true => Ok(()),
            false => Err(StreamError::Misuse(format!(
                "rank {} has {found} bytes, and {wanted} by the layout",
                self.ranks.own
            ))),
        }
    }

    /// Writes `total` bytes, of which this rank has `part`, as the layout deals them out. All ranks. Returns
    /// when the interface has handed all to the outside's connection.
    ///
    /// # Errors
    /// A rank, the interface or the outside has failed.
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
                Ok(Message::Want {
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
                    let patience = self.patience;
                    let sent = self.edge()?.send_timeout(&answer, patience);
                    sent.map_err(|error| self.gone(error))?;
                }
                Ok(Message::Done { transfer: of, .. }) if of == transfer => return Ok(()),
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Reads `total` bytes, of which this rank gets `part`, as the layout deals them out; how many came
    /// for all, which is less only at the end of the stream. All ranks.
    ///
    /// # Errors
    /// A rank, the interface or the outside has failed.
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

    /// Closes it. All ranks; the outside reads the end of the stream.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn close(mut self) -> Result<(), StreamError> {
        match self.ranks.own {
            0 => {
                self.control(&Message::Close)?;
                match &self.edge {
                    Some(edge) => Ok(edge.flush(self.patience)?),
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

    /// The next message of a transfer; those of the next one wait.
    fn next(&mut self, transfer: u64) -> Result<Received, StreamError> {
        loop {
            let is_now = |received: &Received| match Message::decode(received) {
                Ok(
                    Message::Want { transfer: of, .. }
                    | Message::Block { transfer: of, .. }
                    | Message::Done { transfer: of, .. },
                ) => of <= transfer,
                _ => true,
            };
            if let Some(at) = self.early.iter().position(is_now) {
                return Ok(self.early.remove(at));
            }
            let received =
                self.receive(self.edge.as_ref(), self.edge.as_ref().map(Edge::target))?;
            if is_now(&received) {
                return Ok(received);
            }
            self.early.push(received);
        }
    }

    /// The next message, of one sender if that is told. A rank waits for others' ends as long as the interface lives; before that has
    /// spoken, as long as its patience.
    fn receive(&self, edge: Option<&Edge>, only: Option<Address>) -> Result<Received, StreamError> {
        let began = Instant::now();
        loop {
            match self.endpoint.borrow().receive_timeout(LOOK) {
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
            match edge.map(Edge::watch) {
                Some(Ok(()) | Err(SendError::Full { .. })) => {}
                Some(Err(error)) => return Err(self.gone(error)),
                // Nobody to watch yet: rank 0 may not have opened it.
                None if began.elapsed() >= self.patience => {
                    return Err(StreamError::Silent {
                        interface: self.interface,
                        seconds: self.patience.as_secs(),
                    });
                }
                None => {}
            }
        }
    }
}
