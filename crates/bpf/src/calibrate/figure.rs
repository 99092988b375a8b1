//! One measured figure, and when one is really less than another.

/// A median over rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Nanoseconds.
    pub median_ns: u64,
    /// Nanoseconds from the lower to the upper quartile: large on a machine that is busy.
    pub spread_ns: u64,
}

impl Figure {
    /// Of one value a round; `None` of none.
    pub(super) fn of(mut rounds: Vec<u64>) -> Option<Figure> {
        rounds.sort_unstable();
        let last = rounds.len().checked_sub(1)?;
        let at = |quarter: usize| rounds[last * quarter / 4];
        Some(Figure {
            median_ns: at(2),
            spread_ns: at(3) - at(1),
        })
    }

    /// Less than another by more than either spreads.
    #[must_use]
    pub fn clearly_below(&self, other: &Figure) -> bool {
        let margin_ns = self.spread_ns.max(other.spread_ns);
        self.median_ns.saturating_add(margin_ns) < other.median_ns
    }

    /// True if it spreads so much that little can be told by it.
    #[must_use]
    pub fn is_noisy(&self) -> bool {
        self.spread_ns > self.median_ns / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_and_the_middle_half() {
        assert_eq!(Figure::of(Vec::new()), None);
        let figure = Figure::of(vec![50, 10, 40, 20, 30]).unwrap();
        let (median_ns, spread_ns) = (30, 20);
        assert_eq!(
            figure,
            Figure {
                median_ns,
                spread_ns
            }
        );
    }

    #[test]
    fn what_spreads_more_than_it_differs_is_not_clearly_below() {
        let figure = |median_ns, spread_ns| Figure {
            median_ns,
            spread_ns,
        };
        assert!(figure(100, 5).clearly_below(&figure(120, 10)));
        assert!(!figure(100, 20).clearly_below(&figure(120, 10)));
        assert!(!figure(100, 5).clearly_below(&figure(120, 20)));
        assert!(!figure(100, 0).clearly_below(&figure(100, 0)));
        assert!(figure(100, 26).is_noisy() && !figure(100, 25).is_noisy());
        assert!(!figure(u64::MAX, u64::MAX).clearly_below(&figure(u64::MAX, 0)));
    }
}
