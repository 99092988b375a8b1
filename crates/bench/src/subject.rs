//! Subjects of measurements: Dipole and its peers.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::work::{ACKNOWLEDGEMENT_BYTES, Carrier, Kind, Placement, Workload, name_of};

/// Longest UDP payload of a packet on an Ethernet of MTU 1500.
const LONGEST_FRAME_BYTES: usize = 1472;
/// Longest UDP payload over IPv4.
const LONGEST_DATAGRAM_BYTES: usize = 65_507;

/// A program of another project that is compared with Dipole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct External {
    /// Name in tables and results.
    pub name: &'static str,
    /// Link between two processes of a node; `None` if it uses the network there, too.
    pub node_link: Option<&'static str>,
    /// Protocol between two nodes.
    pub network_link: &'static str,
}

/// A subject of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub enum Subject {
    /// Dipole
    Dipole,
    /// Dipole with active ports: handlers reply to handlers
    DipolePort,
    /// Dipole with active ports, among 10,000 further open ports per side
    DipolePorts,
    /// Puts into the other side's memory, with a flush
    DipolePut,
    /// Gets from the other side's memory, one by one
    DipoleGet,
    /// Fetch-and-add on a word of the other side's memory
    DipoleAtomic,
    /// UDP sockets, one datagram per message, non-blocking calls in a loop
    BareUdpSpin,
    /// UDP sockets, blocking calls
    BareUdpBlock,
    /// UDP sockets with segmentation and coalescing by the kernel
    BareUdpGso,
    /// The same with a CRC32C in each packet, like Dipole's
    BareUdpGsoCrc,
    /// The ring of the bpf link and raw frames, without a protocol
    BareBpf,
    /// A TCP socket without delay, non-blocking calls in a loop
    BareTcpSpin,
    /// A TCP connection, blocking calls
    BareTcpBlock,
    /// A Unix stream socket, non-blocking calls in a loop
    BareUnixSpin,
    /// A Unix stream socket, blocking calls
    BareUnixBlock,
    /// A pipe each way, non-blocking calls in a loop
    BarePipeSpin,
    /// A pipe each way, blocking calls
    BarePipeBlock,
    /// Rings in memory between two threads: the limit of the machine
    BareShm,
    /// One process_vm_readv per message between two threads
    BareReadv,
    /// A program of another project, which the caller of this crate runs
    #[value(skip)]
    #[serde(skip)]
    External(External),
}

impl Subject {
    /// Returns its link, and over a network the testbed.
    pub fn link(self, carrier: Carrier, testbed: &str) -> String {
        match self {
            Subject::Dipole
            | Subject::DipolePort
            | Subject::DipolePorts
            | Subject::DipolePut
            | Subject::DipoleGet
            | Subject::DipoleAtomic => match carrier {
                Carrier::Udp | Carrier::Bpf => format!("{}/{testbed}", name_of(carrier)),
                Carrier::Shm => "shm".to_owned(),
            },
            Subject::BareUdpSpin
            | Subject::BareUdpBlock
            | Subject::BareUdpGso
            | Subject::BareUdpGsoCrc => {
                format!("udp/{testbed}")
            }
            Subject::BareBpf => format!("bpf/{testbed}"),
            Subject::BareTcpSpin | Subject::BareTcpBlock => format!("tcp/{testbed}"),
            Subject::BareUnixSpin | Subject::BareUnixBlock => "unix".to_owned(),
            Subject::BarePipeSpin | Subject::BarePipeBlock => "pipe".to_owned(),
            Subject::BareShm => "shm".to_owned(),
            Subject::BareReadv => "readv".to_owned(),
            Subject::External(external) => match external.node_link {
                Some(link) if testbed == "node" => link.to_owned(),
                _ => format!("{}/{testbed}", external.network_link),
            },
        }
    }

    /// Name on the command line and in results.
    pub fn name(self) -> String {
        match self {
            Subject::External(external) => external.name.to_owned(),
            own => name_of(own),
        }
    }

    /// True for programs of other projects.
    pub fn is_external(self) -> bool {
        matches!(self, Subject::External(_))
    }

    /// True if handlers of active ports do the work.
    pub fn is_ports(self) -> bool {
        matches!(self, Subject::DipolePort | Subject::DipolePorts)
    }

    /// True if it works on the other side's memory.
    pub fn is_memory(self) -> bool {
        matches!(
            self,
            Subject::DipolePut | Subject::DipoleGet | Subject::DipoleAtomic
        )
    }

    /// True if both sides are threads of one process.
    pub fn is_threads(self) -> bool {
        matches!(self, Subject::BareShm | Subject::BareReadv)
    }

    pub fn is_datagrams(self) -> bool {
        matches!(self, Subject::BareUdpSpin | Subject::BareUdpBlock) || self.is_frames()
    }

    /// True if each message is a raw frame that bypasses the kernel's sockets.
    pub fn is_frames(self) -> bool {
        matches!(self, Subject::BareBpf)
    }

    /// True if its calls wait in the kernel.
    pub fn blocks(self) -> bool {
        matches!(
            self,
            Subject::BareUdpBlock
                | Subject::BareTcpBlock
                | Subject::BareUnixBlock
                | Subject::BarePipeBlock
        )
    }

    /// True if two threads can use one of its connections.
    fn takes_two_threads(self) -> bool {
        !self.is_datagrams()
            && !self.is_memory()
            && !self.is_threads()
            && !matches!(self, Subject::BareUdpGso | Subject::BareUdpGsoCrc)
    }

    /// Returns why this subject cannot do the work. `None` if it can.
    pub fn refuses(self, work: &Workload) -> Option<String> {
        let (name, kind, size_bytes) = (self.name(), work.kind, work.size_bytes);
        if self.is_external() {
            return None;
        }
        if work.two_threads_a_side {
            if !self.takes_two_threads() {
                return Some(format!("{name} cannot be used by two threads of a side"));
            }
        } else if kind == Kind::Bidir && self.blocks() {
            return Some(format!(
                "{name} cannot send and receive at the same time on one thread; use --threads 2"
            ));
        }
        if self.is_datagrams() && size_bytes > LONGEST_DATAGRAM_BYTES {
            return Some(format!(
                "{name} sends one datagram per message, at most {LONGEST_DATAGRAM_BYTES} bytes, not \
                 {size_bytes}"
            ));
        }
        if self.is_frames() && (kind != Kind::Pingpong || size_bytes > LONGEST_FRAME_BYTES) {
            return Some(format!(
                "{name} has no flow control and no fragments: it can do pingpongs of at most \
                 {LONGEST_FRAME_BYTES} bytes, not {} of {size_bytes}",
                name_of(kind)
            ));
        }
        if self.is_ports() && (kind != Kind::Pingpong || work.unreliable) {
            return Some(format!(
                "{name} can do reliable pingpongs only, not {}",
                match work.unreliable {
                    true => "unreliable ones".to_owned(),
                    false => name_of(kind),
                }
            ));
        }
        if kind == Kind::Mixed && !matches!(self, Subject::Dipole | Subject::BareTcpBlock) {
            return Some(format!(
                "{name} has no second connection for a concurrent stream"
            ));
        }
        if self.is_memory() && (work.unreliable || kind == Kind::Bidir) {
            return Some(format!(
                "{name} works on memory, reliably and one way, which excludes {}",
                name_of(kind)
            ));
        }
        if self == Subject::DipoleAtomic && size_bytes != 8 {
            return Some(format!(
                "{name} updates words of 8 bytes, not of {size_bytes}"
            ));
        }
        if kind != Kind::Pingpong && size_bytes < ACKNOWLEDGEMENT_BYTES {
            return Some(format!(
                "{} needs messages of at least {ACKNOWLEDGEMENT_BYTES} bytes, not of \
                 {size_bytes}",
                name_of(kind)
            ));
        }
        None
    }

    /// Returns the default subjects for this work.
    pub fn usual(kind: Kind, waits: Waits, place: Placement) -> &'static [Subject] {
        use Subject::{
            BarePipeBlock, BarePipeSpin, BareShm, BareTcpBlock, BareTcpSpin, BareUdpBlock,
            BareUdpGso, BareUdpGsoCrc, BareUdpSpin, BareUnixBlock, BareUnixSpin, Dipole,
        };
        match (place, kind, waits) {
            (Placement::TwoNodes, Kind::Bidir, Waits::InThreads) => &[Dipole, BareTcpBlock],
            (Placement::TwoNodes, Kind::Bidir, _) => &[Dipole, BareTcpSpin, BareUdpGsoCrc],
            (Placement::TwoNodes, Kind::Pingpong, Waits::Spinning) => {
                &[Dipole, BareUdpSpin, BareTcpSpin, BareUdpGsoCrc, BareShm]
            }
            (Placement::TwoNodes, Kind::Stream, Waits::Spinning) => {
                &[Dipole, BareTcpSpin, BareUdpGsoCrc, BareShm]
            }
            (Placement::TwoNodes, Kind::Rate, Waits::Spinning) => {
                &[Dipole, BareUdpGso, BareTcpSpin, BareUdpSpin, BareShm]
            }
            (Placement::TwoNodes, _, _) => &[Dipole, BareUdpBlock, BareTcpBlock],
            (Placement::OneNode, Kind::Bidir, Waits::InThreads) => {
                &[Dipole, BareUnixBlock, BarePipeBlock]
            }
            (Placement::OneNode, Kind::Bidir, _) => &[Dipole, BareUnixSpin, BarePipeSpin],
            (Placement::OneNode, _, Waits::Spinning) => {
                &[Dipole, BareShm, BareUnixSpin, BarePipeSpin]
            }
            (Placement::OneNode, _, _) => &[Dipole, BareUnixBlock, BarePipeBlock],
        }
    }
}

/// How a side waits, which determines the default subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Calls return immediately and are repeated.
    Spinning,
    /// Calls wait in the kernel.
    Blocking,
    /// One thread waits to send, another waits to receive.
    InThreads,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_subjects_accept_the_usual_work() {
        let works = [
            Workload::of(Kind::Pingpong, 64),
            Workload::of(Kind::Stream, 1 << 20),
            Workload::of(Kind::Rate, 64),
            Workload::of(Kind::Bidir, 64 << 10),
        ];
        for work in works {
            for place in [Placement::TwoNodes, Placement::OneNode] {
                for subject in Subject::usual(work.kind, Waits::Spinning, place) {
                    assert_eq!(subject.refuses(&work), None, "{subject:?} {work:?}");
                }
            }
        }
        let threads = Workload {
            two_threads_a_side: true,
            ..Workload::of(Kind::Bidir, 64 << 10)
        };
        for place in [Placement::TwoNodes, Placement::OneNode] {
            for subject in Subject::usual(Kind::Bidir, Waits::InThreads, place) {
                assert_eq!(subject.refuses(&threads), None, "{subject:?}");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_subject_and_the_number() {
        let refusal = Subject::BareUdpSpin
            .refuses(&Workload::of(Kind::Stream, 1 << 20))
            .expect("too long");
        assert!(
            refusal.contains("bare-udp-spin") && refusal.contains("1048576"),
            "{refusal}"
        );
        let refusal = Subject::BareShm
            .refuses(&Workload::of(Kind::Rate, 3))
            .expect("too short");
        assert!(refusal.contains("at least 4"), "{refusal}");
        let refusal = Subject::BarePipeBlock
            .refuses(&Workload::of(Kind::Bidir, 64))
            .expect("one thread");
        assert!(refusal.contains("--threads 2"), "{refusal}");
    }
}
