//! Messages of a reshuffle in one superstep: each is put without a copy on the way to where its
//! receiver unpacks it.

use dipole_bsp::{Area, Element, Failure, Program};

use crate::error::ReshuffleError;
use crate::plan::{Exchange, Plan, Transfer};

/// Why a reshuffle over supersteps failed.
#[derive(Debug, thiserror::Error)]
pub enum BspError {
    /// It was asked for in a wrong way.
    #[error(transparent)]
    Reshuffle(#[from] ReshuffleError),
    /// A superstep failed.
    #[error("a superstep of the reshuffle: {0}")]
    Superstep(#[from] Failure),
}

/// Memory for the messages of a plan, which may be run any number of times. All ranks make it, and
/// close it, together.
#[derive(Debug)]
pub struct Bsp<'a, T: Element> {
    program: &'a mut Program,
    outgoing: Area<T>,
    incoming: Area<T>,
}

impl<'a, T: Element> Bsp<'a, T> {
    /// Takes a superstep.
    ///
    /// # Errors
    /// [`ReshuffleError::Processes`]; a superstep failed.
    pub fn new(program: &'a mut Program, plan: &Plan) -> Result<Bsp<'a, T>, BspError> {
        if program.size() < plan.ranks() {
            let (wanted, found) = (plan.ranks(), program.size());
            return Err(ReshuffleError::Processes { wanted, found }.into());
        }
        let outgoing = program.register(vec![T::default(); plan.outgoing_elements()]);
        let incoming = program.register(vec![T::default(); plan.incoming_elements()]);
        program.sync()?;
        Ok(Bsp {
            program,
            outgoing,
            incoming,
        })
    }

    /// Gives the memory back, in a superstep.
    ///
    /// # Errors
    /// A superstep failed.
    pub fn close(self) -> Result<(), BspError> {
        self.program.unregister(self.outgoing)?;
        self.program.unregister(self.incoming)?;
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
}
