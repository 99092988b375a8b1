//! Buffers that programs pass to operations.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Once;

use dipole_node::{Bytes, RegionMemory};

use crate::abi::errno::FI_EINVAL;
use crate::ffi::Failure;

/// Largest number of pieces of a buffer.
pub(crate) const MAX_PIECES: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: *mut u8,
    length: usize,
}

const NONE: Piece = Piece {
    start: ptr::null_mut(),
    length: 0,
};

/// The buffer of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    list: [Piece; MAX_PIECES],
    count: usize,
    length: usize,
    /// Bytes at address 0, which cannot be accessed.
    null_bytes: usize,
}

// SAFETY: the creator promises that the memory is valid until the operation completes, on whichever
// thread that happens.
unsafe impl Send for Pieces {}

impl Pieces {
    /// A buffer of one piece.
    ///
    /// # Safety
    /// Until the operation completes, `start` is valid for reads of `length` bytes, and for writes
    /// if the operation fills it; meanwhile the program does not write to it, and if it is filled
    /// does not read it.
    pub(crate) unsafe fn one(start: *const c_void, length: usize) -> Result<Pieces, Failure> {
        if isize::try_from(length).is_err() {
            return Err(Failure(FI_EINVAL));
        }
        if start.is_null() && length > 0 {
            warn_null_buffer(length);
            return Ok(Pieces {
                null_bytes: length,
                ..Pieces::none()
            });
        }
        let mut list = [NONE; MAX_PIECES];
        list[0] = Piece {
            start: start.cast_mut().cast(),
            length,
        };
        Ok(Pieces {
            list,
            count: 1,
            length,
            null_bytes: 0,
        })
    }

    pub(crate) const fn none() -> Pieces {
        Pieces {
            list: [NONE; MAX_PIECES],
            count: 1,
            length: 0,
            null_bytes: 0,
        }
    }

    /// The buffer that a vector describes.
    ///
    /// # Safety
    /// `vector` is null or points to `count` elements, each of which meets the contract of
    /// [`one`](Self::one).
    pub(crate) unsafe fn many(vector: *const libc::iovec, count: usize) -> Result<Pieces, Failure> {
        if count > MAX_PIECES || (vector.is_null() && count > 0) {
            return Err(Failure(FI_EINVAL));
        }
        let mut pieces = Pieces {
            list: [NONE; MAX_PIECES],
            count,
            length: 0,
            null_bytes: 0,
        };
        let mut total = 0_usize;
        for index in 0..count {
            // SAFETY: within the vector by contract.
            let element = unsafe { vector.add(index).read() };
            // SAFETY: the caller's contract is the same.
            let piece = unsafe { Pieces::one(element.iov_base, element.iov_len) }?;
            pieces.list[index] = piece.list[0];
            let bytes = piece.length + piece.null_bytes;
            total = total.checked_add(bytes).ok_or(Failure(FI_EINVAL))?;
            pieces.length += piece.length;
            pieces.null_bytes += piece.null_bytes;
        }
        if pieces.null_bytes > 0 {
            // Pieces after the null one would be filled with the wrong bytes.
            return Ok(Pieces {
                null_bytes: total,
                ..Pieces::none()
            });
        }
        Ok(pieces)
    }

    /// Rejects a buffer with bytes at address 0. Sends do not use this: they
    /// [fail](crate::exchange::Exchange::send) on both sides.
    pub(crate) fn non_null(self) -> Result<Pieces, Failure> {
        match self.null_bytes {
            0 => Ok(self),
            _ => Err(Failure(FI_EINVAL)),
        }
    }

    /// The number of bytes at address 0.
    #[inline]
    pub(crate) fn null_bytes(&self) -> usize {
        self.null_bytes
    }

    /// The number of bytes in all pieces.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The address of the first piece, as completions report it.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.list[0].start.addr()
    }

    #[inline]
    pub(crate) fn gather(&self, into: &mut Vec<u8>) {
        for piece in &self.list[..self.count] {
            if piece.length > 0 {
                // SAFETY: not null as it has bytes, readable by the contract of `one`.
                let bytes = unsafe { slice::from_raw_parts(piece.start, piece.length) };
                into.extend_from_slice(bytes);
            }
        }
    }

    /// Copies in as many of the bytes as fit.
    #[inline]
    pub(crate) fn fill(&self, mut bytes: &[u8]) {
        for piece in &self.list[..self.count] {
            let length = piece.length.min(bytes.len());
            let (now, rest) = bytes.split_at(length);
            if length > 0 {
                // SAFETY: not null because it has bytes; by the contract of `one` valid for writes of
                // `length` bytes that no other thread accesses.
                unsafe { ptr::copy_nonoverlapping(now.as_ptr(), piece.start, length) };
            }
            bytes = rest;
        }
    }

    /// Calls `copy` to write as many of `length` bytes as fit: it gets a range of them and the
    /// buffer for that range.
    #[inline]
    pub(crate) fn fill_with(&self, length: usize, mut copy: impl FnMut(Range<usize>, &mut [u8])) {
        let mut at = 0;
        for piece in &self.list[..self.count] {
            let part = piece.length.min(length - at);
            if part > 0 {
                // SAFETY: not null because it has bytes; by the contract of `one` valid for writes of
                // `part` bytes that no other thread accesses.
                let buffer = unsafe { slice::from_raw_parts_mut(piece.start, part) };
                copy(at..at + part, buffer);
            }
            at += part;
        }
    }

    /// A part of the buffer, which must be in the first piece.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Pieces {
        let first = self.list[0];
        assert!(offset + length <= first.length, "a part lies inside");
        let mut list = [NONE; MAX_PIECES];
        list[0] = Piece {
            start: first.start.wrapping_add(offset),
            length,
        };
        Pieces {
            list,
            count: 1,
            length,
            null_bytes: 0,
        }
    }

    /// The first `length` bytes as memory for operations, in parts of at most `most` bytes, each
    /// with its offset.
    pub(crate) fn regions(&self, length: usize, most: usize) -> Vec<(usize, RegisteredMemory)> {
        let (mut regions, mut at) = (Vec::new(), 0);
        for piece in &self.list[..self.count] {
            let mut inside = 0;
            while inside < piece.length && at < length {
                let part = (piece.length - inside).min(length - at).min(most);
                let start = piece.start.wrapping_add(inside);
                // SAFETY: within the piece, to which the contract of `one` applies for as long.
                regions.push((at, unsafe { RegisteredMemory::new(start, part) }));
                inside += part;
                at += part;
            }
        }
        regions
    }

    /// All bytes as memory that peers read; copied unless they are in one piece.
    pub(crate) fn as_region(&self) -> RegisteredMemory {
        if self.count == 1 {
            // SAFETY: by the contract of `one`; a region that is only read is not written to.
            return unsafe { RegisteredMemory::new(self.list[0].start, self.length) };
        }
        self.copied_region()
    }

    /// A copy of all bytes as memory that peers read.
    pub(crate) fn copied_region(&self) -> RegisteredMemory {
        let mut bytes = Vec::with_capacity(self.length);
        self.gather(&mut bytes);
        RegisteredMemory::owned(bytes)
    }

    /// All bytes, shared until the operation completes; copied unless they are in one piece.
    pub(crate) fn shared(&self) -> Bytes {
        struct Shared(Pieces);
        // SAFETY: not written to until the operation completes, by the contract of `one`.
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                let piece = &self.0.list[0];
                // SAFETY: not null as it has bytes; readable until the operation completes.
                unsafe { slice::from_raw_parts(piece.start, piece.length) }
            }
        }
        if self.length == 0 {
            Bytes::new()
        } else if self.count == 1 {
            Bytes::from_owner(Shared(*self))
        } else {
            let mut bytes = Vec::with_capacity(self.length);
            self.gather(&mut bytes);
            bytes.into()
        }
    }
}

/// Warns the user, once: MPI libraries report only that a message failed or did not fit.
#[cold]
fn warn_null_buffer(length: usize) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        eprintln!(
            "dipole: an operation on {length} bytes at address 0 fails. Open MPI 4.1 loses the \
             address of datatypes based on MPI_BOTTOM: pass a buffer, or set OMPI_MCA_pml=ob1"
        );
    });
}

/// Memory that peers can access until this is dropped.
#[derive(Debug)]
pub(crate) struct RegisteredMemory {
    pub(crate) memory: RegionMemory,
    _bytes: Vec<u8>,
}

impl RegisteredMemory {
    /// # Safety
    /// As long as this lives, `start` is valid for reads of `length` bytes, and for writes if a peer
    /// is allowed to write. The program has to synchronize its own accesses with those of peers.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> RegisteredMemory {
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        RegisteredMemory {
            // SAFETY: the contract is the same; revoked when this is dropped.
            memory: unsafe { RegionMemory::from_raw(start, length) },
            _bytes: Vec::new(),
        }
    }

    fn owned(mut bytes: Vec<u8>) -> RegisteredMemory {
        // SAFETY: the vector is not accessed as long as this lives.
        let lent = unsafe { RegisteredMemory::new(bytes.as_mut_ptr(), bytes.len()) };
        let memory = lent.memory.clone();
        std::mem::forget(lent);
        RegisteredMemory {
            memory,
            _bytes: bytes,
        }
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        self.memory.revoke();
    }
}
