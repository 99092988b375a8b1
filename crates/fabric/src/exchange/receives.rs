//! Receives of the program, and messages that found none.

use std::collections::VecDeque;
use std::sync::Arc;

use dipole_node::{Address, Arriving, Message, Reader, RegionKey, SendError};

use super::{Entry, Exchange, Pending, Sending, address, failed};
use crate::abi::errno::{FI_ECANCELED, FI_EINVAL, FI_EIO, FI_ENOMSG, FI_ETRUNC};
use crate::abi::fabric::{FI_MSG, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED};
use crate::completion::Sinks;
use crate::guard::Failure;
use crate::matching::{Matcher, Posted, Wanted};
use crate::memory::{Lent, Pieces};
use crate::name::number;
use crate::wire::{HEAD_BYTES, Head, Kind, Offer};

/// Messages that may wait where they came; further ones are copied, so that those who sent
/// them have credit for more.
const MOST_HELD: usize = 64;
/// Longest piece that one get fetches.
const MOST_GET_BYTES: usize = 16 << 20;

/// A receive that the program posts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    pub(crate) is_tagged: bool,
    pub(crate) wanted: Wanted,
    pub(crate) to: Pieces,
    pub(crate) context: usize,
    /// The program wants to see it completed.
    pub(crate) notify: bool,
    /// Its memory takes messages until fewer bytes than this are left.
    pub(crate) least_room: Option<usize>,
}

/// How the program looks at messages without receiving them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Only that.
    Peek,
    /// The message is from now on for whoever receives with the same context.
    Claim,
    /// The message is dropped.
    Discard,
}

/// A receive that waits, or the part of one that a message goes to.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    to: Pieces,
    context: usize,
    notify: bool,
    flags: u64,
    source: Option<u64>,
    /// Of memory for several messages.
    multi: Option<Multi>,
}

#[derive(Clone, Debug)]
struct Multi {
    least_room: usize,
    used: usize,
    /// The memory is the program's again when nobody else has this.
    users: Arc<()>,
}

impl Receive {
    fn new(posting: &Posting) -> Receive {
        Receive {
            to: posting.to,
            context: posting.context,
            notify: posting.notify,
            flags: FI_RECV | if posting.is_tagged { FI_TAGGED } else { FI_MSG },
            source: posting.wanted.source,
            multi: posting.least_room.map(|least_room| Multi {
                least_room,
                used: 0,
                users: Arc::new(()),
            }),
        }
    }

    /// The part of memory for several messages that the next one takes, and whether there is
    /// room for another behind it.
    fn part(&mut self, length: usize) -> (Receive, bool) {
        let mut part = self.clone();
        let room = self.to.length();
        let Some(multi) = &mut self.multi else {
            return (part, false);
        };
        let taken = length.min(room - multi.used);
        part.to = self.to.part(multi.used, taken);
        multi.used += taken;
        (part, room - multi.used >= multi.least_room.max(1))
    }

    /// What it says when it has a message of so many bytes.
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

/// A message that waits for a receive.
pub(crate) struct Arrived {
    head: Head,
    from: u64,
    body: Body,
}

enum Body {
    /// Where it came.
    Held(Message),
    Copied(Box<[u8]>),
    /// Still with its sender.
    Offered(Offer),
}

impl Arrived {
    fn length(&self) -> usize {
        match &self.body {
            Body::Held(message) => message.len() - HEAD_BYTES,
            Body::Copied(bytes) => bytes.len(),
            Body::Offered(offer) => usize::try_from(offer.length).unwrap_or(usize::MAX),
        }
    }

    fn entry(&self, context: usize) -> Entry {
        let tagged = if self.head.is_tagged {
            FI_TAGGED
        } else {
            FI_MSG
        };
        let data = match self.head.has_data {
            true => FI_REMOTE_CQ_DATA,
            false => 0,
        };
        Entry {
            context,
            flags: FI_RECV | tagged | data,
            length: self.length(),
            data: self.head.data,
            tag: self.head.tag,
            source: self.from,
            ..Entry::default()
        }
    }
}

/// A part of a long message that is to be fetched.
pub(super) struct Get {
    from: u64,
    key: u64,
    offset: usize,
    into: Lent,
}

/// A long message that is being fetched.
pub(super) struct Fetch {
    /// Gets that have not completed.
    left: usize,
    wanted: bool,
    failure: Option<Failure>,
    from: u64,
    /// Its sender's number of it.
    number: u64,
    head: Head,
    length: usize,
    receive: Receive,
    /// Where the gets put it.
    memory: Vec<Lent>,
}

/// Takes messages as they come: those that a receive waits for where they lie, others to be seen
/// to when the poll is over.
pub(super) struct Taker<'a> {
    pub(super) tagged: &'a mut Matcher<Receive, Arrived>,
    pub(super) untagged: &'a mut Matcher<Receive, Arrived>,
    pub(super) sinks: &'a Sinks,
    pub(super) arrived: &'a mut VecDeque<Message>,
}

impl Reader for Taker<'_> {
    #[inline]
    fn read(&mut self, source: Address, message: &Arriving<'_>) -> bool {
        // None may be taken before those that came before it.
        if !self.arrived.is_empty() || message.len() < HEAD_BYTES {
            return false;
        }
        let mut head = [0; HEAD_BYTES];
        message.copy(0..HEAD_BYTES, &mut head);
        let Some((head, _)) = Head::decode(&head) else {
            return false;
        };
        if head.kind != Kind::Message {
            return false;
        }
        let matcher = match head.is_tagged {
            true => &mut self.tagged,
            false => &mut self.untagged,
        };
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
        receive.to.fill_with(length, |range, place| {
            message.copy(HEAD_BYTES + range.start..HEAD_BYTES + range.end, place);
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
    fn matcher(&mut self, is_tagged: bool) -> &mut Matcher<Receive, Arrived> {
        match is_tagged {
            true => &mut self.tagged,
            false => &mut self.untagged,
        }
    }

    /// Takes a message from the network.
    #[inline]
    pub(super) fn receive(&mut self, message: Message) {
        let from = number(message.source());
        let Some((head, rest)) = Head::decode(&message) else {
            // Of somebody who is no endpoint of libfabric.
            tracing::warn!(source = %message.source(), "a message from outside was dropped");
            return;
        };
        match head.kind {
            Kind::Message => match self.find(&head, from, rest.len()) {
                Some(receive) => self.fill(&receive, &head, from, rest),
                None => {
                    let body = match self.held < MOST_HELD {
                        true => {
                            self.held += 1;
                            Body::Held(message)
                        }
                        false => Body::Copied(rest.into()),
                    };
                    self.keep(Arrived { head, from, body });
                }
            },
            Kind::Offer => {
                let Some(offer) = Offer::decode(rest) else {
                    tracing::warn!(source = %message.source(), "an offer that is too short");
                    return;
                };
                let length = usize::try_from(offer.length).unwrap_or(usize::MAX);
                match self.find(&head, from, length) {
                    Some(receive) => self.fetch(receive, &head, from, offer),
                    None => {
                        let body = Body::Offered(offer);
                        self.keep(Arrived { head, from, body });
                    }
                }
            }
            Kind::Fetched => self.fetched(head.tag, head.data),
            Kind::Written => self.written(head.tag, head.data, from),
            Kind::Updated => self.updated(head.tag, head.data, rest),
            Kind::Update => {
                tracing::warn!(source = %message.source(), "an atomic operation went astray");
            }
        }
    }

    /// Hands a message of this endpoint to itself.
    pub(super) fn send_to_self(&mut self, message: &Sending) {
        let (head, from) = (message.head(Kind::Message), number(self.own.messages));
        let mut bytes = Vec::with_capacity(message.from.length());
        message.from.gather(&mut bytes);
        match self.find(&head, from, bytes.len()) {
            Some(receive) => self.fill(&receive, &head, from, &bytes),
            None => {
                let body = Body::Copied(bytes.into());
                self.keep(Arrived { head, from, body });
            }
        }
    }

    /// The receive, or the part of one, that takes a message that has arrived.
    #[inline]
    fn find(&mut self, head: &Head, from: u64, length: usize) -> Option<Receive> {
        let matcher = self.matcher(head.is_tagged);
        let token = matcher.find(from, head.tag)?;
        let receive = matcher.receive_mut(token)?;
        if receive.multi.is_none() {
            return matcher.withdraw(token);
        }
        let (part, stays) = receive.part(length);
        if !stays {
            drop(matcher.withdraw(token));
        }
        Some(part)
    }

    fn keep(&mut self, arrived: Arrived) {
        let (from, head) = (arrived.from, arrived.head);
        self.matcher(head.is_tagged).keep(from, head.tag, arrived);
    }

    #[inline]
    fn fill(&mut self, receive: &Receive, head: &Head, from: u64, bytes: &[u8]) {
        receive.to.fill(bytes);
        let entry = receive.entry(head, bytes.len(), from);
        self.sinks.complete(receive.notify, entry);
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Memory for several messages is one piece.
    pub(crate) fn post(&mut self, posting: &Posting) -> Result<(), Failure> {
        let mut receive = Receive::new(posting);
        if posting.least_room.is_none() {
            let matcher = self.matcher(posting.is_tagged);
            if let Posted::Matched(arrived, receive) = matcher.post(posting.wanted, receive) {
                self.deliver(receive, arrived);
            }
            return Ok(());
        }
        loop {
            let matcher = self.matcher(posting.is_tagged);
            match matcher.post(posting.wanted, receive) {
                Posted::Queued(_) => return Ok(()),
                Posted::Matched(arrived, back) => {
                    receive = back;
                    let (part, stays) = receive.part(arrived.length());
                    if !stays {
                        drop(receive);
                        self.deliver(part, arrived);
                        return Ok(());
                    }
                    self.deliver(part, arrived);
                }
            }
        }
    }

    /// Gives a message that waited to its receive.
    fn deliver(&mut self, receive: Receive, arrived: Arrived) {
        let Arrived { head, from, body } = arrived;
        match body {
            Body::Held(message) => {
                self.held -= 1;
                self.fill(&receive, &head, from, &message[HEAD_BYTES..]);
            }
            Body::Copied(bytes) => self.fill(&receive, &head, from, &bytes),
            Body::Offered(offer) => self.fetch(receive, &head, from, offer),
        }
    }

    /// Looks for a message that waits; that there is none is told by a completion, too.
    pub(crate) fn look(&mut self, is_tagged: bool, wanted: Wanted, context: usize, look: Look) {
        self.progress();
        let found = (self.matcher(is_tagged).peek(&wanted)).map(|arrived| arrived.entry(context));
        let entry = found.unwrap_or(Entry {
            context,
            flags: FI_RECV | if is_tagged { FI_TAGGED } else { FI_MSG },
            tag: wanted.tag,
            failure: Some((FI_ENOMSG, 0)),
            ..Entry::default()
        });
        if entry.failure.is_none() && look != Look::Peek {
            match self.matcher(is_tagged).claim(&wanted) {
                Some(arrived) if look == Look::Claim => self.claimed.push((context, arrived)),
                Some(arrived) => self.discard(arrived),
                None => {}
            }
        }
        self.sinks.complete(true, entry);
    }

    fn take_claimed(&mut self, context: usize) -> Result<Arrived, Failure> {
        let at = (self.claimed.iter()).position(|(of, _)| *of == context);
        at.map(|at| self.claimed.swap_remove(at).1)
            .ok_or(Failure(FI_EINVAL))
    }

    /// Receives the message that was claimed with the same context.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn post_claimed(&mut self, posting: &Posting) -> Result<(), Failure> {
        let arrived = self.take_claimed(posting.context)?;
        self.deliver(Receive::new(posting), arrived);
        Ok(())
    }

    /// Drops the message that was claimed with this context.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn discard_claimed(&mut self, posting: &Posting) -> Result<(), Failure> {
        let arrived = self.take_claimed(posting.context)?;
        let entry = arrived.entry(posting.context);
        self.discard(arrived);
        self.sinks.complete(posting.notify, entry);
        Ok(())
    }

    fn discard(&mut self, arrived: Arrived) {
        match arrived.body {
            Body::Held(_) => self.held -= 1,
            Body::Copied(_) => {}
            Body::Offered(offer) => self.say_fetched(arrived.from, offer.number, 0),
        }
    }

    /// Withdraws the receive with this context: it completes as such.
    pub(crate) fn cancel(&mut self, context: usize) {
        let is_it = |receive: &Receive| receive.context == context;
        let found = self.tagged.cancel(is_it);
        if let Some(receive) = found.or_else(|| self.untagged.cancel(is_it)) {
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

    /// From whom the receives that wait want messages, where they say so.
    pub(super) fn sources(&self) -> impl Iterator<Item = u64> {
        let waiting = self.tagged.receives().chain(self.untagged.receives());
        waiting.filter_map(|receive| receive.source)
    }

    /// Nobody will send what these receives wait for.
    pub(super) fn fail_receives_from(&mut self, address: u64, why: i32) {
        let is_it = |receive: &Receive| receive.source == Some(address);
        while let Some(receive) =
            (self.tagged.cancel(is_it)).or_else(|| self.untagged.cancel(is_it))
        {
            self.fail_receive(&receive, why);
        }
    }

    /// Gets a long message from its sender's memory into that of its receive.
    fn fetch(&mut self, receive: Receive, head: &Head, from: u64, offer: Offer) {
        let length = usize::try_from(offer.length).unwrap_or(usize::MAX);
        let regions = receive.to.regions(length, MOST_GET_BYTES);
        let fetch = Fetch {
            left: regions.len(),
            wanted: receive.notify,
            failure: None,
            from,
            number: offer.number,
            head: *head,
            length,
            receive,
            memory: Vec::new(),
        };
        let number = self.next();
        if fetch.left == 0 {
            self.fetch_ends(fetch);
            return;
        }
        self.pending.insert(number, Pending::Fetch(fetch));
        for (offset, into) in regions {
            let key = offer.key;
            let get = Get {
                from,
                key,
                offset,
                into,
            };
            self.delayed.push_back((number, get));
        }
        self.get_delayed();
    }

    /// Posts the gets that there is room for.
    pub(super) fn get_delayed(&mut self) {
        while let Some((number, get)) = self.delayed.pop_front() {
            let offset = get.offset as u64;
            let into = get.into.memory.clone();
            let posted = self.edge(address(get.from), None).and_then(|way| {
                let edge = &way.edge;
                let posted = edge.post_get(RegionKey(get.key), offset, into, number);
                match posted {
                    Err(SendError::Full { .. }) => Ok(false),
                    posted => posted.map(|()| true).map_err(|error| failed(&error)),
                }
            });
            match posted {
                Ok(true) => {
                    self.posted += 1;
                    if let Some(Pending::Fetch(fetch)) = self.pending.get_mut(&number) {
                        fetch.memory.push(get.into);
                    }
                }
                Ok(false) => {
                    self.delayed.push_front((number, get));
                    return;
                }
                Err(failure) => {
                    if let Some(Pending::Fetch(fetch)) = self.pending.remove(&number) {
                        self.fetch_goes_on(number, fetch, Err(failure));
                    }
                }
            }
        }
    }

    /// A part of a message is there, or will not be.
    pub(super) fn fetch_goes_on(
        &mut self,
        number: u64,
        mut fetch: Fetch,
        result: Result<(), Failure>,
    ) {
        fetch.left -= 1;
        fetch.failure = fetch.failure.or(result.err());
        match fetch.left {
            0 => self.fetch_ends(fetch),
            _ => {
                self.pending.insert(number, Pending::Fetch(fetch));
            }
        }
    }

    fn fetch_ends(&mut self, fetch: Fetch) {
        let Fetch {
            receive,
            head,
            length,
            from,
            ..
        } = fetch;
        let mut entry = receive.entry(&head, length, from);
        let mut said = 0;
        if let Some(Failure(failure)) = fetch.failure {
            entry.failure = Some((failure, length));
            said = FI_EIO;
        }
        self.say_fetched(from, fetch.number, said);
        self.sinks.complete(fetch.wanted, entry);
    }

    /// Tells the sender of a long message that its memory is its own again.
    fn say_fetched(&mut self, to: u64, number: u64, failure: i32) {
        let head = Head {
            kind: Kind::Fetched,
            is_tagged: false,
            has_data: false,
            tag: number,
            data: u64::from(failure.unsigned_abs()),
        };
        // A sender that is gone wants to know nothing.
        let _gone = self.send_bytes((address(to), None), &head.encode());
    }
}
