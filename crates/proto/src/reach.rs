//! Whether packets get to an address of the peer, and answers back. Spec §5.3.
//!
//! [`Reach`] is that of one lane. It knows no time: the session decides when to ask. Data
//! go only where an answer has come from, or the handshake has gone.

/// What is known of the way to one of a peer's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneState {
    /// Nothing has come back from there yet.
    Waiting,
    /// It answers: it may carry data.
    Answers,
    /// It answered once and does no longer.
    Silent,
    /// The peer names an address that this process has too: it leads back here.
    OwnAddress,
    /// The peer has no such address; it only sends on this lane.
    Missing,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reach {
    state: LaneState,
    /// How often the lane was given up: tells answers to probes before that apart.
    round: u8,
}

impl Reach {
    pub(crate) fn new(state: LaneState) -> Reach {
        Reach { state, round: 0 }
    }

    pub(crate) fn state(self) -> LaneState {
        self.state
    }

    /// What probes of this lane carry.
    pub(crate) fn round(self) -> u8 {
        self.round
    }

    /// True if data may go there.
    pub(crate) fn is_proven(self) -> bool {
        self.state == LaneState::Answers
    }

    /// True if it may lead to the peer, but nobody knows.
    pub(crate) fn is_in_question(self) -> bool {
        matches!(self.state, LaneState::Waiting | LaneState::Silent)
    }

    /// True if packets sent there may reach the peer.
    pub(crate) fn may_lead_there(self) -> bool {
        self.is_proven() || self.is_in_question()
    }

    /// What went there got lost.
    pub(crate) fn give_up(&mut self) {
        if self.is_proven() {
            self.state = LaneState::Silent;
            self.round = self.round.wrapping_add(1);
        }
    }

    /// An answer to a probe of this round has come; the state before if that is news.
    pub(crate) fn answer(&mut self, round: u8) -> Option<LaneState> {
        let before = self.state;
        if !self.is_in_question() || round != self.round {
            return None;
        }
        self.state = LaneState::Answers;
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_the_present_round_proves_a_lane() {
        let mut reach = Reach::new(LaneState::Waiting);
        assert!(reach.is_in_question() && !reach.is_proven());
        assert_eq!(reach.answer(1), None);
        assert_eq!(reach.answer(0), Some(LaneState::Waiting));
        assert!(reach.is_proven());
        assert_eq!(reach.answer(0), None, "no news");
        reach.give_up();
        assert!(!reach.is_proven());
        assert_eq!(
            reach.answer(0),
            None,
            "it was sent before the lane was lost"
        );
        assert_eq!(reach.answer(1), Some(LaneState::Silent));
        assert!(reach.is_proven());
    }

    #[test]
    fn a_lane_that_leads_nowhere_is_never_asked_nor_proven() {
        for state in [LaneState::OwnAddress, LaneState::Missing] {
            let mut reach = Reach::new(state);
            assert!(!reach.may_lead_there());
            assert_eq!(reach.answer(0), None);
            reach.give_up();
            assert_eq!(reach.state(), state);
        }
    }
}
