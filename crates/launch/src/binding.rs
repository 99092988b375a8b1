//! The cores that ranks are bound to.

use clap::Args;
use serde::{Deserialize, Serialize};

/// The cores of ranks.
#[derive(Args, Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Binding {
    /// Give each rank an equal share of its host's cores, and print it; other jobs are not
    /// considered
    #[arg(long)]
    bind: bool,
    /// Use only N cores of each host, and bind an equal number of ranks to each: `-n 64 --on 2`
    /// starts 32 virtual processes per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    on: Option<u32>,
}

impl Binding {
    /// The cores of a host that ranks are bound to; `None` if they may use all.
    pub(crate) fn cores(self, mut usable: Vec<usize>) -> Option<Vec<usize>> {
        usable.truncate(self.on.map_or(usize::MAX, |cores| cores as usize));
        (self.bind || self.on.is_some()).then_some(usable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_use_all_cores_unless_they_are_bound() {
        let cores = |bind, on| Binding { bind, on }.cores(vec![2, 3, 5]);
        assert_eq!(cores(false, None), None);
        assert_eq!(cores(true, None), Some(vec![2, 3, 5]));
        assert_eq!(cores(false, Some(2)), Some(vec![2, 3]));
        assert_eq!(cores(true, Some(9)), Some(vec![2, 3, 5]));
    }
}
