//! Arrays over the ranks of a program: their distributions, and the plans to reshuffle them.

use dipole_bsp::carrier::AnyCarrier;
use dipole_bsp::{Failure, Misuse, Process};
use dipole_reshuffle::{Distribution, Registered};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Buffer;

/// Plans that are kept for the next reshuffle between the same distributions.
const MOST_PLANS: usize = 4;

/// A block-cyclic distribution of an array with elements of some size.
#[pyclass(module = "dipole", frozen, eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct Layout {
    distribution: Distribution,
    element_bytes: usize,
}

#[pymethods]
impl Layout {
    /// An array of this shape over a grid of ranks, in blocks of `blocks` indices in turn.
    #[new]
    fn new(
        shape: Vec<usize>,
        grid: Vec<u32>,
        blocks: Vec<usize>,
        element_bytes: usize,
    ) -> PyResult<Layout> {
        let distribution = Distribution::new(&shape, &grid, &blocks);
        let distribution =
            distribution.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Layout {
            distribution,
            element_bytes,
        })
    }

    /// The shape of a rank's part. Ranks beyond the grid have parts without elements.
    fn part(&self, rank: u32) -> Vec<usize> {
        let part = self.distribution.part(rank);
        part.unwrap_or_else(|| vec![0; self.distribution.dimensions().len()])
    }

    /// The indices in the array of the elements of a rank's part, for each dimension.
    fn indices(&self, rank: u32) -> Vec<Vec<usize>> {
        let indices = self.distribution.indices(rank);
        indices.unwrap_or_else(|| vec![Vec::new(); self.distribution.dimensions().len()])
    }
}

/// The plans of a program. All ranks reshuffle in the same order, so they keep the same plans.
#[derive(Default)]
pub(crate) struct Plans {
    /// The one that was used last comes last.
    kept: Vec<Kept>,
    /// Plans with the superstep in which they were closed. In that superstep, other ranks may still
    /// access their memory.
    closed: Vec<(u32, Registered)>,
}

struct Kept {
    from: Layout,
    to: Layout,
    plan: Registered,
}

impl Plans {
    /// Moves an array from this rank's part in `source` to its part in `target`.
    ///
    /// # Safety
    /// The plans must live until the process has been dropped. If this fails, the buffers must do so,
    /// too.
    pub(crate) unsafe fn run(
        &mut self,
        process: &mut Process<AnyCarrier>,
        (from, to): (&Layout, &Layout),
        source: &Buffer,
        target: &mut Buffer,
    ) -> Result<(), Failure> {
        let bytes = |layout: &Layout| {
            let elements = layout.distribution.elements(process.rank());
            elements.checked_mul(from.element_bytes)
        };
        let wanted = (bytes(from), bytes(to));
        if wanted != (Some(source.length()), Some(target.length())) {
            let text =
                "arrays must have the shapes of this rank's parts, and elements of the same size";
            return Err(Misuse::Rule(text.to_owned()).into());
        }
        let now = process.superstep();
        self.closed.retain(|(since, _)| *since == now);
        let mut known = self.kept.iter();
        let known = known.position(|kept| (&kept.from, &kept.to) == (from, to));
        let mut kept = match known {
            Some(at) => self.kept.remove(at),
            None => Kept {
                plan: Registered::new(
                    process,
                    &from.distribution,
                    &to.distribution,
                    from.element_bytes,
                )?,
                from: from.clone(),
                to: to.clone(),
            },
        };
        if self.kept.len() == MOST_PLANS {
            let mut oldest = self.kept.remove(0).plan;
            let closed = oldest.close(process);
            self.closed.push((process.superstep(), oldest));
            closed?;
        }
        let (source, target) = (source.start().as_ptr(), target.bytes_mut().as_mut_ptr());
        // SAFETY: both have the lengths of the parts, and stay in place as the caller guarantees.
        let ran = unsafe { kept.plan.execute(process, source, target) };
        self.kept.push(kept);
        ran
    }
}
