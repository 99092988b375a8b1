//! What the driver asks of the engine between its steps.

use dipole_driver::{Ready, WaitKey};
use dipole_proto::Instant;

use super::Engine;
use super::shared_memory::SharedMemory;
use crate::command::{Command, Commands};

impl Engine {
    /// From now on, what is to be done outside the lock goes there. `post` is called with the
    /// lock held: it must not block.
    pub fn set_control(&mut self, post: impl Fn(Command) + Send + Sync + 'static) {
        self.control = Some(Commands::new(post));
    }

    pub(super) fn command(&self, command: Command) {
        if let Some(control) = &self.control {
            control.post(command);
        }
    }

    /// True if what a spinning thread waits for is expected in shared memory.
    #[inline]
    #[must_use]
    pub fn expects_memory(&self) -> bool {
        self.came_by_memory || self.alone
    }

    /// True once after a step took what a sleeper was to be woken for: it must be armed anew.
    #[inline]
    pub fn take_woken(&mut self) -> bool {
        let memory = self.memory.as_mut().is_some_and(SharedMemory::take_woken);
        if memory {
            self.core.ready.notify(WaitKey::RingSpace);
        }
        self.packets.take_woken() | memory
    }

    /// What became ready.
    #[inline]
    pub fn ready(&mut self) -> &mut Ready {
        &mut self.core.ready
    }

    /// At the end of a call in which something became ready: descriptors of the user's are
    /// brought up to date.
    #[inline]
    pub fn publish(&mut self) {
        self.signal();
        if self.memory.as_mut().is_some_and(SharedMemory::take_died) {
            self.command(Command::Sweep);
        }
    }

    /// Called a few times a second by a process that does anything.
    pub fn tick(&mut self) {
        self.command(Command::Show);
    }

    /// A thread has waited for seconds.
    pub fn waited_long(&mut self, now: Instant) {
        self.watch_peers(now, true);
    }
}
