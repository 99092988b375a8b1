//! State shared by all handles of a node.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dipole_link::fork::ForkMark;

use crate::config::Config;
use crate::control::Control;
use crate::error::CloseError;
use crate::links::AddressFollower;
use crate::process::ProcessState;
use crate::profiles::Profiles;
use crate::progress::ProgressThread;
use crate::registry::{Directory, Ports, Registration};
use crate::trace::{TracedWait, WaitTrace};
use dipole_driver::{Driver, Timeout, WaitError, WaitKey};

#[derive(Debug)]
pub(crate) struct Inner {
    /// Shared with the progress and control threads.
    pub(crate) driver: Arc<Driver<ProcessState>>,
    pub(crate) config: Config,
    pub(crate) registration: Registration,
    /// They change when an address of the process does.
    pub(crate) ports: Arc<Mutex<Ports>>,
    /// Answers other nodes' queries for endpoints of this node.
    pub(crate) _directory: Option<Arc<Directory>>,
    pub(crate) fork: ForkMark,
    pub(crate) progress: Arc<ProgressThread>,
    pub(crate) control: Control,
    /// Unless the process is only on a loopback address.
    pub(crate) follower: Option<AddressFollower>,
    pub(crate) profiles: Profiles,
    /// If waits are recorded.
    pub(crate) trace: Option<WaitTrace>,
}

impl Inner {
    /// True in a forked child, which must not use the node.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Begins a wait that is recorded, if waits are.
    #[inline]
    pub(crate) fn trace_wait(&self, until: Timeout) -> Option<TracedWait> {
        self.trace.as_ref().and_then(|trace| trace.begin(until))
    }

    pub(crate) fn ports(&self) -> Ports {
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that steps the engine while no call is active.
    pub(crate) fn ensure_progress(&self) -> std::io::Result<()> {
        self.progress.start(&self.driver)
    }

    /// Disconnects from all peers.
    pub(crate) fn send_goodbye(&self) {
        self.driver.with(|state, now| {
            state.engine.send_goodbye();
            if let Err(cause) = state.engine.transmit(now) {
                tracing::warn!("cannot send the goodbye: {cause}");
            }
        });
    }

    /// Waits until this process can leave without losing messages.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), CloseError> {
        let what = |_: &ProcessState| "acknowledgements before closing".to_string();
        let keys = [WaitKey::Frame, WaitKey::AnyPeer, WaitKey::RingSpace];
        let waited = self
            .driver
            .wait(Timeout::After(timeout), &keys, &what, |state, _| {
                state.engine.can_leave().then_some(())
            });
        match waited {
            Ok(()) => Ok(()),
            Err(WaitError::TimedOut { waited } | WaitError::Interrupted { waited }) => {
                Err(CloseError::Unacknowledged { waited })
            }
            Err(WaitError::Broken(cause)) => Err(CloseError::Broken(cause)),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if let Some(follower) = &self.follower {
            follower.stop();
        }
        self.progress.stop(&self.driver);
        if !std::thread::panicking()
            && let Err(error) = self.drain(self.config.linger)
        {
            tracing::warn!("{error}");
        }
        self.control.stop();
        self.send_goodbye();
    }
}
