//! The agent's loop: one thread that sleeps until a packet, a time, or somebody who asks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dipole_node::hosts::Host;
use dipole_node::registry::{DirectoryLock, ProbeLength, Registry, is_announcement};
use dipole_node::{ClusterKey, Config, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::callers::Callers;
use super::discovery::Taken;
use super::finder::Finder;
use super::lend::{self, Lender};
use super::member::{Member, now_as_life};
use super::membership::{Membership, News};
use super::nodes::Nodes;
use super::proofs::is_membership;
use super::rules::{self, Rules};
use super::status::{MemberStatus, ProcessStatus, Status, socket};
use super::store::{self, Kept};
use super::ways::{Ways, socket_to};
use super::{AgentArgs, AgentError};

/// Packets taken before anything else is looked at.
const MOST_PACKETS: usize = 64;
/// How long somebody who asks for the status may take to read it.
const READER_PATIENCE: Duration = Duration::from_millis(200);

struct Agent<'a> {
    config: &'a Config,
    registry: &'a Registry,
    seat: DirectoryLock,
    address: SocketAddr,
    given_rules: Option<PathBuf>,
    /// None without a cluster key.
    callers: Option<Callers>,
    membership: Membership,
    /// None if the hosts file alone says which nodes there are.
    finder: Option<Finder>,
    nodes: Nodes,
    ways: Ways,
    /// None if nothing is lent.
    lender: Option<Lender>,
    /// The hosts file.
    written_down: Vec<Host>,
    /// Since when nodes are there, or gone; as they last described themselves.
    seen: BTreeMap<u32, Seen>,
    begun: Instant,
    /// Questions answered or refused.
    replied: u64,
}

struct Seen {
    member: Member,
    there: bool,
    since: Instant,
}

/// What is watched besides the cards.
struct Ends {
    /// Those who ask for the status.
    asked: UnixListener,
    /// It is to end.
    ended: UnixStream,
    /// One of its children has ended.
    child: UnixStream,
}

/// Runs until told to end.
pub(super) fn serve(
    config: &Config,
    registry: &Registry,
    args: &AgentArgs,
    json: bool,
) -> Result<(), AgentError> {
    let node = config.node;
    let given_rules = args.rules.as_deref();
    let finding = args.place.finding()?;
    let host = args.place.host(config, finding.is_some())?;
    let system = |doing| move |cause| AgentError::System { doing, cause };
    // Whoever asks for the status may be elsewhere.
    let given_rules = given_rules.map(std::path::absolute).transpose();
    let given_rules = given_rules.map_err(system("finding the owner's rules"))?;
    let given_rules = given_rules.as_deref();
    // Better told of a mistake in them now than by whoever is refused.
    Rules::load(rules::place(given_rules).as_deref())?;
    let caught = |signals: &[i32]| {
        let (caught, end) = UnixStream::pair()?;
        caught.set_nonblocking(true)?;
        for signal in signals {
            pipe::register(*signal, end.try_clone()?)?;
        }
        Ok(caught)
    };
    let ended = caught(&[SIGTERM, SIGINT]).map_err(system("catching signals"))?;
    let child = caught(&[SIGCHLD]).map_err(system("catching signals"))?;
    let mut kept = Kept::take();
    let directories = std::mem::take(&mut kept.directories);
    let addresses = host.directories();
    let address = addresses[0];
    let seat = DirectoryLock::take(registry, &addresses, directories)?;
    let listeners = match config.key {
        Some(_) => listen(&addresses, &mut kept)?,
        None => Vec::new(),
    };
    let lender = Lender::start(
        args.cards.as_deref(),
        lend::Kept::of(std::mem::take(&mut kept.others)),
    )?;
    let are_kept = kept.count() == addresses.len() + listeners.len();
    // The seat is ours, so what lies there is a dead agent's.
    let path = socket(registry);
    let _may_not_exist = std::fs::remove_file(&path);
    let asked = UnixListener::bind(&path).map_err(system("making the socket for the status"))?;
    asked
        .set_nonblocking(true)
        .map_err(system("setting up the socket for the status"))?;
    let life = now_as_life();
    let own = Member {
        life,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Member::of_host(&host)
    };
    let written_down = match config.hosts.is_local_only() {
        true => Vec::new(),
        false => config.hosts.iter().cloned().collect(),
    };
    let begun = Instant::now();
    let finder = finding.map(|finding| Finder::open(&finding, &host, &own, begun.elapsed()));
    let finder = finder.transpose();
    let finder = finder.map_err(system("listening for nodes that announce themselves"))?;
    let nodes = Nodes::new(registry.nodes_file(), host.clone(), &written_down);
    let others = written_down.iter().filter(|host| host.node != node);
    let known = others.map(Member::of_host).collect();
    let callers = match &config.key {
        Some(key) => Some(
            Callers::new(
                node.0,
                key.clone(),
                listeners,
                for_sessions(node, given_rules, json),
            )
            .map_err(system("finding this program"))?,
        ),
        None => None,
    };
    let mut agent = Agent {
        config,
        registry,
        seat,
        address,
        given_rules: given_rules.map(Path::to_owned),
        callers,
        membership: Membership::new(
            own,
            known,
            life ^ u64::from(std::process::id()) << 40,
            config.key.as_ref(),
        ),
        finder,
        nodes,
        ways: Ways::new(&host, begun.elapsed()),
        lender,
        written_down,
        seen: BTreeMap::new(),
        begun,
        replied: 0,
    };
    let listeners = agent.callers.iter().flat_map(Callers::listeners);
    store::keep(agent.seat.sockets(), listeners, are_kept);
    let key = config.key.as_ref().map(ClusterKey::fingerprint);
    let work = match &key {
        Some(key) => format!("starts work for holders of the cluster key {key}"),
        None => "starts no work: it has no cluster key (DIPOLE_KEY)".to_owned(),
    };
    let pid = std::process::id();
    tracing::info!(event = "agent-up", node = node.0, %address, pid, key, "agent");
    if !json {
        eprintln!("agent of node {node} at {address}, {work}");
    }
    let done = agent.run(&Ends {
        asked,
        ended,
        child,
    });
    tracing::info!(event = "agent-down", node = node.0, %address, pid, "agent ends");
    let _gone = std::fs::remove_file(&path);
    match done {
        // That is about the other one's number: nothing more is said of it.
        Err(Ended::Taken(taken)) => {
            let by: Vec<String> = taken.by.iter().map(ToString::to_string).collect();
            Err(AgentError::Taken {
                node: node.0,
                by: by.join(" "),
                age_s: taken.age.as_secs(),
            })
        }
        done => {
            let now = agent.now();
            agent.membership.leave(now);
            agent.send();
            match done {
                Err(Ended::System(cause)) => Err(system("waiting")(cause)),
                _ => Ok(()),
            }
        }
    }
}

/// Why the agent ends without having been told to.
enum Ended {
    Taken(Taken),
    System(io::Error),
}

/// The listeners at which work is asked for, on each card.
fn listen(addresses: &[SocketAddr], kept: &mut Kept) -> Result<Vec<TcpListener>, AgentError> {
    let listener = |address: &SocketAddr| {
        let listener = match kept.listener(*address) {
            Some(listener) => Ok(listener),
            None => TcpListener::bind(address),
        };
        listener
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|cause| AgentError::Port {
                address: *address,
                cause,
            })
    };
    addresses.iter().map(listener).collect()
}

/// Words that make this program a session, which gets the environment of the agent.
fn for_sessions(node: NodeId, rules: Option<&Path>, json: bool) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if json {
        words.push("--json".into());
    }
    words.push("agent-session".into());
    words.extend(["--nid".into(), node.to_string().into()]);
    if let Some(rules) = rules {
        words.extend(["--rules".into(), rules.into()]);
    }
    words
}

impl Agent<'_> {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn run(&mut self, ends: &Ends) -> Result<(), Ended> {
        loop {
            let now = self.now();
            if let Some(finder) = &mut self.finder {
                finder.announce(now, self.registry, &self.seat, &self.membership);
            }
            self.membership.on_timers(now);
            self.send();
            self.tell_news();
            self.nodes.write(self.membership.members());
            let ready = self.wait(ends).map_err(Ended::System)?;
            let (fixed, others) = ready.split_at(3);
            if fixed[1] {
                return Ok(());
            }
            if fixed[2] {
                let _how_many = (&ends.child).read(&mut [0; 64]);
            }
            let (cards, callers) = others.split_at(self.seat.sockets().count());
            for (card, ready) in cards.iter().enumerate() {
                if *ready {
                    self.receive(card).map_err(Ended::Taken)?;
                }
            }
            let hearing = self.finder.as_ref().map_or(0, |one| one.hearing().len());
            let (segments, callers) = callers.split_at(hearing);
            for (segment, ready) in segments.iter().enumerate() {
                if *ready {
                    self.hear(segment).map_err(Ended::Taken)?;
                }
            }
            if let Some(attended) = &mut self.callers {
                attended.attend(callers);
            }
            if fixed[0]
                && let Ok((reader, _)) = ends.asked.accept()
                && let Err(cause) = self.tell(reader)
            {
                tracing::debug!(%cause, "somebody asked for the status and did not read it");
            }
        }
    }

    /// Sleeps until there is something to do; says what is ready: the ends, the cards, what
    /// the callers want watched.
    fn wait(&self, ends: &Ends) -> io::Result<Vec<bool>> {
        let mut due = self.membership.next_deadline();
        if let Some(finder) = &self.finder {
            due = due.min(finder.next_deadline());
        }
        let mut nap = due.saturating_sub(self.now());
        if let Some(due) = self.nodes.next_deadline() {
            nap = nap.min(due.saturating_duration_since(Instant::now()));
        }
        let mut watched = vec![
            PollFd::new(&ends.asked, PollFlags::IN),
            PollFd::new(&ends.ended, PollFlags::IN),
            PollFd::new(&ends.child, PollFlags::IN),
        ];
        let sockets = self.seat.sockets();
        watched.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let hearing = self.finder.iter().flat_map(Finder::hearing);
        watched.extend(hearing.map(|socket| PollFd::new(socket, PollFlags::IN)));
        if let Some(callers) = &self.callers {
            let (listeners, streams) = callers.sockets();
            watched.extend(listeners.iter().map(|one| PollFd::new(one, PollFlags::IN)));
            watched.extend(streams.map(|one| PollFd::new(one, PollFlags::IN)));
            if let Some(deadline) = callers.next_deadline() {
                nap = nap.min(deadline.saturating_duration_since(Instant::now()));
            }
        }
        let nap = Timespec {
            tv_sec: nap.as_secs().cast_signed(),
            tv_nsec: nap.subsec_nanos().into(),
        };
        match poll(&mut watched, Some(&nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = watched.iter().map(|one| !one.revents().is_empty());
        Ok(ready.collect())
    }

    fn receive(&mut self, card: usize) -> Result<(), Taken> {
        let mut buffer = [0; ProbeLength::LONGEST.bytes() + 1];
        for _ in 0..MOST_PACKETS {
            let Some(socket) = self.seat.sockets().nth(card) else {
                return Ok(());
            };
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // A report about a packet that reached nobody.
                Err(_) => continue,
            };
            let packet = &buffer[..length];
            let now = self.begun.elapsed();
            if is_membership(packet) {
                let to = socket.local_addr().ok().map(|at| at.ip());
                if self.ways.is_new(now, to, packet) {
                    self.membership.on_packet(now, packet);
                }
            } else if is_announcement(packet) {
                if let Some(finder) = &mut self.finder {
                    let (registry, seat) = (self.registry, &self.seat);
                    finder.hear(now, packet, false, registry, seat, &mut self.membership)?;
                }
            } else if let Some(reply) = self.seat.reply(card, packet) {
                self.replied += 1;
                let _lost = socket.send_to(&reply, from);
            }
        }
        Ok(())
    }

    /// Takes what was said to everybody.
    fn hear(&mut self, segment: usize) -> Result<(), Taken> {
        let mut buffer = [0; ProbeLength::LONGEST.bytes() + 1];
        let Some(finder) = &mut self.finder else {
            return Ok(());
        };
        for _ in 0..MOST_PACKETS {
            let Ok((length, _)) = finder.hearing()[segment].recv_from(&mut buffer) else {
                return Ok(());
            };
            let (now, packet) = (self.begun.elapsed(), &buffer[..length]);
            let (registry, seat) = (self.registry, &self.seat);
            finder.hear(now, packet, true, registry, seat, &mut self.membership)?;
        }
        Ok(())
    }

    fn send(&mut self) {
        let now = self.now();
        for packet in self.membership.take_outgoing() {
            for to in self.ways.of(now, &packet) {
                let Some(socket) = socket_to(self.seat.sockets(), to) else {
                    continue;
                };
                if let Err(cause) = socket.send_to(&packet.packet, to) {
                    tracing::debug!(%to, %cause, "a packet to another agent");
                }
            }
        }
    }

    fn tell_news(&mut self) {
        let node = self.config.node.0;
        for news in self.membership.take_news() {
            let (member, there) = match news {
                News::Came(member) => (member, true),
                News::Went(member) => (member, false),
                News::Returned(member) => {
                    let peer = member.node;
                    tracing::info!(event = "returned", node, peer, "another life of the node");
                    self.nodes.change();
                    if let Some(seen) = self.seen.get_mut(&peer) {
                        seen.member = member;
                    }
                    continue;
                }
                News::Mistaken => {
                    tracing::warn!(
                        event = "mistaken",
                        node,
                        "others took this node for gone; told them otherwise"
                    );
                    continue;
                }
            };
            let (peer, address) = (member.node, member.shown());
            if there {
                tracing::info!(event = "came", node, peer, %address, "node is there");
            } else {
                tracing::warn!(event = "gone", node, peer, %address, "node is gone");
            }
            let since = Instant::now();
            self.nodes.change();
            self.seen.insert(
                peer,
                Seen {
                    member,
                    there,
                    since,
                },
            );
        }
    }

    fn tell(&self, mut reader: UnixStream) -> io::Result<()> {
        reader.set_write_timeout(Some(READER_PATIENCE))?;
        let status = self.status().map_err(io::Error::other)?;
        serde_json::to_writer(&mut reader, &status)?;
        writeln!(reader)
    }

    fn status(&self) -> Result<Status, dipole_node::registry::RegistryError> {
        let mut members: BTreeMap<u32, MemberStatus> = BTreeMap::new();
        let others = self.written_down.iter();
        for host in others.filter(|host| host.node != self.config.node) {
            let never = MemberStatus {
                node: host.node.0,
                address: Member::of_host(host).shown(),
                state: "never seen".to_owned(),
                for_s: self.begun.elapsed().as_secs(),
                version: String::new(),
            };
            members.insert(host.node.0, never);
        }
        for (node, seen) in &self.seen {
            let known = MemberStatus {
                node: *node,
                address: seen.member.shown(),
                state: if seen.there { "there" } else { "gone" }.to_owned(),
                for_s: seen.since.elapsed().as_secs(),
                version: seen.member.version.clone(),
            };
            members.insert(*node, known);
        }
        let processes = self
            .registry
            .survey()?
            .into_iter()
            .map(|survey| ProcessStatus {
                pid: survey.owner.pid,
                command: survey.owner.command,
                endpoints: survey.endpoints.iter().map(|endpoint| endpoint.0).collect(),
            });
        let dropped = self.membership.dropped();
        Ok(Status {
            node: self.config.node.0,
            address: self.address.to_string(),
            cluster: self.finder.as_ref().map(|one| one.cluster().to_owned()),
            foreign: self.finder.as_ref().map_or(0, Finder::foreign),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            running_s: self.begun.elapsed().as_secs(),
            rules_file: rules::place(self.given_rules.as_deref()),
            rules: String::new(),
            refuses: None,
            jobs: Vec::new(),
            answered: self.replied - self.seat.refused(),
            strangers: self.seat.refused() + dropped.strangers,
            repeated: dropped.repeated,
            key: self.config.key.as_ref().map(ClusterKey::fingerprint),
            members: members.into_values().collect(),
            processes: processes.collect(),
            lends: self.lender.as_ref().map(Lender::status),
        })
    }
}
