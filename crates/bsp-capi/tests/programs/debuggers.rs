//! Programs under valgrind and sanitizers, and the output of a rank that crashes.

use crate::harness::Bench;

/// Puts, gets, messages and a collective, with memory that every one of them must have initialised.
const CALLS: &str = "#include <bsp.h>\n#include <stdlib.h>\n#include <string.h>\n\
    int main(void) {\n\
      bsp_begin(bsp_nprocs());\n\
      int p = bsp_nprocs(), me = bsp_pid(), left = (me + p - 1) % p, right = (me + 1) % p;\n\
      int bytes = 100000, tag_bytes = sizeof me, tag, status;\n\
      char *from = malloc(bytes), *to = malloc(bytes);\n\
      memset(from, 'a' + me, bytes);\n\
      bsp_push_reg(to, bytes); bsp_set_tagsize(&tag_bytes); bsp_sync();\n\
      bsp_put(right, from, to, 0, bytes); bsp_send(left, &me, from, 1000); bsp_sync();\n\
      for (int i = 0; i < bytes; i++) if (to[i] != 'a' + left) bsp_abort(\"put at %d\", i);\n\
      bsp_get_tag(&status, &tag);\n\
      if (status != 1000 || tag != right) bsp_abort(\"tag %d\", tag);\n\
      bsp_move(from, bytes); if (from[999] != 'a' + right) bsp_abort(\"message\");\n\
      bsp_hpget(right, to, 0, from, bytes); bsp_sync();\n\
      for (int i = 0; i < bytes; i++) if (from[i] != 'a' + me) bsp_abort(\"get at %d\", i);\n\
      if (bsp_sumI(me) != p * (p - 1) / 2) bsp_abort(\"sum\");\n\
      bsp_pop_reg(to); free(from); free(to);\n\
      if (me == 0) puts(\"fine\");\n\
      bsp_end(); return 0; }\n";

fn compile(bench: &Bench, text: &str, options: &[&str]) -> std::path::PathBuf {
    let source = bench.path().join("program.c");
    std::fs::write(&source, text).expect("our own folder");
    bench.compile(&source, &[&["-std=gnu11", "-g"], options].concat())
}

#[test]
fn valgrind_finds_no_faults_over_any_link() {
    if !crate::harness::is_installed("valgrind") {
        return;
    }
    let bench = Bench::new();
    let program = compile(&bench, CALLS, &[]);
    for link in ["shm", "udp", "tcp"] {
        let mut job = bench.job("valgrind".as_ref(), 2);
        for argument in ["-q", "--error-exitcode=9", "--leak-check=no"] {
            job = job.argument(argument);
        }
        let job = job.argument(program.to_str().expect("plain"));
        let done = job.variable("DIPOLE_LINK", link).run();
        assert_eq!(done.output(), "fine\n", "{link}: {done:?}");
    }
}

#[test]
fn sanitizers_find_no_faults() {
    let bench = Bench::new();
    let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];
    let program = compile(&bench, CALLS, &options);
    for link in ["shm", "udp"] {
        let job = bench.job(&program, 2);
        // Memory that libraries keep until the end is not a leak.
        let job = job.variable("ASAN_OPTIONS", "detect_leaks=0");
        let done = job.variable("DIPOLE_LINK", link).run();
        assert_eq!(done.output(), "fine\n", "{link}: {done:?}");
    }
}

#[test]
fn a_rank_that_crashes_has_written_its_last_words_if_output_is_unbuffered() {
    let bench = Bench::new();
    let text = "#include <bsp.h>\n#include <stdlib.h>\n\
        int main(void) {\n\
          bsp_begin(bsp_nprocs()); printf(\"at %d\", bsp_pid()); abort();\n\
        }\n";
    let program = compile(&bench, text, &[]);
    for (value, expected) in [("1", "at 0"), ("0", "")] {
        let job = bench.job(&program, 1);
        let done = job.variable("DIPOLE_BSP_UNBUFFERED", value).run();
        assert!(!done.ranks[0].status.success(), "{done:?}");
        assert_eq!(done.ranks[0].out, expected, "{done:?}");
    }
}
