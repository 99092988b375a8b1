//! Counters of the layer above the node, which tools show with the node's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter or current value of the layer above. Clones are the same counter.
#[derive(Clone, Debug, Default)]
pub struct LayerCounter(Arc<AtomicU64>);

impl LayerCounter {
    /// The current value.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the value; returns the new one.
    pub fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::Relaxed).wrapping_add(more)
    }

    /// Subtracts from the value.
    pub fn subtract(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    /// Raises the value to at least this one, for the highest value of another counter.
    pub fn raise_to(&self, value: u64) {
        // Most values are no new maximum, and a read costs less.
        if self.value() < value {
            self.0.fetch_max(value, Ordering::Relaxed);
        }
    }
}

/// All counters of the layer above, by name.
#[derive(Debug, Default)]
pub(crate) struct LayerCounters(Vec<(&'static str, LayerCounter)>);

impl LayerCounters {
    /// The counter with this name, which is created if necessary.
    pub(crate) fn named(&mut self, name: &'static str) -> LayerCounter {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| *known == name) {
            return known.clone();
        }
        let counter = LayerCounter::default();
        self.0.push((name, counter.clone()));
        counter
    }

    /// Changes with the values.
    pub(crate) fn activity(&self) -> u64 {
        let values = self.0.iter().map(|(_, counter)| counter.value());
        values.fold(0, u64::wrapping_add)
    }

    pub(crate) fn values(&self) -> Vec<(String, u64)> {
        let counters = self.0.iter();
        counters
            .map(|(name, counter)| ((*name).to_owned(), counter.value()))
            .collect()
    }
}
