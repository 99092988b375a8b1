//! A node as its agent describes it to other agents.

use std::time::SystemTime;

use dipole_naming::address::NodeId;
use dipole_naming::hosts::Host;
use dipole_naming::lines::Word;
use dipole_naming::registry::{Announcement, NodeFacts};
use foca::Identity;
use serde::{Deserialize, Serialize};

/// A node as its agent describes it to other agents; what is received is checked first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u32, u64, NodeFacts)")]
pub(super) struct Member {
    pub(super) node: u32,
    /// Its incarnation; of two, the later one is right.
    pub(super) life: u64,
    pub(super) facts: NodeFacts,
}

/// Incarnations count microseconds.
const SECOND: u64 = 1_000_000;

/// As postcard has a structure: its fields in turn.
impl TryFrom<(u32, u64, NodeFacts)> for Member {
    type Error = &'static str;

    /// The bounds of announcements hold here too.
    fn try_from((node, life, facts): (u32, u64, NodeFacts)) -> Result<Member, Self::Error> {
        match node != 0 && facts.is_valid() {
            true => Ok(Member { node, life, facts }),
            false => Err("a member out of bounds"),
        }
    }
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
        addresses.extend(&host.interfaces);
        Member {
            node: host.node.0,
            life: 0,
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

    /// As a line of a hosts file; `None` if it has no address.
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

    /// What it announces of itself.
    pub(super) fn announcement(&self, cluster: &str, age_ms: u64) -> Announcement {
        Announcement {
            cluster: cluster.to_owned(),
            node: NodeId(self.node),
            life: self.life,
            age_ms,
            taken: 0,
            facts: self.facts.clone(),
        }
    }

    pub(super) fn of_announcement(announcement: &Announcement) -> Member {
        Member {
            node: announcement.node.0,
            life: announcement.life,
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
        let now = now_as_life();
        let lead = self.life.saturating_sub(now);
        Some(Member {
            // Later than the one that others believe in, which may be ahead of our clock by any
            // time: the lead doubles, so that few attempts suffice.
            life: now.max(self.life.saturating_add(lead.max(SECOND))),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Member {
        Member {
            node: 7,
            life: 1 << 50,
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
        let mut escape = member();
        escape.facts.version = "\u{1b}[2J".to_owned();
        assert!(read(&escape).is_err());
    }

    #[test]
    fn a_node_whose_clock_was_set_back_overtakes_its_earlier_life_in_few_attempts() {
        let hour_ahead = now_as_life() + 3600 * SECOND;
        let mut own = Member {
            life: now_as_life(),
            ..member()
        };
        let mut attempts = 0;
        while own.life <= hour_ahead {
            own = own.renew().expect("it goes on");
            attempts += 1;
        }
        assert!(attempts < 20, "{attempts}");
        own.life = u64::MAX;
        assert_eq!(own.renew().map(|own| own.life), Some(u64::MAX));
    }
}
