//! The file of a rank's trace while it is written: mapped memory, which outlives a killed process.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use dipole_link::window::{Source, Window};

use super::format::{
    BLOCK_BYTES, BLOCK_HEAD_BYTES, BLOCKS_AT, HEAD_BYTES, Header, SITE_BYTES, STACK_BYTES,
    STACKS_AT, STATE_AT, Site, State, Step, file_name,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Ring {
    window: Window,
    blocks: usize,
    /// Of the block that is filled, from 1 on.
    sequence: u64,
    used: usize,
    /// Bytes of sites, behind the word that tells it.
    site_bytes: usize,
    /// Bytes of stacks, likewise.
    stack_bytes: usize,
    record: Vec<u8>,
}

impl Ring {
    /// A new file in `directory`, in place of one of that rank's that may be there. Its bytes are
    /// taken from the disk at once: nothing can fail later.
    pub(super) fn create(directory: &Path, header: &Header, blocks: usize) -> io::Result<Ring> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(file_name(header.rank));
        let fresh = path.with_extension(format!("{}.fresh", std::process::id()));
        let made = Ring::fill(&fresh, header, blocks);
        // Whoever still maps the old file keeps that.
        let placed = made.and_then(|ring| std::fs::rename(&fresh, &path).map(|()| ring));
        if placed.is_err() {
            let _gone = std::fs::remove_file(&fresh);
        }
        placed
    }

    fn fill(path: &Path, header: &Header, blocks: usize) -> io::Result<Ring> {
        let length = BLOCKS_AT + blocks * BLOCK_BYTES;
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        let window = Window::of_file(file.into(), length)?;
        window.write(0, Source::from(&header.encode()[..]));
        Ok(Ring {
            window,
            blocks,
            sequence: 0,
            used: BLOCK_BYTES,
            site_bytes: 0,
            stack_bytes: 0,
            record: Vec::new(),
        })
    }

    /// Adds a site; false if there is no room.
    pub(super) fn add_site(&mut self, site: &Site) -> bool {
        let mut bytes = Vec::new();
        site.encode(&mut bytes);
        let used = self.append(HEAD_BYTES, SITE_BYTES, self.site_bytes, &bytes);
        self.site_bytes = used.unwrap_or(self.site_bytes);
        used.is_some()
    }

    /// Adds encoded stacks or modules; false if there is no room.
    pub(super) fn add_stack(&mut self, bytes: &[u8]) -> bool {
        let used = self.append(STACKS_AT, STACK_BYTES, self.stack_bytes, bytes);
        self.stack_bytes = used.unwrap_or(self.stack_bytes);
        used.is_some()
    }

    /// Adds to one of the lists; how much is used then, if there is room.
    fn append(&self, list_at: usize, room: usize, used: usize, bytes: &[u8]) -> Option<usize> {
        if used + bytes.len() > room - 4 {
            return None;
        }
        self.window.write(list_at + 4 + used, Source::from(bytes));
        let used = used + bytes.len();
        let word = self.window.half_word(list_at);
        word.store(u32::try_from(used).ok()?.to_le(), Ordering::Release);
        Some(used)
    }

    /// Adds a record, over the oldest if there is no other room.
    pub(super) fn push(&mut self, step: &Step) {
        self.record.clear();
        step.encode(&mut self.record);
        if self.used + self.record.len() > BLOCK_BYTES - BLOCK_HEAD_BYTES {
            let at = self.block_at(self.sequence);
            self.sequence += 1;
            self.used = 0;
            // In this order: nobody takes its old records for new ones.
            self.window.word(at + 8).store(0, Ordering::Release);
            let sequence = self.window.word(at);
            sequence.store(self.sequence.to_le(), Ordering::Release);
        }
        let at = self.block_at(self.sequence - 1);
        let place = at + BLOCK_HEAD_BYTES + self.used;
        self.window.write(place, Source::from(&self.record[..]));
        self.used += self.record.len();
        let used = self.window.word(at + 8);
        used.store((self.used as u64).to_le(), Ordering::Release);
    }

    /// Where the block is that is filled after so many others.
    fn block_at(&self, before: u64) -> usize {
        let index = before % self.blocks as u64;
        BLOCKS_AT + usize::try_from(index).unwrap_or(0) * BLOCK_BYTES
    }

    /// Says how the program ended.
    pub(super) fn close(&self, state: State) {
        let word = self.window.half_word(STATE_AT);
        word.store((state as u32).to_le(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::format::TraceFile;

    fn header() -> Header {
        Header {
            state: State::Open,
            rank: 3,
            size: 4,
            nodes: 1,
            leader: 0,
            first: 1,
            run: 1,
            begun_ns: 0,
            begun_unix_ns: 0,
            link: "shm".into(),
            host: String::new(),
        }
    }

    #[test]
    fn a_full_ring_keeps_the_newest_and_a_new_run_replaces_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let within = directory.path().join("a/b");
        let mut ring = Ring::create(&within, &header(), 3).expect("it can be written");
        let site = Site {
            call: "sync".into(),
            file: String::new(),
            line: 0,
        };
        assert!(ring.add_site(&site));
        let read = || {
            let bytes = std::fs::read(within.join(file_name(3))).expect("it is there");
            TraceFile::parse(&bytes).expect("a trace")
        };
        for epoch in 0..4000 {
            ring.push(&Step {
                epoch,
                ..Step::default()
            });
            if epoch == 10 {
                let trace = read();
                assert_eq!((trace.steps.len(), trace.is_wrapped), (11, false));
                assert_eq!(trace.header.state, State::Open);
            }
        }
        let trace = read();
        assert!(trace.is_wrapped && trace.damaged_blocks == 0 && trace.steps.len() > 1500);
        let first = trace.steps[0].epoch;
        let epochs = trace.steps.iter().map(|step| step.epoch);
        assert!(epochs.eq(first..4000));
        let newest = TraceFile::newest(&within.join(file_name(3))).expect("a trace");
        let last = newest.steps.last().map(|step| step.epoch);
        assert!(last == Some(3999) && newest.steps.len() < trace.steps.len());
        ring.close(State::Ended);
        assert_eq!(read().header.state, State::Ended);
        let mut other = Ring::create(&within, &header(), 1).expect("in its place");
        // The old one goes on without harm, where nobody sees it.
        ring.push(&Step::default());
        assert!(other.add_site(&site));
        assert_eq!(read().steps, []);
        assert_eq!(std::fs::read_dir(&within).expect("there").count(), 1);
    }
}
