//! The engine's implementation of [`Stepper`].

use std::convert::Infallible;
use std::io;

use dipole_link::wait::Sleeper;
use dipole_proto::Instant;

use super::Engine;
use super::shared_memory::SharedMemory;
use crate::control::{Command, Commands};
use crate::driver::{Ready, Stepper, WaitKey};

impl Engine {
    /// Sets where commands for the control thread are posted.
    pub(crate) fn set_control(&mut self, control: Commands) {
        self.control = Some(control);
    }

    pub(super) fn command(&self, command: Command) {
        if let Some(control) = &self.control {
            control.post(command);
        }
    }
}

impl Stepper for Engine {
    /// Only the process state has handlers.
    type Work = Infallible;

    fn has_work(&self) -> bool {
        false
    }

    fn take_work(&mut self, _now: Instant) -> Option<Infallible> {
        None
    }

    fn finish_work(&mut self, work: Infallible) -> Option<Infallible> {
        match work {}
    }

    fn sleeper(&self) -> io::Result<Sleeper> {
        Sleeper::new(&self.descriptors())
    }

    fn step(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool> {
        Engine::step(self, now, look_everywhere)
    }

    #[inline]
    fn poll_memory(&mut self) -> bool {
        Engine::poll_memory(self, None).made_progress()
    }

    #[inline]
    fn expects_memory(&self) -> bool {
        self.last_was_shm || self.no_network_peers
    }

    fn is_polled(&self) -> bool {
        self.has_exports()
    }

    #[inline]
    fn spin_poll(&mut self, now: Instant, calls: u32) -> io::Result<bool> {
        Engine::spin_poll(self, now, calls)
    }

    #[inline]
    fn expects_bulk(&self) -> bool {
        Engine::expects_bulk(self)
    }

    #[inline]
    fn take_polled(&mut self, now: Instant) -> io::Result<bool> {
        Engine::take_polled(self, now)
    }

    #[inline]
    fn flush_deferred(&mut self) {
        self.push_records();
    }

    fn arm(&mut self) -> bool {
        Engine::arm(self)
    }

    fn disarm(&mut self) {
        Engine::disarm(self);
    }

    #[inline]
    fn take_woken(&mut self) -> bool {
        let memory = self.memory.as_mut().is_some_and(SharedMemory::take_woken);
        if memory {
            self.core.ready.notify(WaitKey::RingSpace);
        }
        self.packets.take_woken() | memory
    }

    fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        Engine::next_deadline(self, now)
    }

    #[inline]
    fn ready(&mut self) -> &mut Ready {
        &mut self.core.ready
    }

    #[inline]
    fn publish(&mut self) {
        self.signal();
        if self
            .memory
            .as_mut()
            .is_some_and(SharedMemory::take_peer_died)
        {
            self.command(Command::Sweep);
        }
    }

    fn tick(&mut self) {
        self.command(Command::PublishStats);
    }

    #[inline]
    fn take_served(&mut self) -> bool {
        Engine::take_served(self)
    }

    fn waited_long(&mut self, now: Instant) {
        self.watch_peers(now, true);
    }
}
