//! A switch in user space: one thread that forwards frames between the TAP devices of the nodes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use tappers::{Interface, Tap};

use crate::error::TestbedError;
use crate::fault::{FaultCounters, Faults};
use crate::forward::{Forwarder, Port};
use crate::namespace::inside;

/// The longest frame: the largest MTU plus header and one VLAN tag.
const FRAME_BYTES: usize = (64 << 10) + 18;
/// Frames read from one interface before the others get their turn.
const BATCH: usize = 64;

/// A running switch; dropping it stops the thread.
pub(crate) struct Switch {
    forwarder: Arc<Mutex<Forwarder>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Switch {
    /// Creates the interface `device` in each of the namespaces and connects them.
    pub(crate) fn start(
        faults: Faults,
        network: u32,
        device: &str,
        namespaces: &[&str],
    ) -> Result<Self, TestbedError> {
        let mut taps = Vec::new();
        for namespace in namespaces {
            let opened = inside(namespace, || open(device)).flatten();
            taps.push(opened.map_err(|cause| TestbedError::Namespace {
                namespace: (*namespace).to_owned(),
                doing: "making a TAP device (the kernel needs CONFIG_TUN)",
                cause,
            })?);
        }
        let failed = |cause| TestbedError::Namespace {
            namespace: namespaces.join(", "),
            doing: "starting the switch",
            cause,
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let mut running = Running {
            forwarder: Arc::new(Mutex::new(Forwarder::new(faults, network, taps.len()))),
            taps: taps.into_iter().map(Some).collect(),
            stop: Arc::new(stop),
        };
        let (forwarder, stop) = (Arc::clone(&running.forwarder), Arc::clone(&running.stop));
        let thread = thread::Builder::new()
            .name(format!("switch {network}"))
            .spawn(move || running.run())
            .map_err(failed)?;
        Ok(Self {
            forwarder,
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn counters(&self) -> FaultCounters {
        lock(&self.forwarder).counters()
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        lock(&self.forwarder).set_faults(faults);
    }

    pub(crate) fn set_cut(&self, port: Port, cut: bool) {
        lock(&self.forwarder).set_cut(port, cut);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _cannot_be_full = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported on standard error.
            let _ended = thread.join();
        }
    }
}

fn lock(forwarder: &Mutex<Forwarder>) -> MutexGuard<'_, Forwarder> {
    forwarder.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(device: &str) -> io::Result<Tap> {
    let mut tap = Tap::new_named(Interface::new(device)?)?;
    tap.set_nonblocking(true)?;
    Ok(tap)
}

struct Running {
    /// The thread holds the lock while it forwards, not while it sleeps.
    forwarder: Arc<Mutex<Forwarder>>,
    /// `None` for an interface that has disappeared with its namespace.
    taps: Vec<Option<Tap>>,
    stop: Arc<OwnedFd>,
}

impl Running {
    fn run(&mut self) {
        let mut buffer = vec![0; FRAME_BYTES];
        while let Some(ready) = self.wait() {
            let now = Instant::now();
            for port in ready {
                self.read(port, &mut buffer, now);
            }
            let taps = &self.taps;
            lock(&self.forwarder).release_due(now, &mut |port, frame| write(taps, port, frame));
        }
    }

    /// Waits for frames and returns the ports that have some. `None` when the switch must stop.
    fn wait(&self) -> Option<Vec<usize>> {
        let open = self.taps.iter().enumerate();
        let open: Vec<(usize, &Tap)> = open
            .filter_map(|(port, tap)| Some((port, tap.as_ref()?)))
            .collect();
        let mut wanted = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        wanted.extend(open.iter().map(|(_, tap)| PollFd::new(*tap, PollFlags::IN)));
        let due = lock(&self.forwarder).next_due();
        let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|wait| Timespec::try_from(wait).ok());
        match poll(&mut wanted, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // The remaining errors are caused by wrong arguments.
            Err(errno) => {
                eprintln!("dipole-testbed: the switch stops because poll failed: {errno}");
                return None;
            }
        }
        if !wanted[0].revents().is_empty() {
            return None;
        }
        let ready = open.iter().zip(&wanted[1..]);
        let ready = ready.filter(|(_, wanted)| !wanted.revents().is_empty());
        Some(ready.map(|((port, _), _)| *port).collect())
    }

    fn read(&mut self, port: usize, buffer: &mut [u8], now: Instant) {
        for _ in 0..BATCH {
            let Some(tap) = &self.taps[port] else { return };
            match rustix::io::read(tap.as_fd(), &mut *buffer) {
                Ok(length) => {
                    let taps = &self.taps;
                    let mut send = |port: usize, frame: &[u8]| write(taps, port, frame);
                    lock(&self.forwarder).accept(port, &mut buffer[..length], now, &mut send);
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                // The device has disappeared with its namespace.
                Err(_) => {
                    self.taps[port] = None;
                    return;
                }
            }
        }
    }
}

/// False if the interface is down or has disappeared.
fn write(taps: &[Option<Tap>], port: usize, frame: &[u8]) -> bool {
    let tap = taps.get(port).and_then(Option::as_ref);
    tap.is_some_and(|tap| rustix::io::write(tap.as_fd(), frame).is_ok())
}
