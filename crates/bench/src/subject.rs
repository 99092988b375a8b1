//! Who is measured: Dipole and the peers beside it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::control::{Carrier, Kind, Placement, Workload, name_of};
use super::flow::ACKNOWLEDGEMENT_BYTES;
use super::installed::Peer;
use super::mpi::Library;

/// Longest UDP payload of a packet on an Ethernet of MTU 1500.
const LONGEST_FRAME_BYTES: usize = 1472;
/// Longest UDP payload over IPv4.
const LONGEST_DATAGRAM_BYTES: usize = 65_507;

/// Ours or a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// This project
    Dipole,
    /// The same by active ports: handlers answer handlers
    DipolePort,
    /// The same among 10,000 more open ports a side
    DipolePorts,
    /// Puts into the other side's memory, up to their flush
    DipolePut,
    /// Gets from the other side's memory, one by one
    DipoleGet,
    /// Fetch-and-add on a word of the other side's memory
    DipoleAtomic,
    /// UDP sockets, one datagram a message, non-blocking calls in a loop
    BareUdpSpin,
    /// The same with blocking calls
    BareUdpBlock,
    /// UDP sockets with segmentation and coalescing by the kernel
    BareUdpGso,
    /// The kernel's ring and raw frames, without a protocol
    BareBpf,
    /// A TCP socket without delay, non-blocking calls in a loop
    BareTcpSpin,
    /// The same with blocking calls
    BareTcpBlock,
    /// A Unix stream socket, non-blocking calls in a loop
    BareUnixSpin,
    /// The same with blocking calls
    BareUnixBlock,
    /// A pipe each way, non-blocking calls in a loop
    BarePipeSpin,
    /// The same with blocking calls
    BarePipeBlock,
    /// Rings in memory between two threads: the limit of the machine
    BareShm,
    /// One process_vm_readv a message between two threads
    BareReadv,
    /// Open MPI, by its shared memory or TCP
    OpenMpi,
    /// MPICH, by its shared memory or TCP
    Mpich,
    /// libfabric's shm or tcp provider, by fi_pingpong
    Libfabric,
    /// UCX by shared memory or TCP, by ucx_perftest
    Ucx,
    /// Aeron by IPC or UDP, by its samples
    Aeron,
    /// A pair of ZeroMQ sockets, by ipc or tcp
    #[value(name = "zeromq")]
    ZeroMq,
    /// A BSPlib on MPI: a message is a put and the end of a superstep
    #[value(name = "bsponmpi")]
    BspOnMpi,
    /// One stream of TCP, by iperf3
    Iperf3,
    /// TCP sockets, by sockperf
    Sockperf,
}

impl Subject {
    /// What carries its bytes, and over a network the testbed it lies on.
    pub(crate) fn link(self, carrier: Carrier, testbed: &str) -> String {
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
            Subject::BareUdpSpin | Subject::BareUdpBlock | Subject::BareUdpGso => {
                format!("udp/{testbed}")
            }
            Subject::BareBpf => format!("bpf/{testbed}"),
            Subject::BareTcpSpin | Subject::BareTcpBlock => format!("tcp/{testbed}"),
            Subject::BareUnixSpin | Subject::BareUnixBlock => "unix".to_owned(),
            Subject::BarePipeSpin | Subject::BarePipeBlock => "pipe".to_owned(),
            Subject::BareShm => "shm".to_owned(),
            Subject::BareReadv => "readv".to_owned(),
            installed => {
                let here = match installed.installed() {
                    _ if testbed != "node" => None,
                    Some(Peer::Iperf3 | Peer::Sockperf) | None => None,
                    Some(Peer::ZeroMq) => Some("unix"),
                    Some(_) => Some("shm"),
                };
                let between = if installed == Subject::Aeron {
                    "udp"
                } else {
                    "tcp"
                };
                here.map_or_else(|| format!("{between}/{testbed}"), str::to_owned)
            }
        }
    }

    /// The other project that this is, measured by programs of its own.
    pub(crate) fn installed(self) -> Option<Peer> {
        match self {
            Subject::OpenMpi => Some(Peer::Mpi(Library::OpenMpi)),
            Subject::Mpich => Some(Peer::Mpi(Library::Mpich)),
            Subject::Libfabric => Some(Peer::Libfabric),
            Subject::Ucx => Some(Peer::Ucx),
            Subject::Aeron => Some(Peer::Aeron),
            Subject::ZeroMq => Some(Peer::ZeroMq),
            Subject::BspOnMpi => Some(Peer::BspOnMpi),
            Subject::Iperf3 => Some(Peer::Iperf3),
            Subject::Sockperf => Some(Peer::Sockperf),
            _ => None,
        }
    }

    /// Handlers of active ports do the work.
    pub(crate) fn is_ports(self) -> bool {
        matches!(self, Subject::DipolePort | Subject::DipolePorts)
    }

    /// Works on the other side's memory.
    pub(crate) fn is_memory(self) -> bool {
        matches!(
            self,
            Subject::DipolePut | Subject::DipoleGet | Subject::DipoleAtomic
        )
    }

    /// Both sides are threads of one process.
    pub(crate) fn is_threads(self) -> bool {
        matches!(self, Subject::BareShm | Subject::BareReadv)
    }

    pub(crate) fn is_datagrams(self) -> bool {
        matches!(self, Subject::BareUdpSpin | Subject::BareUdpBlock) || self.is_frames()
    }

    /// Each message is a frame of its own, beside the kernel's sockets.
    pub(crate) fn is_frames(self) -> bool {
        matches!(self, Subject::BareBpf)
    }

    /// Its calls wait in the kernel.
    pub(crate) fn blocks(self) -> bool {
        matches!(
            self,
            Subject::BareUdpBlock
                | Subject::BareTcpBlock
                | Subject::BareUnixBlock
                | Subject::BarePipeBlock
        )
    }

    /// Two threads may use one of its connections at once.
    fn takes_two_threads(self) -> bool {
        !self.is_datagrams()
            && !self.is_memory()
            && !self.is_threads()
            && self != Subject::BareUdpGso
    }

    /// Why this subject cannot do that work; `None` if it can.
    pub(crate) fn refuses(self, work: &Workload) -> Option<String> {
        let (name, kind, size_bytes) = (name_of(self), work.kind, work.size_bytes);
        if let Some(peer) = self.installed() {
            return peer.refuses(work).map(|why| format!("{name} {why}"));
        }
        if work.two_threads_a_side {
            if !self.takes_two_threads() {
                return Some(format!(
                    "{name} cannot be used by two threads of a side at once"
                ));
            }
        } else if kind == Kind::Bidir && self.blocks() {
            return Some(format!(
                "{name} cannot send and receive at once from one thread; --threads 2 gives it two"
            ));
        }
        if self.is_datagrams() && size_bytes > LONGEST_DATAGRAM_BYTES {
            return Some(format!(
                "{name} sends one datagram a message, at most {LONGEST_DATAGRAM_BYTES} bytes; \
                 {size_bytes} were asked for"
            ));
        }
        if self.is_frames() && (kind != Kind::Pingpong || size_bytes > LONGEST_FRAME_BYTES) {
            return Some(format!(
                "{name} has no window and no pieces: pingpongs of at most {LONGEST_FRAME_BYTES} \
                 bytes are what it does; {} of {size_bytes} were asked for",
                name_of(kind)
            ));
        }
        if self.is_ports() && (kind != Kind::Pingpong || work.unreliable) {
            return Some(format!(
                "{name} is for reliable pingpongs; {} was asked for",
                match work.unreliable {
                    true => "an unreliable one".to_owned(),
                    false => name_of(kind),
                }
            ));
        }
        if kind == Kind::Mixed && !matches!(self, Subject::Dipole | Subject::BareTcpBlock) {
            return Some(format!(
                "{name} has no second connection for a stream beside"
            ));
        }
        if self.is_memory() && (work.unreliable || kind == Kind::Bidir) {
            return Some(format!(
                "{name} works on memory, reliably and one way; {} was asked for",
                name_of(kind)
            ));
        }
        if self == Subject::DipoleAtomic && size_bytes != 8 {
            return Some(format!(
                "{name} updates words of 8 bytes; {size_bytes} were asked for"
            ));
        }
        if self == Subject::BareUdpGso && kind == Kind::Pingpong {
            return Some(format!(
                "{name} is for trains of packets, a pingpong has none"
            ));
        }
        if kind != Kind::Pingpong && size_bytes < ACKNOWLEDGEMENT_BYTES {
            return Some(format!(
                "{} needs messages of at least {ACKNOWLEDGEMENT_BYTES} bytes; {size_bytes} were \
                 asked for",
                name_of(kind)
            ));
        }
        None
    }

    /// The subjects beside each other when nobody names any.
    pub(crate) fn usual(kind: Kind, waits: Waits, place: Placement) -> &'static [Subject] {
        use Subject::{
            BarePipeBlock, BarePipeSpin, BareShm, BareTcpBlock, BareTcpSpin, BareUdpBlock,
            BareUdpGso, BareUdpSpin, BareUnixBlock, BareUnixSpin, Dipole,
        };
        match (place, kind, waits) {
            (Placement::TwoNodes, Kind::Bidir, Waits::InThreads) => &[Dipole, BareTcpBlock],
            (Placement::TwoNodes, Kind::Bidir, _) => &[Dipole, BareTcpSpin, BareUdpGso],
            (Placement::TwoNodes, Kind::Pingpong, Waits::Spinning) => {
                &[Dipole, BareUdpSpin, BareTcpSpin, BareShm]
            }
            (Placement::TwoNodes, Kind::Stream, Waits::Spinning) => {
                &[Dipole, BareTcpSpin, BareUdpGso, BareShm]
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

/// How a side waits, as far as it decides who stands beside whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Calls return at once and are made again.
    Spinning,
    /// Calls wait in the kernel.
    Blocking,
    /// One thread waits to send, another to receive.
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
