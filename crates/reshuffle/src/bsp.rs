//! The messages of a reshuffle in two supersteps. The sender puts each one, without a copy, into memory
//! from which the receiver unpacks it; from a rank of the same node, the receiver fetches it in pieces.

use dipole_bsp::{Area, Element, Failure, Program};

use crate::error::ReshuffleError;
use crate::message::{Message, Transfer};
use crate::plan::{Exchange, Plan};

/// A failed reshuffle over supersteps.
#[derive(Debug, thiserror::Error)]
pub enum BspError {
    /// The arguments are invalid.
    #[error(transparent)]
    Reshuffle(#[from] ReshuffleError),
    /// A superstep failed.
    #[error("a superstep of the reshuffle: {0}")]
    Superstep(#[from] Failure),
}

/// Memory for the messages of a plan, which may be run any number of times. All ranks create and close
/// it together.
#[derive(Debug)]
pub struct Bsp<'a, T: Element> {
    program: &'a mut Program,
    outgoing: Area<T>,
    incoming: Area<T>,
    /// Where each rank's message begins in its outgoing memory. Only ranks of this node set this.
    starts: Area<u64>,
    buffer: Vec<T>,
}

/// Elements are fetched in pieces of this size, which stay in the cache.
const FETCH_BYTES: usize = 64 << 10;
/// Stands for a message that its sender puts.
const PUT: u64 = u64::MAX;

impl<'a, T: Element> Bsp<'a, T> {
    /// Registers the memory. Takes a superstep.
    ///
    /// # Errors
    /// [`ReshuffleError::Processes`], or a superstep failed.
    pub fn new(program: &'a mut Program, plan: &Plan) -> Result<Bsp<'a, T>, BspError> {
        if program.size() < plan.ranks() {
            let (wanted, found) = (plan.ranks(), program.size());
            return Err(ReshuffleError::Processes { wanted, found }.into());
        }
        let outgoing = program.register(vec![T::default(); plan.outgoing_elements()]);
        let incoming = program.register(vec![T::default(); plan.incoming_elements()]);
        let starts = program.register(vec![PUT; program.size() as usize]);
        program.sync()?;
        let buffer = (FETCH_BYTES / size_of::<T>().max(1)).max(1);
        Ok(Bsp {
            program,
            outgoing,
            incoming,
            starts,
            buffer: vec![T::default(); buffer],
        })
    }

    /// Unregisters the memory. Takes a superstep.
    ///
    /// # Errors
    /// A superstep failed.
    pub fn close(self) -> Result<(), BspError> {
        self.program.unregister(self.outgoing)?;
        self.program.unregister(self.incoming)?;
        self.program.unregister(self.starts)?;
        self.program.sync()?;
        Ok(())
    }
}

impl<T: Element> Exchange<T> for Bsp<'_, T> {
    type Error = BspError;

    fn outgoing(&mut self) -> &mut [T] {
        &mut self.program[self.outgoing]
    }

    fn send(&mut self, transfer: &Transfer) -> Result<(), BspError> {
        if self.program.can_direct_get(transfer.peer) {
            let (start, own) = (transfer.range.start as u64, self.program.rank() as usize);
            self.program
                .put(transfer.peer, &[start], self.starts, own)?;
            return Ok(());
        }
        let from = (self.outgoing, transfer.range.clone());
        self.program
            .put_unbuffered(transfer.peer, from, self.incoming, transfer.at)?;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), BspError> {
        Ok(self.program.sync()?)
    }

    fn incoming(&self) -> &[T] {
        &self.program[self.incoming]
    }
    fn unpack(&mut self, message: &Message, target: &mut [T]) -> Result<(), BspError> {
        let from = message.transfer().peer;
        let start = self.program[self.starts][from as usize];
        if start == PUT {
            message.unpack(&self.incoming()[message.transfer().range.clone()], target);
            return Ok(());
        }
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let (program, outgoing) = (&mut *self.program, self.outgoing);
        message.unpack_parts(target, &mut self.buffer, |at, into| {
            Ok(program.direct_get(from, outgoing, start.saturating_add(at), into)?)
        })
    }

    /// Ends the superstep in which messages are fetched.
    fn end(&mut self) -> Result<(), BspError> {
        Ok(self.program.sync()?)
    }
}
