//! A stranger without the cluster's key, which requests sessions from every node.

use std::net::SocketAddr;

use dipole_engine::AnyLink;
use dipole_engine::{Destination, Engine};
use dipole_link::Class;
use dipole_link::sim::Network;
use dipole_node::{GoneReason, KeyMismatch};
use dipole_proto::{Config, Instant, PeerId};

use crate::draw::key;
use crate::scenario::{Place, Scenario, address};

/// A process that does not belong to the cluster.
pub struct Stranger {
    engine: Engine,
    addresses: [SocketAddr; 2],
    /// Peers that have not refused its request yet.
    knocked: Vec<PeerId>,
    mismatch: KeyMismatch,
    deadline_ns: u64,
}

impl Stranger {
    /// Joins the network and requests a session from all nodes, with another key or with none.
    pub fn come(scenario: &Scenario, network: &Network, now_ns: u64) -> Stranger {
        let place = Place {
            node: scenario.nodes.len(),
            rank: 0,
        };
        // The stranger uses a network without faults.
        let lost = scenario.lost_network.map(|(_, lost)| lost);
        let home = u8::from(lost == Some(0));
        let addresses = [Class::Small, Class::Bulk].map(|class| address(place, class, home));
        let port = network
            .attach(addresses[0], addresses[1])
            .expect("an unused address");
        let (own, mismatch) = match scenario.seed % 2 {
            0 => (Some(key(!scenario.seed)), KeyMismatch::Different),
            _ => (None, KeyMismatch::OnlyTheirs),
        };
        let seed = scenario.seed.wrapping_add(0x57A6);
        let config = Config {
            node: 0xFFFF,
            ..Config::default()
        };
        let mut engine = Engine::new(
            AnyLink::from(port),
            config,
            seed,
            [seed, !seed],
            own.as_ref(),
        );
        let now = Instant(now_ns);
        let met = (scenario.nodes.iter()).filter(|plan| plan.interfaces.contains(&home));
        let knocked = met.map(|plan| {
            let to = Destination {
                small: address(plan.place, Class::Small, home),
                incarnation: 0,
            };
            engine.connect(now, to).expect("room for all")
        });
        let knocked = knocked.collect();
        Stranger {
            engine,
            addresses,
            knocked,
            mismatch,
            deadline_ns: now_ns,
        }
    }

    pub fn wake_ns(&self, network: &Network) -> u64 {
        let waiting = (self.addresses.iter()).any(|address| network.waiting(*address) > 0);
        if waiting { 0 } else { self.deadline_ns }
    }

    /// Steps it once; an error if it got a session, or was refused for another reason.
    pub fn turn(&mut self, now_ns: u64) -> Result<(), String> {
        let now = Instant(now_ns);
        self.engine
            .step(now, true)
            .map_err(|error| error.to_string())?;
        if (self.knocked.iter()).any(|peer| self.engine.machine().is_open(*peer)) {
            return Err("a stranger has a session".into());
        }
        for departure in self.engine.take_departures() {
            if departure.reason != GoneReason::Key(self.mismatch) {
                return Err(format!(
                    "a stranger was refused because {}",
                    departure.reason
                ));
            }
            self.knocked.retain(|peer| *peer != departure.peer);
        }
        let deadline = self.engine.next_deadline(now);
        self.deadline_ns = deadline.map_or(u64::MAX, |deadline| deadline.0);
        Ok(())
    }

    /// Describes requests that have not been refused yet.
    pub fn open(&self) -> Option<String> {
        let count = self.knocked.len();
        (count > 0).then(|| format!("{count} nodes have not refused a stranger"))
    }
}
