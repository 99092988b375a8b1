//! Messages to and from ranks of other nodes: sent as there is room, and waited for.

use std::time::Duration;

use dipole_link::clock::monotonic_ns;

use super::super::Process;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::slow_wait::SlowWaitLog;
use crate::superstep::exchange::Outgoing;
use crate::superstep::message::{Head, Kind};
use crate::superstep::record::Malformed;

/// How long a rank waits for a message before it checks whether the others are alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl<C: Carrier> Process<C> {
    /// Sends whatever there is room for and whose slot has begun. Returns true if nothing is left,
    /// and the carrier no longer reads memory of the program.
    #[inline]
    pub(super) fn transmit(&mut self) -> Result<bool, Failure> {
        while self.has_unsent() {
            if !self.carrier()?.has_room()? {
                if let Some(trace) = &mut self.trace {
                    trace.stalled();
                }
                return Ok(false);
            }
            if self.pacer.is_paced() && !self.exchange.is_urgent() {
                if !self.transmit_in_slot()? {
                    return Ok(false);
                }
            } else if let Some((to, next)) = self.exchange.poll_transmit() {
                self.hand_over(to, next)?;
            }
        }
        Ok(!self.has_pending_writes())
    }

    fn hand_over(&mut self, to: u32, next: Outgoing) -> Result<(), Failure> {
        let carrier = self.carrier()?;
        match next {
            Outgoing::Message(message) => carrier.send(to, message),
            Outgoing::Write { key, offset, bytes } => carrier.write_remote(to, key, offset, bytes),
        }
    }

    /// Sends the next chunk if its slot has begun. Returns whether it has.
    fn transmit_in_slot(&mut self) -> Result<bool, Failure> {
        let (now, exchange) = (self.begun.elapsed(), &mut self.exchange);
        match self.pacer.take_due(now, || exchange.poll_transmit()) {
            Some((to, chunk)) => {
                self.hand_over(to, chunk)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        self.exchange.has_transmit() || self.pacer.has_chunk()
    }

    /// Sends and receives messages until everything is sent and `is_done` holds.
    #[inline]
    pub(super) fn pump(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        loop {
            let is_sent = self.transmit()?;
            if is_sent && is_done(self) {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    /// Sends whatever there is room for, and waits for a message or for room. Returns at once if
    /// that sent the last of the data.
    pub(super) fn wait_message(&mut self) -> Result<(), Failure> {
        let mut slow_wait = None;
        loop {
            let had_unsent = self.has_unsent() || self.has_pending_writes();
            let is_sent = self.transmit()?;
            if had_unsent && is_sent {
                // The caller may wait for nothing else.
                return Ok(());
            }
            let (was_full, was_writing) = (self.has_unsent(), self.has_pending_writes());
            let timeout = self.pacer.due().map_or(CHECK_INTERVAL, |due| {
                due.saturating_sub(self.begun.elapsed()).min(CHECK_INTERVAL)
            });
            let since = self.trace.as_ref().map(|_| monotonic_ns());
            let received = self.carrier()?.receive(timeout)?;
            if let (Some(trace), Some(since)) = (&mut self.trace, since) {
                // If no particular rank is awaited, the wait counts for the sender.
                let awaited = self.exchange.awaited_leader();
                let awaited = awaited.or(received.as_ref().map(|(from, _)| *from));
                awaited.inspect(|rank| trace.waited(*rank, since));
            }
            if let Some((from, message)) = received {
                return self.accept(from, message);
            }
            let has_written = was_writing && !self.has_pending_writes();
            if has_written || was_full && self.carrier()?.has_room()? {
                return Ok(());
            }
            if dipole_node::is_cancelled() {
                return Err(Failure::Interrupted);
            }
            let awaited: Vec<u32> = match self.exchange.awaited_leader() {
                Some(rank) => vec![rank],
                None if self.has_all_records() => {
                    let unready = self.held_for.iter().map(|held| held.to);
                    self.missing_replies().chain(unready).collect()
                }
                None => self.missing_records().collect(),
            };
            if let Some(shared) = &self.shared {
                shared.ranks().check_abort()?;
            }
            self.carrier()?.check(&awaited)?;
            // One rank reports the wait for all.
            if self.rank == u32::from(awaited == [0]) {
                self.log_slow_wait(slow_wait.get_or_insert_with(SlowWaitLog::new), || {
                    Some(rank_list(&awaited))
                });
            }
        }
    }

    /// Accepts a message of another rank.
    pub(in crate::process) fn accept(
        &mut self,
        from: u32,
        message: C::Message,
    ) -> Result<(), Failure> {
        match Head::decode(&message) {
            Some((head, _)) if head.kind == Kind::Abort => Err(Failure::Aborted { rank: from }),
            // The acknowledgement by the link is all that the sender of a probe needs.
            Some((head, _)) if head.kind == Kind::Probe => Ok(()),
            Some((head, _)) => {
                match &mut self.standby {
                    Some(standby) if head.kind == Kind::Start => standby.keep(from, message),
                    _ => self.exchange.accept(from, head, message)?,
                }
                Ok(())
            }
            None => Err(Malformed.into()),
        }
    }

    pub(in crate::process) fn carrier(&mut self) -> Result<&mut C, Failure> {
        let closed = || std::io::ErrorKind::NotConnected.into();
        let carrier = self.carrier.as_mut().ok_or_else(closed);
        carrier.map_err(Failure::system("messages to other nodes"))
    }

    pub(in crate::process) fn close(&mut self, timeout: Duration) {
        if let Some(mut carrier) = self.carrier.take() {
            carrier.close(timeout);
        }
    }
}

/// The ranks that a rank waits for, as messages name them.
pub(super) fn rank_list(ranks: &[u32]) -> String {
    let names: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    match ranks {
        [] => "other nodes to accept its messages".to_owned(),
        [_] => format!("rank {}", names[0]),
        _ => format!("ranks {}", names.join(", ")),
    }
}
