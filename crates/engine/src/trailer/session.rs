//! Session keys and the trailers made with them. Spec §2.7.
//!
//! Each direction of a session has its own keys and a counter that never repeats and is the nonce.
//! Its high bits select the key. Each key is derived from the previous one, which is then wiped, so
//! that a stolen key does not decrypt earlier packets.

use aegis::aegis128l::Aegis128L;
use curve25519_dalek::MontgomeryPoint;
use dipole_proto::wire::{COUNTER_BYTES, HEADER_BYTES, SHARE_BYTES, SUM_BYTES, TAG_BYTES};
use dipole_proto::{Agreement, DropReason, Party};
use zeroize::Zeroize;

use crate::key::KEY_BYTES;

/// Context for the first chain of a direction, derived from both key shares.
const SESSION: &str = "dipole 2026 session";
/// Context for the secret behind a process's share.
const SHARE: &str = "dipole 2026 key share";
/// Context for the key of a chain.
const KEY: &str = "dipole 2026 packet key";
/// Context for the next chain.
const NEXT: &str = "dipole 2026 next packet key";
/// log2 of the number of packets per key.
const PACKET_BITS: u32 = 28;
/// Reordering window: how many packets may overtake one that is still accepted.
const WINDOW: u64 = 64 * WINDOW_WORDS as u64;
const WINDOW_WORDS: usize = 32;

type Chain = [u8; KEY_BYTES];
type Key = [u8; 16];

/// Keys of all sessions of a process.
pub(super) struct SessionKeys {
    secret: [u8; SHARE_BYTES],
    /// Keys of the sessions, indexed by [`Agreement::index`].
    sessions: Vec<Option<Box<Session>>>,
}

struct Session {
    serial: u64,
    out: Sending,
    incoming: Receiving,
}

struct Sending {
    chain: Chain,
    key: Key,
    counter: u64,
}

struct Receiving {
    chain: Chain,
    key: Key,
    /// The previous key, for packets overtaken by the first one with the current key.
    before: Option<Key>,
    number: u64,
    window: Window,
}

/// Replay window: counters received recently.
struct Window {
    /// One more than the highest counter received.
    end: u64,
    seen: [u64; WINDOW_WORDS],
}

impl std::fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKeys")
    }
}

impl Session {
    /// Erases the keys from memory.
    fn wipe(&mut self) {
        self.out.chain.zeroize();
        self.out.key.zeroize();
        self.incoming.chain.zeroize();
        self.incoming.key.zeroize();
        self.incoming.before.zeroize();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.wipe();
    }
}

impl Drop for SessionKeys {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl SessionKeys {
    /// Creates a process's secret; `random` must be secret.
    pub(super) fn new(random: [u64; 2]) -> SessionKeys {
        let [low, high] = random.map(u64::to_le_bytes);
        SessionKeys {
            secret: blake3::derive_key(SHARE, &[low, high].concat()),
            sessions: Vec::new(),
        }
    }

    /// The public key share, which is sent to peers.
    pub(super) fn share(&self) -> [u8; SHARE_BYTES] {
        MontgomeryPoint::mul_base_clamped(self.secret).to_bytes()
    }

    /// Derives the keys of a session that has opened.
    #[cold]
    pub(super) fn agree(&mut self, agreement: &Agreement) {
        let (own, remote) = (&agreement.own, &agreement.remote);
        let shared = MontgomeryPoint(remote.share).mul_clamped(self.secret);
        let chain = |sender: &Party, receiver: &Party| {
            let mut hasher = blake3::Hasher::new_derive_key(SESSION);
            hasher.update(shared.as_bytes());
            for party in [sender, receiver] {
                hasher.update(&party.incarnation.to_le_bytes());
                hasher.update(&party.connection.to_le_bytes());
                hasher.update(&party.salt.to_le_bytes());
                hasher.update(&party.share);
            }
            *hasher.finalize().as_bytes()
        };
        let (out, incoming) = (chain(own, remote), chain(remote, own));
        let index = agreement.index as usize;
        if self.sessions.len() <= index {
            self.sessions.resize_with(index + 1, || None);
        }
        self.sessions[index] = Some(Box::new(Session {
            serial: agreement.serial,
            out: Sending {
                key: key_of(&out),
                chain: out,
                counter: 0,
            },
            incoming: Receiving {
                key: key_of(&incoming),
                chain: incoming,
                before: None,
                number: 0,
                window: Window::new(),
            },
        }));
    }

    /// Wipes the keys of a session that has ended.
    #[cold]
    pub(super) fn forget(&mut self, index: u32, serial: u64) {
        if self.session(index, serial).is_some() {
            self.sessions[index as usize] = None;
        }
    }

    #[inline]
    fn session(&mut self, index: u32, serial: u64) -> Option<&mut Session> {
        let session = self.sessions.get_mut(index as usize)?.as_deref_mut()?;
        (session.serial == serial).then_some(session)
    }

    /// Adds counter, tag and checksum after the first `length` bytes of a packet, and encrypts its
    /// records if requested. False if the session has ended and its keys are gone.
    #[inline]
    pub(super) fn seal(
        &mut self,
        (index, serial): (u32, u64),
        packet: &mut [u8],
        length: usize,
        encrypts: bool,
    ) -> bool {
        let Some(session) = self.session(index, serial) else {
            return false;
        };
        let counter = session.out.next();
        let cipher = Aegis128L::<TAG_BYTES>::new(&session.out.key, &nonce(counter, encrypts));
        let (covered, trailer) = packet.split_at_mut(length);
        let tag = if encrypts {
            let (header, records) = covered.split_at_mut(HEADER_BYTES);
            cipher.encrypt_in_place(records, header)
        } else {
            cipher.encrypt_in_place(&mut [], covered)
        };
        trailer[..COUNTER_BYTES].copy_from_slice(&counter.to_le_bytes());
        trailer[COUNTER_BYTES..COUNTER_BYTES + TAG_BYTES].copy_from_slice(&tag);
        let (summed, rest) = packet.split_at_mut(length + COUNTER_BYTES + TAG_BYTES);
        rest[..SUM_BYTES].copy_from_slice(&sum(summed).to_le_bytes());
        true
    }

    /// Checks counter and tag after the first `length` bytes of a packet. If its records are
    /// encrypted, `plain` then contains the decrypted packet.
    #[inline]
    pub(super) fn open(
        &mut self,
        session: (u32, u64),
        packet: &[u8],
        length: usize,
        plain: Option<&mut Vec<u8>>,
    ) -> Result<(), DropReason> {
        let unsealed = self.unseal(session, packet, length, plain);
        unsealed.map_err(|reason| match reason {
            DropReason::Forged if !is_whole(packet, length) => DropReason::Damaged,
            reason => reason,
        })
    }

    #[inline]
    fn unseal(
        &mut self,
        (index, serial): (u32, u64),
        packet: &[u8],
        length: usize,
        plain: Option<&mut Vec<u8>>,
    ) -> Result<(), DropReason> {
        let session = (self.session(index, serial)).ok_or(DropReason::UnknownConnection)?;
        let (covered, trailer) = packet.split_at(length);
        let (counter, rest) =
            (trailer.split_first_chunk::<COUNTER_BYTES>()).ok_or(DropReason::Malformed)?;
        let tag = rest
            .first_chunk::<TAG_BYTES>()
            .ok_or(DropReason::Malformed)?;
        let counter = u64::from_le_bytes(*counter);
        let incoming = &mut session.incoming;
        if !incoming.window.is_new(counter) {
            return Err(DropReason::Replayed);
        }
        let ahead = (counter >> PACKET_BITS).wrapping_sub(incoming.number);
        let mut next = None;
        let key = match ahead {
            0 => incoming.key,
            1 => {
                let chain = blake3::derive_key(NEXT, &incoming.chain);
                next = Some(chain);
                key_of(&chain)
            }
            u64::MAX => incoming.before.ok_or(DropReason::Forged)?,
            _ => return Err(DropReason::Forged),
        };
        let cipher = Aegis128L::<TAG_BYTES>::new(&key, &nonce(counter, plain.is_some()));
        let opened = match plain {
            Some(plain) => {
                plain.clear();
                plain.extend_from_slice(covered);
                let (header, records) = plain.split_at_mut(HEADER_BYTES);
                cipher.decrypt_in_place(records, tag, header)
            }
            None => cipher.decrypt_in_place(&mut [], tag, covered),
        };
        opened.map_err(|_| DropReason::Forged)?;
        if let Some(chain) = next {
            incoming.before = Some(std::mem::replace(&mut incoming.key, key));
            incoming.chain = chain;
            incoming.number += 1;
        }
        incoming.window.note(counter);
        Ok(())
    }
}

impl Sending {
    /// Counter and key of the next packet.
    #[inline]
    fn next(&mut self) -> u64 {
        let counter = self.counter;
        self.counter += 1;
        if counter != 0 && counter.trailing_zeros() >= PACKET_BITS {
            self.chain = blake3::derive_key(NEXT, &self.chain);
            self.key = key_of(&self.chain);
        }
        counter
    }
}

impl Window {
    fn new() -> Window {
        Window {
            end: 0,
            seen: [0; WINDOW_WORDS],
        }
    }

    /// Word and bit of a counter.
    #[inline]
    fn place(counter: u64) -> (usize, u64) {
        let at = (counter % WINDOW) as usize;
        (at / 64, 1 << (at % 64))
    }

    #[inline]
    fn is_new(&self, counter: u64) -> bool {
        let (word, bit) = Window::place(counter);
        counter >= self.end || self.end - counter <= WINDOW && self.seen[word] & bit == 0
    }

    #[inline]
    fn note(&mut self, counter: u64) {
        if counter >= self.end {
            if counter - self.end >= WINDOW {
                self.seen.fill(0);
            } else {
                for skipped in self.end..counter {
                    let (word, bit) = Window::place(skipped);
                    self.seen[word] &= !bit;
                }
            }
            self.end = counter + 1;
        }
        let (word, bit) = Window::place(counter);
        self.seen[word] |= bit;
    }
}

fn key_of(chain: &Chain) -> Key {
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::derive_key(KEY, chain)[..16]);
    key
}

/// The checksum after the tag, which distinguishes damage from forgery. It is cheaper than a CRC
/// because the tag detects both.
#[inline]
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().map(|word| u32::from_le_bytes(*word));
    words.fold(u32::from_le_bytes(last), u32::wrapping_add)
}

#[cold]
fn is_whole(packet: &[u8], length: usize) -> bool {
    let split = packet.split_at_checked(length + COUNTER_BYTES + TAG_BYTES);
    split.is_some_and(|(summed, rest)| rest.starts_with(&sum(summed).to_le_bytes()))
}

/// The nonce includes whether records are encrypted, so that neither kind passes for the other.
fn nonce(counter: u64, encrypts: bool) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&counter.to_le_bytes());
    nonce[8] = u8::from(encrypts);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_proto::wire::Trailer;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const SESSION: (u32, u64) = (3, 9);

    fn party(number: u8, keys: &SessionKeys) -> Party {
        Party {
            incarnation: u64::from(number),
            connection: u32::from(number) + 100,
            salt: 7,
            share: keys.share(),
        }
    }

    /// Two processes with an open session.
    fn pair(random: [u64; 2]) -> [SessionKeys; 2] {
        let mut pair = random.map(|random| SessionKeys::new([random, 5]));
        let parties = [party(1, &pair[0]), party(2, &pair[1])];
        for side in [0, 1] {
            pair[side].agree(&Agreement {
                serial: SESSION.1,
                index: SESSION.0,
                own: parties[side].clone(),
                remote: parties[1 - side].clone(),
            });
        }
        pair
    }

    fn sealed(sender: &mut SessionKeys, encrypts: bool) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..100).collect();
        packet.resize(100 + Trailer::Auth.bytes(), 0);
        assert!(sender.seal(SESSION, &mut packet, 100, encrypts));
        packet
    }

    fn opened(
        receiver: &mut SessionKeys,
        packet: &[u8],
        encrypts: bool,
    ) -> Result<Vec<u8>, DropReason> {
        let mut plain = Vec::new();
        receiver.open(SESSION, packet, 100, encrypts.then_some(&mut plain))?;
        Ok(if encrypts {
            plain
        } else {
            packet[..100].to_vec()
        })
    }

    #[test]
    fn a_sealed_packet_is_opened_once_and_only_by_the_peer() {
        for encrypts in [false, true] {
            let [mut one, mut two] = pair([1, 2]);
            let packet = sealed(&mut one, encrypts);
            let text: Vec<u8> = (0..100).collect();
            assert_eq!(packet[..100] == text, !encrypts);
            assert_eq!(packet[..HEADER_BYTES], text[..HEADER_BYTES]);
            assert_eq!(
                opened(&mut two, &packet, !encrypts),
                Err(DropReason::Forged)
            );
            // A packet sent back to its sender is rejected.
            assert_eq!(opened(&mut one, &packet, encrypts), Err(DropReason::Forged));
            assert_eq!(opened(&mut two, &packet, encrypts), Ok(text));
            assert_eq!(
                opened(&mut two, &packet, encrypts),
                Err(DropReason::Replayed)
            );
            let [_, mut other] = pair([1, 3]);
            assert_eq!(
                opened(&mut other, &packet, encrypts),
                Err(DropReason::Forged)
            );
            assert!(!one.seal((3, 8), &mut packet.clone(), 100, encrypts));
        }
    }

    #[test]
    fn keys_are_wiped_with_their_own_session_only() {
        let [mut one, mut two] = pair([1, 2]);
        let packet = sealed(&mut one, true);
        // A later session has the same index.
        two.forget(SESSION.0, SESSION.1 - 1);
        assert!(opened(&mut two, &packet, true).is_ok());
        two.forget(SESSION.0, SESSION.1);
        assert!(two.session(SESSION.0, SESSION.1).is_none());
        let packet = sealed(&mut one, true);
        assert_eq!(
            opened(&mut two, &packet, true),
            Err(DropReason::UnknownConnection)
        );
        // Like a dropped session, but one that can still be inspected.
        let session = one.session(SESSION.0, SESSION.1).expect("open");
        session.incoming.before = Some([7; 16]);
        session.wipe();
        let left = [&session.out.chain[..], &session.incoming.chain[..]].concat();
        let keys = [session.out.key, session.incoming.key].concat();
        assert!(left.iter().chain(&keys).all(|byte| *byte == 0));
        assert_eq!(session.incoming.before, None);
    }

    #[test]
    fn every_changed_bit_is_detected_even_with_a_correct_checksum() {
        for encrypts in [false, true] {
            let [mut one, mut two] = pair([1, 2]);
            let packet = sealed(&mut one, encrypts);
            let summed = packet.len() - SUM_BYTES;
            for bit in 0..summed * 8 {
                let mut bad = packet.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let found = opened(&mut two, &bad, encrypts);
                assert_eq!(found, Err(DropReason::Damaged), "{bit}");
                let sum = sum(&bad[..summed]).to_le_bytes();
                bad[summed..].copy_from_slice(&sum);
                let found = opened(&mut two, &bad, encrypts);
                assert_eq!(found, Err(DropReason::Forged), "{bit}");
            }
            assert!(opened(&mut two, &packet, encrypts).is_ok());
        }
    }

    #[test]
    fn packets_of_the_previous_key_are_accepted_after_a_key_change() {
        let [mut one, mut two] = pair([1, 2]);
        let last = (1 << PACKET_BITS) - 1;
        one.session(3, 9).expect("open").out.counter = last;
        let before = one.session(3, 9).expect("open").out.key;
        let packets: Vec<_> = (0..3).map(|_| sealed(&mut one, false)).collect();
        assert_ne!(one.session(3, 9).expect("open").out.key, before);
        for at in [1, 0, 2] {
            assert!(opened(&mut two, &packets[at], false).is_ok(), "{at}");
        }
        assert_eq!(
            opened(&mut two, &packets[0], false),
            Err(DropReason::Replayed)
        );
    }

    /// An example packet of the specification.
    fn documented(name: &str) -> Vec<u8> {
        let specification = include_str!("../../../../docs/design/protocol.md");
        let begin = format!("```vector {name}\n");
        let (_, block) = specification.split_once(&begin).expect("it is documented");
        let (block, _) = block.split_once("```").expect("it ends");
        let bytes = block.split_whitespace();
        let bytes = bytes.filter(|byte| *byte != "CRC");
        bytes
            .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
            .collect()
    }

    #[test]
    fn packets_match_the_examples_in_the_specification() {
        let count = |from: u8| std::array::from_fn(|at| from + u8::try_from(at).unwrap());
        let mut keys = [0, 32].map(|from| {
            let mut keys = SessionKeys::new([0, 0]);
            keys.secret = count(from);
            keys
        });
        let of = [
            (0x1122_3344_5566_7788, 0x00a1_c003, 0x0102_0304_0506_0708),
            (0x99aa_bbcc_ddee_ff00, 0x0123_4000, 0x1112_1314_1516_1718),
        ];
        let parties = [0, 1].map(|side| Party {
            incarnation: of[side].0,
            connection: of[side].1,
            salt: of[side].2,
            share: keys[side].share(),
        });
        let (own, remote) = (parties[1].clone(), parties[0].clone());
        let (index, serial) = SESSION;
        for (name, encrypts) in [("authenticated", false), ("encrypted", true)] {
            keys[1].agree(&Agreement {
                serial,
                index,
                own: own.clone(),
                remote: remote.clone(),
            });
            let mut packet = documented("message");
            let length = packet.len();
            packet[2] += u8::try_from(COUNTER_BYTES + TAG_BYTES).unwrap();
            packet.resize(length + Trailer::Auth.bytes(), 0);
            assert!(keys[1].seal(SESSION, &mut packet, length, encrypts));
            let hex: Vec<String> = packet.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(packet, documented(name), "{name}: {}", hex.join(" "));
        }
    }

    proptest! {
        #[test]
        fn a_window_accepts_each_counter_once(counters in proptest::collection::vec(0..3 * WINDOW, 0..500)) {
            let (mut window, mut seen, mut end) = (Window::new(), HashSet::new(), 0);
            for counter in counters {
                let new = counter + WINDOW >= end && !seen.contains(&counter);
                prop_assert_eq!(window.is_new(counter), new, "{}", counter);
                if new {
                    window.note(counter);
                    seen.insert(counter);
                    end = end.max(counter + 1);
                }
            }
        }
    }
}
