//! Messages that a program sends from address 0: they fail on both sides.
//!
//! If such a send were only refused, Open MPI would wait forever: its receiver for the message,
//! its sender for a request that it considers started.

use dipole_node::Rights;

use super::{Exchange, SendRequest};
use crate::abi::errno::{FI_EINVAL, FI_EIO};
use crate::ffi::Failure;
use crate::memory::Pieces;
use crate::name::Name;
use crate::wire::Offer;

impl Exchange {
    /// Offers the receiver a message that it cannot fetch, and fails the send.
    #[cold]
    pub(super) fn fail_null_buffer(
        &mut self,
        to: &Name,
        message: SendRequest,
    ) -> Result<(), Failure> {
        if to.messages == self.own.messages {
            self.send_to_self(&message);
        } else {
            let memory = Pieces::none().as_region();
            let region = (self.endpoint).open_region(memory.memory.clone(), Rights::NONE);
            // The region is closed at once, so the key is invalid when the receiver uses it.
            let key = region.map_err(|_| Failure(FI_EIO))?.key();
            let number = self.outstanding.next_number();
            let offer = Offer::new(message.from.null_bytes(), key, number);
            self.send_offer(to, &message, offer)?;
        }
        if !message.notify && message.context == 0 {
            // An injected message has no completion to fail.
            return Err(Failure(FI_EINVAL));
        }
        let mut entry = message.entry();
        entry.failure = Some((FI_EINVAL, 0));
        self.sinks.complete(true, entry);
        Ok(())
    }
}
