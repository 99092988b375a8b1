//! Messages that a program sends from address 0: they fail on both sides.
//!
//! Were such a send only refused, Open MPI would wait for ever: its receiver for the message, its
//! sender for a request that it takes for begun.

use dipole_node::Rights;

use super::{Exchange, Sending};
use crate::abi::errno::{FI_EINVAL, FI_EIO};
use crate::guard::Failure;
use crate::memory::Pieces;
use crate::name::Name;
use crate::wire::{Kind, Offer};

impl Exchange {
    /// Offers the receiver a message that cannot be fetched, and lets the send fail.
    #[cold]
    pub(super) fn send_nothing(&mut self, to: &Name, message: Sending) -> Result<(), Failure> {
        if to.messages == self.own.messages {
            self.send_to_self(&message);
        } else {
            let memory = Pieces::none().shown();
            let region = (self.endpoint).open_region(memory.memory.clone(), Rights::NONE);
            // Closed at once, so that its key is nobody's.
            let key = region.map_err(|_| Failure(FI_EIO))?.key();
            let offer = Offer {
                length: message.from.lost() as u64,
                key: key.0,
                number: self.next(),
            };
            let mut bytes = message.head(Kind::Offer).encode().to_vec();
            bytes.extend_from_slice(&offer.encode());
            self.send_bytes((to.messages, Some(to.ports)), &bytes)?;
        }
        if !message.wanted && message.context == 0 {
            // Injected: nobody looks for its completion.
            return Err(Failure(FI_EINVAL));
        }
        let mut entry = message.entry();
        entry.failure = Some((FI_EINVAL, 0));
        self.sinks.complete(true, entry);
        Ok(())
    }
}
