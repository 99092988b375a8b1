//! The description of a node that its agent sends to other agents.

use std::time::SystemTime;

use dipole_naming::address::NodeId;
use dipole_naming::hosts::Host;
use dipole_naming::lines::Word;
use dipole_naming::registry::{Announcement, NodeFacts};
use foca::Identity;
use serde::{Deserialize, Serialize};

/// Description of a node. It is validated when it is received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u32, u64, NodeFacts)")]
pub(super) struct Member {
    pub(super) node: u32,
    /// Incarnation of the agent. Of two, the later one is valid.
    pub(super) incarnation: u64,
    pub(super) facts: NodeFacts,
}

/// From the fields in the order in which postcard encodes them.
impl TryFrom<(u32, u64, NodeFacts)> for Member {
    type Error = &'static str;

    /// Applies the limits of announcements.
    fn try_from((node, incarnation, facts): (u32, u64, NodeFacts)) -> Result<Member, Self::Error> {
        match node != 0 && facts.is_valid() {
            true => Ok(Member {
                node,
                incarnation,
                facts,
            }),
            false => Err("a member out of bounds"),
        }
    }
}

/// The incarnation of an agent that starts now.
pub(super) fn new_incarnation() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(1, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

/// True if an incarnation is later than another. They are compared like serial numbers (RFC 1982):
/// every one has a later one, so that no forged number is final.
pub(super) fn is_later(incarnation: u64, other: u64) -> bool {
    match incarnation.wrapping_sub(other) {
        0 => false,
        HALF => incarnation > other,
        ahead => ahead < HALF,
    }
}

const HALF: u64 = 1 << 63;

/// An incarnation that is later by this time; never 0, which means none.
pub(super) fn later_by(incarnation: u64, microseconds: u64) -> u64 {
    incarnation.wrapping_add(microseconds).max(1)
}

impl Member {
    /// The node of a line of the hosts file, which has not started yet.
    pub(super) fn of_host(host: &Host) -> Member {
        let mut addresses = vec![host.address];
        addresses.extend(&host.interfaces);
        Member {
            node: host.node.0,
            incarnation: 0,
            facts: NodeFacts {
                addresses,
                control: host.control,
                port: host.port,
                slots: host.slots,
                name: host.name.as_ref().map(Word::to_string).unwrap_or_default(),
                version: String::new(),
            },
        }
    }

    /// As an entry of a hosts file; `None` without addresses.
    pub(super) fn host(&self) -> Option<Host> {
        let (address, interfaces) = self.facts.addresses.split_first()?;
        Some(Host {
            interfaces: interfaces.to_vec(),
            control: self.facts.control,
            port: self.facts.port,
            slots: self.facts.slots,
            name: Word::new(&self.facts.name),
            ..Host::at(NodeId(self.node), *address)
        })
    }

    /// The announcement of this node.
    pub(super) fn announcement(&self, cluster: &str, age_ms: u64) -> Announcement {
        Announcement {
            cluster: cluster.to_owned(),
            node: NodeId(self.node),
            incarnation: self.incarnation,
            age_ms,
            taken: 0,
            facts: self.facts.clone(),
        }
    }

    pub(super) fn of_announcement(announcement: &Announcement) -> Member {
        Member {
            node: announcement.node.0,
            incarnation: announcement.incarnation,
            facts: announcement.facts.clone(),
        }
    }

    /// Its addresses, for display.
    pub(super) fn shown(&self) -> String {
        let all = self.facts.directories();
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        all.join(" ")
    }
}

impl Identity for Member {
    type Addr = u32;

    fn renew(&self) -> Option<Member> {
        Some(Member {
            incarnation: later_by(self.incarnation, 1),
            ..self.clone()
        })
    }

    fn addr(&self) -> u32 {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Member) -> bool {
        is_later(self.incarnation, adversary.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::MAX_INTERFACES;

    fn member() -> Member {
        Member {
            node: 7,
            incarnation: 1 << 50,
            facts: NodeFacts {
                addresses: vec![[10, 0, 0, 1].into()],
                control: None,
                port: 7411,
                slots: 4,
                name: "lab-2".to_owned(),
                version: "0.1.0".to_owned(),
            },
        }
    }

    #[test]
    fn a_member_with_a_field_out_of_bounds_is_not_read() {
        let read = |member: &Member| {
            let bytes = postcard::to_extend(member, Vec::new()).unwrap();
            postcard::from_bytes::<Member>(&bytes)
        };
        assert_eq!(read(&member()), Ok(member()));
        let no_node = Member {
            node: 0,
            ..member()
        };
        assert!(read(&no_node).is_err());
        let changes: [fn(&mut NodeFacts); 6] = [
            |facts| facts.version = "\u{1b}[2J".to_owned(),
            |facts| facts.name = "b\n9 10.0.0.9 ssh=-oProxyCommand=sh".to_owned(),
            |facts| facts.slots = 0,
            |facts| facts.port = 0,
            |facts| facts.addresses.clear(),
            |facts| facts.addresses = vec![facts.addresses[0]; MAX_INTERFACES + 1],
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut bad = member();
            change(&mut bad.facts);
            assert!(read(&bad).is_err(), "change {index}");
        }
    }

    #[test]
    fn every_incarnation_has_a_later_one_and_of_two_one_is_later() {
        let incarnations = [
            1,
            2,
            1 << 50,
            HALF - 1,
            HALF,
            HALF + 1,
            u64::MAX - 1,
            u64::MAX,
        ];
        for incarnation in incarnations {
            let own = Member {
                incarnation,
                ..member()
            };
            let next = own.renew().expect("it goes on");
            assert!(next.win_addr_conflict(&own) && !own.win_addr_conflict(&next));
            assert_ne!(next.incarnation, 0);
            for other in incarnations
                .into_iter()
                .filter(|other| *other != incarnation)
            {
                assert_ne!(
                    is_later(incarnation, other),
                    is_later(other, incarnation),
                    "{incarnation} {other}"
                );
            }
        }
    }
}
