//! A node as its agent describes it to other agents.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use dipole_naming::address::NodeId;
use dipole_naming::hosts::{Host, MAX_INTERFACES, MAX_SLOTS};
use dipole_naming::lines::Word;
use dipole_naming::registry::{Announcement, is_name};
use foca::Identity;
use serde::{Deserialize, Serialize};

/// A node as its agent describes it to other agents; what is received is checked first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
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

/// Incarnations count microseconds.
const SECOND: u64 = 1_000_000;

/// A member as a packet has it.
#[derive(Deserialize)]
struct Unchecked {
    node: u32,
    life: u64,
    addresses: Vec<IpAddr>,
    control: Option<IpAddr>,
    port: u16,
    slots: u32,
    name: String,
    version: String,
}

impl TryFrom<Unchecked> for Member {
    type Error = &'static str;

    /// The bounds of announcements hold here too: strangers must not fill files, terminals or
    /// memory, nor have packets sent to more addresses than a node may have.
    fn try_from(found: Unchecked) -> Result<Member, Self::Error> {
        let Unchecked {
            node,
            life,
            addresses,
            control,
            port,
            slots,
            name,
            version,
        } = found;
        let is_host = |ip: &IpAddr| {
            let ip = ip.to_canonical();
            !ip.is_unspecified() && !ip.is_multicast()
        };
        let is_valid = node != 0
            && (1..=MAX_INTERFACES).contains(&addresses.len())
            && addresses.iter().chain(&control).all(is_host)
            && port != 0
            && (1..=MAX_SLOTS).contains(&slots)
            && is_name(&name)
            && is_name(&version);
        if !is_valid {
            return Err("a member out of bounds");
        }
        Ok(Member {
            node,
            life,
            addresses,
            control,
            port,
            slots,
            name,
            version,
        })
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
        let (address, interfaces) = self.addresses.split_first()?;
        Some(Host {
            node: NodeId(self.node),
            address: *address,
            interfaces: interfaces.to_vec(),
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
    pub(super) fn interfaces(&self) -> Vec<SocketAddr> {
        let all = self.addresses.iter();
        all.map(|ip| SocketAddr::new(*ip, self.port)).collect()
    }

    /// Where its agent is reached, on the control network first.
    pub(super) fn directories(&self) -> Vec<SocketAddr> {
        let control = self.control.map(|ip| SocketAddr::new(ip, self.port));
        control.into_iter().chain(self.interfaces()).collect()
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
            addresses: vec![[10, 0, 0, 1].into()],
            control: None,
            port: 7411,
            slots: 4,
            name: "lab-2".to_owned(),
            version: "0.1.0".to_owned(),
        }
    }

    #[test]
    fn a_member_with_a_field_out_of_bounds_is_not_read() {
        let read = |member: &Member| {
            let bytes = postcard::to_extend(member, Vec::new()).unwrap();
            postcard::from_bytes::<Member>(&bytes)
        };
        assert_eq!(read(&member()), Ok(member()));
        let five = vec![[10, 0, 0, 1].into(); MAX_INTERFACES + 1];
        type Spoil = (&'static str, fn(&mut Member));
        let spoils: [Spoil; 9] = [
            ("node", |one| one.node = 0),
            ("no address", |one| one.addresses.clear()),
            ("a group", |one| one.addresses[0] = [224, 0, 0, 1].into()),
            ("any", |one| one.control = Some([0, 0, 0, 0].into())),
            ("port", |one| one.port = 0),
            ("slots", |one| one.slots = 0),
            ("a line break", |one| one.name.push_str("\n9 10.0.0.9")),
            ("an escape", |one| one.version = "\u{1b}[2J".to_owned()),
            ("a long name", |one| one.name = "x".repeat(64)),
        ];
        for (what, spoil) in spoils {
            let mut bad = member();
            spoil(&mut bad);
            assert!(read(&bad).is_err(), "{what}");
        }
        let bad = Member {
            addresses: five,
            ..member()
        };
        assert!(read(&bad).is_err(), "five addresses");
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
