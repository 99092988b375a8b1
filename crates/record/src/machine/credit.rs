//! Messages that are refused as if the receiver had given no credit for them.

use dipole_link::fault::Shortage;
use dipole_proto::{BeginError, EdgeId};

use super::RecordedMachine;

/// Decides which messages are refused; the core and a recording see none of it.
#[derive(Debug)]
pub(super) struct CreditShortage {
    shortage: Shortage,
    /// Edges on which a message was refused.
    refused: Vec<EdgeId>,
}

impl RecordedMachine {
    /// Refuses messages from now on.
    pub fn inject_credit_shortage(&mut self, shortage: Shortage) {
        self.credit = Some(Box::new(CreditShortage {
            shortage,
            refused: Vec::new(),
        }));
    }

    /// The number of messages refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let credit = self.credit.as_ref();
        credit.map_or(0, |credit| credit.shortage.count())
    }

    /// True if messages were refused since the last call of
    /// [`take_refused`](Self::take_refused).
    #[must_use]
    pub fn has_refused(&self) -> bool {
        let credit = self.credit.as_ref();
        credit.is_some_and(|credit| !credit.refused.is_empty())
    }

    /// Edges on which messages were refused since the last call. Their senders wait for credit
    /// that no peer will report.
    pub fn take_refused(&mut self) -> Vec<EdgeId> {
        let credit = self.credit.as_mut();
        credit.map_or_else(Vec::new, |credit| std::mem::take(&mut credit.refused))
    }

    /// Refuses a message, or lets it pass.
    #[inline]
    pub(super) fn admit(&mut self, edge: EdgeId) -> Result<(), BeginError> {
        match &mut self.credit {
            None => Ok(()),
            Some(credit) => admit_unless_short(credit, edge),
        }
    }
}

#[cold]
#[inline(never)]
fn admit_unless_short(credit: &mut CreditShortage, edge: EdgeId) -> Result<(), BeginError> {
    if !credit.shortage.strikes() {
        return Ok(());
    }
    if !credit.refused.contains(&edge) {
        credit.refused.push(edge);
    }
    Err(BeginError::NoCredit { left: 0 })
}
