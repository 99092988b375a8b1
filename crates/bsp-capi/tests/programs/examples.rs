//! The examples print the same on any number of ranks, over each link, on one node and on two, and with packet loss.
//! Each example compares its result with a sequential one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Bench, Done, Job, root};
use dipole_testbed::{Faults, Testbed};

/// The C examples, and the lines that they print according to their first comments.
fn examples() -> Vec<(PathBuf, String)> {
    let folder = root().join("examples/bsp");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the examples are there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|it| it == "c") {
            let line = expected(&path, " *     ");
            found.push((path, line));
        }
    }
    found.sort();
    assert!(found.len() >= 10, "{found:?}");
    found
}

/// The line that a program prints according to its first comment.
fn expected(path: &Path, indent: &str) -> String {
    let text = std::fs::read_to_string(path).expect("a program is text");
    let name = path.file_stem().expect("a file").to_string_lossy();
    let begin = format!("{indent}{name}: ");
    let line = text.lines().find(|line| line.starts_with(&begin));
    let line =
        line.unwrap_or_else(|| panic!("the first comment of {name} lacks the line that it prints"));
    format!("{}\n", &line[indent.len()..])
}

/// Compiles each example, and runs it with `run`.
fn each(run: impl Fn(&Bench, &Path, &dyn Fn(Done))) {
    let bench = Bench::new();
    let options = ["-std=c11", "-Wno-unused-function"];
    for (source, line) in examples() {
        let program = bench.compile(&source, &options);
        run(&bench, &program, &|done| {
            assert_eq!(done.output(), line, "{}", source.display());
        });
    }
}

fn on_some_ranks(sizes: &[u32], change: impl Fn(Job<'_>) -> Job<'_>) {
    each(|bench, program, check| {
        for size in sizes {
            check(change(bench.job(program, *size)).run());
        }
    });
}

#[test]
fn over_shared_memory() {
    on_some_ranks(&[1, 2, 3, 4, 7, 8], |job| job);
}

#[test]
fn over_udp() {
    on_some_ranks(&[1, 2, 3, 4, 7, 8], |job| {
        job.variable("DIPOLE_LINK", "udp")
    });
}

#[test]
fn over_tcp() {
    on_some_ranks(&[1, 2, 3, 4, 7, 8], |job| {
        job.variable("DIPOLE_LINK", "tcp")
    });
}

#[test]
fn on_two_nodes() {
    each(|bench, program, check| {
        for ranks in [[1, 1], [2, 1], [2, 2], [3, 4], [4, 4]] {
            check(bench.job(program, 1).nodes(&ranks).run());
        }
    });
}

#[test]
fn with_packet_loss() {
    let lossy = "drop=0.01,seed=7";
    each(|bench, program, check| {
        let job = |size| bench.job(program, size).variable("DIPOLE_FAULT", lossy);
        check(job(3).variable("DIPOLE_LINK", "udp").run());
        check(job(4).nodes(&[2, 2]).run());
    });
}

#[test]
fn over_the_bpf_link() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(2).build().expect("a testbed");
    each(|bench, program, check| {
        for ranks in [[1, 1], [2, 1], [2, 2], [3, 4], [4, 4]] {
            let job = bench.job(program, 1).testbed(&testbed, &ranks);
            check(job.variable("DIPOLE_LINK", "bpf").run());
        }
    });
}

#[test]
fn between_machines_with_packet_loss() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let lossy = Testbed::builder().nodes(2).faults(Faults {
        drop: 0.01,
        ..Faults::default()
    });
    let testbed = lossy.build().expect("a testbed");
    each(|bench, program, check| {
        for link in ["udp", "bpf", "tcp"] {
            let job = bench.job(program, 1).testbed(&testbed, &[2, 2]);
            check(job.variable("DIPOLE_LINK", link).run());
        }
    });
}

#[test]
fn in_fortran() {
    if !crate::harness::is_installed("gfortran") {
        return;
    }
    let bench = Bench::new();
    let module = root().join("include/bsp.f90");
    let strict = [
        "-std=f2008",
        "-Wall",
        "-Wextra",
        "-Wno-compare-reals",
        "-Werror",
        "-J",
    ];
    let folder = bench.path().display().to_string();
    let options = [&strict[..], &[&folder]].concat();
    crate::harness::run(
        Command::new("gfortran")
            .args(&options)
            .arg("-c")
            .arg(&module)
            .arg("-o")
            .arg(bench.path().join("bsp.o")),
    );
    let object = bench.path().join("bsp.o").display().to_string();
    for name in ["heat", "all_calls"] {
        let source = match name {
            "heat" => root().join("examples/bsp/heat.f90"),
            _ => crate::harness::source("all_calls.f90"),
        };
        let line = expected(&source, "!     ");
        let options = [&options[..], &[&object]].concat();
        let program = bench.compile_with("gfortran", name.as_ref(), &source, &options);
        for size in [1, 2, 3, 4, 7, 8] {
            assert_eq!(bench.job(&program, size).run().output(), line, "{name}");
        }
        let udp = bench.job(&program, 3).variable("DIPOLE_LINK", "udp");
        assert_eq!(udp.run().output(), line, "{name}");
    }
}

#[test]
fn in_fortran_77() {
    if !crate::harness::is_installed("gfortran") {
        return;
    }
    let bench = Bench::new();
    let source = crate::harness::source("fortran77.f");
    let line = expected(&source, "C     ");
    let options = ["-std=legacy", "-Wall", "-Werror"];
    let program = bench.compile_with("gfortran", "fortran77".as_ref(), &source, &options);
    for size in [1, 2, 3, 8] {
        assert_eq!(bench.job(&program, size).run().output(), line);
    }
    let udp = bench.job(&program, 3).variable("DIPOLE_LINK", "udp");
    assert_eq!(udp.run().output(), line);
    let wrong = bench.path().join("wrong.f");
    let text = "      call bsp_begin(2)\n      call bsp_abort('no more rice  ')\n      end\n";
    std::fs::write(&wrong, text).expect("our own folder");
    let program = bench.compile_with("gfortran", "wrong".as_ref(), &wrong, &options);
    let done = bench.job(&program, 1).run();
    let messages = done.messages();
    assert!(
        messages[0].ends_with("bsp_abort: no more rice"),
        "{messages:?}"
    );
}
