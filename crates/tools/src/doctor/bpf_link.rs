//! Whether the bpf link can be used at an interface, so that small packets bypass the socket, and
//! which other programs are attached there.

use std::net::IpAddr;
use std::path::Path;

use dipole_bpf::grant::wire::{Granted, Reason};
use dipole_bpf::grant::{GrantError, preview};
use dipole_bpf::hook::{AttachedProgram, TrafficDirection, attached};
use dipole_bpf::{InterfaceId, has_capabilities, interface_of};
use dipole_node::Config;

use super::finding::Finding;

const NAME: &str = "bpf link";

/// How this process gets access to the fast path of an interface.
#[derive(Debug)]
enum Access {
    /// The process's own capabilities.
    Own,
    /// A reply of the ring broker.
    Granted(Result<Granted, GrantError>),
}

/// Examines the interface with an address; the second result is true if the link can be used.
pub(super) fn examine(address: IpAddr, config: &Config) -> (Vec<Finding>, bool) {
    let Ok((interface, _)) = interface_of(address) else {
        return (Vec::new(), false);
    };
    let path = &config.broker;
    let access = match has_capabilities() {
        true => Access::Own,
        false => Access::Granted(preview(path, address, config.ring_bytes)),
    };
    let programs = attached(&interface).ok();
    // A kernel that can list programs also has TCX.
    let has_tcx = programs.is_some() || !matches!(access, Access::Own);
    let finding = judge(&access, has_tcx, path);
    let usable = has_tcx && matches!(access, Access::Own | Access::Granted(Ok(_)));
    let mut findings = vec![finding];
    findings.extend(programs.and_then(|programs| others(&programs)));
    findings.extend(xdp(&interface));
    let named = findings.into_iter().map(|one| one.about(&interface.name));
    (named.collect(), usable)
}

fn judge(access: &Access, has_tcx: bool, path: &Path) -> Finding {
    let allow = "an administrator can let `dipole agent` grant it: /etc/dipole/interfaces.toml";
    match access {
        Access::Own if has_tcx => {
            Finding::good(NAME, "can be used, by this process's capabilities")
        }
        Access::Own => Finding::slow(
            NAME,
            "the kernel has no TCX, so small packets use the UDP socket",
            "install Linux 6.6 or newer",
        ),
        Access::Granted(Ok(granted)) => {
            let raw = match granted.sender {
                true => "and a socket for raw frames",
                false => "small packets are sent by the socket",
            };
            Finding::good(
                NAME,
                format!("the agent at {} grants a ring, {raw}", path.display()),
            )
        }
        Access::Granted(Err(GrantError::NoBroker { .. })) => Finding::good(
            NAME,
            "not for this user, so small packets take the socket: no broker grants rings here",
        )
        .advise(allow),
        Access::Granted(Err(GrantError::Refused(refusal))) => {
            let fact = format!(
                "not granted, so small packets take the socket: {}",
                refusal.text
            );
            match refusal.reason {
                Reason::User | Reason::Interface => Finding::good(NAME, fact).advise(allow),
                Reason::Size => Finding::slow(
                    NAME,
                    fact,
                    "ask for less (DIPOLE_RING_BYTES), or have `ring-bytes` raised",
                ),
                Reason::Version => Finding::slow(NAME, fact, "install the same version"),
                Reason::Limit => Finding::slow(NAME, fact, "end processes, or have it raised"),
                _ => Finding::unknown(NAME, fact, "see the broker's log"),
            }
        }
        Access::Granted(Err(error)) => {
            Finding::unknown(NAME, error.to_string(), "`systemctl status dipole-broker`")
        }
    }
}

/// Programs attached at TCX, including ours; they run one after another.
fn others(programs: &[AttachedProgram]) -> Option<Finding> {
    let told = programs.iter().map(|one| {
        let side = match one.side {
            TrafficDirection::Ingress => "ingress",
            TrafficDirection::Egress => "egress",
        };
        let name = one.name.as_deref().unwrap_or("unnamed");
        format!("{name} ({}) at {side}", one.id)
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| {
        Finding::good("programs", format!("attached at TCX: {}", told.join(", ")))
            .advise("`bpftool net` shows whose they are; they see packets in this order")
    })
}

/// A program attached at XDP, which sees packets before all others.
fn xdp(interface: &InterfaceId) -> Option<Finding> {
    let output = std::process::Command::new("ip")
        .args(["-j", "link", "show", "dev", &interface.name])
        .output()
        .ok()?;
    let id = xdp_of(&output.stdout)?;
    Some(
        Finding::good("programs", format!("attached at XDP: {id}"))
            .advise("it sees packets before Dipole does; `bpftool prog show` shows what it is"),
    )
}

/// The id of an XDP program in the output of `ip -j link`.
fn xdp_of(json: &[u8]) -> Option<u64> {
    let links: serde_json::Value = serde_json::from_slice(json).ok()?;
    links.get(0)?.get("xdp")?.get("prog")?.get("id")?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Good, Slow, Unknown};
    use super::*;
    use dipole_bpf::grant::wire::Refusal;

    fn granted(sender: bool) -> Access {
        Access::Granted(Ok(Granted {
            interface: InterfaceId {
                index: 2,
                name: "eth0".to_owned(),
            },
            ring_bytes: 4096,
            sender,
        }))
    }

    fn refused(reason: Reason) -> Access {
        Access::Granted(Err(GrantError::Refused(Refusal {
            reason,
            text: "because".to_owned(),
        })))
    }

    #[test]
    fn what_can_be_used_is_told_and_why_not() {
        let no_broker = Access::Granted(Err(GrantError::NoBroker {
            path: "/x".into(),
            cause: std::io::ErrorKind::NotFound.into(),
        }));
        let silent = Access::Granted(Err(GrantError::Silent { path: "/x".into() }));
        for (access, has_tcx, verdict, word) in [
            (Access::Own, true, Good, "capabilities"),
            (Access::Own, false, Slow, "no TCX"),
            (granted(true), true, Good, "raw frames"),
            (granted(false), true, Good, "by the socket"),
            (no_broker, true, Good, "no broker grants"),
            (refused(Reason::User), true, Good, "because"),
            (refused(Reason::Limit), true, Slow, "because"),
            (refused(Reason::Size), true, Slow, "because"),
            (refused(Reason::Kernel), true, Unknown, "because"),
            (silent, true, Unknown, "does not reply"),
        ] {
            let found = judge(&access, has_tcx, Path::new("/x"));
            assert_eq!(found.verdict, verdict, "{access:?}");
            assert!(found.fact.contains(word), "{}", found.fact);
        }
    }

    #[test]
    fn attached_programs_are_named() {
        assert_eq!(others(&[]), None);
        let program = AttachedProgram {
            side: TrafficDirection::Egress,
            id: 7,
            name: Some("shaper".to_owned()),
        };
        let found = others(&[program]).expect("one");
        assert!(
            found.fact.contains("shaper (7) at egress"),
            "{}",
            found.fact
        );
        let json = br#"[{"ifname":"eth0","xdp":{"mode":2,"prog":{"id":9}}}]"#;
        assert_eq!(xdp_of(json), Some(9));
        assert_eq!(xdp_of(b"[{}]"), None);
        assert_eq!(xdp_of(b""), None);
    }
}
