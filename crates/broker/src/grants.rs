//! The grants of each process (rings in the interfaces' programs, and raw sockets), and the checks
//! of new requests.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use dipole_bpf::InterfaceId;
use dipole_bpf::grant::ownership::{self, Caller, Namespace, OwnershipError};
use dipole_bpf::grant::ring_info;
use dipole_bpf::grant::status::{BrokerStatus, InterfaceStatus, UserStatus};
use dipole_bpf::grant::wire::{Granted, Reason, Refusal, Request};
use dipole_bpf::hook::create_ring;

use super::addresses::{Address, addresses};
use super::live::{LiveGrants, LiveItem};
use super::policy::{InterfacePolicy, Permission, Policy, is_ring_size};
use super::programs::{InheritedPrograms, LIVE, Programs};
use crate::fd_store;

pub(super) struct GrantTable {
    rules: Policy,
    here: Namespace,
    live: LiveGrants,
    programs: Programs,
    /// Grants by the id of their connection.
    grants: BTreeMap<u64, Grant>,
    refused: u64,
}

/// A ring granted to a process.
struct Grant {
    uid: u32,
    pid: i32,
    interface: InterfaceId,
    at: SocketAddr,
    ring_bytes: u32,
    /// The UDP socket that owns the port. No other process can bind the port while this is open.
    proof: OwnedFd,
    /// Cookie of the raw socket, if there is one.
    cookie: Option<u64>,
}

/// Reply to a granted request, with its descriptors.
pub(super) struct GrantReply {
    pub(super) granted: Granted,
    /// The request was a dry run.
    pub(super) dry: bool,
    pub(super) ring: Option<OwnedFd>,
    pub(super) sender: Option<OwnedFd>,
    /// Connection of an earlier grant of the same port, which this one replaces.
    pub(super) replaces: Option<u64>,
}

/// Result of the checks of a request.
struct Claim<'a> {
    address: &'a Address,
    permission: Permission,
    replaces: Option<u64>,
}

impl GrantTable {
    /// Starts with the rings and programs of an earlier broker.
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
            fd_store::store(LIVE, live.descriptor());
        }
        // The owners are unknown now; they get new sockets when they request again.
        for item in live.alive()? {
            if let LiveItem::Sender { cookie } = item {
                programs.forbid(cookie);
            }
        }
        Ok(GrantTable {
            rules,
            here: Namespace::current()?,
            live,
            programs,
            grants: BTreeMap::new(),
            refused: 0,
        })
    }

    pub(super) fn count_refusal(&mut self) {
        self.refused += 1;
    }

    /// Grants a ring to the client of a connection. Takes the proof out of `files`; the caller must
    /// close the rest.
    pub(super) fn grant(
        &mut self,
        connection: u64,
        caller: &Caller,
        request: Request,
        files: &mut Vec<OwnedFd>,
    ) -> Result<GrantReply, Refusal> {
        let (proof, offered) = match &files[..] {
            [proof] => (proof, None),
            [proof, ring] => (proof, Some(ring.as_fd())),
            _ => {
                let text = format!(
                    "received {} descriptors, expected one or two: a bound UDP socket, and a ring to reuse",
                    files.len()
                );
                return Err(refusal(Reason::Malformed, text));
            }
        };
        let at = ownership::check_ownership(proof.as_fd(), self.here).map_err(unproven)?;
        let all = addresses().map_err(kernel("listing the addresses of the interfaces"))?;
        let claim = self.authorize(caller, request, at, &all)?;
        let map = offered.map(|ring| is_ring(ring, request.ring_bytes));
        let map = map.transpose()?;
        self.check_quota(caller, map)?;
        let interface = &claim.address.interface;
        let mut reply = GrantReply {
            granted: Granted {
                interface: interface.clone(),
                ring_bytes: request.ring_bytes,
                sender: claim.permission == Permission::RingAndSender,
            },
            dry: request.dry,
            ring: None,
            sender: None,
            replaces: claim.replaces,
        };
        if request.dry {
            reply.granted.sender &= claim.address.mac.is_some();
            reply.replaces = None;
            return Ok(reply);
        }
        let ring = match offered {
            Some(ring) => ring.try_clone_to_owned(),
            None => create_ring(request.ring_bytes),
        };
        let ring = ring.map_err(kernel("creating a ring"))?;
        self.count_ring(caller, &ring)?;
        self.programs
            .insert_ring(interface, at, ring.as_fd())
            .map_err(|text| refusal(Reason::Kernel, text))?;
        let cookie = match claim.permission {
            Permission::RingAndSender => self.add_sender(claim.address, at, &mut reply),
            _ => None,
        };
        reply.granted.sender = reply.sender.is_some();
        reply.ring = Some(ring);
        let grant = Grant {
            uid: caller.uid,
            pid: caller.pid,
            interface: interface.clone(),
            at,
            ring_bytes: request.ring_bytes,
            proof: files.remove(0),
            cookie,
        };
        let (uid, pid, raw) = (grant.uid, grant.pid, cookie.is_some());
        tracing::info!(event = "ring-granted", uid, pid, %at, raw, interface = %grant.interface.name, "ring granted");
        self.grants.insert(connection, grant);
        // The port belongs to the new grant: ending the old one must not remove the ring.
        if let Some(replaced) = claim.replaces
            && let Some(grant) = self.grants.get_mut(&replaced)
        {
            grant.at.set_port(0);
        }
        Ok(reply)
    }

    /// Adds a raw socket to a reply, if possible; returns its cookie. The ring is useful without
    /// it.
    fn add_sender(
        &mut self,
        address: &Address,
        at: SocketAddr,
        reply: &mut GrantReply,
    ) -> Option<u64> {
        match self.sender(address, at) {
            Ok((socket, cookie)) => {
                reply.sender = Some(socket);
                Some(cookie)
            }
            Err(text) => {
                tracing::warn!(interface = %address.interface.name, "a ring is granted without a raw socket: {text}");
                None
            }
        }
    }

    /// Checks that the caller may have such a ring for this address.
    fn authorize<'a>(
        &self,
        caller: &Caller,
        request: Request,
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
        if !is_ring_size(request.ring_bytes, interface.ring_bytes) {
            let text = format!(
                "a ring of {} bytes is not allowed on {}: the size must be a power of two from {} to \
                 {} (ring-bytes of the broker's interfaces file)",
                request.ring_bytes,
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
                     (users, groups in the broker's interfaces file)",
                    caller.uid, interface.name
                );
                Err(refusal(Reason::User, text))
            }
            permission => Ok(permission),
        }
    }

    /// Checks that the user may have one more ring. A ring offered for reuse does not count twice.
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
            "user {} has {count} rings, of {most} (rings-per-user of the broker's interfaces file); a ring \
             exists until every process that has it has ended",
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
            // A ring that is reused is already known.
            match self.live.alive()?.contains(&item) {
                true => Ok(()),
                false => self.live.watch(ring.as_fd(), item),
            }
        });
        counted.map_err(kernel("counting a ring"))
    }

    /// Opens a raw socket that can send only from this address.
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

    /// Revokes the grant of a connection, if it has one; returns descriptors to close.
    pub(super) fn revoke(&mut self, connection: u64) -> Vec<OwnedFd> {
        let Some(grant) = self.grants.remove(&connection) else {
            return Vec::new();
        };
        let (uid, pid, at) = (grant.uid, grant.pid, grant.at);
        if let Some(cookie) = grant.cookie {
            self.programs.forbid(cookie);
        }
        // Port 0 marks a grant that has been replaced.
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

    /// Finds grants whose socket was closed or whose address was lost; returns their connections.
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
            let proven = ownership::recheck_ownership(grant.proof.as_fd()).ok() == Some(grant.at);
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

    /// The status for `dipole agent status`.
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

/// The id of the map, if it is a ring of this length.
fn is_ring(ring: BorrowedFd<'_>, bytes: u32) -> Result<u32, Refusal> {
    match ring_info(ring) {
        Ok(facts) if facts.bytes == bytes => Ok(facts.map),
        Ok(facts) => {
            let text = format!("the ring offered has {} bytes, not {bytes}", facts.bytes);
            Err(refusal(Reason::Ring, text))
        }
        Err(cause) => {
            let text = format!("the descriptor offered is not a ring: {cause}");
            Err(refusal(Reason::Ring, text))
        }
    }
}

/// A refusal with its explanation.
pub(super) fn refusal(reason: Reason, text: impl Into<String>) -> Refusal {
    Refusal {
        reason,
        text: text.into(),
    }
}

fn unproven(error: OwnershipError) -> Refusal {
    let text = format!("the socket does not prove ownership of a port: {error}");
    refusal(Reason::Proof, text)
}

fn kernel(doing: &'static str) -> impl Fn(io::Error) -> Refusal {
    move |cause| refusal(Reason::Kernel, format!("{doing}: {cause}"))
}
