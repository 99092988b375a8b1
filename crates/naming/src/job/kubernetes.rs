//! A pod of an indexed Kubernetes job.
//!
//! Kubernetes passes a pod its index and nothing else. The number of pods and the pattern of their
//! names must be set in two variables by the job's description.

use std::time::Duration;

use super::peers::{NodeNames, hosts_file};
use super::{
    Job, JobError, Launched, Launcher, Lookup, MAX_RANKS, Nodes, given_id, id_from_name, node_at,
    required_number,
};
use crate::hosts::DEFAULT_DIRECTORY_PORT;

const INDEX: &str = "JOB_COMPLETION_INDEX";
const PATTERN: &str = "DIPOLE_PEERS_PATTERN";
/// Pods start after their images have been pulled, and their names are known only then.
const NAME_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn is_here(get: Lookup<'_>) -> bool {
    get(INDEX).is_some()
}

pub(super) fn job(get: Lookup<'_>) -> Result<Launched, JobError> {
    let kubernetes = Launcher::Kubernetes;
    let size = required_number(
        get,
        kubernetes,
        "DIPOLE_SIZE",
        (1, MAX_RANKS),
        "set it for the container to the job's `completions`",
    )?;
    let rank = required_number(
        get,
        kubernetes,
        INDEX,
        (0, size - 1),
        "use completionMode: Indexed",
    )?;
    let pattern = get(PATTERN);
    let id = match (given_id(get)?, &pattern) {
        (Some(id), _) => id,
        // A pod has an IP address of its own, so no other job can use it.
        (None, Some(pattern)) => id_from_name(pattern),
        (None, None) => id_from_name("kubernetes"),
    };
    let placed = (0..size as usize).map(node_at).collect();
    let job = Job::launched(id, rank, placed);
    if let Some(hosts) = hosts_file(get)? {
        return match job.addresses.iter().find(|of| hosts.get(of.node).is_none()) {
            None => Ok(Launched {
                job,
                nodes: Nodes::File(hosts),
            }),
            Some(address) => Err(JobError::Disagreement {
                launcher: kubernetes,
                between: format!("the hosts file has no node {}", address.node),
                advice: "give it a line for every index, node = index + 1",
            }),
        };
    }
    let Some(pattern) = pattern else {
        if size == 1 {
            return Ok(Launched {
                job,
                nodes: Nodes::Here,
            });
        }
        return Err(JobError::Lacking {
            launcher: kubernetes,
            variable: PATTERN,
            advice: "set it for the container to the names of all pods, with `{}` for the index, as \
                     in `JOBNAME-{}.SERVICE`",
        });
    };
    let pattern = Pattern::parse(&pattern).ok_or_else(|| JobError::Bad {
        variable: PATTERN,
        found: pattern.clone(),
        expected: "a host name with `{}` once for the index, or `{+N}` for the index plus N"
            .to_owned(),
    })?;
    Ok(Launched {
        job,
        nodes: Nodes::Names(NodeNames {
            names: (0..size).map(|index| pattern.name(index)).collect(),
            own: Some(rank as usize),
            port: DEFAULT_DIRECTORY_PORT,
            timeout: NAME_TIMEOUT,
        }),
    })
}

/// A name with a place for a number.
#[derive(Debug, PartialEq, Eq)]
struct Pattern<'a> {
    before: &'a str,
    offset: u32,
    after: &'a str,
}

impl Pattern<'_> {
    fn parse(text: &str) -> Option<Pattern<'_>> {
        let (before, rest) = text.split_once('{')?;
        let (offset, after) = rest.split_once('}')?;
        let offset = match offset {
            "" => 0,
            _ => offset
                .strip_prefix('+')
                .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?
                .parse()
                .ok()
                .filter(|offset| *offset <= u32::MAX - MAX_RANKS)?,
        };
        let is_plain =
            |part: &str| !part.contains(['{', '}']) && !part.contains(char::is_whitespace);
        (is_plain(before) && is_plain(after) && text.len() <= 253).then_some(Pattern {
            before,
            offset,
            after,
        })
    }

    fn name(&self, index: u32) -> String {
        format!("{}{}{}", self.before, index + self.offset, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_one_place_for_the_index_or_more_than_it() {
        let pattern = Pattern::parse("job-{}.service").unwrap();
        assert_eq!(pattern.name(0), "job-0.service");
        let addresses = Pattern::parse("127.0.0.{+1}").unwrap();
        assert_eq!(addresses.name(2), "127.0.0.3");
        for broken in [
            "",
            "job",
            "job-{",
            "job-}{",
            "{}{}",
            "{+}",
            "{1}",
            "{+-1}",
            "{++1}",
            "a b{}",
            "{+4294967295}",
            "{}}",
        ] {
            assert_eq!(Pattern::parse(broken), None, "{broken}");
        }
    }
}
