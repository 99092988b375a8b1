//! BPF programs of interfaces with grants: attached with the first grant, detached with the last,
//! and stored by the service manager while the broker restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dipole_bpf::InterfaceId;
use dipole_bpf::hook::{AllowedSource, Guard, Hook};
use dipole_bpf::raw::guarded_socket;
use nix::net::if_::if_nametoindex;

use super::policy::Policy;
use crate::fd_store;

/// How long a ring of an earlier broker stays until its process requests it again.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// Names of descriptors stored by the service manager; all but `LIVE` are followed by numbers.
const PREFIX: &str = "broker-";
pub(super) const LIVE: &str = "broker-live";
const HOOK: &str = "broker-hook";
const GUARD: &str = "broker-guard";

/// Descriptors of an earlier broker.
#[derive(Debug, Default)]
pub(super) struct InheritedPrograms {
    pub(super) live: Option<OwnedFd>,
    /// Programs with their names.
    pub(super) programs: Vec<(String, OwnedFd)>,
}

impl InheritedPrograms {
    /// Selects the broker's descriptors from all that were inherited.
    pub(super) fn of(files: Vec<(String, OwnedFd)>) -> InheritedPrograms {
        let mut kept = InheritedPrograms::default();
        for (name, file) in files {
            match &*name {
                LIVE => kept.live = Some(file),
                _ if name.starts_with(PREFIX) => kept.programs.push((name, file)),
                _ => {}
            }
        }
        kept
    }
}

pub(super) struct Programs {
    hooks: Vec<Open>,
    guards: Vec<Guard>,
    /// Interface on which each raw socket may send, by cookie.
    senders: BTreeMap<u64, InterfaceId>,
    /// Sockets that may no longer send and are not closed yet.
    forbidden: BTreeSet<u64>,
}

struct Open {
    hook: Hook,
    /// Rings of an earlier broker that have not been requested again.
    unclaimed: BTreeSet<(IpAddr, u16)>,
    until: Instant,
}

/// A descriptor of a program, as described by its name at the service manager.
struct Part {
    kind: String,
    part: usize,
    interface: InterfaceId,
}

impl Part {
    fn name(kind: &str, part: usize, interface: &InterfaceId) -> String {
        format!("{kind}.{part}.{}.{}", interface.index, interface.name)
    }

    fn of(name: &str) -> Option<Part> {
        let mut words = name.splitn(4, '.');
        Some(Part {
            kind: words.next()?.to_owned(),
            part: words.next()?.parse().ok()?,
            interface: InterfaceId {
                index: words.next()?.parse().ok()?,
                name: words.next()?.to_owned(),
            },
        })
    }
}

fn keep_all(kind: &str, interface: &InterfaceId, files: &[BorrowedFd<'_>]) {
    for (part, file) in files.iter().enumerate() {
        fd_store::store(&Part::name(kind, part, interface), *file);
    }
}

fn forget_all(kind: &str, interface: &InterfaceId, count: usize) {
    for part in 0..count {
        fd_store::forget(&Part::name(kind, part, interface));
    }
}

const HOOK_PARTS: usize = 4;
const GUARD_PARTS: usize = 3;

impl Programs {
    /// Takes over programs of an earlier broker whose interfaces still exist and are in the policy.
    pub(super) fn adopt(kept: Vec<(String, OwnedFd)>, rules: &Policy, now: Instant) -> Programs {
        let mut programs = Programs {
            hooks: Vec::new(),
            guards: Vec::new(),
            senders: BTreeMap::new(),
            forbidden: BTreeSet::new(),
        };
        let mut found: BTreeMap<(String, u32, String), BTreeMap<usize, OwnedFd>> = BTreeMap::new();
        for (name, file) in kept {
            let Some(part) = Part::of(&name) else {
                fd_store::forget(&name);
                continue;
            };
            let InterfaceId { index, name } = part.interface;
            let parts = found.entry((part.kind, index, name)).or_default();
            parts.insert(part.part, file);
        }
        for ((kind, index, name), parts) in found {
            let interface = InterfaceId { index, name };
            let count = parts.len().max(HOOK_PARTS);
            let is_allowed = rules.get(&interface.name).is_some()
                && if_nametoindex(interface.name.as_str()).ok() == Some(index);
            let files: Vec<OwnedFd> = parts.into_values().collect();
            let taken = is_allowed && programs.adopt_one(&kind, &interface, files, now);
            if !taken {
                // The program is detached when the service manager closes its copy.
                forget_all(&kind, &interface, count);
            }
        }
        programs
    }

    /// True if the program is now in use.
    fn adopt_one(
        &mut self,
        kind: &str,
        interface: &InterfaceId,
        files: Vec<OwnedFd>,
        now: Instant,
    ) -> bool {
        let taken = match kind {
            HOOK => {
                let Ok(files) = files.try_into() else {
                    return false;
                };
                let hook = Hook::from_descriptors(interface, files);
                hook.and_then(|hook| {
                    let unclaimed = hook.entries()?.into_iter().collect();
                    let until = now + GRACE;
                    self.hooks.push(Open {
                        hook,
                        unclaimed,
                        until,
                    });
                    Ok(())
                })
            }
            GUARD => {
                let Ok(files) = files.try_into() else {
                    return false;
                };
                Guard::from_descriptors(interface, files).map(|guard| self.guards.push(guard))
            }
            _ => return false,
        };
        if let Err(cause) = &taken {
            tracing::warn!(interface = %interface.name, %cause, "cannot use a program of an earlier broker");
        }
        taken.is_ok()
    }

    /// Directs packets for this address and port into this ring.
    pub(super) fn insert_ring(
        &mut self,
        interface: &InterfaceId,
        at: SocketAddr,
        ring: BorrowedFd<'_>,
    ) -> Result<(), String> {
        let known = self
            .hooks
            .iter()
            .position(|open| open.hook.interface() == interface);
        let index = match known {
            Some(index) => index,
            None => {
                let hook = Hook::attach(interface).map_err(|error| error.to_string())?;
                keep_all(HOOK, interface, &hook.descriptors());
                tracing::info!(event = "attached", interface = %interface.name, "program attached");
                self.hooks.push(Open {
                    hook,
                    unclaimed: BTreeSet::new(),
                    until: Instant::now(),
                });
                self.hooks.len() - 1
            }
        };
        let open = &mut self.hooks[index];
        let added = open.hook.add(at.ip(), at.port(), ring);
        open.unclaimed.remove(&(at.ip(), at.port()));
        added.map_err(|error| {
            // The program is not needed without a ring.
            if known.is_none() {
                self.detach(interface);
            }
            error.to_string()
        })
    }

    /// Directs packets for this address and port to the socket again.
    pub(super) fn remove_ring(&mut self, interface: &InterfaceId, at: SocketAddr) {
        let open = self
            .hooks
            .iter()
            .find(|open| open.hook.interface() == interface);
        if let Some(open) = open
            && let Err(cause) = open.hook.remove(at.ip(), at.port())
        {
            tracing::warn!(interface = %interface.name, %at, %cause, "cannot remove a ring from the program");
        }
    }

    /// Detaches the program of an interface without grants.
    pub(super) fn detach(&mut self, interface: &InterfaceId) {
        let is_unused =
            |open: &Open| open.hook.interface() == interface && open.unclaimed.is_empty();
        let Some(index) = self.hooks.iter().position(is_unused) else {
            return;
        };
        forget_all(HOOK, interface, HOOK_PARTS);
        self.hooks.swap_remove(index);
        tracing::info!(event = "detached", interface = %interface.name, "program detached");
    }

    /// Removes rings of an earlier broker that were not requested again in time; returns interfaces
    /// that may be idle now.
    pub(super) fn expire_unclaimed(&mut self, now: Instant) -> Vec<InterfaceId> {
        let mut idle_interfaces = Vec::new();
        for open in &mut self.hooks {
            let is_due = open.until <= now && !open.unclaimed.is_empty();
            if !is_due {
                continue;
            }
            for (ip, port) in std::mem::take(&mut open.unclaimed) {
                let interface = &open.hook.interface().name;
                tracing::info!(event = "ring-expired", %interface, %ip, port, "a ring from before the restart was not claimed");
                if let Err(cause) = open.hook.remove(ip, port) {
                    tracing::warn!(%interface, %ip, port, %cause, "cannot remove a ring from the program");
                }
            }
            idle_interfaces.push(open.hook.interface().clone());
        }
        // Interfaces that had no unclaimed rings at all.
        let idle = self.hooks.iter().filter(|open| open.unclaimed.is_empty());
        idle_interfaces.extend(idle.map(|open| open.hook.interface().clone()));
        idle_interfaces
    }

    /// Opens a raw socket that can send only from this address and port; also returns its cookie.
    pub(super) fn open_raw(
        &mut self,
        interface: &InterfaceId,
        mac: [u8; 6],
        at: SocketAddr,
    ) -> Result<(OwnedFd, u64), String> {
        let text = |error: dipole_bpf::hook::HookError| error.to_string();
        let known = self
            .guards
            .iter()
            .position(|guard| guard.interface() == interface);
        let index = match known {
            Some(index) => index,
            None => {
                let guard = Guard::attach(interface).map_err(text)?;
                keep_all(GUARD, interface, &guard.descriptors());
                for cookie in self.senders.keys().chain(&self.forbidden) {
                    guard.forbid(*cookie).map_err(text)?;
                }
                self.guards.push(guard);
                self.guards.len() - 1
            }
        };
        let (socket, cookie) = guarded_socket(interface).map_err(|cause| cause.to_string())?;
        for (other, guard) in self.guards.iter().enumerate() {
            // The holder can name another interface when sending, so all guards must know the
            // socket.
            let done = match other == index {
                true => guard.allow(
                    cookie,
                    &AllowedSource {
                        mac,
                        address: at.ip(),
                        ports: [at.port(); 2],
                    },
                ),
                false => guard.forbid(cookie),
            };
            done.map_err(text)?;
        }
        self.senders.insert(cookie, interface.clone());
        Ok((socket, cookie))
    }

    /// Stops a socket from sending. Its grant has ended, though it may still be open.
    pub(super) fn forbid(&mut self, cookie: u64) {
        self.senders.remove(&cookie);
        self.forbidden.insert(cookie);
        for guard in &self.guards {
            if let Err(cause) = guard.forbid(cookie) {
                tracing::error!(interface = %guard.interface().name, %cause, "cannot stop a raw socket whose grant has ended");
            }
        }
    }

    /// Forgets closed sockets, and detaches the guards with the last one.
    pub(super) fn forget_senders(&mut self, is_dead: &dyn Fn(u64) -> bool) {
        let dead: Vec<u64> = self
            .forbidden
            .iter()
            .copied()
            .filter(|one| is_dead(*one))
            .collect();
        for cookie in dead {
            self.forbidden.remove(&cookie);
            for guard in &self.guards {
                if let Err(cause) = guard.forget(cookie) {
                    tracing::warn!(interface = %guard.interface().name, %cause, "cannot forget a closed raw socket");
                }
            }
        }
        if self.forbidden.is_empty() && self.senders.is_empty() {
            for guard in self.guards.drain(..) {
                forget_all(GUARD, guard.interface(), GUARD_PARTS);
            }
        }
    }

    /// For an interface: where the program is attached, its counters, and the number of refused
    /// frames.
    pub(super) fn counters(&self, interface: &str) -> (Option<String>, BTreeMap<String, u64>, u64) {
        let open = self
            .hooks
            .iter()
            .find(|open| open.hook.interface().name == interface);
        let counters = open.and_then(|open| open.hook.counters().ok());
        let named = counters.map(|counters| {
            [
                ("deposited", counters.deposited),
                ("full", counters.full),
                ("fragments", counters.fragments),
                ("options", counters.options),
                ("too-long", counters.too_long),
                ("lengths", counters.lengths),
                ("other-hosts", counters.other_hosts),
                ("unreadable", counters.unreadable),
            ]
            .map(|(name, count)| (name.to_owned(), count))
            .into()
        });
        let guard = self
            .guards
            .iter()
            .find(|guard| guard.interface().name == interface);
        let refused = guard.and_then(|guard| guard.refused().ok());
        (
            open.map(|_| "TCX".to_owned()),
            named.unwrap_or_default(),
            refused.unwrap_or(0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_the_service_manager_say_what_a_descriptor_is() {
        let interface = InterfaceId {
            index: 12,
            name: "eth0.100".to_owned(),
        };
        let name = Part::name(HOOK, 3, &interface);
        let part = Part::of(&name).unwrap();
        assert_eq!(
            (&*part.kind, part.part, part.interface),
            (HOOK, 3, interface)
        );
        for strange in [
            "broker-hook",
            "broker-hook.x.1.eth0",
            "broker-hook.1.-1.eth0",
            "",
        ] {
            assert!(Part::of(strange).is_none(), "{strange}");
        }
    }
}
