//! Sends messages to several targets.

use std::time::Instant;

use dipole_driver::{Timeout, WaitError};
use dipole_engine::{Blocked, Target};

use super::Endpoint;
use super::send::wait_error;
use crate::edges::{Delivery, FanOut, MAX_POSTED_BYTES};
use crate::error::SendError;
use crate::process::ProcessState;

impl Endpoint {
    /// Sends a message to all targets, or to none.
    pub(super) fn send_to_all(
        &self,
        payload: &[u8],
        until: Timeout,
        more: bool,
    ) -> Result<(), SendError> {
        let targets = self.require_targets()?;
        let limit = match until {
            Timeout::Zero => MAX_POSTED_BYTES as u64,
            _ => self.inner.config.protocol.max_message_bytes,
        };
        let length = payload.len();
        if length as u64 > limit {
            return Err(SendError::TooLong { length, limit });
        }
        let id = self.id().0;
        let begun_at = Instant::now();
        let mut message = FanOut::new(payload, more, until == Timeout::Infinite);
        let mut full = self.address();
        let keys: Vec<_> = targets.iter().map(|(edge, _)| edge.key()).collect();
        let what =
            |_: &ProcessState| format!("all targets of {} to take a message", self.address());
        let traced = self.inner.trace_wait(until);
        let sent = (self.inner.driver).wait(until, &keys, &what, |state, now| {
            match state.fan_out(id, &mut message, now) {
                Err(error) => Some(Err(error)),
                Ok(Delivery::Blocked(target)) => {
                    full = target;
                    if until == Timeout::Zero {
                        state.engine.record_refused_send(id, &keys);
                    }
                    None
                }
                Ok(Delivery::Sent(in_turn)) if more => Some(Ok(in_turn)),
                Ok(Delivery::Sent(in_turn)) => {
                    let sent = state.engine.transmit(now).map(|()| in_turn);
                    Some(sent.map_err(SendError::Broken))
                }
            }
        });
        if let Some(traced) = traced {
            let only = match targets[..] {
                [(_, only)] => Some(only),
                _ => None,
            };
            traced.end_send((Some(self.address()), only), length, sent.is_ok());
        }
        let in_turn = match sent {
            Ok(sent) => sent?,
            Err(WaitError::TimedOut { .. }) if until == Timeout::Zero => {
                return Err(SendError::Full {
                    target: full,
                    by_receiver: true,
                });
            }
            Err(error) => return Err(wait_error(error, full)),
        };
        if message.is_queued() {
            self.ensure_progress()?;
        }
        self.send_in_turn(&in_turn, payload, until.after(begun_at.elapsed()))
    }

    /// Sends a long message to one target after the other. The loss of one is reported by the next
    /// call, because the others get the message.
    fn send_in_turn(
        &self,
        targets: &[Target],
        payload: &[u8],
        until: Timeout,
    ) -> Result<(), SendError> {
        let id = self.id().0;
        for target in targets {
            let sent = (self.inner).send_to_target(id, target, payload.into(), until, false);
            let why = match sent {
                Ok(()) => continue,
                Err(SendError::PeerGone { reason, .. }) => Blocked::Gone(reason),
                Err(SendError::Refused { reason, .. }) => Blocked::Refused(reason),
                Err(error) => return Err(error),
            };
            (self.inner.driver).with_last(|state, _| state.targets.lose(id, target.address, why));
        }
        Ok(())
    }

    /// Sends a message once to each target that has room for it.
    pub(super) fn send_unreliably(&self, payload: &[u8]) -> Result<(), SendError> {
        self.require_targets()?;
        let id = self.id().0;
        self.inner.driver.with(|state, now| {
            let targets = state.live_targets(id)?;
            let mut refused = None;
            let mut sent_to = 0;
            for target in &targets {
                match state.engine.send_unreliable(now, target.edge, payload) {
                    Ok(()) => sent_to += 1,
                    Err(why) => {
                        let error = SendError::from_blocked(why, target.address, payload.len());
                        refused.get_or_insert(error);
                    }
                }
            }
            state.engine.transmit(now).map_err(SendError::Broken)?;
            match refused {
                Some(error) if sent_to == 0 => Err(error),
                _ => Ok(()),
            }
        })
    }
}
