//! Messages of a superstep's end: sent as there is room, and waited for.

use std::time::Duration;

use dipole_link::clock::monotonic_ns;

use super::super::Process;
use super::waiting::tell;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::patience::Patience;
use crate::superstep::exchange::Outgoing;
use crate::superstep::message::{Head, Kind};
use crate::superstep::record::Malformed;

/// How long a rank waits for a message before it asks whether the others live.
const LOOK: Duration = Duration::from_millis(100);

impl<C: Carrier> Process<C> {
    /// Sends what there is room for, and whose slot has begun; true if nothing is left, and no
    /// memory of the program's is read any more.
    #[inline]
    pub(super) fn transmit(&mut self) -> Result<bool, Failure> {
        while self.has_unsent() {
            if !self.carrier()?.has_room()? {
                if let Some(trace) = &mut self.trace {
                    trace.stalled();
                }
                return Ok(false);
            }
            if self.slots.is_some() && !self.exchange.is_urgent() {
                if !self.transmit_in_slot()? {
                    return Ok(false);
                }
            } else if let Some((to, next)) = self.exchange.poll_transmit() {
                self.hand_over(to, next)?;
            }
        }
        Ok(!self.is_placing())
    }

    fn hand_over(&mut self, to: u32, what: Outgoing) -> Result<(), Failure> {
        let carrier = self.carrier()?;
        match what {
            Outgoing::Message(message) => carrier.send(to, message),
            Outgoing::Placed { key, offset, bytes } => carrier.place(to, key, offset, bytes),
        }
    }

    /// Sends the next chunk if its slot has begun.
    fn transmit_in_slot(&mut self) -> Result<bool, Failure> {
        let now = self.begun.elapsed();
        let chunk = self.next_chunk.take().or_else(|| {
            let (to, chunk) = self.exchange.poll_transmit()?;
            let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            let due = Duration::from_nanos(self.pace.next(now_ns, chunk.length()));
            Some((due, to, chunk))
        });
        match chunk {
            Some((due, to, chunk)) if due <= now => {
                self.hand_over(to, chunk)?;
                Ok(true)
            }
            early => {
                self.next_chunk = early;
                Ok(false)
            }
        }
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        self.exchange.has_transmit() || self.next_chunk.is_some()
    }

    /// Sends and takes messages until `is_done` and everything is sent.
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

    /// Sends what there is room for and waits for a message, or for room, unless the last has been sent by this.
    pub(super) fn wait_message(&mut self) -> Result<(), Failure> {
        let mut patience = None;
        loop {
            let has_waited = self.has_unsent() || self.is_placing();
            let is_sent = self.transmit()?;
            if has_waited && is_sent {
                // That may be all that its caller waits for.
                return Ok(());
            }
            let (was_full, was_placing) = (self.has_unsent(), self.is_placing());
            let slot = self.next_chunk.as_ref().map(|(due, ..)| *due);
            let patience_now = slot.map_or(LOOK, |due| {
                due.saturating_sub(self.begun.elapsed()).min(LOOK)
            });
            let since = self.trace.as_ref().map(|_| monotonic_ns());
            let received = self.carrier()?.receive(patience_now)?;
            if let (Some(trace), Some(since)) = (&mut self.trace, since) {
                // Else for whoever has come.
                let waits_for = self.exchange.waits_for();
                let waits_for = waits_for.or(received.as_ref().map(|(from, _)| *from));
                waits_for.inspect(|rank| trace.waited(*rank, since));
            }
            if let Some((from, message)) = received {
                return self.take(from, message);
            }
            let has_placed = was_placing && !self.is_placing();
            if has_placed || was_full && self.carrier()?.has_room()? {
                return Ok(());
            }
            let waits: Vec<u32> = match self.exchange.waits_for() {
                Some(rank) => vec![rank],
                None if self.is_complete() => {
                    let unready = self.kept.iter().map(|kept| kept.to);
                    self.unanswered().chain(unready).collect()
                }
                None => self.missing().collect(),
            };
            if let Some(mates) = &self.mates {
                mates.check()?;
            }
            self.carrier()?.check(&waits)?;
            let patience = patience.get_or_insert_with(Patience::new);
            let superstep = self.superstep();
            tell(&self.call, self.rank, superstep, patience, &waits);
        }
    }

    /// Takes a message of another rank.
    pub(in crate::process) fn take(
        &mut self,
        from: u32,
        message: C::Message,
    ) -> Result<(), Failure> {
        match Head::decode(&message) {
            Some((head, _)) if head.kind == Kind::Abort => Err(Failure::Aborted { rank: from }),
            // That it has come is the answer.
            Some((head, _)) if head.kind == Kind::Alive => Ok(()),
            Some((head, _)) => Ok(self.exchange.accept(from, head, message)?),
            None => Err(Malformed.into()),
        }
    }

    pub(in crate::process) fn carrier(&mut self) -> Result<&mut C, Failure> {
        let closed = || std::io::ErrorKind::NotConnected.into();
        let carrier = self.carrier.as_mut().ok_or_else(closed);
        carrier.map_err(Failure::system("messages to other nodes"))
    }

    pub(in crate::process) fn close(&mut self, patience: Duration) {
        if let Some(mut carrier) = self.carrier.take() {
            carrier.close(patience);
        }
    }
}
