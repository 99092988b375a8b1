//! One image, or one request, on its way to another host.

use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use dipole_checkpoint::Store;
use dipole_node::{Address, Endpoint, SendError};

use super::Item;
use super::wire::{Message, PIECE_BYTES, encode};

/// An item that is being sent.
pub(super) struct Transfer {
    to: (u32, Address),
    item: Item,
    /// The image, until all of it was read.
    file: Option<File>,
    /// The next message.
    next: Option<Vec<u8>>,
    /// When the receiver last accepted a message.
    accepted_at: Option<Instant>,
}

/// The outcome of a step.
pub(super) enum Progress {
    /// So many bytes were sent.
    Sent(usize),
    /// The receiver has to read first.
    Waits,
    /// All is sent.
    Done,
    /// The host cannot be reached.
    Failed(String),
}

impl Transfer {
    /// Prepares to send an item.
    ///
    /// # Errors
    /// The image cannot be opened.
    pub(super) fn begin(
        store: &Store,
        to: (u32, Address),
        item: Item,
        token: &str,
    ) -> io::Result<Transfer> {
        let token = token.to_owned();
        let (file, message) = match item {
            Item::Copy(image) => {
                let file = store.open_image(image)?;
                (Some(file), Message::Begin { token, image })
            }
            Item::Request(image) => (None, Message::Request { token, image }),
            Item::Missing(image) => (None, Message::Missing { token, image }),
            Item::Refused(image) => (None, Message::Refused { token, image }),
        };
        Ok(Transfer {
            to,
            item,
            file,
            next: Some(encode(&message)),
            accepted_at: None,
        })
    }

    /// The node that it goes to.
    pub(super) fn to(&self) -> u32 {
        self.to.0
    }

    /// The item.
    pub(super) fn item(&self) -> Item {
        self.item
    }

    /// The set of the image that is copied.
    pub(super) fn set(&self) -> Option<u64> {
        match self.item {
            Item::Copy(image) => Some(image.set()),
            _ => None,
        }
    }

    /// Sends the next message, without waiting.
    pub(super) fn step(
        &mut self,
        endpoint: &Endpoint,
        now: Instant,
        stalled_after: Duration,
    ) -> Progress {
        let accepted_at = *self.accepted_at.get_or_insert(now);
        let next = match self.next.take() {
            Some(next) => next,
            None => match self.read() {
                Ok(Some(next)) => next,
                Ok(None) => return Progress::Done,
                Err(cause) => return Progress::Failed(cause.to_string()),
            },
        };
        match endpoint.try_send_to(self.to.1, &next) {
            Ok(()) => {
                self.accepted_at = Some(now);
                Progress::Sent(next.len())
            }
            Err(SendError::Full { .. }) if now - accepted_at < stalled_after => {
                self.next = Some(next);
                Progress::Waits
            }
            Err(error) => Progress::Failed(error.to_string()),
        }
    }

    /// The message after the first one; `None` after the last.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        file.take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        let message = match piece.is_empty() {
            false => Message::Piece(piece),
            true => {
                self.file = None;
                Message::End
            }
        };
        Ok(Some(encode(&message)))
    }
}
