//! The agent's loop: one thread that sleeps until a packet, a time, or somebody who asks.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant, SystemTime};

use dipole_node::registry::{AgentSeat, MAX_PROBE_BYTES, Registry};
use dipole_node::{ClusterKey, Config};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::AgentError;
use super::membership::{Member, Membership, News};
use super::proofs::is_membership;
use super::status::{MemberStatus, ProcessStatus, Status, socket};

/// Packets taken before anything else is looked at.
const MOST_PACKETS: usize = 64;
/// How long somebody who asks for the status may take to read it.
const READER_PATIENCE: Duration = Duration::from_millis(200);

struct Agent<'a> {
    config: &'a Config,
    registry: &'a Registry,
    seat: AgentSeat,
    address: SocketAddr,
    membership: Membership,
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

/// Runs until told to end.
pub(super) fn serve(config: &Config, registry: &Registry) -> Result<(), AgentError> {
    let node = config.node;
    let host = config
        .hosts
        .get(node)
        .filter(|_| !config.hosts.is_local_only());
    let host = host.ok_or(AgentError::NotInHosts { node: node.0 })?;
    let address = host.directory();
    let system = |doing| move |cause| AgentError::System { doing, cause };
    let (ended, end) = UnixStream::pair().map_err(system("making a pipe for signals"))?;
    for signal in [SIGTERM, SIGINT] {
        let end = end
            .try_clone()
            .map_err(system("making a pipe for signals"))?;
        pipe::register(signal, end).map_err(system("catching signals"))?;
    }
    let seat = AgentSeat::take(registry, &host.directories())?;
    // The seat is ours, so what lies there is a dead agent's.
    let path = socket(registry);
    let _may_not_exist = std::fs::remove_file(&path);
    let asked = UnixListener::bind(&path).map_err(system("making the socket for the status"))?;
    asked
        .set_nonblocking(true)
        .map_err(system("setting up the socket for the status"))?;
    let life = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(1, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        });
    let own = Member {
        node: node.0,
        address,
        life,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let others = config.hosts.iter().filter(|host| host.node != node);
    let known = others.map(|host| (host.node.0, host.directory())).collect();
    let mut agent = Agent {
        config,
        registry,
        seat,
        address,
        membership: Membership::new(
            own,
            known,
            life ^ u64::from(std::process::id()) << 40,
            config.key.as_ref(),
        ),
        seen: BTreeMap::new(),
        begun: Instant::now(),
        replied: 0,
    };
    tracing::info!(node = node.0, %address, pid = std::process::id(), "agent");
    eprintln!("agent of node {node} at {address}");
    let done = agent.run(&asked, &ended);
    let now = agent.now();
    agent.membership.leave(now);
    agent.send();
    let _gone = std::fs::remove_file(&path);
    done.map_err(system("waiting"))
}

impl Agent<'_> {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn run(&mut self, asked: &UnixListener, ended: &UnixStream) -> io::Result<()> {
        loop {
            let now = self.now();
            self.membership.on_timers(now);
            self.send();
            self.tell_news();
            let nap = self.membership.next_deadline().saturating_sub(self.now());
            let nap = Timespec {
                tv_sec: nap.as_secs().cast_signed(),
                tv_nsec: nap.subsec_nanos().into(),
            };
            let mut watched = vec![
                PollFd::new(asked, PollFlags::IN),
                PollFd::new(ended, PollFlags::IN),
            ];
            let sockets = self.seat.sockets();
            watched.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
            match poll(&mut watched, Some(&nap)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready = watched.iter().map(|one| !one.revents().is_empty());
            let ready: Vec<bool> = ready.collect();
            if ready[1] {
                return Ok(());
            }
            for (card, ready) in ready[2..].iter().enumerate() {
                if *ready {
                    self.receive(card);
                }
            }
            if ready[0]
                && let Ok((reader, _)) = asked.accept()
                && let Err(cause) = self.tell(reader)
            {
                tracing::debug!(%cause, "somebody asked for the status and did not read it");
            }
        }
    }

    fn receive(&mut self, card: usize) {
        let mut buffer = [0; MAX_PROBE_BYTES + 1];
        for _ in 0..MOST_PACKETS {
            let Some(socket) = self.seat.sockets().nth(card) else {
                return;
            };
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                // A report about a packet that reached nobody.
                Err(_) => continue,
            };
            let packet = &buffer[..length];
            if is_membership(packet) {
                let now = self.now();
                self.membership.on_packet(now, packet);
            } else if let Some(reply) = self.seat.reply(card, packet) {
                self.replied += 1;
                let _lost = socket.send_to(&reply, from);
            }
        }
    }

    fn send(&mut self) {
        let Some(socket) = self.seat.sockets().next() else {
            return;
        };
        for (to, packet) in self.membership.take_outgoing() {
            if let Err(cause) = socket.send_to(&packet, to) {
                tracing::debug!(%to, %cause, "a packet to another agent");
            }
        }
    }

    fn tell_news(&mut self) {
        for news in self.membership.take_news() {
            let (member, there) = match news {
                News::Came(member) => (member, true),
                News::Went(member) => (member, false),
                News::Returned(member) => {
                    tracing::info!(node = member.node, "another life of the node");
                    continue;
                }
                News::Mistaken => {
                    tracing::warn!("others took this node for gone; told them otherwise");
                    continue;
                }
            };
            if there {
                tracing::info!(node = member.node, address = %member.address, "node is there");
            } else {
                tracing::warn!(node = member.node, address = %member.address, "node is gone");
            }
            let since = Instant::now();
            let node = member.node;
            self.seen.insert(
                node,
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
        for host in self
            .config
            .hosts
            .iter()
            .filter(|host| host.node != self.config.node)
        {
            let never = MemberStatus {
                node: host.node.0,
                address: host.directory().to_string(),
                state: "never seen".to_owned(),
                for_s: self.begun.elapsed().as_secs(),
                version: String::new(),
            };
            members.insert(host.node.0, never);
        }
        for (node, seen) in &self.seen {
            let known = MemberStatus {
                node: *node,
                address: seen.member.address.to_string(),
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
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            running_s: self.begun.elapsed().as_secs(),
            answered: self.replied - self.seat.refused(),
            strangers: self.seat.refused() + dropped.strangers,
            repeated: dropped.repeated,
            key: self.config.key.as_ref().map(ClusterKey::fingerprint),
            members: members.into_values().collect(),
            processes: processes.collect(),
        })
    }
}
