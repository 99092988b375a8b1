//! Shared memory whose rings seem full at random.

use std::ops::{Deref, DerefMut};

use super::shortage::Shortage;
use crate::shm::{ConnId, Hub, PushError};

/// Wraps a [`Hub`] and refuses records as if the ring were full. What only reads a hub or receives
/// from it is the hub's own.
#[derive(Debug)]
pub struct FaultyHub {
    inner: Hub,
    shortage: Shortage,
    /// A record was refused: the caller waits for room that is there already.
    has_refused: bool,
    /// Connections whose next record was promised room by [`has_room`](Self::has_room).
    promised: Vec<ConnId>,
}

impl FaultyHub {
    /// Wraps a hub.
    #[must_use]
    pub fn new(inner: Hub, shortage: Shortage) -> FaultyHub {
        FaultyHub {
            inner,
            shortage,
            has_refused: false,
            promised: Vec::new(),
        }
    }

    /// The number of records refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shortage.count()
    }

    fn admit(&mut self, conn: ConnId) -> Result<(), PushError> {
        if let Some(index) = self.promised.iter().position(|promised| *promised == conn) {
            self.promised.swap_remove(index);
        } else if self.shortage.strikes() {
            self.has_refused = true;
            return Err(PushError::Full);
        }
        Ok(())
    }

    /// See [`Hub::push`].
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        self.admit(conn)?;
        self.inner.push(conn, tag, payload)
    }

    /// See [`Hub::push_parts`].
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push_parts(
        &mut self,
        conn: ConnId,
        tag: u64,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), PushError> {
        self.admit(conn)?;
        self.inner.push_parts(conn, tag, head, rest)
    }

    /// See [`Hub::push_notice`].
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push_notice(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        self.admit(conn)?;
        self.inner.push_notice(conn, tag, payload)
    }

    /// See [`Hub::has_room`].
    pub fn has_room(&mut self, conn: ConnId) -> bool {
        let has_room = self.inner.has_room(conn);
        if has_room && !self.promised.contains(&conn) {
            self.promised.push(conn);
        }
        has_room
    }

    /// See [`Hub::arm`]. False after a refusal, because there is room: no peer would report it.
    pub fn arm(&mut self) -> bool {
        !std::mem::take(&mut self.has_refused) && self.inner.arm()
    }
}

impl Deref for FaultyHub {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        &self.inner
    }
}

impl DerefMut for FaultyHub {
    fn deref_mut(&mut self) -> &mut Hub {
        &mut self.inner
    }
}
