//! Directed-point endpoints: what a Rust program sends to and receives from.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dipole_proto::{EdgeId, Instant};

use crate::Message;
use crate::address::{Address, EndpointId};
use crate::drive::{Until, WaitError};
use crate::engine::{Blocked, Engine};
use crate::error::{ReceiveError, SendError, TargetError};
use crate::inner::Inner;
use crate::registry::Claim;

/// Frames queued by [`Endpoint::send_more`] that leave without waiting for more.
const FULL_BURST_FRAMES: usize = 44;

/// An endpoint of this process: receives from anybody, sends along its edges.
///
/// Several threads may use it at once. Dropping it closes it: messages that wait
/// are dropped, those that come are refused and their senders told.
#[derive(Debug)]
pub struct Endpoint {
    inner: Arc<Inner>,
    claim: Claim,
    targets: Mutex<Arc<[Target]>>,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    address: Address,
    edge: EdgeId,
}

/// How a message is to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    Comes,
    No,
}

impl Endpoint {
    pub(crate) fn new(inner: Arc<Inner>, claim: Claim) -> Endpoint {
        Endpoint {
            inner,
            claim,
            targets: Mutex::new(Arc::new([])),
        }
    }

    /// Its own address.
    #[must_use]
    pub fn address(&self) -> Address {
        Address {
            node: self.inner.config.node,
            endpoint: self.id(),
        }
    }

    fn id(&self) -> EndpointId {
        self.claim.endpoint()
    }

    /// Points this endpoint at another; every message goes to each target. Waits,
    /// up to `connect_timeout`, until that endpoint exists and its process answers.
    /// Naming a target again renews its session if the peer was gone.
    ///
    /// # Errors
    /// [`TargetError`].
    ///
    /// # Source
    /// `dp_target` of DP §2, table 1.
    pub fn target(&self, to: Address) -> Result<(), TargetError> {
        if self.inner.is_forked() {
            return Err(TargetError::Forked);
        }
        let peer = self.inner.reach(to)?;
        let edge = self
            .inner
            .driver
            .with(|engine, _| engine.edge(peer, self.id().0, to.endpoint.0))
            .ok_or(TargetError::PeerGone {
                target: to,
                reason: None,
            })?;
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let others = targets
            .iter()
            .filter(|target| target.address != to)
            .copied();
        *targets = others
            .chain([Target { address: to, edge }])
            .collect::<Vec<_>>()
            .into();
        Ok(())
    }

    /// Takes a target back; the others stay.
    pub fn untarget(&self, to: Address) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let others = targets
            .iter()
            .filter(|target| target.address != to)
            .copied();
        *targets = others.collect::<Vec<_>>().into();
    }

    /// Sends a message. It is copied; it leaves before this returns unless earlier
    /// packets still wait. Blocks while frames or the receiver's credit are used up,
    /// receiving meanwhile. Delivery is confirmed only by [`drain`](Self::drain).
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued unless the peer went in the middle of a
    /// long message.
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Until::Forever, More::No)
    }

    /// Like [`send`](Self::send), but gives up if the message cannot begin within
    /// `timeout`. One that has begun is sent to its end.
    ///
    /// # Errors
    /// [`SendError::TimedOut`] and those of `send`; nothing was queued.
    pub fn send_timeout(&self, payload: &[u8], timeout: Duration) -> Result<(), SendError> {
        self.send_until(payload, Until::For(timeout), More::No)
    }

    /// Like [`send`](Self::send), but never blocks: the message is queued whole or
    /// not at all.
    ///
    /// # Errors
    /// [`SendError::Full`] and those of `send`; nothing was queued.
    pub fn try_send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Until::Now, More::No)
    }

    /// Like [`send`](Self::send), but more follows: the message may wait and share
    /// its packet. It leaves with the next `send`, `flush` or wait, or when
    /// packets are full.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send_more(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Until::Forever, More::Comes)
    }

    /// Everything queued by [`send_more`](Self::send_more) leaves as far as the
    /// window allows.
    ///
    /// # Errors
    /// [`SendError::Broken`] and [`SendError::Forked`].
    pub fn flush(&self) -> Result<(), SendError> {
        self.check_fork()?;
        let targets = self.targets();
        self.inner
            .driver
            .with(|engine, now| {
                for target in targets.iter() {
                    engine.flush(target.edge.peer);
                }
                engine.transmit(now)
            })
            .map_err(SendError::Broken)
    }

    /// Sends a message without repeats: it arrives at most once, maybe never, and
    /// is dropped if the receiver holds too many. Never blocks.
    ///
    /// # Errors
    /// [`SendError::Full`] if no frame is free, and those of `send`.
    pub fn send_unreliable(&self, payload: &[u8]) -> Result<(), SendError> {
        self.check_fork()?;
        for target in self.some_targets()?.iter() {
            self.inner
                .driver
                .with(|engine, now| {
                    let sent = engine.send_loose(target.edge, payload);
                    engine.transmit(now).map(|()| sent)
                })
                .map_err(SendError::Broken)?
                .map_err(|blocked| send_error(blocked, *target, payload.len()))?;
        }
        Ok(())
    }

    /// Waits until everything sent to the targets' processes has been acknowledged:
    /// it lies in their token buffer pools.
    ///
    /// # Errors
    /// [`SendError::TimedOut`], [`SendError::PeerGone`], [`SendError::Broken`].
    pub fn drain(&self, timeout: Duration) -> Result<(), SendError> {
        self.check_fork()?;
        self.flush()?;
        for target in self.some_targets()?.iter() {
            let what = |_: &Engine| format!("acknowledgements of {}", target.address);
            self.inner
                .driver
                .wait(Until::For(timeout), &what, |engine, _| {
                    match engine.is_open(target.edge.peer) {
                        Err(blocked) => Some(Err(send_error(blocked, *target, 0))),
                        Ok(_) => engine
                            .is_peer_acknowledged(target.edge.peer)
                            .then_some(Ok(())),
                    }
                })
                .map_err(|error| wait_error(error, target.address))??;
        }
        Ok(())
    }

    /// Waits for the next message. It is read where it lies; dropping it gives the
    /// memory back.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn receive(&self) -> Result<Message, ReceiveError> {
        self.receive_until(Until::Forever)
    }

    /// Waits for the next message, at most `timeout`.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive`.
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Message, ReceiveError> {
        self.receive_until(Until::For(timeout))
    }

    /// The next message if there is one; looks at the network once.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn try_receive(&self) -> Result<Option<Message>, ReceiveError> {
        match self.receive_until(Until::Now) {
            Ok(message) => Ok(Some(message)),
            Err(ReceiveError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next message and copies it; its length and source.
    ///
    /// # Errors
    /// [`ReceiveError::TooShort`] leaves the message in place; those of `receive`.
    pub fn receive_into(&self, buffer: &mut [u8]) -> Result<(usize, Address), ReceiveError> {
        let id = self.id().0;
        self.wait_message(Until::Forever, |engine, now| {
            let needed = engine.next_length(id)?;
            if needed > buffer.len() {
                return Some(Err(ReceiveError::TooShort {
                    needed,
                    given: buffer.len(),
                }));
            }
            let message = engine.take(now, id)?;
            buffer[..message.len()].copy_from_slice(&message);
            Some(Ok((message.len(), message.source())))
        })?
    }

    fn receive_until(&self, until: Until) -> Result<Message, ReceiveError> {
        let id = self.id().0;
        self.wait_message(until, |engine, now| engine.take(now, id))
    }

    #[inline]
    fn wait_message<R>(
        &self,
        until: Until,
        mut attempt: impl FnMut(&mut Engine, Instant) -> Option<R>,
    ) -> Result<R, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        let what = |engine: &Engine| {
            let sources = engine.sources(self.id().0);
            if sources.is_empty() {
                format!(
                    "a message to endpoint {}; nobody has sent to it yet",
                    self.address()
                )
            } else {
                let names: Vec<String> = sources.iter().map(ToString::to_string).collect();
                format!(
                    "a message to endpoint {} from {}",
                    self.address(),
                    names.join(", ")
                )
            }
        };
        let driver = &self.inner.driver;
        let taken = driver.wait(until, &what, |engine, now| {
            let taken = attempt(engine, now)?;
            // Credit that the sender waits for leaves with it.
            let sent = match engine.has_transmit() {
                true => engine.transmit(driver.now()),
                false => Ok(()),
            };
            Some(sent.map(|()| taken))
        });
        match taken {
            Ok(Ok(taken)) => Ok(taken),
            Ok(Err(cause)) | Err(WaitError::Broken(cause)) => Err(ReceiveError::Broken(cause)),
            Err(WaitError::TimedOut { waited }) => Err(ReceiveError::TimedOut {
                endpoint: self.address(),
                waited,
            }),
        }
    }

    fn send_until(&self, payload: &[u8], until: Until, more: More) -> Result<(), SendError> {
        self.check_fork()?;
        let targets = self.some_targets()?;
        for target in targets.iter() {
            self.send_one(*target, payload, until, more)?;
        }
        Ok(())
    }

    fn send_one(
        &self,
        target: Target,
        payload: &[u8],
        until: Until,
        more: More,
    ) -> Result<(), SendError> {
        let peer = target.edge.peer;
        let driver = &self.inner.driver;
        let first = match more {
            More::Comes => driver.with_last(|engine, last| {
                if payload.len() > engine.whole_limit(peer) {
                    return Ok(Err(Blocked::NoFrame));
                }
                let sent = engine.send_whole(last, target.edge, payload, true);
                if sent.is_err() || engine.queued(peer) >= FULL_BURST_FRAMES {
                    engine.transmit(driver.now())?;
                }
                Ok(sent)
            }),
            More::No => driver.with(|engine, now| {
                if payload.len() > engine.whole_limit(peer) {
                    return Ok(Err(Blocked::NoFrame));
                }
                let sent = engine.send_whole(now, target.edge, payload, false);
                engine.transmit(now)?;
                Ok(sent)
            }),
        };
        match first.map_err(SendError::Broken)? {
            Ok(()) => Ok(()),
            Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => {
                self.send_waiting(target, payload, until, more)
            }
            Err(blocked) => Err(send_error(blocked, target, payload.len())),
        }
    }

    /// The slow way: a long message, or one that has to wait.
    fn send_waiting(
        &self,
        target: Target,
        payload: &[u8],
        until: Until,
        more: More,
    ) -> Result<(), SendError> {
        let peer = target.edge.peer;
        let mut long = None;
        let mut why = Blocked::NoFrame;
        let what = |_: &Engine| format!("endpoint {} to take a message", target.address);
        let begun = self.inner.driver.wait(until, &what, |engine, now| {
            let sent = if payload.len() <= engine.whole_limit(peer) {
                engine.send_whole(now, target.edge, payload, more == More::Comes)
            } else if until == Until::Now
                && engine.frames_for(peer, payload.len()) > engine.frames_for_long()
            {
                Err(Blocked::NoFrame)
            } else {
                engine
                    .begin_long(now, target.edge, payload.len())
                    .map(|out| long = Some(out))
            };
            match sent {
                Ok(()) => Some(Ok(())),
                Err(blocked @ (Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening)) => {
                    why = blocked;
                    None
                }
                Err(blocked) => Some(Err(send_error(blocked, target, payload.len()))),
            }
        });
        match begun {
            Ok(result) => result?,
            Err(WaitError::TimedOut { .. }) if until == Until::Now => {
                self.inner
                    .driver
                    .with(|engine, _| engine.cancel(target.edge));
                return Err(SendError::Full {
                    target: target.address,
                    by_receiver: why == Blocked::NoCredit,
                });
            }
            Err(error) => {
                self.inner
                    .driver
                    .with(|engine, _| engine.cancel(target.edge));
                return Err(wait_error(error, target.address));
            }
        }
        if let Some(mut out) = long {
            self.inner
                .driver
                .wait(Until::Forever, &what, |engine, now| {
                    loop {
                        let done = match engine.continue_long(&mut out, payload) {
                            Ok(done) => done,
                            Err(blocked) => {
                                return Some(Err(send_error(blocked, target, payload.len())));
                            }
                        };
                        if let Err(cause) = engine.transmit(now) {
                            return Some(Err(SendError::Broken(cause)));
                        }
                        if done {
                            return Some(Ok(()));
                        }
                        if engine.queued(peer) > 0 || engine.frames_for_long() == 0 {
                            return None;
                        }
                    }
                })
                .map_err(|error| wait_error(error, target.address))?
        } else if more == More::No {
            self.inner
                .driver
                .with(|engine, now| engine.transmit(now))
                .map_err(SendError::Broken)
        } else {
            Ok(())
        }
    }

    fn targets(&self) -> Arc<[Target]> {
        Arc::clone(&self.targets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn some_targets(&self) -> Result<Arc<[Target]>, SendError> {
        let targets = self.targets();
        if targets.is_empty() {
            return Err(SendError::NoTarget {
                from: self.address(),
            });
        }
        Ok(targets)
    }

    fn check_fork(&self) -> Result<(), SendError> {
        if self.inner.is_forked() {
            return Err(SendError::Forked);
        }
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.inner.is_forked() {
            return;
        }
        let targets = self.targets();
        self.inner.driver.with(|engine, now| {
            for target in targets.iter() {
                engine.flush(target.edge.peer);
            }
            engine.close_endpoint(self.id().0);
            if let Err(cause) = engine.transmit(now) {
                tracing::warn!("closing endpoint {}: {cause}", self.address());
            }
        });
    }
}

fn send_error(blocked: Blocked, target: Target, length: usize) -> SendError {
    let target = target.address;
    match blocked {
        Blocked::NoFrame | Blocked::Opening => SendError::Full {
            target,
            by_receiver: false,
        },
        Blocked::NoCredit => SendError::Full {
            target,
            by_receiver: true,
        },
        Blocked::TooLong { limit } => SendError::TooLong { length, limit },
        Blocked::Refused(reason) => SendError::Refused { target, reason },
        Blocked::Gone(reason) => SendError::PeerGone { target, reason },
    }
}

fn wait_error(error: WaitError, target: Address) -> SendError {
    match error {
        WaitError::TimedOut { waited } => SendError::TimedOut { target, waited },
        WaitError::Broken(cause) => SendError::Broken(cause),
    }
}
