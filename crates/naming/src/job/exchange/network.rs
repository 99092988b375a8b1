//! The address of each node, chosen from those that the nodes have published.
//!
//! All ranks compute the same choice from the same cards. [`own_route`] alone depends on the machine
//! it runs on.

use std::collections::HashMap;
use std::net::IpAddr;

use dipole_link::source_address;
use ipnet::IpNet;

use super::business_card::{BusinessCard, Candidate, Route};

/// The choice of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// One of each node, all in one subnet.
    Common(Vec<IpAddr>),
    /// No subnet has all nodes. These are the addresses of each that belong to no other.
    Undecided(Vec<Vec<Candidate>>),
}

/// Chooses the subnet that has all nodes. If there are several, the fastest; of equally fast ones
/// that of the default route.
pub(super) fn choose(cards: &[&BusinessCard]) -> Choice {
    let usable = unique(cards);
    let Some((first, others)) = usable.split_first() else {
        return Choice::Common(Vec::new());
    };
    let in_common = |one: &Candidate| {
        let subnet = subnet(one)?;
        let mut of_all = vec![one.clone()];
        for candidates in others {
            let same = candidates
                .iter()
                .find(|other| self::subnet(other) == Some(subnet));
            of_all.push(same?.clone());
        }
        Some(of_all)
    };
    let common = first.iter().filter_map(in_common);
    // The first of equally good ones: `max_by_key` would take the last.
    let best = common.reduce(|best, other| match rank(&other) > rank(&best) {
        true => other,
        false => best,
    });
    match best {
        Some(of_all) => Choice::Common(of_all.iter().map(|one| one.ip).collect()),
        None => Choice::Undecided(usable),
    }
}

/// How good a subnet is: a larger value is better.
fn rank(of_all: &[Candidate]) -> (u32, usize, bool) {
    let slowest = of_all.iter().map(|one| one.speed_mbit).min();
    let routed = of_all.iter().filter(|one| one.is_routed).count();
    (slowest.unwrap_or(0), routed, of_all[0].ip.is_ipv4())
}

/// The subnet of an address, unless the address is alone in it.
fn subnet(one: &Candidate) -> Option<IpNet> {
    let subnet = IpNet::new(one.ip, one.prefix_bits).ok()?;
    (one.prefix_bits < subnet.max_prefix_len()).then(|| subnet.trunc())
}

/// Addresses of each node without those that another machine has as well, such as of the bridges
/// that container systems create everywhere.
fn unique(cards: &[&BusinessCard]) -> Vec<Vec<Candidate>> {
    let mut owners: HashMap<IpAddr, Option<u64>> = HashMap::new();
    for card in cards {
        for one in &card.addresses {
            let owner = owners.entry(one.ip).or_insert(Some(card.machine));
            if *owner != Some(card.machine) {
                *owner = None;
            }
        }
    }
    let is_unique = |one: &&Candidate| owners.get(&one.ip).is_some_and(Option::is_some);
    let of = |card: &&BusinessCard| card.addresses.iter().filter(is_unique).cloned().collect();
    cards.iter().map(of).collect()
}

/// The address of this node with routes to as many other nodes as possible.
pub(super) fn own_route(usable: &[Vec<Candidate>], own: usize) -> Route {
    route_with(usable, own, &|to| source_address(to).ok())
}

fn route_with(
    usable: &[Vec<Candidate>],
    own: usize,
    source_to: &dyn Fn(IpAddr) -> Option<IpAddr>,
) -> Route {
    // How many nodes each own address leads to.
    let mut counts = vec![0_usize; usable[own].len()];
    for (node, candidates) in usable.iter().enumerate() {
        if node == own {
            continue;
        }
        let sources: Vec<IpAddr> = candidates
            .iter()
            .filter_map(|one| source_to(one.ip))
            .collect();
        let mut is_reached = false;
        for (count, one) in counts.iter_mut().zip(&usable[own]) {
            if sources.contains(&one.ip) {
                *count += 1;
                is_reached = true;
            }
        }
        if !is_reached {
            return Route::NoneTo(node);
        }
    }
    // The first of equally good ones: its node has put the best first.
    let best = counts.iter().zip(&usable[own]);
    let best = best.reduce(|best, other| if other.0 > best.0 { other } else { best });
    best.map_or(Route::NoneTo(own), |(_, one)| Route::From(one.ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with addresses such as `10.0.0.1/24`, `+10.0.0.1/24` (default route) and
    /// `10.0.0.1/24@1000` (speed).
    fn node(machine: u64, addresses: &str) -> BusinessCard {
        let one = |text: &str| {
            let (text, speed) = text.split_once('@').unwrap_or((text, "0"));
            let (ip, bits) = text.trim_start_matches('+').split_once('/').unwrap();
            Candidate {
                ip: ip.parse().unwrap(),
                prefix_bits: bits.parse().unwrap(),
                speed_mbit: speed.parse().unwrap(),
                is_routed: text.starts_with('+'),
            }
        };
        BusinessCard {
            node: machine,
            machine,
            port: 1,
            name: format!("n{machine}"),
            addresses: addresses.split_whitespace().map(one).collect(),
        }
    }

    fn chosen(nodes: &[&str]) -> Result<String, Vec<Vec<Candidate>>> {
        let cards: Vec<BusinessCard> = (1..).zip(nodes).map(|(id, text)| node(id, text)).collect();
        match choose(&cards.iter().collect::<Vec<_>>()) {
            Choice::Common(found) => {
                let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
                Ok(texts.join(" "))
            }
            Choice::Undecided(usable) => Err(usable),
        }
    }

    #[test]
    fn the_subnet_that_all_nodes_share_is_chosen() {
        // Bridges have the same address everywhere; the second node has no VPN.
        let found = chosen(&[
            "172.17.0.1/16 10.8.0.1/24 10.0.0.1/24",
            "10.0.0.2/24 172.17.0.1/16",
            "172.17.0.1/16 10.8.0.3/24 10.0.0.3/24",
        ]);
        assert_eq!(found.unwrap(), "10.0.0.1 10.0.0.2 10.0.0.3");
        let six = chosen(&["fd00::1/64 2001:db8::1/128", "fd00::2/64"]);
        assert_eq!(six.unwrap(), "fd00::1 fd00::2");
        let containers = chosen(&["172.17.0.2/16", "172.17.0.3/16"]);
        assert_eq!(containers.unwrap(), "172.17.0.2 172.17.0.3");
    }

    #[test]
    fn of_several_subnets_the_fastest_then_the_routed_then_ipv4_is_chosen() {
        let fast = chosen(&[
            "+10.0.0.1/24@1000 10.1.0.1/24@25000",
            "+10.0.0.2/24@1000 10.1.0.2/24@25000",
        ]);
        assert_eq!(fast.unwrap(), "10.1.0.1 10.1.0.2");
        let routed = chosen(&["10.1.0.1/24 +10.0.0.1/24", "10.1.0.2/24 +10.0.0.2/24"]);
        assert_eq!(routed.unwrap(), "10.0.0.1 10.0.0.2");
        let both = chosen(&["fd00::1/64 10.0.0.1/24", "fd00::2/64 10.0.0.2/24"]);
        assert_eq!(both.unwrap(), "10.0.0.1 10.0.0.2");
        let first = chosen(&["10.1.0.1/24 10.2.0.1/24", "10.2.0.2/24 10.1.0.2/24"]);
        assert_eq!(first.unwrap(), "10.1.0.1 10.1.0.2");
    }

    #[test]
    fn two_nodes_on_one_machine_may_have_the_same_address() {
        let cards = [node(1, "10.0.0.1/24"), node(1, "10.0.0.1/24")];
        let both = ["10.0.0.1".parse().unwrap(); 2];
        let found = choose(&[&cards[0], &cards[1]]);
        assert_eq!(found, Choice::Common(both.to_vec()));
    }

    #[test]
    fn without_a_common_subnet_the_routes_decide() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        // Addresses that are alone in their subnet, as in overlay networks; a useless VPN is first.
        let usable = chosen(&[
            "10.8.0.1/24 10.244.1.0/32",
            "10.244.2.0/32 192.168.1.5/24",
            "10.244.3.0/32",
        ]);
        let usable = usable.unwrap_err();
        let overlay = |to: IpAddr| match to.to_string() {
            to if to.starts_with("10.244") => Some(ip("10.244.1.0")),
            _ => None,
        };
        let route = route_with(&usable, 0, &overlay);
        assert_eq!(route, Route::From(ip("10.244.1.0")));
        let cut = |to: IpAddr| (to != ip("10.244.3.0")).then(|| ip("10.244.1.0"));
        assert_eq!(route_with(&usable, 0, &cut), Route::NoneTo(2));
        // All addresses of the second node are also those of others.
        let lonely = chosen(&["172.17.0.1/16 10.0.0.1/24", "172.17.0.1/16"]).unwrap_err();
        let any = |_: IpAddr| Some(ip("10.0.0.1"));
        assert_eq!(route_with(&lonely, 0, &any), Route::NoneTo(1));
        assert_eq!(route_with(&lonely, 1, &any), Route::NoneTo(0));
    }
}
