//! The kernel's part on the cards on which something is lent: attached with the first loan,
//! detached with the last, and kept by the service manager while the agent is started again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dipole_bpf::CardId;
use dipole_bpf::hook::{Allowed, Guard, Hook, Place};
use dipole_bpf::raw::guarded_socket;
use nix::net::if_::if_nametoindex;

use super::cards::Cards;
use crate::store;

/// How long a ring of an earlier life is left in its place for its process to ask again.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// What the service manager has: names, in full or up to the number of the part.
const PREFIX: &str = "lend-";
pub(super) const HELD: &str = "lend-held";
const HOOK: &str = "lend-hook";
const GUARD: &str = "lend-guard";

/// What an earlier agent left.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(super) held: Option<OwnedFd>,
    /// By name.
    pub(super) programs: Vec<(String, OwnedFd)>,
}

impl Kept {
    /// What is a lender's among what was kept by name.
    pub(crate) fn of(files: Vec<(String, OwnedFd)>) -> Kept {
        let mut kept = Kept::default();
        for (name, file) in files {
            match &*name {
                HELD => kept.held = Some(file),
                _ if name.starts_with(PREFIX) => kept.programs.push((name, file)),
                _ => {}
            }
        }
        kept
    }

    /// Lets go of it: what is attached to cards is detached.
    pub(super) fn forget(self) {
        for (name, _) in &self.programs {
            store::forget(name);
        }
        if self.held.is_some() {
            store::forget(HELD);
        }
    }
}

/// See the module.
pub(super) struct Programs {
    hooks: Vec<Open>,
    guards: Vec<Guard>,
    /// The card on which each socket for raw frames may send.
    senders: BTreeMap<u64, CardId>,
    /// Sockets that may send nothing any more, and are not closed yet.
    silenced: BTreeSet<u64>,
}

struct Open {
    hook: Hook,
    /// Rings of an earlier life for which nobody has asked yet.
    unclaimed: BTreeSet<(IpAddr, u16)>,
    until: Instant,
}

/// A name for a part, from which [`Part::of`] tells what it is.
struct Part {
    kind: String,
    part: usize,
    card: CardId,
}

impl Part {
    fn name(kind: &str, part: usize, card: &CardId) -> String {
        format!("{kind}.{part}.{}.{}", card.index, card.name)
    }

    fn of(name: &str) -> Option<Part> {
        let mut words = name.splitn(4, '.');
        Some(Part {
            kind: words.next()?.to_owned(),
            part: words.next()?.parse().ok()?,
            card: CardId {
                index: words.next()?.parse().ok()?,
                name: words.next()?.to_owned(),
            },
        })
    }
}

/// Gives a descriptor into keeping.
pub(super) fn keep(name: &str, file: BorrowedFd<'_>) {
    store::keep_one(name, file);
}

fn keep_all(kind: &str, card: &CardId, files: &[BorrowedFd<'_>]) {
    for (part, file) in files.iter().enumerate() {
        keep(&Part::name(kind, part, card), *file);
    }
}

fn forget_all(kind: &str, card: &CardId, count: usize) {
    for part in 0..count {
        store::forget(&Part::name(kind, part, card));
    }
}

const HOOK_PARTS: usize = 4;
const GUARD_PARTS: usize = 3;

impl Programs {
    /// Takes over what an earlier agent left, as far as those cards are there and lent still.
    pub(super) fn take(kept: Vec<(String, OwnedFd)>, rules: &Cards, now: Instant) -> Programs {
        let mut programs = Programs {
            hooks: Vec::new(),
            guards: Vec::new(),
            senders: BTreeMap::new(),
            silenced: BTreeSet::new(),
        };
        let mut found: BTreeMap<(String, u32, String), BTreeMap<usize, OwnedFd>> = BTreeMap::new();
        for (name, file) in kept {
            let Some(part) = Part::of(&name) else {
                store::forget(&name);
                continue;
            };
            let CardId { index, name } = part.card;
            let parts = found.entry((part.kind, index, name)).or_default();
            parts.insert(part.part, file);
        }
        for ((kind, index, name), parts) in found {
            let card = CardId { index, name };
            let count = parts.len().max(HOOK_PARTS);
            let is_lent = rules.get(&card.name).is_some()
                && if_nametoindex(card.name.as_str()).ok() == Some(index);
            let files: Vec<OwnedFd> = parts.into_values().collect();
            let taken = is_lent && programs.take_one(&kind, &card, files, now);
            if !taken {
                // It is detached when the service manager has closed it, too.
                forget_all(&kind, &card, count);
            }
        }
        programs
    }

    /// True if it is in use from now on.
    fn take_one(&mut self, kind: &str, card: &CardId, files: Vec<OwnedFd>, now: Instant) -> bool {
        let taken = match kind {
            HOOK => {
                let Ok(files) = files.try_into() else {
                    return false;
                };
                let hook = Hook::from_descriptors(card, Place::Tcx, files);
                hook.and_then(|hook| {
                    let unclaimed = hook.entered()?.into_iter().collect();
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
                Guard::from_descriptors(card, files).map(|guard| self.guards.push(guard))
            }
            _ => return false,
        };
        if let Err(cause) = &taken {
            tracing::warn!(card = %card.name, %cause, "what an earlier agent left on a card is not used");
        }
        taken.is_ok()
    }

    /// From now on packets for this address and port go into this ring.
    pub(super) fn fill(
        &mut self,
        card: &CardId,
        at: SocketAddr,
        ring: BorrowedFd<'_>,
    ) -> Result<(), String> {
        let known = self.hooks.iter().position(|open| open.hook.card() == card);
        let index = match known {
            Some(index) => index,
            None => {
                let hook = Hook::attach(card, Place::Tcx).map_err(|error| error.to_string())?;
                keep_all(HOOK, card, &hook.descriptors());
                tracing::info!(event = "attached", card = %card.name, "the program is attached to a card");
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
            // Not attached for nothing.
            if known.is_none() {
                self.detach(card);
            }
            error.to_string()
        })
    }

    /// From now on packets for this address and port go to the socket.
    pub(super) fn empty(&mut self, card: &CardId, at: SocketAddr) {
        let open = self.hooks.iter().find(|open| open.hook.card() == card);
        if let Some(open) = open
            && let Err(cause) = open.hook.remove(at.ip(), at.port())
        {
            tracing::warn!(card = %card.name, %at, %cause, "a ring cannot be taken out");
        }
    }

    /// Detaches the program of a card on which nothing is lent any more.
    pub(super) fn detach(&mut self, card: &CardId) {
        let is_unused = |open: &Open| open.hook.card() == card && open.unclaimed.is_empty();
        let Some(index) = self.hooks.iter().position(is_unused) else {
            return;
        };
        forget_all(HOOK, card, HOOK_PARTS);
        self.hooks.swap_remove(index);
        tracing::info!(event = "detached", card = %card.name, "the program is detached from a card");
    }

    /// Takes out rings of an earlier life for which nobody has asked in time; their cards.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<CardId> {
        let mut swept = Vec::new();
        for open in &mut self.hooks {
            let is_due = open.until <= now && !open.unclaimed.is_empty();
            if !is_due {
                continue;
            }
            for (ip, port) in std::mem::take(&mut open.unclaimed) {
                let card = &open.hook.card().name;
                tracing::info!(event = "swept", %card, %ip, port, "nobody asked for a ring again");
                if let Err(cause) = open.hook.remove(ip, port) {
                    tracing::warn!(%card, %ip, port, %cause, "a ring cannot be taken out");
                }
            }
            swept.push(open.hook.card().clone());
        }
        // A card on which nothing was left is not in use either.
        let idle = self.hooks.iter().filter(|open| open.unclaimed.is_empty());
        swept.extend(idle.map(|open| open.hook.card().clone()));
        swept
    }

    /// A socket whose frames must come from here, and its cookie.
    pub(super) fn guarded(
        &mut self,
        card: &CardId,
        mac: [u8; 6],
        at: SocketAddr,
    ) -> Result<(OwnedFd, u64), String> {
        let text = |error: dipole_bpf::hook::HookError| error.to_string();
        let known = self.guards.iter().position(|guard| guard.card() == card);
        let index = match known {
            Some(index) => index,
            None => {
                let guard = Guard::attach(card).map_err(text)?;
                keep_all(GUARD, card, &guard.descriptors());
                for cookie in self.senders.keys().chain(&self.silenced) {
                    guard.forbid(*cookie).map_err(text)?;
                }
                self.guards.push(guard);
                self.guards.len() - 1
            }
        };
        let (socket, cookie) = guarded_socket(card).map_err(|cause| cause.to_string())?;
        for (other, guard) in self.guards.iter().enumerate() {
            // Whoever has the socket can name another card when they send.
            let done = match other == index {
                true => guard.allow(
                    cookie,
                    &Allowed {
                        mac,
                        address: at.ip(),
                        ports: [at.port(); 2],
                    },
                ),
                false => guard.forbid(cookie),
            };
            done.map_err(text)?;
        }
        self.senders.insert(cookie, card.clone());
        Ok((socket, cookie))
    }

    /// From now on the socket may send nothing: a loan is at its end, the socket is open perhaps.
    pub(super) fn silence(&mut self, cookie: u64) {
        self.senders.remove(&cookie);
        self.silenced.insert(cookie);
        for guard in &self.guards {
            if let Err(cause) = guard.forbid(cookie) {
                tracing::error!(card = %guard.card().name, %cause, "a socket that was lent cannot be silenced");
            }
        }
    }

    /// Forgets sockets that nobody has any more, and detaches the guards with the last.
    pub(super) fn forget_senders(&mut self, is_dead: &dyn Fn(u64) -> bool) {
        let dead: Vec<u64> = self
            .silenced
            .iter()
            .copied()
            .filter(|one| is_dead(*one))
            .collect();
        for cookie in dead {
            self.silenced.remove(&cookie);
            for guard in &self.guards {
                if let Err(cause) = guard.forget(cookie) {
                    tracing::warn!(card = %guard.card().name, %cause, "a socket cannot be forgotten");
                }
            }
        }
        if self.silenced.is_empty() && self.senders.is_empty() {
            for guard in self.guards.drain(..) {
                forget_all(GUARD, guard.card(), GUARD_PARTS);
            }
        }
    }

    /// Of a card: where the program is attached, its counters, and frames refused.
    pub(super) fn told(&self, card: &str) -> (Option<String>, BTreeMap<String, u64>, u64) {
        let open = self.hooks.iter().find(|open| open.hook.card().name == card);
        let counters = open.and_then(|open| open.hook.counters().ok());
        let named = counters.map(|counters| {
            [
                ("deposited", counters.deposited),
                ("full", counters.full),
                ("fragments", counters.fragments),
                ("options", counters.options),
                ("merged", counters.merged),
                ("too-long", counters.too_long),
                ("lengths", counters.lengths),
                ("other-hosts", counters.other_hosts),
                ("unreadable", counters.unreadable),
            ]
            .map(|(name, count)| (name.to_owned(), count))
            .into()
        });
        let guard = self.guards.iter().find(|guard| guard.card().name == card);
        let refused = guard.and_then(|guard| guard.refused().ok());
        (
            open.map(|open| open.hook.place().to_string()),
            named.unwrap_or_default(),
            refused.unwrap_or(0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_what_is_kept_tell_what_it_is() {
        let card = CardId {
            index: 12,
            name: "eth0.100".to_owned(),
        };
        let name = Part::name(HOOK, 3, &card);
        let part = Part::of(&name).unwrap();
        assert_eq!((&*part.kind, part.part, part.card), (HOOK, 3, card));
        for strange in ["lend-hook", "lend-hook.x.1.eth0", "lend-hook.1.-1.eth0", ""] {
            assert!(Part::of(strange).is_none(), "{strange}");
        }
    }
}
