//! When an acknowledgement is sent to the peer. Spec §6.4.

use crate::time::Instant;
use serde::{Deserialize, Serialize};

/// Acknowledgements that the peer is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Acks {
    /// Packets accepted since the last acknowledgement.
    packets: u32,
    /// When to send one even if nothing else is sent.
    at: Instant,
    /// One is sent with the next packets.
    is_due: bool,
}

impl Acks {
    /// Everything is acknowledged.
    pub(crate) const NONE: Acks = Acks {
        packets: 0,
        at: Instant::NEVER,
        is_due: false,
    };

    /// True if an acknowledgement is sent with the next packets.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// When an acknowledgement is sent at the latest.
    #[inline]
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// Packets accepted since the last acknowledgement.
    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Counts packets with units.
    #[inline]
    pub(crate) fn count(&mut self, packets: u32) {
        self.packets += packets;
    }

    /// Sends an acknowledgement with the next packets.
    #[inline]
    pub(crate) fn send_now(&mut self) {
        self.is_due = true;
    }

    /// Sends an acknowledgement with the next packets if anything has arrived since the last.
    pub(crate) fn flush(&mut self) {
        self.is_due |= self.packets > 0;
    }

    /// Sends an acknowledgement by then.
    #[inline]
    pub(crate) fn send_by(&mut self, at: Instant) {
        self.at = self.at.min(at);
    }

    /// An acknowledgement was sent; another one follows if `more`.
    pub(crate) fn sent(&mut self, more: bool) {
        *self = Acks {
            is_due: more,
            ..Acks::NONE
        };
    }

    /// Makes the acknowledgement due if its time has come.
    pub(crate) fn on_timer(&mut self, now: Instant) {
        if now >= self.at {
            self.at = Instant::NEVER;
            self.is_due = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_waits_until_its_time() {
        let mut acks = Acks::NONE;
        acks.flush();
        assert!(!acks.is_due(), "nothing has arrived");
        acks.count(1);
        acks.send_by(Instant(30));
        acks.send_by(Instant(40));
        acks.on_timer(Instant(29));
        assert!(!acks.is_due());
        acks.on_timer(Instant(30));
        assert!(acks.is_due());
        acks.sent(false);
        assert_eq!(acks, Acks::NONE);
    }
}
