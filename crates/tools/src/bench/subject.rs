//! Who is measured: Dipole and the peers beside it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::control::Kind;
use super::flow::ACKNOWLEDGEMENT_BYTES;

/// Longest UDP payload over IPv4.
const LONGEST_DATAGRAM_BYTES: usize = 65_507;

/// Ours or a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// This project
    Dipole,
    /// UDP sockets, one datagram a message, non-blocking calls in a loop
    BareUdpSpin,
    /// The same with blocking calls
    BareUdpBlock,
    /// UDP sockets with segmentation and coalescing by the kernel
    BareUdpGso,
    /// A TCP socket without delay, non-blocking calls in a loop
    BareTcpSpin,
    /// The same with blocking calls
    BareTcpBlock,
    /// A ring in memory between two threads: the limit of the machine
    BareShm,
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Dipole => "dipole",
            Subject::BareUdpSpin => "bare-udp-spin",
            Subject::BareUdpBlock => "bare-udp-block",
            Subject::BareUdpGso => "bare-udp-gso",
            Subject::BareTcpSpin => "bare-tcp-spin",
            Subject::BareTcpBlock => "bare-tcp-block",
            Subject::BareShm => "bare-shm",
        }
    }

    /// What carries its bytes, and the bed it lies on.
    pub(crate) fn link(self, bed: &str) -> String {
        match self {
            Subject::Dipole
            | Subject::BareUdpSpin
            | Subject::BareUdpBlock
            | Subject::BareUdpGso => {
                format!("udp/{bed}")
            }
            Subject::BareTcpSpin | Subject::BareTcpBlock => format!("tcp/{bed}"),
            Subject::BareShm => "shm".to_owned(),
        }
    }

    /// Both sides are threads of one process.
    pub(crate) fn is_threads(self) -> bool {
        self == Subject::BareShm
    }

    pub(crate) fn is_datagrams(self) -> bool {
        matches!(self, Subject::BareUdpSpin | Subject::BareUdpBlock)
    }

    /// Why this subject cannot do that work; `None` if it can.
    pub(crate) fn refuses(self, kind: Kind, size_bytes: usize) -> Option<String> {
        let name = self.name();
        let blocks = matches!(self, Subject::BareUdpBlock | Subject::BareTcpBlock);
        if kind == Kind::Bidir && blocks {
            return Some(format!(
                "{name} cannot send and receive at once from one thread"
            ));
        }
        if self.is_datagrams() && size_bytes > LONGEST_DATAGRAM_BYTES {
            return Some(format!(
                "{name} sends one datagram a message, at most {LONGEST_DATAGRAM_BYTES} bytes; \
                 {size_bytes} were asked for"
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
                kind.name()
            ));
        }
        None
    }

    /// The subjects beside each other when nobody names any.
    pub(crate) fn usual(kind: Kind, block: bool) -> &'static [Subject] {
        use Subject::{
            BareShm, BareTcpBlock, BareTcpSpin, BareUdpBlock, BareUdpGso, BareUdpSpin, Dipole,
        };
        match (kind, block) {
            (Kind::Bidir, _) => &[Dipole, BareTcpSpin, BareUdpGso],
            (Kind::Pingpong, false) => &[Dipole, BareUdpSpin, BareTcpSpin, BareShm],
            (Kind::Stream, false) => &[Dipole, BareTcpSpin, BareUdpGso, BareShm],
            (Kind::Rate, false) => &[Dipole, BareUdpGso, BareTcpSpin, BareUdpSpin, BareShm],
            (Kind::Pingpong | Kind::Rate | Kind::Stream, true) => {
                &[Dipole, BareUdpBlock, BareTcpBlock]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_the_command_line_takes() {
        for subject in Subject::value_variants() {
            let value = subject.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), subject.name());
        }
    }

    #[test]
    fn the_usual_subjects_accept_the_usual_sizes() {
        let sizes = [
            (Kind::Pingpong, 64),
            (Kind::Stream, 1 << 20),
            (Kind::Rate, 64),
        ];
        for (kind, size_bytes) in sizes {
            for subject in Subject::usual(kind, false) {
                assert_eq!(
                    subject.refuses(kind, size_bytes),
                    None,
                    "{subject:?} {kind:?}"
                );
            }
        }
    }

    #[test]
    fn a_refusal_names_the_subject_and_the_number() {
        let refusal = Subject::BareUdpSpin
            .refuses(Kind::Stream, 1 << 20)
            .expect("too long");
        assert!(
            refusal.contains("bare-udp-spin") && refusal.contains("1048576"),
            "{refusal}"
        );
        let refusal = Subject::BareShm.refuses(Kind::Rate, 3).expect("too short");
        assert!(refusal.contains("at least 4"), "{refusal}");
    }
}
