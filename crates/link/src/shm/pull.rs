//! Reads another process's memory: one copy, no kernel buffers.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Maximum bytes per system call; below the kernel's own limit.
const CALL_BYTES: usize = 1 << 30;
const PROBE_BYTES: usize = size_of::<u64>();

/// A random number in a process's memory, and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Where the number is in the memory of its process.
    pub at: u64,
    /// The random number at that address.
    pub number: u64,
}

impl Probe {
    /// The probe for `number`, valid while it stays at this address.
    #[must_use]
    pub fn of(number: &u64) -> Probe {
        Probe {
            at: std::ptr::from_ref(number).expose_provenance() as u64,
            number: *number,
        }
    }
}

/// The probe that peers check before they read our memory.
#[derive(Debug)]
pub struct OwnProbe {
    word: Box<AtomicU64>,
    number: u64,
}

impl OwnProbe {
    /// Creates a probe with a random number.
    #[must_use]
    pub fn random() -> OwnProbe {
        let number = rand::random();
        OwnProbe {
            word: Box::new(AtomicU64::new(number)),
            number,
        }
    }

    /// The probe to send to peers.
    #[must_use]
    pub fn probe(&self) -> Probe {
        Probe {
            at: std::ptr::from_ref(&*self.word).expose_provenance() as u64,
            number: self.number,
        }
    }

    /// Makes reads by peers fail, including those in progress: the probe is read last.
    pub fn invalidate(&self) {
        self.word.store(!self.number, Ordering::Release);
        // The fence precedes any write to memory that peers could read.
        fence(Ordering::SeqCst);
    }

    /// Makes reads by peers succeed again.
    pub fn restore(&self) {
        self.word.store(self.number, Ordering::Release);
    }
}

/// Fills `into` from `address` in process `pid`, if that process has the probe: process ids
/// are reused, and another process's bytes must not be mistaken for the peer's. Each system
/// call reads both from the same process. With an empty `into` only the probe is checked.
///
/// # Errors
/// The error that the kernel returns, if the process is gone or the memory is not mapped; `NotConnected` if the probe
/// does not match.
pub fn pull(pid: i32, probe: Probe, address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut from = address;
    let mut rest = into;
    loop {
        let (part, behind) = rest.split_at_mut(rest.len().min(CALL_BYTES));
        pull_part(pid, probe, from, part)?;
        if behind.is_empty() {
            return Ok(());
        }
        from = from.wrapping_add(CALL_BYTES as u64);
        rest = behind;
    }
}

/// A range of another process's memory, and its destination here.
#[derive(Clone, Copy, Debug)]
pub struct PullRange {
    /// Its address in the other process.
    pub from: u64,
    /// Destination in this process.
    pub into: *mut u8,
    /// Its length in bytes.
    pub length: usize,
}

/// Maximum ranges per system call, not counting the probe (`IOV_MAX`).
pub const MAX_RANGES_PER_CALL: usize = 1023;

/// Reads many ranges in as few calls as possible; otherwise like [`pull`].
///
/// # Errors
/// The errors of [`pull`].
///
/// # Safety
/// Each `into` is writable for its length, not accessed meanwhile, and does not overlap others.
pub unsafe fn pull_ranges(pid: i32, probe: Probe, ranges: &[PullRange]) -> io::Result<()> {
    for some in ranges.chunks(MAX_RANGES_PER_CALL) {
        // SAFETY: the caller guarantees this.
        unsafe { fetch(pid, probe, some) }?;
    }
    Ok(())
}

fn pull_part(pid: i32, probe: Probe, address: u64, into: &mut [u8]) -> io::Result<()> {
    let range = PullRange {
        from: address,
        into: into.as_mut_ptr(),
        length: into.len(),
    };
    // SAFETY: the destination is a mutable slice of ours.
    unsafe { fetch(pid, probe, &[range]) }
}

/// Reads ranges and the probe with one system call.
///
/// # Safety
/// The requirements of [`pull_ranges`]; at most [`MAX_RANGES_PER_CALL`] ranges.
unsafe fn fetch(pid: i32, probe: Probe, ranges: &[PullRange]) -> io::Result<()> {
    let mut found = [0; PROBE_BYTES];
    let slice = |base: *mut u8, length| libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    };
    let there = |address: u64| {
        usize::try_from(address)
            .map(std::ptr::without_provenance_mut)
            .map_err(io::Error::other)
    };
    let count = ranges.len() + 1;
    let nothing = slice(std::ptr::null_mut(), 0);
    // Nearly all callers read one range, which needs no allocation.
    let (mut few, mut many);
    let vectors = match ranges.len() {
        0 | 1 => {
            few = [nothing; 4];
            &mut few[..2 * count]
        }
        _ => {
            many = vec![nothing; 2 * count];
            &mut many[..]
        }
    };
    let (local, remote) = vectors.split_at_mut(count);
    let mut wanted = PROBE_BYTES;
    for (at, range) in ranges.iter().enumerate() {
        local[at] = slice(range.into, range.length);
        remote[at] = slice(there(range.from)?, range.length);
        wanted += range.length;
    }
    local[count - 1] = slice(found.as_mut_ptr(), PROBE_BYTES);
    remote[count - 1] = slice(there(probe.at)?, PROBE_BYTES);
    let number = count as libc::c_ulong;
    let got = loop {
        // SAFETY: the kernel writes to the local addresses, which belong to the caller or to us,
        // are live and have the given lengths; it checks the remote addresses itself.
        let got = unsafe {
            libc::process_vm_readv(pid, local.as_ptr(), number, remote.as_ptr(), number, 0)
        };
        match usize::try_from(got) {
            Ok(got) => break got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    // The kernel stops before unmapped memory.
    if got != wanted {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    if u64::from_ne_bytes(found) != probe.number {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        i32::try_from(std::process::id()).expect("a process number")
    }

    fn address<T: ?Sized>(of: &T) -> u64 {
        std::ptr::from_ref(of).cast::<u8>().expose_provenance() as u64
    }

    #[test]
    fn memory_of_a_process_with_the_probe_is_copied() {
        let (bytes, number) = (vec![7_u8; 300_000], Box::new(11_u64));
        let probe = Probe {
            at: address(&*number),
            number: 11,
        };
        let mut into = vec![0; bytes.len()];
        pull(own(), probe, address(&bytes[..]), &mut into).expect("own memory");
        assert_eq!(into, bytes);
        pull(own(), probe, 0, &mut []).expect("only the probe");
    }

    #[test]
    fn pieces_come_from_anywhere_and_go_anywhere() {
        let bytes: Vec<u8> = (0..=255).cycle().take(40_000).collect();
        let number = Box::new(11_u64);
        let at = address(&*number);
        let probe = Probe { at, number: 11 };
        let mut into = vec![0_u8; bytes.len()];
        // Every tenth byte, backwards, with more ranges than one call takes.
        let ranges: Vec<PullRange> = (0..4000)
            .map(|range: u16| PullRange {
                from: address(&bytes[..]) + 10 * u64::from(range),
                into: into[39_990 - 10 * usize::from(range)..].as_mut_ptr(),
                length: 1,
            })
            .collect();
        // SAFETY: all are in `into`, ten bytes apart.
        unsafe { pull_ranges(own(), probe, &ranges) }.expect("own memory");
        for (at, found) in into.iter().enumerate() {
            let wanted = if at % 10 == 0 { bytes[39_990 - at] } else { 0 };
            assert_eq!(*found, wanted, "{at}");
        }
        let wrong = Probe { at, number: 12 };
        // SAFETY: as before.
        assert!(unsafe { pull_ranges(own(), wrong, &ranges) }.is_err());
    }

    #[test]
    fn nothing_is_copied_while_the_probe_is_spoiled() {
        let (bytes, own_probe) = ([7_u8; 100], OwnProbe::random());
        let mut into = [0; 100];
        let mut try_it = || pull(own(), own_probe.probe(), address(&bytes[..]), &mut into);
        try_it().expect("own memory");
        own_probe.invalidate();
        assert!(try_it().is_err());
        own_probe.restore();
        try_it().expect("own memory");
    }

    #[test]
    fn another_probe_another_process_or_no_memory_is_an_error() {
        let (byte, number) = (Box::new(7_u8), Box::new(11_u64));
        let at = address(&*number);
        let probe = Probe { at, number: 11 };
        let mut into = [0; 1];
        let mut try_it = |pid, probe, address| pull(pid, probe, address, &mut into);
        let wrong = Probe { at, number: 12 };
        assert!(try_it(own(), wrong, address(&*byte)).is_err());
        assert!(try_it(own(), Probe { at: 0, number: 0 }, address(&*byte)).is_err());
        assert!(try_it(0, probe, address(&*byte)).is_err());
        assert!(try_it(i32::MAX, probe, address(&*byte)).is_err());
        for nowhere in [0, 8, u64::MAX, u64::MAX - 7, 1 << 63] {
            assert!(try_it(own(), probe, nowhere).is_err(), "{nowhere}");
        }
    }
}
