//! Supersteps: `w / s + g h + l`, and g, l and s for numbers of ranks that were not measured.
//!
//! # Source
//! `bsp-protocols-thesis` §2.1; Valiant's model with g and l in time, not in operations.

use serde::{Deserialize, Serialize};

/// What `dipole bsp probe` found: the parameters of the BSP model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// How many ranks there were.
    pub p: u32,
    /// On how many nodes.
    pub nodes: u32,
    /// Floating-point operations of a rank, in millions a second.
    pub s_mflops: f64,
    /// An empty superstep.
    pub l_ns: f64,
    /// How far the 95 % confidence interval of the median reaches from it.
    pub l_ci_ns: f64,
    /// Time per byte of a long h-relation beyond that, and its standard deviation.
    pub g_ns_per_byte: f64,
    /// See there.
    pub g_sd: f64,
}

/// The parameters of p ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// How many ranks.
    pub p: u32,
    /// An empty superstep.
    pub l_ns: f64,
    /// Time per byte of the h-relation beyond that.
    pub g_ns_per_byte: f64,
    /// Floating-point operations of a rank, in millions a second.
    pub s_mflops: f64,
    /// Where these come from.
    pub basis: Basis,
}

/// What parameters rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// So many ranks were measured.
    Measured,
    /// On a straight line over p between the next lower and the next higher number measured.
    Between(u32, u32),
    /// On the straight line over p through the two nearest numbers measured, continued.
    Beyond(u32, u32),
}

impl Parameters {
    /// A superstep in which the busiest rank computes for so long, and sends or receives so many
    /// bytes at most.
    #[must_use]
    pub fn superstep_ns(&self, work_ns: f64, h_bytes: f64) -> f64 {
        work_ns + self.g_ns_per_byte * h_bytes + self.l_ns
    }

    /// How long a rank needs for so many floating-point operations.
    #[must_use]
    pub fn work_ns(&self, flops: f64) -> f64 {
        flops * 1e3 / self.s_mflops
    }
}

/// What was measured of supersteps in one way: all ranks on one node, or each on its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Machine {
    /// By number of ranks.
    costs: Vec<Cost>,
}

impl Machine {
    /// Of all costs those of ranks that were on one node, or each on a node of its own. One rank
    /// counts as both.
    #[must_use]
    pub fn of(costs: &[Cost], one_node: bool) -> Machine {
        let fits = |cost: &&Cost| cost.nodes == if one_node { 1 } else { cost.p };
        let mut costs: Vec<Cost> = costs.iter().filter(fits).cloned().collect();
        costs.sort_by_key(|cost| cost.p);
        Machine { costs }
    }

    /// The numbers of ranks that were measured.
    pub fn measured(&self) -> impl Iterator<Item = u32> {
        self.costs.iter().map(|cost| cost.p)
    }

    /// Seconds that a superstep of p ranks takes, in which the busiest one computes for so many
    /// seconds, and sends or receives so many bytes at most. `None` as for [`at`](Self::at).
    #[must_use]
    pub fn superstep_seconds(&self, p: u32, work_seconds: f64, h_bytes: f64) -> Option<f64> {
        let ns = self.at(p)?.superstep_ns(work_seconds * 1e9, h_bytes);
        Some(ns * 1e-9)
    }

    /// The parameters of p ranks. `None` if they were not measured and there are not two numbers
    /// of ranks to draw a line through.
    #[must_use]
    pub fn at(&self, p: u32) -> Option<Parameters> {
        let above = self.costs.iter().position(|cost| cost.p >= p);
        if let Some(cost) = above.map(|above| &self.costs[above])
            && cost.p == p
        {
            return Some(line(cost, cost, p, Basis::Measured));
        }
        let last = self.costs.len().checked_sub(2)?;
        let first = above
            .unwrap_or(self.costs.len())
            .saturating_sub(1)
            .min(last);
        let (one, other) = (&self.costs[first], &self.costs[first + 1]);
        let basis = match one.p < p && p < other.p {
            true => Basis::Between(one.p, other.p),
            false => Basis::Beyond(one.p, other.p),
        };
        Some(line(one, other, p, basis))
    }
}

/// Where the line through two costs passes p. Costs are not below 0, and a rank computes at least
/// a thousandth of what the slower of the two does.
fn line(one: &Cost, other: &Cost, p: u32, basis: Basis) -> Parameters {
    let part = match other.p > one.p {
        true => (f64::from(p) - f64::from(one.p)) / (f64::from(other.p) - f64::from(one.p)),
        false => 0.0,
    };
    let at = |from: f64, to: f64, least: f64| (from + (to - from) * part).max(least);
    let slow = one.s_mflops.min(other.s_mflops);
    Parameters {
        p,
        l_ns: at(one.l_ns, other.l_ns, 0.0),
        g_ns_per_byte: at(one.g_ns_per_byte, other.g_ns_per_byte, 0.0),
        s_mflops: at(one.s_mflops, other.s_mflops, slow * 1e-3),
        basis,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(p: u32, nodes: u32, l_ns: f64, g_ns_per_byte: f64) -> Cost {
        Cost {
            p,
            nodes,
            s_mflops: 2000.0,
            l_ns,
            l_ci_ns: 1.0,
            g_ns_per_byte,
            g_sd: 0.1,
        }
    }

    fn machine() -> Machine {
        let costs = [
            cost(4, 4, 3000.0, 4.0),
            cost(2, 2, 1000.0, 2.0),
            cost(2, 1, 77.0, 0.5),
            cost(8, 8, 5000.0, 5.0),
        ];
        Machine::of(&costs, false)
    }

    #[test]
    fn what_was_measured_is_told_as_measured_and_a_superstep_is_the_sum_of_its_parts() {
        assert_eq!(machine().measured().collect::<Vec<_>>(), [2, 4, 8]);
        let four = machine().at(4).expect("measured");
        assert_eq!((four.l_ns, four.g_ns_per_byte), (3000.0, 4.0));
        assert_eq!(four.basis, Basis::Measured);
        assert_eq!(four.superstep_ns(100.0, 50.0), 100.0 + 200.0 + 3000.0);
        assert_eq!(four.work_ns(4e6), 2e6);
    }

    #[test]
    fn other_numbers_of_ranks_lie_on_lines_and_say_so() {
        let three = machine().at(3).expect("between");
        assert_eq!((three.l_ns, three.g_ns_per_byte), (2000.0, 3.0));
        assert_eq!(three.basis, Basis::Between(2, 4));
        let sixteen = machine().at(16).expect("beyond");
        assert_eq!((sixteen.l_ns, sixteen.g_ns_per_byte), (9000.0, 7.0));
        assert_eq!(sixteen.basis, Basis::Beyond(4, 8));
        let one = machine().at(1).expect("beyond");
        assert_eq!((one.l_ns, one.g_ns_per_byte), (0.0, 1.0));
        assert_eq!(one.basis, Basis::Beyond(2, 4));
    }

    #[test]
    fn it_is_the_same_after_it_was_told_to_others() {
        let told = serde_json::to_vec(&machine()).expect("plain numbers");
        assert_eq!(
            serde_json::from_slice::<Machine>(&told).ok(),
            Some(machine())
        );
        let seconds = machine()
            .superstep_seconds(4, 1e-6, 50.0)
            .expect("measured");
        assert!((seconds - 4.2e-6).abs() < 1e-12, "{seconds}");
    }

    #[test]
    fn one_measurement_makes_no_line() {
        let costs = [cost(2, 1, 77.0, 0.5)];
        let machine = Machine::of(&costs, true);
        assert!(machine.at(2).is_some());
        assert_eq!(machine.at(4), None);
        assert_eq!(Machine::of(&costs, false).at(2), None);
    }
}
