//! How reductions combine the data of all members.

use std::sync::Arc;
use std::time::Duration;

use dipole_proto::wire::GroupOperation;

use super::calls::CallContext;
use super::reduction::Order;
use super::shape::{self, ReductionRole};
use super::{Group, GroupError};

/// Rounds of a reduction: folding, combining, combining along the broadcast tree, and returning the
/// result.
const FOLD_ROUND: u8 = 0;
const FIRST_ROUND: u8 = 1;
const TREE_ROUND: u8 = 254;
const LAST_ROUND: u8 = 255;

impl Group {
    /// Like [`reduce`](Self::reduce), in this order, which must be the same at all members: one with
    /// another order is reported as late.
    ///
    /// # Errors
    /// The errors of [`reduce`](Self::reduce).
    pub fn reduce_in(
        &mut self,
        order: Order,
        root: usize,
        data: &mut [u8],
        mut combine: impl FnMut(&mut [u8], &[u8]),
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let what = (root, data.len() as u64);
        self.call_within(GroupOperation::Reduce, what, timeout, |group, context| {
            let mut work = group.working_copy(data);
            let reduced = match order {
                Order::Ranks => group.reduce_to_root(context, &mut work, &mut combine),
                Order::Any => group.reduce_along_tree(context, &mut work, &mut combine),
            };
            if reduced.is_ok() && root == group.rank() {
                data.copy_from_slice(&work);
            }
            group.work = work;
            reduced.map(|()| data.len() as u64)
        })
    }

    pub(super) fn working_copy(&mut self, data: &[u8]) -> Vec<u8> {
        let mut work = std::mem::take(&mut self.work);
        work.clear();
        work.extend_from_slice(data);
        work
    }

    /// Folding round: ranks without a slot send their data, others combine what they get. Returns
    /// this rank's slot, if any.
    fn fold(
        &mut self,
        context: &CallContext,
        data: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<Option<usize>, GroupError> {
        match shape::role(self.rank(), self.size()) {
            ReductionRole::Folded(into) => {
                self.send(context, into, FOLD_ROUND, data)?;
                Ok(None)
            }
            ReductionRole::Active(slot, folded) => {
                if let Some(from) = folded {
                    self.combine(context, (from, FOLD_ROUND), data, combine)?;
                }
                Ok(Some(slot))
            }
        }
    }

    /// Opens the edges that reductions and broadcasts of rank 0 use, so that they can show later
    /// that a member is gone.
    pub(super) fn open_edges(&self) -> Result<(), GroupError> {
        let (rank, size) = (self.rank(), self.size());
        let placement = &self.roster.placement;
        for neighbour in placement
            .parent(rank, 0)
            .into_iter()
            .chain(placement.children(rank, 0))
        {
            self.edge(neighbour)?;
        }
        let folded = match shape::role(rank, size) {
            ReductionRole::Folded(into) => Some(into),
            ReductionRole::Active(slot, folded) => {
                for bit in 0..shape::slots(size).ilog2() {
                    self.edge(shape::rank_of_slot(slot ^ (1 << bit), size))?;
                }
                folded
            }
        };
        match folded {
            Some(partner) => self.edge(partner).map(drop).map_err(GroupError::Send),
            None => Ok(()),
        }
    }

    /// Combines the data that `from` sends: a higher rank, or any if the order does not matter.
    fn combine(
        &mut self,
        context: &CallContext,
        (from, round): (usize, u8),
        data: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), GroupError> {
        let theirs = self.receive(context, from, round)?;
        combine(data, &theirs);
        self.shared.state().recycle(theirs);
        Ok(())
    }

    fn reduce_along_tree(
        &mut self,
        context: &CallContext,
        data: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), GroupError> {
        let (rank, root) = (self.rank(), context.root());
        let roster = Arc::clone(&self.roster);
        let mut children: Vec<usize> = roster.placement.children(rank, root).collect();
        // The smallest subtree is ready first.
        while let Some(child) = children.pop() {
            self.combine(context, (child, TREE_ROUND), data, combine)?;
        }
        match roster.placement.parent(rank, root) {
            Some(parent) => self.send(context, parent, TREE_ROUND, data),
            None => Ok(()),
        }
    }

    fn reduce_to_root(
        &mut self,
        context: &CallContext,
        data: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), GroupError> {
        let (rank, root, size) = (self.rank(), context.root(), self.size());
        if let Some(slot) = self.fold(context, data, combine)? {
            for (bit, round) in (0..shape::slots(size).ilog2()).zip(FIRST_ROUND..) {
                let distance = 1 << bit;
                if slot & distance != 0 {
                    let to = shape::rank_of_slot(slot - distance, size);
                    self.send(context, to, round, data)?;
                    break;
                }
                let from = shape::rank_of_slot(slot + distance, size);
                self.combine(context, (from, round), data, combine)?;
            }
        }
        // Data is combined in rank order, so the result ends up at rank 0.
        match (rank, root) {
            (0, 0) => Ok(()),
            (0, _) => self.send(context, root, LAST_ROUND, data),
            _ if rank == root => self.receive_result(context, 0, data),
            _ => Ok(()),
        }
    }

    pub(super) fn reduce_for_all(
        &mut self,
        context: &CallContext,
        data: &mut Vec<u8>,
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), GroupError> {
        let (rank, size) = (self.rank(), self.size());
        let Some(slot) = self.fold(context, data, combine)? else {
            return self.receive_result(context, rank - 1, data);
        };
        for (bit, round) in (0..shape::slots(size).ilog2()).zip(FIRST_ROUND..) {
            let other = slot ^ (1 << bit);
            let partner = shape::rank_of_slot(other, size);
            self.send(context, partner, round, data)?;
            if other > slot {
                self.combine(context, (partner, round), data, combine)?;
            } else {
                let mut theirs = self.receive(context, partner, round)?;
                combine(&mut theirs, data);
                let ours = std::mem::replace(data, theirs);
                self.shared.state().recycle(ours);
            }
        }
        match shape::role(rank, size) {
            ReductionRole::Active(_, Some(folded)) => self.send(context, folded, LAST_ROUND, data),
            _ => Ok(()),
        }
    }

    /// Receives the result from a rank that has it.
    fn receive_result(
        &mut self,
        context: &CallContext,
        from: usize,
        data: &mut [u8],
    ) -> Result<(), GroupError> {
        let result = self.receive(context, from, LAST_ROUND)?;
        data.copy_from_slice(&result);
        self.shared.state().recycle(result);
        Ok(())
    }
}
