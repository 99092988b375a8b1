//! Packets that come in: to whom they belong, and the handshake. Spec §3.

use alloc::boxed::Box;

use crate::event::{Event, GoneReason, INDEX_BITS, PeerId};
use crate::handshake::{HelloBody, Letter};
use crate::machine::{Machine, session_index};
use crate::session::Phase;
use crate::stats::Drop;
use crate::time::Instant;
use crate::wire::{
    Address, Bye, CRC_BYTES, Challenge, Header, Hello, Kind, Malformed, Packet, Reset, ResetReason,
    Trailer,
};

/// A packet that is for somebody here, with the trailer that must prove it.
#[derive(Clone, Copy, Debug)]
pub struct Addressed<'a> {
    /// The packet.
    pub packet: Packet<'a>,
    /// The trailer to check over [`Packet::covered`] before
    /// [`Machine::on_packet`].
    pub trailer: Trailer,
    peer: Option<PeerId>,
}

impl Machine {
    /// Parses the header and finds the session. Packets for nobody are counted,
    /// and answered with a reset.
    ///
    /// # Errors
    /// The reason for which the packet was dropped; it has been counted.
    pub fn address<'a>(
        &mut self,
        now: Instant,
        from: Address,
        bytes: &'a [u8],
    ) -> Result<Addressed<'a>, Drop> {
        let header = Header::parse(bytes).map_err(|error| self.malformed(error))?;
        let in_session = matches!(header.kind, Kind::Data | Kind::Ack | Kind::Prod | Kind::Bye);
        if !in_session {
            let packet = Packet::parse(bytes, CRC_BYTES).map_err(|error| self.malformed(error))?;
            return Ok(Addressed {
                packet,
                trailer: Trailer::Crc32c,
                peer: None,
            });
        }
        let peer = PeerId(header.connection);
        let Some(trailer) = self
            .session(peer)
            .filter(|session| session.is_open())
            .map(|session| session.trailer)
        else {
            return Err(self.unknown(now, from, bytes));
        };
        let packet =
            Packet::parse(bytes, trailer.bytes()).map_err(|error| self.malformed(error))?;
        Ok(Addressed {
            packet,
            trailer,
            peer: Some(peer),
        })
    }

    /// Takes a packet whose trailer is right; events tell what it brought.
    ///
    /// # Errors
    /// The reason for which the packet's unit was dropped; it has been counted.
    /// What else the packet said has been used.
    pub fn on_packet(
        &mut self,
        now: Instant,
        from: Address,
        addressed: &Addressed<'_>,
    ) -> Result<(), Drop> {
        let packet = &addressed.packet;
        let taken = match (packet.header.kind, addressed.peer) {
            (Kind::Data | Kind::Ack | Kind::Prod, Some(peer)) => {
                self.on_session_packet(now, from, peer, packet)
            }
            (Kind::Bye, Some(peer)) => self.on_bye(peer, packet),
            (Kind::Hello, _) => self.on_hello(now, from, packet),
            (Kind::Challenge, _) => self.on_challenge(now, packet),
            (Kind::Welcome, _) => self.on_welcome(now, packet),
            (Kind::Reset, _) => self.on_reset(from, packet),
            _ => Err(Drop::Malformed),
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
    ) -> Result<(), Drop> {
        let session = Self::lookup_mut(&mut self.sessions, peer).ok_or(Drop::UnknownConnection)?;
        let taken = session.on_packet(now, from, packet, &mut self.shared);
        self.timers
            .arm(session_index(peer), session.deadline(&self.shared));
        if !session.is_ready && session.has_transmit() {
            session.is_ready = true;
            self.ready.push_back(session_index(peer));
        }
        taken
    }

    fn malformed(&mut self, error: Malformed) -> Drop {
        let reason = match error {
            Malformed::BadVersion(_) => Drop::Version,
            _ => Drop::Malformed,
        };
        self.shared.count(reason);
        reason
    }

    /// No session has that connection. A reset tells the sender, but a packet that
    /// may be one of a session just opening is only dropped.
    fn unknown(&mut self, now: Instant, from: Address, bytes: &[u8]) -> Drop {
        let opening = Header::parse(bytes)
            .ok()
            .is_some_and(|header| self.session(PeerId(header.connection)).is_some());
        let whole = Packet::parse(bytes, CRC_BYTES).is_ok();
        if !opening
            && whole
            && let Ok(header) = Header::parse(bytes)
        {
            let letter = Letter::Reset((header.connection, ResetReason::UnknownConnection));
            if !self.outbox.answer(now, from, letter) {
                self.shared.count(Drop::Throttled);
            }
        }
        self.shared.count(Drop::UnknownConnection);
        Drop::UnknownConnection
    }

    fn on_hello(&mut self, now: Instant, from: Address, packet: &Packet<'_>) -> Result<(), Drop> {
        let hello = Hello::parse(packet.body()).map_err(|_| Drop::Malformed)?;
        if hello.versions.0 > crate::wire::VERSION || hello.versions.1 < crate::wire::VERSION {
            self.answer(
                now,
                from,
                Letter::Reset((hello.connection, ResetReason::Version)),
            )?;
            return Err(Drop::Version);
        }
        if hello.echo != 0 && hello.echo != self.incarnation {
            self.answer(
                now,
                from,
                Letter::Reset((hello.connection, ResetReason::UnknownConnection)),
            )?;
            return Err(Drop::UnknownConnection);
        }
        if !self.cookies.check(now, from, &hello) {
            let cookie = self.cookies.make(now, from, &hello);
            let letter = Letter::Challenge(hello.connection, (cookie, hello.incarnation));
            self.answer(now, from, letter)?;
            return if hello.cookie == 0 {
                Ok(())
            } else {
                Err(Drop::WrongCookie)
            };
        }
        self.accept_hello(now, from, &hello)
    }

    /// A hello from somebody who receives at `from`.
    fn accept_hello(&mut self, now: Instant, from: Address, hello: &Hello) -> Result<(), Drop> {
        let known = self.by_home.get(&from).copied();
        let existing = known.and_then(|index| {
            let session = self.sessions[index as usize].as_deref()?;
            Some((session.id, session.phase, session.remote))
        });
        let peer = match existing {
            Some((peer, Phase::Open, remote))
                if remote.incarnation == hello.incarnation
                    && remote.connection == hello.connection =>
            {
                // Our welcome was lost.
                self.welcome(peer, from, hello);
                return Ok(());
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
        self.open(
            peer,
            hello,
            self.shared.config.trailers.agree(hello.trailers),
            now,
        );
        self.welcome(peer, from, hello);
        Ok(())
    }

    fn new_peer(&mut self, now: Instant, from: Address, hello: &Hello) -> Result<PeerId, Drop> {
        let phase = Phase::Open;
        match self.add_session(from, phase, now) {
            Some(peer) => Ok(peer),
            None => {
                let letter = Letter::Reset((hello.connection, ResetReason::TooManyPeers));
                self.answer(now, from, letter)?;
                Err(Drop::Throttled)
            }
        }
    }

    fn open(&mut self, peer: PeerId, hello: &Hello, trailer: Trailer, now: Instant) {
        let Some(session) = Self::lookup_mut(&mut self.sessions, peer) else {
            return;
        };
        session.open(hello, &self.lanes, trailer, now, &mut self.shared);
        self.shared.processes += 1;
        self.shared.event(Event::Connected {
            peer,
            node: hello.node,
            incarnation: hello.incarnation,
        });
        self.refresh_deadline(peer);
        self.wake(peer);
    }

    fn welcome(&mut self, peer: PeerId, to: Address, hello: &Hello) {
        let mut welcome = self.own_hello(peer);
        welcome.echo = hello.incarnation;
        welcome.trailer = self.shared.config.trailers.agree(hello.trailers);
        let letter = Letter::Hello(Box::new((
            Kind::Welcome,
            hello.connection,
            HelloBody(welcome),
        )));
        self.outbox.push(to, letter);
    }

    fn on_challenge(&mut self, now: Instant, packet: &Packet<'_>) -> Result<(), Drop> {
        let challenge = Challenge::parse(packet.body()).map_err(|_| Drop::Malformed)?;
        let peer = PeerId(packet.header.connection);
        let incarnation = self.incarnation;
        let session = self.session_mut(peer).ok_or(Drop::UnknownConnection)?;
        let Phase::Opening {
            cookie,
            retry_at,
            retry_ns,
        } = session.phase
        else {
            return Ok(());
        };
        if challenge.echo != incarnation {
            return Err(Drop::WrongCookie);
        }
        if challenge.cookie == cookie && now < retry_at {
            // Said already; the timer repeats it.
            return Ok(());
        }
        session.phase = Phase::Opening {
            cookie: challenge.cookie,
            retry_at: now.after(retry_ns),
            retry_ns,
        };
        self.say_hello(peer, challenge.cookie);
        Ok(())
    }

    fn on_welcome(&mut self, now: Instant, packet: &Packet<'_>) -> Result<(), Drop> {
        let welcome = Hello::parse(packet.body()).map_err(|_| Drop::Malformed)?;
        let peer = PeerId(packet.header.connection);
        let session = self.session(peer).ok_or(Drop::UnknownConnection)?;
        if welcome.echo != self.incarnation {
            return Err(Drop::WrongCookie);
        }
        if session.is_open() {
            return Ok(());
        }
        let offered = self.shared.config.trailers;
        if offered.agree(welcome.trailers) != welcome.trailer {
            return Err(Drop::Violation);
        }
        self.open(peer, &welcome, welcome.trailer, now);
        Ok(())
    }

    fn on_bye(&mut self, peer: PeerId, packet: &Packet<'_>) -> Result<(), Drop> {
        let bye = Bye::parse(packet.body()).map_err(|_| Drop::Malformed)?;
        let session = self.session(peer).ok_or(Drop::UnknownConnection)?;
        if session.remote.incarnation != bye.incarnation {
            return Err(Drop::WrongCookie);
        }
        self.remove(peer, GoneReason::Closed);
        Ok(())
    }

    /// A reset counts if it names a connection that only the peer could know.
    fn on_reset(&mut self, from: Address, packet: &Packet<'_>) -> Result<(), Drop> {
        let reset = Reset::parse(packet.body()).map_err(|_| Drop::Malformed)?;
        let own = PeerId(reset.connection);
        let is_theirs = |session: &crate::session::Session| {
            let mut lanes = session.lanes.iter();
            session.home.ip == from.ip
                || lanes.any(|lane| lane.reach.is_proven() && lane.to.ip == from.ip)
        };
        let concerned = |session: &crate::session::Session| match session.phase {
            Phase::Opening { .. } => session.id == own,
            Phase::Open => {
                reset.reason == ResetReason::UnknownConnection
                    && session.remote.connection == reset.connection
            }
        };
        let peer = self
            .sessions
            .iter()
            .flatten()
            .find(|session| is_theirs(session) && concerned(session))
            .map(|session| session.id)
            .ok_or(Drop::UnknownConnection)?;
        self.remove(peer, GoneReason::Reset(reset.reason));
        Ok(())
    }

    fn answer(&mut self, now: Instant, to: Address, letter: Letter) -> Result<(), Drop> {
        if self.outbox.answer(now, to, letter) {
            Ok(())
        } else {
            Err(Drop::Throttled)
        }
    }
}

pub(super) fn hello_letter(hello: Hello) -> Letter {
    Letter::Hello(Box::new((Kind::Hello, 0, HelloBody(hello))))
}

const _: () = assert!(INDEX_BITS < 32, "a connection id has room for randomness");
