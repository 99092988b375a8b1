//! The packet by which a node's agent announces itself and describes the node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::address::NodeId;
use crate::envelope::{self, Message};
use crate::hosts::{MAX_INTERFACES, MAX_SLOTS};

/// Longest name of a cluster or a node, in bytes.
pub const MAX_NAME_BYTES: usize = 63;
/// All announcements have this length, so that a reply is never longer than its cause.
pub const ANNOUNCEMENT_BYTES: usize = 384;

/// Announcement of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Its cluster; agents of other clusters ignore it.
    pub cluster: String,
    /// Node that the announcement describes.
    pub node: NodeId,
    /// Incarnation of the agent: its start time.
    pub incarnation: u64,
    /// Running time in milliseconds by its own clock.
    pub age_ms: u64,
    /// If not 0: informs the agent with this incarnation that its node number is already taken.
    pub taken: u64,
    /// Description of the node.
    pub facts: NodeFacts,
}

/// Properties of a node that its agent publishes along with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// UDP port of the node's directory.
    pub port: u16,
    /// Ranks that the launcher places there.
    pub slots: u32,
    /// The addresses of its interfaces, best first; 1 to [`MAX_INTERFACES`].
    pub addresses: Vec<IpAddr>,
    /// The address for look-ups and membership, if not those of its interfaces.
    pub control: Option<IpAddr>,
    /// Name for display; may be empty.
    pub name: String,
    /// Version of Dipole that the agent runs.
    pub version: String,
}

/// True if an address can be one host's on all nodes. A link-local one means another host on each
/// interface.
fn is_host(ip: IpAddr) -> bool {
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !is_link_local
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl NodeFacts {
    /// Addresses of the directory: on the control network first, then on each interface.
    #[must_use]
    pub fn directories(&self) -> Vec<SocketAddr> {
        let all = self.control.iter().chain(&self.addresses);
        all.map(|ip| SocketAddr::new(*ip, self.port)).collect()
    }

    /// Checks the limits: other nodes must not be able to fill files, terminals or memory, or have
    /// packets sent to more addresses than a node may have.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let mut addresses = self.addresses.iter().chain(&self.control);
        self.port != 0
            && (1..=MAX_SLOTS).contains(&self.slots)
            && (1..=MAX_INTERFACES).contains(&self.addresses.len())
            && addresses.all(|ip| is_host(ip.to_canonical()))
            && is_name(&self.name)
            && is_name(&self.version)
    }
}

impl Message for Announcement {
    const KIND: u8 = 3;

    fn is_valid(&self) -> bool {
        self.node.0 != 0 && self.incarnation != 0 && is_name(&self.cluster) && self.facts.is_valid()
    }
}

/// True if a text may name a cluster or a node: printable, without white space or `#`, so that it
/// can be written into a hosts file.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    text.len() <= MAX_NAME_BYTES && text.bytes().all(fits)
}

/// True if the header of a packet is that of an announcement.
#[must_use]
pub fn is_announcement(packet: &[u8]) -> bool {
    envelope::kind_of(packet) == Some(Announcement::KIND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{Authenticator, EnvelopeError, Header};
    use crate::key::{ClusterKey, KEY_BYTES};

    fn example() -> Announcement {
        Announcement {
            cluster: "dipole".to_owned(),
            node: NodeId(3),
            incarnation: 0x0102_0304_0506_0708,
            age_ms: 9,
            taken: 0,
            facts: NodeFacts {
                port: 7411,
                slots: 4,
                addresses: vec!["10.0.0.3".parse().unwrap(), "fd00::3".parse().unwrap()],
                control: Some("10.9.0.3".parse().unwrap()),
                name: "third".to_owned(),
                version: "0.1.0".to_owned(),
            },
        }
    }

    fn read(announcement: &Announcement) -> Result<Announcement, EnvelopeError> {
        let header = Header {
            from: announcement.node,
            to: NodeId(0),
            nonce: 0,
        };
        let authenticator = Authenticator::new(None);
        let packet = authenticator.seal(header, announcement);
        assert!(is_announcement(&packet));
        assert!(!is_announcement(&packet[1..]));
        authenticator.open(&packet).unwrap().read()
    }

    #[test]
    fn announcements_read_back_what_was_written() {
        let bare = Announcement {
            cluster: String::new(),
            taken: u64::MAX,
            facts: NodeFacts {
                name: String::new(),
                version: String::new(),
                control: None,
                addresses: vec!["::1".parse().unwrap()],
                ..example().facts
            },
            ..example()
        };
        let longest = Announcement {
            cluster: "c".repeat(MAX_NAME_BYTES),
            facts: NodeFacts {
                name: "n".repeat(MAX_NAME_BYTES),
                version: "v".repeat(MAX_NAME_BYTES),
                addresses: vec!["1.2.3.4".parse().unwrap(); MAX_INTERFACES],
                ..example().facts
            },
            ..example()
        };
        let key = ClusterKey::new([1; KEY_BYTES]);
        let authenticator = Authenticator::new(Some(&key));
        for announcement in [example(), bare, longest] {
            let header = Header {
                from: announcement.node,
                to: NodeId(0),
                nonce: 0,
            };
            assert!(authenticator.seal(header, &announcement).len() <= ANNOUNCEMENT_BYTES);
            assert_eq!(read(&announcement), Ok(announcement));
        }
        let directories: Vec<String> = example()
            .facts
            .directories()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            directories,
            ["10.9.0.3:7411", "10.0.0.3:7411", "[fd00::3]:7411"]
        );
    }

    #[test]
    fn values_that_no_agent_may_announce_are_refused() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let changes: [fn(&mut Announcement); 9] = [
            |announcement| announcement.incarnation = 0,
            |announcement| announcement.node = NodeId(0),
            |announcement| announcement.facts.port = 0,
            |announcement| announcement.facts.slots = 0,
            |announcement| announcement.facts.slots = MAX_SLOTS + 1,
            |announcement| announcement.facts.addresses.clear(),
            |announcement| {
                announcement.facts.addresses =
                    vec![announcement.facts.addresses[0]; MAX_INTERFACES + 1]
            },
            |announcement| announcement.cluster = "c".repeat(MAX_NAME_BYTES + 1),
            |announcement| announcement.facts.version = "a b".to_owned(),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut bad = example();
            change(&mut bad);
            assert_eq!(read(&bad), Err(EnvelopeError::Body), "change {index}");
        }
        let no_hosts = [
            "0.0.0.0",
            "::",
            "::ffff:0.0.0.0",
            "239.1.2.3",
            "ff02::1",
            "255.255.255.255",
            "fe80::1",
        ];
        for text in no_hosts {
            for control in [false, true] {
                let mut bad = example();
                match control {
                    true => bad.facts.control = Some(ip(text)),
                    false => bad.facts.addresses.push(ip(text)),
                }
                assert_eq!(read(&bad), Err(EnvelopeError::Body), "{text}");
            }
        }
        for text in ["a\nb", "a#b", "\u{1b}[2J", "\u{e4}"] {
            let mut bad = example();
            bad.facts.name = text.to_owned();
            assert_eq!(read(&bad), Err(EnvelopeError::Body), "{text:?}");
        }
    }
}
