//! The rest of a batch while a link sends it.

use crate::Outgoing;

/// The rest of a batch that is being sent.
#[derive(Debug)]
pub struct Unsent<'a, 'b> {
    batch: &'a [Outgoing<'b>],
    /// The first entry's frames that are left, if some of them have been taken.
    begun: Option<Outgoing<'b>>,
    /// Number of frames before `batch`.
    before: usize,
}

impl<'a, 'b> Unsent<'a, 'b> {
    /// Nothing of the batch has been sent.
    #[must_use]
    pub fn new(batch: &'a [Outgoing<'b>]) -> Unsent<'a, 'b> {
        Unsent {
            batch,
            begun: None,
            before: 0,
        }
    }

    /// Leaves out the first `taken` frames of the whole batch. Returns the next entry.
    #[inline]
    pub fn skip_to(&mut self, taken: usize) -> Option<Outgoing<'b>> {
        while let Some((first, rest)) = self.batch.split_first() {
            let count = first.count();
            if taken < self.before + count {
                let left = first.after(taken - self.before);
                self.begun = (taken > self.before).then_some(left);
                return Some(left);
            }
            self.before += count;
            self.batch = rest;
        }
        None
    }

    /// Entries that may be sent now: all, or the rest of one that has begun.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &[Outgoing<'b>] {
        match &self.begun {
            Some(begun) => std::slice::from_ref(begun),
            None => self.batch,
        }
    }

    /// Each frame by itself.
    pub fn frames(&self) -> impl Iterator<Item = Outgoing<'b>> {
        let others = self.batch.iter().skip(usize::from(self.begun.is_some()));
        let entries = self.begun.into_iter().chain(others.copied());
        entries.flat_map(Outgoing::frames)
    }
}
