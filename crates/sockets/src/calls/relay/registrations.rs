//! The epoll sets of this process in which a descriptor is registered: they lose it when the
//! descriptor becomes another file.

use std::os::fd::{AsFd, BorrowedFd, RawFd};

use libc::{c_int, epoll_event};
use rustix::fs::{Mode, OFlags, RawDir, open, openat, readlinkat_raw};

use super::super::borrowed;

/// The number of sets is not limited by the kernel; programs register a descriptor in one.
const MAX_SETS: usize = 8;

/// A registration: the set, and what it was given.
#[derive(Clone, Copy)]
struct Registration {
    set: RawFd,
    events: u32,
    data: u64,
}

/// Registrations of one descriptor that have been removed.
pub(super) struct Registrations {
    found: [Option<Registration>; MAX_SETS],
}

impl Registrations {
    /// Removes the descriptor from all sets. Allocates nothing.
    pub(super) fn take(fd: RawFd) -> Registrations {
        let mut taken = Registrations {
            found: [None; MAX_SETS],
        };
        let mut free = taken.found.iter_mut();
        let _none_without_proc = each_set(|set, facts| {
            each_line(facts, |line| {
                let registration =
                    parse(line, fd).map(|(events, data)| Registration { set, events, data });
                if let Some(registration) = registration
                    && let Some(place) = free.next()
                {
                    control(set, libc::EPOLL_CTL_DEL, fd, None);
                    *place = Some(registration);
                }
            });
        });
        taken
    }

    /// Registers the descriptor again.
    pub(super) fn restore(self, fd: RawFd) {
        for registration in self.found.into_iter().flatten() {
            let event = epoll_event {
                events: registration.events,
                u64: registration.data,
            };
            control(registration.set, libc::EPOLL_CTL_ADD, fd, Some(event));
        }
    }
}

fn control(set: RawFd, operation: c_int, fd: RawFd, event: Option<epoll_event>) {
    let mut event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
    // SAFETY: an event that lives during the call.
    unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) };
}

/// Calls `found` with each epoll set of this process and the file that describes it.
fn each_set(mut found: impl FnMut(RawFd, BorrowedFd<'_>)) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptors = open("/proc/self/fd", flags, Mode::empty())?;
    let facts = open("/proc/self/fdinfo", flags, Mode::empty())?;
    let mut room = [std::mem::MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&descriptors, &mut room);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let mut target = [std::mem::MaybeUninit::uninit(); 32];
        let Ok((target, _)) = readlinkat_raw(&descriptors, name, &mut target[..]) else {
            continue;
        };
        let number = name.to_str().ok().and_then(|name| name.parse().ok());
        if *target == *b"anon_inode:[eventpoll]"
            && let Some(number) = number
            && borrowed(number).is_some()
            && let Ok(file) = openat(
                &facts,
                name,
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )
        {
            found(number, file.as_fd());
        }
    }
    Ok(())
}

/// Calls `found` with each line of a file, without the parts of lines that are longer than all that
/// the kernel writes.
pub(super) fn each_line(file: BorrowedFd<'_>, mut found: impl FnMut(&[u8])) {
    let mut buffer = [0; 2048];
    let mut filled = 0;
    while let Ok(count @ 1..) = rustix::io::read(file, &mut buffer[filled..]) {
        filled += count;
        let mut begin = 0;
        while let Some(length) = buffer[begin..filled].iter().position(|byte| *byte == b'\n') {
            found(&buffer[begin..begin + length]);
            begin += length + 1;
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
        if filled == buffer.len() {
            filled = 0;
        }
    }
}

/// Events and data of a line about this descriptor.
fn parse(line: &[u8], fd: RawFd) -> Option<(u32, u64)> {
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("tfd:")?;
    let (number, rest) = rest.split_once("events:")?;
    let (events, rest) = rest.split_once("data:")?;
    if number.trim().parse() != Ok(fd) {
        return None;
    }
    let events = u32::from_str_radix(events.trim(), 16).ok()?;
    let data = u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()?;
    Some((events, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_described_as_this_kernel_does_it() {
        let line = b"tfd:        7 events: 80000019 data: ffffffff00000007  pos:0 ino:1a sdev:8";
        assert_eq!(parse(line, 7), Some((0x8000_0019, 0xffff_ffff_0000_0007)));
        assert_eq!(parse(line, 8), None);
        assert_eq!(parse(b"flags:\t02", 7), None);
        // SAFETY: a new descriptor, and a registration with an event that lives during the call.
        unsafe {
            let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let mut ends = [0; 2];
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let event = epoll_event {
                events: libc::EPOLLIN as u32,
                u64: u64::MAX - 1,
            };
            control(set, libc::EPOLL_CTL_ADD, ends[0], Some(event));
            let taken = Registrations::take(ends[0]);
            let (found, rest) = taken.found.split_at(1);
            let found = found[0].expect("registered");
            assert_eq!((found.set, found.data), (set, u64::MAX - 1));
            assert!(found.events & libc::EPOLLIN as u32 != 0 && rest.iter().all(Option::is_none));
            taken.restore(ends[0]);
            assert_eq!(
                Registrations::take(ends[0]).found.iter().flatten().count(),
                1
            );
        }
    }
}
