//! Flux: variables of its tasks beyond PMI's rank and size, and the nodes of an instance.
//!
//! # Source
//! flux-environment(7); RFC 20, the format of resources.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::allocation::{Listed, Starter};
use super::{HYDRA_CONTROL, JobError, Launcher, Lookup, MAX_RANKS, hostlist, number};
use crate::lines::excerpt;
use crate::threads;

/// How long a query of the instance may take.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// Longest answer that is read.
const MAX_BYTES: u64 = 4 << 20;

/// The name of the Flux job whose task this process is.
///
/// Programs that a task starts inherit Flux' variables. A launcher among them gives its ranks
/// numbers of its own: only those that agree with Flux' are the task's, and several such launchers
/// in one job must not share its name.
pub(super) fn job_of_task(get: Lookup<'_>, rank: u32, size: u32) -> Option<String> {
    let agrees = |variable, wanted: u32| get(variable).is_some_and(|it| it.parse() == Ok(wanted));
    let other_launcher = [HYDRA_CONTROL, "MPI_LOCALRANKID", "OMPI_COMM_WORLD_RANK"];
    if other_launcher.iter().any(|name| get(name).is_some()) {
        return None;
    }
    if !agrees("FLUX_TASK_RANK", rank) || !agrees("FLUX_JOB_SIZE", size) {
        return None;
    }
    get("FLUX_JOB_ID").map(|job| format!("Flux job {job}"))
}

/// True if all tasks of the job are on this node.
pub(super) fn is_on_one_node(get: Lookup<'_>) -> Result<bool, JobError> {
    const NODES: &str = "FLUX_JOB_NNODES";
    let nodes = get(NODES).map(|found| number(NODES, found, 1, MAX_RANKS));
    Ok(nodes.transpose()? == Some(1))
}

/// The nodes of the instance in whose initial program or shell (`flux alloc`, `flux batch`) this
/// process runs; `None` in a task of a job.
pub(super) fn allocation(get: Lookup<'_>) -> Result<Option<Listed>, JobError> {
    if get("FLUX_URI").is_none() || get("FLUX_JOB_ID").is_some() {
        return Ok(None);
    }
    let resources = query(&["resource", "R"])?;
    let nodes = parse(&resources).ok_or_else(|| unusable("resource R", &resources))?;
    let own = query(&["getattr", "rank"])?;
    let own: usize = own
        .trim()
        .parse()
        .map_err(|_| unusable("getattr rank", &own))?;
    Ok(Some(Listed {
        own: Some(own).filter(|own| *own < nodes.len()),
        nodes,
        starter: Starter::Ssh,
    }))
}

fn unusable(command: &str, found: &str) -> JobError {
    failed(format!(
        "`flux {command}` has the output `{}`",
        excerpt(found)
    ))
}

fn failed(between: String) -> JobError {
    JobError::Disagreement {
        launcher: Launcher::Flux,
        between,
        advice: "check the instance with `flux resource list`, or name a hosts file (--hosts)",
    }
}

/// The output of a command of Flux, which may hang if the instance has lost its broker.
fn query(words: &[&str]) -> Result<String, JobError> {
    let line = words.join(" ");
    let mut command = Command::new("flux");
    command
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| failed(format!("`flux {line}` cannot be run: {cause}")))?;
    let stdout = child.stdout.take();
    let reader = threads::start("dipole-flux", move || {
        let mut text = String::new();
        let read = stdout.map(|out| out.take(MAX_BYTES).read_to_string(&mut text));
        read.and_then(Result::ok).map(|_| text)
    })
    .map_err(|cause| failed(format!("`flux {line}` cannot be run: {cause}")))?;
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                let seconds = PATIENCE.as_secs();
                return Err(failed(format!(
                    "`flux {line}` did not answer within {seconds} s"
                )));
            }
        }
    };
    let text = reader.join().ok().flatten().unwrap_or_default();
    match status.success() {
        true => Ok(text),
        false => Err(failed(format!("`flux {line}` failed ({status})"))),
    }
}

/// A description of resources, as far as it is used.
#[derive(Deserialize)]
struct Resources {
    execution: Execution,
}

#[derive(Deserialize)]
struct Execution {
    #[serde(rename = "R_lite")]
    parts: Vec<Part>,
    nodelist: Vec<String>,
}

/// Ranks of brokers with the same resources.
#[derive(Deserialize)]
struct Part {
    rank: String,
    children: Children,
}

#[derive(Deserialize)]
struct Children {
    core: String,
}

/// Names and cores of all nodes, in the order of the ranks of their brokers from 0 on.
fn parse(text: &str) -> Option<Vec<(String, u32)>> {
    let execution = serde_json::from_str::<Resources>(text).ok()?.execution;
    let names = hostlist::expand(&execution.nodelist.join(",")).ok()?;
    let mut cores = vec![None; names.len()];
    for part in &execution.parts {
        let count = u32::try_from(id_set(&part.children.core)?.len()).ok()?;
        for rank in id_set(&part.rank)? {
            *cores.get_mut(rank)? = Some(count.max(1));
        }
    }
    let cores = cores.into_iter().collect::<Option<Vec<u32>>>()?;
    Some(names.into_iter().zip(cores).collect())
}

/// The numbers of a set such as `0-3,7`.
fn id_set(text: &str) -> Option<Vec<usize>> {
    let most = MAX_RANKS as usize;
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= most || numbers.len() > most {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_cores_of_an_instance_are_read() {
        // As printed by flux-core 0.8x, and with different nodes.
        let same = r#"{"version": 1, "execution": {"R_lite": [{"rank": "0-2", "children":
            {"core": "0-3"}}], "starttime": 0.0, "expiration": 0.0, "nodelist": ["n[1-3]"]}}"#;
        let node = |name: &str, cores| (name.to_owned(), cores);
        assert_eq!(
            parse(same).unwrap(),
            [node("n1", 4), node("n2", 4), node("n3", 4)]
        );
        let mixed = r#"{"execution": {"R_lite": [{"rank": "0,2", "children": {"core": "1"}},
            {"rank": "1", "children": {"core": "0-1,4", "gpu": "0"}}], "nodelist": ["a", "b[7-8]"]}}"#;
        assert_eq!(
            parse(mixed).unwrap(),
            [node("a", 1), node("b7", 3), node("b8", 1)]
        );
        for wrong in [
            "",
            "{}",
            &same.replace("0-2", "0-3"),
            &same.replace("0-2", "0-1"),
            &same.replace("0-3", "3-0"),
            &same.replace("n[1-3]", "n[1-"),
            &same.replace("0-3", "0-99999999999"),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn tasks_and_shells_outside_an_instance_have_no_allocation() {
        assert_eq!(allocation(&|_| None).unwrap(), None);
        let task = |name: &str| {
            ["FLUX_URI", "FLUX_JOB_ID"]
                .contains(&name)
                .then(|| "x".into())
        };
        assert_eq!(allocation(&task).unwrap(), None);
    }
}
