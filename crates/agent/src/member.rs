//! A node as its agent describes it to other agents.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use dipole_naming::lines::Word;
use dipole_node::NodeId;
use dipole_node::hosts::Host;
use dipole_node::registry::Announcement;
use foca::Identity;
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) node: u32,
    /// Its incarnation; of two, the later one is right.
    pub(super) life: u64,
    /// The addresses of its interfaces, best first; 1 to 4.
    pub(super) addresses: Vec<IpAddr>,
    /// The address for look-ups and membership, if it is another.
    pub(super) control: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) slots: u32,
    /// For display; may be empty.
    pub(super) name: String,
    pub(super) version: String,
}

/// An incarnation that begins now.
pub(super) fn now_as_life() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(1, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

impl Member {
    /// The node of a line of the hosts file, which has not started yet.
    pub(super) fn of_host(host: &Host) -> Member {
        let mut addresses = vec![host.address];
        addresses.extend(&host.cards);
        Member {
            node: host.node.0,
            life: 0,
            addresses,
            control: host.control,
            port: host.port,
            slots: host.slots,
            name: host.name.as_ref().map(Word::to_string).unwrap_or_default(),
            version: String::new(),
        }
    }

    /// As a line of a hosts file; `None` if it has no address.
    pub(super) fn host(&self) -> Option<Host> {
        let (address, cards) = self.addresses.split_first()?;
        Some(Host {
            node: NodeId(self.node),
            address: *address,
            cards: cards.to_vec(),
            control: self.control,
            port: self.port,
            slots: self.slots,
            ssh: None,
            runtime_dir: None,
            name: Word::new(&self.name),
        })
    }

    /// What it announces of itself.
    pub(super) fn announcement(&self, cluster: &str, age_ms: u64) -> Announcement {
        Announcement {
            cluster: cluster.to_owned(),
            node: NodeId(self.node),
            life: self.life,
            age_ms,
            taken: 0,
            port: self.port,
            slots: self.slots,
            addresses: self.addresses.clone(),
            control: self.control,
            name: self.name.clone(),
            version: self.version.clone(),
        }
    }

    pub(super) fn of_announcement(announcement: &Announcement) -> Member {
        Member {
            node: announcement.node.0,
            life: announcement.life,
            addresses: announcement.addresses.clone(),
            control: announcement.control,
            port: announcement.port,
            slots: announcement.slots,
            name: announcement.name.clone(),
            version: announcement.version.clone(),
        }
    }

    /// Where its agent is reached by its interfaces.
    pub(super) fn cards(&self) -> Vec<SocketAddr> {
        let all = self.addresses.iter();
        all.map(|ip| SocketAddr::new(*ip, self.port)).collect()
    }

    /// Where its agent is reached, on the control network first.
    pub(super) fn directories(&self) -> Vec<SocketAddr> {
        let control = self.control.map(|ip| SocketAddr::new(ip, self.port));
        control.into_iter().chain(self.cards()).collect()
    }

    /// Its addresses, for display.
    pub(super) fn shown(&self) -> String {
        let all: Vec<String> = self.directories().iter().map(ToString::to_string).collect();
        all.join(" ")
    }
}

impl Identity for Member {
    type Addr = u32;

    fn renew(&self) -> Option<Member> {
        Some(Member {
            // Later than that of a node with this number that started after this one, and is gone.
            life: now_as_life().max(self.life + 1),
            ..self.clone()
        })
    }

    fn addr(&self) -> u32 {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Member) -> bool {
        self.life > adversary.life
    }
}
