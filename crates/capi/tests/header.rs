//! The header matches the library (functions, types, constants), and C and C++ compilers accept it
//! without a warning.

mod harness;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};

use dipole::{
    Address, Completion, Counts, NodeOptions, Notification, OpenOptions, Pool, PostedOperation,
    ReceivedMessage, Stats, StreamLayout, StreamState,
};
use harness::{Bench, crate_dir, include_dir, run};

fn header() -> String {
    std::fs::read_to_string(include_dir().join("dipole.h")).expect("the header is there")
}

/// The header without comments.
fn declarations() -> String {
    let header = header();
    let mut rest = header.as_str();
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        kept += before;
        rest = after.split_once("*/").expect("comments end").1;
    }
    kept + rest
}

/// Names of functions that the header declares.
fn declared() -> BTreeSet<String> {
    declarations()
        .lines()
        .filter(|line| !line.starts_with(['#', ' ', '}']) && !line.starts_with("typedef"))
        .filter_map(|line| {
            let name = line.split_once('(')?.0;
            let name = name.rsplit([' ', '*']).next()?;
            Some(name.to_owned())
        })
        .collect()
}

/// An exported function of the source.
struct Function {
    name: String,
    prototype: String,
}

fn functions() -> Vec<Function> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crate_dir().join("src")).expect("the source is there") {
        let path = entry.expect("an entry").path();
        let source = std::fs::read_to_string(path).expect("source is text");
        for after in source.split("#[unsafe(no_mangle)]\n").skip(1) {
            let (signature, _) = after.split_once('{').expect("a function has a body");
            let (_, signature) = signature
                .split_once("extern \"C\" fn ")
                .expect("what is exported is a function");
            found.push(function(signature));
        }
    }
    found
}

fn function(signature: &str) -> Function {
    let (name, rest) = signature.split_once('(').expect("arguments begin");
    let (arguments, answer) = rest.rsplit_once(')').expect("arguments end");
    let answer = answer.trim().strip_prefix("->").expect("an answer");
    let arguments: Vec<String> = arguments
        .split(',')
        .map(str::trim)
        .filter(|argument| !argument.is_empty())
        .map(|argument| c_type(argument.split_once(':').expect("a type").1))
        .collect();
    let arguments = match arguments.is_empty() {
        true => "void".to_owned(),
        false => arguments.join(", "),
    };
    Function {
        name: name.to_owned(),
        prototype: format!("{} {name}({arguments});", c_type(answer)),
    }
}

fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(to));
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(to));
    }
    let known = match rust {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        "usize" => "size_t",
        "isize" => "ssize_t",
        "Address" => "struct dp_address",
        "CombineFunction" => "dp_combine",
        "Handler" => "dp_handler",
        "SlotHandler" => "dp_slot_handler",
        "Completion" => "struct dp_completion",
        "Counts" => "struct dp_counts",
        "libc::iovec" => "struct iovec",
        "NodeOptions" => "struct dp_node_options",
        "Notification" => "struct dp_notification",
        "OpenOptions" => "struct dp_open_options",
        "Pool" => "dpmmap_t",
        "PostedOperation" => "struct dp_operation",
        "ReceivedMessage" => "struct dp_message",
        "Stats" => "struct dp_stats",
        "StreamLayout" => "struct dp_layout",
        "StreamState" => "struct dp_stream_status",
        _ => panic!("`{rust}` is not a type of the C interface"),
    };
    known.to_owned()
}

/// Assertions for the compiler: the sizes and offsets of the Rust structs.
macro_rules! layout {
    ($text:expr, $rust:ty, $c:literal, [$($member:ident),* $(,)?]) => {{
        let _every_member_is_named = |all: $rust| {
            let Self_ { $($member: _),* } = all;
            type Self_ = $rust;
        };
        writeln!(
            $text,
            "_Static_assert(sizeof({}) == {}, \"size\");",
            $c,
            size_of::<$rust>()
        )
        .unwrap();
        $(
            writeln!(
                $text,
                "_Static_assert(offsetof({}, {}) == {}, \"{}\");",
                $c,
                stringify!($member),
                offset_of!($rust, $member),
                stringify!($member)
            )
            .unwrap();
        )*
    }};
}

fn layouts() -> String {
    let mut text = String::new();
    layout!(text, Address, "struct dp_address", [nid, dpid]);
    layout!(
        text,
        Completion,
        "struct dp_completion",
        [
            kind, error, context, value, fd, reserved, source, message, length
        ]
    );
    layout!(
        text,
        PostedOperation,
        "struct dp_operation",
        [kind, flags, key, offset, memory, length, value, expected]
    );
    layout!(text, Counts, "struct dp_counts", [sent, failed]);
    layout!(
        text,
        StreamState,
        "struct dp_stream_status",
        [
            size,
            read_bytes,
            written_bytes,
            read_bytes_per_s,
            written_bytes_per_s,
            open_ns,
            waited_ns,
            waits_for,
            rank,
            peer
        ]
    );
    layout!(
        text,
        NodeOptions,
        "struct dp_node_options",
        [
            size,
            nid,
            reserved,
            runtime_dir,
            hosts,
            bind,
            link,
            spin_ns,
            connect_timeout_ns,
            linger_ns,
            key
        ]
    );
    layout!(
        text,
        Notification,
        "struct dp_notification",
        [key, offset, length, value]
    );
    layout!(
        text,
        OpenOptions,
        "struct dp_open_options",
        [size, flags, reserved, pool_bytes]
    );
    layout!(
        text,
        ReceivedMessage,
        "struct dp_message",
        [address, length, source]
    );
    layout!(
        text,
        StreamLayout,
        "struct dp_layout",
        [ranks, reserved, block, owners, records]
    );
    layout!(text, Pool, "dpmmap_t", [size, bytes, base]);
    layout!(
        text,
        Stats,
        "struct dp_stats",
        [
            size,
            packets_sent,
            packets_received,
            bytes_sent,
            bytes_received,
            packets_dropped,
            link_full,
            units_sent,
            units_received,
            repeats,
            explicit_acks,
            messages_delivered,
            messages_refused,
            unreliable_sent,
            unreliable_dropped,
            target_dropped,
            peers,
            local_peers,
            local_records_sent,
            local_records_received,
            local_bytes_sent,
            local_bytes_received,
            local_bytes_fetched,
            local_wakes,
            pool_used_bytes,
            free_frames,
            bpf_received,
            bpf_sent,
            bpf_socket_received,
            bpf_socket_sent,
            messages_sent,
            message_bytes_sent,
            message_bytes_received,
            waits,
            wait_ns
        ]
    );
    text
}

fn constants() -> Vec<(&'static str, i64)> {
    vec![
        ("DP_DONTWAIT", dipole::DP_DONTWAIT.into()),
        ("DP_MAX_MESSAGE_BYTES", dipole::DP_MAX_MESSAGE_BYTES),
        ("DP_MORE", dipole::DP_MORE.into()),
        ("DP_UNRELIABLE", dipole::DP_UNRELIABLE.into()),
        ("DP_ZEROCOPY", dipole::DP_ZEROCOPY.into()),
        ("DP_WAIT", dipole::DP_WAIT.into()),
        ("DP_DROP_NEWEST", dipole::DP_DROP_NEWEST.into()),
        ("DP_DROP_OLDEST", dipole::DP_DROP_OLDEST.into()),
        ("DP_KEEP_LATEST", dipole::DP_KEEP_LATEST.into()),
        ("DP_KEEP", dipole::DP_KEEP.into()),
        ("DP_PUT", dipole::DP_PUT.into()),
        ("DP_GET", dipole::DP_GET.into()),
        ("DP_FETCH_ADD", dipole::DP_FETCH_ADD.into()),
        ("DP_COMPARE_SWAP", dipole::DP_COMPARE_SWAP.into()),
        ("DP_NOTIFY", dipole::DP_NOTIFY.into()),
        ("DP_WAITS_CONNECTION", dipole::DP_WAITS_CONNECTION.into()),
        ("DP_WAITS_CALLER", dipole::DP_WAITS_CALLER.into()),
        ("DP_WAITS_CALL", dipole::DP_WAITS_CALL.into()),
        ("DP_WAITS_DATA", dipole::DP_WAITS_DATA.into()),
        ("DP_WAITS_READER", dipole::DP_WAITS_READER.into()),
        (
            "DP_WAITS_PEER_TO_READ",
            dipole::DP_WAITS_PEER_TO_READ.into(),
        ),
        (
            "DP_WAITS_PEER_TO_WRITE",
            dipole::DP_WAITS_PEER_TO_WRITE.into(),
        ),
        ("DP_SUM_U64", dipole::DP_SUM_U64.into()),
        ("DP_MIN_U64", dipole::DP_MIN_U64.into()),
        ("DP_MAX_U64", dipole::DP_MAX_U64.into()),
        ("DP_SUM_I64", dipole::DP_SUM_I64.into()),
        ("DP_MIN_I64", dipole::DP_MIN_I64.into()),
        ("DP_MAX_I64", dipole::DP_MAX_I64.into()),
        ("DP_SUM_F64", dipole::DP_SUM_F64.into()),
        ("DP_MIN_F64", dipole::DP_MIN_F64.into()),
        ("DP_MAX_F64", dipole::DP_MAX_F64.into()),
        ("DP_ALLOW_PUT", dipole::DP_ALLOW_PUT.into()),
        ("DP_ALLOW_GET", dipole::DP_ALLOW_GET.into()),
        ("DP_ALLOW_ATOMIC", dipole::DP_ALLOW_ATOMIC.into()),
        ("DP_SENT", dipole::DP_SENT.into()),
        ("DP_FAILED", dipole::DP_FAILED.into()),
        ("DP_RECEIVED", dipole::DP_RECEIVED.into()),
        ("DP_DONE", dipole::DP_DONE.into()),
        ("DP_FILLED", dipole::DP_FILLED.into()),
        ("DP_ANY", dipole::DP_ANY.into()),
        ("DP_NONBLOCK", dipole::DP_NONBLOCK.into()),
        ("DP_IO", dipole::DP_IO.into()),
        ("DP_ZERO_NS", dipole::DP_ZERO_NS),
    ]
}

#[test]
fn the_header_and_the_source_have_the_same_declarations() {
    let functions = functions();
    let written: BTreeSet<String> = functions.iter().map(|f| f.name.clone()).collect();
    assert_eq!(declared(), written);
    assert!(written.len() > 25, "{written:?}");

    // The compiler reports a second declaration of a function with another type.
    let mut text = String::from("#include <dipole.h>\n");
    for function in &functions {
        writeln!(text, "{}", function.prototype).unwrap();
    }
    text += &layouts();
    for (name, value) in constants() {
        writeln!(text, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    for (name, value) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        writeln!(
            text,
            "_Static_assert(DP_VERSION_{name} == {value}, \"{name}\");"
        )
        .unwrap();
    }
    text += "int main(void) { return 0; }\n";
    let bench = Bench::new();
    let source = bench.path().join("same.c");
    std::fs::write(&source, text).expect("the comparison is written");
    bench.compile_with("same", &source, &["-std=c11"]);
    assert!(header().contains(&format!(
        "#define DP_VERSION \"{}\"",
        env!("CARGO_PKG_VERSION")
    )));
}

#[test]
fn every_constant_of_the_header_has_the_value_of_the_source() {
    let compared: BTreeSet<String> = constants()
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let defined: BTreeSet<String> = declarations()
        .lines()
        .filter_map(|line| line.strip_prefix("#define "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with("DP_") && !name.starts_with("DP_VERSION"))
        .map(str::to_owned)
        .collect();
    assert_eq!(defined, compared);
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let symbols = run(std::process::Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(harness::built_library("libdipole.so")));
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    assert_eq!(exported, declared());
}

#[test]
fn every_compiler_and_language_version_accepts_the_header() {
    let bench = Bench::new();
    for (compiler, suffix, standards) in [
        ("cc", "c", &["c99", "c11", "c17"][..]),
        ("c++", "cc", &["c++11", "c++17", "c++20"][..]),
    ] {
        let source = bench.path().join(format!("only.{suffix}"));
        std::fs::write(&source, "#include <dipole.h>\n#include <dipole.h>\n").unwrap();
        for standard in standards {
            run(std::process::Command::new(compiler)
                .arg(format!("-std={standard}"))
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", "-I"])
                .arg(include_dir())
                .arg(&source)
                .arg("-o")
                .arg(bench.path().join("only.o")));
        }
    }
}

#[test]
fn header_library_and_manual_agree_on_the_meaning_of_errors() {
    let header = header();
    let manual = std::fs::read_to_string(crate_dir().join("../../docs/man/dp_error.3"))
        .expect("the manual is there");
    let listed: Vec<(&str, &str)> = header
        .lines()
        .filter_map(|line| line.strip_prefix(" *   E"))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, meaning)| (name, meaning.trim()))
        .collect();
    assert!(listed.len() > 20, "{listed:?}");
    let mut program = String::from(
        "#include <dipole.h>\n#include <errno.h>\n#include <string.h>\nint main(void) {\n",
    );
    for (name, meaning) in &listed {
        writeln!(
            program,
            "if (strcmp(dp_strerror(E{name}), \"{meaning}\") != 0) return __LINE__;"
        )
        .unwrap();
        let entry = format!(".It Bq Er E{name}\n");
        let described = manual
            .split_once(&entry)
            .unwrap_or_else(|| panic!("dp_error(3) leaves E{name} out"))
            .1
            .split("\n.")
            .next()
            .unwrap_or("")
            .replace('\n', " ")
            .to_lowercase();
        let described = described.trim_end_matches('.');
        assert_eq!(described, meaning.to_lowercase(), "E{name}");
    }
    program += "return 0; }\n";
    assert_eq!(
        manual.matches(".It Bq Er ").count(),
        listed.len(),
        "dp_error(3) lists what the header does not"
    );
    let bench = Bench::new();
    let source = bench.path().join("meanings.c");
    std::fs::write(&source, program).unwrap();
    let program = bench.compile_with("meanings", &source, &["-std=c99"]);
    run(&mut bench.command(&program));
}
