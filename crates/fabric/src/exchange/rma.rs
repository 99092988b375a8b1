//! Operations of the program on others' memory.

use dipole_node::{Bytes, Operation, RegionKey};

use super::{Entry, Exchange, Pending, failed};
use crate::abi::fabric::{FI_READ, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA, FI_WRITE};
use crate::guard::Failure;
use crate::memory::{Lent, Pieces};
use crate::name::{Name, number};
use crate::wire::{Head, Kind};

/// Longest piece that one operation reads.
const MOST_READ_BYTES: usize = 16 << 20;

/// An operation of the program on another's memory.
pub(super) struct Remote {
    left: usize,
    wanted: bool,
    failure: Option<Failure>,
    entry: Entry,
    /// Whom to tell that it is there, and the data.
    tell: Option<(Name, u64)>,
    _memory: Vec<Lent>,
}

/// What the program asks of another's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) local: Pieces,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) context: usize,
    pub(crate) wanted: bool,
    /// The local memory is the program's again when the call returns.
    pub(crate) is_copied: bool,
    /// What the owner's queue tells when all is there.
    pub(crate) data: Option<u64>,
}

impl Asked {
    fn entry(&self, flag: u64) -> Entry {
        Entry {
            context: self.context,
            flags: FI_RMA | flag,
            length: self.local.length(),
            ..Entry::default()
        }
    }
}

impl Exchange {
    /// Writes to a region of another's.
    ///
    /// # Errors
    /// `AGAIN`; the peer is gone.
    pub(crate) fn write(&mut self, to: &Name, asked: &Asked) -> Result<(), Failure> {
        let number = self.next();
        let edge = &self.edge(to.regions, Some(to.ports))?.edge;
        let put = Operation::Put {
            key: RegionKey(asked.key),
            offset: asked.offset,
            notice: None,
        };
        let bytes = match asked.is_copied {
            true => {
                let mut bytes = Vec::with_capacity(asked.local.length());
                asked.local.gather(&mut bytes);
                Bytes::from(bytes)
            }
            false => asked.local.shared(),
        };
        let posted = edge.post_bytes(put, bytes, number);
        posted.map_err(|error| failed(&error))?;
        self.posted += 1;
        let remote = Remote {
            left: 1,
            wanted: asked.wanted,
            failure: None,
            entry: asked.entry(FI_WRITE),
            tell: asked.data.map(|data| (*to, data)),
            _memory: Vec::new(),
        };
        self.pending.insert(number, Pending::Remote(remote));
        Ok(())
    }

    /// Reads from a region of another's.
    ///
    /// # Errors
    /// `AGAIN`; the peer is gone.
    pub(crate) fn read(&mut self, from: &Name, asked: &Asked) -> Result<(), Failure> {
        let number = self.next();
        let edge = &self.edge(from.regions, Some(from.ports))?.edge;
        let parts = asked.local.regions(asked.local.length(), MOST_READ_BYTES);
        let (mut memory, mut failure, mut left) = (Vec::new(), None, 0);
        for (offset, into) in parts {
            let at = asked.offset + offset as u64;
            match edge.post_get(RegionKey(asked.key), at, into.memory.clone(), number) {
                Ok(()) => {
                    left += 1;
                    memory.push(into);
                }
                Err(error) if left == 0 => return Err(failed(&error)),
                // The program learns that with the parts that have begun.
                Err(error) => {
                    failure = Some(failed(&error));
                    break;
                }
            }
        }
        if left == 0 {
            self.sinks.complete(asked.wanted, asked.entry(FI_READ));
            return Ok(());
        }
        self.posted += left;
        let remote = Remote {
            left,
            wanted: asked.wanted,
            failure,
            entry: asked.entry(FI_READ),
            tell: None,
            _memory: memory,
        };
        self.pending.insert(number, Pending::Remote(remote));
        Ok(())
    }

    pub(super) fn remote_goes_on(
        &mut self,
        number: u64,
        mut remote: Remote,
        result: Result<(), Failure>,
    ) {
        remote.left -= 1;
        remote.failure = remote.failure.or(result.err());
        if remote.left > 0 {
            self.pending.insert(number, Pending::Remote(remote));
            return;
        }
        if let (None, Some((to, data))) = (remote.failure, remote.tell) {
            remote.failure = self.tell(&to, remote.entry.length, data).err();
        }
        let failure = remote.failure.map(|Failure(number)| (number, 0));
        let entry = Entry {
            failure,
            ..remote.entry
        };
        self.sinks.complete(remote.wanted, entry);
    }

    /// Tells the owner of memory that so many bytes were written there. They are in their place
    /// already, so its program finds them.
    fn tell(&mut self, to: &Name, length: usize, data: u64) -> Result<(), Failure> {
        if to.messages == self.own.messages {
            self.written(length as u64, data, number(to.messages));
            return Ok(());
        }
        let head = Head {
            kind: Kind::Written,
            is_tagged: false,
            has_data: true,
            tag: length as u64,
            data,
        };
        self.send_bytes((to.messages, Some(to.ports)), &head.encode())
    }

    /// Another has written to memory of this process, and says so.
    pub(super) fn written(&mut self, length: u64, data: u64, source: u64) {
        let entry = Entry {
            flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
            length: usize::try_from(length).unwrap_or(usize::MAX),
            data,
            source,
            ..Entry::default()
        };
        self.sinks.complete(true, entry);
    }
}
