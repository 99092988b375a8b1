//! Whether packets get to an address of the peer, and answers back. Spec §5.3.
//!
//! [`PathState`] is that of one lane. It knows no time: the session decides when to ask. Data
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
pub(crate) struct PathState {
    state: LaneState,
    /// How often the lane was given up: tells answers to probes before that apart.
    round: u8,
    /// The peer does receive there: an answer has come at some time.
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

    /// True if the peer has ever answered from there, if only to a short probe.
    pub(crate) fn is_heard(self) -> bool {
        self.heard
    }

    /// A short probe was answered.
    pub(crate) fn on_packet(&mut self) {
        self.heard = true;
    }

    /// Tells the probes of this lane apart.
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

    /// A probe as long as packets get was answered in this round; the state before if that is
    /// news.
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
    fn an_answer_proves_a_lane_and_each_loss_begins_a_round() {
        let mut reach = PathState::new(LaneState::Waiting);
        assert!(reach.is_in_question() && !reach.is_proven() && !reach.is_heard());
        reach.on_packet();
        assert!(reach.is_heard() && !reach.is_proven());
        assert_eq!(reach.answer(), Some(LaneState::Waiting));
        assert!(reach.is_proven());
        assert_eq!(reach.answer(), None, "no news");
        reach.give_up();
        assert_eq!(
            (reach.is_proven(), reach.is_heard(), reach.round()),
            (false, true, 1)
        );
        assert_eq!(reach.answer(), Some(LaneState::Silent));
        assert!(reach.is_proven());
    }

    #[test]
    fn a_lane_that_leads_nowhere_is_never_asked_nor_proven() {
        for state in [LaneState::OwnAddress, LaneState::Missing] {
            let mut reach = PathState::new(state);
            assert!(!reach.may_lead_there());
            assert_eq!(reach.answer(), None);
            reach.give_up();
            assert_eq!(reach.state(), state);
        }
    }
}
