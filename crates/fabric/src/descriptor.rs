//! Descriptors that programs wait for with `poll` and `epoll` (`FI_WAIT_FD`).
//!
//! A descriptor is an epoll instance that watches an eventfd, raised while entries wait to be read;
//! the node's descriptors, readable while messages wait; and a timer for checks of peers. Only the
//! program makes progress: `fi_trywait` processes what has arrived and returns whether the program
//! may sleep.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A file descriptor that is readable while it is raised.
#[derive(Debug)]
pub(crate) struct Descriptor {
    epoll: OwnedFd,
    event: OwnedFd,
    timer: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_raised: bool,
    is_armed: bool,
}

impl Descriptor {
    /// A descriptor that is not readable.
    pub(crate) fn new() -> io::Result<Descriptor> {
        let timer = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let descriptor = Descriptor {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, timer)?,
            state: Mutex::default(),
        };
        for part in [&descriptor.event, &descriptor.timer] {
            descriptor.watch(part.as_fd())?;
        }
        Ok(descriptor)
    }

    pub(crate) fn number(&self) -> i32 {
        self.epoll.as_raw_fd()
    }

    /// Makes this descriptor readable while another one is.
    pub(crate) fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        match epoll::add(&self.epoll, other, data, epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops watching a descriptor.
    pub(crate) fn forget(&self, other: BorrowedFd<'_>) {
        let _not_watched = epoll::delete(&self.epoll, other);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable until it is lowered.
    pub(crate) fn raise(&self) {
        let mut state = self.state();
        if !state.is_raised {
            state.is_raised = true;
            let written = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
            if let Err(cause) = written {
                tracing::warn!("cannot make a descriptor readable: {cause}");
            }
        }
    }

    /// Makes the descriptor unreadable again after [`raise`](Self::raise).
    pub(crate) fn lower(&self) {
        let mut state = self.state();
        if state.is_raised {
            state.is_raised = false;
            let _empty = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Makes the descriptor readable after a time; `None` stops the timer.
    pub(crate) fn arm(&self, after: Option<Duration>) {
        let mut state = self.state();
        if after.is_none() && !state.is_armed {
            return;
        }
        state.is_armed = after.is_some();
        // A timer of zero would be disarmed.
        let after = after.map(|after| after.max(Duration::from_nanos(1)));
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: after
                .and_then(|after| Timespec::try_from(after).ok())
                .unwrap_or_default(),
        };
        if let Err(cause) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once) {
            tracing::warn!("cannot set the timer of a descriptor: {cause}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn is_readable(descriptor: &Descriptor, after: Duration) -> bool {
        let timeout = Timespec::try_from(after).unwrap();
        let mut polled = [PollFd::new(&descriptor.epoll, PollFlags::IN)];
        poll(&mut polled, Some(&timeout)).unwrap() == 1
    }

    fn is_readable_now(descriptor: &Descriptor) -> bool {
        is_readable(descriptor, Duration::ZERO)
    }

    #[test]
    fn a_raised_descriptor_is_readable() {
        let descriptor = Descriptor::new().unwrap();
        assert!(!is_readable_now(&descriptor));
        for _ in 0..3 {
            descriptor.raise();
            descriptor.raise();
            assert!(is_readable_now(&descriptor) && is_readable_now(&descriptor));
            descriptor.lower();
            descriptor.lower();
            assert!(!is_readable_now(&descriptor));
        }
    }

    #[test]
    fn an_expired_timer_makes_the_descriptor_readable_until_it_is_armed_again() {
        let descriptor = Descriptor::new().unwrap();
        for after in [Duration::ZERO, Duration::from_millis(1)] {
            descriptor.arm(Some(after));
            assert!(is_readable(&descriptor, Duration::from_secs(60)));
            descriptor.arm(Some(Duration::from_secs(3600)));
            assert!(!is_readable_now(&descriptor));
            descriptor.arm(None);
            assert!(!is_readable_now(&descriptor));
        }
    }

    #[test]
    fn a_watched_descriptor_makes_it_readable() {
        let (descriptor, other) = (Descriptor::new().unwrap(), Descriptor::new().unwrap());
        other.raise();
        descriptor.watch(other.epoll.as_fd()).unwrap();
        descriptor.watch(other.epoll.as_fd()).unwrap();
        assert!(is_readable_now(&descriptor));
        other.lower();
        assert!(!is_readable_now(&descriptor));
        other.raise();
        descriptor.forget(other.epoll.as_fd());
        assert!(!is_readable_now(&descriptor));
    }
}
