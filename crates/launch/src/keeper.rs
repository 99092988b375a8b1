//! `dipole keep-images`: copies the images of the ranks of its host to the memory of the next hosts
//! of the job, and keeps theirs.
//!
//! The shim starts it with the environment of a rank. It is one thread, which never waits for
//! another host: a host that does not read delays only its own copies. All images, own ones and
//! copies, are in one folder, which it reports to the launcher through the shim. The launcher decides
//! which images are removed.

mod pace;
mod transfer;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_checkpoint::{ImageName, Incoming, Store};
use dipole_naming::threads;
use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId, ReceiveError};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::guard::watch_parent;
use super::message::{self, HostImages, ToLauncher};
use pace::Pace;
use transfer::{Progress, Transfer};
use wire::{Message, parse};

/// How often it looks for new images.
const SCAN_EVERY: Duration = Duration::from_millis(20);
/// Pause before a host that accepts nothing now is tried again.
const POLL_EVERY: Duration = Duration::from_micros(300);
/// Pause before another attempt to send to a host that cannot be reached.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Failures to reach a host before it is reported.
const PATIENCE: u32 = 5;
/// How long a host may accept nothing before its turn is over.
const STALLED_AFTER: Duration = Duration::from_secs(20);
/// How long images for the ranks of this host may take without any progress.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages that are handled before this host sends again.
const MOST_MESSAGES: usize = 64;

/// Arguments of the hidden subcommand `keep-images`.
#[derive(Args, Debug)]
pub struct KeeperArgs {
    /// Process that started this one.
    #[arg(long)]
    parent: u32,
}

/// Message from the keeper to its shim.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromKeeper {
    /// All images for the ranks of this host are here, or why not.
    Fetched(Result<(), String>),
    /// A message for the launcher.
    Forward(Box<ToLauncher>),
}

/// Runs `dipole keep-images` until the shim ends.
pub fn keep_images(args: &KeeperArgs) -> ExitCode {
    let orphaned = set_parent_process_death_signal(Some(Signal::KILL)).is_err()
        || watch_parent(Some(args.parent)).is_err();
    if orphaned {
        return ExitCode::FAILURE;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("dipole keep-images: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut input = io::BufReader::new(io::stdin());
    let Some(images) = message::read::<HostImages>(&mut input)? else {
        return Ok(());
    };
    threads::start("dipole-control", move || {
        let _ended = input.read_to_end(&mut Vec::new());
        std::process::exit(0);
    })?;
    // The ranks may have links that need privileges, or that only BSP programs know.
    let mut config = Config::from_env_with(Links::Auto)?;
    config.recordings.trace_dir = None;
    let node = Node::open(config)?;
    let endpoint = node.endpoint(EndpointId(images.endpoint))?;
    Keeper::new(images, endpoint).run()
}

/// Something to send to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    /// A copy of an image.
    Copy(ImageName),
    /// A request for an image.
    Request(ImageName),
    /// The reply to a request for an image that is not here.
    Missing(ImageName),
    /// The reply to a copy that could not be stored.
    Refused(ImageName),
}

struct Keeper {
    store: Store,
    images: HostImages,
    endpoint: Endpoint,
    /// Own images that are sent to all peers or have been.
    known: BTreeSet<ImageName>,
    to_send: VecDeque<(u32, Item)>,
    sending: Option<Transfer>,
    /// Items that could not be sent, and when they are tried again.
    later: Vec<(Instant, u32, Item)>,
    pace: Pace,
    receiving: BTreeMap<u32, Incoming>,
    /// Requested images that have not arrived.
    missing: BTreeSet<ImageName>,
    /// When one of them, or a part of it, last arrived.
    arrived_at: Instant,
    scanned_at: Option<Instant>,
    /// The images and the sets to be copied, as they were last reported.
    reported: Option<(Vec<ImageName>, u32)>,
    /// How often each host could not be reached since it last got something.
    failures: BTreeMap<u32, u32>,
    warnings: BTreeSet<String>,
}

impl Keeper {
    fn new(images: HostImages, endpoint: Endpoint) -> Keeper {
        let now = Instant::now();
        let requests = images.fetches.iter();
        Keeper {
            store: Store::new(images.folder.clone()),
            endpoint,
            known: BTreeSet::new(),
            to_send: requests
                .map(|(from, image)| (*from, Item::Request(*image)))
                .collect(),
            sending: None,
            later: Vec::new(),
            pace: Pace::new(images.bytes_per_second, now),
            receiving: BTreeMap::new(),
            missing: images.fetches.iter().map(|(_, image)| *image).collect(),
            arrived_at: now,
            scanned_at: None,
            reported: None,
            failures: BTreeMap::new(),
            warnings: BTreeSet::new(),
            images,
        }
    }

    fn run(mut self) -> Result<(), Box<dyn std::error::Error>> {
        loop {
            let now = Instant::now();
            if self.scanned_at.is_none_or(|at| now - at >= SCAN_EVERY) {
                self.scanned_at = Some(now);
                self.scan(now)?;
            }
            let wait = self.send(now)?.min(SCAN_EVERY);
            match self.endpoint.receive_timeout(wait) {
                Ok(received) => self.handle(received.source(), &received)?,
                Err(ReceiveError::TimedOut { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
            for _ in 0..MOST_MESSAGES {
                match self.endpoint.try_receive()? {
                    Some(received) => self.handle(received.source(), &received)?,
                    None => break,
                }
            }
        }
    }

    /// Finds new images, and reports all.
    fn scan(&mut self, now: Instant) -> io::Result<()> {
        let images = self.store.images().map_err(io::Error::other)?;
        for image in images.iter().filter(|image| image.is_complete()) {
            if self.images.ranks.contains(&image.rank()) && self.known.insert(*image) {
                let peers = self.images.peers.iter();
                self.to_send
                    .extend(peers.map(|peer| (*peer, Item::Copy(*image))));
            }
        }
        self.known
            .retain(|image| images.binary_search(image).is_ok());
        let due = self.later.extract_if(.., |(at, ..)| *at <= now);
        let due: Vec<(u32, Item)> = due.map(|(_, to, item)| (to, item)).collect();
        self.to_send.extend(due);
        if !self.missing.is_empty() && now - self.arrived_at >= FETCH_TIMEOUT {
            self.fail("the hosts that have the images do not send them".to_owned())?;
        }
        let report = (images, self.backlog());
        if self.reported.as_ref() != Some(&report) {
            let (images, backlog) = report.clone();
            self.forward(ToLauncher::Images { images, backlog })?;
            self.reported = Some(report);
        }
        Ok(())
    }

    /// The number of sets with images to be copied.
    fn backlog(&self) -> u32 {
        let waiting = self.to_send.iter().map(|(_, item)| *item);
        let sets = waiting.filter_map(|item| match item {
            Item::Copy(image) => Some(image.set()),
            _ => None,
        });
        let sending = self.sending.iter().filter_map(Transfer::set);
        let sets: BTreeSet<u64> = sets.chain(sending).collect();
        u32::try_from(sets.len()).unwrap_or(u32::MAX)
    }

    /// Sends as much as the pace and the receivers allow. Returns how long to wait for more.
    fn send(&mut self, now: Instant) -> io::Result<Duration> {
        loop {
            let pause = self.pace.pause(now);
            if !pause.is_zero() {
                return Ok(pause);
            }
            if self.sending.is_none() && !self.begin_next() {
                return Ok(SCAN_EVERY);
            }
            let Some(transfer) = &mut self.sending else {
                return Ok(SCAN_EVERY);
            };
            match transfer.step(&self.endpoint, now, STALLED_AFTER) {
                Progress::Sent(bytes) => self.pace.take(bytes),
                Progress::Waits => return Ok(POLL_EVERY),
                Progress::Done => {
                    self.failures.remove(&transfer.to());
                    self.sending = None;
                }
                Progress::Failed(reason) => {
                    let (to, item) = (transfer.to(), transfer.item());
                    self.sending = None;
                    self.later.push((now + RETRY_AFTER, to, item));
                    self.note_failure(to, &reason)?;
                }
            }
        }
    }

    /// Reports a host that cannot be reached again and again. At first it may only be late.
    fn note_failure(&mut self, to: u32, reason: &str) -> io::Result<()> {
        let failures = self.failures.entry(to).or_default();
        *failures += 1;
        match *failures {
            PATIENCE => self.warn(format!("node {to} gets no copies of images now: {reason}")),
            _ => Ok(()),
        }
    }

    /// Begins to send the next item. Returns false if all are sent.
    fn begin_next(&mut self) -> bool {
        while let Some((to, item)) = self.to_send.pop_front() {
            let address = self.address(to);
            let begun = Transfer::begin(&self.store, (to, address), item, &self.images.token.0);
            match begun {
                Ok(transfer) => {
                    self.sending = Some(transfer);
                    return true;
                }
                // The image has been removed, because newer ones replace it.
                Err(_) => continue,
            }
        }
        false
    }

    fn address(&self, node: u32) -> Address {
        Address {
            node: NodeId(node),
            endpoint: EndpointId(self.images.endpoint),
        }
    }

    /// Handles a message. One that is not from a keeper of this job is ignored.
    fn handle(&mut self, source: Address, bytes: &[u8]) -> io::Result<()> {
        let from = source.node.0;
        let Some(message) = parse(bytes).filter(|_| source == self.address(from)) else {
            return Ok(());
        };
        let is_known = |token: &str| token == self.images.token.0;
        match message {
            Message::Begin { token, image } if is_known(&token) => self.receive(from, image),
            Message::Request { token, image } if is_known(&token) => {
                let item = match self.store.open_image(image) {
                    Ok(_) => Item::Copy(image),
                    Err(_) => Item::Missing(image),
                };
                self.to_send.push_front((from, item));
                Ok(())
            }
            Message::Piece(bytes) => self.add(from, &bytes),
            Message::End => self.finish(from),
            Message::Missing { token, image } if is_known(&token) => {
                match self.missing.contains(&image) {
                    true => self.fail(format!("node {from} no longer has {image}")),
                    false => Ok(()),
                }
            }
            Message::Refused { token, image } if is_known(&token) => {
                let again = Instant::now() + RETRY_AFTER * 5;
                if self.known.contains(&image) {
                    self.later.push((again, from, Item::Copy(image)));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self, from: u32, image: ImageName) -> io::Result<()> {
        self.receiving.remove(&from);
        // The images of its own ranks are right here, unless they were requested.
        let is_own = self.images.ranks.contains(&image.rank());
        if !image.is_complete() || (is_own && !self.missing.contains(&image)) {
            return Ok(());
        }
        match self.store.receive(image) {
            Ok(incoming) => {
                self.receiving.insert(from, incoming);
                Ok(())
            }
            Err(error) => self.refuse(from, image, error.to_string()),
        }
    }

    fn add(&mut self, from: u32, bytes: &[u8]) -> io::Result<()> {
        let Some(incoming) = self.receiving.get_mut(&from) else {
            return Ok(());
        };
        let image = incoming.image();
        if self.missing.contains(&image) {
            self.arrived_at = Instant::now();
        }
        match incoming.write(bytes) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.receiving.remove(&from);
                self.refuse(from, image, error.to_string())
            }
        }
    }

    fn finish(&mut self, from: u32) -> io::Result<()> {
        let Some(incoming) = self.receiving.remove(&from) else {
            return Ok(());
        };
        let image = incoming.image();
        if let Err(error) = incoming.commit() {
            return self.refuse(from, image, error.to_string());
        }
        if self.missing.remove(&image) {
            self.arrived_at = Instant::now();
            if self.missing.is_empty() {
                self.report(&FromKeeper::Fetched(Ok(())))?;
            }
        }
        Ok(())
    }

    /// Handles a copy that could not be stored.
    fn refuse(&mut self, from: u32, image: ImageName, reason: String) -> io::Result<()> {
        if self.missing.contains(&image) {
            return self.fail(reason);
        }
        self.to_send.push_back((from, Item::Refused(image)));
        self.warn(format!("a copy from node {from} is not kept: {reason}"))
    }

    /// Reports that the ranks of this host cannot continue.
    fn fail(&mut self, reason: String) -> io::Result<()> {
        self.missing.clear();
        self.report(&FromKeeper::Fetched(Err(reason)))
    }

    /// Reports a reason once.
    fn warn(&mut self, reason: String) -> io::Result<()> {
        match self.warnings.insert(reason.clone()) {
            true => self.forward(ToLauncher::Warning(reason)),
            false => Ok(()),
        }
    }

    fn forward(&self, message: ToLauncher) -> io::Result<()> {
        self.report(&FromKeeper::Forward(Box::new(message)))
    }

    fn report(&self, message: &FromKeeper) -> io::Result<()> {
        message::write(message, &mut io::stdout())
    }
}
