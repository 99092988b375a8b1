//! Access rights of memory regions. Spec §5.9.
//!
//! The memory belongs to the caller. This module decides which operations may access it; nothing
//! that a peer sends is trusted.

use crate::wire::{Operation, OperationKind, Outcome};

/// Bytes of a word that fetch-and-add and compare-and-swap change.
const WORD_BYTES: u64 = 8;

/// Access rights of peers to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Peers may write to the region.
    pub put: bool,
    /// Peers may read from the region.
    pub get: bool,
    /// Peers may use fetch-and-add and compare-and-swap.
    pub update: bool,
}

impl Rights {
    /// All rights.
    pub const ALL: Rights = Rights {
        put: true,
        get: true,
        update: true,
    };
    /// No rights.
    pub const NONE: Rights = Rights {
        put: false,
        get: false,
        update: false,
    };
}

/// A region, as far as access checks need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The endpoint whose edges may access it.
    pub endpoint: u32,
    /// Length of the region in bytes.
    pub length: u64,
    /// Access rights of peers.
    pub rights: Rights,
}

impl Region {
    /// Whether an operation with this many bytes of data, sent to the endpoint `target`, is allowed.
    ///
    /// # Errors
    /// The outcome to return to the peer.
    pub fn check(&self, target: u32, operation: &Operation, data: u64) -> Result<(), Outcome> {
        let (allowed, length) = match operation.kind {
            OperationKind::Put => (self.rights.put, data),
            OperationKind::Get => (self.rights.get, operation.value),
            OperationKind::FetchAdd | OperationKind::CompareSwap => {
                (self.rights.update, WORD_BYTES)
            }
            OperationKind::Fence | OperationKind::Answer(_) => return Err(Outcome::NoRegion),
        };
        if self.endpoint != target {
            return Err(Outcome::NoRegion);
        }
        if !allowed {
            return Err(Outcome::NotAllowed);
        }
        let end = operation.offset.checked_add(length);
        if end.is_none_or(|end| end > self.length) {
            return Err(Outcome::OutOfBounds);
        }
        let is_word = !matches!(operation.kind, OperationKind::Put | OperationKind::Get);
        match is_word && !operation.offset.is_multiple_of(WORD_BYTES) {
            true => Err(Outcome::Misaligned),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: OperationKind, offset: u64, bytes: u64, rights: Rights) -> Result<(), Outcome> {
        let region = Region {
            endpoint: 5,
            length: 100,
            rights,
        };
        let operation = Operation {
            kind,
            wants_answer: false,
            gives_notice: false,
            id: 1,
            key: 2,
            offset,
            value: bytes,
        };
        region.check(5, &operation, bytes)
    }

    #[test]
    fn accesses_inside_the_region_need_the_right() {
        let rights = |put, get, update| Rights { put, get, update };
        let only_put = rights(true, false, false);
        assert_eq!(check(OperationKind::Put, 0, 100, only_put), Ok(()));
        assert_eq!(check(OperationKind::Put, 100, 0, only_put), Ok(()));
        assert_eq!(
            check(OperationKind::Get, 0, 1, only_put),
            Err(Outcome::NotAllowed)
        );
        assert_eq!(
            check(OperationKind::Get, 1, 99, rights(false, true, false)),
            Ok(())
        );
        let update = rights(false, false, true);
        for kind in [OperationKind::FetchAdd, OperationKind::CompareSwap] {
            assert_eq!(check(kind, 88, 8, update), Ok(()));
            assert_eq!(check(kind, 92, 8, update), Err(Outcome::Misaligned));
            assert_eq!(check(kind, 96, 8, update), Err(Outcome::OutOfBounds));
            assert_eq!(check(kind, 0, 8, only_put), Err(Outcome::NotAllowed));
        }
    }

    #[test]
    fn no_access_exceeds_the_end_whatever_its_offset() {
        for kind in [OperationKind::Put, OperationKind::Get] {
            for (offset, bytes) in [(101, 0), (1, 100), (u64::MAX, 2), (2, u64::MAX)] {
                let checked = check(kind, offset, bytes, Rights::ALL);
                assert_eq!(
                    checked,
                    Err(Outcome::OutOfBounds),
                    "{kind:?} {offset} {bytes}"
                );
            }
        }
    }

    #[test]
    fn a_region_serves_only_the_edges_to_its_endpoint() {
        let region = Region {
            endpoint: 5,
            length: 100,
            rights: Rights::ALL,
        };
        let get = Operation {
            kind: OperationKind::Get,
            wants_answer: true,
            gives_notice: false,
            id: 1,
            key: 2,
            offset: 0,
            value: 8,
        };
        assert_eq!(region.check(6, &get, 0), Err(Outcome::NoRegion));
    }
}
