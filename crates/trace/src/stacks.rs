//! Call stacks of the traced program, as offsets in its executable and libraries. The reader of the
//! trace resolves them to functions and lines.
//!
//! Walking the stack takes some microseconds. As long as that is below 0.5 % of the run time, every
//! call walks it. Beyond, only a call that has not been seen at this stack depth does; other calls
//! reuse the stack that was seen there.

use std::fs;
use std::os::unix::fs::MetadataExt;

use dipole_link::clock::monotonic_ns;
use rustc_hash::FxHashMap;

use crate::bytes::{len_u32, put_value, truncated};
use crate::modules::{Entry, Frame, MAX_FRAMES, MAX_PATH_BYTES, Module};
use crate::ring::Ring;

/// Number of call sites and depths for which the stack is walked at any cost.
const FREE_SITES: usize = 256;
/// Walking takes at most 1/200 of the run time.
const SHARE: u64 = 200;

/// A mapped part of a module.
#[derive(Debug)]
struct Mapped {
    from: u64,
    to: u64,
    offset: u64,
    module: u32,
}

/// Stacks and modules that are already in the file.
#[derive(Debug)]
pub struct Stacks {
    begun_ns: u64,
    spent_ns: u64,
    /// Duration of the last walk.
    walk_ns: u64,
    /// Stack numbers by the addresses in them.
    known: FxHashMap<Vec<usize>, u32>,
    /// Last stack seen, by call site and stack depth.
    sites: FxHashMap<(u32, usize), u32>,
    mapped: Vec<Mapped>,
    modules: FxHashMap<String, u32>,
    addresses: Vec<usize>,
}

impl Stacks {
    /// Starts empty, for a new file.
    #[must_use]
    pub fn new(begun_ns: u64) -> Stacks {
        Stacks {
            begun_ns,
            spent_ns: 0,
            walk_ns: 0,
            known: FxHashMap::default(),
            sites: FxHashMap::default(),
            mapped: Vec::new(),
            modules: FxHashMap::default(),
            addresses: Vec::new(),
        }
    }

    /// Duration of the walk in the last [`record`](Self::record); 0 without one.
    #[must_use]
    pub fn walk_ns(&self) -> u64 {
        self.walk_ns
    }

    /// Adds the current call stack of call site `site` to the file; returns its number.
    pub fn record(&mut self, site: u32, now_ns: u64, ring: &mut Ring) -> u32 {
        let marker = 0_u8;
        let call = (site, std::ptr::from_ref(&marker).addr());
        self.walk_ns = 0;
        let is_cheap = self.spent_ns * SHARE <= now_ns.saturating_sub(self.begun_ns);
        let seen = self.sites.get(&call);
        match seen {
            Some(stack) if !is_cheap => return *stack,
            None if !is_cheap && self.sites.len() >= FREE_SITES => return 0,
            _ => {}
        }
        let stack = self.walk(ring);
        self.sites.insert(call, stack);
        self.walk_ns = monotonic_ns().saturating_sub(now_ns);
        self.spent_ns += self.walk_ns;
        stack
    }

    fn walk(&mut self, ring: &mut Ring) -> u32 {
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        backtrace::trace(|frame| {
            // The return address follows the call instruction.
            addresses.push(frame.ip().addr().saturating_sub(1));
            addresses.len() < MAX_FRAMES
        });
        let known = self.known.get(&addresses).copied();
        let stack = known.unwrap_or_else(|| self.add(&addresses, ring));
        self.addresses = addresses;
        stack
    }

    /// Adds a new stack; returns 0 if there is no room for it.
    fn add(&mut self, addresses: &[usize], ring: &mut Ring) -> u32 {
        let frames = addresses.iter();
        let frames = frames.map(|address| self.frame(*address as u64, ring));
        let frames = frames.collect();
        let mut bytes = Vec::new();
        put_value(&mut bytes, &Entry::Stack(frames));
        let next = len_u32(self.known.len() + 1);
        if !ring.add_stack(&bytes) {
            return 0;
        }
        self.known.insert(addresses.to_vec(), next);
        next
    }

    fn frame(&mut self, address: u64, ring: &mut Ring) -> Frame {
        let find = |mapped: &[Mapped]| {
            let mut parts = mapped.iter();
            let part = parts.find(|part| (part.from..part.to).contains(&address))?;
            Some(Frame {
                module: part.module,
                offset: address - part.from + part.offset,
            })
        };
        // A library may have been loaded since the maps were read.
        find(&self.mapped)
            .or_else(|| {
                self.read_maps(ring);
                find(&self.mapped)
            })
            .unwrap_or(Frame {
                module: u32::MAX,
                offset: address,
            })
    }

    fn read_maps(&mut self, ring: &mut Ring) {
        let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        self.mapped.clear();
        for line in text.lines() {
            let Some((from, to, offset, path)) = executable(line) else {
                continue;
            };
            let module = match self.modules.get(path) {
                Some(known) => *known,
                None => {
                    let Some(number) = add_module(path, self.modules.len(), ring) else {
                        continue;
                    };
                    self.modules.insert(path.to_owned(), number);
                    number
                }
            };
            self.mapped.push(Mapped {
                from,
                to,
                offset,
                module,
            });
        }
    }
}

/// Start, end, file offset and path of a line of `/proc/self/maps`, if the mapping is executable
/// and belongs to a file.
fn executable(line: &str) -> Option<(u64, u64, u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let is_code = words.next()?.contains('x');
    let offset = words.next()?;
    let path = line.find('/').map(|at| &line[at..])?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    is_code.then_some(())?;
    Some((number(from)?, number(to)?, number(offset)?, path))
}

fn add_module(path: &str, number: usize, ring: &mut Ring) -> Option<u32> {
    let of_file = fs::metadata(path).ok();
    let module = Module {
        path: truncated(path, MAX_PATH_BYTES).to_owned(),
        bytes: of_file.as_ref().map_or(0, MetadataExt::size),
        written_s: of_file.as_ref().map_or(0, MetadataExt::mtime),
    };
    let mut bytes = Vec::new();
    put_value(&mut bytes, &Entry::Module(module));
    ring.add_stack(&bytes).then_some(len_u32(number))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::bytes::put32;
    use crate::modules::decode;
    use crate::ring::{BLOCKS_AT, STACKS_AT};

    #[test]
    fn lines_of_maps_give_the_addresses_of_code() {
        let line = "55d0c0a01000-55d0c0a05000 r-xp 00002000 fe:01 1234   /usr/bin/a program";
        let found = executable(line).expect("code");
        assert_eq!(
            found,
            (
                0x55d0_c0a0_1000,
                0x55d0_c0a0_5000,
                0x2000,
                "/usr/bin/a program"
            )
        );
        for other in [
            "55d0c0a01000-55d0c0a05000 r--p 00002000 fe:01 1234   /usr/bin/a",
            "7ffd1000-7ffd2000 r-xp 00000000 00:00 0   [vdso]",
            "",
            "x-y r-xp z",
        ] {
            assert_eq!(executable(other), None, "{other}");
        }
    }

    #[test]
    fn modules_and_stacks_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.trace");
        let mut ring = Ring::create(&file, &[], 1).expect("it can be written");
        let mut stacks = Stacks::new(0);
        // The time budget is unlimited.
        let now_ns = monotonic_ns();
        // If the loop were unrolled, each iteration would be a call site of its own.
        for _ in 0..std::hint::black_box(3) {
            assert_eq!(stacks.record(0, now_ns, &mut ring), 1);
        }
        let other = stacks.record(1, now_ns, &mut ring);
        assert_eq!(other, 2, "another line calls");
        let bytes = fs::read(file).expect("it is there");
        let (modules, found) = decode(&bytes[STACKS_AT..BLOCKS_AT]).expect("as written");
        let own = std::env::current_exe().expect("this program");
        assert!(
            modules
                .iter()
                .any(|module| Some(&*module.path) == own.to_str())
        );
        assert_eq!(found.len(), 2);
        for stack in &found {
            assert!(stack.len() > 3 && stack.len() <= MAX_FRAMES, "{stack:?}");
        }
        // The time budget is used up: known call sites reuse their stack, new ones are still
        // walked.
        stacks.spent_ns = 1 << 50;
        for _ in 0..std::hint::black_box(2) {
            assert_eq!(stacks.record(2, now_ns, &mut ring), 3);
        }
        assert_eq!(stacks.known.len(), 3);
    }

    proptest! {
        #[test]
        fn random_lists_are_read_without_panic(bytes in vec(any::<u8>(), 0..200), kind in 0..3_u8) {
            let mut list = Vec::new();
            put32(&mut list, len_u32(bytes.len() + 1));
            list.push(kind);
            list.extend(bytes);
            let _read = decode(&list);
        }

        #[test]
        fn random_lines_are_read_without_panic(line in ".*") {
            let _read = executable(&line);
        }
    }
}
