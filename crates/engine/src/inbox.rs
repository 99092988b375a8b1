//! The token buffer pool of an endpoint (DP §4.2): its unread messages.
//!
//! Small messages are copied once, from the link's buffer into an arena that grows with the load.
//! Long ones are assembled in their own buffers. Received messages refer to that memory without
//! another copy. Arenas and buffers are reused after their messages have been dropped, so that a
//! steady stream does not allocate.

use std::collections::VecDeque;
use std::ops::{Deref, RangeInclusive};
use std::sync::{Arc, Mutex, PoisonError};

use dipole_link::arena::{Arena, ArenaSlice};
use dipole_proto::{EdgeId, PeerId};

use crate::address::Address;
use crate::region::{Notice, RegionKey};

const FIRST_ARENA_BYTES: usize = 4 << 10;
const LARGEST_ARENA_BYTES: usize = 256 << 10;
/// Arenas that an endpoint keeps after all its messages have been taken.
const IDLE_ARENAS: usize = 4;
/// Limit of arenas searched for an empty one; more than a full pool needs.
const MAX_ARENAS: usize = 512;
/// Arena overhead per message.
const ARENA_OVERHEAD_BYTES: usize = 64;
/// Limit of free memory that a process keeps for later messages.
const SPARE_BYTES: usize = 32 << 20;

/// A received message, without a copy.
#[derive(Debug)]
pub struct Message {
    payload: Payload,
    origin: Origin,
    /// It is the notice of a put, [`NOTICE_BYTES`] long.
    is_notice: bool,
}

/// The origin of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// Address of the sending endpoint.
    pub(crate) source: Address,
    /// Id of the sending process, for replies.
    pub(crate) peer: PeerId,
}

#[derive(Debug)]
enum Payload {
    Small(ArenaSlice),
    /// Boxed: rare, and too large to be moved with every message.
    Long(Box<Long>),
}

#[derive(Debug)]
enum Long {
    Buffer(Buffer),
    /// Length of a message in memory offered by a receiver, and the id of the offer. Such messages
    /// do not leave the engine.
    Placed(usize, u32),
}

impl Message {
    /// The endpoint that sent it.
    #[inline]
    #[must_use]
    pub fn source(&self) -> Address {
        self.origin.source
    }

    /// The contents of a notice, which reports a put into a region of the endpoint; such a message
    /// has no bytes. `None` for ordinary messages.
    #[must_use]
    pub fn notice(&self) -> Option<Notice> {
        let bytes = match &self.payload {
            Payload::Small(bytes) if self.is_notice => bytes,
            _ => return None,
        };
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        Some(Notice {
            key: RegionKey(word(0)),
            offset: word(1),
            length: word(2),
            value: word(3),
        })
    }

    /// Length of the message, wherever it is stored.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.placed()
            .map_or_else(|| self.len(), |(length, _)| length)
    }

    /// Length and offer id, if the message is in offered memory.
    #[inline]
    fn placed(&self) -> Option<(usize, u32)> {
        match &self.payload {
            Payload::Small(_) => None,
            Payload::Long(long) => match **long {
                Long::Buffer(_) => None,
                Long::Placed(length, offer) => Some((length, offer)),
            },
        }
    }

    /// The bytes of a long message, which has its own buffer; `None` for others.
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.payload {
            Payload::Small(_) => None,
            Payload::Long(long) => match &mut **long {
                Long::Buffer(buffer) => Some(buffer.bytes_mut()),
                Long::Placed(..) => None,
            },
        }
    }

    /// The process that sent it.
    #[inline]
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.origin.peer
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.payload {
            Payload::Small(piece) if self.is_notice => &piece[..0],
            Payload::Small(piece) => piece,
            Payload::Long(long) => match &**long {
                Long::Buffer(buffer) => buffer.bytes(),
                Long::Placed(..) => &[],
            },
        }
    }
}

/// Length of a notice: the region's key, offset, length, and the sender's value.
pub(crate) const NOTICE_BYTES: usize = 32;

/// Memory for messages, for reuse: buffers for long messages and arenas for others.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    spare: Mutex<Spare>,
}

#[derive(Debug, Default)]
struct Spare {
    buffers: Vec<Vec<u8>>,
    arenas: Vec<Arena>,
    /// Total size of both.
    bytes: usize,
}

impl Spare {
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= SPARE_BYTES && self.buffers.len() + self.arenas.len() < 1024
    }
}

impl Buffers {
    /// Takes a buffer of `length` bytes with arbitrary contents.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> Buffer {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |buffer: &Vec<u8>| buffer.len() >= length && buffer.len() / 4 <= length.max(4096);
        let bytes = match spare.buffers.iter().rposition(fits) {
            Some(index) => {
                let buffer = spare.buffers.swap_remove(index);
                spare.bytes -= buffer.len();
                buffer
            }
            None => vec![0; length.max(512)],
        };
        Buffer {
            bytes,
            length,
            home: Arc::clone(self),
        }
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.has_room(buffer.len()) {
            spare.bytes += buffer.len();
            spare.buffers.push(buffer);
        }
    }

    /// Takes the arena of a suitable size that was returned last, as it is still in the cache.
    fn take_arena(&self, bytes: RangeInclusive<usize>) -> Option<Arena> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |arena: &Arena| bytes.contains(&arena.bytes());
        let index = spare.arenas.iter().rposition(fits)?;
        let arena = spare.arenas.remove(index);
        spare.bytes -= arena.bytes();
        Some(arena)
    }

    /// Returns an arena without messages.
    fn give_back_arena(&self, arena: Arena) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.has_room(arena.bytes()) {
            spare.bytes += arena.bytes();
            spare.arenas.push(arena);
        }
    }
}

/// A buffer that is returned for reuse when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    length: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.bytes));
    }
}

/// The credit that a message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// None: the message was unreliable.
    None,
    /// Credit of this edge.
    Edge(EdgeId),
}

/// Location of an endpoint's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Address of the first byte.
    pub base: usize,
    /// Length of the message in bytes.
    pub bytes: usize,
}

/// A queued message and the credit it holds.
#[derive(Debug)]
pub(crate) struct Token {
    /// Credit that the message holds.
    pub(crate) charge: Charge,
    pub(crate) message: Message,
}

// Both types are moved once or twice per message.
const _: () = assert!(size_of::<Message>() <= 32 && size_of::<Token>() <= 48);

/// The unread messages of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    queue: VecDeque<Token>,
    arena: Option<Arena>,
    /// Full arenas, until their messages have been dropped.
    others: Vec<Arena>,
    /// Address of the arena that was set explicitly; it is not reused elsewhere.
    pool: Option<usize>,
    buffers: Arc<Buffers>,
}

impl Inbox {
    /// Creates an empty inbox that takes memory from `buffers`.
    pub(crate) fn new(buffers: Arc<Buffers>) -> Inbox {
        Inbox {
            buffers,
            ..Inbox::default()
        }
    }

    /// Adds a small message that `fill` writes.
    #[inline]
    pub(crate) fn push_with(
        &mut self,
        charge: Charge,
        origin: Origin,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let message = self.message(origin, length, fill);
        self.queue.push_back(Token { charge, message });
    }

    /// Adds the notice of a put.
    pub(crate) fn push_notice(
        &mut self,
        charge: Charge,
        origin: Origin,
        notice: &[u8; NOTICE_BYTES],
    ) {
        let place = |place: &mut [u8]| place.copy_from_slice(notice);
        let mut message = self.message(origin, NOTICE_BYTES, place);
        message.is_notice = true;
        self.queue.push_back(Token { charge, message });
    }

    /// Creates a small message that `fill` writes, for a receiver that gets it at once.
    #[inline]
    pub(crate) fn message(
        &mut self,
        origin: Origin,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Message {
        let mut fill = fill;
        let piece = loop {
            if let Some(arena) = &mut self.arena {
                match arena.allocate(length, fill) {
                    Ok(piece) => break piece,
                    Err(not_called) => fill = not_called,
                }
            }
            self.next_arena(length);
        };
        Message {
            payload: Payload::Small(piece),
            origin,
            is_notice: false,
        }
    }

    /// Sets an arena of `bytes` for messages; returns its location.
    pub(crate) fn set_arena(&mut self, bytes: usize) -> Option<Pool> {
        let arena = Arena::new(bytes)?;
        let pool = Pool {
            base: arena.base().addr(),
            bytes: arena.bytes(),
        };
        self.others.extend(self.arena.replace(arena));
        self.pool = Some(pool.base);
        Some(pool)
    }

    /// Adds a long message.
    pub(crate) fn push_buffer(&mut self, charge: Charge, origin: Origin, buffer: Buffer) {
        let message = Message {
            payload: Payload::Long(Box::new(Long::Buffer(buffer))),
            origin,
            is_notice: false,
        };
        self.queue.push_back(Token { charge, message });
    }

    /// Adds a message in offered memory.
    pub(crate) fn push_placed(
        &mut self,
        charge: Charge,
        origin: Origin,
        (length, offer): (usize, u32),
    ) {
        let message = Message {
            payload: Payload::Long(Box::new(Long::Placed(length, offer))),
            origin,
            is_notice: false,
        };
        self.queue.push_back(Token { charge, message });
    }

    /// The offer that holds the oldest message, if any.
    pub(crate) fn next_placed(&self) -> Option<u32> {
        let (_, offer) = self.queue.front()?.message.placed()?;
        Some(offer)
    }

    /// Replaces offered memory by a buffer with a copy of the message.
    pub(crate) fn replace_placed(&mut self, offer: u32, buffer: Buffer) {
        let mut messages = self.queue.iter_mut().map(|token| &mut token.message);
        let is_it = |message: &&mut Message| message.placed().is_some_and(|(_, it)| it == offer);
        if let Some(message) = messages.find(is_it) {
            message.payload = Payload::Long(Box::new(Long::Buffer(buffer)));
        }
    }

    /// Takes the oldest message.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Token> {
        let token = self.queue.pop_front();
        if self.queue.is_empty() && self.others.len() > IDLE_ARENAS {
            self.give_back_empty();
        }
        token
    }

    /// Length of the oldest message if it is not a notice.
    pub(crate) fn next_payload(&self) -> Option<usize> {
        let message = &self.queue.front()?.message;
        (!message.is_notice).then(|| message.length())
    }

    /// The oldest message.
    pub(crate) fn next(&self) -> Option<&Message> {
        self.queue.front().map(|token| &token.message)
    }

    /// True if there are no messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Replaces the full arena by an emptied or a larger one.
    #[cold]
    fn next_arena(&mut self, length: usize) {
        let needed = length + ARENA_OVERHEAD_BYTES;
        let full = self.arena.take();
        let double = full.as_ref().map_or(0, |full| full.bytes() * 2);
        self.others.extend(full);
        if self.others.len() > MAX_ARENAS {
            // The program keeps messages that it has received.
            self.others.drain(..MAX_ARENAS / 2);
        }
        let is_own = |arena: &mut Arena| Some(arena.base().addr()) == self.pool;
        let is_ready = |arena: &mut Arena| is_own(arena) && arena.is_empty();
        let own = self.others.extract_if(.., is_ready).next();
        if own.as_ref().is_some_and(|own| own.bytes() >= needed) {
            self.arena = own;
            return;
        }
        self.others.extend(own);
        self.give_back_empty();
        let bytes = double.clamp(FIRST_ARENA_BYTES, LARGEST_ARENA_BYTES);
        let bytes = bytes.max(needed);
        let emptied = self.buffers.take_arena(needed..=bytes);
        let new = || Arena::new(bytes).expect("memory for a message");
        self.arena = Some(emptied.unwrap_or_else(new));
    }

    /// Returns empty arenas for use by other inboxes.
    #[cold]
    fn give_back_empty(&mut self) {
        let pool = self.pool;
        let is_spare = |arena: &mut Arena| Some(arena.base().addr()) != pool && arena.is_empty();
        for arena in self.others.extract_if(.., is_spare) {
            self.buffers.give_back_arena(arena);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{EndpointId, NodeId};
    use dipole_proto::{Config, Machine};
    use std::collections::HashSet;

    fn origin() -> Origin {
        let mut machine = Machine::new(Config::default(), 1, [1, 2], &[]);
        let greeting = machine.greeting();
        Origin {
            source: Address {
                node: NodeId(1),
                endpoint: EndpointId(2),
            },
            peer: machine.open_pipe(greeting).unwrap(),
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let (mut inbox, origin) = (Inbox::default(), origin());
        let sent: Vec<Vec<u8>> = (0..500_usize).map(|index| vec![7; index * 3]).collect();
        for message in &sent {
            inbox.push_with(Charge::None, origin, message.len(), |place| {
                place.copy_from_slice(message);
            });
        }
        let kept: Vec<Message> =
            std::iter::from_fn(|| inbox.pop().map(|token| token.message)).collect();
        for (message, original) in kept.iter().zip(&sent) {
            assert_eq!(&**message, original.as_slice());
        }
        assert_eq!(kept.len(), sent.len());
    }

    #[test]
    fn the_memory_of_a_burst_is_reused_even_by_other_inboxes() {
        let (buffers, origin) = (Arc::new(Buffers::default()), origin());
        // Addresses of the arenas that it needs.
        let burst = |inbox: &mut Inbox| {
            let mut places = HashSet::new();
            for _ in 0..100 {
                inbox.push_with(Charge::None, origin, 16 << 10, |_| ());
                places.extend(inbox.arena.as_ref().map(|arena| arena.base().addr()));
            }
            while inbox.pop().is_some() {}
            assert!(inbox.others.len() <= IDLE_ARENAS);
            places
        };
        let mut inboxes = [(); 2].map(|()| Inbox::new(Arc::clone(&buffers)));
        let mut places = HashSet::new();
        for _ in 0..10 {
            places.extend(inboxes.iter_mut().flat_map(&burst));
        }
        // Those of one burst, smaller ones from its start, and those kept by the other inbox.
        assert!(places.len() < 20, "{} arenas", places.len());
    }

    #[test]
    fn an_explicit_pool_is_reused_and_not_shared() {
        let (buffers, origin) = (Arc::new(Buffers::default()), origin());
        let mut inbox = Inbox::new(Arc::clone(&buffers));
        let pool = inbox.set_arena(1 << 20).expect("memory");
        let lies_in_pool = |message: &Message| {
            let at = message.as_ptr().addr();
            (pool.base..pool.base + pool.bytes).contains(&at)
        };
        for _ in 0..3 {
            for _ in 0..200 {
                inbox.push_with(Charge::None, origin, 16 << 10, |_| ());
            }
            let tokens = std::iter::from_fn(|| inbox.pop());
            let inside = tokens.filter(|token| lies_in_pool(&token.message)).count();
            assert!(inside > 50, "{inside} of 200");
        }
        let spare = buffers.spare.lock().unwrap();
        let others = spare.arenas.iter();
        assert!(others.clone().count() > 0);
        assert!(others.clone().all(|arena| arena.base().addr() != pool.base));
    }

    #[test]
    fn buffers_are_reused() {
        let buffers = Arc::new(Buffers::default());
        let first = buffers.take(100_000);
        let place = first.bytes().as_ptr();
        drop(first);
        assert_eq!(buffers.take(99_000).bytes().as_ptr(), place);
    }
}
