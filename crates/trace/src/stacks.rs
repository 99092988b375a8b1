//! From where the program called: stacks of calls, as places in files. Which function
//! and line a place is of is found out by whoever reads the trace.
//!
//! Looking at the stack takes some microseconds. It is looked at each time if that takes less than
//! a two-hundredth of the time; else only where that call was not yet seen with the stack as deep as
//! it is, and otherwise taken to be as it was there.

use std::fs;
use std::os::unix::fs::MetadataExt;

use dipole_link::clock::monotonic_ns;
use rustc_hash::FxHashMap;

use crate::bytes::{narrow, put32, put64};
use crate::modules::{Frame, MOST_FRAMES, Module, STACK};
use crate::ring::Ring;

/// Places of code that may be looked at whatever it takes.
const FREE_PLACES: usize = 256;
/// The share of time that looking may take, by one.
const SHARE: u64 = 200;

/// A part of a module in memory.
#[derive(Debug)]
struct Mapped {
    from: u64,
    to: u64,
    offset: u64,
    module: u32,
}

/// Which stacks and modules a file has already.
#[derive(Debug)]
pub struct Stacks {
    begun_ns: u64,
    spent_ns: u64,
    /// How long the last look took.
    looked_ns: u64,
    /// Stacks by the addresses in them.
    known: FxHashMap<Vec<usize>, u32>,
    /// The stack seen last, by the number of the call and how deep the stack was.
    places: FxHashMap<(u32, usize), u32>,
    mapped: Vec<Mapped>,
    modules: FxHashMap<String, u32>,
    addresses: Vec<usize>,
}

impl Stacks {
    /// For a file of its own, from that time on.
    #[must_use]
    pub fn new(begun_ns: u64) -> Stacks {
        Stacks {
            begun_ns,
            spent_ns: 0,
            looked_ns: 0,
            known: FxHashMap::default(),
            places: FxHashMap::default(),
            mapped: Vec::new(),
            modules: FxHashMap::default(),
            addresses: Vec::new(),
        }
    }

    /// How long the last look took; 0 if there was none.
    #[must_use]
    pub fn looked_ns(&self) -> u64 {
        self.looked_ns
    }

    /// The number of the stack of the call `site` that is under way.
    pub fn here(&mut self, site: u32, now_ns: u64, ring: &mut Ring) -> u32 {
        let marker = 0_u8;
        let place = (site, std::ptr::from_ref(&marker).addr());
        self.looked_ns = 0;
        let is_cheap = self.spent_ns * SHARE <= now_ns.saturating_sub(self.begun_ns);
        let seen = self.places.get(&place);
        match seen {
            Some(stack) if !is_cheap => return *stack,
            None if !is_cheap && self.places.len() >= FREE_PLACES => return 0,
            _ => {}
        }
        let stack = self.look(ring);
        self.places.insert(place, stack);
        self.looked_ns = monotonic_ns().saturating_sub(now_ns);
        self.spent_ns += self.looked_ns;
        stack
    }

    fn look(&mut self, ring: &mut Ring) -> u32 {
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        backtrace::trace(|frame| {
            // The instruction that calls lies before the one to return to.
            addresses.push(frame.ip().addr().saturating_sub(1));
            addresses.len() < MOST_FRAMES
        });
        let known = self.known.get(&addresses).copied();
        let stack = known.unwrap_or_else(|| self.add(&addresses, ring));
        self.addresses = addresses;
        stack
    }

    /// A stack not seen before; 0 if there is no room for it.
    fn add(&mut self, addresses: &[usize], ring: &mut Ring) -> u32 {
        let mut bytes = Vec::new();
        put32(&mut bytes, STACK);
        put32(&mut bytes, narrow(addresses.len()));
        for address in addresses {
            let frame = self.frame(*address as u64, ring);
            put32(&mut bytes, frame.module);
            put64(&mut bytes, frame.offset);
        }
        let next = narrow(self.known.len() + 1);
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
        // A library may have been loaded since.
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

/// The range, the offset in the file and the file of a line of `/proc/self/maps`, if code of a file
/// is there.
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
    let mut bytes = Vec::new();
    let module = Module {
        path: path.to_owned(),
        bytes: of_file.as_ref().map_or(0, MetadataExt::size),
        written_s: of_file.as_ref().map_or(0, MetadataExt::mtime),
    };
    module.encode(&mut bytes);
    ring.add_stack(&bytes).then_some(narrow(number))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::modules::decode;
    use crate::ring::{BLOCKS_AT, STACKS_AT};

    #[test]
    fn lines_of_maps_tell_where_code_lies() {
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
        // All time there is may be spent.
        let now_ns = monotonic_ns();
        // Were the loop unrolled, each turn would be another call.
        for _ in 0..std::hint::black_box(3) {
            assert_eq!(stacks.here(0, now_ns, &mut ring), 1);
        }
        let other = stacks.here(1, now_ns, &mut ring);
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
            assert!(stack.len() > 3 && stack.len() <= MOST_FRAMES, "{stack:?}");
        }
        // No time is left: what was seen with the stack as deep is taken, and something new is looked at.
        stacks.spent_ns = 1 << 50;
        for _ in 0..std::hint::black_box(2) {
            assert_eq!(stacks.here(2, now_ns, &mut ring), 3);
        }
        assert_eq!(stacks.known.len(), 3);
    }

    proptest! {
        #[test]
        fn random_lists_are_read_without_panic(bytes in vec(any::<u8>(), 0..200), kind in 0..3_u32) {
            let mut list = Vec::new();
            put32(&mut list, narrow(bytes.len() + 4));
            put32(&mut list, kind);
            list.extend(bytes);
            let _read = decode(&list);
        }

        #[test]
        fn random_lines_are_read_without_panic(line in ".*") {
            let _read = executable(&line);
        }
    }
}
