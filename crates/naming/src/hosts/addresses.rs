//! Addresses in a hosts file.

use std::io;
use std::net::{IpAddr, SocketAddr};

use dipole_link::sys;

use crate::lines::{Fault, Word};

/// Picks the address by which all nodes reach the host with this name.
pub(super) fn address_of(name: &str, found: io::Result<Vec<IpAddr>>) -> Result<IpAddr, Fault> {
    let found = found.map_err(|cause| {
        Fault::because(format!(
            "`{name}` is not an address, and cannot be resolved as a name: {cause}"
        ))
    })?;
    // Many machines resolve their own name to a loopback address.
    let reached = |address: &&IpAddr| name == "localhost" || !address.is_loopback();
    let mut reached: Vec<IpAddr> = found.iter().filter(reached).copied().collect();
    reached.sort_by_key(IpAddr::is_ipv6);
    reached.first().copied().ok_or_else(|| {
        let found: Vec<String> = found.iter().map(IpAddr::to_string).collect();
        let found = found.join(", ");
        Fault::because(format!(
            "`{name}` is {found} on this machine, which other nodes cannot reach: write its address"
        ))
    })
}

pub(super) const ADDRESS: &str = "an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1";

/// Explains a wrong address. Other programs' files have ports and brackets in the same word.
fn not_an_address(text: &str) -> Fault {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        let (ip, port) = (socket.ip(), socket.port());
        return Fault::new(
            text,
            format_args!("the port in a word of its own: `{ip} port={port}`"),
        );
    }
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match inner.and_then(|inner| inner.parse::<IpAddr>().ok()) {
        Some(ip) => Fault::new(text, format_args!("the address without brackets: `{ip}`")),
        None => Fault::new(text, ADDRESS),
    }
}

/// An address, and the interface that leads there if it is link-local.
pub(super) type Scoped = (IpAddr, Option<Word>);

pub(super) fn parse_address(text: &str) -> Result<Scoped, Fault> {
    const ONE: &str = "the address of one host, neither unspecified nor multicast";
    let (plain, scope) = text
        .split_once('%')
        .map_or((text, None), |(ip, name)| (ip, Some(name)));
    let address: IpAddr = plain.parse().map_err(|_| not_an_address(text))?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(Fault::new(text, ONE));
    }
    let is_link_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    match scope {
        Some(_) if !is_link_local => {
            let plain = format!("`{plain}`: only link-local addresses (fe80::) have a scope");
            Err(Fault::new(text, plain))
        }
        Some(name) => Ok((address, Some(existing_interface(text, address, name)?))),
        None if is_link_local => Err(Fault::new(
            text,
            format!("`{plain}%INTERFACE`, with the interface of this machine that leads there"),
        )),
        None => Ok((address, None)),
    }
}

/// The interface of this machine with this name, if packets to `address` can use no other one.
fn existing_interface(text: &str, address: IpAddr, name: &str) -> Result<Word, Fault> {
    let all = sys::interface_addresses()
        .map_err(|cause| Fault::because(format!("cannot list the interfaces: {cause}")))?;
    let Some(found) = all.iter().find(|one| one.name == name) else {
        let mut names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let names = names.join(", ");
        return Err(Fault::new(
            text,
            format!("an interface of this machine after `%`; it has {names}"),
        ));
    };
    // A link is opened on an address: which one of two interfaces is meant would be unknown.
    if let Some(other) = all
        .iter()
        .find(|one| one.ip == address && one.name != found.name)
    {
        return Err(Fault::because(format!(
            "found `{text}`, but {} of this machine has this address: give each interface its own",
            other.name
        )));
    }
    Word::new(name).ok_or_else(|| Fault::new(text, "the name of an interface after `%`"))
}

/// The index of an interface with an address.
pub(super) fn interface_index(name: &str) -> Option<u32> {
    let all = sys::interface_addresses().ok()?;
    let mut indexes = all.iter().filter(|one| one.name == name);
    indexes.find_map(|one| (one.scope_id > 0).then_some(one.scope_id))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::address::NodeId;
    use crate::hosts::{Host, Hosts};

    #[test]
    fn names_are_looked_up_and_never_taken_for_this_machine_alone() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let of = |name: &str, all: &[&str]| {
            let found = all.iter().map(|one| ip(one)).collect();
            address_of(name, Ok(found)).map_err(|fault| fault.to_string())
        };
        assert_eq!(
            of("a", &["127.0.1.1", "fd00::1", "10.0.0.1"]),
            Ok(ip("10.0.0.1"))
        );
        assert_eq!(of("a", &["fd00::1"]), Ok(ip("fd00::1")));
        assert_eq!(of("localhost", &["127.0.0.1"]), Ok(ip("127.0.0.1")));
        let own = of("a", &["127.0.1.1"]).unwrap_err();
        assert!(own.contains("`a` is 127.0.1.1 on this machine"), "{own}");
        let hosts = Hosts::parse_as("1 localhost\n2 127.0.0.2 name=b\n", Path::new("x")).unwrap();
        assert!(hosts.get(NodeId(1)).unwrap().address.is_loopback());
        let lines: Vec<String> = hosts.iter().map(Host::line).collect();
        assert!(lines[0].ends_with(" name=localhost"), "{lines:?}");
        assert_eq!(Hosts::parse(&lines.join("\n")).unwrap().count(), 2);
        assert!(Hosts::parse("1 localhost").is_err());
    }

    #[test]
    fn addresses_in_the_form_of_other_files_are_explained() {
        for (line, advice) in [
            ("1 10.0.0.1:7411", "`10.0.0.1 port=7411`"),
            ("1 [fd00::1]:7411", "`fd00::1 port=7411`"),
            ("1 [::1]", "without brackets: `::1`"),
            (
                "1 10.0.0.1 interfaces=10.1.0.1:7411",
                "`10.1.0.1 port=7411`",
            ),
            ("1 10.0.0", "such as 10.0.0.1"),
        ] {
            let fault = Hosts::parse(line).unwrap_err().to_string();
            assert!(fault.contains(advice), "{line}: {fault}");
        }
    }

    #[test]
    fn a_link_local_address_has_the_scope_of_an_interface() {
        let all = sys::interface_addresses().expect("interfaces can be listed");
        let lo = all.iter().find(|one| one.loopback).expect("a loopback");
        let line = format!("7 fe80::7%{0} port=99 interfaces=fd00::7", lo.name);
        let hosts = Hosts::parse(&line).expect("a line");
        let host = hosts.get(NodeId(7)).expect("it is there");
        assert_eq!(host.address, "fe80::7".parse::<IpAddr>().unwrap());
        assert!(host.line().starts_with(&format!("7 fe80::7%{} ", lo.name)));
        assert_eq!(Hosts::parse(&host.line()).unwrap(), hosts);
        assert!(
            host.to_string()
                .ends_with(&format!("(fe80::7%{})", lo.name))
        );
    }
}
