//! Sends and receives announcements, as [`Discovery`] decides.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use dipole_node::registry::{DirectoryLock, Registry};

use super::discovery::{Discovery, Response, Taken};
use super::member::Member;
use super::membership::Membership;
use super::options::DiscoveryOptions;
use super::paths::send;
use super::segment::Segments;

#[derive(Debug)]
pub(super) struct Announcer {
    pub(super) discovery: Discovery,
    segments: Option<Segments>,
    seeds: Vec<SocketAddr>,
}

impl Announcer {
    pub(super) fn open(
        options: &DiscoveryOptions,
        own: &Member,
        now: Duration,
        seed: u64,
    ) -> io::Result<Announcer> {
        let segments = match options.on_segments {
            true => Some(Segments::open(&own.facts.addresses, own.facts.port)?),
            false => None,
        };
        Ok(Announcer {
            discovery: Discovery::new(&options.cluster, now, seed),
            segments,
            seeds: options.seeds.clone(),
        })
    }

    /// Sockets that receive broadcasts.
    pub(super) fn receivers(&self) -> &[UdpSocket] {
        self.segments.as_ref().map_or(&[], Segments::receivers)
    }

    /// Announces this node if it is time.
    pub(super) fn announce(
        &mut self,
        now: Duration,
        registry: &Registry,
        directory_lock: &DirectoryLock,
        membership: &Membership,
    ) {
        let Some(announcement) = self.discovery.due(now, membership) else {
            return;
        };
        let packet = registry.seal_announcement(&announcement);
        if let Some(segments) = &self.segments {
            segments.broadcast(&packet);
        }
        send(directory_lock.sockets(), &packet, &self.seeds);
    }

    /// Handles an announcement that was broadcast, or sent to this node alone.
    ///
    /// # Errors
    /// [`Taken`]: this agent must stop.
    pub(super) fn on_packet(
        &mut self,
        now: Duration,
        packet: &[u8],
        to_all: bool,
        registry: &Registry,
        directory_lock: &DirectoryLock,
        membership: &mut Membership,
    ) -> Result<(), Taken> {
        let Some(announcement) = registry.open_announcement(packet) else {
            return Ok(());
        };
        match self.discovery.on_announcement(
            now,
            &announcement,
            to_all,
            packet.len(),
            membership,
        )? {
            Some(Response::Announce(announcement, to)) => {
                // All announcements have the same length; a shorter one gets no response.
                let answer = registry.seal_announcement(&announcement);
                if answer.len() <= packet.len() {
                    send(directory_lock.sockets(), &answer, &[to]);
                }
            }
            Some(Response::Forward(to)) => send(directory_lock.sockets(), packet, &[to]),
            None => {}
        }
        Ok(())
    }
}
