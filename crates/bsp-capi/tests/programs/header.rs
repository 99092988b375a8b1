//! The headers match the library in every dialect, language and standard, and every function has a manual page.

use std::collections::BTreeSet;
use std::process::Command;

use crate::harness::{Bench, root, run};

/// Headers that declare functions.
const HEADERS: [&str; 3] = ["bsp.h", "bsp_level1.h", "bsp_reshuffle.h"];

/// Functions that programs in Fortran 77 cannot call: they return addresses or characters, take them, or
/// exist for C only.
const NOT_IN_FORTRAN_77: [&str; 9] = [
    "bsp_abort_text",
    "bsp_abort_va",
    "bsp_call_site",
    "bsp_distribution_elements",
    "bsp_fix_argv",
    "bsp_hpmove",
    "bsp_sortC",
    "bsp_vabort",
    "bsp_reshuffle",
];

fn header(name: &str) -> String {
    std::fs::read_to_string(root().join("include").join(name)).expect("the header is there")
}

/// A function of the header, and its symbol in the other dialect if that differs.
struct Function {
    name: String,
    multicore: Option<String>,
}

fn functions() -> Vec<Function> {
    let mut found = Vec::new();
    for name in HEADERS {
        declared(&header(name), &mut found);
    }
    assert!(found.len() > 65, "{} functions", found.len());
    found
}

fn declared(header: &str, found: &mut Vec<Function>) {
    // Declarations end with a semicolon, and stand between the braces of `extern "C"`.
    let (_, body) = header
        .split_once("extern \"C\" {")
        .expect("a block for C++");
    let (body, _) = body
        .split_once("#ifdef __cplusplus")
        .expect("the end of the block");
    for declaration in body.split(';') {
        let code: Vec<&str> = declaration
            .lines()
            .filter(|line| {
                !line.starts_with(['#', '/', ' '])
                    || line.starts_with("    BSP_")
                    || line.starts_with("     ")
            })
            .collect();
        let code = code.join(" ");
        let Some((before, _)) = code.split_once('(') else {
            continue;
        };
        let Some(name) = before
            .split_whitespace()
            .last()
            .map(|name| name.trim_start_matches('*'))
            .filter(|name| name.starts_with("bsp_") || name.starts_with("mcbsp_"))
        else {
            continue;
        };
        let symbol = code
            .split_once("BSP_DIALECT_(\"")
            .and_then(|(_, rest)| rest.split_once('"'));
        found.push(Function {
            name: name.to_owned(),
            multicore: symbol.map(|(symbol, _)| symbol.to_owned()),
        });
    }
}

#[test]
fn the_library_exports_exactly_what_the_headers_declare_in_both_dialects() {
    let functions = functions();
    let in_fortran_77 = (functions.iter().map(|function| &function.name)).filter(|name| {
        let is_for_c =
            name.ends_with("_at") || name.ends_with("_cpp") || name.starts_with("mcbsp_");
        !is_for_c
            && !NOT_IN_FORTRAN_77
                .iter()
                .any(|other| name.starts_with(other))
    });
    let in_fortran_77: Vec<_> = in_fortran_77
        .map(|name| format!("{}_", name.to_lowercase()))
        .collect();
    let declared: BTreeSet<String> = functions
        .into_iter()
        .flat_map(|function| [Some(function.name), function.multicore])
        .flatten()
        .chain(in_fortran_77)
        .collect();
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(crate::harness::built_library("libbsp.so")));
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    assert_eq!(exported, declared);
}

#[test]
fn every_macro_is_a_function_that_the_header_declares() {
    let declared: BTreeSet<String> = functions().into_iter().map(|it| it.name).collect();
    let headers = HEADERS.map(header).concat();
    let macros = headers
        .lines()
        .filter_map(|line| line.strip_prefix("#define bsp_"));
    let mut count = 0;
    for rest in macros {
        let (name, body) = rest.split_once('(').expect("macros have arguments");
        let name = format!("bsp_{name}");
        assert!(declared.contains(&name), "{name}");
        assert!(
            body.contains(&format!("{name}(")) || body.contains(&format!("{name}_at(")),
            "{name}: {body}"
        );
        count += 1;
    }
    assert!(count > 20);
}

#[test]
fn every_compiler_and_language_accepts_the_headers() {
    let bench = Bench::new();
    let includes =
        "#include <bsp.h>\n#include <bsp_level1.h>\n#include <bsp_reshuffle.h>\n#include <bsp.h>\n";
    let others = "#include <mcbsp.h>\n#include <bsp_reshuffle.h>\n#include <bsp.h>\n";
    for (compiler, suffix, standards) in [
        ("cc", "c", &["c90", "c99", "c11", "c17"][..]),
        ("c++", "cc", &["c++98", "c++11", "c++17", "c++20"][..]),
    ] {
        for (name, text) in [("classic", includes), ("multicore", others)] {
            let source = bench.path().join(format!("{name}.{suffix}"));
            std::fs::write(&source, text).expect("our own folder");
            for standard in standards {
                run(Command::new(compiler)
                    .arg(format!("-std={standard}"))
                    .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", "-I"])
                    .arg(root().join("include"))
                    .arg(&source)
                    .arg("-o")
                    .arg(bench.path().join("only.o")));
            }
        }
    }
}

/// A program in the style of 1996.
const OLD: &str = "#include \"bsp.h\"\n\
    int x;\n\
    void spmd_part() {\n\
      int n;\n\
      bsp_begin(bsp_nprocs());\n\
      bsp_push_reg(&x, sizeof(int));\n\
      bsp_sync();\n\
      n = bsp_pid();\n\
      bsp_put((n + 1) % bsp_nprocs(), &n, &x, 0, sizeof(int));\n\
      bsp_sync();\n\
      if (x != (n + bsp_nprocs() - 1) % bsp_nprocs()) bsp_abort(\"x is %d\\n\", x);\n\
      if (n == 0) printf(\"fine\\n\");\n\
      bsp_end();\n\
    }\n\
    void main(argc, argv) int argc; char **argv; {\n\
      bsp_init(spmd_part, argc, argv);\n\
      spmd_part();\n\
      exit(0);\n\
    }\n";

/// A C++ program that reshuffles an array.
const RESHUFFLED: &str = "#include <bsp_reshuffle.h>\n#include <cstdio>\n#include <vector>\n\
    struct Pixel { unsigned char red, green, blue; };\n\
    int main() {\n\
      bsp_begin(bsp_nprocs());\n\
      int p = bsp_nprocs(), me = bsp_pid(); std::size_t extent = 1000, one = 1, part = (1000 + p - 1) / p;\n\
      std::vector<Pixel> from(bsp_distribution_elements(1, &extent, &p, &one, me));\n\
      std::vector<Pixel> to(bsp_distribution_elements(1, &extent, &p, &part, me));\n\
      for (std::size_t at = 0; at < from.size(); at++) {\n\
        std::size_t index = at * p + me;\n\
        from[at].red = index % 256; from[at].green = index / 256; from[at].blue = 7; }\n\
      bsp_reshuffle_plan *plan = bsp_reshuffle_plan_create(1, &extent, sizeof(Pixel), &p, &one, &p, &part);\n\
      for (int time = 0; time < 3; time++) bsp_reshuffle_execute(plan, from.data(), to.data());\n\
      for (std::size_t at = 0; at < to.size(); at++)\n\
        if (to[at].red + 256u * to[at].green != part * me + at || to[at].blue != 7) bsp_abort(\"%d\", (int)at);\n\
      bsp_reshuffle_plan_destroy(plan);\n\
      if (bsp_pid() == 0) std::puts(\"fine\");\n\
      bsp_end(); }\n";

/// A portable program. It uses the types of the header, or defines them again.
const PORTABLE: &str = "#include <bsp.h>\n\
    #if !defined _H_MCBSP && !defined BSPONMPI_BSP_H\n\
    typedef int bsp_pid_t; typedef int bsp_nprocs_t; typedef int bsp_size_t;\n\
    #endif\n\
    int main(void) {\n\
      bsp_begin(bsp_nprocs());\n\
      bsp_nprocs_t p = bsp_nprocs(); bsp_pid_t me = bsp_pid(); bsp_size_t bytes = sizeof me;\n\
      bsp_set_tagsize(&bytes); bsp_sync();\n\
      bsp_send((me + 1) % p, &me, &p, sizeof p); bsp_sync();\n\
      bsp_size_t status; bsp_pid_t from; bsp_get_tag(&status, &from);\n\
      if (status != sizeof p || from != (me + p - 1) % p) bsp_abort(\"no\");\n\
      if (me == 0) puts(\"fine\");\n\
      bsp_end(); return 0; }\n";

/// A C++ program that names functions of the header: as values, qualified, and as its own methods.
const CPP: &str = "#include <bsp.h>\n#include <cstdio>\n#include <vector>\n#include <functional>\n\
    struct World {\n\
      void bsp_sync() { ::bsp_sync(); }\n\
      void bsp_put(int to, double value, double *there) { ::bsp_put(to, &value, there, 0, sizeof value); }\n\
    };\n\
    static void add(double *sum, double *left, double *right, bsp_size_t *) { *sum = *left + *right; }\n\
    static void (*const end)() = bsp_end;\n\
    static void (*const push)(const void *, bsp_size_t) = &bsp_push_reg;\n\
    int main() {\n\
      bsp_begin(bsp_nprocs());\n\
      std::vector<double> all(bsp_nprocs()); double own = bsp_pid();\n\
      bsp_allgather(&own, all.data(), sizeof own);\n\
      std::function<void()> sync = bsp_sync; sync();\n\
      for (int i = 0; i < bsp_nprocs(); i++) if (all[i] != i) bsp_abort(\"%d\", i);\n\
      double one = 1, sum = 0, x = 0; bsp_fold(add, &one, &sum, sizeof one);\n\
      if (sum != bsp_nprocs()) bsp_abort(\"%g\", sum);\n\
      push(&x, sizeof x); World world; world.bsp_sync();\n\
      world.bsp_put((bsp_pid() + 1) % bsp_nprocs(), 7, &x); world.bsp_sync();\n\
      if (x != 7) bsp_abort(\"%g\", x);\n\
      if (bsp_pid() == 0) std::puts(\"fine\");\n\
      end(); }\n";

#[test]
fn calls_of_cpp_programs_are_reported_with_their_position() {
    let bench = Bench::new();
    let source = bench.path().join("wrong.cc");
    let text = "#include <bsp.h>\nint main() { bsp_begin(bsp_nprocs()); int x = 0;\n\
        bsp_put(bsp_pid() + 9, &x, &x, 0, 4); bsp_end(); }\n";
    std::fs::write(&source, text).expect("our own folder");
    let program = bench.compile_with("c++", "wrong".as_ref(), &source, &["-std=c++11"]);
    let done = bench.job(&program, 1).run();
    let messages = done.messages();
    assert!(messages[0].contains("bsp_put at "), "{done:?}");
    assert!(messages[0].contains("wrong.cc:3: "), "{done:?}");
}

/// Programs in the style of 1996, portable programs, and C++ programs.
#[test]
fn old_programs_and_cpp_programs_run() {
    let bench = Bench::new();
    let programs = [
        ("cc", "old.c", OLD, &["-std=gnu90", "-w"][..]),
        (
            "cc",
            "today.c",
            PORTABLE,
            &["-std=c11", "-Wall", "-Wpedantic", "-Werror"],
        ),
        (
            "cc",
            "large.c",
            PORTABLE,
            &[
                "-std=c11",
                "-Wall",
                "-Wpedantic",
                "-Werror",
                "-DBSP_MULTICORE",
            ],
        ),
        (
            "c++",
            "modern.cc",
            CPP,
            &["-std=c++17", "-Wall", "-Wextra", "-Werror"],
        ),
        (
            "c++",
            "reshuffled.cc",
            RESHUFFLED,
            &["-std=c++17", "-Wall", "-Wextra", "-Werror"],
        ),
    ];
    for (compiler, file, text, options) in programs {
        let source = bench.path().join(file);
        std::fs::write(&source, text).expect("our own folder");
        let program = bench.compile_with(
            compiler,
            file.split('.').next().unwrap_or(file).as_ref(),
            &source,
            options,
        );
        for size in [1, 3] {
            assert_eq!(bench.job(&program, size).run().output(), "fine\n", "{file}");
        }
    }
}

/// The text of a page, or of the page that it refers to.
fn page(name: &str) -> String {
    let folder = root().join("docs/man");
    let read = |file: &str| {
        std::fs::read_to_string(folder.join(file)).unwrap_or_else(|cause| panic!("{file}: {cause}"))
    };
    let text = read(&format!("{name}.3"));
    match text.strip_prefix(".so man3/") {
        Some(other) => read(other.trim()),
        None => text,
    }
}

#[test]
fn every_function_has_a_page_with_its_prototype() {
    // Functions that only macros call have no page.
    for Function { name, .. } in functions() {
        if name == "bsp_call_site" || name.ends_with("_at") || name.ends_with("_cpp") {
            continue;
        }
        let text = page(&name);
        assert!(
            text.contains(&format!("\n.Fn {name} ")),
            "{name}.3: no prototype"
        );
        let listed = [format!("\n.Nm {name}\n"), format!("\n.Nm {name} ,\n")];
        assert!(
            listed.iter().any(|it| text.contains(it)),
            "{name}.3: not in NAME"
        );
    }
}

#[test]
fn the_shared_library_has_its_soname_and_is_never_unloaded() {
    let facts = run(Command::new("readelf")
        .arg("-d")
        .arg(crate::harness::built_library("libbsp.so")));
    assert!(facts.contains("Library soname: [libbsp.so.0]"), "{facts}");
    assert!(facts.contains("NODELETE"), "{facts}");
}
