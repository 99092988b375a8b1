//! Functions that the driver calls between the engine's steps.

use dipole_driver::{Ready, WaitKey};
use dipole_proto::Instant;

use super::Engine;
use super::shared_memory::SharedMemory;
use crate::command::{Command, Commands};

impl Engine {
    /// Sets where commands are posted. `post` is called under the lock and must not block.
    pub fn set_control(&mut self, post: impl Fn(Command) + Send + Sync + 'static) {
        self.control = Some(Commands::new(post));
    }

    pub(super) fn command(&self, command: Command) {
        if let Some(control) = &self.control {
            control.post(command);
        }
    }

    /// True if a spinning thread should expect its result in shared memory.
    #[inline]
    #[must_use]
    pub fn expects_memory(&self) -> bool {
        self.last_was_shm || self.no_network_peers
    }

    /// True once after a step consumed the wake-up of a sleeping thread, which must be rearmed.
    #[inline]
    pub fn take_woken(&mut self) -> bool {
        let memory = self.memory.as_mut().is_some_and(SharedMemory::take_woken);
        if memory {
            self.core.ready.notify(WaitKey::RingSpace);
        }
        self.packets.take_woken() | memory
    }

    /// Keys that became ready.
    #[inline]
    pub fn ready(&mut self) -> &mut Ready {
        &mut self.core.ready
    }

    /// Called at the end of a call in which a key became ready: updates exported descriptors.
    #[inline]
    pub fn publish(&mut self) {
        self.signal();
        if self
            .memory
            .as_mut()
            .is_some_and(SharedMemory::take_peer_died)
        {
            self.command(Command::Sweep);
        }
    }

    /// Called a few times per second while the process is active.
    pub fn tick(&mut self) {
        self.command(Command::PublishStats);
    }

    /// Called when a thread has waited for seconds.
    pub fn waited_long(&mut self, now: Instant) {
        self.watch_peers(now, true);
    }
}
