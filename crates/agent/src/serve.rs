//! The agent's main loop: one thread that waits for packets, deadlines and connections.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dipole_naming::key::random_bytes;
use dipole_node::hosts::Host;
use dipole_node::registry::{DirectoryLock, ProbeLength, Registry, is_announcement};
use dipole_node::{ClusterKey, Config, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::announcer::Announcer;
use super::callers::Callers;
use super::discovery::{Discovery, Taken};
use super::fd_store::{self, InheritedSockets};
use super::load::Timing;
use super::member::{Member, new_incarnation};
use super::membership::{MAX_MEMBERS, Membership, MembershipEvent, Secrets, is_membership};
use super::nodes::Nodes;
use super::options::DiscoveryOptions;
use super::own_addresses::OwnAddresses;
use super::paths::{self, Paths};
use super::rules::{self, Rules};
use super::sampler::Sampler;
use super::sockets::Sockets;
use super::status::{MemberStatus, NoStatus, ProcessStatus, Status, socket};
use super::{AgentArgs, AgentError, system};

/// Packets received from one socket before the next socket is read.
const MAX_PACKETS: usize = 64;
/// Time limit for sending the status.
const STATUS_TIMEOUT: Duration = Duration::from_millis(200);
/// Pause after a reader could not be accepted because descriptors or memory ran out.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

struct Agent<'a> {
    config: &'a Config,
    registry: &'a Registry,
    directory_lock: DirectoryLock,
    /// Sockets for packets between members, by interface. Only members know their ports.
    members_sockets: Vec<UdpSocket>,
    address: SocketAddr,
    /// This node, with its present addresses.
    host: Host,
    given_rules: Option<PathBuf>,
    /// `None` without a cluster key.
    callers: Option<Callers>,
    membership: Membership,
    /// `None` if only the hosts file lists the nodes.
    announcer: Option<Announcer>,
    nodes: Nodes,
    paths: Paths,
    sampler: Sampler,
    /// Last description of other nodes, their state, and since when.
    seen: BTreeMap<u32, Seen>,
    start: Instant,
    /// Look-ups answered or refused.
    replied: u64,
}

struct Seen {
    member: Member,
    is_up: bool,
    since: Instant,
}

/// Sockets that are polled in addition to the directory's.
struct Control {
    /// Clients connect here to read the status.
    status: UnixListener,
    /// Readable after a signal to stop.
    stop: UnixStream,
    /// Readable after a child has ended.
    child: UnixStream,
    /// Readable after a change of this machine's addresses.
    addresses: OwnAddresses,
}

/// Runs the agent until a signal stops it.
pub(super) fn serve(
    config: &Config,
    registry: &Registry,
    args: &AgentArgs,
    json: bool,
) -> Result<(), AgentError> {
    let discovery = args.node.discovery()?;
    let host = args.node.host(config, discovery.is_some())?;
    // Clients of the status may have another working directory.
    let given_rules = args.rules.as_deref().map(std::path::absolute).transpose();
    let given_rules = given_rules.map_err(system("finding the owner's rules"))?;
    // Reports an error in the rules now, not only to a caller.
    Rules::load(rules::locate(given_rules.as_deref()).as_deref())?;
    let stop = signalled(&[SIGTERM, SIGINT]).map_err(system("catching signals"))?;
    let child = signalled(&[SIGCHLD]).map_err(system("catching signals"))?;
    if let Some(address) = args.metrics {
        let address = super::scrape::serve(address, &config.runtime_dir)
            .map_err(|cause| AgentError::Metrics { address, cause })?;
        tracing::info!(event = "metrics", %address, "serving counters");
    }
    let mut inherited = InheritedSockets::take();
    let mut sockets = Sockets::open(config, registry, &host, &mut inherited)?;
    let mut are_stored =
        inherited.count() == sockets.directory.sockets().count() + sockets.listeners.len();
    let path = socket(registry);
    let mut control = Control {
        status: status_listener(&path)?,
        stop,
        child,
        addresses: OwnAddresses::follow().map_err(system("following the addresses"))?,
    };
    let mut given = Given {
        host,
        discovery,
        rules: given_rules,
        timing: args.load.timing(),
        speed: args.load.speed,
    };
    let mut callers = None;
    loop {
        let mut agent = Agent::open(config, registry, sockets, &given, (callers.take(), json))?;
        let listeners = agent.callers.iter().flat_map(Callers::listeners);
        fd_store::store_sockets(agent.directory_lock.sockets(), listeners, are_stored);
        agent.report_start(json);
        agent.update_caller_addresses();
        match agent.run(&mut control) {
            // At its new address the agent joins like one that was started there.
            Err(Ended::Moved(host)) => {
                callers = agent.callers.take();
                drop(agent);
                sockets = Sockets::reopen(config, registry, &host)?;
                are_stored = false;
                given.host = *host;
            }
            done => {
                let (node, pid) = (config.node.0, std::process::id());
                tracing::info!(event = "agent-down", node, address = %agent.address, pid, "agent ends");
                let _gone = std::fs::remove_file(&path);
                return agent.end(done);
            }
        }
    }
}

/// Becomes readable after one of these signals.
fn signalled(signals: &[i32]) -> io::Result<UnixStream> {
    let (signalled, end) = UnixStream::pair()?;
    signalled.set_nonblocking(true)?;
    for signal in signals {
        pipe::register(*signal, end.try_clone()?)?;
    }
    Ok(signalled)
}

/// Opens the status socket.
fn status_listener(path: &Path) -> Result<UnixListener, AgentError> {
    // This agent holds the lock, so an existing socket belonged to a dead agent.
    let _may_not_exist = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(system("creating the status socket"))?;
    listener
        .set_nonblocking(true)
        .map_err(system("configuring the status socket"))?;
    Ok(listener)
}

/// Settings from options, environment and hosts file.
struct Given {
    host: Host,
    discovery: Option<DiscoveryOptions>,
    rules: Option<PathBuf>,
    /// When the table of loads is exchanged.
    timing: Timing,
    /// Speed of a core, unless it is measured.
    speed: Option<u32>,
}

/// Why the agent stops without a signal.
enum Ended {
    Taken(Taken),
    System(io::Error),
    /// The node has other addresses now.
    Moved(Box<Host>),
}

/// Arguments for a session process; it inherits the environment of the agent.
fn session_arguments(node: NodeId, rules: Option<&Path>, json: bool) -> Vec<OsString> {
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

impl<'a> Agent<'a> {
    fn open(
        config: &'a Config,
        registry: &'a Registry,
        sockets: Sockets,
        given: &Given,
        (callers, json): (Option<Callers>, bool),
    ) -> Result<Agent<'a>, AgentError> {
        let Given {
            host,
            discovery,
            rules,
            timing,
            speed,
        } = given;
        let (timing, speed) = (*timing, *speed);
        let node = config.node;
        let mut own = Member::of_host(host);
        own.incarnation = new_incarnation();
        own.facts.version = env!("CARGO_PKG_VERSION").to_owned();
        let from_hosts_file: Vec<Host> = match config.hosts.is_local_only() {
            true => Vec::new(),
            false => config.hosts.iter().cloned().collect(),
        };
        let start = Instant::now();
        let announcer = discovery.as_ref().map(|discovery| {
            let seed = u64::from_le_bytes(random_bytes()?);
            Announcer::open(discovery, &own, start.elapsed(), seed)
        });
        let announcer = announcer.transpose();
        let others = from_hosts_file.iter().filter(|host| host.node != node);
        let known = others.map(Member::of_host).collect();
        let callers = config.key.clone().map(|key| match callers {
            // The sessions that it has started go on.
            Some(callers) => callers.at(sockets.listeners),
            None => {
                let arguments = session_arguments(node, rules.as_deref(), json);
                Callers::new(node.0, key, sockets.listeners, arguments)
            }
        });
        let callers = callers.transpose();
        let secrets = Secrets::draw().map_err(system("drawing random numbers"))?;
        let sampler = Sampler::start(registry, speed, timing);
        let mut membership = Membership::new(own, known, secrets, config.key.as_ref());
        membership.load_mut().set_timing(timing);
        Ok(Agent {
            config,
            registry,
            directory_lock: sockets.directory,
            members_sockets: sockets.members,
            address: host.directories()[0],
            host: host.clone(),
            given_rules: rules.clone(),
            callers: callers.map_err(system("finding this program"))?,
            membership,
            announcer: announcer.map_err(system("listening for announcements"))?,
            nodes: Nodes::new(registry.nodes_file(), host.clone(), &from_hosts_file),
            paths: Paths::new(host, start.elapsed()),
            sampler: sampler.map_err(system("measuring the load"))?,
            seen: BTreeMap::new(),
            start,
            replied: 0,
        })
    }

    /// Logs and prints that the agent has started.
    fn report_start(&self, json: bool) {
        let (node, address) = (self.config.node, self.address);
        let key = self.config.key.as_ref().map(ClusterKey::fingerprint);
        let pid = std::process::id();
        tracing::info!(event = "agent-up", node = node.0, %address, pid, key, "agent");
        if key.is_some() && rustix::process::geteuid().is_root() {
            tracing::warn!(
                event = "running-as-root",
                node = node.0,
                "this agent runs as root: any holder of the cluster key can run programs as root \
                 here; start it as a user without privileges"
            );
        }
        if !json {
            let work = match key {
                Some(key) => format!("starts work for holders of the cluster key {key}"),
                None => "starts no work: it has no cluster key (DIPOLE_KEY)".to_owned(),
            };
            eprintln!("agent of node {node} at {address}, {work}");
        }
    }

    /// Leaves the cluster, unless another node has this one's number.
    fn end(&mut self, done: Result<(), Ended>) -> Result<(), AgentError> {
        if let Err(Ended::Taken(taken)) = done {
            let by: Vec<String> = taken.by.iter().map(ToString::to_string).collect();
            return Err(AgentError::Taken {
                node: self.config.node.0,
                by: by.join(" "),
                age_s: taken.age.as_secs(),
            });
        }
        self.membership.leave(self.now());
        self.send();
        match done {
            Err(Ended::System(cause)) => Err(system("waiting")(cause)),
            _ => Ok(()),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn run(&mut self, control: &mut Control) -> Result<(), Ended> {
        loop {
            if let Some(host) = control.addresses.moved(&self.host, &self.config.hosts) {
                return Err(Ended::Moved(Box::new(host)));
            }
            let now = self.now();
            if let Some(announcer) = &mut self.announcer {
                announcer.announce(now, self.registry, &self.directory_lock, &self.membership);
            }
            if let Some((measured, figures)) = self.sampler.take() {
                let measured = measured.saturating_duration_since(self.start);
                self.membership.load_mut().set_own(measured, figures);
            }
            self.membership.on_timers(now);
            self.send();
            self.handle_events();
            self.nodes.write(self.membership.members());
            let ready = self.wait(control).map_err(Ended::System)?;
            let (fixed, others) = ready.split_at(4);
            if fixed[1] {
                return Ok(());
            }
            if fixed[3] {
                control.addresses.note_change().map_err(Ended::System)?;
            }
            if fixed[2] {
                let _how_many = (&control.child).read(&mut [0; 64]);
            }
            let interfaces = self.directory_lock.sockets().count();
            let (directories, others) = others.split_at(interfaces);
            let (members, callers) = others.split_at(self.members_sockets.len());
            for (interface, ready) in members.iter().enumerate() {
                if *ready {
                    self.receive_of_members(interface);
                }
            }
            for (interface, ready) in directories.iter().enumerate() {
                if *ready {
                    self.receive(interface).map_err(Ended::Taken)?;
                }
            }
            let receivers = self
                .announcer
                .as_ref()
                .map_or(0, |one| one.receivers().len());
            let (segments, callers) = callers.split_at(receivers);
            for (segment, ready) in segments.iter().enumerate() {
                if *ready {
                    self.receive_broadcasts(segment).map_err(Ended::Taken)?;
                }
            }
            if let Some(polled) = &mut self.callers {
                polled.poll(callers);
            }
            if fixed[0]
                && let Err(cause) = self.serve_status(&control.status)
            {
                tracing::warn!(%cause, "cannot send the status");
            }
        }
    }

    /// Sleeps until something is ready. Returns readiness in this order: control, directory
    /// sockets, member sockets, broadcast receivers, callers.
    fn wait(&self, control: &Control) -> io::Result<Vec<bool>> {
        let mut due = self.membership.next_deadline();
        if let Some(announcer) = &self.announcer {
            due = due.min(announcer.discovery.next_deadline());
        }
        let mut timeout = due.saturating_sub(self.now());
        if let Some(due) = self.nodes.next_deadline() {
            timeout = timeout.min(due.saturating_duration_since(Instant::now()));
        }
        let mut watched = vec![
            PollFd::new(&control.status, PollFlags::IN),
            PollFd::new(&control.stop, PollFlags::IN),
            PollFd::new(&control.child, PollFlags::IN),
            PollFd::new(&control.addresses, PollFlags::IN),
        ];
        if let Some(due) = control.addresses.next_look() {
            timeout = timeout.min(due.saturating_duration_since(Instant::now()));
        }
        let sockets = self.directory_lock.sockets();
        let sockets = sockets.chain(&self.members_sockets);
        watched.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let receivers = self.announcer.iter().flat_map(Announcer::receivers);
        watched.extend(receivers.map(|socket| PollFd::new(socket, PollFlags::IN)));
        if let Some(callers) = &self.callers {
            let (listeners, streams) = callers.sockets();
            watched.extend(listeners.iter().map(|one| PollFd::new(one, PollFlags::IN)));
            watched.extend(streams.map(|one| PollFd::new(one, PollFlags::IN)));
            if let Some(deadline) = callers.next_deadline() {
                timeout = timeout.min(deadline.saturating_duration_since(Instant::now()));
            }
        }
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = watched.iter().map(|one| !one.revents().is_empty());
        Ok(ready.collect())
    }

    fn receive(&mut self, interface: usize) -> Result<(), Taken> {
        let mut buffer = [0; ProbeLength::LONGEST.bytes() + 1];
        for _ in 0..MAX_PACKETS {
            let Some(socket) = self.directory_lock.sockets().nth(interface) else {
                return Ok(());
            };
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // An ICMP error for an earlier packet.
                Err(_) => continue,
            };
            let packet = &buffer[..length];
            let now = self.start.elapsed();
            if is_membership(packet) {
                let to = socket.local_addr().ok().map(|at| at.ip());
                if self.paths.is_new(now, to, packet) {
                    self.membership.on_packet(now, from, packet);
                }
            } else if is_announcement(packet) {
                self.on_announcement(packet, false)?;
            } else if let Some(reply) = self.directory_lock.reply(interface, packet) {
                self.replied += 1;
                let _lost = socket.send_to(&reply, from);
            }
        }
        Ok(())
    }

    /// Receives packets of members.
    fn receive_of_members(&mut self, interface: usize) {
        let mut buffer = [0; ProbeLength::LONGEST.bytes() + 1];
        for _ in 0..MAX_PACKETS {
            let socket = &self.members_sockets[interface];
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                // An ICMP error for an earlier packet.
                Err(_) => continue,
            };
            let packet = &buffer[..length];
            let now = self.start.elapsed();
            let to = socket.local_addr().ok().map(|at| at.ip());
            if is_membership(packet) && self.paths.is_new(now, to, packet) {
                self.membership.on_packet(now, from, packet);
            }
        }
    }

    fn receive_broadcasts(&mut self, segment: usize) -> Result<(), Taken> {
        let mut buffer = [0; ProbeLength::LONGEST.bytes() + 1];
        for _ in 0..MAX_PACKETS {
            let Some(announcer) = &self.announcer else {
                return Ok(());
            };
            let Ok((length, _)) = announcer.receivers()[segment].recv_from(&mut buffer) else {
                return Ok(());
            };
            self.on_announcement(&buffer[..length], true)?;
        }
        Ok(())
    }

    fn on_announcement(&mut self, packet: &[u8], to_all: bool) -> Result<(), Taken> {
        let Some(announcer) = &mut self.announcer else {
            return Ok(());
        };
        let (now, membership) = (self.start.elapsed(), &mut self.membership);
        let (registry, directory_lock) = (self.registry, &self.directory_lock);
        announcer.on_packet(now, packet, to_all, registry, directory_lock, membership)
    }

    fn send(&mut self) {
        let now = self.now();
        let paths = &self.paths;
        let targets = |to: &Member, is_urgent| paths.targets(now, to, is_urgent);
        for (to, packet) in self.membership.take_outgoing(now, targets) {
            paths::send(self.members_sockets.iter(), &packet, &[to]);
        }
    }

    fn handle_events(&mut self) {
        let node = self.config.node.0;
        let events = self.membership.take_events();
        if !events.is_empty() {
            self.update_caller_addresses();
        }
        for event in events {
            let (member, is_up) = match event {
                MembershipEvent::Up(member) => (member, true),
                MembershipEvent::Down(member) => (member, false),
                MembershipEvent::Restarted(member) => {
                    let peer = member.node;
                    tracing::info!(event = "node-restarted", node, peer, "node restarted");
                    self.nodes.change();
                    if let Some(seen) = self.seen.get_mut(&peer) {
                        seen.member = member;
                    }
                    continue;
                }
                MembershipEvent::FalseSuspicion => {
                    tracing::warn!(
                        event = "false-suspicion",
                        node,
                        "other nodes took this node for dead; it has corrected them"
                    );
                    continue;
                }
                MembershipEvent::ClockSetBack(ahead) => {
                    tracing::warn!(
                        event = "clock-set-back",
                        node,
                        ahead_s = ahead.as_secs(),
                        "other nodes knew an agent of this node that started {} s later than this \
                         one by its clock: the clock was set back, or another agent has this \
                         node's number; this agent continues as the later one",
                        ahead.as_secs()
                    );
                    continue;
                }
            };
            let (peer, address) = (member.node, member.shown());
            if is_up {
                tracing::info!(event = "node-up", node, peer, %address, "node is up");
            } else {
                tracing::warn!(event = "node-down", node, peer, %address, "node is down");
            }
            let since = Instant::now();
            self.nodes.change();
            self.seen.insert(
                peer,
                Seen {
                    member,
                    is_up,
                    since,
                },
            );
            if self.seen.len() > MAX_MEMBERS {
                let down = self.seen.iter().filter(|(_, seen)| !seen.is_up);
                let longest = down.min_by_key(|(_, seen)| seen.since);
                let Some(node) = longest.map(|(node, _)| *node) else {
                    continue;
                };
                self.seen.remove(&node);
            }
        }
    }

    /// Passes the addresses of this cluster's nodes to the caller queue.
    fn update_caller_addresses(&mut self) {
        let own = std::iter::once(self.membership.own());
        let all = own
            .chain(self.membership.known())
            .chain(self.membership.members());
        let addresses = all.flat_map(|one| one.facts.addresses.iter().chain(&one.facts.control));
        if let Some(callers) = &mut self.callers {
            callers.set_known_addresses(addresses.copied());
        }
    }

    /// Sends the status, or the reason why it cannot be collected, to the next reader.
    fn serve_status(&self, listener: &UnixListener) -> io::Result<()> {
        let mut reader = match listener.accept() {
            Ok((reader, _)) => reader,
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(cause) => {
                // The reader stays in the queue, so that this would be tried again at once.
                std::thread::sleep(SHORTAGE_PAUSE);
                return Err(cause);
            }
        };
        reader.set_write_timeout(Some(STATUS_TIMEOUT))?;
        match self.status() {
            Ok(status) => serde_json::to_writer(&mut reader, &status)?,
            Err(error) => {
                let error = error.to_string();
                serde_json::to_writer(&mut reader, &NoStatus { error })?;
            }
        }
        writeln!(reader)
    }

    fn status(&self) -> Result<Status, dipole_node::registry::RegistryError> {
        let described = |member: &Member, state: &str, since: Instant| {
            let status = MemberStatus {
                node: member.node,
                address: member.shown(),
                state: state.to_owned(),
                for_s: since.elapsed().as_secs(),
                version: member.facts.version.clone(),
            };
            (member.node, status)
        };
        let known = self.membership.known().iter();
        let known = known.map(|member| described(member, "never seen", self.start));
        let mut members: BTreeMap<u32, MemberStatus> = known.collect();
        members.extend(self.seen.values().map(|seen| {
            let state = if seen.is_up { "up" } else { "down" };
            described(&seen.member, state, seen.since)
        }));
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
        let discovery = self.announcer.as_ref().map(|one| &one.discovery);
        Ok(Status {
            node: self.config.node.0,
            address: self.address.to_string(),
            cluster: discovery.map(|one| one.cluster().to_owned()),
            foreign: discovery.map_or(0, Discovery::foreign),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            running_s: self.start.elapsed().as_secs(),
            rules_file: rules::locate(self.given_rules.as_deref()),
            rules: String::new(),
            refuses: None,
            jobs: Vec::new(),
            answered: self.replied - self.directory_lock.refused(),
            strangers: self.directory_lock.refused() + dropped.strangers,
            repeated: dropped.repeated,
            key: self.config.key.as_ref().map(ClusterKey::fingerprint),
            members: members.into_values().collect(),
            processes: processes.collect(),
            load: self.membership.load().rows(self.now()),
            broker: None,
        })
    }
}
