//! Reading another process's memory: one copy, no system buffers.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes fetched by one call; below what the kernel copies in one.
const CALL_BYTES: usize = 1 << 30;
const PROBE_BYTES: usize = size_of::<u64>();

/// A random number in a process's memory, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Where it lies.
    pub at: u64,
    /// The number.
    pub number: u64,
}

impl Probe {
    /// The probe that a number is, as long as it stays where it is.
    #[must_use]
    pub fn of(number: &u64) -> Probe {
        Probe {
            at: std::ptr::from_ref(number).expose_provenance() as u64,
            number: *number,
        }
    }
}

/// The probe that peers of this process look for.
#[derive(Debug)]
pub struct OwnProbe {
    word: Box<AtomicU64>,
    number: u64,
}

impl OwnProbe {
    /// A new one.
    #[must_use]
    pub fn random() -> OwnProbe {
        let number = rand::random();
        OwnProbe {
            word: Box::new(AtomicU64::new(number)),
            number,
        }
    }

    /// What peers are told.
    #[must_use]
    pub fn probe(&self) -> Probe {
        Probe {
            at: std::ptr::from_ref(&*self.word).expose_provenance() as u64,
            number: self.number,
        }
    }

    /// Nobody finds it, nor who is reading just now: the probe is read last.
    pub fn spoil(&self) {
        self.word.store(!self.number, Ordering::Release);
        // Before anything that is written to what others could read.
        fence(Ordering::SeqCst);
    }

    /// It can be found again.
    pub fn mend(&self) {
        self.word.store(self.number, Ordering::Release);
    }
}

/// Fills `into` from `address` of process `pid`, if that has the probe: process
/// numbers are used again, and another process's bytes must not be taken for the
/// peer's. Each call of the kernel reads both, from one process. Without room only the
/// probe is looked for.
///
/// # Errors
/// The kernel's; the process is gone, or has no such memory.
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

fn pull_part(pid: i32, probe: Probe, address: u64, into: &mut [u8]) -> io::Result<()> {
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
    let local = [
        slice(into.as_mut_ptr(), into.len()),
        slice(found.as_mut_ptr(), PROBE_BYTES),
    ];
    let remote = [
        slice(there(address)?, into.len()),
        slice(there(probe.at)?, PROBE_BYTES),
    ];
    let wanted = into.len() + PROBE_BYTES;
    let got = loop {
        // SAFETY: the kernel writes into the two local places, which are ours, live and
        // as long as told; it checks the other process's addresses itself.
        let got = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
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
    // It stops before memory that is not there.
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
    fn nothing_is_copied_while_the_probe_is_spoiled() {
        let (bytes, own_probe) = ([7_u8; 100], OwnProbe::random());
        let mut into = [0; 100];
        let mut try_it = || pull(own(), own_probe.probe(), address(&bytes[..]), &mut into);
        try_it().expect("own memory");
        own_probe.spoil();
        assert!(try_it().is_err());
        own_probe.mend();
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
