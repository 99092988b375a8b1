//! Cost of a superstep, `w / s + g h + l`, with g, l and s interpolated over the number of ranks.
//!
//! # Source
//! `bsp-protocols-thesis` §2.1; Valiant's model, but with g and l in time instead of operations.

use serde::{Deserialize, Serialize};

/// The BSP parameters that `dipole calibrate supersteps` has measured for one number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Number of ranks.
    pub p: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Speed of a rank in Mflop/s.
    pub s_mflops: f64,
    /// Duration of an empty superstep.
    pub l_ns: f64,
    /// Half the width of the 95 % confidence interval of `l_ns`.
    pub l_ci_ns: f64,
    /// Additional time per byte of a long h-relation.
    pub g_ns_per_byte: f64,
    /// Standard deviation of `g_ns_per_byte`.
    pub g_sd: f64,
    /// Cost of relations with and without contention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contention: Option<Contention>,
}

/// Time per byte of h of relations with the same h, in which different numbers of messages meet.
///
/// # Source
/// Directed Point §3 and §6: contention of many-to-one and many-to-many traffic.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contention {
    /// One rank sends to all others: no two messages meet, so this is the reference.
    pub one_to_many: f64,
    /// All ranks send to one, where their messages meet.
    pub many_to_one: f64,
    /// Complete exchange: each rank sends to all others, and all receive at the same time.
    pub exchange: f64,
}

/// Relation of a superstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One rank sends to all others.
    OneToMany,
    /// All ranks send to one.
    ManyToOne,
    /// Each rank sends to all others.
    Exchange,
}

impl Contention {
    /// Returns the time per byte of h of a relation.
    #[must_use]
    pub fn ns_per_byte(&self, pattern: Pattern) -> f64 {
        match pattern {
            Pattern::OneToMany => self.one_to_many,
            Pattern::ManyToOne => self.many_to_one,
            Pattern::Exchange => self.exchange,
        }
    }

    /// Returns how many times as long a byte takes as without contention. `None` if the reference is
    /// too fast to be measured.
    #[must_use]
    pub fn factor(&self, pattern: Pattern) -> Option<f64> {
        (self.one_to_many > 0.0).then(|| self.ns_per_byte(pattern) / self.one_to_many)
    }
}

/// BSP parameters of p ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Number of ranks.
    pub p: u32,
    /// Duration of an empty superstep.
    pub l_ns: f64,
    /// Additional time per byte of the h-relation.
    pub g_ns_per_byte: f64,
    /// Half the width of the 95 % confidence interval of `l_ns`.
    pub l_ci_ns: f64,
    /// Standard deviation of `g_ns_per_byte`.
    pub g_sd: f64,
    /// Speed of a rank in Mflop/s.
    pub s_mflops: f64,
    /// Cost of relations with and without contention.
    pub contention: Option<Contention>,
    /// Origin of the parameters: measured or interpolated.
    pub basis: Basis,
}

/// Origin of BSP parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// This number of ranks was measured.
    Measured,
    /// Interpolated linearly between the two neighbouring numbers of ranks.
    Between(u32, u32),
    /// Extrapolated linearly from the two nearest numbers of ranks.
    Beyond(u32, u32),
}

impl Parameters {
    /// Predicts a superstep whose busiest rank computes for `work_ns`, and in which no rank sends or
    /// receives more than `h_bytes`.
    #[must_use]
    pub fn superstep_ns(&self, work_ns: f64, h_bytes: f64) -> f64 {
        work_ns + self.g_ns_per_byte * h_bytes + self.l_ns
    }

    /// Returns these parameters for a relation: g is the time per byte of that relation. `None` if it
    /// was not measured.
    #[must_use]
    pub fn with_pattern(self, pattern: Pattern) -> Option<Parameters> {
        let g_ns_per_byte = self.contention?.ns_per_byte(pattern);
        Some(Parameters {
            g_ns_per_byte,
            ..self
        })
    }

    /// Time that a rank needs for this many floating-point operations.
    #[must_use]
    pub fn work_ns(&self, flops: f64) -> f64 {
        flops * 1e3 / self.s_mflops
    }

    /// Floating-point operations that a rank completes in this time.
    #[must_use]
    pub fn flops(&self, ns: f64) -> f64 {
        ns * 1e-3 * self.s_mflops
    }
}

/// Costs measured in one placement: all ranks on one node, or each on its own node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Machine {
    /// Sorted by number of ranks.
    costs: Vec<Cost>,
}

impl Machine {
    /// Selects the costs of ranks on one node, or of ranks on a node each. One rank counts as both.
    #[must_use]
    pub fn of(costs: &[Cost], one_node: bool) -> Machine {
        let fits = |cost: &&Cost| cost.nodes == if one_node { 1 } else { cost.p };
        let mut costs: Vec<Cost> = costs.iter().filter(fits).cloned().collect();
        costs.sort_by_key(|cost| cost.p);
        Machine { costs }
    }

    /// Returns the measured numbers of ranks.
    pub fn measured(&self) -> impl Iterator<Item = u32> {
        self.costs.iter().map(|cost| cost.p)
    }

    /// Predicts a superstep of p ranks in seconds; see [`Parameters::superstep_ns`]. `None` as for
    /// [`at`](Self::at).
    #[must_use]
    pub fn superstep_seconds(&self, p: u32, work_seconds: f64, h_bytes: f64) -> Option<f64> {
        let ns = self.at(p)?.superstep_ns(work_seconds * 1e9, h_bytes);
        Some(ns * 1e-9)
    }

    /// Returns the parameters of p ranks. `None` if p was not measured and there are fewer than two
    /// numbers of ranks to interpolate between.
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

/// Interpolates linearly at p. Costs are at least 0, and the speed is at least a thousandth of the
/// slower one.
fn line(one: &Cost, other: &Cost, p: u32, basis: Basis) -> Parameters {
    let part = match other.p > one.p {
        true => (f64::from(p) - f64::from(one.p)) / (f64::from(other.p) - f64::from(one.p)),
        false => 0.0,
    };
    let at = |from: f64, to: f64, least: f64| (from + (to - from) * part).max(least);
    // Errors of the two ends are independent, and grow with the distance beyond them.
    let apart = |from: f64, to: f64| (from * (1.0 - part)).hypot(to * part);
    let slow = one.s_mflops.min(other.s_mflops);
    let both = one.contention.zip(other.contention);
    let contention = both.map(|(one, other)| {
        let of = |pattern| at(one.ns_per_byte(pattern), other.ns_per_byte(pattern), 0.0);
        Contention {
            one_to_many: of(Pattern::OneToMany),
            many_to_one: of(Pattern::ManyToOne),
            exchange: of(Pattern::Exchange),
        }
    });
    Parameters {
        contention,
        p,
        l_ns: at(one.l_ns, other.l_ns, 0.0),
        g_ns_per_byte: at(one.g_ns_per_byte, other.g_ns_per_byte, 0.0),
        l_ci_ns: apart(one.l_ci_ns, other.l_ci_ns),
        g_sd: apart(one.g_sd, other.g_sd),
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
            contention: None,
        }
    }

    #[test]
    fn contention_is_interpolated_and_replaces_g_for_its_relation() {
        let with = |p: u32, many_to_one| Cost {
            contention: Some(Contention {
                one_to_many: 2.0,
                many_to_one,
                exchange: 3.0,
            }),
            ..cost(p, p, 1000.0, 3.0)
        };
        let machine = Machine::of(&[with(2, 2.0), with(4, 6.0)], false);
        let three = machine.at(3).expect("between");
        let contention = three.contention.expect("measured for both");
        assert_eq!(contention.factor(Pattern::ManyToOne), Some(2.0));
        assert_eq!(contention.factor(Pattern::Exchange), Some(1.5));
        let gather = three.with_pattern(Pattern::ManyToOne).expect("measured");
        assert_eq!(gather.superstep_ns(0.0, 10.0), 1000.0 + 40.0);
        // One of two numbers of ranks was measured before relations were kept.
        let machine = Machine::of(&[with(2, 2.0), cost(4, 4, 1000.0, 3.0)], false);
        let three = machine.at(3).expect("between");
        assert_eq!(three.with_pattern(Pattern::ManyToOne), None);
        let unknown = Contention {
            one_to_many: 0.0,
            ..contention
        };
        assert_eq!(unknown.factor(Pattern::Exchange), None);
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
    fn measured_ranks_use_their_own_parameters() {
        assert_eq!(machine().measured().collect::<Vec<_>>(), [2, 4, 8]);
        let four = machine().at(4).expect("measured");
        assert_eq!((four.l_ns, four.g_ns_per_byte), (3000.0, 4.0));
        assert_eq!(four.basis, Basis::Measured);
        assert_eq!(four.superstep_ns(100.0, 50.0), 100.0 + 200.0 + 3000.0);
        assert_eq!(four.work_ns(4e6), 2e6);
    }

    #[test]
    fn other_numbers_of_ranks_are_interpolated_and_marked() {
        let three = machine().at(3).expect("between");
        assert_eq!((three.l_ns, three.g_ns_per_byte), (2000.0, 3.0));
        assert_eq!(three.basis, Basis::Between(2, 4));
        let sixteen = machine().at(16).expect("beyond");
        assert_eq!((sixteen.l_ns, sixteen.g_ns_per_byte), (9000.0, 7.0));
        assert_eq!(sixteen.basis, Basis::Beyond(4, 8));
        // Twice the distance: 8 has three times its error, and 4 twice its own.
        assert!((sixteen.l_ci_ns - 13_f64.sqrt()).abs() < 1e-9);
        assert!(three.l_ci_ns < 1.0 && sixteen.g_sd > 0.3);
        let one = machine().at(1).expect("beyond");
        assert_eq!((one.l_ns, one.g_ns_per_byte), (0.0, 1.0));
        assert_eq!(one.basis, Basis::Beyond(2, 4));
    }

    #[test]
    fn a_machine_survives_serialisation() {
        let text = serde_json::to_vec(&machine()).expect("plain numbers");
        assert_eq!(
            serde_json::from_slice::<Machine>(&text).ok(),
            Some(machine())
        );
        let seconds = machine()
            .superstep_seconds(4, 1e-6, 50.0)
            .expect("measured");
        assert!((seconds - 4.2e-6).abs() < 1e-12, "{seconds}");
    }

    #[test]
    fn one_measurement_cannot_be_extrapolated() {
        let costs = [cost(2, 1, 77.0, 0.5)];
        let machine = Machine::of(&costs, true);
        assert!(machine.at(2).is_some());
        assert_eq!(machine.at(4), None);
        assert_eq!(Machine::of(&costs, false).at(2), None);
    }
}
