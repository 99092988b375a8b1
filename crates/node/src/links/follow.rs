//! Follows the addresses of this machine: interfaces that appear are taken into use, and those that
//! disappear are let go.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use dipole_driver::Driver;
use dipole_link::netlink::Socket;
use dipole_link::present_addresses;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::process::ProcessState;

/// Groups of routing netlink: 1 (links), 5 and 9 (addresses), 7 and 11 (routes). Group n is bit
/// n - 1.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8 | 1 << 6 | 1 << 10;
/// Pause after each look at the addresses, because one change causes many notifications.
const PAUSE: Duration = Duration::from_millis(20);

/// The thread that follows the addresses of a process with several interfaces.
#[derive(Debug)]
pub(crate) struct AddressFollower {
    wake: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AddressFollower {
    /// Starts the thread.
    ///
    /// # Errors
    /// There are no descriptors left, or no thread can be started.
    pub(crate) fn start(driver: &Arc<Driver<ProcessState>>) -> io::Result<AddressFollower> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Arc::new(wake);
        // Subscribed before the first look, so no change is missed in between.
        let changes = Socket::open(None, GROUPS)?;
        let (driver, woken) = (Arc::clone(driver), Arc::clone(&wake));
        let thread = std::thread::Builder::new()
            .name("dipole-links".into())
            .spawn(move || {
                if let Err(cause) = follow(&driver, changes, &woken) {
                    tracing::warn!(
                        "addresses that appear or disappear are no longer noticed: {cause}"
                    );
                }
            })?;
        Ok(AddressFollower {
            wake,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Stops the thread and waits for it.
    pub(crate) fn stop(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else {
            return;
        };
        if rustix::io::write(&*self.wake, &1_u64.to_ne_bytes()).is_ok() && thread.join().is_err() {
            tracing::error!("the thread that follows addresses panicked");
        }
    }
}

fn follow(driver: &Driver<ProcessState>, mut changes: Socket, woken: &OwnedFd) -> io::Result<()> {
    loop {
        let present: Vec<IpAddr> = present_addresses();
        driver.with(|state, now| state.engine.follow_addresses(now, &present));
        let pause = PAUSE.try_into().map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(woken, PollFlags::IN)], Some(&pause)).or_else(interrupted)? > 0 {
            return Ok(());
        }
        loop {
            let mut descriptors = [
                PollFd::new(woken, PollFlags::IN),
                PollFd::new(&changes, PollFlags::IN),
            ];
            poll(&mut descriptors, None).or_else(interrupted)?;
            if !descriptors[0].revents().is_empty() {
                return Ok(());
            }
            if changes.discard()? {
                break;
            }
        }
    }
}

/// Treats a poll that a signal has ended like one that found nothing.
fn interrupted(error: rustix::io::Errno) -> io::Result<usize> {
    match error {
        rustix::io::Errno::INTR => Ok(0),
        error => Err(error.into()),
    }
}
