//! Every rank sends checked messages to every other rank as fast as possible, and continues when
//! some of them die. Messages from a lost rank are accounted for up to its last whole message, and
//! a rank that is restarted is found again.
//!
//! ```text
//! dipole run -n 8 --hosts hosts --on-loss restart --tag target/release/examples/soak 30
//! ```
//!
//! Ranks use the links in the second argument in turn: `soak 30 bpf,udp` mixes them. `soak -` ends
//! when the standard input of rank 0 ends.
//!
//! Every message contains the number of its *course* (since an edge was last opened), its position,
//! and contents derived from both. At the end every sender reports how much it sent, and every
//! receiver compares: a missing, duplicate or wrong byte ends the rank with an error.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dipole_node::job::Job;
use dipole_node::{
    Config, Endpoint, EndpointId, GoneReason, Node, Path, PathState, ReceiveError, SendError,
};

/// Time limit of an attempt to find a rank, and the pause between attempts.
const RETRY: Duration = Duration::from_millis(300);
/// How long a rank waits for the others' final messages and the acknowledgements of its own.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Interval at which final messages are repeated; ranks that died since refuse them.
const REPEAT: Duration = Duration::from_millis(100);
/// Interval at which paths are checked.
const LOOK: Duration = Duration::from_millis(200);
/// Limit of a soak that ends with its standard input.
const LONGEST_S: f64 = 86_400.0;
static INPUT_ENDED: AtomicBool = AtomicBool::new(false);
const HEAD_BYTES: usize = 24;
const LONGEST_BYTES: u64 = 200_000;

/// The header of a message; `END` as its number ends a course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    course: u64,
    number: u64,
    /// Bytes of all earlier messages of the course.
    bytes_before: u64,
}

const END: u64 = 1 << 63;

impl Head {
    fn write(self, message: &mut Vec<u8>) {
        message.clear();
        for word in [self.course, self.number, self.bytes_before] {
            message.extend(word.to_le_bytes());
        }
    }

    fn read(message: &[u8]) -> Option<Head> {
        let word = |at: usize| {
            let bytes = message.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        Some(Head {
            course: word(0)?,
            number: word(8)?,
            bytes_before: word(16)?,
        })
    }

    /// Unique contents; most are short, and some need many packets.
    fn content(self) -> impl Iterator<Item = [u8; 8]> {
        let mut state = mixed(self.course ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let most = match state % 16 {
            0 => LONGEST_BYTES,
            1..=5 => 8192,
            _ => 200,
        };
        let words = mixed(state) % (most / 8);
        (0..words).map(move |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_le_bytes()
        })
    }
}

fn mixed(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Traffic of an edge.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    messages: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    fn join(&mut self, other: Tally) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages, {} bytes", self.messages, self.bytes)
    }
}

/// Messages to another rank.
struct Outbox {
    rank: u32,
    course: u64,
    sent: Tally,
    way: Way,
    next: Vec<u8>,
    /// Traffic of courses that ended when the rank died.
    cut: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The rank is being looked for.
    Sought,
    Open,
    /// Everything has been sent, including the final message.
    Ended,
}

impl Outbox {
    fn begin(&mut self) {
        self.course = rand::random::<u64>() | 1;
        self.cut.join(self.sent);
        self.sent = Tally::default();
        self.way = Way::Open;
        self.prepare();
    }

    fn head(&self, number: u64) -> Head {
        Head {
            course: self.course,
            number,
            bytes_before: self.sent.bytes,
        }
    }

    fn prepare(&mut self) {
        let head = self.head(self.sent.messages);
        head.write(&mut self.next);
        self.next.extend(head.content().flatten());
    }
}

/// Messages from another rank.
#[derive(Default)]
struct Inflow {
    course: u64,
    received: Tally,
    /// Traffic of courses that ended when the rank died.
    cut: Tally,
    ended: bool,
}

/// State shared with the thread that looks for lost ranks.
struct Shared {
    /// One endpoint per rank, because an endpoint sends to all its targets.
    endpoints: BTreeMap<u32, Endpoint>,
    outboxes: Mutex<Vec<Outbox>>,
    /// Some rank has sent its final message.
    ending: AtomicBool,
    /// Ranks are no longer looked for.
    ended: AtomicBool,
}

impl Shared {
    fn outboxes(&self) -> MutexGuard<'_, Vec<Outbox>> {
        self.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All other ranks are there.
    fn are_found(&self) -> bool {
        self.outboxes().iter().all(|outbox| outbox.way == Way::Open)
    }

    /// Adds targets for ranks that are not there yet, or are lost.
    fn find(&self, job: &Job) {
        while !self.ended.load(Ordering::Relaxed) {
            let all = self.outboxes();
            let sought = all.iter().filter(|outbox| outbox.way == Way::Sought);
            let sought: Vec<u32> = sought.map(|outbox| outbox.rank).collect();
            drop(all);
            for rank in &sought {
                let to = job.addresses[*rank as usize];
                if self.endpoints[rank].target(to).is_ok() {
                    let mut all = self.outboxes();
                    let found = all.iter_mut().find(|outbox| outbox.rank == *rank);
                    found.into_iter().for_each(Outbox::begin);
                }
            }
            thread::sleep(RETRY);
        }
    }
}

/// True if the rank has disconnected: everything it sent is here or in flight.
fn is_farewell(error: &SendError) -> bool {
    match error {
        SendError::Refused { .. } => true,
        SendError::PeerGone { reason, .. } => *reason == Some(GoneReason::Closed),
        _ => false,
    }
}

struct Soak<'a> {
    job: &'a Job,
    node: &'a Node,
    inbox: &'a Endpoint,
    shared: &'a Shared,
    inflows: BTreeMap<u32, Inflow>,
    begun: Instant,
    first_port: u32,
    /// The paths to each process, as last printed.
    paths: BTreeMap<u64, String>,
    looked_at: Instant,
}

impl Soak<'_> {
    fn say(&self, text: impl fmt::Display) {
        let seconds = self.begun.elapsed().as_secs_f64();
        println!("{seconds:6.2} s  rank {}: {text}", self.job.rank);
    }

    /// Receives a message if one arrives in time; the error is a message that no rank sent.
    fn receive(&mut self, wait: Duration) -> Result<bool, Box<dyn Error>> {
        let message = match self.inbox.receive_timeout(wait) {
            Ok(message) => message,
            Err(ReceiveError::TimedOut { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let from = (message.source().endpoint.0 - self.first_port) / self.job.size;
        let own = self.job.rank;
        let wrong = |what: String| format!("rank {own}: from rank {from}: {what}");
        let head = Head::read(&message)
            .ok_or_else(|| wrong(format!("{} bytes without a head", message.len())))?;
        let number = head.number & !END;
        let inflow = self.inflows.entry(from).or_default();
        let is_back = inflow.course != 0 && inflow.course != head.course;
        if inflow.course != head.course {
            inflow.cut.join(inflow.received);
            *inflow = Inflow {
                course: head.course,
                cut: inflow.cut,
                ..Inflow::default()
            };
        }
        let Tally { messages, bytes } = inflow.received;
        if (number, head.bytes_before) != (messages, bytes) {
            let before = head.bytes_before;
            return Err(wrong(format!(
                "message {number} after {before} bytes arrived as {messages} after {bytes}"
            ))
            .into());
        }
        if head.number & END != 0 {
            inflow.ended = true;
            self.shared.ending.store(true, Ordering::Relaxed);
        } else {
            let mut words = message[HEAD_BYTES..].chunks(8);
            let is_right = head.content().all(|word| words.next() == Some(&word[..]));
            if !is_right || words.next().is_some() {
                let length = message.len();
                return Err(wrong(format!("message {number} ({length} bytes) is damaged")).into());
            }
            inflow.received.add(message.len());
        }
        if is_back {
            self.say(format_args!(
                "rank {from} sends again, from its first message on"
            ));
        }
        Ok(true)
    }

    /// Sends the next message, or the final one, to every rank; true if one was accepted.
    fn send(&mut self, last_words: bool) -> Result<bool, Box<dyn Error>> {
        let mut taken = false;
        let mut lost = Vec::new();
        for outbox in self.shared.outboxes().iter_mut() {
            if last_words && outbox.way != Way::Sought {
                let mut word = Vec::with_capacity(HEAD_BYTES);
                outbox.head(outbox.sent.messages | END).write(&mut word);
                outbox.next = word;
            } else if outbox.way != Way::Open {
                continue;
            }
            match self.shared.endpoints[&outbox.rank].try_send(&outbox.next) {
                Ok(()) if last_words => outbox.way = Way::Ended,
                Ok(()) => {
                    outbox.sent.add(outbox.next.len());
                    outbox.prepare();
                    taken = true;
                }
                Err(SendError::Full { .. }) => {}
                Err(error @ (SendError::PeerGone { .. } | SendError::Refused { .. })) => {
                    // A rank that has exchanged final messages with us may leave, even before we have read its own.
                    let inflow = self.inflows.get(&outbox.rank);
                    let has_left = inflow.is_some_and(|inflow| inflow.ended) || is_farewell(&error);
                    if outbox.way != Way::Ended || !has_left {
                        outbox.way = Way::Sought;
                        lost.push((outbox.rank, error, outbox.sent));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        for (rank, error, sent) in lost {
            let inflow = self.inflows.get(&rank);
            let received = inflow.map(|inflow| inflow.received).unwrap_or_default();
            self.say(format_args!(
                "rank {rank} is lost: {error}; {sent} sent to it; {received} came, all in order"
            ));
        }
        Ok(taken)
    }

    /// Prints which interfaces carry what, if there are or were several.
    fn tell_paths(&mut self) {
        self.looked_at = Instant::now();
        for paths in self.node.paths() {
            let is_asking = |pair: &Path| pair.small == Some(PathState::Asked);
            let before = self.paths.get(&paths.incarnation);
            let is_only_one = paths.pairs.len() < 2 && before.is_none();
            if is_only_one || paths.pairs.iter().any(is_asking) {
                continue;
            }
            let now = paths.to_string();
            if before != Some(&now) {
                self.say(format_args!("paths to a process of {now}"));
                self.paths.insert(paths.incarnation, now);
            }
        }
    }

    fn exchange(&mut self, duration: Duration) -> Result<(), Box<dyn Error>> {
        let shared = self.shared;
        let mut all_found = false;
        let mut over_since: Option<Instant> = None;
        loop {
            let is_over = self.begun.elapsed() > duration
                || shared.ending.load(Ordering::Relaxed)
                || INPUT_ENDED.load(Ordering::Relaxed);
            let are_found = (is_over || !all_found) && shared.are_found();
            // A rank that was not found, or not again, waits for our final message in vain.
            if is_over
                && (are_found
                    || over_since.get_or_insert_with(Instant::now).elapsed() > LAST_WORDS / 3)
            {
                break;
            }
            let is_sending = self.send(false)?;
            if are_found && !all_found {
                all_found = true;
                self.say("all ranks found");
            }
            let wait = match is_sending {
                true => Duration::ZERO,
                false => Duration::from_millis(1),
            };
            if self.looked_at.elapsed() > LOOK {
                self.tell_paths();
            }
            // Receive as many messages as there are senders, so that sending and receiving keep pace.
            for _ in 0..self.job.size {
                if !self.receive(wait)? {
                    break;
                }
            }
        }
        shared.ended.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sends every rank the amount that was sent to it, and waits for the same.
    fn finish(&mut self) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + LAST_WORDS;
        let mut repeated_at: Option<Instant> = None;
        loop {
            if repeated_at.is_none_or(|at| at.elapsed() > REPEAT) {
                repeated_at = Some(Instant::now());
                self.send(true)?;
            }
            let is_done = |outbox: &Outbox| match outbox.way {
                Way::Sought => true,
                Way::Open => false,
                Way::Ended => {
                    let inflow = self.inflows.get(&outbox.rank);
                    inflow.is_some_and(|inflow| inflow.ended)
                }
            };
            let all = self.shared.outboxes();
            let waiting = all.iter().filter(|outbox| !is_done(outbox));
            let waiting: Vec<u32> = waiting.map(|outbox| outbox.rank).collect();
            drop(all);
            if waiting.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                let own = self.job.rank;
                return Err(format!("rank {own}: no last word of ranks {waiting:?}").into());
            }
            self.receive(Duration::from_millis(1))?;
        }
    }

    fn report(&self) {
        let (mut sent, mut received) = (Tally::default(), Tally::default());
        let (mut sent_cut, mut received_cut) = (Tally::default(), Tally::default());
        let mut partners = 0;
        for outbox in self.shared.outboxes().iter() {
            let is_whole = outbox.way == Way::Ended;
            partners += u32::from(is_whole);
            sent_cut.join(outbox.cut);
            match is_whole {
                true => sent.join(outbox.sent),
                false => sent_cut.join(outbox.sent),
            }
            if let Some(inflow) = self.inflows.get(&outbox.rank) {
                received_cut.join(inflow.cut);
                match inflow.ended {
                    true => received.join(inflow.received),
                    false => received_cut.join(inflow.received),
                }
            }
        }
        self.say(format_args!(
            "{sent} to {partners} ranks, {received} from them: every byte accounted for"
        ));
        if sent_cut.messages + received_cut.messages > 0 {
            self.say(format_args!(
                "to and from ranks that died: {sent_cut}; {received_cut}, each in order and whole"
            ));
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::from_env()?;
    let seconds: f64 = match std::env::args().nth(1).as_deref() {
        Some("-") => {
            if job.rank == 0 {
                thread::spawn(|| {
                    let _bytes = io::copy(&mut io::stdin(), &mut io::sink());
                    INPUT_ENDED.store(true, Ordering::Relaxed);
                });
            }
            LONGEST_S
        }
        Some(text) => text
            .parse()
            .map_err(|_| "usage: soak [SECONDS|- [LINK,..]]")?,
        None => 10.0,
    };
    let mut config = Config::from_env()?;
    if let Some(links) = std::env::args().nth(2) {
        let links: Vec<&str> = links.split(',').collect();
        let link = links[job.rank as usize % links.len()];
        config.links = link
            .parse()
            .map_err(|()| format!("{link} is not a valid link"))?;
    }
    config.connect_timeout = RETRY;
    let node = Node::open(config)?;
    let inbox = node.endpoint(job.own_address().endpoint)?;
    let first_port = job.addresses[0].endpoint.0 + job.size;
    let others = (1..job.size).map(|step| (job.rank + step) % job.size);
    let mut shared = Shared {
        endpoints: BTreeMap::new(),
        outboxes: Mutex::default(),
        ending: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    };
    for rank in others {
        let port = EndpointId(first_port + job.rank * job.size + rank);
        shared.endpoints.insert(rank, node.endpoint(port)?);
        shared.outboxes().push(Outbox {
            rank,
            course: 0,
            sent: Tally::default(),
            way: Way::Sought,
            next: Vec::new(),
            cut: Tally::default(),
        });
    }
    let mut soak = Soak {
        job: &job,
        node: &node,
        inbox: &inbox,
        shared: &shared,
        inflows: BTreeMap::new(),
        begun: Instant::now(),
        first_port,
        paths: BTreeMap::new(),
        looked_at: Instant::now(),
    };
    thread::scope(|scope| {
        scope.spawn(|| shared.find(&job));
        let done = soak
            .exchange(Duration::from_secs_f64(seconds))
            .and_then(|()| soak.finish());
        shared.ended.store(true, Ordering::Relaxed);
        done
    })?;
    soak.report();
    if let Some(bpf) = node.stats().bpf {
        println!(
            "small packets: received {} from rings and {} from sockets, sent {} raw and {} through sockets",
            bpf.from_ring, bpf.from_socket, bpf.raw, bpf.socket
        );
    }
    drop((inbox, shared));
    node.close(LAST_WORDS)?;
    Ok(())
}
