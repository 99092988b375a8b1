//! Short ways that somebody else opened: a ring that a lender keeps filled and, if it lends
//! one, a socket for raw frames.

use std::path::Path;

use super::inlet::Inlet;
use super::loan::{Loan, LoanError, ask};
use super::neighbours::Neighbours;
use super::open::{BpfOptions, Shortcuts, card_of};
use super::outlet::Outlet;
use super::raw::RawSender;
use dipole_link::udp::Udp;
use dipole_link::{Class, Link};

impl Shortcuts {
    /// Borrows them for a UDP link from the lender that listens there.
    ///
    /// # Errors
    /// See [`LoanError`]; nothing stays borrowed.
    pub fn borrow(udp: &Udp, path: &Path, options: &BpfOptions) -> Result<Shortcuts, LoanError> {
        let ip = udp.local(Class::Small).ip();
        let (_, scope_id) = card_of(ip).map_err(LoanError::Socket)?;
        let mut loan = ask(path, udp.small_socket(), options.ring_bytes)?;
        let outlet = borrowed_outlet(&mut loan, udp);
        let inlet = Inlet::lent(loan, scope_id).map_err(LoanError::Socket)?;
        Ok(Shortcuts { inlet, outlet })
    }
}

/// The way out by a loan's socket, if there is one.
pub(super) fn borrowed_outlet(loan: &mut Loan, udp: &Udp) -> Option<Outlet> {
    let sender = loan.take_sender()?;
    match Neighbours::open(loan.card(), udp.local(Class::Small).ip()) {
        Ok(neighbours) => Some(Outlet::borrowed(neighbours, RawSender::from_socket(sender))),
        Err(cause) => {
            let card = &loan.card().name;
            tracing::warn!(%card, %cause, "no raw frames: the kernel does not tell who is near");
            None
        }
    }
}
