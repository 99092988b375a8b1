//! Waits of processes that use endpoints or MPI.

mod page;

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use dipole_trace::total;
use dipole_trace::waits::{Cause, EndpointAddress, Wait, WaitFile, is_wait_name};
use serde::Serialize;

use super::files::{bytes, named};
use super::messages::Messages;
use super::perfetto::{Lane, Slice, write_lanes};
use super::run::{float, is_at_least, milliseconds};
use super::symbols::{Function, Symbols};
use super::{MOST_ROWS, cannot_write};
use crate::output::{Failure, columns, fit, table};

/// Waits recorded by one process.
#[derive(Debug, PartialEq, Serialize)]
struct Process {
    name: String,
    host: String,
    pid: u32,
    program: String,
    lived_ns: u64,
    waits: u64,
    waited_ns: u64,
    longest_ns: u64,
    /// How long others waited for it, where the peer is known.
    awaited_ns: u64,
}

/// Waits of one source line.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Call {
    /// File and line, or the function.
    place: String,
    /// Call stack, outermost function first.
    path: String,
    call: String,
    causes: Vec<&'static str>,
    waits: u64,
    waited_ns: u64,
    longest_ns: u64,
    bytes: u64,
    /// The peer that it waited for most, and how long.
    awaited: Option<(String, u64)>,
    #[serde(skip)]
    by_peer: BTreeMap<String, u64>,
}

/// All waits of a directory.
#[derive(Debug, Serialize)]
pub(super) struct Waits {
    processes: Vec<Process>,
    calls: Vec<Call>,
    reasons: Vec<String>,
    notes: Vec<String>,
}

/// The files of a directory, in order of ranks; empty if no files exist.
pub(super) fn load(dir: &Path) -> Result<Vec<WaitFile>, Failure> {
    let mut files = Vec::new();
    for path in named(dir, is_wait_name)? {
        let told = |cause: String| format!("{}: {cause}", path.display());
        let bytes = bytes(&path).map_err(told)?;
        files.push(WaitFile::parse(&bytes).map_err(|cause| told(cause.to_string()))?);
    }
    files.sort_by_key(|file| {
        let header = &file.header;
        let rank = header.rank.map_or(u32::MAX, |(rank, _)| rank);
        (rank, header.host.clone(), header.pid)
    });
    Ok(files)
}

/// Combines the waits of all processes.
pub(super) fn summarise(files: &[WaitFile]) -> Waits {
    let owners = owners(files);
    let mut notes = Vec::new();
    let mut processes = Vec::new();
    let mut awaited: BTreeMap<&str, u64> = BTreeMap::new();
    let mut calls: BTreeMap<(String, String, String), Call> = BTreeMap::new();
    for file in files {
        let name = name(file);
        let mut symbols = Symbols::of(&file.modules);
        let stacks: Vec<(String, Vec<Function>)> = file
            .stacks
            .iter()
            .map(|stack| symbols.waiting(stack))
            .collect();
        let waits = &file.waits.records;
        for wait in waits {
            let (call, path) = match (wait.stack as usize).checked_sub(1) {
                Some(at) => (&stacks[at].0, &stacks[at].1[..]),
                None => (&String::new(), &[][..]),
            };
            let (place, path) = (place(path), joined(path));
            let key = (place.clone(), path.clone(), call.clone());
            let own = calls.entry(key).or_insert_with(|| Call {
                place,
                path,
                call: call.clone(),
                ..Call::default()
            });
            let peer = wait.peer.map(|peer| match owners.get(&peer) {
                Some(owner) => owner.clone(),
                None => format!("endpoint {}:{}", peer.node, peer.endpoint),
            });
            own.add(wait, peer);
            if let Some((owner, _)) = wait.peer.and_then(|peer| owners.get_key_value(&peer)) {
                let sum = awaited.entry(owners[owner].as_str()).or_default();
                *sum = sum.saturating_add(wait.ns());
            }
        }
        let header = &file.header;
        processes.push(Process {
            lived_ns: header.lived_ns.saturating_sub(header.begun_ns),
            host: header.host.clone(),
            pid: header.pid,
            program: header.program.clone(),
            waits: waits.len() as u64,
            waited_ns: total(waits.iter().map(Wait::ns)),
            longest_ns: waits.iter().map(Wait::ns).max().unwrap_or(0),
            awaited_ns: 0,
            name: name.clone(),
        });
        if !header.has_ended {
            notes.push(format!("{name} has not ended: it runs, or was killed"));
        }
        if file.waits.is_wrapped {
            notes.push(format!("of {name} only the newest waits are kept"));
        }
        if file.waits.damaged_blocks > 0 {
            notes.push(format!("the file of {name} is cut short or damaged"));
        }
        for path in symbols.missing {
            notes.push(format!(
                "functions of {path} have no names: the file is missing here, or has changed since the run"
            ));
        }
    }
    notes.sort();
    notes.dedup();
    for process in &mut processes {
        process.awaited_ns = awaited.get(&*process.name).copied().unwrap_or(0);
    }
    let mut calls: Vec<Call> = calls.into_values().map(Call::finished).collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.waited_ns));
    Waits {
        reasons: reasons(files, &processes),
        processes,
        calls,
        notes,
    }
}

/// Processes by their endpoints.
fn owners(files: &[WaitFile]) -> BTreeMap<EndpointAddress, String> {
    let all = files.iter().flat_map(|file| {
        let own = file.endpoints.iter();
        own.map(|own| (*own, name(file)))
    });
    all.collect()
}

fn name(file: &WaitFile) -> String {
    let header = &file.header;
    match header.rank {
        Some((rank, _)) => format!("rank {rank}"),
        None => format!("{} {}", header.program, header.pid),
    }
}

/// Name of a slice's text with what it waited for.
const CAUSE: &str = "waits for";

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Message => "a message",
        Cause::Room => "room to send",
        Cause::Completion => "a completion",
        Cause::Nothing => "nothing (it timed out)",
        Cause::Target => "an endpoint that is not open yet",
    }
}

/// The calling source location: file and line, as far as they are known.
fn place(path: &[Function]) -> String {
    path.last().map_or_else(
        || "unknown".to_owned(),
        |last| last.place.clone().unwrap_or_else(|| last.name.clone()),
    )
}

fn joined(path: &[Function]) -> String {
    let names: Vec<&str> = path.iter().map(|one| one.name.as_str()).collect();
    names.join(" > ")
}

impl Call {
    fn add(&mut self, wait: &Wait, peer: Option<String>) {
        let cause = cause_name(wait.cause);
        if !self.causes.contains(&cause) {
            self.causes.push(cause);
        }
        self.waits += 1;
        self.waited_ns = self.waited_ns.saturating_add(wait.ns());
        self.longest_ns = self.longest_ns.max(wait.ns());
        self.bytes = self.bytes.saturating_add(wait.bytes);
        if let Some(peer) = peer {
            let sum = self.by_peer.entry(peer).or_default();
            *sum = sum.saturating_add(wait.ns());
        }
    }

    fn finished(mut self) -> Call {
        let most = self.by_peer.iter().max_by_key(|(_, ns)| **ns);
        self.awaited = most.map(|(peer, ns)| (peer.clone(), *ns));
        self
    }
}

/// The rank that delays a job, as text: the one that waits least while the others wait.
fn reasons(files: &[WaitFile], processes: &[Process]) -> Vec<String> {
    let are_ranks = files.len() > 1 && files.iter().all(|file| file.header.rank.is_some());
    if !are_ranks {
        return Vec::new();
    }
    let share = |one: &Process| float(one.waited_ns) / float(one.lived_ns.max(1));
    let by_share = |one: &&Process, other: &&Process| share(one).total_cmp(&share(other));
    let Some(least) = processes.iter().min_by(by_share) else {
        return Vec::new();
    };
    let others = processes.iter().filter(|one| one.name != least.name);
    let mean = others.map(share).sum::<f64>() / float(processes.len() as u64 - 1);
    if mean < 0.1 || share(least) > mean / 2.0 {
        return Vec::new();
    }
    vec![format!(
        "slow rank: the others wait {:.0} % of their time, {} only {:.0} %: they wait for it, or for \
         one another because of it; give it less work, or look what else runs on its node",
        100.0 * mean,
        least.name,
        100.0 * share(least)
    )]
}

/// Writes the timeline for Perfetto.
pub(super) fn write_timeline(files: &[WaitFile], path: &Path) -> Result<(), Failure> {
    let file = dipole_naming::files::create(path).map_err(|cause| cannot_write(path, &cause))?;
    write_lanes(&timeline(files), BufWriter::new(file)).map_err(|cause| cannot_write(path, &cause))
}

/// Writes the page, with the messages of recorded processes.
pub(super) fn write_page(
    files: &[WaitFile],
    waits: &Waits,
    messages: Option<&Messages>,
    path: &Path,
) -> Result<(), Failure> {
    let page = page::html(waits, &timeline(files), messages);
    dipole_naming::files::write(path, page.as_bytes()).map_err(|cause| cannot_write(path, &cause))
}

/// The timeline. Clocks of nodes are aligned by the time of day at which processes started.
fn timeline(files: &[WaitFile]) -> Vec<Lane> {
    let day_ns = |file: &WaitFile, ns: u64| {
        let since = ns.saturating_sub(file.header.begun_ns);
        file.header.begun_unix_ns.saturating_add(since)
    };
    let begins = files.iter().map(|file| file.header.begun_unix_ns);
    let begin_ns = begins.min().unwrap_or(0);
    let owners = owners(files);
    files
        .iter()
        .flat_map(|file| {
            let mut symbols = Symbols::of(&file.modules);
            let stacks = file.stacks.iter().map(|stack| symbols.waiting(stack));
            let stacks: Vec<(String, Vec<Function>)> = stacks.collect();
            let slices = file.waits.records.iter().map(|wait| {
                let stack = (wait.stack as usize).checked_sub(1).map(|at| &stacks[at]);
                let mut texts = vec![(CAUSE, cause_name(wait.cause).to_owned())];
                if let Some((_, path)) = stack {
                    texts.push(("source", place(path)));
                    texts.push(("from", joined(path)));
                }
                if let Some(peer) = wait.peer {
                    let owner = owners.get(&peer).cloned();
                    let unknown = || format!("endpoint {}:{}", peer.node, peer.endpoint);
                    texts.push(("for", owner.unwrap_or_else(unknown)));
                }
                Slice {
                    from_ns: day_ns(file, wait.began_ns).saturating_sub(begin_ns),
                    to_ns: day_ns(file, wait.ended_ns).saturating_sub(begin_ns),
                    name: stack.map_or_else(|| "wait".to_owned(), |(call, _)| call.clone()),
                    texts,
                    bytes: wait.bytes,
                }
            });
            lanes(&file.header.host, &name(file), slices.collect())
        })
        .collect()
}

/// Waits of one process; concurrent waits of several threads are on separate tracks.
fn lanes(node: &str, name: &str, mut slices: Vec<Slice>) -> Vec<Lane> {
    slices.sort_by_key(|slice| (slice.from_ns, slice.to_ns));
    let mut lanes: Vec<Lane> = Vec::new();
    for slice in slices {
        let is_free = |lane: &&mut Lane| {
            let last = lane.slices.last();
            last.is_none_or(|last| last.to_ns <= slice.from_ns)
        };
        if let Some(lane) = lanes.iter_mut().find(is_free) {
            lane.slices.push(slice);
            continue;
        }
        lanes.push(Lane {
            node: node.to_owned(),
            name: match lanes.len() {
                0 => name.to_owned(),
                more => format!("{name}, {}", more + 1),
            },
            slices: vec![slice],
        });
    }
    lanes
}

pub(super) fn print(waits: &Waits, out: &mut dyn Write) -> Result<(), Failure> {
    let mut rows = table([
        "process",
        "program",
        "on",
        "lived ms",
        "waited ms",
        "of it",
        "longest ms",
        "awaited ms",
    ]);
    for one in &waits.processes {
        rows.add_row([
            one.name.clone(),
            one.program.clone(),
            one.host.clone(),
            milliseconds(one.lived_ns),
            milliseconds(one.waited_ns),
            percent(one.waited_ns, one.lived_ns),
            milliseconds(one.longest_ns),
            milliseconds(one.awaited_ns),
        ]);
    }
    writeln!(out, "{}", fit(&rows, columns()))?;
    let mut rows = table([
        "at", "call", "waits", "ms", "of all", "longest", "for", "most for",
    ]);
    let all = total(waits.calls.iter().map(|call| call.waited_ns));
    let shown = waits
        .calls
        .iter()
        .filter(|call| is_at_least(call.waited_ns, 1, all));
    for call in shown.clone().take(MOST_ROWS) {
        let most = call.awaited.as_ref();
        rows.add_row([
            call.place.clone(),
            call.call.clone(),
            call.waits.to_string(),
            milliseconds(call.waited_ns),
            percent(call.waited_ns, all),
            milliseconds(call.longest_ns),
            call.causes.join(", "),
            most.map_or_else(
                || "–".to_owned(),
                |(peer, ns)| format!("{peer} ({})", percent(*ns, call.waited_ns)),
            ),
        ]);
    }
    writeln!(out, "{}", fit(&rows, columns()))?;
    for call in shown.take(MOST_ROWS).filter(|call| !call.path.is_empty()) {
        writeln!(out, "{}: {} > {}", call.place, call.path, call.call)?;
    }
    for reason in &waits.reasons {
        writeln!(out, "{reason}")?;
    }
    for note in &waits.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * float(part) / float(whole.max(1)))
}

#[cfg(test)]
mod tests {
    use dipole_trace::Records;
    use dipole_trace::waits::Header;

    use super::*;

    fn slice(from_ns: u64, to_ns: u64) -> Slice {
        Slice {
            from_ns,
            to_ns,
            name: String::new(),
            texts: Vec::new(),
            bytes: 0,
        }
    }

    /// A rank of three that ran for 1000 ns, and its waits for others.
    fn file(rank: u32, waits: &[(u64, u64, u32)]) -> WaitFile {
        let endpoint = |rank: u32| EndpointAddress {
            node: 1,
            endpoint: 100 + rank,
        };
        let wait = |&(began_ns, ended_ns, peer): &(u64, u64, u32)| Wait {
            cause: Cause::Message,
            stack: 0,
            began_ns,
            ended_ns,
            own: Some(endpoint(rank)),
            peer: Some(endpoint(peer)),
            bytes: 8,
        };
        WaitFile {
            header: Header {
                has_ended: true,
                lived_ns: 1000,
                pid: 10 + rank,
                rank: Some((rank, 3)),
                begun_ns: 0,
                begun_unix_ns: 0,
                host: "here".into(),
                program: "cg".into(),
            },
            endpoints: vec![endpoint(rank)],
            modules: Vec::new(),
            stacks: Vec::new(),
            waits: Records {
                records: waits.iter().map(wait).collect(),
                is_wrapped: false,
                damaged_blocks: 0,
            },
        }
    }

    #[test]
    fn waits_of_threads_at_the_same_time_lie_on_lines_of_their_own() {
        let found = lanes(
            "a",
            "rank 0",
            vec![slice(5, 9), slice(0, 6), slice(6, 7), slice(7, 8)],
        );
        let told: Vec<_> = found
            .iter()
            .map(|lane| {
                let times = lane.slices.iter().map(|one| (one.from_ns, one.to_ns));
                (lane.name.as_str(), times.collect::<Vec<_>>())
            })
            .collect();
        let expected = [
            ("rank 0", vec![(0, 6), (6, 7), (7, 8)]),
            ("rank 0, 2", vec![(5, 9)]),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_rank_that_waits_least_holds_up_the_others_unless_all_wait_alike() {
        // Rank 2 waits for rank 0, which waits for rank 1 itself.
        let slow = [
            file(0, &[(0, 500, 1)]),
            file(1, &[(0, 20, 0)]),
            file(2, &[(0, 600, 0)]),
        ];
        let found = summarise(&slow);
        assert!(
            found.reasons[0]
                .starts_with("slow rank: the others wait 55 % of their time, rank 1 only 2 %"),
            "{found:#?}"
        );
        let awaited: Vec<u64> = found.processes.iter().map(|one| one.awaited_ns).collect();
        assert_eq!(awaited, [620, 500, 0]);
        assert_eq!(found.calls[0].awaited, Some(("rank 0".to_owned(), 620)));
        let alike = [0, 1, 2].map(|rank| file(rank, &[(0, 400, (rank + 1) % 3)]));
        assert_eq!(summarise(&alike).reasons, [""; 0]);
        let busy = [0, 1, 2].map(|rank| file(rank, &[(0, 20 + u64::from(rank), 0)]));
        assert_eq!(summarise(&busy).reasons, [""; 0], "no rank waits for long");
    }
}
