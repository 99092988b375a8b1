//! What the handles of one node share: its engine, its place in the registry, and
//! the way to other processes.

use std::sync::Arc;
use std::time::Duration;

use dipole_link::fork::ForkMark;

use crate::config::Config;
use crate::control::Control;
use crate::error::CloseError;
use crate::process::ProcessState;
use crate::progress::ProgressThread;
use crate::registry::{Directory, Ports, Registration};
use dipole_driver::{Driver, Timeout, WaitError, WaitKey};

#[derive(Debug)]
pub(crate) struct Inner {
    /// Shared with the progress and the control thread.
    pub(crate) driver: Arc<Driver<ProcessState>>,
    pub(crate) config: Config,
    pub(crate) registration: Registration,
    pub(crate) ports: Ports,
    /// Answers other nodes where endpoints of this one are.
    pub(crate) _directory: Option<Directory>,
    pub(crate) fork: ForkMark,
    pub(crate) progress: Arc<ProgressThread>,
    pub(crate) control: Control,
}

impl Inner {
    /// True in a process that was forked after the node was opened: nothing here
    /// may be used then.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// From now on a thread steps the engine for those who are in no call.
    pub(crate) fn ensure_progress(&self) -> std::io::Result<()> {
        self.progress.start(&self.driver)
    }

    /// Tells all peers that this process ends.
    pub(crate) fn say_goodbye(&self) {
        self.driver.with(|state, now| {
            state.engine.say_goodbye();
            if let Err(cause) = state.engine.transmit(now) {
                tracing::warn!("no goodbye was said: {cause}");
            }
        });
    }

    /// Waits until nothing is lost when this process leaves.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), CloseError> {
        let what = |_: &ProcessState| "acknowledgements before closing".to_string();
        let keys = [WaitKey::Frame, WaitKey::AnyPeer, WaitKey::RingSpace];
        let waited = self
            .driver
            .wait(Timeout::After(timeout), &keys, &what, |state, _| {
                state.engine.may_leave().then_some(())
            });
        match waited {
            Ok(()) => Ok(()),
            Err(WaitError::TimedOut { waited }) => Err(CloseError::Unacknowledged { waited }),
            Err(WaitError::Broken(cause)) => Err(CloseError::Broken(cause)),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.progress.stop(&self.driver);
        if !std::thread::panicking()
            && let Err(error) = self.drain(self.config.linger)
        {
            tracing::warn!("{error}");
        }
        self.control.stop();
        self.say_goodbye();
    }
}
