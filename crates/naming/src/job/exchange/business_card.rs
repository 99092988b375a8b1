//! Business cards, as MPICH calls the descriptions of nodes that ranks publish.

use std::fmt::{self, Write};
use std::net::IpAddr;

/// Longest name of a node that is published.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of addresses in a card.
pub(super) const MAX_ADDRESSES: usize = 16;
/// Form of a card, for messages.
pub(super) const FORM: &str = "the addresses of a rank of this version of Dipole";

/// An address of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) ip: IpAddr,
    /// Length of the prefix of its subnet.
    pub(super) prefix_bits: u8,
    /// Speed of the interface; 0 if unknown.
    pub(super) speed_mbit: u32,
    /// It is the source of packets to other networks.
    pub(super) is_routed: bool,
}

/// The description of a node that a rank publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BusinessCard {
    /// Ranks with the same number share a registry and a network.
    pub(super) node: u64,
    /// Ranks with the same number share a network.
    pub(super) machine: u64,
    /// A free port, for the directory of the node.
    pub(super) port: u16,
    /// The name of the machine.
    pub(super) name: String,
    /// Addresses, the best first.
    pub(super) addresses: Vec<Candidate>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Candidate {
            ip,
            prefix_bits,
            speed_mbit,
            is_routed,
        } = self;
        write!(
            f,
            "{ip}-{prefix_bits}-{speed_mbit}-{}",
            u8::from(*is_routed)
        )
    }
}

impl Candidate {
    fn parse(text: &str) -> Option<Candidate> {
        let mut parts = text.split('-');
        let mut next = || parts.next();
        let candidate = Candidate {
            ip: next()?.parse().ok()?,
            prefix_bits: next()?.parse().ok()?,
            speed_mbit: next()?.parse().ok()?,
            is_routed: next()? == "1",
        };
        let all = if candidate.ip.is_ipv4() { 32 } else { 128 };
        let ip = candidate.ip;
        let is_valid = candidate.prefix_bits <= all && !ip.is_unspecified() && !ip.is_multicast();
        (is_valid && next().is_none()).then_some(candidate)
    }
}

impl fmt::Display for BusinessCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BusinessCard {
            node,
            machine,
            port,
            name,
            addresses,
        } = self;
        write!(f, "1/{node:016x}/{machine:016x}/{port}/{name}/")?;
        for (index, candidate) in addresses.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{candidate}")?;
        }
        Ok(())
    }
}

impl BusinessCard {
    /// Formats the card with as many addresses as fit, and forgets the others.
    pub(super) fn shortened_to(&mut self, max_bytes: usize) -> String {
        self.name = published(&self.name);
        self.addresses.truncate(MAX_ADDRESSES);
        loop {
            let text = self.to_string();
            if text.len() <= max_bytes {
                return text;
            }
            match self.addresses.len() {
                0 | 1 if self.name.is_empty() => return text,
                0 | 1 => self.name.clear(),
                _ => drop(self.addresses.pop()),
            }
        }
    }

    pub(super) fn parse(text: &str) -> Option<BusinessCard> {
        let mut parts = text.split('/');
        let mut next = || parts.next();
        if next()? != "1" {
            return None;
        }
        let number = |text: &str| (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok())?;
        let node = number(next()?)?;
        let machine = number(next()?)?;
        let port = next()?.parse().ok().filter(|port| *port != 0)?;
        let name = next()?.to_owned();
        let list = next()?;
        let addresses = match list {
            "" => Vec::new(),
            list => list
                .split(',')
                .map(Candidate::parse)
                .collect::<Option<_>>()?,
        };
        let is_valid = published(&name) == name && addresses.len() <= MAX_ADDRESSES;
        (is_valid && next().is_none()).then_some(BusinessCard {
            node,
            machine,
            port,
            name,
            addresses,
        })
    }

    /// The node as messages name it, with its addresses.
    pub(super) fn described(&self) -> String {
        let mut text = self.name.clone();
        let addresses: Vec<String> = self
            .addresses
            .iter()
            .map(|one| one.ip.to_string())
            .collect();
        let _infallible = match addresses.is_empty() {
            true => write!(text, " (no address that others can reach)"),
            false => write!(text, " ({})", addresses.join(", ")),
        };
        text.trim_start().to_owned()
    }
}

/// A machine's name without characters that have a meaning here.
fn published(name: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.chars().filter(is_plain).take(MAX_NAME_BYTES).collect()
}

/// The result that a rank publishes in the second round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// This address is the source of packets to the other nodes.
    From(IpAddr),
    /// No route leads to the node with this index.
    NoneTo(usize),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::From(address) => write!(f, "1/from/{address}"),
            Route::NoneTo(node) => write!(f, "1/none/{node}"),
        }
    }
}

impl Route {
    /// Form of a route, for messages.
    pub(super) const FORM: &str = "the address of a rank of this version of Dipole";

    pub(super) fn parse(text: &str, nodes: usize) -> Option<Route> {
        let (kind, value) = text.strip_prefix("1/")?.split_once('/')?;
        match kind {
            "from" => value.parse().ok().map(Route::From),
            "none" => {
                let node = value.parse().ok().filter(|node| *node < nodes);
                node.map(Route::NoneTo)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card() -> BusinessCard {
        BusinessCard {
            node: 7,
            machine: u64::MAX,
            port: 10_001,
            name: "n1.cluster".to_owned(),
            addresses: vec![
                Candidate::parse("10.0.0.1-24-25000-1").unwrap(),
                Candidate::parse("fd00::1-64-0-0").unwrap(),
            ],
        }
    }

    #[test]
    fn a_card_reads_back_what_it_prints() {
        let text = card().to_string();
        assert_eq!(
            text,
            "1/0000000000000007/ffffffffffffffff/10001/n1.cluster/10.0.0.1-24-25000-1,fd00::1-64-0-0"
        );
        assert_eq!(BusinessCard::parse(&text), Some(card()));
        assert_eq!(card().described(), "n1.cluster (10.0.0.1, fd00::1)");
        let mut alone = card();
        alone.addresses.clear();
        assert_eq!(BusinessCard::parse(&alone.to_string()), Some(alone));
    }

    #[test]
    fn a_card_that_is_too_long_loses_its_last_addresses_and_then_its_name() {
        let mut short = card();
        let text = short.shortened_to(80);
        assert!(text.ends_with("/n1.cluster/10.0.0.1-24-25000-1"), "{text}");
        assert_eq!(BusinessCard::parse(&text), Some(short.clone()));
        let text = short.shortened_to(70);
        assert!(text.ends_with("/10001//10.0.0.1-24-25000-1"), "{text}");
        let mut odd = card();
        odd.name = "a/b c=d\n".repeat(30);
        let text = odd.shortened_to(900);
        assert!(!text.contains([' ', '=', '\n']), "{text}");
        assert_eq!(BusinessCard::parse(&text), Some(odd));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "1",
            "2/0000000000000007/0000000000000007/1/n/",
            "1/7/0000000000000007/1/n/",
            "1/0000000000000007/0000000000000007/0/n/",
            "1/0000000000000007/0000000000000007/1/n",
            "1/0000000000000007/0000000000000007/1/n/10.0.0.1",
            "1/0000000000000007/0000000000000007/1/n/10.0.0.1-33-0-0",
            "1/0000000000000007/0000000000000007/1/n/0.0.0.0-3-0-0",
            "1/0000000000000007/0000000000000007/1/n/10.0.0.1-24-0-0/",
            "1/0000000000000007/0000000000000007/1/n/10.0.0.1-24-0-0,",
            "1/0000000000000007/0000000000000007/1/a b/",
        ] {
            assert_eq!(BusinessCard::parse(text), None, "{text}");
        }
        for text in [
            "1/from/x",
            "1/none/2",
            "1/none/-1",
            "1/to/10.0.0.1",
            "from/10.0.0.1",
        ] {
            assert_eq!(Route::parse(text, 2), None, "{text}");
        }
        for route in [Route::From("fd00::1".parse().unwrap()), Route::NoneTo(1)] {
            assert_eq!(Route::parse(&route.to_string(), 2), Some(route));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_card_or_refused(text in "[ -~]{0,120}") {
            let _ = (BusinessCard::parse(&text), Route::parse(&text, 3));
        }

        #[test]
        fn a_damaged_card_is_refused_or_valid(at in 0_usize..80, byte in 0x20_u8..0x7f) {
            let mut text = card().to_string().into_bytes();
            let at = at % text.len();
            text[at] = byte;
            let text = String::from_utf8(text).unwrap();
            if let Some(card) = BusinessCard::parse(&text) {
                prop_assert_eq!(BusinessCard::parse(&card.to_string()), Some(card));
            }
        }
    }
}
