//! A set of addresses, sent by a process to its child after the fork.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::ranges::Ranges;

const WORD: usize = size_of::<u64>();

/// The list is in a file, so the sender never waits. The pipe is closed when all of it is written.
#[derive(Debug)]
pub(crate) struct Transfer {
    list: File,
    ended: PipeReader,
    own: PipeWriter,
}

impl Transfer {
    pub(crate) fn new() -> io::Result<Transfer> {
        const NAME: &str = "dipole-pages";
        let (ended, own) = io::pipe()?;
        let list = match memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
            // The kernel is older than 6.3.
            Err(Errno::INVAL) => memfd_create(NAME, MemfdFlags::CLOEXEC)?,
            created => created?,
        };
        Ok(Transfer {
            list: list.into(),
            ended,
            own,
        })
    }

    /// Sends the addresses.
    pub(crate) fn send(mut self, ranges: &Ranges) -> io::Result<()> {
        let mut words = Vec::with_capacity(1 + 2 * ranges.len());
        words.push(ranges.len() as u64);
        words.extend(ranges.iter().flat_map(|(start, end)| [start, end]));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.list.write_all(&bytes)
    }

    /// The descriptors that the receiver needs.
    pub(crate) fn receiving(&self) -> [RawFd; 2] {
        [self.list.as_raw_fd(), self.ended.as_raw_fd()]
    }

    /// Waits for the addresses. The receiver must have closed its copy of the other descriptor.
    pub(crate) fn receive(self) -> io::Result<Ranges> {
        let Transfer {
            list,
            mut ended,
            own,
        } = self;
        // It is closed already, and its number may belong to something else.
        std::mem::forget(own);
        ended.read_to_end(&mut Vec::new())?;
        let mut bytes = Vec::new();
        let length = list.metadata()?.len();
        bytes.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        std::os::unix::fs::FileExt::read_exact_at(&list, &mut bytes, 0)?;
        let words: Vec<u64> = bytes
            .chunks_exact(WORD)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect();
        match words.split_first() {
            Some((count, words)) if words.len() as u64 == 2 * count => {
                let (pairs, _) = words.as_chunks::<2>();
                Ok(pairs.iter().map(|[start, end]| (*start, *end)).collect())
            }
            _ => Err(io::Error::other(
                "the program has ended, or the kernel has not reported what it wrote",
            )),
        }
    }
}
