//! The environment that `dipole run` sets.

use super::{Job, JobError, Lookup, MAX_RANKS, node_from};
use crate::address::{Address, EndpointId, NodeId};

/// Variables that only `dipole run` sets; the others are also used with other launchers.
const OWN: [&str; 3] = ["DIPOLE_RANK", "DIPOLE_RANKS", "DIPOLE_JOB_BASE"];

pub(super) fn is_here(get: Lookup<'_>) -> bool {
    OWN.iter().any(|variable| get(variable).is_some())
}

pub(super) fn job(get: Lookup<'_>) -> Result<Job, JobError> {
    let id = number(get, "DIPOLE_JOB", 0, u64::MAX)?;
    let size = number(get, "DIPOLE_SIZE", 1, MAX_RANKS)?;
    let rank = number(get, "DIPOLE_RANK", 0, size - 1)?;
    let base = number(get, "DIPOLE_JOB_BASE", 0, u32::MAX - (size - 1))?;
    let ranks = required(get, "DIPOLE_RANKS")?;
    let nodes = parse_ranks(&ranks, size).ok_or_else(|| JobError::Bad {
        variable: "DIPOLE_RANKS",
        found: ranks.clone(),
        expected: format!("the nodes of {size} ranks as in `1x4,2x4`"),
    })?;
    let job = Job {
        id,
        rank,
        size,
        addresses: (base..)
            .zip(nodes)
            .map(|(endpoint, node)| Address {
                node,
                endpoint: EndpointId(endpoint),
            })
            .collect(),
    };
    let own = node_from(get)?.unwrap_or(NodeId(1));
    if own != job.own_address().node {
        return Err(JobError::Bad {
            variable: "DIPOLE_NID",
            found: own.to_string(),
            expected: format!(
                "{}, where DIPOLE_RANKS places rank {rank}",
                job.own_address().node
            ),
        });
    }
    Ok(job)
}

/// Formats the nodes of all ranks for `DIPOLE_RANKS`.
#[must_use]
pub fn write_ranks(nodes: &[NodeId]) -> String {
    nodes
        .chunk_by(|left, right| left == right)
        .map(|same| match same.len() {
            1 => same[0].to_string(),
            count => format!("{}x{count}", same[0]),
        })
        .collect::<Vec<_>>()
        .join(",")
}

fn required(get: Lookup<'_>, variable: &'static str) -> Result<String, JobError> {
    get(variable).ok_or(JobError::Missing { variable })
}

fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    get: Lookup<'_>,
    variable: &'static str,
    min: T,
    max: T,
) -> Result<T, JobError> {
    super::number(variable, required(get, variable)?, min, max)
}

/// The inverse of [`write_ranks`]; `None` unless it describes exactly `size` ranks.
pub(super) fn parse_ranks(text: &str, size: u32) -> Option<Vec<NodeId>> {
    let size = size as usize;
    let mut nodes = Vec::with_capacity(size);
    for part in text.split(',') {
        let (node, count) = part.split_once('x').unwrap_or((part, "1"));
        let node: NodeId = node.parse().ok()?;
        let count: usize = count.parse().ok().filter(|count| *count > 0)?;
        if count > size - nodes.len() {
            return None;
        }
        nodes.extend(std::iter::repeat_n(node, count));
    }
    (nodes.len() == size).then_some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job_with(changes: &[(&str, Option<&str>)]) -> Result<Job, JobError> {
        let base = [
            ("DIPOLE_RANK", "2"),
            ("DIPOLE_SIZE", "3"),
            ("DIPOLE_JOB", "18446744073709551615"),
            ("DIPOLE_JOB_BASE", "1000"),
            ("DIPOLE_RANKS", "1x2,7"),
            ("DIPOLE_NID", "7"),
        ];
        Job::from_variables(
            |name| match changes.iter().find(|(changed, _)| *changed == name) {
                Some((_, value)) => value.map(str::to_owned),
                None => base
                    .iter()
                    .find(|(given, _)| *given == name)
                    .map(|(_, value)| (*value).to_owned()),
            },
        )
    }

    #[test]
    fn a_whole_environment_gives_rank_size_and_every_address() {
        let job = job_with(&[]).unwrap();
        assert_eq!((job.id, job.rank, job.size), (u64::MAX, 2, 3));
        assert_eq!(
            job.addresses,
            [
                Address::new(1, 1000),
                Address::new(1, 1001),
                Address::new(7, 1002)
            ]
        );
        assert_eq!(job.own_address(), Address::new(7, 1002));
        assert_eq!(job.rank_of(Address::new(1, 1001)), Some(1));
        assert_eq!(job.rank_of(Address::new(7, 1001)), None);
        assert_eq!(job.rank_of(Address::new(1, 999)), None);
        assert_eq!(job.rank_of(Address::new(1, 1003)), None);
    }

    #[test]
    fn every_missing_or_broken_variable_is_named() {
        for (variable, value) in [
            ("DIPOLE_RANK", None),
            ("DIPOLE_RANK", Some("3")),
            ("DIPOLE_RANK", Some("-1")),
            ("DIPOLE_SIZE", None),
            ("DIPOLE_SIZE", Some("0")),
            ("DIPOLE_SIZE", Some("65537")),
            ("DIPOLE_JOB", None),
            ("DIPOLE_JOB", Some("x")),
            ("DIPOLE_JOB_BASE", None),
            ("DIPOLE_JOB_BASE", Some("4294967294")),
            ("DIPOLE_RANKS", None),
            ("DIPOLE_RANKS", Some("1x2")),
            ("DIPOLE_RANKS", Some("1x4")),
            ("DIPOLE_RANKS", Some("1x0,7x3")),
            ("DIPOLE_RANKS", Some("0x3")),
            ("DIPOLE_RANKS", Some("1,,7")),
            ("DIPOLE_RANKS", Some("1x18446744073709551615,7")),
            ("DIPOLE_NID", Some("0")),
            ("DIPOLE_NID", Some("1")),
            ("DIPOLE_NID", None),
        ] {
            let error = job_with(&[(variable, value)]).unwrap_err();
            assert!(error.to_string().contains(variable), "{value:?}: {error}");
        }
    }

    #[test]
    fn the_list_of_ranks_is_compact_and_reads_back() {
        for (nodes, text) in [
            (vec![1], "1"),
            (vec![1, 1, 1], "1x3"),
            (vec![1, 2, 2, 1], "1,2x2,1"),
        ] {
            let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
            assert_eq!(write_ranks(&nodes), text);
            let size = u32::try_from(nodes.len()).unwrap();
            assert_eq!(parse_ranks(text, size), Some(nodes));
        }
    }
}
