//! Tasks of a Slurm step: `srun` sets their number and the list of nodes.
//!
//! The variables of the step take precedence over those of the job, because a step may use only
//! some of the job's nodes. A batch script and an interactive shell are steps too, but not tasks.

use super::allocation::{FIRST_PORT, Listed, NAME_TIMEOUT, PORTS, PORTS_PER_JOB, Starter};
use super::hostlist::{self, MAX_NAMES};
use super::mpi::{rank_and_size, uses_pmi, uses_pmix};
use super::peers::NodeNames;
use super::pmix;
use super::service::{Given, Service};
use super::{
    Job, JobError, Launched, Launcher, Lookup, MAX_RANKS, Nodes, Services, given_id, node_at,
    number, required_number,
};
use crate::address::NodeId;
use crate::environment::variables;
use crate::hosts::{Host, Hosts};

/// Higher step numbers are Slurm's own: the batch script, an interactive shell.
const FIRST_OWN_STEP: u32 = 0xffff_ff00;

const ADVICE: &str = "start it with `srun` (and its environment: --export=ALL)";

pub(super) fn is_here(get: Lookup<'_>) -> bool {
    get("SLURM_PROCID").is_some()
        && get("SLURM_STEP_ID")
            .is_some_and(|step| step.parse().is_ok_and(|step: u32| step < FIRST_OWN_STEP))
}

pub(super) fn job(get: Lookup<'_>, services: Services) -> Result<Launched, JobError> {
    let slurm = Launcher::Slurm;
    // The ranks' own addresses need no name service and no known distribution.
    if get(variables::HOSTS).is_none() {
        if uses_pmi(get, services)
            && let Some((rank, size)) = rank_and_size(get)
        {
            return super::exchange::job(get, Service::Pmi, Given::both(rank, size));
        }
        if uses_pmix(get, services) && pmix::is_of_slurm_step(get) {
            let given = Given::rank(pmix::rank(get)?);
            return super::exchange::job(get, Service::Pmix, given);
        }
    }
    if let Some(parts) = get("SLURM_HET_SIZE").filter(|parts| parts != "1") {
        return Err(JobError::Bad {
            variable: "SLURM_HET_SIZE",
            found: parts,
            expected: "1: tasks of several job components are not one Dipole job; start one \
                       `srun` for each component"
                .to_owned(),
        });
    }
    let job: u32 = required_number(get, slurm, "SLURM_JOB_ID", (0, u32::MAX), ADVICE)?;
    let step: u32 = required_number(get, slurm, "SLURM_STEP_ID", (0, u32::MAX), ADVICE)?;
    let size = match get("SLURM_STEP_NUM_TASKS") {
        Some(found) => number("SLURM_STEP_NUM_TASKS", found, 1, MAX_RANKS)?,
        None => required_number(get, slurm, "SLURM_NTASKS", (1, MAX_RANKS), ADVICE)?,
    };
    let rank = required_number(get, slurm, "SLURM_PROCID", (0, size - 1), ADVICE)?;
    let names = node_names(get)?;
    let tasks = tasks_per_node(get, names.len(), size)?;
    let own = required_number(get, slurm, "SLURM_NODEID", (0, names.len() - 1), ADVICE)?;
    let placed = place(get, &tasks)?;
    if placed[rank as usize] != own {
        return Err(JobError::Disagreement {
            launcher: slurm,
            between: format!(
                "rank {rank} is on node {own} of the list (SLURM_NODEID), not on {}",
                placed[rank as usize]
            ),
            advice: "set the distribution of tasks: srun --distribution=block or cyclic",
        });
    }
    if let Some(name) = get("SLURMD_NODENAME").filter(|name| *name != names[own]) {
        return Err(JobError::Disagreement {
            launcher: slurm,
            between: format!(
                "this is node {name} (SLURMD_NODENAME), while node {own} of the list is {}",
                names[own]
            ),
            advice: "leave SLURM_STEP_NODELIST as srun set it",
        });
    }
    let id = given_id(get)?.unwrap_or((u64::from(job) << 32) | u64::from(step));
    let (numbers, nodes) = match super::peers::hosts_file(get)? {
        None => {
            let numbers = (0..names.len()).map(node_at).collect();
            (numbers, known_by_name(names, own, job, step))
        }
        Some(hosts) => (in_file(&names, &hosts)?, Nodes::File(hosts)),
    };
    let placed = placed.into_iter().map(|index| numbers[index]).collect();
    Ok(Launched {
        job: Job::launched(id, rank, placed),
        nodes,
    })
}

fn known_by_name(names: Vec<String>, own: usize, job: u32, step: u32) -> Nodes {
    // Another job may use this node too, and needs a different port for its directory.
    let offset = (u64::from(job) * PORTS_PER_JOB + u64::from(step)) % u64::from(PORTS);
    Nodes::Names(NodeNames {
        names,
        own: Some(own),
        port: FIRST_PORT + u16::try_from(offset).unwrap_or_default(),
        timeout: NAME_TIMEOUT,
    })
}

/// The allocation of this batch script or interactive shell; `None` outside one, and in the task of
/// a step.
pub(super) fn allocation(get: Lookup<'_>) -> Result<Option<Listed>, JobError> {
    if is_here(get) {
        return Ok(None);
    }
    let (Some(_), Some(list)) = (get("SLURM_JOB_ID"), get("SLURM_JOB_NODELIST")) else {
        return Ok(None);
    };
    let names = expanded("SLURM_JOB_NODELIST", list)?;
    let slots = slots_per_node(get, names.len())?;
    let own = get("SLURMD_NODENAME");
    let own = own.and_then(|own| names.iter().position(|name| *name == own));
    let slots = slots
        .into_iter()
        .map(|slots| u32::try_from(slots).unwrap_or(u32::MAX));
    Ok(Some(Listed {
        nodes: names.into_iter().zip(slots).collect(),
        own,
        starter: Starter::Srun,
    }))
}

/// The number of tasks of each node, else of its CPUs.
fn slots_per_node(get: Lookup<'_>, nodes: usize) -> Result<Vec<usize>, JobError> {
    let variables = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"];
    let found = variables.iter().find_map(|name| Some((*name, get(name)?)));
    let Some((variable, text)) = found else {
        return Ok(vec![1; nodes]);
    };
    let slots = parse_tasks(&text).filter(|slots| slots.len() == nodes);
    slots.ok_or_else(|| JobError::Bad {
        variable,
        found: shortened(text),
        expected: format!("a number for each of {nodes} nodes as in `2(x3),1`"),
    })
}

/// Node numbers in the hosts file for Slurm's names.
fn in_file(names: &[String], hosts: &Hosts) -> Result<Vec<NodeId>, JobError> {
    names
        .iter()
        .map(|name| {
            let known = |host: &&Host| host.name.as_deref() == Some(name.as_str());
            hosts
                .iter()
                .find(known)
                .map(|host| host.node)
                .ok_or_else(|| JobError::Disagreement {
                    launcher: Launcher::Slurm,
                    between: format!("the hosts file does not have its node {name}"),
                    advice: "give that node's line `name=` with Slurm's name, or leave \
                             DIPOLE_HOSTS unset",
                })
        })
        .collect()
}

/// The variable of the step, else that of the job.
fn either(
    get: Lookup<'_>,
    of_step: &'static str,
    of_job: &'static str,
) -> Result<(&'static str, String), JobError> {
    get(of_step)
        .map(|value| (of_step, value))
        .or_else(|| get(of_job).map(|value| (of_job, value)))
        .ok_or(JobError::Lacking {
            launcher: Launcher::Slurm,
            variable: of_step,
            advice: ADVICE,
        })
}

fn node_names(get: Lookup<'_>) -> Result<Vec<String>, JobError> {
    let (variable, list) = either(get, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")?;
    expanded(variable, list)
}

fn expanded(variable: &'static str, list: String) -> Result<Vec<String>, JobError> {
    hostlist::expand(&list).map_err(|error| JobError::Bad {
        variable,
        found: shortened(list),
        expected: format!("node names as in `n[1-3],m`: {error}"),
    })
}

/// Number of tasks of each node, from `2(x3),1`.
fn tasks_per_node(get: Lookup<'_>, nodes: usize, size: u32) -> Result<Vec<usize>, JobError> {
    let (variable, text) = either(get, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")?;
    let tasks = parse_tasks(&text)
        .filter(|tasks| tasks.len() == nodes && tasks.iter().sum::<usize>() == size as usize);
    tasks.ok_or_else(|| JobError::Bad {
        variable,
        found: shortened(text),
        expected: format!("{size} tasks on {nodes} nodes as in `2(x3),1`"),
    })
}

fn parse_tasks(text: &str) -> Option<Vec<usize>> {
    let max = MAX_RANKS as usize;
    let mut tasks = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            None => (part, 1),
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
        };
        let count: usize = count.parse().ok().filter(|count| *count <= max)?;
        if times == 0 || times > MAX_NAMES - tasks.len() {
            return None;
        }
        tasks.extend(std::iter::repeat_n(count, times));
    }
    Some(tasks)
}

/// Index of the node of every rank.
fn place(get: Lookup<'_>, tasks: &[usize]) -> Result<Vec<usize>, JobError> {
    let found = get("SLURM_DISTRIBUTION").unwrap_or_else(|| "block".to_owned());
    // The rest is about sockets and cores within a node.
    let run = match found.split([':', ',']).next().unwrap_or_default() {
        "block" | "unknown" => usize::MAX,
        "cyclic" => 1,
        "plane" => required_number(
            get,
            Launcher::Slurm,
            "SLURM_DIST_PLANESIZE",
            (1, MAX_RANKS as usize),
            "use srun --distribution=block or cyclic",
        )?,
        _ if tasks.len() == 1 => usize::MAX,
        _ => {
            return Err(JobError::Bad {
                variable: "SLURM_DISTRIBUTION",
                found,
                expected: "block, cyclic or plane; use srun --distribution=block".to_owned(),
            });
        }
    };
    Ok(deal(tasks, run))
}

/// Assigns ranks to nodes in turn, up to `run` at a time, until each node has its number.
fn deal(tasks: &[usize], run: usize) -> Vec<usize> {
    let mut left = tasks.to_vec();
    let mut placed = Vec::new();
    let mut open: Vec<usize> = (0..tasks.len()).collect();
    while !open.is_empty() {
        open.retain(|node| left[*node] > 0);
        for &node in &open {
            let count = left[node].min(run);
            left[node] -= count;
            placed.extend(std::iter::repeat_n(node, count));
        }
    }
    placed
}

/// A value, shortened for an error message.
fn shortened(mut value: String) -> String {
    if let Some((cut, _)) = value.char_indices().nth(200) {
        value.truncate(cut);
        value.push_str("...");
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_used_by_its_shell_and_not_by_its_tasks() {
        let variables = |more: &[(&'static str, &'static str)]| {
            let mut all = vec![
                ("SLURM_JOB_ID", "7"),
                ("SLURM_JOB_NODELIST", "127.0.0.[11-13]"),
                ("SLURM_JOB_CPUS_PER_NODE", "2(x2),5"),
            ];
            all.extend(more);
            move |name: &str| {
                let found = all.iter().rev().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            }
        };
        let found = allocation(&variables(&[("SLURMD_NODENAME", "127.0.0.12")]));
        let found = found.unwrap().unwrap();
        let slots: Vec<u32> = found.nodes.iter().map(|(_, slots)| *slots).collect();
        assert_eq!((slots, found.own), (vec![2, 2, 5], Some(1)));
        let tasks = variables(&[("SLURM_TASKS_PER_NODE", "1(x3)")]);
        let found = allocation(&tasks).unwrap().unwrap();
        assert!(found.nodes.iter().all(|(_, slots)| *slots == 1));
        assert_eq!(found.own, None);
        let task = variables(&[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0")]);
        assert!(allocation(&task).unwrap().is_none());
        let batch = variables(&[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "4294967291")]);
        assert!(allocation(&batch).unwrap().is_some());
        let wrong = variables(&[("SLURM_JOB_CPUS_PER_NODE", "2(x2)")]);
        let error = allocation(&wrong).unwrap_err().to_string();
        assert!(error.contains("SLURM_JOB_CPUS_PER_NODE"), "{error}");
        assert!(allocation(&|_| None).unwrap().is_none());
    }

    #[test]
    fn tasks_per_node_unfold_or_are_refused() {
        assert_eq!(parse_tasks("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(parse_tasks("8"), Some(vec![8]));
        for broken in [
            "",
            "2(x0)",
            "2(x3",
            "2x3",
            "2(3)",
            "-1",
            "2,,1",
            "1(x65537)",
            "65537",
            "2(x18446744073709551616)",
        ] {
            assert_eq!(parse_tasks(broken), None, "{broken}");
        }
    }

    #[test]
    fn ranks_are_dealt_in_blocks_in_turn_or_in_planes() {
        assert_eq!(deal(&[2, 1, 2], usize::MAX), [0, 0, 1, 2, 2]);
        assert_eq!(deal(&[3, 1, 2], 1), [0, 1, 2, 0, 2, 0]);
        assert_eq!(deal(&[4, 3], 2), [0, 0, 1, 1, 0, 0, 1]);
    }
}
