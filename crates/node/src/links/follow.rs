//! Follows the addresses of this machine: interfaces that appear are taken into use, those that
//! disappear are let go, and one whose address was replaced is used with its new address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dipole_driver::Driver;
use dipole_link::netlink::{ADDRESS_CHANGES, Socket};
use dipole_link::successors::Successors;
use dipole_link::sys::{InterfaceAddress, interface_addresses};
use dipole_link::{Class, Link};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::open::open_interface;
use crate::config::{Config, Links};
use crate::hosts::Host;
use crate::process::ProcessState;
use crate::registry::{Directory, Ports, Registration};

/// Pause after each look at the addresses, because one change causes many notifications.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before a new address that cannot be used yet is tried again: an IPv6 address is tested for
/// duplicates for a second.
const RETRY: Duration = Duration::from_millis(250);

/// Places in which the addresses of a process are published.
#[derive(Debug)]
pub(crate) struct AddressPublisher {
    pub(crate) registration: Registration,
    pub(crate) directory: Option<Arc<Directory>>,
    pub(crate) ports: Arc<Mutex<Ports>>,
}

impl AddressPublisher {
    /// The address of an interface has changed `from` this one. The process listens there at these
    /// ports, small and bulk, from now on.
    fn publish(&self, interface: usize, from: IpAddr, [small, bulk]: [SocketAddr; 2]) {
        if let Some(directory) = &self.directory {
            directory.move_address(from, small.ip());
        }
        // The first interface is the one by which the process is found.
        if interface > 0 {
            return;
        }
        let mut known = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Ports {
            small,
            bulk,
            ..*known
        };
        if let Err(cause) = self.registration.set_ports(*known) {
            tracing::warn!("processes that look for this one are sent to {from}: {cause}");
        }
    }
}

/// The thread that follows the addresses of a process.
#[derive(Debug)]
pub(crate) struct AddressFollower {
    wake: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AddressFollower {
    /// Starts the thread if an address of the process may change.
    ///
    /// # Errors
    /// There are no descriptors left, or no thread can be started.
    pub(crate) fn start_if_needed(
        driver: &Arc<Driver<ProcessState>>,
        config: &Config,
        publisher: AddressPublisher,
    ) -> io::Result<Option<AddressFollower>> {
        let mut addresses = std::iter::once(&config.bind).chain(&config.interfaces);
        match config.links != Links::Shm && addresses.any(|ip| !ip.is_loopback()) {
            true => AddressFollower::start(driver, config, publisher).map(Some),
            false => Ok(None),
        }
    }

    fn start(
        driver: &Arc<Driver<ProcessState>>,
        config: &Config,
        publisher: AddressPublisher,
    ) -> io::Result<AddressFollower> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Arc::new(wake);
        // Subscribed before the first look, so no change is missed in between.
        let changes = Socket::open(None, ADDRESS_CHANGES)?;
        let mut follower = Follower {
            driver: Arc::clone(driver),
            config: config.clone(),
            publisher,
            successors: Successors::default(),
            must_watch: false,
        };
        let woken = Arc::clone(&wake);
        let thread = std::thread::Builder::new()
            .name("dipole-links".into())
            .spawn(move || {
                if let Err(cause) = follower.run(changes, &woken) {
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

/// State of the thread.
struct Follower {
    driver: Arc<Driver<ProcessState>>,
    config: Config,
    publisher: AddressPublisher,
    successors: Successors,
    /// Sleeping threads do not wait for the sockets of a new address yet.
    must_watch: bool,
}

impl Follower {
    fn run(&mut self, mut changes: Socket, woken: &OwnedFd) -> io::Result<()> {
        loop {
            let retry = self.look();
            let pause = PAUSE.try_into().map_err(io::Error::other)?;
            if poll(&mut [PollFd::new(woken, PollFlags::IN)], Some(&pause)).or_else(interrupted)?
                > 0
            {
                return Ok(());
            }
            let until = retry.map(|after| Instant::now() + after);
            loop {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                let left = left.map(TryInto::try_into).transpose();
                let left = left.map_err(io::Error::other)?;
                let mut descriptors = [
                    PollFd::new(woken, PollFlags::IN),
                    PollFd::new(&changes, PollFlags::IN),
                ];
                poll(&mut descriptors, left.as_ref()).or_else(interrupted)?;
                if !descriptors[0].revents().is_empty() {
                    return Ok(());
                }
                if changes.discard()? || until.is_some_and(|until| Instant::now() >= until) {
                    break;
                }
            }
        }
    }

    /// Handles what has changed. Returns when to look again although nothing changes.
    fn look(&mut self) -> Option<Duration> {
        let Ok(all) = interface_addresses() else {
            return Some(RETRY);
        };
        let mut retry = self.follow_devices(&all);
        let running = all.iter().filter(|one| one.running);
        let present: Vec<IpAddr> = running.map(|one| one.ip).collect();
        self.driver
            .with(|state, now| state.engine.follow_addresses(now, &present));
        if self.must_watch {
            let watched = self.driver.with_last(|state, _| state.watch_descriptors());
            self.must_watch = watched.is_err();
            self.driver.wake_sleepers();
            if let Err(cause) = watched {
                tracing::warn!("threads do not wait for packets to the new address yet: {cause}");
                retry = Some(RETRY);
            }
        }
        retry
    }

    /// Uses the new addresses of devices whose addresses were replaced. Returns when to look again.
    fn follow_devices(&mut self, all: &[InterfaceAddress]) -> Option<Duration> {
        let locals = self.driver.with_last(|state, _| {
            let link = state.engine.link();
            let bulk = link.locals(Class::Bulk).into_iter();
            let pairs = link.locals(Class::Small).into_iter().zip(bulk);
            pairs.map(|(small, bulk)| [small, bulk]).collect::<Vec<_>>()
        });
        let used: Vec<IpAddr> = locals.iter().map(|[small, _]| small.ip()).collect();
        let config = &self.config;
        let found = self
            .successors
            .find(&used, all, || listed_addresses(config), Instant::now());
        let mut again_after = found.again_after;
        for (index, to) in found.moves {
            if !self.move_interface(index, locals[index], to) {
                again_after = again_after.into_iter().chain([RETRY]).min();
            }
        }
        again_after
    }

    /// Uses an interface with its new address; false if that is not possible yet.
    fn move_interface(&mut self, interface: usize, former: [SocketAddr; 2], to: IpAddr) -> bool {
        let from = former[0].ip();
        let link = match open_interface(&self.config, to, former) {
            Ok(link) => link,
            Err(cause) => {
                tracing::warn!("{from} has become {to}, which cannot be used yet: {cause}");
                return false;
            }
        };
        tracing::warn!("{from} has become {to}: peers are notified");
        let ports = [Class::Small, Class::Bulk].map(|class| link.local(class));
        self.driver
            .with(|state, now| state.move_interface(now, interface, link));
        self.must_watch = true;
        self.publisher.publish(interface, from, ports);
        true
    }
}

/// The addresses that the hosts file has now for this node.
fn listed_addresses(config: &Config) -> Vec<IpAddr> {
    let hosts = config.hosts.reload();
    let own = hosts.as_ref().unwrap_or(&config.hosts).get(config.node);
    own.into_iter().flat_map(Host::addresses).collect()
}

/// Treats a poll that a signal has ended like one that found nothing.
fn interrupted(error: rustix::io::Errno) -> io::Result<usize> {
    match error {
        rustix::io::Errno::INTR => Ok(0),
        error => Err(error.into()),
    }
}
