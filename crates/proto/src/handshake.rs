//! Cookies, and the packets that are sent outside sessions. Spec §3.
//!
//! The answer to a hello is a challenge, which needs no state here. A session takes memory only
//! after the sender has returned the cookie and so has proved that it receives at its address.

use alloc::collections::VecDeque;
use core::hash::Hasher;
use serde::{Deserialize, Serialize};

use siphasher::sip::SipHasher24;

use crate::key::Seal;
use crate::time::{Instant, MILLISECOND};
use crate::wire::{Address, Bye, Challenge, Flags, HEADER_BYTES, Header, Hello, Kind, Reset};

/// A cookie is valid for one to two of these periods.
const COOKIE_PERIOD_NS: u64 = 1 << 34;
/// Stateless answers per second, and in one burst.
const ANSWERS_PER_SECOND: u64 = 2000;
const ANSWER_BURST: u64 = 200;
const MAX_OUTBOX: usize = 256;
/// Most cookies remembered, which limits the sessions opened while a cookie is valid.
const MAX_SPENT: usize = 16_384;

/// Creates and verifies cookies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cookies {
    secret: [u64; 2],
    /// Valid cookies that have opened a session, and the period in which they did.
    spent: VecDeque<(u64, u64)>,
}

impl Cookies {
    pub(crate) fn new(secret: [u64; 2]) -> Cookies {
        Cookies {
            secret,
            spent: VecDeque::new(),
        }
    }

    /// True if the cookie has not opened a session before. A replayed hello must not open another
    /// one.
    pub(crate) fn spend(&mut self, now: Instant, cookie: u64) -> bool {
        let period = now.0 / COOKIE_PERIOD_NS;
        while self.spent.len() >= MAX_SPENT
            || (self.spent.front()).is_some_and(|(spent, _)| spent + 2 < period)
        {
            self.spent.pop_front();
        }
        if self.spent.iter().any(|(_, spent)| *spent == cookie) {
            return false;
        }
        self.spent.push_back((period, cookie));
        true
    }

    pub(crate) fn session_secret(&self, connection: u32) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.secret[1], self.secret[0]);
        hasher.write_u32(connection);
        hasher.finish()
    }

    /// A number that becomes part of the keys of a session; different for each session.
    pub(crate) fn salt(&self, serial: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.secret[1], self.secret[0]);
        hasher.write_u64(serial);
        hasher.finish()
    }

    pub(crate) fn make(&self, now: Instant, from: Address, hello: &Hello) -> u64 {
        self.for_period(now.0 / COOKIE_PERIOD_NS, from, hello)
    }

    pub(crate) fn check(&self, now: Instant, from: Address, hello: &Hello) -> bool {
        let period = now.0 / COOKIE_PERIOD_NS;
        [period, period.wrapping_sub(1)]
            .into_iter()
            .any(|period| self.for_period(period, from, hello) == hello.cookie)
    }

    fn for_period(&self, period: u64, from: Address, hello: &Hello) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write_u64(period);
        hasher.write(&from.ip);
        hasher.write_u16(from.port);
        hasher.write_u64(hello.incarnation);
        hasher.write_u32(hello.connection);
        // Zero stands for "no cookie".
        hasher.finish().max(1)
    }
}

/// A packet outside any session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum HandshakePacket {
    Hello(HelloPacket),
    Challenge(u32, ChallengeLetter),
    Reset(Reset),
    Bye(Farewell),
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Farewell {
    pub(crate) connection: u32,
    pub(crate) number: u32,
    /// All units below have arrived.
    pub(crate) unit_next: u32,
    /// The peer may not have received a refusal.
    pub(crate) refuses: bool,
    pub(crate) incarnation: u64,
    pub(crate) seal: Seal,
}

/// A hello or welcome to send.
pub(crate) type HelloPacket = alloc::boxed::Box<(Kind, u32, HelloBody)>;

/// The body of a hello, which can be compared and hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HelloBody(pub(crate) Hello);

impl core::hash::Hash for HelloBody {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.0.connection);
        state.write_u64(self.0.cookie);
        state.write_u64(self.0.echo);
    }
}

/// Cookie and echo of a challenge.
pub(crate) type ChallengeLetter = (u64, u64);

impl HandshakePacket {
    /// Writes the packet without its trailer. Returns its length.
    pub(crate) fn emit(&self, bytes: &mut [u8], seal: Seal) -> usize {
        let (body, rest) = bytes.split_at_mut(HEADER_BYTES);
        let (mut header, length) = match self {
            HandshakePacket::Hello(hello) => {
                (Header::handshake(hello.0, hello.1), hello.2.0.emit(rest))
            }
            HandshakePacket::Challenge(to, (cookie, echo)) => (
                Header::handshake(Kind::Challenge, *to),
                Challenge {
                    cookie: *cookie,
                    echo: *echo,
                }
                .emit(rest),
            ),
            HandshakePacket::Reset(reset) => (Header::handshake(Kind::Reset, 0), reset.emit(rest)),
            HandshakePacket::Bye(farewell) => {
                let mut header = Header {
                    number: farewell.number,
                    unit_next: farewell.unit_next,
                    ..Header::handshake(Kind::Bye, farewell.connection)
                };
                if farewell.refuses {
                    header.flags.set(Flags::REFUSING);
                }
                let incarnation = farewell.incarnation;
                (header, Bye { incarnation }.emit(rest))
            }
        };
        let end = HEADER_BYTES + length;
        if seal == Seal::Proof {
            header.flags.set(Flags::PROVEN);
        }
        header.length = u16::try_from(end + seal.bytes()).unwrap_or(u16::MAX);
        header.emit(body);
        end
    }
}

/// Handshake packets to send, limited in number. Answers without state are limited in rate, too.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outbox {
    packets: VecDeque<(Address, HandshakePacket)>,
    tokens: u64,
    refilled_at: Instant,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox {
            packets: VecDeque::new(),
            tokens: ANSWER_BURST,
            refilled_at: Instant(0),
        }
    }

    /// Queues a packet of this side. A full queue drops its oldest packet, since hellos are
    /// repeated anyway.
    pub(crate) fn push(&mut self, to: Address, packet: HandshakePacket) {
        if self.packets.len() >= MAX_OUTBOX {
            self.packets.pop_front();
        }
        self.packets.push_back((to, packet));
    }

    /// True if no further answer is allowed at this time.
    pub(crate) fn is_exhausted(&self, now: Instant) -> bool {
        self.tokens == 0 && self.earned(now) == 0
    }

    fn earned(&self, now: Instant) -> u64 {
        now.since(self.refilled_at) / (1000 * MILLISECOND / ANSWERS_PER_SECOND)
    }

    /// Queues an answer to a sender without a session. Returns false if there were too many.
    pub(crate) fn answer(&mut self, now: Instant, to: Address, packet: HandshakePacket) -> bool {
        let earned = self.earned(now);
        if earned > 0 {
            self.tokens = (self.tokens + earned).min(ANSWER_BURST);
            self.refilled_at = now;
        }
        if self.tokens == 0 || self.packets.len() >= MAX_OUTBOX {
            return false;
        }
        self.tokens -= 1;
        self.packets.push_back((to, packet));
        true
    }

    pub(crate) fn front(&self) -> Option<&(Address, HandshakePacket)> {
        self.packets.front()
    }

    pub(crate) fn pop(&mut self) {
        self.packets.pop_front();
    }

    /// All packets, oldest first.
    pub(crate) fn packets(&self) -> &VecDeque<(Address, HandshakePacket)> {
        &self.packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_bound_to_address_incarnation_and_time() {
        let cookies = Cookies::new([1, 2]);
        let from = Address {
            ip: [7; 16],
            port: 9,
        };
        let mut hello = Hello::new(&[]);
        hello.connection = 5;
        hello.incarnation = 6;
        let now = Instant(3 * COOKIE_PERIOD_NS);
        hello.cookie = cookies.make(now, from, &hello);
        assert!(cookies.check(now, from, &hello));
        assert!(cookies.check(now.after(COOKIE_PERIOD_NS), from, &hello));
        assert!(!cookies.check(now.after(2 * COOKIE_PERIOD_NS), from, &hello));
        assert!(!cookies.check(now, Address { port: 8, ..from }, &hello));
        hello.incarnation = 7;
        assert!(!cookies.check(now, from, &hello));
    }

    #[test]
    fn a_cookie_can_be_used_once_while_it_is_valid() {
        let mut cookies = Cookies::new([1, 2]);
        let now = Instant(3 * COOKIE_PERIOD_NS);
        assert!(cookies.spend(now, 7));
        assert!(!cookies.spend(now, 7));
        assert!(cookies.spend(now, 8));
        assert!(!cookies.spend(now.after(2 * COOKIE_PERIOD_NS), 7));
        for cookie in 100..100 + 2 * MAX_SPENT as u64 {
            assert!(cookies.spend(now, cookie));
        }
        assert_eq!(cookies.spent.len(), MAX_SPENT);
        assert!(cookies.spend(now.after(3 * COOKIE_PERIOD_NS), 1));
        assert_eq!(cookies.spent.len(), 1);
    }

    #[test]
    fn answers_without_state_are_limited_per_second() {
        let mut outbox = Outbox::new();
        let packet = HandshakePacket::Challenge(1, (2, 3));
        let now = Instant(1_000_000_000);
        let answered = (0..10_000)
            .filter(|_| {
                let taken = outbox.answer(now, Address::default(), packet.clone());
                outbox.pop();
                taken
            })
            .count();
        assert_eq!(answered as u64, ANSWER_BURST);
    }
}
