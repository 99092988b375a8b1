//! Traces in which each cause of lost time was planted, alone and in pairs: `dipole trace` and
//! `dipole report` name those causes and no others.

use std::collections::VecDeque;
use std::path::Path;

use dipole_bsp::trace::{Header, Site, State, Step, TraceFile, file_name};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use crate::jobs::PROGRAM;

/// Two nodes of four ranks, each with eight cores unless there are too few.
const RANKS: u32 = 8;
const STEPS: u32 = 48;
const MS: u64 = 1_000_000;
/// Work of each rank in each superstep, without a planted cause.
const WORK_NS: u64 = 10 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    TooManyRanks,
    BusyMachine,
    SlowRank,
    Imbalance,
    Skew,
    Loss,
    SlowLink,
    /// Communication that takes long between all ranks alike. In pairs it would hide other causes.
    SlowForAll,
}

const ALL: [Cause; 7] = [
    Cause::TooManyRanks,
    Cause::BusyMachine,
    Cause::SlowRank,
    Cause::Imbalance,
    Cause::Skew,
    Cause::Loss,
    Cause::SlowLink,
];

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::TooManyRanks => "too many ranks",
            Cause::BusyMachine => "busy machine",
            Cause::SlowRank => "slow rank",
            Cause::Imbalance => "imbalance",
            Cause::Skew => "skewed h",
            Cause::Loss => "loss",
            Cause::SlowLink => "slow link",
            Cause::SlowForAll => "communication",
        }
    }
}

/// The work of each rank in a superstep, and the bytes that it sends.
fn work(planted: &[Cause], step: u32, rank: u32, random: &mut StdRng) -> (u64, u64) {
    let has = |cause| planted.contains(&cause);
    let mut work_ns = WORK_NS + random.random_range(0..WORK_NS / 50);
    if has(Cause::SlowRank) && rank == 1 {
        work_ns += 8 * MS;
    }
    if has(Cause::Imbalance) && rank == step % RANKS {
        work_ns += 16 * MS;
    }
    let bytes = match has(Cause::Skew) && rank == 3 {
        true => 70_000,
        false => 1000 + random.random_range(0..20),
    };
    (work_ns, bytes)
}

/// Runs the work of some ranks on one core, a millisecond of each rank in turn.
fn share_core(steps: &mut [Step]) {
    let mut left: Vec<u64> = steps.iter().map(|step| step.entered_ns).collect();
    let mut queue: VecDeque<usize> = (0..steps.len()).collect();
    let mut now_ns = 0;
    while let Some(rank) = queue.pop_front() {
        let slice = left[rank].min(MS);
        now_ns += slice;
        left[rank] -= slice;
        match left[rank] {
            0 => steps[rank].entered_ns = now_ns,
            _ => {
                steps[rank].preemptions += 1;
                queue.push_back(rank);
            }
        }
    }
}

/// One superstep of all ranks.
fn superstep(planted: &[Cause], epoch: u32, began_ns: u64, random: &mut StdRng) -> Vec<Step> {
    let has = |cause| planted.contains(&cause);
    let mut steps: Vec<Step> = (0..RANKS)
        .map(|rank| {
            let (work_ns, bytes) = work(planted, epoch - 1, rank, random);
            Step {
                epoch,
                began_ns,
                cpu_ns: Some(work_ns),
                entered_ns: work_ns,
                put: vec![((rank + 1) % RANKS, bytes)],
                ..Step::default()
            }
        })
        .collect();
    if has(Cause::TooManyRanks) {
        share_core(&mut steps[..4]);
    }
    if has(Cause::BusyMachine) {
        // Another program takes the core of a rank of node 1, in every other superstep.
        let step = &mut steps[6];
        if epoch.is_multiple_of(2) {
            step.entered_ns += 60 * MS;
            step.preemptions = 9;
        }
    }
    let last_ns = steps.iter().map(|step| step.entered_ns).max().unwrap_or(0);
    // The link of rank 5 is slow: all others wait for its messages, and it for theirs.
    let exchange_ns = if has(Cause::SlowLink) || has(Cause::SlowForAll) {
        30 * MS
    } else {
        200_000
    };
    for (rank, step) in (0_u32..).zip(&mut steps) {
        step.barrier_ns = last_ns - step.entered_ns;
        step.exchange_ns = exchange_ns;
        step.entered_ns += began_ns;
        if has(Cause::SlowLink) {
            step.waits = vec![(if rank == 5 { 4 } else { 5 }, exchange_ns)];
        } else if has(Cause::SlowForAll) {
            step.waits = vec![((rank + 1) % RANKS, exchange_ns)];
        } else if rank < 4 {
            step.waits = vec![(rank + 4, 100_000)];
        }
        if has(Cause::Loss) && rank == 2 && epoch.is_multiple_of(3) {
            step.repeats = 2;
        }
        // One packet is sent again although it has arrived.
        step.repeats += u32::from(rank == 7 && epoch == 5);
        step.duplicates += u32::from(rank == 0 && epoch == 5);
    }
    steps
}

fn write(folder: &Path, planted: &[Cause], seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut by_rank = vec![Vec::new(); RANKS as usize];
    let mut now_ns = 1000;
    for epoch in 1..=STEPS {
        let steps = superstep(planted, epoch, now_ns, &mut random);
        now_ns = steps.iter().map(Step::left_ns).max().unwrap_or(0);
        for (own, step) in by_rank.iter_mut().zip(steps) {
            own.push(step);
        }
    }
    for (rank, steps) in (0..).zip(by_rank) {
        let is_crowded = planted.contains(&Cause::TooManyRanks) && rank < 4;
        let file = TraceFile {
            header: Header {
                state: State::Ended,
                rank,
                size: RANKS,
                nodes: 2,
                leader: rank / 4 * 4,
                first: 1,
                run: 7,
                begun_ns: 0,
                begun_unix_ns: 0,
                link: "udp".to_owned(),
                host: format!("node{}", rank / 4),
                cores: (0..if is_crowded { 1 } else { 8 }).collect(),
                quota: 8,
            },
            sites: vec![Site {
                call: "bsp_sync".to_owned(),
                file: "planted.c".to_owned(),
                line: 9,
            }],
            modules: Vec::new(),
            stacks: Vec::new(),
            steps,
            is_wrapped: false,
            damaged_blocks: 0,
        };
        std::fs::write(folder.join(file_name(rank)), file.to_bytes()).expect("a folder of our own");
    }
}

/// The output of a command over these traces, without profiles.
fn run(folder: &Path, arguments: &[&str]) -> String {
    let output = dipole_testbed::isolated_command(PROGRAM)
        .args(arguments)
        .env("DIPOLE_PROFILE", folder.join("profile"))
        .env("COLUMNS", "1000")
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The reasons that `dipole trace` gives for the only call.
fn found(planted: &[Cause], seed: u64) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), planted, seed);
    let dir = folder.path().to_str().expect("plain");
    let summary: Value =
        serde_json::from_str(&run(folder.path(), &["--json", "trace", dir])).expect("an object");
    let reasons = summary["calls"][0]["reasons"].as_array().expect("a list");
    let text = run(folder.path(), &["trace", dir]);
    assert!(
        text.contains("; h: bytes of the rank"),
        "columns are explained: {text}"
    );
    let reasons: Vec<String> = reasons
        .iter()
        .map(|reason| reason.as_str().expect("text").to_owned())
        .collect();
    for reason in &reasons {
        assert!(text.contains(reason), "{reason}\n{text}");
    }
    (reasons, text)
}

fn check(planted: &[Cause], seed: u64) {
    let (reasons, text) = found(planted, seed);
    for cause in ALL {
        let prefix = format!("{}: ", cause.name());
        let named = reasons.iter().filter(|reason| reason.starts_with(&prefix));
        assert_eq!(
            named.count(),
            usize::from(planted.contains(&cause)),
            "{planted:?}, seed {seed}: {}\n{text}",
            cause.name()
        );
    }
    assert_eq!(
        reasons.len(),
        planted.len(),
        "{planted:?}, seed {seed}\n{text}"
    );
}

#[test]
fn no_cause_is_named_where_none_was_planted() {
    for seed in 0..5 {
        check(&[], seed);
    }
}

#[test]
fn each_cause_alone_is_named() {
    for seed in 0..5 {
        for cause in ALL {
            check(&[cause], seed);
        }
    }
}

#[test]
fn both_causes_of_each_pair_are_named() {
    for (at, one) in ALL.into_iter().enumerate() {
        for other in &ALL[at + 1..] {
            check(&[one, *other], 17);
        }
    }
}

#[test]
fn the_rank_the_node_and_the_cores_are_named() {
    let reason = |cause| found(&[cause], 3).0.remove(0);
    assert!(reason(Cause::TooManyRanks).contains("4 ranks share 1 core of node0"));
    assert!(reason(Cause::BusyMachine).contains("those of rank 6 most"));
    assert!(reason(Cause::SlowRank).contains("wait for rank 1;"));
    assert!(reason(Cause::Skew).starts_with("skewed h: rank 3 sends"));
    assert!(reason(Cause::Loss).contains("32 of them by rank 2"));
    assert!(reason(Cause::SlowLink).contains("from or to rank 5;"));
}

#[test]
fn slow_communication_of_all_ranks_is_named_without_blaming_one() {
    for seed in 0..5 {
        let (reasons, text) = found(&[Cause::SlowForAll], seed);
        assert_eq!(reasons.len(), 1, "{text}");
        let name = Cause::SlowForAll.name();
        assert!(reasons[0].starts_with(&format!("{name}: 1440")), "{text}");
        assert!(reasons[0].contains("waited for each other alike"), "{text}");
    }
}

#[test]
fn a_preempted_rank_is_not_called_slow_in_any_superstep() {
    let (_, text) = found(&[Cause::BusyMachine], 4);
    assert!(!text.contains("slow rank"), "{text}");
    assert!(
        text.contains("busy machine: rank 6 waited 60.000 ms for a core"),
        "{text}"
    );
}

#[test]
fn a_sleeping_rank_is_slow_and_its_sleep_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &[Cause::SlowRank], 5);
    let path = folder.path().join(file_name(1));
    let mut file = TraceFile::parse(&std::fs::read(&path).expect("written")).expect("ours");
    for step in &mut file.steps {
        step.cpu_ns = Some(MS);
        step.sleeps = 1;
    }
    std::fs::write(&path, file.to_bytes()).expect("ours");
    let dir = folder.path().to_str().expect("plain");
    let text = run(folder.path(), &["trace", dir]);
    assert!(
        text.contains("wait for rank 1; it computed for less than half"),
        "{text}"
    );
    assert!(!text.contains("busy machine"), "{text}");
}

#[test]
fn the_report_names_the_same_causes_and_each_function_has_its_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &[Cause::BusyMachine, Cause::Loss], 6);
    let dir = folder.path().to_str().expect("plain");
    let page = folder.path().join("page.html");
    let page = page.to_str().expect("plain");
    run(folder.path(), &["trace", dir, "--html", page]);
    let html = std::fs::read_to_string(page).expect("written");
    for name in [
        "busy machine: ",
        "loss: ",
        "; h: bytes of the rank",
        "<summary>program &gt; planted.c:9</summary>",
    ] {
        assert!(html.contains(name), "{name}");
    }
    assert!(!html.contains("slow rank: "));
    let summary: Value =
        serde_json::from_str(&run(folder.path(), &["--json", "trace", dir])).expect("an object");
    let call = &summary["tree"]["below"][0];
    let ranks = call["ranks"].as_array().expect("a list");
    assert_eq!(ranks.len(), RANKS as usize);
    let number = |rank: usize, name: &str| ranks[rank][name].as_u64().expect("a number");
    // Half of the supersteps took 60 ms longer with the same work.
    let waited = number(6, "compute_ns") - number(6, "work_ns");
    assert_eq!(waited, u64::from(STEPS) / 2 * 60 * MS);
    assert_eq!(number(5, "compute_ns"), number(5, "work_ns"));
    let text = run(folder.path(), &["trace", dir, "--below", "planted.c:9"]);
    assert!(
        text.contains("ranks below planted.c:9, 48 supersteps"),
        "{text}"
    );
    assert!(text.contains("1440.000"), "{text}");
}
