//! MPI programs over the provider with the installed Open MPI: all ranks on one node, on two nodes, and on
//! nodes whose network loses packets. The programs check their results.

mod harness;

use std::path::Path;

use dipole_testbed::{Faults, Testbed};
use dipole_trace::waits::{Cause, WaitFile};
use harness::{Bench, Job, Library, assert_right};

/// The programs, and arguments for a short run.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("collectives", &["400"]),
    ("datatypes", &[]),
    ("messages", &["4194304", "20"]),
    ("windows", &["20000"]),
];

/// Computation kernels and their arguments.
const KERNELS: [(&str, &[&str]); 6] = [
    ("ep", &["S"]),
    ("is", &["16"]),
    ("cg", &["2000"]),
    ("ft", &["7"]),
    ("mg", &["5"]),
    ("lu", &["16"]),
];

/// Compiles programs and runs each with `run`.
fn each(programs: &[(&str, &[&str])], run: impl Fn(&Bench, &Path, &dyn Fn(Job<'_>))) {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    for (name, arguments) in programs {
        let program = bench.compile(name);
        run(&bench, &program, &|job| {
            assert_right(&job.arguments(arguments).run(), name);
        });
    }
}

#[test]
fn programs_are_correct_over_shared_memory() {
    each(&PROGRAMS, |bench, program, check| {
        for ranks in [1, 2, 8] {
            check(bench.job(program, ranks));
        }
    });
}

#[test]
fn programs_are_correct_over_udp() {
    each(&PROGRAMS, |bench, program, check| {
        for ranks in [2, 4] {
            check(bench.job(program, ranks).variable("DIPOLE_LINK", "udp"));
        }
    });
}

/// A profile decides up to which length messages are sent whole: here nearly none, and nearly all.
#[test]
fn programs_are_correct_with_any_calibrated_length_of_whole_messages() {
    for whole_bytes in [1 << 10, 256 << 10] {
        let folder = tempfile::tempdir().expect("a folder");
        for link in ["shm", "udp"] {
            let profile = format!(
                r#"{{"version": 1, "link": "{link}", "choices": {{"whole_bytes": {whole_bytes}}}}}"#
            );
            let file = folder.path().join(format!("{link}.json"));
            std::fs::write(file, profile).expect("a folder of our own");
        }
        let profiles = folder.path().to_str().expect("plain");
        each(&PROGRAMS[..2], |bench, program, check| {
            let job = || bench.job(program, 2).variable("DIPOLE_PROFILE", profiles);
            check(job());
            check(job().variable("DIPOLE_LINK", "udp"));
        });
    }
}

#[test]
fn programs_are_correct_on_two_nodes_despite_packet_loss() {
    each(&PROGRAMS, |bench, program, check| {
        let job = bench.job(program, 1).nodes(&[2, 2]);
        check(job.variable("DIPOLE_FAULT", "drop=0.01,seed=7"));
    });
}

#[test]
fn halves_that_meet_at_a_port_and_spawned_processes_exchange_messages() {
    each(&[("dynamic", &[])], |bench, program, check| {
        for link in ["auto", "udp"] {
            let job = bench.job(program, 4).variable("DIPOLE_LINK", link);
            check(job.arguments(&["spawn"]));
        }
        check(bench.job(program, 1).nodes(&[2, 2]));
    });
}

#[test]
fn kernels_compute_correct_results() {
    each(&KERNELS, |bench, program, check| {
        check(bench.job(program, 4));
        check(bench.job(program, 1).nodes(&[1, 1]));
    });
}

#[test]
fn programs_are_correct_between_machines_over_the_bpf_link_and_despite_packet_loss() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(2);
    let sound = testbed.build().expect("a testbed can be made");
    let lossy = Testbed::builder().nodes(2).faults(Faults {
        drop: 0.01,
        ..Faults::default()
    });
    let lossy = lossy.build().expect("a testbed can be made");
    each(&PROGRAMS, |bench, program, check| {
        let job = bench.job(program, 1).testbed(&sound, &[1, 1]);
        check(job.variable("DIPOLE_LINK", "bpf"));
        check(bench.job(program, 1).testbed(&lossy, &[1, 2]));
    });
}

#[test]
fn windows_are_correct_with_reads_writes_and_atomic_operations_of_the_provider() {
    each(&PROGRAMS[3..], |bench, program, check| {
        for link in ["auto", "udp"] {
            let job = bench.job(program, 2).variable("DIPOLE_LINK", link);
            let job = job.variable("OMPI_MCA_btl", "ofi,self");
            let job = job.variable("OMPI_MCA_btl_ofi_provider_include", "dipole");
            check(job.variable("OMPI_MCA_osc", "rdma"));
        }
    });
}

#[test]
fn full_queues_lose_nothing_and_hold_up_only_their_own_peer() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("full");
    for (link, messages) in [("auto", ["20000", "8000"]), ("udp", ["1500", "60000"])] {
        let job = bench.job(&program, 3).variable("DIPOLE_LINK", link);
        assert_right(&job.arguments(&messages).run(), "full");
    }
}

#[test]
fn programs_are_correct_although_resources_are_short() {
    let seed = std::env::var("DIPOLE_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("DIPOLE_SEED={seed}");
    let short = [
        ("auto", "credit=0.5"),
        ("udp", "credit=0.5"),
        ("udp", "frames=0.5"),
        ("auto", "rings=0.5"),
        ("udp", "link=0.5"),
        // Nothing is posted unless a message cannot be sent at once.
        ("auto", "credit=0.5,posts=0.5"),
        ("udp", "credit=0.5,posts=0.5"),
        ("auto", "credit=0.2,rings=0.2,posts=0.2"),
        ("udp", "credit=0.2,frames=0.2,posts=0.2,link=0.2,drop=0.01"),
    ];
    each(&PROGRAMS[2..], |bench, program, check| {
        for (at, (link, fault)) in (seed..).zip(short) {
            let job = bench.job(program, 2).variable("DIPOLE_LINK", link);
            check(job.variable("DIPOLE_FAULT", &format!("{fault},seed={at}")));
        }
    });
}

#[test]
fn unexpected_messages_take_limited_memory_and_hold_up_none_that_is_waited_for() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("flood");
    let tool = dipole_testbed::built::program("dipole");
    let tool = tool.to_str().expect("a path");
    // The messages take 58 MB. What the sender has copied when it is throttled still arrives, and every
    // message has an entry.
    let (messages, limit) = (8000_u64, 1_u64 << 20);
    let bound = limit + (32 << 20) + 256 * messages;
    for link in ["auto", "udp"] {
        for (ranks, count, limit, bound) in [
            (2, messages, limit.to_string(), bound),
            (3, 500, String::new(), u64::MAX),
        ] {
            let arguments = [&count.to_string(), "8000", &bound.to_string(), tool];
            let job = bench.job(&program, ranks).variable("DIPOLE_LINK", link);
            let job = job.variable("DIPOLE_UNEXPECTED_BYTES", &limit);
            assert_right(&job.arguments(&arguments).run(), "flood");
        }
    }
}

#[test]
fn a_rank_that_is_stopped_for_a_while_only_makes_the_others_wait() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let testbed = Testbed::builder().nodes(2).build();
    let testbed = testbed.expect("a testbed can be made");
    let program = bench.compile("stopped");
    let job = || bench.job(&program, 1).testbed(&testbed, &[2, 1]);
    assert_right(&job().run(), "stopped");
    let done = job().variable("DIPOLE_PEER_TIMEOUT_MS", "1000").run();
    assert!(!done.was_killed && !done.status.success(), "{done:?}");
    assert!(done.err.contains("DIPOLE_PEER_TIMEOUT_MS"), "{done:?}");
}

#[test]
fn an_mpi_program_under_the_wrong_launcher_is_told_so() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("late");
    for (rank, warns) in [("0", true), ("1", false)] {
        let variables = [
            ("DIPOLE_RANK", rank),
            ("DIPOLE_SIZE", "2"),
            ("DIPOLE_JOB", "7"),
            ("DIPOLE_JOB_BASE", "1000"),
            ("DIPOLE_RANKS", "1x2"),
        ];
        let done = bench.singleton(&program, &variables);
        assert!(done.status.success(), "{done:?}");
        let told =
            "`dipole run` started 2 ranks, but to Open MPI each of them is a job of one rank";
        assert_eq!(done.err.contains(told), warns, "{done:?}");
    }
}

#[test]
fn death_of_a_rank_ends_the_job_with_a_message() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("killed");
    for link in ["auto", "udp"] {
        let done = (bench.job(&program, 3)).variable("DIPOLE_LINK", link).run();
        assert!(!done.was_killed && !done.status.success(), "{done:?}");
        // The launcher or a waiting rank reports it, whichever detects it first.
        let is_reported = ["signal 9", "is gone"]
            .iter()
            .any(|word| done.err.contains(word));
        assert!(is_reported, "{done:?}");
    }
}

#[test]
fn a_rank_that_waits_for_a_dead_one_gets_an_error_if_the_launcher_does_not_end_the_job() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("killed");
    for link in ["auto", "udp"] {
        let job = (bench.job(&program, 3)).variable("DIPOLE_LINK", link);
        let done = job.variable("OMPI_MCA_orte_enable_recovery", "1").run();
        assert!(!done.was_killed && done.err.contains("is gone"), "{done:?}");
    }
}

#[test]
fn datatypes_of_absolute_addresses_whose_address_is_lost_end_the_job_with_a_message() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("bottom");
    for link in ["auto", "udp"] {
        let job = |argument| {
            let job = (bench.job(&program, 3)).variable("DIPOLE_LINK", link);
            job.arguments(&[argument]).run()
        };
        let returned = job("return");
        let is_over = !returned.was_killed && returned.status.success();
        assert!(is_over && returned.out.contains("bottom: "), "{returned:?}");
        let ended = job("fatal");
        let is_reported = ended.err.contains("at address 0 fails") && !ended.status.success();
        assert!(!ended.was_killed && is_reported, "{ended:?}");
    }
}

#[test]
fn waits_of_ranks_are_recorded_with_the_call_and_the_peer() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("late");
    let traces = tempfile::tempdir().expect("a folder");
    let folder = traces.path().to_str().expect("a path");
    for link in ["shm", "udp"] {
        let folder = format!("{folder}/{link}");
        let job = bench.job(&program, 3).variable("DIPOLE_TRACE", &folder);
        assert_right(&job.variable("DIPOLE_LINK", link).run(), "late");
        let entries = std::fs::read_dir(&folder).expect("the folder was made");
        let files = entries.map(|entry| {
            let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
            WaitFile::parse(&bytes).expect("as written")
        });
        let mut files: Vec<WaitFile> = files.collect();
        files.sort_by_key(|file| file.header.rank);
        let ranks: Vec<_> = files.iter().map(|file| file.header.rank).collect();
        assert_eq!(ranks, [Some((0, 3)), Some((1, 3)), Some((2, 3))]);
        for file in &files[1..] {
            // 100 messages, each 5 ms after its request. On a busy machine few polls fit into that time,
            // and of such waits one in eight is timed until a long one is found.
            let long = file
                .waits
                .records
                .iter()
                .filter(|wait| wait.ns() > 1_000_000);
            let long: Vec<_> = long.filter(|wait| wait.cause == Cause::Message).collect();
            assert!(long.len() >= 5, "{:#?}", file.waits);
            let own = long[0].own;
            assert!(own.is_some() && long.iter().all(|wait| wait.own == own));
            // They come from the one endpoint of rank 0.
            let peer = long[1].peer;
            let of_one = long.iter().filter(|wait| wait.peer == peer).count();
            assert!(peer.is_some() && peer != own && of_one >= 4, "{long:#?}");
            // The stack contains the program's own code.
            let stack = &file.stacks[long[1].stack as usize - 1];
            let modules = stack
                .iter()
                .filter_map(|frame| file.modules.get(frame.module as usize));
            let is_there = modules.clone().any(|module| module.path.ends_with("/late"));
            assert!(is_there, "{:#?}", modules.collect::<Vec<_>>());
        }
    }
}
