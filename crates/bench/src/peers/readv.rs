//! `bare-readv`: one `process_vm_readv` per message between two pinned threads, the kernel's copy
//! between address spaces.
//!
//! Work: the sender publishes the address of its message, and the receiver lets the kernel copy it
//! once and confirms. Short messages, at the beginning and end of a measurement, use `Shm`. Both
//! threads belong to one process, which only saves the permission check: the kernel still finds and
//! pins the sender's pages. Like `Shm` this is an upper limit, not a competitor.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getpid;

use crate::channel::{Channel, SendMode, broken};
use crate::peers::shm::Shm;
use crate::work::Workload;

/// From this length on the kernel copies messages.
const LONG_BYTES: usize = 2048;

/// Address of the pending message; 0 if no message is pending.
#[repr(align(128))]
struct Offer(AtomicUsize);

/// One end of the connection.
pub(crate) struct Readv {
    short: Shm,
    out: Arc<Offer>,
    offered: bool,
    inward: Arc<Offer>,
    message: Vec<u8>,
}

impl Readv {
    /// Creates the two ends for this work.
    pub(crate) fn pair(work: &Workload) -> (Self, Self) {
        let [there, back] = [(); 2].map(|()| Arc::new(Offer(AtomicUsize::new(0))));
        let (lead, follow) = Shm::pair(work);
        let end = |short, out: &Arc<Offer>, inward: &Arc<Offer>| Self {
            short,
            out: Arc::clone(out),
            offered: false,
            inward: Arc::clone(inward),
            message: vec![0; work.size_bytes],
        };
        (end(lead, &there, &back), end(follow, &back, &there))
    }
}

impl Channel for Readv {
    fn try_send(&mut self, payload: &[u8], mode: SendMode) -> io::Result<bool> {
        if payload.len() < LONG_BYTES {
            return self.short.try_send(payload, mode);
        }
        if !self.offered {
            // Release: the message has been written.
            (self.out.0).store(payload.as_ptr().addr(), Ordering::Release);
            self.offered = true;
        }
        // Acquire: the message has been read before it is written again.
        self.offered = self.out.0.load(Ordering::Acquire) != 0;
        Ok(!self.offered)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        if length < LONG_BYTES {
            return self.short.try_receive(length, consume);
        }
        let base = self.inward.0.load(Ordering::Acquire);
        if base == 0 {
            return Ok(None);
        }
        let message = &mut self.message[..length];
        let from = [RemoteIoVec { base, len: length }];
        let copied = process_vm_readv(getpid(), &mut [IoSliceMut::new(message)], &from)?;
        if copied != length {
            return Err(broken(format!("{copied} of {length} bytes were copied")));
        }
        self.inward.0.store(0, Ordering::Release);
        Ok(Some(consume(&self.message[..length])))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::Kind;

    #[test]
    fn a_message_is_copied_once_it_is_shown_and_sent_once_it_is_copied() {
        let work = Workload {
            kind: Kind::Stream,
            size_bytes: 5000,
            duration: Duration::ZERO,
            unreliable: false,
            block: false,
            may_lose: false,
            threads: true,
            two_threads_a_side: false,
        };
        let (mut one, mut other) = Readv::pair(&work);
        let sent: Vec<u8> = (0..5000_usize)
            .map(|index| index.to_le_bytes()[0])
            .collect();
        assert!(!one.try_send(&sent, SendMode::Now).expect("no error"));
        let received = other.try_receive(5000, <[u8]>::to_vec).expect("no error");
        assert_eq!(received.as_ref(), Some(&sent));
        assert!(one.try_send(&sent, SendMode::Now).expect("no error"));
        assert_eq!(
            other.try_receive(5000, <[u8]>::len).expect("no error"),
            None
        );
    }
}
