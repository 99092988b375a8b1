//! A process of this node that writes arbitrary records into its ring. Specification §9.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use dipole_link::shm::{ConnId, Hub, ShmEvent, ShmOptions};
use dipole_proto::wire::{Greeting, OPERATION_BYTES, Operation, PipeKind, PipeRecord, PipeTag};

use super::{Carrier, Ends, Head, Piece};

pub(crate) struct Records {
    hub: Hub,
    to: ConnId,
    /// Edges that have been announced, by number.
    edges: Vec<Ends>,
    /// Records waiting for room.
    waiting: VecDeque<(u64, Vec<u8>)>,
    asked: Vec<Operation>,
    is_open: bool,
    _directory: tempfile::TempDir,
}

/// The socket of the only other process of a node.
fn socket_of(runtime: &Path) -> PathBuf {
    let entries = std::fs::read_dir(runtime.join("node-1")).expect("a registry");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let is_socket = |path: &PathBuf| path.to_string_lossy().contains("/shm-");
    paths.find(is_socket).expect("it listens")
}

impl Records {
    pub(crate) fn new(runtime: &Path) -> Records {
        let directory = tempfile::tempdir().expect("a directory");
        let greeting = Greeting {
            node: 1,
            incarnation: rand::random(),
            initial_credit_bytes: 1 << 20,
        };
        let own = directory.path().join("own");
        let options = ShmOptions::default();
        let mut hub = Hub::open(&own, &greeting.to_bytes(), &options).expect("a hub");
        let to = hub.connect(&socket_of(runtime)).expect("it listens");
        Records {
            hub,
            to,
            edges: Vec::new(),
            waiting: VecDeque::new(),
            asked: Vec::new(),
            is_open: false,
            _directory: directory,
        }
    }

    fn push(&mut self, tag: u64, bytes: &[u8]) {
        self.waiting.push_back((tag, bytes.to_vec()));
    }

    fn words(&mut self, kind: PipeKind, number: u32, words: &[u64]) {
        let tag = tag(kind, number);
        let record = PipeRecord::new(PipeTag::from_word(tag).expect("ours"), words);
        self.push(tag, record.bytes());
    }

    fn edge(&mut self, ends: Ends) -> u32 {
        if let Some(known) = self.edges.iter().position(|other| *other == ends) {
            return known.try_into().expect("few");
        }
        let number = self.edges.len().try_into().expect("few");
        self.edges.push(ends);
        let (source, target) = ends;
        let both = u64::from(source) << 32 | u64::from(target);
        self.words(PipeKind::Open, number, &[both]);
        number
    }
}

fn tag(kind: PipeKind, number: u32) -> u64 {
    let extra = 0;
    PipeTag {
        kind,
        extra,
        number,
    }
    .to_word()
}

impl Carrier for Records {
    fn is_open(&self) -> bool {
        self.is_open
    }

    fn message(&mut self, ends: Ends, bytes: &[u8]) {
        let number = self.edge(ends);
        self.push(tag(PipeKind::Message, number), bytes);
    }

    fn whole(&mut self, ends: Ends, head: Head, data: &[u8]) {
        let number = self.edge(ends);
        self.push(
            tag(PipeKind::Operation, number),
            &[&head[..], data].concat(),
        );
    }

    /// The second piece does not start with a head.
    fn pieces(&mut self, ends: Ends, pieces: &[Piece]) {
        let number = self.edge(ends);
        for piece in pieces {
            if piece.is_first {
                let (words, _) = piece.head.as_chunks::<8>();
                let words = words.iter().map(|word| u64::from_le_bytes(*word));
                let words: Vec<u64> = std::iter::once(piece.total).chain(words).collect();
                self.words(PipeKind::Announce, number, &words);
            }
            self.push(tag(PipeKind::Piece, number), &piece.data);
        }
    }

    fn turn(&mut self) {
        let mut events = Vec::new();
        self.hub.poll_connections(&mut events).expect("an epoll");
        self.is_open |= events
            .iter()
            .any(|event| matches!(event, ShmEvent::Opened { .. }));
        while let Some((tag, bytes)) = self.waiting.front() {
            // An attacker that was disconnected may send anything.
            if self.is_open && self.hub.push(self.to, *tag, bytes).is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        self.hub.wake_peer(self.to);
        let asked = &mut self.asked;
        self.hub.poll(1000, &mut |_, tag, payload| {
            let mut bytes = vec![0; payload.len()];
            payload.copy_to(&mut bytes);
            let kind = PipeTag::from_word(tag).expect("it keeps the rules").kind;
            if kind == PipeKind::Operation
                && let Some((head, data)) = bytes.split_first_chunk::<OPERATION_BYTES>()
            {
                asked.push(Operation::parse(head, data.len() as u64).expect("so does it here"));
            }
            None
        });
    }

    fn asked(&mut self) -> Option<Operation> {
        self.asked.pop()
    }
}
