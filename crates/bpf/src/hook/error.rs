//! Errors of setting up or changing the kernel side of an interface.

use std::fmt;
use std::io;

use rustix::thread::CapabilitySet;

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Querying the interface's hardware type.
    Interface,
    /// Creating a map.
    Map,
    /// Loading a program.
    Load,
    /// Attaching at TCX ingress.
    Tcx,
    /// Attaching at TCX egress.
    TcxEgress,
    /// Adding or removing a map entry.
    Entry,
    /// Taking over descriptors that were kept.
    Kept,
}

impl Step {
    /// Capabilities that the kernel requires.
    fn needs(self) -> &'static [(&'static str, CapabilitySet)] {
        const BPF: (&str, CapabilitySet) = ("CAP_BPF", CapabilitySet::BPF);
        const NET_ADMIN: (&str, CapabilitySet) = ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN);
        match self {
            Self::Interface | Self::Kept => &[],
            Self::Map | Self::Entry => &[BPF],
            Self::Load => &[BPF, NET_ADMIN],
            Self::Tcx | Self::TcxEgress => &[NET_ADMIN],
        }
    }

    /// True if an old kernel reports an invalid argument.
    fn depends_on_kernel_version(self) -> bool {
        let steps = [Self::Map, Self::Load, Self::Tcx, Self::TcxEgress];
        steps.contains(&self)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interface => "querying its hardware address",
            Self::Map => "creating a BPF map",
            Self::Load => "loading the BPF program",
            Self::Tcx => "attaching at TCX ingress",
            Self::TcxEgress => "attaching at TCX egress",
            Self::Entry => "changing a BPF map",
            Self::Kept => "taking over kept descriptors",
        })
    }
}

/// Why the kernel side of an interface cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The kernel refused a step.
    #[error(
        "cannot open the bpf link on {interface}: {}",
        explain(.interface, *.step, .cause, .log, .missing)
    )]
    Refused {
        /// Name of the interface.
        interface: String,
        /// The step that failed.
        step: Step,
        /// Error returned by the kernel.
        #[source]
        cause: io::Error,
        /// The last lines of the verifier's log, if a program was rejected.
        log: String,
        /// Capabilities that the step needs and this thread does not have.
        missing: Vec<&'static str>,
    },
    /// The interface's frames are not Ethernet.
    #[error(
        "cannot open the bpf link on {interface}: it is not an Ethernet interface (kind {kind}); \
         set DIPOLE_LINK=udp"
    )]
    NotEthernet {
        /// Name of the interface.
        interface: String,
        /// Its type (`ARPHRD_...` of the kernel).
        kind: u16,
    },
    /// The address is not a single host's.
    #[error(
        "cannot deposit packets to {address} on {interface}: it is not the address of \
         a single host; use the interface's own address"
    )]
    NotOneHost {
        /// Name of the interface.
        interface: String,
        /// Address that was given.
        address: std::net::IpAddr,
    },
}

/// Describes what happened in a step, and what to do.
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
        _ => format!("; verifier: {log}"),
    };
    let advice = match (missing.is_empty(), cause.raw_os_error()) {
        (false, _) | (true, Some(libc::EPERM)) => format!(
            "let the machine's agent grant rings on {interface} (/etc/dipole/interfaces.toml), \
             or set DIPOLE_LINK=udp"
        ),
        (true, Some(libc::EINVAL)) if step.depends_on_kernel_version() => {
            "TCX needs Linux 6.6: set DIPOLE_LINK=udp on older kernels".to_owned()
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
}

/// The needed capabilities that this thread does not have.
fn missing(needed: &[(&'static str, CapabilitySet)]) -> Vec<&'static str> {
    // CAP_SYS_ADMIN includes CAP_BPF, but should not be recommended.
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let held = held.unwrap_or(CapabilitySet::empty());
    let lacking = needed.iter().filter(|(_, one)| !held.contains(*one));
    lacking.map(|(name, _)| *name).collect()
}
