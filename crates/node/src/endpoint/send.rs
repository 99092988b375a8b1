//! The way of a message out: at once if it can, else waiting for its turn.

use dipole_proto::EdgeId;

use super::{Endpoint, Target, Until, Way};
use crate::address::Address;
use crate::driver::WaitError;
use crate::engine::{Blocked, Engine, LocalEdge};
use crate::error::SendError;

/// How a message is to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    Comes,
    No,
}

impl Endpoint {
    #[inline]
    pub(super) fn send_until(
        &self,
        payload: &[u8],
        until: Until,
        more: More,
    ) -> Result<(), SendError> {
        self.check_usable()?;
        let id = self.id().0;
        let sent = self
            .inner
            .driver
            .sending(|engine, clock| engine.send_fast(id, payload, more == More::Comes, clock));
        if sent.map_err(SendError::Broken)? {
            return Ok(());
        }
        let sent = self.send_to_each(payload, until, more);
        if matches!(sent, Err(SendError::Full { .. })) {
            self.inner
                .driver
                .with_last(|engine, _| engine.note_blocked(id));
        }
        sent
    }

    fn send_to_each(&self, payload: &[u8], until: Until, more: More) -> Result<(), SendError> {
        for target in self.some_targets()?.iter() {
            match target.way {
                Way::Net(edge) => self.send_packets(target, edge, payload, until, more)?,
                Way::Local(edge) => self.send_locally(target, edge, payload, until, more)?,
            }
            let length = payload.len();
            self.inner
                .driver
                .with_last(|_, _| target.sent.count(length));
        }
        Ok(())
    }

    pub(super) fn send_loose(&self, target: &Target, payload: &[u8]) -> Result<(), SendError> {
        let driver = &self.inner.driver;
        let sent = match target.way {
            Way::Net(edge) => driver.with(|engine, now| {
                let sent = engine.send_loose(edge, payload);
                engine.transmit(now).map(|()| sent)
            }),
            Way::Local(edge) => driver.with_last(|engine, _| {
                Ok(engine.on_local(|local| local.send_loose(edge, payload)))
            }),
        };
        sent.map_err(SendError::Broken)?
            .map_err(|blocked| send_error(blocked, target, payload.len()))
    }

    /// Through the memory of this node. A long message is lent to the receiver, who
    /// fetches it; a caller that cannot wait for that gives it a copy.
    fn send_locally(
        &self,
        target: &Target,
        edge: LocalEdge,
        payload: &[u8],
        until: Until,
        more: More,
    ) -> Result<(), SendError> {
        let mut lent = false;
        let mut why = Blocked::NoFrame;
        let id = self.id().0;
        let what = |_: &Engine| format!("endpoint {} to take a message", target.address);
        let driver = &self.inner.driver;
        let keys = target.way.keys();
        let begun = driver.wait(until, &keys, &what, |engine, _| {
            let sent = engine.on_local(|local| {
                if payload.len() <= local.whole_limit(edge) {
                    return local.send(edge, payload, more == More::Comes);
                }
                local.offer(edge, payload, until == Until::Now)?;
                lent = until != Until::Now;
                Ok(())
            });
            match sent {
                Ok(()) => Some(Ok(())),
                Err(blocked @ (Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening)) => {
                    why = blocked;
                    if until == Until::Now {
                        engine.refused(id);
                    }
                    None
                }
                Err(blocked) => Some(Err(send_error(blocked, target, payload.len()))),
            }
        });
        match begun {
            Ok(result) => result?,
            Err(error) => return Err(not_begun(error, until, why, target.address)),
        }
        if !lent {
            return Ok(());
        }
        driver
            .wait(Until::Forever, &keys, &what, |engine, _| {
                match engine.on_local(|local| local.is_taken(edge, payload)) {
                    Ok(taken) => taken.then_some(Ok(())),
                    Err(blocked) => Some(Err(send_error(blocked, target, payload.len()))),
                }
            })
            .map_err(|error| wait_error(error, target.address))?
    }

    fn send_packets(
        &self,
        target: &Target,
        edge: EdgeId,
        payload: &[u8],
        until: Until,
        more: More,
    ) -> Result<(), SendError> {
        let driver = &self.inner.driver;
        let first = driver
            .sending(|engine, clock| engine.send_packet(edge, payload, more == More::Comes, clock));
        match first.map_err(SendError::Broken)? {
            Ok(()) => Ok(()),
            Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => {
                self.send_packets_waiting(target, edge, payload, until, more)
            }
            Err(blocked) => Err(send_error(blocked, target, payload.len())),
        }
    }

    /// The slow way: a long message, or one that has to wait.
    fn send_packets_waiting(
        &self,
        target: &Target,
        edge: EdgeId,
        payload: &[u8],
        until: Until,
        more: More,
    ) -> Result<(), SendError> {
        let peer = edge.peer;
        let mut long = None;
        let mut why = Blocked::NoFrame;
        let id = self.id().0;
        let what = |_: &Engine| format!("endpoint {} to take a message", target.address);
        let keys = target.way.keys();
        let begun = self.inner.driver.wait(until, &keys, &what, |engine, now| {
            let sent = if payload.len() <= engine.whole_limit(peer) {
                engine.send_whole(now, edge, payload, more == More::Comes)
            } else {
                let begun = match until {
                    Until::Now => engine.begin_long_at_once(now, edge, payload.len()),
                    _ => engine.begin_long(now, edge, payload.len()),
                };
                begun.map(|out| long = Some(out))
            };
            match sent {
                Ok(()) => Some(Ok(())),
                Err(blocked @ (Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening)) => {
                    why = blocked;
                    if until == Until::Now {
                        engine.refused(id);
                    }
                    None
                }
                Err(blocked) => Some(Err(send_error(blocked, target, payload.len()))),
            }
        });
        match begun {
            Ok(result) => result?,
            Err(error) => {
                self.inner.driver.with(|engine, _| engine.cancel(edge));
                return Err(not_begun(error, until, why, target.address));
            }
        }
        if let Some(mut out) = long {
            self.inner
                .driver
                .wait(Until::Forever, &keys, &what, |engine, now| {
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
}

/// Why a message could not begin in time.
fn not_begun(error: WaitError, until: Until, why: Blocked, target: Address) -> SendError {
    match error {
        WaitError::TimedOut { .. } if until == Until::Now => SendError::Full {
            target,
            by_receiver: why == Blocked::NoCredit,
        },
        error => wait_error(error, target),
    }
}

pub(super) fn send_error(blocked: Blocked, target: &Target, length: usize) -> SendError {
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

pub(super) fn wait_error(error: WaitError, target: Address) -> SendError {
    match error {
        WaitError::TimedOut { waited } => SendError::TimedOut { target, waited },
        WaitError::Broken(cause) => SendError::Broken(cause),
    }
}
