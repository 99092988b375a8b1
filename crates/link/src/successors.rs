//! Addresses of this machine that are replaced by others: by DHCP, or by an administrator.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::sys::InterfaceAddress;

/// An address that was deleted may come back for this long before another one takes its place.
pub const GRACE: Duration = Duration::from_millis(200);

/// One of the addresses, as last seen.
#[derive(Debug, Default)]
struct Followed {
    /// Its device; `None` until the address exists.
    device: Option<String>,
    /// Since when it does not exist.
    missing_since: Option<Instant>,
}

/// Addresses that have taken the place of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Position of the address that is gone, and its successor.
    pub moves: Vec<(usize, IpAddr)>,
    /// When to look again although nothing has changed.
    pub again_after: Option<Duration>,
}

/// Follows addresses of this machine, and finds their successors.
#[derive(Debug, Default)]
pub struct Successors {
    followed: Vec<Followed>,
}

impl Successors {
    /// Compares the addresses that are in `use_now` with `all` that exist. The successor of one that
    /// is gone is one of `preferred` that exists, or else another address of the same device.
    pub fn find(
        &mut self,
        use_now: &[IpAddr],
        all: &[InterfaceAddress],
        preferred: impl Fn() -> Vec<IpAddr>,
        now: Instant,
    ) -> Found {
        self.followed.resize_with(use_now.len(), Followed::default);
        let mut used = use_now.to_vec();
        let mut found = Found::default();
        for (index, (from, followed)) in use_now.iter().zip(&mut self.followed).enumerate() {
            if let Some(one) = all.iter().find(|one| one.ip == *from) {
                *followed = Followed {
                    device: Some(one.name.clone()),
                    missing_since: None,
                };
                continue;
            }
            // All of 127.0.0.0/8 exists, although only one address is listed.
            if from.is_loopback() {
                continue;
            }
            let since = *followed.missing_since.get_or_insert(now);
            let left = GRACE.saturating_sub(now.saturating_duration_since(since));
            if !left.is_zero() {
                found.again_after = found.again_after.into_iter().chain([left]).min();
                continue;
            }
            let is_candidate = |one: &&InterfaceAddress| {
                one.running
                    && !one.loopback
                    && one.ip.is_ipv4() == from.is_ipv4()
                    && is_link_local(one.ip) == is_link_local(*from)
                    && !used.contains(&one.ip)
            };
            let mut candidates = all.iter().filter(is_candidate);
            let listed = preferred().into_iter();
            let mut listed = listed.filter(|ip| candidates.clone().any(|one| one.ip == *ip));
            let to = listed.next().or_else(|| {
                let same = candidates.find(|one| Some(&one.name) == followed.device.as_ref());
                same.map(|one| one.ip)
            });
            if let Some(to) = to {
                used.push(to);
                found.moves.push((index, to));
            }
        }
        found
    }
}

/// True if an address is only valid on its link, so that peers cannot be sent it.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn at(name: &str, text: &str) -> InterfaceAddress {
        InterfaceAddress {
            name: name.to_owned(),
            ip: ip(text),
            prefix_bits: 24,
            scope_id: 0,
            up: true,
            running: true,
            loopback: name == "lo",
        }
    }

    fn none() -> Vec<IpAddr> {
        Vec::new()
    }

    #[test]
    fn another_address_of_the_device_takes_over_after_a_moment() {
        let mut successors = Successors::default();
        let (used, begun) = ([ip("10.0.0.1"), ip("10.1.0.1")], Instant::now());
        let before = [at("a", "10.0.0.1"), at("b", "10.1.0.1")];
        let found = successors.find(&used, &before, none, begun);
        assert_eq!(found, Found::default());
        let after = [
            at("lo", "127.0.0.1"),
            at("b", "10.1.0.1"),
            at("b", "10.1.0.7"),
            at("a", "fd00::1"),
            at("a", "169.254.0.1"),
            at("a", "10.0.0.9"),
        ];
        let found = successors.find(&used, &after, none, begun);
        assert_eq!((found.moves.len(), found.again_after), (0, Some(GRACE)));
        // It comes back, and goes again.
        let found = successors.find(&used, &before, none, begun + GRACE);
        assert_eq!(found, Found::default());
        let gone = begun + 2 * GRACE;
        successors.find(&used, &after, none, gone);
        let found = successors.find(&used, &after, none, gone + GRACE);
        assert_eq!(found.moves, [(0, ip("10.0.0.9"))]);
    }

    #[test]
    fn a_preferred_address_may_be_on_another_device_and_none_is_used_twice() {
        let mut successors = Successors::default();
        let (used, begun) = ([ip("10.0.0.1"), ip("10.1.0.1")], Instant::now());
        let all = [
            at("c", "10.2.0.1"),
            at("c", "10.2.0.2"),
            at("c", "10.2.0.3"),
        ];
        let preferred = || vec![ip("10.9.0.1"), ip("10.2.0.2"), ip("10.2.0.3")];
        successors.find(&used, &all, preferred, begun);
        let found = successors.find(&used, &all, preferred, begun + GRACE);
        assert_eq!(found.moves, [(0, ip("10.2.0.2")), (1, ip("10.2.0.3"))]);
        // Their devices were never seen.
        let found = successors.find(&used, &all, none, begun + GRACE);
        assert_eq!(found, Found::default());
    }

    #[test]
    fn loopback_addresses_always_exist() {
        let mut successors = Successors::default();
        let (used, begun) = ([ip("127.0.0.5")], Instant::now());
        let all = [at("lo", "127.0.0.1")];
        successors.find(&used, &all, none, begun);
        let found = successors.find(&used, &all, none, begun + GRACE);
        assert_eq!(found, Found::default());
    }
}
