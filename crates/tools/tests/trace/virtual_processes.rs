//! More ranks than cores: they start, wait without using the cores, and the trace has their number.

use std::path::Path;

use dipole_bsp::trace::{TraceFile, file_name};

use crate::jobs::{Job, main_call, reasons, text};

const RANKS: u32 = 64;

#[test]
fn sixty_four_ranks_on_two_cores_wait_asleep_and_are_bound_evenly() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/waiting.c");
    let job = Job::compile(&source, &[]);
    let on = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(2));
    let mut command = job.command_with(RANKS, &["--on", &on.to_string()], &["2000"]);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    let spent_us: Vec<u64> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(spent_us.len(), RANKS as usize, "{}", text(&output));
    // 63 ranks waited for two seconds. Spinning, they would have used both cores all the time.
    let all_us: u64 = spent_us.iter().sum();
    assert!(
        all_us < 1_000_000,
        "{all_us} us of CPU time in the call: {spent_us:?}"
    );
    let files = (0..RANKS).map(|rank| {
        let bytes = std::fs::read(job.traces().join(file_name(rank))).expect("each rank has one");
        TraceFile::parse(&bytes).expect("as written")
    });
    let mut by_core = std::collections::BTreeMap::<u32, u32>::new();
    for file in files {
        assert_eq!(file.header.cores.len(), 1, "{:?}", file.header);
        *by_core.entry(file.header.cores[0]).or_default() += 1;
    }
    let cores = u32::try_from(on).expect("few");
    assert_eq!(by_core.len(), on);
    assert!(
        by_core.values().all(|ranks| *ranks == RANKS / cores),
        "{by_core:?}"
    );
}

#[test]
fn ranks_that_compute_on_one_core_are_reported_as_too_many() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/virtual.c");
    let job = Job::compile(&source, &[]);
    let mut command = job.command_with(8, &["--on", "1"], &["compute", "8", "160"]);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    let summary = job.summary();
    // Other programs may use the core as well, which is reported separately.
    let reasons = reasons(main_call(&summary));
    let named = reasons.iter().any(|reason| {
        reason.starts_with("too many ranks: ") && reason.contains("8 ranks share 1 core of ")
    });
    assert!(named, "{summary:#}");
    assert!(
        !reasons.iter().any(|reason| reason.starts_with("slow rank")),
        "{summary:#}"
    );
}
