//! A reader that takes messages as they arrive.

use dipole_node::{Address, Arriving, Message, Reader};

/// Takes messages with their sources; those of even length are read in place.
#[derive(Debug, Default)]
pub struct Taker {
    pub taken: Vec<(Address, Vec<u8>, bool)>,
}

impl Reader for Taker {
    fn read(&mut self, source: Address, message: &Arriving<'_>) -> bool {
        let is_even = message.len().is_multiple_of(2);
        if is_even {
            let mut bytes = vec![0; message.len()];
            message.copy(0..message.len(), &mut bytes);
            self.taken.push((source, bytes, true));
        }
        is_even
    }

    fn take(&mut self, message: Message) {
        (self.taken).push((message.source(), message.to_vec(), false));
    }
}
