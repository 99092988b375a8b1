//! Elements that two processes share: where they are in both parts, and how to pack them.

use crate::runs::{Group, Runs};

/// Elements that this process and another share, and their positions in both parts.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Along each dimension, the slowest first.
    runs: Vec<Runs>,
    /// Elements between neighbours along each dimension, in this part and in the other.
    own_strides: Vec<usize>,
    other_strides: Vec<usize>,
}

impl Piece {
    /// A piece of parts with these extents.
    pub(crate) fn new(mut runs: Vec<Runs>, own: &[usize], other: &[usize]) -> Piece {
        let strides = |part: &[usize]| {
            let mut strides = vec![1; part.len()];
            for at in (1..part.len()).rev() {
                strides[at - 1] = strides[at] * part[at];
            }
            strides
        };
        let (mut own_strides, mut other_strides) = (strides(own), strides(other));
        // Rows that are complete on both sides are contiguous, so they become one run.
        let mut row = 1;
        while let [.., before, last] = &mut runs[..] {
            let dimension = own_strides.len() - 1;
            if !last.is_all(own[dimension] * row, other[dimension] * row) {
                break;
            }
            row *= own[dimension];
            *before = before.scaled(row);
            runs.pop();
            own_strides.pop();
            other_strides.pop();
        }
        Piece {
            runs,
            own_strides,
            other_strides,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.iter().map(Runs::count).product()
    }

    /// The number of runs without gaps on either side.
    pub(crate) fn run_count(&self) -> usize {
        match &self.runs[..] {
            [] => 1,
            [outer @ .., last] => {
                outer.iter().map(Runs::count).product::<usize>() * last.run_count()
            }
        }
    }

    /// Calls `each` with groups of runs, in the order of the array.
    #[inline]
    pub(crate) fn groups(&self, mut each: impl FnMut(Group)) {
        match &self.runs[..] {
            // An array without dimensions has one element.
            [] => each(Group {
                own: 0,
                other: 0,
                length: 1,
                count: 1,
                own_step: 0,
                other_step: 0,
            }),
            _ => self.groups_from(0, (0, 0), &mut each),
        }
    }

    fn groups_from(
        &self,
        dimension: usize,
        (own, other): (usize, usize),
        each: &mut impl FnMut(Group),
    ) {
        let runs = &self.runs[dimension];
        if dimension + 1 == self.runs.len() {
            runs.groups(|group| {
                each(Group {
                    own: own + group.own,
                    other: other + group.other,
                    ..group
                });
            });
            return;
        }
        let strides = (self.own_strides[dimension], self.other_strides[dimension]);
        runs.each(|here, there, length| {
            for at in 0..length {
                let own = own + (here + at) * strides.0;
                let other = other + (there + at) * strides.1;
                self.groups_from(dimension + 1, (own, other), each);
            }
        });
    }

    /// Packs the elements from this process's part, in the order of the array.
    pub(crate) fn pack<T: Copy>(&self, part: &[T], packed: &mut [T]) {
        let mut at = 0;
        self.groups(|group| {
            let elements = group.length * group.count;
            gather(part, group, &mut packed[at..at + elements]);
            at += elements;
        });
    }

    /// Unpacks the elements into this process's part.
    pub(crate) fn unpack<T: Copy>(&self, packed: &[T], part: &mut [T]) {
        let mut at = 0;
        self.groups(|group| {
            let elements = group.length * group.count;
            scatter(&packed[at..at + elements], group, part);
            at += elements;
        });
    }

    /// Unpacks packed elements that `fetch` reads, starting at an offset: as many at a time as fit
    /// into the buffer, which must not be empty, or a long run straight into its destination.
    pub(crate) fn unpack_parts<T: Copy, E>(
        &self,
        part: &mut [T],
        buffer: &mut [T],
        mut fetch: impl FnMut(usize, &mut [T]) -> Result<(), E>,
    ) -> Result<(), E> {
        let all = self.count();
        // Elements fetched so far, and the unread part of the buffer.
        let (mut fetched, mut next, mut end) = (0, 0, 0);
        let mut outcome = Ok(());
        let mut refill = |buffer: &mut [T], fetched: &mut usize| {
            let length = buffer.len().min(all - *fetched);
            let result = fetch(*fetched, &mut buffer[..length]);
            *fetched += length;
            result.map(|()| length)
        };
        self.groups(|mut group| {
            while group.count > 0 && outcome.is_ok() {
                let whole = ((end - next) / group.length).min(group.count);
                if whole > 0 {
                    let some = Group {
                        count: whole,
                        ..group
                    };
                    let elements = whole * group.length;
                    scatter(&buffer[next..next + elements], some, part);
                    next += elements;
                    group = group.after(whole);
                    continue;
                }
                // The next run is not complete in the buffer.
                let mut into = &mut part[group.own..group.own + group.length];
                let (begun, rest) = into.split_at_mut(end - next);
                begun.copy_from_slice(&buffer[next..end]);
                (next, end) = (0, 0);
                into = rest;
                let direct = into.len() / buffer.len() * buffer.len();
                let (long, rest) = into.split_at_mut(direct);
                if direct > 0 {
                    // Whole buffers of a long run go straight to their destination.
                    outcome = refill(long, &mut fetched).map(|_| ());
                }
                if outcome.is_ok() && !rest.is_empty() {
                    match refill(buffer, &mut fetched) {
                        Ok(length) => {
                            end = length;
                            next = rest.len();
                            rest.copy_from_slice(&buffer[..next]);
                        }
                        Err(error) => outcome = Err(error),
                    }
                }
                group = group.after(1);
            }
        });
        outcome
    }

    /// Copies the elements from this process's part to one in which they lie as in the other's part.
    pub(crate) fn copy<T: Copy>(&self, source: &[T], target: &mut [T]) {
        self.groups(|group| {
            for at in 0..group.count {
                let from = group.own + at * group.own_step;
                let to = group.other + at * group.other_step;
                match group.length {
                    1 => target[to] = source[from],
                    length => {
                        target[to..to + length].copy_from_slice(&source[from..from + length]);
                    }
                }
            }
        });
    }

    /// Unpacks the elements into a part in which they lie as in the other's part.
    pub(crate) fn unpack_as_other<T: Copy>(&self, packed: &[T], part: &mut [T]) {
        let mut at = 0;
        self.groups(|group| {
            let elements = group.length * group.count;
            let other = Group {
                own: group.other,
                own_step: group.other_step,
                ..group
            };
            scatter(&packed[at..at + elements], other, part);
            at += elements;
        });
    }
}

impl Group {
    /// The group without its first `runs` runs.
    fn after(self, runs: usize) -> Group {
        Group {
            own: self.own + runs * self.own_step,
            other: self.other + runs * self.other_step,
            count: self.count - runs,
            ..self
        }
    }
}

/// Packs a group of runs from `part`. Loops for short lengths are known to the compiler, because a call
/// of `memcpy` for each run would take longer than the copy.
#[inline]
fn gather<T: Copy>(part: &[T], group: Group, packed: &mut [T]) {
    let Group {
        own,
        length,
        count,
        own_step: step,
        ..
    } = group;
    let part = &part[own..own + (count - 1) * step + length];
    match length {
        _ if count == 1 => packed.copy_from_slice(part),
        1 => {
            for (to, from) in packed.iter_mut().zip(part.iter().step_by(step)) {
                *to = *from;
            }
        }
        2 => gather_runs::<T, 2>(part, step, packed),
        4 => gather_runs::<T, 4>(part, step, packed),
        8 => gather_runs::<T, 8>(part, step, packed),
        16 => gather_runs::<T, 16>(part, step, packed),
        _ => {
            for (to, from) in packed.chunks_exact_mut(length).zip(part.chunks(step)) {
                to.copy_from_slice(&from[..length]);
            }
        }
    }
}

#[inline]
fn gather_runs<T: Copy, const LENGTH: usize>(part: &[T], step: usize, packed: &mut [T]) {
    for (to, from) in packed.chunks_exact_mut(LENGTH).zip(part.chunks(step)) {
        to[..LENGTH].copy_from_slice(&from[..LENGTH]);
    }
}

/// Unpacks a group of runs into `part`.
#[inline]
fn scatter<T: Copy>(packed: &[T], group: Group, part: &mut [T]) {
    let Group {
        own,
        length,
        count,
        own_step: step,
        ..
    } = group;
    let part = &mut part[own..own + (count - 1) * step + length];
    match length {
        _ if count == 1 => part.copy_from_slice(packed),
        1 => {
            for (from, to) in packed.iter().zip(part.iter_mut().step_by(step)) {
                *to = *from;
            }
        }
        2 => scatter_runs::<T, 2>(packed, step, part),
        4 => scatter_runs::<T, 4>(packed, step, part),
        8 => scatter_runs::<T, 8>(packed, step, part),
        16 => scatter_runs::<T, 16>(packed, step, part),
        _ => {
            for (from, to) in packed.chunks_exact(length).zip(part.chunks_mut(step)) {
                to[..length].copy_from_slice(from);
            }
        }
    }
}

#[inline]
fn scatter_runs<T: Copy, const LENGTH: usize>(packed: &[T], step: usize, part: &mut [T]) {
    for (from, to) in packed.chunks_exact(LENGTH).zip(part.chunks_mut(step)) {
        to[..LENGTH].copy_from_slice(&from[..LENGTH]);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Distribution, Plan};
    use proptest::prelude::*;

    proptest! {
        /// Tests every size of the buffer.
        #[test]
        fn unpacking_in_parts_gives_the_same_as_unpacking_the_whole(
            extents in (1_usize..40, 1_usize..60),
            from in ((1_u32..4, 1_usize..9), (1_u32..4, 1_usize..20)),
            to in ((1_u32..4, 1_usize..9), (1_u32..4, 1_usize..20)),
            buffer in 1_usize..70,
        ) {
            let shape = |it: ((u32, usize), (u32, usize))| {
                Distribution::new(&[extents.0, extents.1], &[it.0.0, it.1.0], &[it.0.1, it.1.1])
            };
            let (from, to) = (shape(from).expect("valid"), shape(to).expect("valid"));
            for rank in 0..from.ranks().max(to.ranks()) {
                let plan = Plan::new(&from, &to, rank).expect("the same array");
                for message in plan.incoming() {
                    let packed: Vec<u32> = (1..).take(message.elements()).collect();
                    let mut whole = vec![0; plan.target_elements()];
                    message.unpack(&packed, &mut whole);
                    let mut parts = vec![0; plan.target_elements()];
                    let mut buffer = vec![0; buffer];
                    let mut fetched = 0;
                    message.unpack_parts(&mut parts, &mut buffer, |at, into| {
                        prop_assert_eq!(at, fetched);
                        fetched += into.len();
                        into.copy_from_slice(&packed[at..at + into.len()]);
                        Ok(())
                    })?;
                    prop_assert_eq!(fetched, packed.len());
                    prop_assert_eq!(whole, parts);
                    let (mut runs, mut elements) = (0, 0);
                    message.each_run(|_, _, length| {
                        runs += 1;
                        elements += length;
                    });
                    prop_assert_eq!((runs, elements), (message.runs(), message.elements()));
                }
            }
        }
    }

    #[test]
    fn an_error_of_fetch_is_returned() {
        let one = Distribution::new(&[100], &[2], &[1]).expect("valid");
        let other = Distribution::new(&[100], &[2], &[50]).expect("valid");
        let plan = Plan::new(&one, &other, 0).expect("the same array");
        let message = &plan.incoming()[0];
        let mut target = vec![0_u8; plan.target_elements()];
        let failed = message.unpack_parts(&mut target, &mut [0; 7], |at, _| match at {
            0 => Ok(()),
            at => Err(at),
        });
        assert_eq!(failed, Err(7));
    }
}
