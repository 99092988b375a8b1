//! The hosts file of a search, read again while a node cannot be found.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::hosts::Hosts;

/// Shortest time between two readings of the hosts file.
const RELOAD_INTERVAL: Duration = Duration::from_millis(500);

/// The hosts file, read again on a thread of its own because names in it may take long to resolve.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) hosts: Hosts,
    reading: Option<JoinHandle<Option<Hosts>>>,
    begun: Option<Instant>,
    /// Number of times that the file has been read.
    pub(super) readings: u64,
    is_new: bool,
}

impl Reloader {
    pub(super) fn new(hosts: Hosts) -> Reloader {
        Reloader {
            hosts,
            reading: None,
            begun: None,
            readings: 0,
            is_new: false,
        }
    }

    /// Number of readings that a look-up which begins now must wait for.
    pub(super) fn needed(&self) -> u64 {
        match self.hosts.is_followed() {
            true => self.readings + 1 + u64::from(self.reading.is_some()),
            false => 0,
        }
    }

    /// Begins to read the file unless it is being read.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.reading.is_some() || !self.hosts.is_followed() {
            return;
        }
        self.begun = Some(now);
        let hosts = self.hosts.clone();
        let thread = std::thread::Builder::new().name("dipole-hosts".to_owned());
        match thread.spawn(move || hosts.reload()) {
            Ok(reading) => self.reading = Some(reading),
            Err(_) => {
                let hosts = self.hosts.reload();
                self.finish(hosts);
            }
        }
    }

    /// True if the file has been read again since the last call.
    pub(super) fn poll(&mut self) -> bool {
        if let Some(reading) = self.reading.take_if(|reading| reading.is_finished()) {
            let hosts = reading.join().unwrap_or(None);
            self.finish(hosts);
        }
        std::mem::take(&mut self.is_new)
    }

    fn finish(&mut self, hosts: Option<Hosts>) {
        self.hosts = hosts.unwrap_or_else(|| self.hosts.clone());
        self.readings += 1;
        self.is_new = true;
    }

    /// True if the file may be read again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let pause = |begun| now.saturating_duration_since(begun) >= RELOAD_INTERVAL;
        self.hosts.is_followed() && self.reading.is_none() && self.begun.is_none_or(pause)
    }

    /// True while the file is being read.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }
}
