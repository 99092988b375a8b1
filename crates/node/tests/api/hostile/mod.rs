//! Attackers on both sides of memory operations: they send operations that no correct process
//! sends, through a ring and as packets (to sockets and to the bpf link). Nothing outside a region,
//! or outside an answer's buffer, may change; the victim survives and keeps serving others.
//! Specification §4.3, §5.9.

mod packets;
mod records;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{
    Config, Endpoint, EndpointId, Links, Node, NodeId, OpenError, Region, RegionMemory, Rights,
    SendError,
};
use dipole_proto::wire::{OPERATION_BYTES, Operation, OperationKind, Outcome};
use dipole_testbed::Testbed;
use packets::Packets;
use records::Records;

const PATIENCE: Duration = Duration::from_secs(20);
/// How long a test waits for things that must not happen.
const MOMENT: Duration = Duration::from_millis(30);
const VICTIM: u32 = 7;
const ATTACKER: u32 = 5;
const BYTES: usize = 4096;
const ENDS: Ends = (ATTACKER, VICTIM);
/// Endpoints of the edges that carry answers.
const ANSWERS: Ends = (u32::MAX, u32::MAX);
const GUARD: u8 = 0xA5;

type Ends = (u32, u32);
type Head = [u8; OPERATION_BYTES];

/// A piece of an operation.
struct Piece {
    head: Head,
    offset: u64,
    total: u64,
    data: Vec<u8>,
    is_first: bool,
}

/// How an attacker reaches its victim.
trait Carrier {
    fn is_open(&self) -> bool;
    fn message(&mut self, ends: Ends, bytes: &[u8]);
    fn whole(&mut self, ends: Ends, head: Head, data: &[u8]);
    fn pieces(&mut self, ends: Ends, pieces: &[Piece]);
    /// Moves pending data in both directions.
    fn turn(&mut self);
    /// Takes a request that the victim sent.
    fn asked(&mut self) -> Option<Operation>;
}

fn run(carrier: &mut dyn Carrier, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        carrier.turn();
        std::thread::yield_now();
    }
}

struct Victim {
    node: Node,
    endpoint: Endpoint,
    /// Its key permits everything.
    open: Region,
    /// Its key permits gets only.
    readable: Region,
    /// A region of another endpoint.
    elsewhere: Region,
    _other: Endpoint,
    links: Links,
    directory: SocketAddr,
    bed: Option<Testbed>,
    folder: tempfile::TempDir,
}

/// A node with a hosts file, so that packets need no key; `None` if the machine does not support
/// this link.
fn node(folder: &Path, bind: IpAddr, links: Links) -> Option<Node> {
    let mut config = Config::local(NodeId(1), folder.join("runtime"));
    if links != Links::Shm {
        config.bind = bind;
        config.hosts = Hosts::load(&folder.join("hosts")).expect("a hosts file");
    }
    match Node::open(Config { links, ..config }) {
        Ok(node) => Some(node),
        Err(OpenError::Link { cause, .. }) if links == Links::Bpf => {
            eprintln!("SKIPPED by {links:?}: {cause}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn region(endpoint: &Endpoint, rights: Rights) -> Region {
    let memory = RegionMemory::new(BYTES).expect("memory");
    memory.write(0, &[GUARD; BYTES]).expect("inside");
    endpoint.open_region(memory, rights).expect("open")
}

/// Two nodes with interfaces, because the bpf link does not work on loopback.
fn testbed() -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED by Bpf: {why}");
        return None;
    }
    Some(Testbed::builder().build().expect("a testbed can be made"))
}

/// Calls a function in the victim's network namespace.
fn inside<T: Send>(bed: Option<&Testbed>, function: impl FnOnce() -> T + Send) -> T {
    match bed {
        Some(bed) => bed.inside(1, function).expect("the node"),
        None => function(),
    }
}

impl Victim {
    fn new(links: Links) -> Option<Victim> {
        static LAST: AtomicU8 = AtomicU8::new(0);
        let own = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let [.., high, low] = std::process::id().to_be_bytes();
        let bed = match links {
            Links::Bpf => Some(testbed()?),
            _ => None,
        };
        let bind = match &bed {
            Some(bed) => bed.node(1).addresses[0],
            None => Ipv4Addr::new(127, high | 1, low, own),
        };
        let folder = tempfile::tempdir().expect("a directory");
        let socket = inside(bed.as_ref(), || UdpSocket::bind((bind, 0)));
        let directory = socket.and_then(|socket| socket.local_addr());
        let directory = directory.expect("a free port");
        let hosts = format!("1 {bind} port={}\n", directory.port());
        std::fs::write(folder.path().join("hosts"), hosts).expect("a file");
        let node = inside(bed.as_ref(), || node(folder.path(), directory.ip(), links))?;
        assert_eq!(node.stats().bpf.is_some(), links == Links::Bpf);
        let endpoint = node.endpoint(EndpointId(VICTIM)).expect("free");
        let other = node.endpoint(EndpointId(VICTIM + 1)).expect("free");
        let only_get = Rights {
            put: false,
            get: true,
            update: false,
        };
        Some(Victim {
            open: region(&endpoint, Rights::ALL),
            readable: region(&endpoint, only_get),
            elsewhere: region(&other, Rights::ALL),
            _other: other,
            endpoint,
            node,
            links,
            directory,
            bed,
            folder,
        })
    }

    /// An attacker that has a session with the victim.
    fn attacker(&self) -> Box<dyn Carrier> {
        let mut carrier: Box<dyn Carrier> = match self.links {
            Links::Shm => Box::new(Records::new(&self.folder.path().join("runtime"))),
            _ => Box::new(self.packets()),
        };
        let begun = Instant::now();
        while !carrier.is_open() {
            carrier.turn();
            // The victim replies even though its program makes no calls.
            assert!(begun.elapsed() < PATIENCE, "no answer by {:?}", self.links);
        }
        carrier
    }

    fn packets(&self) -> Packets {
        let bind = |ip: Ipv4Addr| UdpSocket::bind((ip, 0)).expect("a free port");
        let socket = match &self.bed {
            Some(bed) => bed.inside(2, || bind(bed.node(2).addresses[0])),
            None => Ok(bind(Ipv4Addr::LOCALHOST)),
        };
        Packets::new(socket.expect("the node"), self.node.ports().small)
    }

    /// Checks that protected memory is unchanged and that a correct process is served.
    fn is_well(&self) {
        for region in [&self.readable, &self.elsewhere] {
            is_guarded(region.memory(), 0..BYTES);
        }
        self.serves();
        if let Some(bpf) = self.node.stats().bpf {
            assert!(
                bpf.from_ring > 0,
                "the attacker's packets came past the ring: {bpf:?}"
            );
        }
    }

    fn serves(&self) {
        let honest = inside(self.bed.as_ref(), || {
            node(self.folder.path(), self.directory.ip(), self.links)
        });
        let honest = honest.expect("as the victim");
        let endpoint = honest.endpoint(EndpointId::ANY).expect("free");
        let edge = endpoint.edge(self.endpoint.address()).expect("usable");
        let key = self.open.key();
        edge.put(key, 8, b"honest").expect("on its way");
        edge.flush(PATIENCE).expect("it is served");
        let mut got = [0; 6];
        edge.get(key, 8, &mut got, PATIENCE).expect("it is served");
        assert_eq!(&got, b"honest");
        self.open.memory().write(8, &[GUARD; 6]).expect("inside");
        edge.send_timeout(b"hello", PATIENCE).expect("it is there");
        // Notices that attackers requested arrive as well.
        while &*self.endpoint.receive_timeout(PATIENCE).expect("sent") != b"hello" {}
    }
}

fn is_guarded(memory: &RegionMemory, bytes: std::ops::Range<usize>) {
    let mut all = vec![0; bytes.len()];
    memory.read(bytes.start, &mut all).expect("inside");
    let touched = all.iter().position(|byte| *byte != GUARD);
    assert_eq!(touched, None, "from {}", bytes.start);
}

fn head(kind: OperationKind, key: u64, offset: u64, value: u64) -> Operation {
    Operation {
        kind,
        wants_answer: true,
        gives_notice: false,
        id: 3,
        key,
        offset,
        value,
    }
}

/// Runs a test over each available link.
fn each(test: impl Fn(Victim)) {
    for links in [Links::Shm, Links::Udp, Links::Bpf] {
        if let Some(victim) = Victim::new(links) {
            println!("by {links:?}");
            test(victim);
        }
    }
}

#[test]
fn an_attacker_cannot_access_memory_beyond_its_rights() {
    each(|victim| {
        let mut attacker = victim.attacker();
        let closed = (victim.endpoint)
            .open_region(RegionMemory::new(BYTES).expect("memory"), Rights::ALL)
            .expect("open");
        let revoked = closed.key().0;
        let memory = closed.close();
        let (open, readable) = (victim.open.key().0, victim.readable.key().0);
        let keys = [
            readable,
            victim.elsewhere.key().0,
            revoked,
            open ^ 1,
            0,
            u64::MAX,
        ];
        let beyond = [
            4089,
            4096,
            1 << 31,
            1 << 32,
            1 << 63,
            u64::MAX - 7,
            u64::MAX,
        ];
        let places = keys.iter().map(|key| (*key, 0));
        let places = places.chain(beyond.iter().map(|offset| (open, *offset)));
        let mut wrong = Vec::new();
        for (key, offset) in places {
            for (kind, data) in [
                (OperationKind::Put, &[1; 8][..]),
                (OperationKind::FetchAdd, &[]),
                (OperationKind::CompareSwap, &[GUARD; 8]),
            ] {
                for gives_notice in [false, true] {
                    let operation = Operation {
                        gives_notice,
                        ..head(kind, key, offset, 1)
                    };
                    wrong.push((operation.to_bytes(), data));
                }
            }
            for bytes in [BYTES as u64 + 1, 1 << 24, 1 << 40, u64::MAX] {
                wrong.push((head(OperationKind::Get, key, offset, bytes).to_bytes(), &[]));
            }
        }
        // Misaligned words, fences that reuse an id, answers to nothing.
        for _ in 0..20 {
            wrong.push((head(OperationKind::FetchAdd, open, 4, 1).to_bytes(), &[]));
            wrong.push((head(OperationKind::Fence, 0, 0, 0).to_bytes(), &[]));
            let answer = OperationKind::Answer(Outcome::Done);
            wrong.push((head(answer, open, 0, 0).to_bytes(), &[1; 8]));
        }
        // Heads with an invalid field.
        for (at, value) in [(0, 6), (0, 255), (1, 255), (2, 1), (2, 9), (3, 1)] {
            let mut bytes = head(OperationKind::Put, open, 0, 0).to_bytes();
            bytes[at] = value;
            wrong.push((bytes, &[1; 8]));
        }
        for (at, (head, data)) in wrong.iter().enumerate() {
            attacker.whole(ENDS, *head, data);
            if at % 16 == 0 {
                run(&mut *attacker, MOMENT / 30);
            }
        }
        run(&mut *attacker, MOMENT);
        is_guarded(victim.open.memory(), 0..BYTES);
        assert!(
            memory
                .show(0, BYTES, |all| all.iter().all(|byte| *byte == 0))
                .expect("inside")
        );
        victim.is_well();
    });
}

/// Permitted operations succeed, which shows that the others were understood.
#[test]
fn permitted_operations_succeed() {
    each(|victim| {
        let mut attacker = victim.attacker();
        let key = victim.open.key().0;
        let put = head(OperationKind::Put, key, 0, 0).to_bytes();
        attacker.pieces(ENDS, &put_in_two(key, put, 512, 1024));
        let put = head(OperationKind::Put, key, 2000, 0).to_bytes();
        attacker.whole(ENDS, put, &[1; 8]);
        let begun = Instant::now();
        let memory = victim.open.memory();
        let is_there = |at| memory.show(at, 1, |byte| byte[0] == 1).expect("inside");
        while ![0, 1023, 2007].into_iter().all(is_there) {
            attacker.turn();
            assert!(
                begun.elapsed() < PATIENCE,
                "it never came by {:?}",
                victim.links
            );
        }
        is_guarded(memory, 1024..2000);
        is_guarded(memory, 2008..BYTES);
    });
}

fn put_in_two(open: u64, second: Head, offset: u64, total: u64) -> [Piece; 2] {
    let piece = |is_first, head, offset, total| Piece {
        head,
        offset,
        total,
        data: vec![1; 512],
        is_first,
    };
    let first = head(OperationKind::Put, open, 0, 0).to_bytes();
    [
        piece(true, first, 0, 1024),
        piece(false, second, offset, total),
    ]
}

#[test]
fn pieces_are_written_only_where_their_first_head_permits() {
    each(|victim| {
        let open = victim.open.key().0;
        let put = |key, offset| head(OperationKind::Put, key, offset, 0).to_bytes();
        let answer = head(OperationKind::Answer(Outcome::Done), 0, 0, 0).to_bytes();
        for (second, offset, total) in [
            (put(victim.readable.key().0, 0), 512, 1024),
            (put(victim.elsewhere.key().0, 0), 512, 1024),
            (put(open, 2048), 512, 1024),
            (put(open, u64::MAX), 512, 1024),
            (answer, 512, 1024),
            ([0xFF; OPERATION_BYTES], 512, 1024),
            // Pieces that do not fit the total length.
            (put(open, 0), 600, 1024),
            (put(open, 0), 1024, 1024),
            (put(open, 0), 1 << 40, 1024),
            (put(open, 0), 512, 4096),
            (put(open, 0), 3000, 1 << 30),
            (put(open, 0), u64::MAX - 100, u64::MAX),
        ] {
            // A peer that breaks a rule is disconnected.
            let mut attacker = victim.attacker();
            attacker.pieces(ENDS, &put_in_two(open, second, offset, total));
            run(&mut *attacker, MOMENT);
            is_guarded(victim.open.memory(), 1024..BYTES);
        }
        // The message is longer than its destination, from the first piece on.
        let short = region(&victim.endpoint, Rights::ALL);
        let key = short.key().0;
        let mut pieces = put_in_two(key, put(key, 0), 512, 1 << 20);
        pieces[0].total = 1 << 20;
        let mut attacker = victim.attacker();
        attacker.pieces(ENDS, &pieces);
        run(&mut *attacker, MOMENT);
        is_guarded(short.memory(), 0..BYTES);
        victim.is_well();
    });
}

#[test]
fn a_piece_that_arrives_after_its_region_was_closed_changes_nothing() {
    each(|mut victim| {
        let mut attacker = victim.attacker();
        let memory = RegionMemory::new(BYTES).expect("memory");
        let next = victim
            .endpoint
            .open_region(memory, Rights::ALL)
            .expect("open");
        let open = std::mem::replace(&mut victim.open, next);
        let key = open.key().0;
        let put = head(OperationKind::Put, key, 0, 0).to_bytes();
        let [first, second] = put_in_two(key, put, 512, 1024);
        // Pieces of one operation; the second is sent once the first has arrived.
        let mut pieces = vec![first];
        if victim.links != Links::Shm {
            pieces.push(Piece {
                head: put,
                offset: 512,
                total: 1024,
                data: vec![1; 1],
                is_first: false,
            });
        }
        attacker.pieces(ENDS, &pieces);
        let begun = Instant::now();
        let has_come = |at| {
            open.memory()
                .show(at, 1, |byte| byte[0] == 1)
                .expect("inside")
        };
        while !has_come(511) {
            attacker.turn();
            assert!(
                begun.elapsed() < PATIENCE,
                "the first piece never came by {:?}",
                victim.links
            );
        }
        let memory = open.close();
        if victim.links == Links::Shm {
            attacker.pieces(ENDS, &[second]);
        }
        run(&mut *attacker, MOMENT);
        is_guarded(&memory, 1024..BYTES);
        if victim.links == Links::Shm {
            is_guarded(&memory, 512..BYTES);
        }
        victim.is_well();
    });
}

/// The attacker's answers to a get of 1000 bytes.
fn answers(asked: &Operation, attacker: &mut dyn Carrier, how: usize) {
    let answer = |id| Operation {
        id,
        ..asked.answer((VICTIM, ATTACKER), Outcome::Done, 0)
    };
    let bytes = answer(asked.id).to_bytes();
    let piece = |offset, total, is_first| Piece {
        head: bytes,
        offset,
        total,
        data: vec![1; 600],
        is_first,
    };
    match how {
        // Answers that are too long or too short.
        0 => attacker.whole(ANSWERS, bytes, &[1; 1200]),
        1 => attacker.whole(ANSWERS, bytes, &[1; 10]),
        // An answer to another request, then two to this one.
        2 => {
            for id in [asked.id + 1, asked.id, asked.id, 0, u32::MAX] {
                attacker.whole(ANSWERS, answer(id).to_bytes(), &[1; 1000]);
            }
        }
        // Pieces with another total length, beyond the total, and far out of range.
        3 => attacker.pieces(ANSWERS, &[piece(0, 1200, true), piece(600, 1200, false)]),
        4 => attacker.pieces(ANSWERS, &[piece(0, 1000, true), piece(600, 1000, false)]),
        5 => attacker.pieces(
            ANSWERS,
            &[piece(0, 1000, true), piece(u64::MAX - 9, 1000, false)],
        ),
        // An answer on an edge without a request.
        6 => attacker.whole(ENDS, bytes, &[1; 1200]),
        _ => attacker.pieces(ENDS, &[piece(0, 1 << 30, true), piece(600, 1 << 30, false)]),
    }
}

#[test]
fn answers_are_only_written_to_their_own_buffer() {
    each(|victim| {
        for how in 0..8 {
            let mut attacker = victim.attacker();
            attacker.message(ENDS, b"ask me");
            run(&mut *attacker, MOMENT);
            let message = victim.endpoint.receive_timeout(PATIENCE).expect("sent");
            let edge = victim
                .endpoint
                .edge(message.source())
                .expect("its process is known");
            let mut place = vec![GUARD; 3000];
            let key = victim.open.key();
            let into = &mut place[1000..2000];
            // Most of these only end with a time-out, which starts once the request has arrived.
            let mut wait = if how == 2 { PATIENCE } else { 10 * MOMENT };
            let mut has_answered = false;
            while !has_answered {
                std::thread::scope(|scope| {
                    let asking = scope.spawn(|| edge.get(key, 0, &mut *into, wait));
                    while !asking.is_finished() {
                        attacker.turn();
                        if let Some(asked) = attacker.asked().filter(|_| !has_answered) {
                            assert_eq!((asked.kind, asked.value), (OperationKind::Get, 1000));
                            answers(&asked, &mut *attacker, how);
                            has_answered = true;
                        }
                    }
                    let got = asking.join().expect("no panic");
                    assert!(has_answered || wait < PATIENCE, "{how}: {got:?}");
                    assert_eq!(got.is_ok(), how == 2, "{how}: {got:?}");
                });
                wait = (2 * wait).min(PATIENCE);
            }
            run(&mut *attacker, MOMENT);
            let outside = place[..1000].iter().chain(&place[2000..]);
            assert!(outside.copied().all(|byte| byte == GUARD), "{how}");
            victim.is_well();
        }
    });
}

#[test]
fn an_answer_after_the_time_out_of_its_request_changes_nothing() {
    each(|victim| {
        let mut attacker = victim.attacker();
        attacker.message(ENDS, b"ask me");
        run(&mut *attacker, MOMENT);
        let message = victim.endpoint.receive_timeout(PATIENCE).expect("sent");
        let edge = victim
            .endpoint
            .edge(message.source())
            .expect("its process is known");
        let mut place = vec![GUARD; 1000];
        let key = victim.open.key();
        // On a busy machine the request may time out before it is sent.
        let begun = Instant::now();
        let asked = loop {
            let into = &mut place[..];
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| edge.get(key, 0, into, MOMENT));
                while !asking.is_finished() {
                    attacker.turn();
                }
                let given_up = asking.join().expect("no panic");
                assert!(
                    matches!(given_up, Err(SendError::TimedOut { .. })),
                    "{given_up:?}"
                );
            });
            run(&mut *attacker, MOMENT);
            match attacker.asked() {
                Some(asked) => break asked,
                None => assert!(begun.elapsed() < PATIENCE, "it is not asked"),
            }
        };
        let answer = asked
            .answer((VICTIM, ATTACKER), Outcome::Done, 0)
            .to_bytes();
        attacker.whole(ANSWERS, answer, &[1; 1000]);
        run(&mut *attacker, MOMENT);
        assert!(place.iter().all(|byte| *byte == GUARD));
        assert_eq!(victim.node.take_departures(), []);
        victim.is_well();
    });
}
