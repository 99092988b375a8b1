//! Announcements, sent and heard.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use dipole_node::hosts::Host;
use dipole_node::registry::{DirectoryLock, Registry};

use super::discovery::{Discovery, Taken, Word};
use super::member::Member;
use super::membership::Membership;
use super::place::Finding;
use super::segment::Segments;
use super::ways::socket_to;

/// See the module.
#[derive(Debug)]
pub(super) struct Finder {
    rules: Discovery,
    segments: Option<Segments>,
    seeds: Vec<SocketAddr>,
    cluster: String,
}

impl Finder {
    pub(super) fn open(
        finding: &Finding,
        own: &Host,
        member: &Member,
        now: Duration,
    ) -> io::Result<Finder> {
        let mut cards = vec![own.address];
        cards.extend(&own.cards);
        let segments = match finding.on_segments {
            true => Some(Segments::open(&cards, own.port)?),
            false => None,
        };
        Ok(Finder {
            rules: Discovery::new(&finding.cluster, member.clone(), now, member.life),
            segments,
            seeds: finding.seeds.clone(),
            cluster: finding.cluster.clone(),
        })
    }

    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    pub(super) fn foreign(&self) -> u64 {
        self.rules.foreign()
    }

    /// Sockets at which words to all arrive.
    pub(super) fn hearing(&self) -> &[UdpSocket] {
        self.segments.as_ref().map_or(&[], Segments::hearing)
    }

    pub(super) fn next_deadline(&self) -> Duration {
        self.rules.next_deadline()
    }

    /// Announces this node if it is time.
    pub(super) fn announce(
        &mut self,
        now: Duration,
        registry: &Registry,
        seat: &DirectoryLock,
        membership: &Membership,
    ) {
        let Some(said) = self.rules.due(now, membership) else {
            return;
        };
        let packet = registry.seal_announcement(&said);
        if let Some(segments) = &self.segments {
            segments.say(&packet);
        }
        send(seat, &packet, &self.seeds);
    }

    /// Hears an announcement, sent to all or to this node.
    ///
    /// # Errors
    /// [`Taken`]: this agent has to end.
    pub(super) fn hear(
        &mut self,
        now: Duration,
        packet: &[u8],
        to_all: bool,
        registry: &Registry,
        seat: &DirectoryLock,
        membership: &mut Membership,
    ) -> Result<(), Taken> {
        let Some(said) = registry.open_announcement(packet) else {
            return Ok(());
        };
        match self.rules.hear(now, &said, to_all, membership)? {
            Some(Word::Say(said, places)) => {
                send(seat, &registry.seal_announcement(&said), &places);
            }
            Some(Word::Forward(places)) => send(seat, packet, &places),
            None => {}
        }
        Ok(())
    }
}

fn send(seat: &DirectoryLock, packet: &[u8], places: &[SocketAddr]) {
    let sockets: Vec<&UdpSocket> = seat.sockets().collect();
    for place in places {
        let socket = socket_to(sockets.iter().copied(), *place);
        let sent = socket.map(|socket| socket.send_to(packet, place));
        if !matches!(sent, Some(Ok(_))) {
            tracing::debug!(to = %place, ?sent, "an announcement");
        }
    }
}
