//! MPI programs as they are run over the provider by the Open MPI of this machine: all ranks on one node, on two, and
//! on nodes whose network loses packets. Each program checks all that it gets.

mod harness;

use std::path::Path;

use dipole_testbed::{Faults, Testbed};
use dipole_trace::waits::{Cause, WaitFile};
use harness::{Bench, Job, Library};

/// The programs, and arguments that let them end soon.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("collectives", &["400"]),
    ("datatypes", &[]),
    ("messages", &["4194304", "20"]),
    ("windows", &["20000"]),
];

/// Kernels that compute something, by their arguments.
const KERNELS: [(&str, &[&str]); 6] = [
    ("ep", &["S"]),
    ("is", &["16"]),
    ("cg", &["2000"]),
    ("ft", &["7"]),
    ("mg", &["5"]),
    ("lu", &["16"]),
];

/// Compiles programs and runs each in some way.
fn each(programs: &[(&str, &[&str])], run: impl Fn(&Bench, &Path, &dyn Fn(Job<'_>))) {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    for (name, arguments) in programs {
        let program = bench.compile(name);
        run(&bench, &program, &|job| {
            job.arguments(arguments).run().assert_right(name);
        });
    }
}

#[test]
fn programs_are_right_by_shared_memory() {
    each(&PROGRAMS, |bench, program, check| {
        for ranks in [1, 2, 8] {
            check(bench.job(program, ranks));
        }
    });
}

#[test]
fn programs_are_right_by_udp() {
    each(&PROGRAMS, |bench, program, check| {
        for ranks in [2, 4] {
            check(bench.job(program, ranks).variable("DIPOLE_LINK", "udp"));
        }
    });
}

#[test]
fn programs_are_right_on_two_nodes_though_packets_are_lost() {
    each(&PROGRAMS, |bench, program, check| {
        let job = bench.job(program, 1).nodes(&[2, 2]);
        check(job.variable("DIPOLE_FAULT", "drop=0.01,seed=7"));
    });
}

#[test]
fn kernels_compute_what_they_should() {
    each(&KERNELS, |bench, program, check| {
        check(bench.job(program, 4));
        check(bench.job(program, 1).nodes(&[1, 1]));
    });
}

#[test]
fn programs_are_right_between_machines_by_the_kernels_rings_and_though_their_network_loses_packets()
{
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
fn windows_are_right_by_reads_writes_and_atomic_operations_of_the_provider() {
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
fn death_of_a_rank_ends_the_job_with_a_message() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("killed");
    for link in ["auto", "udp"] {
        let done = (bench.job(&program, 3)).variable("DIPOLE_LINK", link).run();
        assert!(!done.was_ended && !done.status.success(), "{done:?}");
        // Whoever notices first says so: the launcher, or a rank that waited for the dead one.
        let told = ["signal 9", "is gone"]
            .iter()
            .any(|word| done.err.contains(word));
        assert!(told, "{done:?}");
    }
}

#[test]
fn a_rank_that_waits_for_a_dead_one_is_told_where_the_launcher_lets_the_job_go_on() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("killed");
    for link in ["auto", "udp"] {
        let job = (bench.job(&program, 3)).variable("DIPOLE_LINK", link);
        let done = job.variable("OMPI_MCA_orte_enable_recovery", "1").run();
        assert!(!done.was_ended && done.err.contains("is gone"), "{done:?}");
    }
}

#[test]
fn datatypes_of_absolute_addresses_end_the_job_with_a_message_where_their_address_is_lost() {
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
        let is_over = !returned.was_ended && returned.status.success();
        assert!(is_over && returned.out.contains("bottom: "), "{returned:?}");
        let ended = job("fatal");
        let told = ended.err.contains("at address 0 fails") && !ended.status.success();
        assert!(!ended.was_ended && told, "{ended:?}");
    }
}

#[test]
fn what_ranks_wait_for_is_kept_with_the_call_and_for_whom() {
    let Some(bench) = Bench::of(Library::Installed) else {
        return;
    };
    let program = bench.compile("late");
    let traces = tempfile::tempdir().expect("a folder");
    let folder = traces.path().to_str().expect("a path");
    for link in ["shm", "udp"] {
        let folder = format!("{folder}/{link}");
        let job = bench.job(&program, 3).variable("DIPOLE_TRACE", &folder);
        job.variable("DIPOLE_LINK", link).run().assert_right("late");
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
            // 20 messages, each 5 ms after it was asked for. Others may have a core for some of that.
            let long = file
                .waits
                .records
                .iter()
                .filter(|wait| wait.ns() > 1_000_000);
            let long: Vec<_> = long.filter(|wait| wait.cause == Cause::Message).collect();
            assert!(long.len() >= 5, "{:#?}", file.waits);
            let own = long[0].own;
            assert!(own.is_some() && long.iter().all(|wait| wait.own == own));
            // They come from rank 0, whose endpoint is one.
            let peer = long[1].peer;
            let of_one = long.iter().filter(|wait| wait.peer == peer).count();
            assert!(peer.is_some() && peer != own && of_one >= 4, "{long:#?}");
            // The program's own code is on the stack.
            let stack = &file.stacks[long[1].stack as usize - 1];
            let modules = stack
                .iter()
                .filter_map(|frame| file.modules.get(frame.module as usize));
            let is_there = modules.clone().any(|module| module.path.ends_with("/late"));
            assert!(is_there, "{:#?}", modules.collect::<Vec<_>>());
        }
    }
}
