//! Ranks that share cores, and the time that they lose because of it.

use dipole_bsp::trace::{Step, TraceFile, total};

/// Ranks of a node that share cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreGroup {
    pub(crate) ranks: Vec<usize>,
    /// Number of cores that they may use; `None` if it is not known.
    pub(crate) cores: Option<usize>,
    pub(crate) host: String,
}

/// Time by which a superstep's computation was longer than the work of its busiest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostCores {
    /// Lost because ranks share cores.
    pub(crate) crowded_ns: u64,
    /// Lost because other programs had the cores.
    pub(crate) busy_ns: u64,
}

impl CoreGroup {
    /// True if there are more ranks than cores.
    pub(crate) fn is_crowded(&self) -> bool {
        self.cores.is_some_and(|cores| cores < self.ranks.len())
    }
}

/// Divides the ranks of a run into groups that share cores.
pub(crate) fn groups(files: &[TraceFile]) -> Vec<CoreGroup> {
    let mut groups: Vec<(u32, Vec<u32>, CoreGroup)> = Vec::new();
    for (rank, file) in files.iter().enumerate() {
        let header = &file.header;
        let mut leader_and_cores = (header.leader, header.cores.clone());
        let mut ranks = vec![rank];
        let mut limit = limit(header.quota, header.cores.len());
        // Joins all groups of the node that share a core with this rank.
        let shares = |(leader, cores, _): &(u32, Vec<u32>, CoreGroup)| {
            let is_same = cores.is_empty() && header.cores.is_empty();
            let has_common = cores.iter().any(|core| header.cores.contains(core));
            *leader == header.leader && (is_same || has_common)
        };
        let (joined, rest) = groups.into_iter().partition(shares);
        groups = rest;
        let joined: Vec<(u32, Vec<u32>, CoreGroup)> = joined;
        for (_, cores, group) in joined {
            leader_and_cores.1.extend(cores);
            limit = match (limit, group.cores) {
                (Some(one), Some(other)) => Some(one.max(other)),
                _ => None,
            };
            ranks.extend(group.ranks);
        }
        let (leader, mut cores) = leader_and_cores;
        cores.sort_unstable();
        cores.dedup();
        ranks.sort_unstable();
        // A quota limits the whole group; without one every core counts.
        let has_quota = (header.quota as usize) < header.cores.len();
        let count = match has_quota {
            true => limit,
            false => limit.map(|limit| limit.max(cores.len())),
        };
        groups.push((
            leader,
            cores,
            CoreGroup {
                ranks,
                cores: count,
                host: header.host.clone(),
            },
        ));
    }
    let mut groups: Vec<CoreGroup> = groups.into_iter().map(|(.., group)| group).collect();
    groups.sort_by_key(|group| group.ranks[0]);
    groups
}

/// Cores' worth of time of one rank.
fn limit(quota: u32, cores: usize) -> Option<usize> {
    match (quota as usize, cores) {
        (_, 0) => None,
        (0, cores) => Some(cores),
        (quota, cores) => Some(quota.min(cores)),
    }
}

/// Longest time that tasks may need on cores that they share in equal numbers: that of the core which
/// has got the longest ones. The kernel moves tasks between cores, but not at once.
fn shared_ns(demands: impl Iterator<Item = u64>, cores: usize) -> u64 {
    let mut demands: Vec<u64> = demands.collect();
    demands.sort_unstable_by_key(|demand| std::cmp::Reverse(*demand));
    let of_one_core = demands.len().div_ceil(cores.max(1));
    total(demands.into_iter().take(of_one_core))
}

/// Time of a superstep that was lost for want of cores; `steps` are by rank.
pub(super) fn lost(steps: &[&Step], groups: &[CoreGroup]) -> LostCores {
    let needed_ns = steps.iter().map(|step| step.work_ns()).max().unwrap_or(0);
    let took_ns = steps
        .iter()
        .map(|step| step.compute_ns())
        .max()
        .unwrap_or(0);
    let demand = |rank: &usize| {
        let work_ns = steps[*rank].work_ns();
        let cpu_ns = steps[*rank].cpu_ns;
        cpu_ns.map_or(work_ns, |cpu_ns| cpu_ns.min(work_ns))
    };
    let crowded = groups.iter().filter(|group| group.is_crowded());
    let shared = crowded.filter_map(|group| {
        let demands = group.ranks.iter().map(demand);
        Some(shared_ns(demands, group.cores?))
    });
    let shared_ns = shared
        .max()
        .unwrap_or(0)
        .clamp(needed_ns, took_ns.max(needed_ns));
    LostCores {
        crowded_ns: shared_ns - needed_ns,
        busy_ns: took_ns.saturating_sub(shared_ns),
    }
}

/// More ranks than cores.
pub(super) fn crowded_words(group: &CoreGroup, lost: &str) -> String {
    let cores = match group.cores {
        Some(1) => "1 core".to_owned(),
        cores => format!("{} cores", cores.unwrap_or(0)),
    };
    format!(
        "too many ranks: {lost} since {} ranks share {cores} of {}; start fewer ranks there, or use \
         more nodes",
        group.ranks.len(),
        match group.host.as_str() {
            "" => "a node",
            host => host,
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_core_has_the_longest_tasks() {
        let shared = |demands: &[u64], cores| shared_ns(demands.iter().copied(), cores);
        assert_eq!(shared(&[10, 10], 2), 10);
        assert_eq!(shared(&[10, 10, 10], 2), 20);
        assert_eq!(shared(&[10, 18, 9, 10], 2), 28);
        assert_eq!(shared(&[1, 2, 3], 1), 6);
        assert_eq!(shared(&[], 2), 0);
        assert_eq!(shared(&[u64::MAX, u64::MAX], 1), u64::MAX);
    }

    #[test]
    fn ranks_with_common_cores_are_one_group_unless_they_are_on_different_nodes() {
        let grouped = |ranks: &[(u32, &[u32], u32)]| -> Vec<(Vec<usize>, Option<usize>)> {
            let file = |(rank, (leader, cores, quota)): (u32, &(u32, &[u32], u32))| {
                let mut file = crate::trace::tests::file(rank);
                file.header.leader = *leader;
                file.header.cores = cores.to_vec();
                file.header.quota = *quota;
                file
            };
            let files: Vec<TraceFile> = (0..).zip(ranks).map(file).collect();
            let found = groups(&files).into_iter();
            found.map(|group| (group.ranks, group.cores)).collect()
        };
        let all: &[u32] = &[0, 1, 2, 3];
        assert_eq!(
            grouped(&[(0, all, 4), (0, all, 4)]),
            [(vec![0, 1], Some(4))]
        );
        assert_eq!(
            grouped(&[(0, &[0], 1), (0, &[1], 1), (0, &[0], 1)]),
            [(vec![0, 2], Some(1)), (vec![1], Some(1))]
        );
        // The third rank shares cores with both others.
        assert_eq!(
            grouped(&[(0, &[0], 1), (0, &[1], 1), (0, &[0, 1], 2)]),
            [(vec![0, 1, 2], Some(2))]
        );
        assert_eq!(
            grouped(&[(0, all, 4), (1, all, 2)]),
            [(vec![0], Some(4)), (vec![1], Some(2))]
        );
        assert_eq!(grouped(&[(0, &[], 0), (0, &[], 3)]), [(vec![0, 1], None)]);
    }
}
