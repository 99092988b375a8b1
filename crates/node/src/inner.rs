//! What the handles of one node share: its engine, its place in the registry, and
//! the way to other processes.

use std::time::{Duration, Instant};

use dipole_link::fork::ForkMark;

use crate::address::Address;
use crate::config::Config;
use crate::drive::{Driver, Until, WaitError};
use crate::engine::{Destination, Engine};
use crate::error::{CloseError, TargetError};
use crate::registry::{Directory, Registration, resolve};

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) driver: Driver,
    pub(crate) config: Config,
    pub(crate) registration: Registration,
    /// Answers other nodes where endpoints of this one are.
    pub(crate) _directory: Option<Directory>,
    pub(crate) fork: ForkMark,
}

impl Inner {
    /// True in a process that was forked after the node was opened: nothing here
    /// may be used then.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Waits until everything sent has been acknowledged.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), CloseError> {
        let what = |_: &Engine| "acknowledgements before closing".to_string();
        let waited = self.driver.wait(Until::For(timeout), &what, |engine, _| {
            engine.is_acknowledged().then_some(())
        });
        match waited {
            Ok(()) => Ok(()),
            Err(WaitError::TimedOut { waited }) => Err(CloseError::Unacknowledged { waited }),
            Err(WaitError::Broken(cause)) => Err(CloseError::Broken(cause)),
        }
    }

    /// Finds the process that owns an endpoint, and waits until the session with
    /// it is open.
    pub(crate) fn reach(&self, target: Address) -> Result<dipole_proto::PeerId, TargetError> {
        let timeout = self.config.connect_timeout;
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let ports = resolve(
                self.registration.registry(),
                &self.config.hosts,
                target,
                left,
            )
            .map_err(|cause| TargetError::Unresolved {
                target,
                cause: cause.to_string(),
            })?;
            let to = Destination {
                small: ports.small,
                incarnation: ports.incarnation,
            };
            let peer = self
                .driver
                .with(|engine, now| {
                    let peer = engine.connect(now, to);
                    peer.map(|peer| engine.transmit(now).map(|()| peer))
                })
                .map_err(|dipole_proto::ConnectError::TooManyPeers { limit }| {
                    TargetError::TooManyPeers { limit }
                })?
                .map_err(TargetError::Broken)?;
            let left = timeout.saturating_sub(begun.elapsed());
            let what = |_: &Engine| format!("the process of endpoint {target} to answer");
            let opened = self.driver.wait(Until::For(left), &what, |engine, _| {
                match engine.is_open(peer) {
                    Ok(true) => Some(Ok(())),
                    Ok(false) => None,
                    Err(blocked) => Some(Err(blocked)),
                }
            });
            match opened {
                Ok(Ok(())) => return Ok(peer),
                // Another process took its place since: ask the registry again.
                Ok(Err(_)) if begun.elapsed() < timeout => {}
                Ok(Err(blocked)) => {
                    let reason = match blocked {
                        crate::engine::Blocked::Gone(reason) => reason,
                        _ => None,
                    };
                    return Err(TargetError::PeerGone { target, reason });
                }
                Err(WaitError::TimedOut { .. }) => {
                    return Err(TargetError::TimedOut {
                        target,
                        waited: begun.elapsed(),
                    });
                }
                Err(WaitError::Broken(cause)) => return Err(TargetError::Broken(cause)),
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if !std::thread::panicking()
            && let Err(error) = self.drain(self.config.linger)
        {
            tracing::warn!("{error}");
        }
        self.driver.with(|engine, now| {
            engine.say_goodbye();
            if let Err(cause) = engine.transmit(now) {
                tracing::warn!("no goodbye was said: {cause}");
            }
        });
    }
}
