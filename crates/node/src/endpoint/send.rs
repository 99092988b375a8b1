//! Sends messages: at once if possible, otherwise after waiting for room.

use std::time::Instant;

use super::{Endpoint, Timeout};
use crate::address::{Address, EndpointId};
use crate::edges::EdgeRef;
use crate::error::SendError;
use crate::inner::Inner;
use crate::process::ProcessState;
use dipole_driver::WaitError;
use dipole_engine::{Blocked, Content, LongSend, Target, wait_keys};

/// True if more messages follow, so that this one may wait to share their packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    Yes,
    No,
}

impl Endpoint {
    #[inline]
    pub(super) fn send_until(
        &self,
        payload: &[u8],
        until: Timeout,
        more: More,
    ) -> Result<(), SendError> {
        self.check_usable()?;
        let id = self.id().0;
        let sent = self.inner.driver.sending(|state, clock| {
            state
                .engine
                .send_fast(id, payload, more == More::Yes, clock)
        });
        if sent.map_err(SendError::Broken)? {
            return Ok(());
        }
        let only = (self.inner.driver).with_last(|state, _| state.engine.fast_target(id).cloned());
        let sent = match only {
            Some(target) => {
                let more = more == More::Yes;
                (self.inner).send_to_target(id, &target, payload.into(), until, more)
            }
            None => self.send_to_all(payload, until, more == More::Yes),
        };
        if matches!(sent, Err(SendError::Full { .. })) {
            self.inner
                .driver
                .with_last(|state, _| state.engine.set_send_blocked(id));
        }
        sent
    }
}

impl Inner {
    /// Sends along one edge, waiting until it is open.
    pub(crate) fn send_along(
        &self,
        source: u32,
        (id, to): (EdgeRef, Address),
        content: Content<'_>,
        until: Timeout,
    ) -> Result<(), SendError> {
        let sent = self.driver.sending(|state, clock| {
            let (engine, edges, _) = state.parts();
            edges.send_fast(engine, id, content, false, clock)
        });
        if sent.map_err(SendError::Broken)? {
            return Ok(());
        }
        let begun = Instant::now();
        let sent = self.wait_target(id, to, until).and_then(|target| {
            let left = until.after(begun.elapsed());
            self.send_to_target(source, &target, content, left, false)
        });
        if matches!(sent, Err(SendError::Full { .. })) {
            self.driver.with_last(|state, _| {
                if state.edges.idle_target(id).is_none() {
                    state.engine.record_refused_send(source, &[id.key()]);
                }
                state.engine.set_send_blocked(source);
            });
        }
        sent
    }

    pub(crate) fn send_to_target(
        &self,
        source: u32,
        target: &Target,
        content: Content<'_>,
        until: Timeout,
        more: bool,
    ) -> Result<(), SendError> {
        let driver = &self.driver;
        let first = driver
            .sending(|state, clock| state.engine.send_at_once(target.edge, content, more, clock));
        match first.map_err(SendError::Broken)? {
            Ok(()) => {}
            Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => {
                self.send_waiting(source, target, content, until, more)?;
            }
            Err(blocked) => return Err(send_error(blocked, target, content.payload().len())),
        }
        driver.with_last(|_, _| target.sent.count(content.payload().len()));
        Ok(())
    }

    /// Sends a long message, or one that must wait for room.
    fn send_waiting(
        &self,
        id: u32,
        target: &Target,
        content: Content<'_>,
        until: Timeout,
        more: bool,
    ) -> Result<(), SendError> {
        let (edge, payload) = (target.edge, content.payload());
        let (begun_at, mut long, mut why) = (Instant::now(), None, Blocked::NoFrame);
        let what = |_: &ProcessState| format!("endpoint {} to take a message", target.address);
        let keys = wait_keys(edge);
        let driver = &self.driver;
        let traced = self.trace_wait(until);
        let begun = driver.wait(until, &keys, &what, |state, now| {
            let sent = if content.bytes() <= state.engine.whole_limit(edge.peer) {
                state.engine.send_whole(now, edge, content, more)
            } else {
                let begun = match until {
                    Timeout::Zero => state.engine.begin_long_at_once(now, edge, content),
                    // The payload is copied, because the caller may return before it is sent.
                    Timeout::After(_) => state.engine.begin_long(now, edge, content, true),
                    Timeout::Infinite => state.engine.begin_long(now, edge, content, false),
                };
                begun.map(|send| long = Some(send))
            };
            match sent {
                Ok(()) if more => Some(Ok(())),
                Ok(()) => Some(state.engine.transmit(now).map_err(SendError::Broken)),
                Err(blocked @ (Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening)) => {
                    why = blocked;
                    if until == Timeout::Zero {
                        let freed = match blocked {
                            Blocked::NoCredit => &keys[..2],
                            _ => &keys,
                        };
                        state.engine.record_refused_send(id, freed);
                    }
                    None
                }
                Err(blocked) => Some(Err(send_error(blocked, target, payload.len()))),
            }
        });
        if let Some(traced) = traced {
            let ends = (Some(self.address_of(id)), Some(target.address));
            traced.end_send(ends, payload.len(), begun.is_ok());
        }
        match begun {
            Ok(result) => result?,
            Err(error) => {
                // Non-blocking: leave the credit request pending; the descriptor becomes writable
                // when credit arrives.
                if until != Timeout::Zero {
                    driver.with(|state, now| {
                        state.engine.cancel(edge);
                        // Retrying calls never wait long enough to detect a dead peer.
                        state.engine.watch(now, edge.peer);
                    });
                }
                return Err(start_error(error, until, why, target.address));
            }
        }
        match long {
            Some(send) => self.send_rest(target, payload, send, until.after(begun_at.elapsed())),
            None => Ok(()),
        }
    }

    /// Sends the rest of a long message that has started. After a time-out, the remainder is sent
    /// in the background.
    fn send_rest(
        &self,
        target: &Target,
        payload: &[u8],
        mut send: LongSend,
        until: Timeout,
    ) -> Result<(), SendError> {
        let peer = target.edge.peer;
        let what = |_: &ProcessState| format!("endpoint {} to take a message", target.address);
        let keys = wait_keys(target.edge);
        let driver = &self.driver;
        let ended = driver.wait(until, &keys, &what, |state, now| {
            loop {
                let done = match state.engine.continue_long(&mut send, payload) {
                    Ok(done) => done,
                    Err(blocked) => {
                        return Some(Err(send_error(blocked, target, payload.len())));
                    }
                };
                if let Err(cause) = state.engine.transmit(now) {
                    return Some(Err(SendError::Broken(cause)));
                }
                if done {
                    return Some(Ok(()));
                }
                if state.engine.queued(peer) > 0 || state.engine.frames_for_long(peer) == 0 {
                    return None;
                }
                if state.engine.shares_memory(peer) {
                    return None;
                }
            }
        });
        match ended {
            Ok(result) => result,
            // A message that has begun is sent completely.
            Err(WaitError::TimedOut { .. } | WaitError::Interrupted { .. }) => {
                let kept = driver.with(|state, now| {
                    state.engine.continue_in_background(send, payload);
                    state.engine.transmit(now)
                });
                kept.map_err(SendError::Broken)
            }
            Err(error) => {
                driver.with(|state, _| state.engine.abandon_long(send));
                Err(wait_error(error, target.address))
            }
        }
    }

    /// Waits until the target's process has acknowledged everything, or is gone. Reports the refusal of
    /// a message.
    pub(crate) fn wait_acknowledged(
        &self,
        source: u32,
        target: &Target,
        until: Timeout,
    ) -> Result<(), SendError> {
        let what = |_: &ProcessState| format!("acknowledgements from {}", target.address);
        let (peer, keys) = (target.edge.peer, wait_keys(target.edge));
        let traced = self.trace_wait(until);
        let mut refused = None;
        let waited = self.driver.wait(until, &keys, &what, |state, _| {
            refused = state.engine.take_refusal(source, target).or(refused);
            match state.engine.is_open(peer) {
                // The peer may have acknowledged everything before it left.
                Err(_) if state.engine.acknowledged_before_leaving(peer) => Some(Ok(())),
                Err(blocked) => Some(Err(send_error(blocked, target, 0))),
                Ok(_) => state.engine.is_peer_acknowledged(peer).then_some(Ok(())),
            }
        });
        if let Some(traced) = traced {
            traced.end_operation(Some(target.address), waited.is_ok());
        }
        match refused {
            Some(reason) => Err(send_error(Blocked::Refused(reason), target, 0)),
            None => waited.map_err(|error| wait_error(error, target.address))?,
        }
    }

    /// The address of an endpoint of this process.
    fn address_of(&self, endpoint: u32) -> Address {
        Address {
            node: self.config.node,
            endpoint: EndpointId(endpoint),
        }
    }
}

/// Converts the error of a message that could not start in time.
fn start_error(error: WaitError, until: Timeout, why: Blocked, target: Address) -> SendError {
    match error {
        WaitError::TimedOut { .. } if until == Timeout::Zero => SendError::Full {
            target,
            by_receiver: why == Blocked::NoCredit,
        },
        error => wait_error(error, target),
    }
}

pub(super) fn send_error(blocked: Blocked, target: &Target, length: usize) -> SendError {
    SendError::from_blocked(blocked, target.address, length)
}

pub(super) fn wait_error(error: WaitError, target: Address) -> SendError {
    match error {
        WaitError::TimedOut { waited } => SendError::TimedOut { target, waited },
        WaitError::Interrupted { .. } => SendError::Interrupted { target },
        WaitError::Broken(cause) => SendError::Broken(cause),
    }
}
