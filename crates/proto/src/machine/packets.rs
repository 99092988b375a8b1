//! Arriving packets: assignment to peers, and the handshake. Spec §3.

use alloc::boxed::Box;

use crate::event::{Event, GoneReason, INDEX_BITS, KeyMismatch, PeerId};
use crate::handshake::{HandshakePacket, HelloBody};
use crate::key::{Agreement, Party, Seal};
use crate::machine::{Machine, session_index};
use crate::session::{Phase, Session};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wire::{
    Address, Bye, CRC_BYTES, Challenge, Flags, Header, Hello, Kind, Malformed, Packet, Reset,
    ResetReason, Trailer,
};

/// A packet for this process, and what the caller must verify.
#[derive(Clone, Copy, Debug)]
pub struct Addressed<'a> {
    /// Parsed packet.
    pub packet: Packet<'a>,
    /// Its seal, over [`Packet::covered`]. Only a packet with a correct checksum or tag may be
    /// passed to [`Machine::on_packet`].
    pub seal: Seal,
    /// True if the caller must verify the proof.
    pub requests_proof: bool,
    /// Set by the caller if the proof is correct.
    pub proven: bool,
    pub(super) peer: Option<PeerId>,
}

impl Addressed<'_> {
    /// Its session; `None` for handshake packets.
    #[must_use]
    pub fn peer(&self) -> Option<PeerId> {
        self.peer
    }

    /// The same packet with decrypted records: header and records, without a trailer.
    #[must_use]
    pub fn decrypted<'a>(&self, bytes: &'a [u8]) -> Addressed<'a> {
        let packet = self.packet.with_bytes(bytes);
        Addressed { packet, ..*self }
    }
}

impl Machine {
    /// Parses the header and finds the session. Packets for unknown connections are counted and
    /// answered with a reset.
    ///
    /// # Errors
    /// The reason for which the packet was dropped. It has been counted.
    pub fn address<'a>(
        &mut self,
        now: Instant,
        from: Address,
        bytes: &'a [u8],
    ) -> Result<Addressed<'a>, DropReason> {
        let packet = match Packet::checked(bytes) {
            Ok(packet) => packet,
            Err(error) => return Err(self.malformed(error)),
        };
        let header = packet.header();
        let in_session = matches!(
            header.kind,
            Kind::Data | Kind::Ack | Kind::AckRequest | Kind::Bye
        );
        if !in_session {
            let proven = header.flags.has(Flags::PROVEN);
            let seal = if proven { Seal::Proof } else { Seal::OPEN };
            let packet = packet.without_trailer(seal.bytes());
            let packet = packet.map_err(|error| self.malformed(error))?;
            return Ok(Addressed {
                packet,
                seal,
                requests_proof: proven && self.requests_proof(now, from, &packet),
                proven: false,
                peer: None,
            });
        }
        let peer = PeerId(header.connection);
        let Some(seal) = self
            .session(peer)
            .filter(|session| session.is_open())
            .map(|session| session.keys.seals.incoming)
        else {
            return Err(self.unknown(now, from, bytes));
        };
        let packet = packet.without_trailer(seal.bytes());
        let packet = packet.map_err(|error| self.malformed(error))?;
        Ok(Addressed {
            packet,
            seal,
            requests_proof: false,
            proven: false,
            peer: Some(peer),
        })
    }

    /// True if the proof of a handshake packet is worth verifying. Unsolicited packets must not cost
    /// computing time.
    fn requests_proof(&self, now: Instant, from: Address, packet: &Packet<'_>) -> bool {
        if !self.shared.config.keyed {
            return false;
        }
        match packet.header().kind {
            Kind::Hello => Hello::parse(packet.body()).is_ok_and(|hello| {
                self.cookies.check(now, from, &hello) || self.outbox.is_exhausted(now)
            }),
            Kind::Welcome => (self.session(PeerId(packet.header().connection)))
                .is_some_and(|session| !session.is_open() || session.keys.renewal.is_some()),
            Kind::Reset => Reset::parse(packet.body())
                .is_ok_and(|reset| self.find_reset(from, &reset).is_some()),
            _ => false,
        }
    }

    /// Handles a packet whose checksum is correct. Its effects are reported as events.
    ///
    /// # Errors
    /// The reason for which the packet's unit was dropped. It has been counted. The other records of
    /// the packet have been handled.
    pub fn on_packet(
        &mut self,
        now: Instant,
        from: Address,
        addressed: &Addressed<'_>,
    ) -> Result<(), DropReason> {
        let packet = &addressed.packet;
        self.shared.assembled = None;
        let taken = match (packet.header().kind, addressed.peer) {
            (Kind::Data | Kind::Ack | Kind::AckRequest, Some(peer)) => {
                self.on_session_packet(now, from, peer, packet)
            }
            (Kind::Bye, Some(peer)) => self.on_bye(peer, packet),
            (Kind::Hello, _) => self.on_hello(now, from, packet, addressed.proven),
            (Kind::Challenge, _) => self.on_challenge(now, packet),
            (Kind::Welcome, _) => self.on_welcome(now, packet, addressed.proven),
            (Kind::Reset, _) => self.on_reset(from, packet, addressed.proven),
            _ => Err(DropReason::Malformed),
        };
        if let Err(reason) = taken {
            self.shared.count(reason);
        }
        taken
    }

    #[inline]
    fn on_session_packet(
        &mut self,
        now: Instant,
        from: Address,
        peer: PeerId,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let session = self
            .peers
            .session_mut(peer)
            .ok_or(DropReason::UnknownConnection)?;
        let taken = session.on_packet(now, from, packet, &mut self.shared);
        self.timers
            .arm(session_index(peer), session.deadline(&self.shared));
        if !session.is_ready && session.has_transmit() {
            session.is_ready = true;
            self.ready.push_back(session_index(peer));
        }
        if !self.shared.moved_homes.is_empty() {
            self.index_moved_homes();
        }
        taken
    }

    /// Lets look-ups find peers by the addresses to which they have moved.
    #[cold]
    fn index_moved_homes(&mut self) {
        for (peer, former) in core::mem::take(&mut self.shared.moved_homes) {
            if let Some(session) = self.peers.session(peer) {
                self.index
                    .move_home(former, session.remote.home, session_index(peer));
            }
        }
    }

    fn malformed(&mut self, error: Malformed) -> DropReason {
        let reason = match error {
            Malformed::BadVersion(_) => DropReason::Version,
            _ => DropReason::Malformed,
        };
        self.shared.count(reason);
        reason
    }

    /// Handles a packet of an unknown connection. It is answered with a reset, unless a session with
    /// that connection is just opening.
    fn unknown(&mut self, now: Instant, from: Address, bytes: &[u8]) -> DropReason {
        let opening = Header::parse(bytes)
            .ok()
            .is_some_and(|header| self.session(PeerId(header.connection)).is_some());
        let whole = Packet::parse(bytes, CRC_BYTES).is_ok();
        if !opening
            && whole
            && let Ok(header) = Header::parse(bytes)
        {
            let packet = HandshakePacket::Reset(Reset {
                connection: header.connection,
                reason: ResetReason::UnknownConnection,
                echo: None,
            });
            if !self.outbox.answer(now, from, packet) {
                self.shared.count(DropReason::Throttled);
            }
        }
        self.shared.count(DropReason::UnknownConnection);
        DropReason::UnknownConnection
    }

    fn on_hello(
        &mut self,
        now: Instant,
        from: Address,
        packet: &Packet<'_>,
        proven: bool,
    ) -> Result<(), DropReason> {
        let hello = Hello::parse(packet.body()).map_err(|_| DropReason::Malformed)?;
        // Check the cookie first, so that only a process that has sent a hello gets any other answer.
        if !self.cookies.check(now, from, &hello) {
            let cookie = self.cookies.make(now, from, &hello);
            let packet = HandshakePacket::Challenge(hello.connection, (cookie, hello.incarnation));
            if proven {
                // Members get a challenge in spite of a flood of unproven hellos.
                self.outbox.push(from, packet);
            } else {
                self.answer(now, from, packet)?;
            }
            return if hello.cookie == 0 {
                Ok(())
            } else {
                Err(DropReason::WrongCookie)
            };
        }
        let keyed = self.shared.config.keyed;
        let refusal = if keyed != packet.header().flags.has(Flags::PROVEN) || keyed && !proven {
            Some((ResetReason::Key, DropReason::WrongKey))
        } else if hello.versions.0 > crate::wire::VERSION || hello.versions.1 < crate::wire::VERSION
        {
            Some((ResetReason::Version, DropReason::Version))
        } else if hello.echo != 0 && hello.echo != self.incarnation {
            Some((
                ResetReason::UnknownConnection,
                DropReason::UnknownConnection,
            ))
        } else if self.shared.config.trailers.agree(hello.trailers).is_none() {
            Some((ResetReason::Security, DropReason::Security))
        } else {
            None
        };
        if let Some((reason, drop)) = refusal {
            self.refuse(now, from, &hello, reason)?;
            return Err(drop);
        }
        self.accept_hello(now, from, &hello)
    }

    fn refuse(
        &mut self,
        now: Instant,
        to: Address,
        hello: &Hello,
        reason: ResetReason,
    ) -> Result<(), DropReason> {
        let keys_matter = reason == ResetReason::Key || self.shared.config.keyed;
        let packet = HandshakePacket::Reset(Reset {
            connection: hello.connection,
            reason,
            echo: keys_matter.then_some(hello.incarnation),
        });
        self.answer(now, to, packet)
    }

    /// Handles a hello with a valid cookie.
    fn accept_hello(
        &mut self,
        now: Instant,
        from: Address,
        hello: &Hello,
    ) -> Result<(), DropReason> {
        let keyed = self.shared.config.keyed;
        let session = |index: Option<u32>| {
            let session = self.peers.session_at(index?)?;
            Some((session.id, session.phase, session.remote))
        };
        // The process may use another of its addresses than before.
        let met = session(self.index.of_process(hello.incarnation));
        let met = met.filter(|(_, phase, remote)| *phase == Phase::Open && remote.matches(hello));
        let existing = met.or_else(|| session(self.index.at_home(from)));
        let peer = match existing {
            Some((peer, Phase::Open, remote))
                if remote.incarnation == hello.incarnation
                    && remote.connection == hello.connection =>
            {
                // The welcome was lost, or the peer requests a new proof.
                let packet = self.welcome(peer, hello);
                if keyed && self.cookies.spend(now, hello.cookie) {
                    self.outbox.push(from, packet);
                    return Ok(());
                }
                return self.answer(now, from, packet);
            }
            // Each handshake has its own connection id, so this hello is a replay.
            _ if keyed && !self.cookies.spend(now, hello.cookie) => {
                return Err(DropReason::Duplicate);
            }
            Some((peer, Phase::Open, remote)) => {
                let reason = if remote.incarnation == hello.incarnation {
                    GoneReason::Closed
                } else {
                    GoneReason::Restarted
                };
                self.remove(peer, reason);
                self.new_peer(now, from, hello)?
            }
            Some((peer, Phase::Opening { .. }, _)) => peer,
            None => self.new_peer(now, from, hello)?,
        };
        let trailer = self.trailer_with(hello);
        self.open(peer, hello, trailer, now);
        let packet = self.welcome(peer, hello);
        self.outbox.push(from, packet);
        Ok(())
    }

    fn new_peer(
        &mut self,
        now: Instant,
        from: Address,
        hello: &Hello,
    ) -> Result<PeerId, DropReason> {
        let phase = Phase::Open;
        match self.add_session(from, phase, now) {
            Some(peer) => Ok(peer),
            // The peer repeats its hello; by then there may be room.
            None if self.make_room(now) => Err(DropReason::Throttled),
            None => {
                self.refuse(now, from, hello, ResetReason::TooManyPeers)?;
                self.report_full(from, now);
                Err(DropReason::Throttled)
            }
        }
    }

    fn open(&mut self, peer: PeerId, hello: &Hello, trailer: Trailer, now: Instant) {
        let Some(session) = self.peers.session_mut(peer) else {
            return;
        };
        session.open(hello, trailer, self.incarnation, now, &mut self.shared);
        if self.lanes_serial > 0 {
            // The peer may know a hello from before the last change.
            session.announce(self.lanes_serial);
        }
        let index = session_index(peer);
        if matches!(trailer, Trailer::Auth | Trailer::Encrypt) {
            let (own, config) = (session.keys.own, &self.shared.config);
            self.agreements.push(Agreement {
                serial: own.serial,
                index,
                own: Party {
                    incarnation: self.incarnation,
                    connection: peer.connection(),
                    salt: own.salt,
                    share: config.share,
                },
                remote: Party {
                    incarnation: hello.incarnation,
                    connection: hello.connection,
                    salt: hello.salt,
                    share: hello.share,
                },
            });
        }
        self.index.insert_open(&session.remote, index);
        self.shared.processes += 1;
        self.shared.event(Event::Connected {
            peer,
            node: hello.node,
            incarnation: hello.incarnation,
        });
        self.refresh_deadline(peer);
        self.wake(peer);
    }

    fn welcome(&self, peer: PeerId, hello: &Hello) -> HandshakePacket {
        let mut welcome = self.own_hello(peer);
        welcome.echo = hello.incarnation;
        welcome.trailer = self.trailer_with(hello);
        if self.shared.config.keyed {
            // The cookie ties the welcome to this handshake.
            welcome.cookie = hello.cookie;
        }
        HandshakePacket::Hello(Box::new((
            Kind::Welcome,
            hello.connection,
            HelloBody(welcome),
        )))
    }

    /// The trailer for a session with the sender of a hello. A hello without a common trailer was
    /// refused before.
    fn trailer_with(&self, hello: &Hello) -> Trailer {
        let agreed = self.shared.config.trailers.agree(hello.trailers);
        agreed.unwrap_or(Trailer::Crc32c)
    }

    fn on_challenge(&mut self, now: Instant, packet: &Packet<'_>) -> Result<(), DropReason> {
        let challenge = Challenge::parse(packet.body()).map_err(|_| DropReason::Malformed)?;
        let peer = PeerId(packet.header().connection);
        let incarnation = self.incarnation;
        let session = self
            .session_mut(peer)
            .ok_or(DropReason::UnknownConnection)?;
        if let Some(renewal) = &mut session.keys.renewal {
            if challenge.echo != incarnation {
                return Err(DropReason::WrongCookie);
            }
            if challenge.cookie != renewal.cookie {
                renewal.cookie = challenge.cookie;
                self.send_hello(peer, challenge.cookie);
            }
            return Ok(());
        }
        let Phase::Opening {
            cookie,
            retry_at,
            retry_ns,
        } = session.phase
        else {
            return Ok(());
        };
        if challenge.echo != incarnation {
            return Err(DropReason::WrongCookie);
        }
        if challenge.cookie == cookie && now < retry_at {
            // It was sent already; the timer repeats it.
            return Ok(());
        }
        session.phase = Phase::Opening {
            cookie: challenge.cookie,
            retry_at: now.after(retry_ns),
            retry_ns,
        };
        self.send_hello(peer, challenge.cookie);
        Ok(())
    }

    fn on_welcome(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        proven: bool,
    ) -> Result<(), DropReason> {
        let welcome = Hello::parse(packet.body()).map_err(|_| DropReason::Malformed)?;
        let peer = PeerId(packet.header().connection);
        let session = self.session(peer).ok_or(DropReason::UnknownConnection)?;
        if welcome.echo != self.incarnation {
            return Err(DropReason::WrongCookie);
        }
        let renewed = session.keys.renewal.map(|renewal| renewal.cookie);
        let cookie = match (session.phase, renewed) {
            (Phase::Opening { cookie, .. }, _) | (Phase::Open, Some(cookie)) => cookie,
            (Phase::Open, None) => return Ok(()),
        };
        let keyed = self.shared.config.keyed;
        if keyed != packet.header().flags.has(Flags::PROVEN) || keyed && !proven {
            return Err(DropReason::WrongKey);
        }
        if keyed && welcome.cookie != cookie {
            return Err(DropReason::WrongCookie);
        }
        if renewed.is_some() {
            // A man in the middle can forward the hellos of two members, but not as its own. A peer that
            // has given up this session answers for the one that it opens instead.
            let is_peer = session.remote.matches(&welcome);
            let session = self.session_mut(peer).filter(|_| is_peer);
            session.ok_or(DropReason::UnknownConnection)?.keys.renewal = None;
            self.refresh_deadline(peer);
            return Ok(());
        }
        let offered = self.shared.config.trailers;
        if offered.agree(welcome.trailers) != Some(welcome.trailer) {
            return Err(DropReason::Violation);
        }
        self.open(peer, &welcome, welcome.trailer, now);
        Ok(())
    }

    fn on_bye(&mut self, peer: PeerId, packet: &Packet<'_>) -> Result<(), DropReason> {
        let bye = Bye::parse(packet.body()).map_err(|_| DropReason::Malformed)?;
        let session = self.session(peer).ok_or(DropReason::UnknownConnection)?;
        if session.remote.incarnation != bye.incarnation {
            return Err(DropReason::WrongCookie);
        }
        let header = packet.header();
        if let Some(session) = self.peers.session_mut(peer) {
            session.on_unit_next(&header, &mut self.shared);
        }
        self.remove(peer, GoneReason::Closed);
        Ok(())
    }

    /// A reset is accepted if it contains what only the peer can know. With a cluster key it must
    /// also be proven, unless its reason is that the keys differ.
    fn on_reset(
        &mut self,
        from: Address,
        packet: &Packet<'_>,
        proven: bool,
    ) -> Result<(), DropReason> {
        let reset = Reset::parse(packet.body()).map_err(|_| DropReason::Malformed)?;
        let incarnation = self.incarnation;
        if reset.reason == ResetReason::Key
            && reset.echo == Some(incarnation)
            && let Some(session) = self.session_mut(PeerId(reset.connection))
            && let Some(renewal) = &mut session.keys.renewal
        {
            // No proof will follow, and this is the reason; it is not authenticated.
            renewal.refused = true;
            return Ok(());
        }
        let peer = (self.find_reset(from, &reset)).ok_or(DropReason::UnknownConnection)?;
        let keyed = self.shared.config.keyed;
        let reason = match reset.reason {
            ResetReason::Key => {
                let theirs = packet.header().flags.has(Flags::PROVEN);
                GoneReason::Key(KeyMismatch::between(keyed, theirs))
            }
            _ if keyed && !proven => return Err(DropReason::WrongKey),
            other => GoneReason::Reset(other),
        };
        self.remove(peer, reason);
        Ok(())
    }

    /// The session that a reset refers to.
    fn find_reset(&self, from: Address, reset: &Reset) -> Option<PeerId> {
        let keyed = self.shared.config.keyed;
        let echoed = reset.echo == Some(self.incarnation);
        let concerned = |session: &Session| match session.phase {
            Phase::Opening { .. } => {
                let answers = echoed || !keyed && reset.reason != ResetReason::Key;
                let named = session.id.connection() == reset.connection;
                session.remote.home.ip == from.ip && named && answers
            }
            Phase::Open => {
                // Another process of that host could be tricked into a reset for an unknown connection,
                // and the peer itself into one that refuses a hello.
                let speaks = match keyed {
                    true => session.is_small(from) && reset.echo.is_none(),
                    false => session.has_answered_from(from.ip),
                };
                let named = session.remote.connection == reset.connection;
                reset.reason == ResetReason::UnknownConnection && named && speaks
            }
        };
        let open = self.index.of_connection(reset.connection);
        let open = open.filter_map(|index| self.peers.session_at(index));
        let opening = self.session(PeerId(reset.connection));
        let mut sessions = opening.into_iter().chain(open);
        sessions
            .find(|session| concerned(session))
            .map(|session| session.id)
    }

    fn answer(
        &mut self,
        now: Instant,
        to: Address,
        packet: HandshakePacket,
    ) -> Result<(), DropReason> {
        if self.outbox.answer(now, to, packet) {
            Ok(())
        } else {
            Err(DropReason::Throttled)
        }
    }
}

pub(super) fn hello_packet(hello: Hello) -> HandshakePacket {
    HandshakePacket::Hello(Box::new((Kind::Hello, 0, HelloBody(hello))))
}

const _: () = assert!(INDEX_BITS < 32, "a connection id has room for randomness");
