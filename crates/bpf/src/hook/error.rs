//! Why an interface cannot be served, in words that help.

use std::fmt;
use std::io;

use rustix::thread::CapabilitySet;

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asking the interface what it is.
    Interface,
    /// Making a map.
    Map,
    /// Loading a program.
    Load,
    /// Attaching at TCX ingress.
    Tcx,
    /// Attaching at TCX egress.
    TcxEgress,
    /// Attaching at XDP.
    Xdp,
    /// Entering or removing what a map holds.
    Entry,
    /// Taking over descriptors that were kept.
    Kept,
}

impl Step {
    /// What the kernel asks for.
    fn needs(self) -> &'static [(&'static str, CapabilitySet)] {
        const BPF: (&str, CapabilitySet) = ("CAP_BPF", CapabilitySet::BPF);
        const NET_ADMIN: (&str, CapabilitySet) = ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN);
        match self {
            Self::Interface | Self::Kept => &[],
            Self::Map | Self::Entry => &[BPF],
            Self::Load => &[BPF, NET_ADMIN],
            Self::Tcx | Self::TcxEgress | Self::Xdp => &[NET_ADMIN],
        }
    }

    /// An old kernel calls it an invalid argument.
    fn tells_age(self) -> bool {
        let steps = [Self::Map, Self::Load, Self::Tcx, Self::TcxEgress, Self::Xdp];
        steps.contains(&self)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interface => "asking for its hardware address",
            Self::Map => "making a BPF map",
            Self::Load => "loading the BPF program",
            Self::Tcx => "attaching at TCX ingress",
            Self::TcxEgress => "attaching at TCX egress",
            Self::Xdp => "attaching at XDP",
            Self::Entry => "changing a BPF map",
            Self::Kept => "taking over kept descriptors",
        })
    }
}

/// Why the kernel's part cannot be set up or changed on an interface.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The kernel refused a step.
    #[error(
        "cannot open the bpf link on {interface}: {}",
        explain(.interface, *.step, .cause, .log, .missing)
    )]
    Refused {
        /// Which interface.
        interface: String,
        /// Which step.
        step: Step,
        /// The kernel's error.
        #[source]
        cause: io::Error,
        /// The last lines of the verifier, if it was a program that it refused.
        log: String,
        /// Capabilities that the step needs and this thread does not have.
        missing: Vec<&'static str>,
    },
    /// The interface's frames are not Ethernet.
    #[error(
        "cannot open the bpf link on {interface}: it is no Ethernet interface (kind {kind}); \
         set DIPOLE_LINK=udp"
    )]
    NotEthernet {
        /// Which interface.
        interface: String,
        /// What it is instead (`ARPHRD_...` of the kernel).
        kind: u16,
    },
    /// Packets to this address are for several hosts or for none.
    #[error(
        "cannot deposit packets to {address} on {interface}: it is not the address of \
         one host; name the interface's own address"
    )]
    NotOneHost {
        /// Which interface.
        interface: String,
        /// The address.
        address: std::net::IpAddr,
    },
}

/// What happened in a step, and what to do.
fn explain(
    interface: &str,
    step: Step,
    cause: &io::Error,
    log: &str,
    missing: &[&'static str],
) -> String {
    let what = match missing {
        [] => format!("{step} failed: {cause}"),
        _ => format!("{step} needs {} ({cause})", missing.join(" and ")),
    };
    let log = match log {
        "" => String::new(),
        _ => format!("; the verifier says: {log}"),
    };
    let advice = match (missing.is_empty(), cause.raw_os_error()) {
        (false, _) | (true, Some(libc::EPERM)) => format!(
            "let the machine's agent grant rings on {interface} (/etc/dipole/interfaces.toml), \
             or set DIPOLE_LINK=udp"
        ),
        (true, Some(libc::EBUSY)) if step == Step::Xdp => format!(
            "another XDP program is there (ip link show {interface}): use TCX, or set DIPOLE_LINK=udp"
        ),
        (true, Some(libc::EINVAL)) if step.tells_age() => {
            "TCX needs Linux 6.6, XDP needs 5.18: use DIPOLE_LINK=udp on older ones".to_owned()
        }
        _ => "set DIPOLE_LINK=udp".to_owned(),
    };
    format!("{what}{log}; {advice}")
}

impl HookError {
    pub(super) fn refused(interface: &str, step: Step, cause: io::Error) -> Self {
        Self::rejected(interface, step, cause, String::new())
    }

    pub(super) fn rejected(interface: &str, step: Step, cause: io::Error, log: String) -> Self {
        let denied = cause.kind() == io::ErrorKind::PermissionDenied;
        let missing = match denied {
            true => missing(step.needs()),
            false => Vec::new(),
        };
        Self::Refused {
            interface: interface.to_owned(),
            step,
            cause,
            log,
            missing,
        }
    }

    /// True if the kernel is too old for this step: it does not know the command.
    #[must_use]
    pub fn is_unknown_to_kernel(&self) -> bool {
        match self {
            // The verifier's words come only with a program that the kernel has read.
            Self::Refused { cause, log, .. } => {
                log.is_empty() && cause.raw_os_error() == Some(libc::EINVAL)
            }
            _ => false,
        }
    }
}

/// Those that this thread does not have.
fn missing(needed: &[(&'static str, CapabilitySet)]) -> Vec<&'static str> {
    // CAP_SYS_ADMIN includes CAP_BPF, but should not be recommended.
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let held = held.unwrap_or(CapabilitySet::empty());
    let lacking = needed.iter().filter(|(_, one)| !held.contains(*one));
    lacking.map(|(name, _)| *name).collect()
}
