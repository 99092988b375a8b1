//! One of the two processes: its machine, the messages it stores and has read, and its calls.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::sync::atomic::Ordering;

use dipole_proto::{BeginError, Delivery, EdgeId, Event, Machine, PeerId};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::{Exchange, LONG_BYTES, NOW, READ_AT_ONCE, WHOLE_BYTES};
use crate::model::explore::GONE;
use crate::model::memory::{ANSWERS, Answer, Ask, Asking, Concluded, Owner, PiecePlace, data_byte};
use crate::model::shared::Part;

#[derive(Clone, Debug, Hash)]
pub(super) struct Record {
    pub(super) tag: u64,
    pub(super) bytes: Vec<u8>,
}

/// A long message that its sender keeps.
#[derive(Clone, Debug, Hash)]
pub(super) struct Kept {
    pub(super) edge: EdgeId,
    pub(super) sequence: u64,
    pub(super) mark: [u8; 2],
    /// The message is an operation: only its data is sent, and its id is the mark that identifies it.
    pub(super) operation: bool,
    /// Bytes sent in pieces; `None` while it may be copied.
    pub(super) streamed: Option<u64>,
}

/// A long message that is to be copied.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Fetch {
    pub(super) edge: EdgeId,
    pub(super) sequence: u64,
    pub(super) number: u32,
    pub(super) total: u64,
    pub(super) address: u64,
}

/// A message that has arrived in part.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Held {
    pub(super) target: u32,
    pub(super) mark: [u8; 2],
    pub(super) got: u64,
    pub(super) total: u64,
}

impl Held {
    fn add(&mut self, piece: &[u8]) -> Result<(), String> {
        self.got += piece.len() as u64;
        if piece.len() >= 2 {
            self.mark.copy_from_slice(&piece[..2]);
        }
        match self.got > self.total {
            true => Err("more pieces than the message has bytes".into()),
            false => Ok(()),
        }
    }
}

#[derive(Clone)]
pub(super) struct Process {
    pub(super) machine: Machine,
    pub(super) peer: PeerId,
    /// The next call of each thread, and how much of it is done.
    pub(super) progress: Vec<(usize, u8)>,
    pub(super) edges: BTreeMap<u32, EdgeId>,
    pub(super) sent: BTreeMap<u32, u8>,
    pub(super) kept: Vec<Kept>,
    pub(super) fetches: VecDeque<Fetch>,
    /// Messages that are incomplete or not next.
    pub(super) held: BTreeMap<(u32, u64), Held>,
    /// Messages to read: edge, length, and number of the sender's message.
    pub(super) inbox: BTreeMap<u32, VecDeque<(EdgeId, u64, u8)>>,
    /// The message expected next at each endpoint, or a later one after a refusal.
    pub(super) expected: BTreeMap<u32, u8>,
    /// Endpoints that are not always open: messages to them may be missing.
    pub(super) lossy: BTreeSet<u32>,
    /// It was notified of a refusal.
    pub(super) was_refused: bool,
    pub(super) owner: Owner,
    pub(super) asking: Asking,
    /// Derived from the rest when it is needed.
    pub(super) digest: OnceCell<u128>,
}

impl Part for Process {
    fn forget_derived(&mut self) {
        self.digest.take();
    }
}

impl Process {
    /// Identifies states that behave alike.
    pub(super) fn digest(&self) -> u128 {
        *self.digest.get_or_init(|| {
            let mut hasher = SipHasher13::new();
            self.machine.hash_shared(&mut hasher);
            self.machine.hash_pipe(self.peer, &mut hasher);
            self.progress.hash(&mut hasher);
            (&self.edges, &self.sent, &self.kept).hash(&mut hasher);
            (&self.fetches, &self.held, &self.inbox).hash(&mut hasher);
            (&self.expected, &self.lossy, self.was_refused).hash(&mut hasher);
            (&self.owner, &self.asking).hash(&mut hasher);
            hasher.finish128().as_u128()
        })
    }

    /// The edge to an endpoint, opened on first use.
    pub(super) fn edge(&mut self, target: u32) -> Option<EdgeId> {
        if let Some(edge) = self.edges.get(&target) {
            return Some(*edge);
        }
        let source = if target == ANSWERS { ANSWERS } else { 1 };
        let edge = self.machine.edge(self.peer, source, target).ok()?;
        Some(*self.edges.entry(target).or_insert(edge))
    }

    /// Pushes the queued records. Returns true if there is room for one more.
    pub(super) fn push_records(&mut self, ring: &mut VecDeque<(Record, u8)>, slots: usize) -> bool {
        while ring.len() < slots {
            let Some(record) = self.machine.poll_record(self.peer) else {
                return true;
            };
            self.machine.pop_record(self.peer);
            let (tag, bytes) = (record.tag, record.bytes().to_vec());
            ring.push_back((Record { tag, bytes }, GONE));
        }
        false
    }

    /// Returns true if the request was sent; otherwise nothing has begun.
    pub(super) fn ask(
        &mut self,
        (target, ask): (u32, Ask),
        ring: &mut VecDeque<(Record, u8)>,
        exchange: &Exchange,
        index: usize,
    ) -> bool {
        let Some(edge) = self.edge(target) else {
            return false;
        };
        let id = self.asking.next_id();
        let head = ask.head(id).to_bytes();
        let begun = match self.machine.begin(NOW, edge, 0) {
            Ok(begun) => begun,
            Err(why) => {
                if matches!(why, BeginError::Refused(_)) {
                    self.machine.clear_refusal(edge);
                    self.was_refused = true;
                }
                return false;
            }
        };
        if ask.is_long() {
            let mark = [index as u8 + 1, id as u8];
            let address = u64::from(mark[0]) << 8 | u64::from(mark[1]);
            let mut kept = self.kept.iter();
            let is_offered = kept.any(|kept| kept.edge == edge && kept.streamed.is_none());
            let announced = exchange.announced >> id & 1 == 1 && !is_offered;
            match announced {
                true => self.machine.announce(edge, begun, LONG_BYTES, Some(&head)),
                false => {
                    let place = (LONG_BYTES, address);
                    self.machine.offer(edge, begun, place, Some(&head));
                }
            }
            self.kept.push(Kept {
                edge,
                sequence: begun.sequence,
                mark,
                operation: true,
                streamed: announced.then_some(0),
            });
        } else {
            if !self.push_records(ring, exchange.slots) {
                self.machine.retract(edge, 0);
                return false;
            }
            let data = vec![data_byte(id); ask.data_bytes()];
            let bytes = [&head[..], &data].concat();
            let tag = Machine::message_tag(edge, true);
            ring.push_back((Record { tag, bytes }, GONE));
        }
        self.asking.asked(ask);
        true
    }

    /// Pushes the oldest answer, if there is one and room for it, and releases what it holds.
    pub(super) fn push_answer(&mut self, ring: &mut VecDeque<(Record, u8)>, slots: usize) -> bool {
        if self.owner.answers.is_empty() {
            return false;
        }
        let Some(edge) = self.edge(ANSWERS) else {
            return false;
        };
        if self.machine.begin(NOW, edge, 0).is_err() {
            return false;
        }
        if !self.push_records(ring, slots) {
            self.machine.retract(edge, 0);
            return false;
        }
        let Some(Answer { head, data, charge }) = self.owner.answers.pop_front() else {
            return false;
        };
        let bytes = [&head.to_bytes()[..], &data].concat();
        let tag = Machine::message_tag(edge, true);
        ring.push_back((Record { tag, bytes }, GONE));
        if let Some(edge) = charge {
            self.machine.consumed(NOW, edge, 0);
        }
        true
    }

    /// An operation is done; releases what it holds.
    pub(super) fn concluded(&mut self, target: u32, concluded: Concluded) {
        match concluded {
            Concluded::Answered(edge) => self.machine.consumed(NOW, edge, 0),
            Concluded::Notice(edge) => {
                let inbox = self.inbox.entry(target).or_default();
                inbox.push_back((edge, 0, 0));
            }
            Concluded::Asked => {}
        }
    }

    /// Returns true if the message was sent; otherwise nothing has begun.
    pub(super) fn send(
        &mut self,
        target: u32,
        long: bool,
        ring: &mut VecDeque<(Record, u8)>,
        exchange: &Exchange,
        index: usize,
    ) -> bool {
        let Some(edge) = self.edge(target) else {
            return false;
        };
        let number = *self.sent.entry(target).or_default();
        let mark = [index as u8 + 1, target as u8 * 16 + number];
        let total = if long { LONG_BYTES } else { WHOLE_BYTES };
        let begun = match self.machine.begin(NOW, edge, total) {
            Ok(begun) => begun,
            Err(BeginError::Refused(_)) => {
                // After a refusal it continues and counts the message as done.
                self.machine.clear_refusal(edge);
                self.was_refused = true;
                *self.sent.entry(target).or_default() += 1;
                return true;
            }
            Err(_) => return false,
        };
        if long {
            let address = u64::from(mark[0]) << 8 | u64::from(mark[1]);
            let mut kept = self.kept.iter();
            let is_offered = kept.any(|kept| kept.edge == edge && kept.streamed.is_none());
            let announced = exchange.announced >> number & 1 == 1 && !is_offered;
            match announced {
                true => self.machine.announce(edge, begun, total, None),
                false => self.machine.offer(edge, begun, (total, address), None),
            }
            self.kept.push(Kept {
                edge,
                sequence: begun.sequence,
                mark,
                operation: false,
                streamed: announced.then_some(0),
            });
        } else {
            if !self.push_records(ring, exchange.slots) {
                self.machine.retract(edge, total);
                return false;
            }
            let tag = Machine::message_tag(edge, false);
            let bytes = mark.to_vec();
            ring.push_back((Record { tag, bytes }, GONE));
        }
        *self.sent.entry(target).or_default() += 1;
        true
    }

    /// A read at once must have the same effect as accepting a message and reading it later.
    pub(super) fn compare_reading(
        &self,
        mut before: Machine,
        (number, length): (u32, usize),
        delivery: Delivery,
    ) -> Result<(), String> {
        let reader = delivery.key.target;
        if before
            .on_pipe_message_read(NOW, self.peer, number, length, reader + 1)
            .is_some()
        {
            return Err("a message was read at an endpoint it is not for".into());
        }
        let read = before.on_pipe_message_read(NOW, self.peer, number, length, reader);
        let Some(read) = read else {
            return Ok(());
        };
        READ_AT_ONCE.fetch_add(1, Ordering::Relaxed);
        let mut after = self.machine.clone();
        after.consumed(NOW, delivery.edge, length as u64);
        let [short, long] = [before, after].map(|mut machine| {
            let mut hasher = SipHasher13::new();
            machine.hash_shared(&mut hasher);
            machine.hash_pipe(self.peer, &mut hasher);
            let events: Vec<_> = core::iter::from_fn(|| machine.poll_event()).collect();
            let ready = machine.poll_ready_pipe();
            let counters = format!("{:?}", machine.stats());
            (
                hasher.finish128().as_u128(),
                format!("{events:?}"),
                ready,
                counters,
            )
        });
        match read == delivery && short == long {
            true => Ok(()),
            false => Err(format!("read at once {short:?}, taken and read {long:?}")),
        }
    }

    pub(super) fn read(&mut self, endpoint: u32) -> bool {
        let inbox = self.inbox.entry(endpoint).or_default();
        let Some((edge, length, _)) = inbox.pop_front() else {
            return false;
        };
        self.machine.consumed(NOW, edge, length);
        true
    }

    pub(super) fn arrived(
        &mut self,
        edge: EdgeId,
        (source, target): (u32, u32),
        length: u64,
        mark: u8,
    ) -> Result<(), String> {
        let expected = self.expected.entry(target).or_default();
        let number = mark.wrapping_sub(target as u8 * 16);
        let may_skip = self.lossy.contains(&target);
        if source != 1 || number < *expected || number > *expected && !may_skip {
            return Err(format!(
                "message {expected} expected at endpoint {target}, {number} arrived"
            ));
        }
        *expected = number + 1;
        let inbox = self.inbox.entry(target).or_default();
        inbox.push_back((edge, length, number));
        Ok(())
    }

    pub(super) fn events(&mut self, record: &[u8]) -> Result<(), String> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Hold {
                    edge,
                    target,
                    sequence,
                    offset,
                    bytes,
                    total,
                    operation,
                } => {
                    if operation || self.owner.is_arriving((edge.index, sequence)) {
                        let of = (edge.index, sequence, target);
                        let place = PiecePlace {
                            offset,
                            total,
                            has_head: operation,
                        };
                        self.owner.hold(of, place, &record[bytes])?;
                        continue;
                    }
                    let held = self.held.entry((edge.index, sequence)).or_default();
                    (held.target, held.total) = (target, total);
                    held.add(&record[bytes])?;
                }
                Event::Complete {
                    edge,
                    source,
                    target,
                    sequence,
                } => {
                    if self.owner.is_arriving((edge.index, sequence)) {
                        let of = (edge, source);
                        let concluded = self.owner.complete(&mut self.asking, of, sequence)?;
                        self.concluded(target, concluded);
                        continue;
                    }
                    let held = self.held.remove(&(edge.index, sequence));
                    let held = held.ok_or("a message is complete that never arrived")?;
                    self.arrived(edge, (source, target), held.got, held.mark[1])?;
                }
                Event::Fetch {
                    edge,
                    sequence,
                    number,
                    total,
                    address,
                } => self.fetches.push_back(Fetch {
                    edge,
                    sequence,
                    number,
                    total,
                    address,
                }),
                Event::OfferDone { edge, sequence } => self
                    .kept
                    .retain(|kept| (kept.edge, kept.sequence) != (edge, sequence)),
                Event::PiecesRequested { edge, sequence } => {
                    let mut kept = self.kept.iter_mut();
                    let kept = kept.find(|it| (it.edge, it.sequence) == (edge, sequence));
                    kept.ok_or("a stream without a message")?.streamed = Some(0);
                }
                Event::Operation {
                    edge,
                    source,
                    target,
                    bytes,
                } => {
                    let of = (edge, source, target);
                    let concluded = self.owner.whole(&mut self.asking, of, &record[bytes])?;
                    self.concluded(target, concluded);
                }
                Event::Refused { .. } => self.was_refused = true,
                Event::Credit { .. } | Event::EdgeForgotten { .. } => {}
                other => return Err(format!("unexpected event {other:?}")),
            }
        }
        Ok(())
    }
}
