//! Tracks whether packets get to an address of the peer, and answers back. Spec §5.3.
//!
//! [`PathState`] describes one lane and has no clock: the session decides when to probe. Data is
//! sent only to addresses that have answered or that the handshake has used.

use serde::{Deserialize, Serialize};

/// State of the path to one lane of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LaneState {
    /// Nothing has arrived from there yet.
    Waiting,
    /// It has answered and may carry data.
    Answers,
    /// It answered once and does not any more.
    Silent,
    /// The peer lists an address that this process has, too, so packets would not leave this host.
    OwnAddress,
    /// The peer has no such address and only sends on this lane.
    Missing,
}

/// State of the path of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct PathState {
    state: LaneState,
    /// How often the lane was given up. It distinguishes answers to older probes.
    round: u8,
    /// The peer has answered from there at some time.
    heard: bool,
}

impl PathState {
    pub(crate) fn new(state: LaneState) -> PathState {
        PathState {
            state,
            round: 0,
            heard: state == LaneState::Answers,
        }
    }

    pub(crate) fn state(self) -> LaneState {
        self.state
    }

    /// True if the peer has ever answered from there, even if only to a short probe.
    pub(crate) fn is_heard(self) -> bool {
        self.heard
    }

    /// A short probe was answered.
    pub(crate) fn on_packet(&mut self) {
        self.heard = true;
    }

    /// Number of times that the lane was given up; part of its probes' tokens.
    pub(crate) fn round(self) -> u8 {
        self.round
    }

    /// True if data may be sent there.
    pub(crate) fn is_proven(self) -> bool {
        self.state == LaneState::Answers
    }

    /// True if the path may work but is not proven.
    pub(crate) fn is_in_question(self) -> bool {
        matches!(self.state, LaneState::Waiting | LaneState::Silent)
    }

    /// True if packets sent there may path the peer.
    pub(crate) fn may_lead_there(self) -> bool {
        self.is_proven() || self.is_in_question()
    }

    /// Packets sent there were lost.
    pub(crate) fn give_up(&mut self) {
        if self.is_proven() {
            self.state = LaneState::Silent;
            self.round = self.round.wrapping_add(1);
        }
    }

    /// The peer does not listen there any more.
    pub(crate) fn withdraw(&mut self) {
        self.offer(LaneState::Missing);
    }

    /// The peer listens at another address from now on, of which nothing is known.
    pub(crate) fn offer(&mut self, state: LaneState) {
        *self = PathState {
            round: self.round.wrapping_add(1),
            ..PathState::new(state)
        };
    }

    /// A probe of full length was answered in this round. Returns the former state if that has
    /// changed it.
    pub(crate) fn answer(&mut self) -> Option<LaneState> {
        let before = self.state;
        if !self.is_in_question() {
            return None;
        }
        self.state = LaneState::Answers;
        self.heard = true;
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_proves_a_lane_and_each_loss_starts_a_round() {
        let mut path = PathState::new(LaneState::Waiting);
        assert!(path.is_in_question() && !path.is_proven() && !path.is_heard());
        path.on_packet();
        assert!(path.is_heard() && !path.is_proven());
        assert_eq!(path.answer(), Some(LaneState::Waiting));
        assert!(path.is_proven());
        assert_eq!(path.answer(), None, "no news");
        path.give_up();
        assert_eq!(
            (path.is_proven(), path.is_heard(), path.round()),
            (false, true, 1)
        );
        assert_eq!(path.answer(), Some(LaneState::Silent));
        assert!(path.is_proven());
    }

    #[test]
    fn a_withdrawn_address_is_not_used_and_another_one_must_answer() {
        let mut path = PathState::new(LaneState::Answers);
        path.withdraw();
        assert!(!path.may_lead_there() && !path.is_heard());
        assert_eq!(path.answer(), None, "a late echo");
        path.offer(LaneState::Waiting);
        assert!(path.is_in_question() && !path.is_heard());
        assert_eq!(path.round(), 2, "late echoes have other tokens");
        assert_eq!(path.answer(), Some(LaneState::Waiting));
    }

    #[test]
    fn an_unusable_lane_is_neither_probed_nor_proven() {
        for state in [LaneState::OwnAddress, LaneState::Missing] {
            let mut path = PathState::new(state);
            assert!(!path.may_lead_there());
            assert_eq!(path.answer(), None);
            path.give_up();
            assert_eq!(path.state(), state);
        }
    }
}
