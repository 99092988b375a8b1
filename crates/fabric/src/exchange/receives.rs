//! Receives of the program, and messages that arrived before a matching receive was posted.

use std::collections::VecDeque;
use std::sync::Arc;

use dipole_node::{Address, Arriving, Message, Reader};

use super::waiting::Get;
use super::{Entry, Exchange, SendRequest, address};
use crate::abi::errno::{FI_ECANCELED, FI_EINVAL, FI_EIO, FI_ENOMSG, FI_ETRUNC};
use crate::abi::fabric::{FI_MSG, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED};
use crate::completion::Sinks;
use crate::ffi::Failure;
use crate::matching::{Criteria, Matcher, Posted};
use crate::memory::{Pieces, RegisteredMemory};
use crate::name::{Destination, number};
use crate::unexpected::{Held, Unexpected};
use crate::wire::{HEAD_BYTES, Head, Kind, Offer};

/// Unexpected messages that stay in the node's buffers. Further ones are copied, so that their
/// senders get credit again.
const MAX_IN_PLACE: usize = 64;
/// Longest piece that one get fetches.
const MAX_GET_BYTES: usize = 16 << 20;

/// A receive as the program posts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveRequest {
    pub(crate) is_tagged: bool,
    pub(crate) criteria: Criteria,
    pub(crate) to: Pieces,
    pub(crate) context: usize,
    /// The program wants a completion even if the receive succeeds.
    pub(crate) notify: bool,
    /// For a buffer for several messages: it takes messages until fewer bytes than this are left.
    pub(crate) min_room: Option<usize>,
}

/// How the program inspects an unexpected message without receiving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeekMode {
    Peek,
    /// Reserves the message for a receive with the same context.
    Claim,
    /// Drops the message.
    Discard,
}

/// A receive that waits for a message, or the part of a buffer for several messages that one
/// message goes to.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    to: Pieces,
    context: usize,
    notify: bool,
    flags: u64,
    pub(super) source: Option<u64>,
    multi: Option<MultiReceive>,
}

/// The state of a buffer for several messages.
#[derive(Clone, Debug)]
struct MultiReceive {
    min_room: usize,
    used: usize,
    /// Shared by the receive and its parts: the last owner reports that the buffer is free.
    users: Arc<()>,
}

impl Receive {
    fn new(request: &ReceiveRequest) -> Receive {
        Receive {
            to: request.to,
            context: request.context,
            notify: request.notify,
            flags: FI_RECV | kind_flag(request.is_tagged),
            source: request.criteria.source,
            multi: request.min_room.map(|min_room| MultiReceive {
                min_room,
                used: 0,
                users: Arc::new(()),
            }),
        }
    }

    /// Splits off the part of a buffer for several messages that the next one takes. False if
    /// no other message fits after it.
    fn split(&mut self, length: usize) -> (Receive, bool) {
        let mut part = self.clone();
        let room = self.to.length();
        let Some(multi) = &mut self.multi else {
            return (part, false);
        };
        let taken = length.min(room - multi.used);
        part.to = self.to.part(multi.used, taken);
        multi.used += taken;
        (part, room - multi.used >= multi.min_room.max(1))
    }

    /// The completion for a message of `length` bytes.
    fn entry(&self, head: &Head, length: usize, from: u64) -> Entry {
        let room = self.to.length();
        let data = if head.has_data { FI_REMOTE_CQ_DATA } else { 0 };
        let last = match &self.multi {
            Some(multi) if Arc::strong_count(&multi.users) == 1 => FI_MULTI_RECV,
            _ => 0,
        };
        Entry {
            context: self.context,
            flags: self.flags | data | last,
            length: length.min(room),
            buffer: self.to.address(),
            data: head.data,
            tag: head.tag,
            source: from,
            failure: (length > room).then(|| (FI_ETRUNC, length - room)),
        }
    }
}

fn kind_flag(is_tagged: bool) -> u64 {
    if is_tagged { FI_TAGGED } else { FI_MSG }
}

/// A message that waits for a receive.
pub(crate) struct UnexpectedMessage {
    head: Head,
    from: u64,
    body: Body,
    /// Counts it until it is delivered.
    held: Held,
}

enum Body {
    /// The message is in the node's buffers.
    InPlace(Message),
    Copied(Box<[u8]>),
    /// The message is still in the sender's memory.
    Offered(Offer),
}

impl Body {
    /// Bytes of the message that are stored in this process.
    fn stored_bytes(&self) -> usize {
        match self {
            Body::InPlace(message) => message.len(),
            Body::Copied(bytes) => bytes.len(),
            Body::Offered(_) => 0,
        }
    }
}

impl UnexpectedMessage {
    fn length(&self) -> usize {
        match &self.body {
            Body::InPlace(message) => message.len() - HEAD_BYTES,
            Body::Copied(bytes) => bytes.len(),
            Body::Offered(offer) => offer.length(),
        }
    }

    fn entry(&self, context: usize) -> Entry {
        let data = match self.head.has_data {
            true => FI_REMOTE_CQ_DATA,
            false => 0,
        };
        Entry {
            context,
            flags: FI_RECV | kind_flag(self.head.is_tagged) | data,
            length: self.length(),
            data: self.head.data,
            tag: self.head.tag,
            source: self.from,
            ..Entry::default()
        }
    }
}

/// Posted receives and unexpected messages of an endpoint.
pub(super) struct Receives {
    tagged: Matcher<Receive, UnexpectedMessage>,
    untagged: Matcher<Receive, UnexpectedMessage>,
    /// Claimed messages, each with the context of its claim.
    claimed: Vec<(usize, UnexpectedMessage)>,
    /// Number of unexpected messages in the node's buffers.
    in_place: usize,
    /// Counters of all unexpected messages of the process.
    unexpected: Arc<Unexpected>,
}

impl Receives {
    pub(super) fn new(unexpected: &Arc<Unexpected>) -> Receives {
        Receives {
            tagged: Matcher::default(),
            untagged: Matcher::default(),
            claimed: Vec::new(),
            in_place: 0,
            unexpected: Arc::clone(unexpected),
        }
    }

    /// True if unexpected messages take more memory than they may.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.unexpected.is_full()
    }

    /// True if there is room for more unexpected messages.
    pub(super) fn has_room(&self) -> bool {
        self.unexpected.has_room()
    }

    #[inline]
    pub(super) fn matcher(&mut self, is_tagged: bool) -> &mut Matcher<Receive, UnexpectedMessage> {
        match is_tagged {
            true => &mut self.tagged,
            false => &mut self.untagged,
        }
    }

    /// Takes the receive, or the part of one, that matches an arriving message.
    #[inline]
    fn take_match(&mut self, head: &Head, from: u64, length: usize) -> Option<Receive> {
        let matcher = self.matcher(head.is_tagged);
        let token = matcher.find(from, head.tag)?;
        let receive = matcher.receive_mut(token)?;
        if receive.multi.is_none() {
            return matcher.withdraw(token);
        }
        let (part, stays) = receive.split(length);
        if !stays {
            drop(matcher.withdraw(token));
        }
        Some(part)
    }

    /// Keeps a message that arrived from the network, in place or as a copy.
    fn keep_message(&mut self, head: Head, from: u64, message: Message) {
        let body = match self.in_place < MAX_IN_PLACE {
            true => {
                self.in_place += 1;
                Body::InPlace(message)
            }
            false => Body::Copied(message[HEAD_BYTES..].into()),
        };
        self.keep(head, from, body);
    }

    fn keep(&mut self, head: Head, from: u64, body: Body) {
        let message = UnexpectedMessage {
            head,
            from,
            held: Held::new(&self.unexpected, body.stored_bytes()),
            body,
        };
        self.matcher(head.is_tagged).keep(from, head.tag, message);
    }

    /// Counts a message that leaves the node's buffers.
    fn on_in_place_released(&mut self) {
        self.in_place -= 1;
    }

    fn take_claimed(&mut self, context: usize) -> Result<UnexpectedMessage, Failure> {
        let index = (self.claimed.iter()).position(|(claim, _)| *claim == context);
        index
            .map(|index| self.claimed.swap_remove(index).1)
            .ok_or(Failure(FI_EINVAL))
    }

    fn cancel(&mut self, matches: impl Fn(&Receive) -> bool) -> Option<Receive> {
        let found = self.tagged.cancel(&matches);
        found.or_else(|| self.untagged.cancel(&matches))
    }

    /// The sources that waiting receives name.
    pub(super) fn sources(&self) -> impl Iterator<Item = u64> {
        let waiting = self.tagged.receives().chain(self.untagged.receives());
        waiting.filter_map(|receive| receive.source)
    }

    /// Drops all receives and messages.
    pub(super) fn clear(&mut self) {
        *self = Receives::new(&self.unexpected);
    }
}

/// A long message that is being fetched.
pub(super) struct PendingFetch {
    /// Gets that have not completed.
    gets_left: usize,
    failure: Option<Failure>,
    from: u64,
    offer: Offer,
    head: Head,
    receive: Receive,
    /// The memory that the gets write to.
    _memory: Vec<RegisteredMemory>,
}

/// Reads arriving messages in place if a receive waits for them, and queues the others until the
/// poll is over.
pub(super) struct ArrivalReader<'a> {
    pub(super) receives: &'a mut Receives,
    pub(super) sinks: &'a Sinks,
    pub(super) arrived: &'a mut VecDeque<Message>,
}

impl Reader for ArrivalReader<'_> {
    #[inline]
    fn read(&mut self, source: Address, message: &Arriving<'_>) -> bool {
        // A message must not overtake those that are queued.
        if !self.arrived.is_empty() || message.len() < HEAD_BYTES {
            return false;
        }
        let mut head = [0; HEAD_BYTES];
        message.copy(0..HEAD_BYTES, &mut head);
        let Some((head, _)) = Head::decode(&head) else {
            return false;
        };
        // No reply can be sent while the node polls.
        if head.kind != Kind::Message || head.number != 0 {
            return false;
        }
        let matcher = self.receives.matcher(head.is_tagged);
        let from = number(source);
        let Some(token) = matcher.find(from, head.tag) else {
            return false;
        };
        let Some(receive) = matcher.receive_mut(token) else {
            return false;
        };
        if receive.multi.is_some() {
            return false;
        }
        let length = message.len() - HEAD_BYTES;
        receive.to.fill_with(length, |range, buffer| {
            message.copy(HEAD_BYTES + range.start..HEAD_BYTES + range.end, buffer);
        });
        let entry = receive.entry(&head, length, from);
        self.sinks.complete(receive.notify, entry);
        drop(matcher.withdraw(token));
        true
    }

    fn take(&mut self, message: Message) {
        self.arrived.push_back(message);
    }
}

impl Exchange {
    /// Handles a message from the network.
    #[inline]
    pub(super) fn receive(&mut self, message: Message) {
        let from = number(message.source());
        let Some((head, rest)) = Head::decode(&message) else {
            tracing::warn!(source = %message.source(), "dropped a message without a valid head");
            return;
        };
        match head.kind {
            Kind::Message => match self.receives.take_match(&head, from, rest.len()) {
                Some(receive) => self.fill(&receive, &head, from, rest),
                None => {
                    self.receives.keep_message(head, from, message);
                    self.throttle_if_full(from);
                }
            },
            Kind::Offer => {
                let Some(offer) = Offer::decode(rest) else {
                    tracing::warn!(source = %message.source(), "dropped an offer that is too short");
                    return;
                };
                match self.receives.take_match(&head, from, offer.length()) {
                    Some(receive) => self.fetch(receive, &head, from, offer),
                    None => self.receives.keep(head, from, Body::Offered(offer)),
                }
                self.release_throttled();
            }
            Kind::Taken => self.on_taken(head.tag, head.data),
            Kind::Throttle => self.on_throttle(from, head.tag == 1),
            Kind::RemoteWrite => self.on_remote_write(head.tag, head.data, from),
            Kind::AtomicReply => self.on_atomic_reply(head.tag, head.data, rest),
            Kind::AtomicRequest => {
                tracing::warn!(
                    source = %message.source(),
                    "dropped an atomic operation that was not sent to the port for them"
                );
            }
        }
    }

    /// Delivers a message that the endpoint sends to itself.
    pub(super) fn send_to_self(&mut self, message: &SendRequest) {
        let (head, from) = (message.head(Kind::Message), number(self.own.messages));
        let mut bytes = Vec::with_capacity(message.from.length());
        message.from.gather(&mut bytes);
        match self.receives.take_match(&head, from, bytes.len()) {
            Some(receive) => self.fill(&receive, &head, from, &bytes),
            None => {
                let body = Body::Copied(bytes.into());
                self.receives.keep(head, from, body);
            }
        }
    }

    #[inline]
    fn fill(&mut self, receive: &Receive, head: &Head, from: u64, bytes: &[u8]) {
        receive.to.fill(bytes);
        let entry = receive.entry(head, bytes.len(), from);
        self.sinks.complete(receive.notify, entry);
        if head.number != 0 {
            self.send_taken(from, head.number, 0);
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// A buffer for several messages consists of more than one piece.
    pub(crate) fn post(&mut self, request: &ReceiveRequest) -> Result<(), Failure> {
        let mut receive = Receive::new(request);
        if request.min_room.is_none() {
            let matcher = self.receives.matcher(request.is_tagged);
            if let Posted::Matched(message, receive) = matcher.post(request.criteria, receive) {
                self.deliver(receive, message);
            }
            return Ok(());
        }
        loop {
            let matcher = self.receives.matcher(request.is_tagged);
            match matcher.post(request.criteria, receive) {
                Posted::Queued(_) => return Ok(()),
                Posted::Matched(message, unused) => {
                    receive = unused;
                    let (part, stays) = receive.split(message.length());
                    if !stays {
                        drop(receive);
                        self.deliver(part, message);
                        return Ok(());
                    }
                    self.deliver(part, message);
                }
            }
        }
    }

    /// Delivers an unexpected message to its receive.
    pub(super) fn deliver(&mut self, receive: Receive, message: UnexpectedMessage) {
        let UnexpectedMessage {
            head,
            from,
            body,
            held,
        } = message;
        drop(held);
        match body {
            Body::InPlace(message) => {
                self.receives.on_in_place_released();
                self.fill(&receive, &head, from, &message[HEAD_BYTES..]);
            }
            Body::Copied(bytes) => self.fill(&receive, &head, from, &bytes),
            Body::Offered(offer) => self.fetch(receive, &head, from, offer),
        }
        self.release_throttled();
    }

    /// Looks for an unexpected message and reports the result as a completion.
    pub(crate) fn peek(&mut self, request: &ReceiveRequest, mode: PeekMode) {
        self.progress();
        let (context, criteria) = (request.context, &request.criteria);
        let matcher = self.receives.matcher(request.is_tagged);
        let found = (matcher.peek(criteria)).map(|message| message.entry(context));
        let entry = found.unwrap_or(Entry {
            context,
            flags: FI_RECV | kind_flag(request.is_tagged),
            tag: criteria.tag,
            failure: Some((FI_ENOMSG, 0)),
            ..Entry::default()
        });
        if entry.failure.is_none() && mode != PeekMode::Peek {
            match matcher.claim(criteria) {
                Some(message) if mode == PeekMode::Claim => {
                    self.receives.claimed.push((context, message));
                }
                Some(message) => self.discard(message),
                None => {}
            }
        }
        self.sinks.complete(true, entry);
    }

    /// Receives the message that was claimed with the same context.
    ///
    /// # Errors
    /// No message was claimed with this context.
    pub(crate) fn post_claimed(&mut self, request: &ReceiveRequest) -> Result<(), Failure> {
        let message = self.receives.take_claimed(request.context)?;
        self.deliver(Receive::new(request), message);
        Ok(())
    }

    /// Drops the message that was claimed with the same context.
    ///
    /// # Errors
    /// No message was claimed with this context.
    pub(crate) fn discard_claimed(&mut self, request: &ReceiveRequest) -> Result<(), Failure> {
        let message = self.receives.take_claimed(request.context)?;
        let entry = message.entry(request.context);
        self.discard(message);
        self.sinks.complete(request.notify, entry);
        Ok(())
    }

    fn discard(&mut self, message: UnexpectedMessage) {
        drop(message.held);
        let number = match message.body {
            Body::InPlace(_) => {
                self.receives.on_in_place_released();
                message.head.number
            }
            Body::Copied(_) => message.head.number,
            Body::Offered(offer) => offer.number(),
        };
        if number != 0 {
            self.send_taken(message.from, number, 0);
        }
        self.release_throttled();
    }

    /// Cancels the receive with this context; it completes with `FI_ECANCELED`.
    pub(crate) fn cancel(&mut self, context: usize) {
        if let Some(receive) = self.receives.cancel(|receive| receive.context == context) {
            self.fail_receive(&receive, FI_ECANCELED);
        }
    }

    fn fail_receive(&mut self, receive: &Receive, failure: i32) {
        let entry = Entry {
            context: receive.context,
            flags: receive.flags,
            buffer: receive.to.address(),
            failure: Some((failure, 0)),
            ..Entry::default()
        };
        self.sinks.complete(true, entry);
    }

    /// Fails the receives that accept messages only from a peer that is gone.
    pub(super) fn fail_receives_from(&mut self, peer: u64, failure: i32) {
        while let Some(receive) = (self.receives).cancel(|receive| receive.source == Some(peer)) {
            self.fail_receive(&receive, failure);
        }
    }

    /// Gets a long message from its sender's memory into the buffer of a receive.
    fn fetch(&mut self, receive: Receive, head: &Head, from: u64, offer: Offer) {
        let regions = receive.to.regions(offer.length(), MAX_GET_BYTES);
        let number = self.outstanding.next_number();
        let (mut gets, mut memory) = (Vec::new(), Vec::new());
        for (offset, into) in regions {
            gets.push(Get {
                number,
                key: offer.key(),
                offset: offset as u64,
                into: into.memory.clone(),
            });
            memory.push(into);
        }
        let edge = self.edge_index(Destination::known(address(from)));
        let fetch = PendingFetch {
            gets_left: gets.len(),
            failure: edge.err(),
            from,
            offer,
            head: *head,
            receive,
            _memory: memory,
        };
        match edge {
            Ok(index) if !gets.is_empty() => {
                self.outstanding.insert_fetch(number, fetch);
                self.fetch_parts(index, gets.into_iter());
            }
            _ => self.finish_fetch(fetch),
        }
    }

    /// Handles the completion of one get.
    pub(super) fn on_fetch_part(
        &mut self,
        number: u64,
        mut fetch: PendingFetch,
        result: Result<(), Failure>,
    ) {
        fetch.gets_left -= 1;
        fetch.failure = fetch.failure.or(result.err());
        match fetch.gets_left {
            0 => self.finish_fetch(fetch),
            _ => self.outstanding.insert_fetch(number, fetch),
        }
    }

    fn finish_fetch(&mut self, fetch: PendingFetch) {
        if (fetch.failure).is_some_and(|failure| self.survivor.hides(failure)) {
            return self.receive_again(fetch.receive);
        }
        let (receive, length) = (&fetch.receive, fetch.offer.length());
        let mut entry = receive.entry(&fetch.head, length, fetch.from);
        let mut reported = 0;
        if let Some(Failure(failure)) = fetch.failure {
            entry.failure = Some((failure, length));
            reported = FI_EIO;
        }
        self.send_taken(fetch.from, fetch.offer.number(), reported);
        self.sinks.complete(receive.notify, entry);
    }

    /// Reports to the sender of an offered or numbered message that a receive has it.
    fn send_taken(&mut self, to: u64, number: u64, failure: i32) {
        let failure = u64::from(failure.unsigned_abs());
        let head = Head::control(Kind::Taken, number, failure);
        // If the sender is gone, it does not need the report.
        let _gone = self.send_control(Destination::known(address(to)), &head);
    }
}
