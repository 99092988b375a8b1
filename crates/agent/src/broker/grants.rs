//! Which process has been granted what: the rings in each interface's program and the sockets for
//! raw frames; and whether a caller may have more.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use dipole_bpf::InterfaceId;
use dipole_bpf::grant::ownership::{self, Caller, Namespace, NotOwned};
use dipole_bpf::grant::ring_info;
use dipole_bpf::grant::wire::{Granted, Reason, Refusal, Request};
use dipole_bpf::hook::create_ring;

use super::addresses::{Address, addresses};
use super::live::{LiveGrants, LiveItem};
use super::policy::{InterfacePolicy, Permission, Policy, is_ring_size};
use super::programs::{InheritedPrograms, LIVE, Programs};
use super::server::refusal;
use super::{BrokerStatus, InterfaceStatus, UserStatus};
use crate::fd_store;

pub(super) struct GrantTable {
    rules: Policy,
    here: Namespace,
    live: LiveGrants,
    programs: Programs,
    /// By connection.
    grants: BTreeMap<u64, Grant>,
    refused: u64,
}

/// One ring that a process has.
struct Grant {
    uid: u32,
    pid: i32,
    interface: InterfaceId,
    at: SocketAddr,
    ring_bytes: u32,
    /// The socket that proves who owns the port: nobody else gets it while this is open.
    proof: OwnedFd,
    /// The cookie of its raw socket.
    cookie: Option<u64>,
}

/// The answer to a request that is granted, with its descriptors.
pub(super) struct GrantReply {
    pub(super) granted: Granted,
    /// The client only asked whether it could have a ring.
    pub(super) dry: bool,
    pub(super) ring: Option<OwnedFd>,
    pub(super) sender: Option<OwnedFd>,
    /// The connection of an earlier grant of the same port, which this one replaces.
    pub(super) replaces: Option<u64>,
}

/// What a request is entitled to.
struct Claim<'a> {
    address: &'a Address,
    permission: Permission,
    replaces: Option<u64>,
}

impl GrantTable {
    /// Starts with what an earlier agent left.
    pub(super) fn open(
        rules: Policy,
        kept: InheritedPrograms,
        now: Instant,
    ) -> io::Result<GrantTable> {
        let InheritedPrograms { live, programs } = kept;
        let begins = live.is_none();
        let live = LiveGrants::open(live)?;
        let mut programs = Programs::adopt(programs, &rules, now);
        if begins {
            fd_store::store_one(LIVE, live.descriptor());
        }
        // Their owners are not known any more; they get new ones when they ask again.
        for item in live.alive()? {
            if let LiveItem::Sender { cookie } = item {
                programs.forbid(cookie);
            }
        }
        Ok(GrantTable {
            rules,
            here: Namespace::here()?,
            live,
            programs,
            grants: BTreeMap::new(),
            refused: 0,
        })
    }

    pub(super) fn count_refusal(&mut self) {
        self.refused += 1;
    }

    /// Grants a ring to the client of a connection. The proof is taken out of `files`; what
    /// remains there is to be closed.
    pub(super) fn grant(
        &mut self,
        connection: u64,
        caller: &Caller,
        question: Request,
        files: &mut Vec<OwnedFd>,
    ) -> Result<GrantReply, Refusal> {
        let (proof, offered) = match &files[..] {
            [proof] => (proof, None),
            [proof, ring] => (proof, Some(ring.as_fd())),
            _ => {
                let text = format!(
                    "{} descriptors came, not one or two: a bound UDP socket, and a ring to be used again",
                    files.len()
                );
                return Err(refusal(Reason::Nonsense, text));
            }
        };
        let at = ownership::owned(proof.as_fd(), self.here).map_err(unproven)?;
        let all = addresses().map_err(kernel("listing the addresses of the interfaces"))?;
        let claim = self.authorize(caller, question, at, &all)?;
        let map = offered.map(|ring| is_ring(ring, question.ring_bytes));
        let map = map.transpose()?;
        self.check_quota(caller, map)?;
        let interface = &claim.address.interface;
        let mut reply = GrantReply {
            granted: Granted {
                interface: interface.clone(),
                ring_bytes: question.ring_bytes,
                sender: claim.permission == Permission::RingAndSender,
            },
            dry: question.dry,
            ring: None,
            sender: None,
            replaces: claim.replaces,
        };
        if question.dry {
            reply.granted.sender &= claim.address.mac.is_some();
            reply.replaces = None;
            return Ok(reply);
        }
        let ring = match offered {
            Some(ring) => ring.try_clone_to_owned(),
            None => create_ring(question.ring_bytes),
        };
        let ring = ring.map_err(kernel("making a ring"))?;
        self.count_ring(caller, &ring)?;
        self.programs
            .insert_ring(interface, at, ring.as_fd())
            .map_err(|text| refusal(Reason::Kernel, text))?;
        let mut cookie = None;
        if claim.permission == Permission::RingAndSender {
            match self.sender(claim.address, at) {
                Ok((socket, number)) => {
                    reply.sender = Some(socket);
                    cookie = Some(number);
                }
                // The ring is good without it.
                Err(text) => {
                    tracing::warn!(interface = %interface.name, "a ring is granted without a raw socket: {text}")
                }
            }
        }
        reply.granted.sender = reply.sender.is_some();
        reply.ring = Some(ring);
        let grant = Grant {
            uid: caller.uid,
            pid: caller.pid,
            interface: interface.clone(),
            at,
            ring_bytes: question.ring_bytes,
            proof: files.remove(0),
            cookie,
        };
        let (uid, pid, raw) = (grant.uid, grant.pid, cookie.is_some());
        tracing::info!(event = "ring-granted", uid, pid, %at, raw, interface = %grant.interface.name, "ring granted");
        self.grants.insert(connection, grant);
        // The port belongs to the new grant now: ending the old one must leave its ring in place.
        if let Some(replaced) = claim.replaces
            && let Some(grant) = self.grants.get_mut(&replaced)
        {
            grant.at.set_port(0);
        }
        Ok(reply)
    }

    /// Whether this caller may have such a ring for this address.
    fn authorize<'a>(
        &self,
        caller: &Caller,
        question: Request,
        at: SocketAddr,
        all: &'a [Address],
    ) -> Result<Claim<'a>, Refusal> {
        let mut here = all.iter().filter(|one| one.ip == at.ip());
        let found = here.find_map(|one| Some((one, self.rules.get(&one.interface.name)?)));
        let (address, interface) = found.ok_or_else(|| {
            let names: Vec<&str> = self
                .rules
                .interfaces
                .iter()
                .map(|interface| &*interface.name)
                .collect();
            let text = format!(
                "{} is on no interface whose rings are granted; those are: {}",
                at.ip(),
                names.join(", ")
            );
            refusal(Reason::Interface, text)
        })?;
        let permission = self.permission(interface, caller)?;
        if !is_ring_size(question.ring_bytes, interface.ring_bytes) {
            let text = format!(
                "a ring of {} bytes is not allowed on {}: the size must be a power of two from {} to \
                 {} (ring-bytes of the agent's interfaces file)",
                question.ring_bytes,
                interface.name,
                rustix::param::page_size(),
                interface.ring_bytes
            );
            return Err(refusal(Reason::Size, text));
        }
        let mut same = self.grants.iter();
        let same = same.find(|(_, grant)| grant.at == at && grant.interface == address.interface);
        if let Some((_, grant)) = same
            && grant.uid != caller.uid
        {
            let text = format!("{at} belongs to process {} of another user", grant.pid);
            return Err(refusal(Reason::Taken, text));
        }
        Ok(Claim {
            address,
            permission,
            replaces: same.map(|(connection, _)| *connection),
        })
    }

    fn permission(
        &self,
        interface: &InterfacePolicy,
        caller: &Caller,
    ) -> Result<Permission, Refusal> {
        match interface.permits(caller) {
            Permission::Nothing => {
                let text = format!(
                    "user {} may not use interface {}; the administrator of this machine can allow it \
                     (users, groups in the agent's interfaces file)",
                    caller.uid, interface.name
                );
                Err(refusal(Reason::User, text))
            }
            permission => Ok(permission),
        }
    }

    /// Whether a user may have one more ring; a ring offered for reuse does not count twice.
    fn check_quota(&self, caller: &Caller, offered: Option<u32>) -> Result<(), Refusal> {
        let alive = self.live.alive();
        let alive = alive.map_err(kernel("counting the rings of a user"))?;
        let theirs = alive.iter().filter(|item| match item {
            LiveItem::Ring { uid, map } => *uid == caller.uid && Some(*map) != offered,
            LiveItem::Sender { .. } => false,
        });
        let (count, most) = (theirs.count(), self.rules.rings_per_user);
        if count < usize::try_from(most).unwrap_or(usize::MAX) {
            return Ok(());
        }
        let text = format!(
            "user {} has {count} rings, of {most} (rings-per-user of the agent's interfaces file); a ring \
             is there until every process that has it has ended",
            caller.uid
        );
        Err(refusal(Reason::Limit, text))
    }

    /// Counts a ring towards its user's quota.
    fn count_ring(&self, caller: &Caller, ring: &OwnedFd) -> Result<(), Refusal> {
        let counted = ring_info(ring.as_fd()).and_then(|facts| {
            let item = LiveItem::Ring {
                uid: caller.uid,
                map: facts.map,
            };
            // A ring that was granted before is known already.
            match self.live.alive()?.contains(&item) {
                true => Ok(()),
                false => self.live.watch(ring.as_fd(), item),
            }
        });
        counted.map_err(kernel("counting a ring"))
    }

    /// A socket that can only send frames from this address.
    fn sender(&mut self, address: &Address, at: SocketAddr) -> Result<(OwnedFd, u64), String> {
        let mac = address.mac.ok_or("the interface has no MAC address")?;
        let (socket, cookie) = self.programs.open_raw(&address.interface, mac, at)?;
        let watched = self.live.watch(socket.as_fd(), LiveItem::Sender { cookie });
        if let Err(cause) = watched {
            self.programs.forbid(cookie);
            return Err(cause.to_string());
        }
        Ok((socket, cookie))
    }

    /// Revokes the grant of a connection, if it has one; returns the descriptors to be closed.
    pub(super) fn revoke(&mut self, connection: u64) -> Vec<OwnedFd> {
        let Some(grant) = self.grants.remove(&connection) else {
            return Vec::new();
        };
        let (uid, pid, at) = (grant.uid, grant.pid, grant.at);
        if let Some(cookie) = grant.cookie {
            self.programs.forbid(cookie);
        }
        // Port 0: another grant has replaced this one.
        if grant.at.port() != 0 {
            self.programs.remove_ring(&grant.interface, grant.at);
            tracing::info!(event = "ring-released", uid, pid, %at, interface = %grant.interface.name, "ring released");
        }
        self.detach_if_idle(&grant.interface);
        vec![grant.proof]
    }

    /// Detaches the program of an interface without grants.
    fn detach_if_idle(&mut self, interface: &InterfaceId) {
        if !self
            .grants
            .values()
            .any(|grant| grant.interface == *interface)
        {
            self.programs.detach(interface);
        }
    }

    /// Drops what has changed unannounced (closed sockets, lost addresses); returns the connections
    /// whose grants end.
    pub(super) fn revalidate(&mut self, now: Instant) -> Vec<u64> {
        for interface in self.programs.expire_unclaimed(now) {
            self.detach_if_idle(&interface);
        }
        match self.live.alive() {
            Ok(alive) => self
                .programs
                .forget_senders(&|cookie| !alive.contains(&LiveItem::Sender { cookie })),
            Err(cause) => tracing::warn!(%cause, "cannot tell which sockets still exist"),
        }
        if self.grants.is_empty() {
            return Vec::new();
        }
        let all = match addresses() {
            Ok(all) => all,
            Err(cause) => {
                tracing::warn!(%cause, "cannot list the addresses of the interfaces");
                return Vec::new();
            }
        };
        let ends = |grant: &Grant| {
            let there = |one: &Address| one.ip == grant.at.ip() && one.interface == grant.interface;
            let proven = ownership::still_owned(grant.proof.as_fd()).ok() == Some(grant.at);
            grant.at.port() != 0 && !(proven && all.iter().any(there))
        };
        let ended = self.grants.iter().filter(|(_, grant)| ends(grant));
        let ended: Vec<u64> = ended
            .map(|(connection, grant)| {
                let (uid, pid, at) = (grant.uid, grant.pid, grant.at);
                tracing::warn!(event = "ring-revoked", uid, pid, %at, "grant revoked: its holder no longer owns the port");
                *connection
            })
            .collect();
        ended
    }

    /// For `dipole agent status`.
    pub(super) fn status(&self, socket: String) -> BrokerStatus {
        let alive = self.live.alive().unwrap_or_default();
        let interfaces = self.rules.interfaces.iter().map(|interface| {
            let grants = || {
                self.grants
                    .values()
                    .filter(|grant| grant.interface.name == interface.name)
            };
            let mut users: BTreeMap<u32, UserStatus> = BTreeMap::new();
            for grant in grants() {
                let user = users.entry(grant.uid).or_insert_with(|| UserStatus {
                    uid: grant.uid,
                    ..UserStatus::default()
                });
                user.rings += 1;
                user.bytes += u64::from(grant.ring_bytes);
                user.senders += u32::from(grant.cookie.is_some());
            }
            let (place, counters, refused_frames) = self.programs.counters(&interface.name);
            InterfaceStatus {
                name: interface.name.clone(),
                attached: place,
                users: users.into_values().collect(),
                counters,
                refused_frames,
            }
        });
        let is_ring = |item: &&LiveItem| matches!(item, LiveItem::Ring { .. });
        let rings = alive.iter().filter(is_ring).count();
        BrokerStatus {
            socket,
            interfaces: interfaces.collect(),
            rings: u32::try_from(rings).unwrap_or(u32::MAX),
            refused: self.refused,
        }
    }
}

/// The number of the map, if it is a ring of this length.
fn is_ring(ring: BorrowedFd<'_>, bytes: u32) -> Result<u32, Refusal> {
    match ring_info(ring) {
        Ok(facts) if facts.bytes == bytes => Ok(facts.map),
        Ok(facts) => {
            let text = format!("the ring offered has {} bytes, not {bytes}", facts.bytes);
            Err(refusal(Reason::Ring, text))
        }
        Err(cause) => {
            let text = format!("the descriptor offered is no ring: {cause}");
            Err(refusal(Reason::Ring, text))
        }
    }
}

fn unproven(error: NotOwned) -> Refusal {
    let text = format!("the socket does not prove ownership of a port: {error}");
    refusal(Reason::Proof, text)
}

fn kernel(doing: &'static str) -> impl Fn(io::Error) -> Refusal {
    move |cause| refusal(Reason::Kernel, format!("{doing}: {cause}"))
}
