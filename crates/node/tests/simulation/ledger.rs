//! Tracks which messages were accepted, arrived, or were reported lost to the sender: the oracle for
//! "exactly once, whole, in order, or reported" (specification §8, invariants 1 and 2).
//!
//! A *stream* is the traffic of one edge during one session of its sender.

use std::collections::{BTreeMap, BTreeSet};

use crate::payload::{TAG_BYTES, Tag};

/// A process: its node and a counter of restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    pub node: usize,
    pub life: u32,
}

/// A stream of messages.
#[derive(Debug)]
struct Stream {
    from: Life,
    source: u32,
    /// The receiving node, and its process when the stream began.
    to: Life,
    target: u32,
    /// The receiver may refuse messages.
    may_refuse: bool,
    /// Some receiver reads only at the very end.
    idle_reader: bool,
    lengths: Vec<u32>,
    /// Messages below this have arrived or were skipped.
    next: u32,
    /// Messages below this may be missing, because the sender was notified of a refusal.
    refused_below: u32,
    /// Messages below this must be covered by `refused_below`.
    owed_below: u32,
    /// The session has ended, and the sender knows.
    over: bool,
    receiver: Option<Life>,
    unreliable_sent: u32,
    unreliable_seen: BTreeSet<u32>,
}

/// Sender and receiver of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub from: Life,
    pub source: u32,
    pub to: Life,
    pub target: u32,
    pub may_refuse: bool,
    pub idle_reader: bool,
}

/// All streams of a run.
#[derive(Debug, Default)]
pub struct Ledger {
    streams: Vec<Stream>,
    /// The latest stream of an edge that a receiver has seen.
    current: BTreeMap<(Life, usize, u32, u32), u32>,
    lives: BTreeMap<usize, u32>,
    /// First stream that may still be open.
    settled: usize,
}

impl Stream {
    /// Checks a reliable message, which must be the next in order.
    fn take_next(&mut self, tag: &Tag, length: usize, here: &str) -> Result<(), String> {
        match self.lengths.get(tag.index as usize) {
            None => return Err(format!("{here}: never accepted")),
            Some(sent) if *sent as usize != length => {
                return Err(format!("{here}: sent with {sent} bytes"));
            }
            Some(_) => {}
        }
        if tag.index < self.next {
            return Err(format!("{here}: delivered twice or out of order"));
        }
        if tag.index > self.next {
            if !self.may_refuse {
                return Err(format!(
                    "{here}: message {} is missing before it",
                    self.next
                ));
            }
            self.owed_below = tag.index;
        }
        self.next = tag.index + 1;
        Ok(())
    }
}

impl Ledger {
    /// A process starts; messages of its predecessor no longer matter.
    pub fn born(&mut self, process: Life) {
        self.lives.insert(process.node, process.life);
        for stream in &mut self.streams {
            stream.over |= stream.from.node == process.node;
        }
    }

    /// A flow has opened an edge in a session.
    pub fn begin(&mut self, ends: Ends) -> u32 {
        self.streams.push(Stream {
            from: ends.from,
            source: ends.source,
            to: ends.to,
            target: ends.target,
            may_refuse: ends.may_refuse,
            idle_reader: ends.idle_reader,
            lengths: Vec::new(),
            next: 0,
            refused_below: 0,
            owed_below: 0,
            over: false,
            receiver: None,
            unreliable_sent: 0,
            unreliable_seen: BTreeSet::new(),
        });
        u32::try_from(self.streams.len() - 1).expect("streams are few")
    }

    /// The tag of the next message of a stream.
    pub fn next_tag(&self, stream: u32, unreliable: bool) -> Tag {
        let entry = &self.streams[stream as usize];
        let index = if unreliable {
            entry.unreliable_sent
        } else {
            u32::try_from(entry.lengths.len()).expect("messages are few")
        };
        Tag {
            unreliable,
            stream,
            index,
        }
    }

    /// The engine has accepted a message.
    pub fn accepted(&mut self, tag: Tag, length: usize) {
        let entry = &mut self.streams[tag.stream as usize];
        if tag.unreliable {
            entry.unreliable_sent += 1;
        } else {
            entry
                .lengths
                .push(u32::try_from(length).expect("messages are short"));
        }
    }

    /// Records that the sender was notified of the end of the session.
    pub fn told_gone(&mut self, stream: u32) {
        self.streams[stream as usize].over = true;
    }

    /// An endpoint was closed with unread messages: messages in flight to it may be missing without
    /// an error, as they may have arrived.
    pub fn dropped_unread(&mut self, node: usize, endpoint: u32) {
        for stream in &mut self.streams {
            if (stream.to.node, stream.target) == (node, endpoint) {
                let accepted = u32::try_from(stream.lengths.len()).expect("messages are few");
                stream.refused_below = accepted;
            }
        }
    }

    /// Records that the sender was notified that the receiver refuses messages.
    pub fn told_refused(&mut self, stream: u32) -> Result<(), String> {
        let entry = &mut self.streams[stream as usize];
        entry.refused_below = u32::try_from(entry.lengths.len()).expect("messages are few");
        if entry.may_refuse {
            return Ok(());
        }
        Err(format!(
            "stream {stream} was refused though endpoint {} of node {} is always open",
            entry.target,
            entry.to.node + 1
        ))
    }

    /// An application has received a message; returns which one.
    pub fn received(
        &mut self,
        at: Life,
        endpoint: u32,
        from_node: usize,
        source: u32,
        message: &[u8],
    ) -> Result<Tag, String> {
        let edge = (at, from_node, source, endpoint);
        let here = format!(
            "endpoint {endpoint} of node {} got {} bytes from {}:{source}",
            at.node + 1,
            message.len(),
            from_node + 1
        );
        let tag = if message.len() >= TAG_BYTES {
            Tag::of(message).ok_or_else(|| format!("{here}: this message was never sent"))?
        } else {
            let stream = *self
                .current
                .get(&edge)
                .ok_or_else(|| format!("{here}: too short for a first message"))?;
            Tag {
                unreliable: false,
                stream,
                index: self.streams[stream as usize].next,
            }
        };
        let entry = self
            .streams
            .get_mut(tag.stream as usize)
            .ok_or_else(|| format!("{here}: no stream {}", tag.stream))?;
        let here = format!("{here}, message {} of stream {}", tag.index, tag.stream);
        let ends = (entry.from.node, entry.source, entry.to.node, entry.target);
        if ends != (from_node, source, at.node, endpoint) {
            return Err(format!("{here}: sent on another edge, {ends:?}"));
        }
        if !tag.made(message) {
            return Err(format!("{here}: the contents are not what was sent"));
        }
        if *entry.receiver.get_or_insert(at) != at {
            return Err(format!(
                "{here}: an earlier process has read of this stream"
            ));
        }
        if tag.unreliable {
            if tag.index >= entry.unreliable_sent {
                return Err(format!("{here}: unreliable, and never sent"));
            }
            if !entry.unreliable_seen.insert(tag.index) {
                return Err(format!("{here}: unreliable, and delivered twice"));
            }
            return Ok(tag);
        }
        entry.take_next(&tag, message.len(), &here)?;
        let newest = self.current.entry(edge).or_insert(tag.stream);
        if *newest > tag.stream {
            return Err(format!(
                "{here}: after a message of the later stream {newest}"
            ));
        }
        *newest = tag.stream;
        Ok(tag)
    }

    /// True if all messages of a stream have arrived or were reported.
    pub fn is_settled(&self, stream: u32) -> bool {
        self.unsettled(&self.streams[stream as usize]).is_none()
    }

    /// Describes what is still open, in all streams or only in those whose receivers read.
    pub fn open(&mut self, with_idle_readers: bool) -> Option<String> {
        while let Some(stream) = self.streams.get(self.settled)
            && stream.over
        {
            self.settled += 1;
        }
        let first = self.settled;
        self.streams[first..]
            .iter()
            .enumerate()
            .filter(|(_, stream)| with_idle_readers || !stream.idle_reader)
            .find_map(|(index, stream)| {
                let what = self.unsettled(stream)?;
                Some(format!("stream {}: {what}", first + index))
            })
    }

    fn unsettled(&self, stream: &Stream) -> Option<String> {
        // A crashed process loses what it had acknowledged but not read. Its peers must give up
        // what it had not acknowledged before the run is quiet.
        let receiver = stream.receiver.unwrap_or(stream.to);
        let receiver_lives = self.lives.get(&receiver.node) == Some(&receiver.life);
        if stream.over || !receiver_lives {
            return None;
        }
        let accepted = u32::try_from(stream.lengths.len()).expect("messages are few");
        let owed = if stream.next < accepted {
            accepted
        } else {
            stream.owed_below
        };
        (owed > stream.refused_below).then(|| {
            format!(
                "of {accepted} messages from {}:{} to {}:{} those from {} on did not arrive \
                 (or some below {}), and the sender was told so only below {}",
                stream.from.node + 1,
                stream.source,
                stream.to.node + 1,
                stream.target,
                stream.next,
                stream.owed_below,
                stream.refused_below
            )
        })
    }
}
