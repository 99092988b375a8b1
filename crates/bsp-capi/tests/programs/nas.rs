//! The NAS kernels in `examples/bsp/nas` find the results that NPB publishes for class S.

use std::path::PathBuf;

use crate::harness::{Bench, root};

const KERNELS: [&str; 8] = ["ep", "is", "cg", "mg", "ft", "lu", "sp", "bt"];

fn compile(bench: &Bench, kernel: &str) -> PathBuf {
    let source = root().join(format!("examples/bsp/nas/{kernel}.c"));
    bench.compile(&source, &["-std=c99"])
}

/// Runs each kernel on one node with two ranks, and on two nodes with three.
#[test]
fn nas_kernels_find_the_published_results() {
    let bench = Bench::new();
    for kernel in KERNELS {
        let program = compile(&bench, kernel);
        let near = bench.job(&program, 2).argument("S").run();
        let far = bench.job(&program, 1).nodes(&[2, 1]).argument("S").run();
        for (done, ranks) in [(near, 2), (far, 3)] {
            let name = kernel.to_uppercase();
            let output = done.output();
            let title = format!("{name} class S, {ranks} processes\n");
            assert!(output.contains(&title), "{output}");
            assert!(output.ends_with("VERIFICATION SUCCESSFUL\n"), "{output}");
        }
    }
}

#[test]
fn nas_kernels_refuse_unknown_classes_and_too_many_processes() {
    let bench = Bench::new();
    let program = compile(&bench, "lu");
    for (ranks, class, message) in [
        (1, "B", "the class is S, W or A, not B"),
        (11, "S", "11 processes for 10 planes"),
    ] {
        let done = bench.job(&program, ranks).argument(class).run();
        assert!(
            done.ranks.iter().all(|rank| !rank.status.success()),
            "{done:?}"
        );
        assert!(
            done.ranks.iter().any(|rank| rank.err.contains(message)),
            "{done:?}"
        );
    }
}
