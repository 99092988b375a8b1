//! Supersteps of real processes on this machine: jobs whose ranks time each superstep separately.

use dipole_testbed::Testbed as Network;

use super::{H_BYTES, Relation, Sampled};
use dipole_bench::bsp::job::{Job, JobError, Place};
use dipole_bench::bsp::sample::{Metric, RankOutput};
use dipole_bench::bsp::{Link, SuperstepsPlan};
use dipole_bench::machine::Cores;
use dipole_bench::testbed::Testbed;

/// The place where jobs run.
pub(super) struct Bed {
    folder: Testbed,
    network: Option<Network>,
    cores: Cores,
}

/// Results of one job.
#[derive(Debug)]
pub(super) struct Measured {
    /// Times of empty supersteps.
    pub(super) l_ns: Vec<f64>,
    pub(super) by_relation: [(Relation, Sampled); 2],
}

impl Measured {
    pub(super) fn new() -> Measured {
        let relations = [Relation::TotalExchange, Relation::Random];
        Measured {
            l_ns: Vec::new(),
            by_relation: relations.map(|relation| (relation, Sampled::default())),
        }
    }

    pub(super) fn extend(&mut self, other: Measured) {
        self.l_ns.extend(other.l_ns);
        let both = self.by_relation.iter_mut().zip(other.by_relation);
        for ((_, own), (_, other)) in both {
            own.extend(other);
        }
    }
}

impl Bed {
    /// Creates namespaces for ranks that share no memory, if that is possible here.
    pub(super) fn make(
        folder: Testbed,
        cores: Cores,
        most: u32,
        is_apart: bool,
    ) -> Result<Bed, Box<dyn std::error::Error>> {
        let network = match is_apart && Network::why_not().is_none() {
            true => Some(Network::builder().nodes(most).build()?),
            false => None,
        };
        Ok(Bed {
            folder,
            network,
            cores,
        })
    }

    pub(super) fn place(&self, link: Link) -> Place<'_> {
        match &self.network {
            Some(network) if link != Link::Shm => Place::Apart(network),
            _ => Place::Here(self.folder.folder()),
        }
    }

    pub(super) fn description(&self) -> Option<String> {
        self.network.as_ref().map(Network::description)
    }

    /// Runs a job with `count` supersteps of each relation.
    pub(super) fn supersteps(
        &self,
        link: Link,
        ranks: u32,
        count: usize,
    ) -> Result<Measured, JobError> {
        let plan = SuperstepsPlan::one_by_one(count, H_BYTES);
        let cores = [self.cores.lead, self.cores.follow];
        let has_cores = ranks as usize <= cores.len() && !self.cores.are_one();
        let job = Job {
            plan: &plan,
            ranks,
            link,
            place: self.place(link),
            cores: if has_cores { &cores } else { &[] },
        };
        let mut measured = Measured::new();
        for told in job.dipole()? {
            let RankOutput::Sample(sample) = told else {
                continue;
            };
            let relation = match sample.what {
                Metric::EachSync => {
                    measured.l_ns = sample.ns;
                    continue;
                }
                Metric::Exchange => Relation::TotalExchange,
                Metric::Random => Relation::Random,
                _ => continue,
            };
            let mut all = measured.by_relation.iter_mut();
            if let Some((_, sampled)) = all.find(|(one, _)| *one == relation) {
                (sampled.ns, sampled.h_bytes) = (sample.ns, sample.h);
            }
        }
        Ok(measured)
    }
}
