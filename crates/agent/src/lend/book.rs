//! What is lent to whom: the rings in each card's program, the sockets for raw frames, and
//! whether whoever asks may have more.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use dipole_bpf::CardId;
use dipole_bpf::hook::create_ring;
use dipole_bpf::loan::proof::{self, Caller, Namespace, Unproven};
use dipole_bpf::loan::ring_facts;
use dipole_bpf::loan::wire::{Granted, Question, Reason, Refusal};

use super::addresses::{Address, addresses};
use super::cards::{Card, Cards, Permission, is_ring_size};
use super::desk::refusal;
use super::held::{Held, Item};
use super::programs::{Kept, Programs};
use super::{CardStatus, LendStatus, UserStatus};

/// See the module.
pub(super) struct Book {
    rules: Cards,
    here: Namespace,
    held: Held,
    programs: Programs,
    /// By connection.
    loans: BTreeMap<u64, Loan>,
    refused: u64,
}

/// One ring that is lent.
struct Loan {
    uid: u32,
    pid: i32,
    card: CardId,
    at: SocketAddr,
    ring_bytes: u32,
    /// The socket that proves who owns the port: nobody else gets it while this is open.
    proof: OwnedFd,
    /// Of the socket for raw frames.
    cookie: Option<u64>,
}

/// What goes to whoever asked.
pub(super) struct Lent {
    pub(super) granted: Granted,
    /// Nothing was to be lent.
    pub(super) dry: bool,
    pub(super) ring: Option<OwnedFd>,
    pub(super) sender: Option<OwnedFd>,
    /// The connection of an earlier loan of the same port, which this one follows.
    pub(super) replaces: Option<u64>,
}

/// What may be lent to somebody who asks.
struct Claim<'a> {
    address: &'a Address,
    permission: Permission,
    replaces: Option<u64>,
}

impl Book {
    /// With what an earlier lender left.
    pub(super) fn open(rules: Cards, kept: Kept, now: Instant) -> io::Result<Book> {
        let Kept { held, programs } = kept;
        let begins = held.is_none();
        let held = Held::open(held)?;
        let mut programs = Programs::take(programs, &rules, now);
        if begins {
            super::programs::keep(super::programs::HELD, held.descriptor());
        }
        // Whose they are is not known any more: their holders get others when they ask again.
        for item in held.alive()? {
            if let Item::Sender { cookie } = item {
                programs.silence(cookie);
            }
        }
        Ok(Book {
            rules,
            here: Namespace::here()?,
            held,
            programs,
            loans: BTreeMap::new(),
            refused: 0,
        })
    }

    pub(super) fn count_refusal(&mut self) {
        self.refused += 1;
    }

    /// Lends to whoever asks by a connection. The proof is taken out of `files`; what is left
    /// there is to be closed.
    pub(super) fn lend(
        &mut self,
        connection: u64,
        caller: &Caller,
        question: Question,
        files: &mut Vec<OwnedFd>,
    ) -> Result<Lent, Refusal> {
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
        let at = proof::owned(proof.as_fd(), self.here).map_err(unproven)?;
        let all = addresses().map_err(kernel("listing the addresses of the cards"))?;
        let claim = self.judge(caller, question, at, &all)?;
        let map = offered.map(|ring| is_ring(ring, question.ring_bytes));
        let map = map.transpose()?;
        self.has_room(caller, map)?;
        let card = &claim.address.card;
        let mut lent = Lent {
            granted: Granted {
                card: card.clone(),
                ring_bytes: question.ring_bytes,
                sender: claim.permission == Permission::RingAndSender,
            },
            dry: question.dry,
            ring: None,
            sender: None,
            replaces: claim.replaces,
        };
        if question.dry {
            lent.granted.sender &= claim.address.mac.is_some();
            lent.replaces = None;
            return Ok(lent);
        }
        let ring = match offered {
            Some(ring) => ring.try_clone_to_owned(),
            None => create_ring(question.ring_bytes),
        };
        let ring = ring.map_err(kernel("making a ring"))?;
        self.hand_out(caller, &ring)?;
        self.programs
            .fill(card, at, ring.as_fd())
            .map_err(|text| refusal(Reason::Kernel, text))?;
        let mut cookie = None;
        if claim.permission == Permission::RingAndSender {
            match self.sender(claim.address, at) {
                Ok((socket, number)) => {
                    lent.sender = Some(socket);
                    cookie = Some(number);
                }
                // The ring is good without it.
                Err(text) => tracing::warn!(card = %card.name, "no raw frames for a loan: {text}"),
            }
        }
        lent.granted.sender = lent.sender.is_some();
        lent.ring = Some(ring);
        let loan = Loan {
            uid: caller.uid,
            pid: caller.pid,
            card: card.clone(),
            at,
            ring_bytes: question.ring_bytes,
            proof: files.remove(0),
            cookie,
        };
        let (uid, pid, raw) = (loan.uid, loan.pid, cookie.is_some());
        tracing::info!(event = "ring-lent", uid, pid, %at, raw, card = %loan.card.name, "a ring is lent");
        self.loans.insert(connection, loan);
        // The ring is the new loan's now: the old one must not take it out of the program.
        if let Some(replaced) = claim.replaces
            && let Some(loan) = self.loans.get_mut(&replaced)
        {
            loan.at.set_port(0);
        }
        Ok(lent)
    }

    /// Whether this caller may have such a ring at this address.
    fn judge<'a>(
        &self,
        caller: &Caller,
        question: Question,
        at: SocketAddr,
        all: &'a [Address],
    ) -> Result<Claim<'a>, Refusal> {
        let mut here = all.iter().filter(|one| one.ip == at.ip());
        let found = here.find_map(|one| Some((one, self.rules.get(&one.card.name)?)));
        let (address, card) = found.ok_or_else(|| {
            let names: Vec<&str> = self.rules.cards.iter().map(|card| &*card.name).collect();
            let text = format!(
                "{} is on no card that is lent; those are: {}",
                at.ip(),
                names.join(", ")
            );
            refusal(Reason::Card, text)
        })?;
        let permission = self.permission(card, caller)?;
        if !is_ring_size(question.ring_bytes, card.ring_bytes) {
            let text = format!(
                "a ring of {} bytes is not to be had on {}: it must be a power of two from {} to \
                 {} (ring-bytes of the agent's cards file)",
                question.ring_bytes,
                card.name,
                rustix::param::page_size(),
                card.ring_bytes
            );
            return Err(refusal(Reason::Size, text));
        }
        let mut same = self.loans.iter();
        let same = same.find(|(_, loan)| loan.at == at && loan.card == address.card);
        if let Some((_, loan)) = same
            && loan.uid != caller.uid
        {
            let text = format!("{at} is lent to process {} of another user", loan.pid);
            return Err(refusal(Reason::Taken, text));
        }
        Ok(Claim {
            address,
            permission,
            replaces: same.map(|(connection, _)| *connection),
        })
    }

    fn permission(&self, card: &Card, caller: &Caller) -> Result<Permission, Refusal> {
        match card.permits(caller) {
            Permission::Nothing => {
                let text = format!(
                    "user {} may not use card {}; the administrator of this machine can allow it \
                     (users, groups in the agent's cards file)",
                    caller.uid, card.name
                );
                Err(refusal(Reason::User, text))
            }
            permission => Ok(permission),
        }
    }

    /// Whether a user may have one more ring; one that they have already does not count.
    fn has_room(&self, caller: &Caller, offered: Option<u32>) -> Result<(), Refusal> {
        let alive = self.held.alive();
        let alive = alive.map_err(kernel("counting the rings of a user"))?;
        let theirs = alive.iter().filter(|item| match item {
            Item::Ring { uid, map } => *uid == caller.uid && Some(*map) != offered,
            Item::Sender { .. } => false,
        });
        let (count, most) = (theirs.count(), self.rules.rings_per_user);
        if count < usize::try_from(most).unwrap_or(usize::MAX) {
            return Ok(());
        }
        let text = format!(
            "user {} has {count} rings, of {most} (rings-per-user of the agent's cards file); a ring \
             is there until every process that has it has ended",
            caller.uid
        );
        Err(refusal(Reason::Limit, text))
    }

    /// Puts a ring on a user's account.
    fn hand_out(&self, caller: &Caller, ring: &OwnedFd) -> Result<(), Refusal> {
        let counted = ring_facts(ring.as_fd()).and_then(|facts| {
            let item = Item::Ring {
                uid: caller.uid,
                map: facts.map,
            };
            // Known by now, if it is one that was lent before.
            match self.held.alive()?.contains(&item) {
                true => Ok(()),
                false => self.held.watch(ring.as_fd(), item),
            }
        });
        counted.map_err(kernel("counting a ring"))
    }

    /// A socket whose frames must come from this address.
    fn sender(&mut self, address: &Address, at: SocketAddr) -> Result<(OwnedFd, u64), String> {
        let mac = address.mac.ok_or("the card has no MAC address")?;
        let (socket, cookie) = self.programs.guarded(&address.card, mac, at)?;
        let watched = self.held.watch(socket.as_fd(), Item::Sender { cookie });
        if let Err(cause) = watched {
            self.programs.silence(cookie);
            return Err(cause.to_string());
        }
        Ok((socket, cookie))
    }

    /// Takes back what was lent by a connection, if anything was; what there is to be closed.
    pub(super) fn end(&mut self, connection: u64) -> Vec<OwnedFd> {
        let Some(loan) = self.loans.remove(&connection) else {
            return Vec::new();
        };
        let (uid, pid, at) = (loan.uid, loan.pid, loan.at);
        if let Some(cookie) = loan.cookie {
            self.programs.silence(cookie);
        }
        // Else another loan has followed it.
        if loan.at.port() != 0 {
            self.programs.empty(&loan.card, loan.at);
            tracing::info!(event = "ring-back", uid, pid, %at, card = %loan.card.name, "a ring is given back");
        }
        self.settle(&loan.card);
        vec![loan.proof]
    }

    /// Detaches the program of a card on which nothing is lent.
    fn settle(&mut self, card: &CardId) {
        if !self.loans.values().any(|loan| loan.card == *card) {
            self.programs.detach(card);
        }
    }

    /// Looks for what has changed without anybody saying so; connections whose loans end.
    pub(super) fn look_again(&mut self, now: Instant) -> Vec<u64> {
        for card in self.programs.sweep(now) {
            self.settle(&card);
        }
        match self.held.alive() {
            Ok(alive) => self
                .programs
                .forget_senders(&|cookie| !alive.contains(&Item::Sender { cookie })),
            Err(cause) => tracing::warn!(%cause, "cannot tell which sockets still exist"),
        }
        if self.loans.is_empty() {
            return Vec::new();
        }
        let all = match addresses() {
            Ok(all) => all,
            Err(cause) => {
                tracing::warn!(%cause, "cannot list the addresses of the cards");
                return Vec::new();
            }
        };
        let ends = |loan: &Loan| {
            let there = |one: &Address| one.ip == loan.at.ip() && one.card == loan.card;
            let proven = proof::still_owned(loan.proof.as_fd()).ok() == Some(loan.at);
            loan.at.port() != 0 && !(proven && all.iter().any(there))
        };
        let ended = self.loans.iter().filter(|(_, loan)| ends(loan));
        let ended: Vec<u64> = ended
            .map(|(connection, loan)| {
                let (uid, pid, at) = (loan.uid, loan.pid, loan.at);
                tracing::warn!(event = "ring-lost", uid, pid, %at, "its holder does not own the port any more");
                *connection
            })
            .collect();
        ended
    }

    /// What there is to tell.
    pub(super) fn status(&self, socket: String) -> LendStatus {
        let alive = self.held.alive().unwrap_or_default();
        let cards = self.rules.cards.iter().map(|card| {
            let loans = || {
                self.loans
                    .values()
                    .filter(|loan| loan.card.name == card.name)
            };
            let mut users: BTreeMap<u32, UserStatus> = BTreeMap::new();
            for loan in loans() {
                let user = users.entry(loan.uid).or_insert_with(|| UserStatus {
                    uid: loan.uid,
                    ..UserStatus::default()
                });
                user.rings += 1;
                user.bytes += u64::from(loan.ring_bytes);
                user.senders += u32::from(loan.cookie.is_some());
            }
            let (place, counters, refused_frames) = self.programs.told(&card.name);
            CardStatus {
                name: card.name.clone(),
                attached: place,
                users: users.into_values().collect(),
                counters,
                refused_frames,
            }
        });
        let is_ring = |item: &&Item| matches!(item, Item::Ring { .. });
        let rings = alive.iter().filter(is_ring).count();
        LendStatus {
            socket,
            cards: cards.collect(),
            rings: u32::try_from(rings).unwrap_or(u32::MAX),
            refused: self.refused,
        }
    }
}

/// The number of the map, if it is a ring of this length.
fn is_ring(ring: BorrowedFd<'_>, bytes: u32) -> Result<u32, Refusal> {
    match ring_facts(ring) {
        Ok(facts) if facts.bytes == bytes => Ok(facts.map),
        Ok(facts) => {
            let text = format!("the ring offered has {} bytes, not {bytes}", facts.bytes);
            Err(refusal(Reason::Ring, text))
        }
        Err(cause) => {
            let text = format!("what is offered is no ring: {cause}");
            Err(refusal(Reason::Ring, text))
        }
    }
}

fn unproven(error: Unproven) -> Refusal {
    let text = format!("the socket does not prove who owns a port: {error}");
    refusal(Reason::Proof, text)
}

fn kernel(doing: &'static str) -> impl Fn(io::Error) -> Refusal {
    move |cause| refusal(Reason::Kernel, format!("{doing}: {cause}"))
}
