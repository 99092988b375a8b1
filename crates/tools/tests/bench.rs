//! `dipole bench` as people run it, in its tiny mode: what comes out, and that
//! nothing stays behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Two sides that spin want both cores: one bench at a time.
static CORES: Mutex<()> = Mutex::new(());

fn cores() -> MutexGuard<'static, ()> {
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bench(arguments: &str) -> Command {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command
        .arg("bench")
        .args(arguments.split_whitespace())
        .stdin(Stdio::null());
    command
}

fn output(arguments: &str) -> Output {
    let _alone = cores();
    bench(arguments).output().expect("the program starts")
}

/// Runs in tiny mode with `--json`; the objects on standard output.
fn objects(arguments: &str) -> Vec<Value> {
    let output = output(&format!("{arguments} --seconds 0.05 --rounds 1 --json"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{arguments}: {}\n{errors}",
        output.status
    );
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field]
        .as_str()
        .unwrap_or_else(|| panic!("no text {field} in {object}"))
}

fn number(object: &Value, field: &str) -> f64 {
    object[field]
        .as_f64()
        .unwrap_or_else(|| panic!("no number {field} in {object}"))
}

fn fields(object: &Value) -> BTreeSet<&str> {
    object
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

const IDENTITY: [&str; 6] = [
    "bench",
    "subject",
    "link",
    "testbed",
    "size_bytes",
    "rounds",
];
const LATENCY: [&str; 10] = [
    "p50_ns",
    "p50_least_ns",
    "p50_most_ns",
    "end_to_end_bytes_per_s",
    "percentiles",
    "mean80_ns",
    "p99_ns",
    "p999_ns",
    "cpu_ns_per_message",
    "mbit_per_cpu_s",
];
const THROUGHPUT: [&str; 6] = [
    "messages_per_s",
    "bytes_per_s",
    "least_bytes_per_s",
    "most_bytes_per_s",
    "cpu_ns_per_message",
    "mbit_per_cpu_s",
];

fn check_cpu(object: &Value) {
    let cpu_ns = number(object, "cpu_ns_per_message");
    let expected = number(object, "size_bytes") * 8e3 / cpu_ns;
    let told = number(object, "mbit_per_cpu_s");
    assert!(
        cpu_ns > 0.0 && (told / expected - 1.0).abs() < 0.01 + 0.05 / expected,
        "{object}"
    );
}

fn check_latency(object: &Value) {
    let expected = IDENTITY.into_iter().chain(LATENCY).collect();
    assert_eq!(fields(object), expected, "{object}");
    let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(|field| number(object, field));
    assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{object}");
    assert!(number(object, "mean80_ns") > 0.0, "{object}");
    let [least, most] = ["p50_least_ns", "p50_most_ns"].map(|field| number(object, field));
    assert!(least <= p50 && p50 <= most, "{object}");
    let end_to_end = number(object, "size_bytes") * 1e9 / p50;
    let told = number(object, "end_to_end_bytes_per_s");
    assert!((told / end_to_end - 1.0).abs() < 0.01, "{object}");
    check_cpu(object);
}

fn check_throughput(object: &Value) {
    let expected = IDENTITY.into_iter().chain(THROUGHPUT).collect();
    assert_eq!(fields(object), expected, "{object}");
    let (least, most) = (
        number(object, "least_bytes_per_s"),
        number(object, "most_bytes_per_s"),
    );
    let median = number(object, "bytes_per_s");
    assert!(least <= median && median <= most, "{object}");
    let moved = number(object, "messages_per_s") * number(object, "size_bytes");
    let bytes_per_s = number(object, "bytes_per_s");
    assert!(
        bytes_per_s > 0.0 && (moved / bytes_per_s - 1.0).abs() < 0.01,
        "{object}"
    );
    check_cpu(object);
}

fn subjects(objects: &[Value]) -> Vec<&str> {
    objects
        .iter()
        .map(|object| text(object, "subject"))
        .collect()
}

#[test]
fn efficiency_has_throughput_utilisation_and_what_a_full_core_could_send() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("page.html");
    let _alone = cores();
    let command = "efficiency --quick --seconds 0.1 --on loopback --json --html";
    let output = bench(command)
        .arg(&file)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let rows = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<serde_json::Value> = (rows.lines())
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let which: Vec<(&str, u64)> = (rows.iter())
        .map(|row| {
            let subject = row["subject"].as_str().expect("text");
            (subject, row["size_bytes"].as_u64().expect("a number"))
        })
        .collect();
    let expected = [
        ("dipole", 4096),
        ("bare-tcp-block", 4096),
        ("dipole", 65_536),
        ("bare-tcp-block", 65_536),
    ];
    assert_eq!(which, expected);
    for row in &rows {
        let number = |name: &str| row[name].as_f64().expect("a number");
        for side in ["sender", "receiver"] {
            let used = number(&format!("{side}_utilisation"));
            assert!(used > 0.0 && used <= 1.0, "{row}");
            let efficiency = number("mbit_per_s") / used;
            let told = number(&format!("{side}_mbit_per_cpu_s"));
            assert!((told / efficiency - 1.0).abs() < 1e-6, "{row}");
        }
    }
    let page = std::fs::read_to_string(&file).expect("the page");
    for id in [
        "id=\"throughput\"",
        "id=\"utilisation\"",
        "id=\"efficiency\"",
    ] {
        assert!(page.contains(id), "{id}");
    }
    let version = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"))
        .arg("--version")
        .output();
    let version = String::from_utf8(version.expect("it runs").stdout).expect("text");
    // With the commit, if there is one.
    assert!(page.contains(version.trim()), "{version}");
}

#[test]
fn a_pingpong_prints_one_object_with_latencies_for_dipole_and_each_peer() {
    let objects = objects("pingpong --on loopback");
    objects.iter().for_each(check_latency);
    assert_eq!(
        subjects(&objects),
        [
            "dipole",
            "bare-udp-spin",
            "bare-tcp-spin",
            "bare-udp-gso-crc",
            "bare-shm"
        ]
    );
    let links: Vec<&str> = objects.iter().map(|object| text(object, "link")).collect();
    assert_eq!(
        links,
        [
            "udp/loopback",
            "udp/loopback",
            "tcp/loopback",
            "udp/loopback",
            "shm"
        ]
    );
    for object in &objects {
        assert_eq!(
            (text(object, "bench"), number(object, "size_bytes")),
            ("pingpong", 64.0)
        );
    }
}

#[test]
fn a_blocking_pingpong_is_filed_under_its_own_name() {
    let objects = objects("pingpong --block --on loopback");
    objects.iter().for_each(check_latency);
    assert_eq!(
        subjects(&objects),
        ["dipole", "bare-udp-block", "bare-tcp-block"]
    );
    assert!(
        objects
            .iter()
            .all(|object| text(object, "bench") == "pingpong-block")
    );
}

#[test]
fn unreliable_messages_are_measured_too() {
    let objects = objects("pingpong --unreliable --on loopback --subjects dipole,bare-udp-spin");
    objects.iter().for_each(check_latency);
    assert_eq!(subjects(&objects), ["dipole", "bare-udp-spin"]);
    assert_eq!(text(&objects[0], "bench"), "pingpong-unreliable");
}

#[test]
fn a_stream_prints_throughput_and_no_latency() {
    let objects = objects("stream --on loopback");
    objects.iter().for_each(check_throughput);
    assert_eq!(
        subjects(&objects),
        ["dipole", "bare-tcp-spin", "bare-udp-gso-crc", "bare-shm"]
    );
    assert!(
        objects
            .iter()
            .all(|object| number(object, "size_bytes") == 1_048_576.0)
    );
}

#[test]
fn a_rate_is_measured_for_all_who_can() {
    let objects = objects("rate --on loopback");
    objects.iter().for_each(check_throughput);
    let all = [
        "dipole",
        "bare-udp-gso",
        "bare-tcp-spin",
        "bare-udp-spin",
        "bare-shm",
    ];
    assert_eq!(subjects(&objects), all);
}

#[test]
fn blocking_peers_stream_as_well() {
    let objects = objects("rate --block --on loopback --size 1000");
    objects.iter().for_each(check_throughput);
    assert_eq!(
        subjects(&objects),
        ["dipole", "bare-udp-block", "bare-tcp-block"]
    );
}

#[test]
fn both_ways_at_once_count_both_ways() {
    let objects = objects("bidir --on loopback");
    objects.iter().for_each(check_throughput);
    assert_eq!(
        subjects(&objects),
        ["dipole", "bare-tcp-spin", "bare-udp-gso-crc"]
    );
}

#[test]
fn two_threads_a_side_send_and_receive_at_once() {
    let inside = objects("bidir --threads 2 --on node --size 4096");
    inside.iter().for_each(check_throughput);
    assert_eq!(
        subjects(&inside),
        ["dipole", "bare-unix-block", "bare-pipe-block"]
    );
    let apart = objects("bidir --threads 2 --on loopback --size 4096");
    apart.iter().for_each(check_throughput);
    assert_eq!(subjects(&apart), ["dipole", "bare-tcp-block"]);
    assert!(
        inside
            .iter()
            .chain(&apart)
            .all(|object| text(object, "bench") == "bidir-threads")
    );
}

#[test]
fn within_one_node_dipole_goes_by_shared_memory_beside_sockets_and_pipes() {
    for (arguments, expected) in [
        (
            "pingpong --link shm",
            ["dipole", "bare-shm", "bare-unix-spin", "bare-pipe-spin"],
        ),
        (
            "pingpong --on node --size 1400",
            ["dipole", "bare-shm", "bare-unix-spin", "bare-pipe-spin"],
        ),
    ] {
        let objects = objects(arguments);
        objects.iter().for_each(check_latency);
        assert_eq!(subjects(&objects), expected);
        let links: Vec<&str> = objects.iter().map(|object| text(object, "link")).collect();
        assert_eq!(links, ["shm", "shm", "unix", "pipe"]);
        assert!(
            objects
                .iter()
                .all(|object| text(object, "testbed") == "node")
        );
    }
    let blocking = objects("pingpong --on node --block");
    assert_eq!(
        subjects(&blocking),
        ["dipole", "bare-unix-block", "bare-pipe-block"]
    );
    let by_udp = objects("pingpong --on node --link udp --subjects dipole");
    assert_eq!(text(&by_udp[0], "link"), "udp/node");
}

#[test]
fn operations_on_memory_are_measured_beside_messages_and_copies() {
    for (topic, expected) in [
        (
            "put",
            "put-pingpong: dipole-put dipole; put-rate: dipole-put dipole bare-shm; \
             put-stream: dipole-put dipole bare-shm bare-readv",
        ),
        (
            "get",
            "get-pingpong: dipole-get dipole dipole-get dipole; \
             get-stream: dipole-get dipole bare-shm bare-readv",
        ),
        (
            "atomic",
            "atomic-pingpong: dipole-atomic dipole; atomic-rate: dipole-atomic dipole bare-shm",
        ),
    ] {
        let objects = objects(&format!("{topic} --on node"));
        let mut found = String::new();
        for object in &objects {
            let bench = text(object, "bench");
            match bench.ends_with("pingpong") {
                true => check_latency(object),
                false => check_throughput(object),
            }
            if !found.contains(bench) {
                let first = if found.is_empty() { "" } else { "; " };
                found += &format!("{first}{bench}:");
            }
            found += &format!(" {}", text(object, "subject"));
        }
        assert_eq!(found, expected);
    }
    let apart = objects("put --on loopback");
    assert!(subjects(&apart).contains(&"bare-udp-gso"), "{apart:?}");
}

#[test]
fn short_messages_are_measured_alone_and_beside_long_ones() {
    let objects = objects("mixed --on loopback");
    let rows = objects.iter().map(|object| {
        let is_beside = text(object, "bench") == "mixed";
        // The stream's own speed and how much worse they fare stand where there is a stream.
        for field in ["bytes_per_s", "p99_over_alone"] {
            assert_eq!(object[field].is_number(), is_beside, "{object}");
        }
        assert!(
            number(object, "p50_ns") <= number(object, "p99_ns"),
            "{object}"
        );
        (text(object, "subject"), text(object, "bench"))
    });
    let expected = [
        ("dipole", "mixed-alone"),
        ("dipole", "mixed"),
        ("bare-tcp-block", "mixed-alone"),
        ("bare-tcp-block", "mixed"),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}

#[test]
fn odd_sizes_go_through_every_peer() {
    for size in [5, 1473, 70_001] {
        let all = "bare-tcp-spin,bare-tcp-block,bare-udp-gso,bare-shm,bare-unix-spin,\
                   bare-unix-block,bare-pipe-spin,bare-pipe-block";
        let objects = objects(&format!(
            "stream --on loopback --size {size} --subjects {all}"
        ));
        objects.iter().for_each(check_throughput);
        assert_eq!(objects.len(), 8, "{size}");
    }
}

#[test]
fn loss_is_measured_beside_no_loss_through_the_same_wrapper() {
    let objects = objects("stream --drop 0.01 --on loopback");
    objects.iter().for_each(check_throughput);
    let benches: Vec<&str> = objects.iter().map(|object| text(object, "bench")).collect();
    assert_eq!(benches, ["stream-drop-0", "stream-drop-0.01"]);
}

#[test]
fn the_table_says_where_it_was_measured_compares_with_the_first_and_fits_a_terminal() {
    let peers = "bare-udp-spin,bare-shm";
    let output = output(&format!(
        "pingpong --on loopback --seconds 0.05 --rounds 2 --subjects {peers}"
    ));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let expected = [
        "on loopback",
        "x first",
        "bare-udp-spin",
        "bare-shm",
        "cache line",
        "stolen",
        "Linux",
        "cores",
    ];
    for words in expected {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    let most = text.lines().map(|line| line.chars().count()).max();
    assert!(most <= Some(80), "too wide for a terminal:\n{text}");
    let ratio = text.find("x first");
    assert!(ratio < text.find("p50 us"), "ratios come first:\n{text}");
    assert!(!text.contains("p99.9 us"), "only with --wide:\n{text}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_status_2_and_a_reason() {
    for (arguments, reason) in [
        (
            "stream --subjects bare-udp-spin --on loopback",
            "at most 65507 bytes",
        ),
        ("--size 64", "--size"),
        (
            "pingpong --link shm --on veth",
            "--on veth makes two; use --on node",
        ),
        ("get --size 64", "--size"),
        ("mixed --drop 0.1", "--drop"),
        ("nonsense", "nonsense"),
    ] {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(reason), "{arguments}: {errors}");
    }
}

/// True if network namespaces can be created; prints SKIPPED if not.
fn may_make_namespaces(test: &str) -> bool {
    let why_not = dipole_testbed::Testbed::why_not();
    if let Some(why) = &why_not {
        eprintln!("SKIPPED {test}: {why}");
    }
    why_not.is_none()
}

/// Entries of a folder that begin with a prefix.
fn entries_with(folder: impl AsRef<Path>, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

fn namespaces_of(process: u32) -> Vec<String> {
    entries_with("/run/netns", &format!("dpc{process}-"))
}

fn folders_of(process: u32) -> Vec<String> {
    entries_with(std::env::temp_dir(), &format!("dipole-testbed-{process}-"))
}

/// Starts a long bench on a veth pair and waits until its testbed is made.
fn start_on_veth() -> (Child, BufReader<impl Read>) {
    let mut child = bench("pingpong --on veth --seconds 60 --subjects bare-udp-block --json")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("readable");
    assert!(line.contains("veth"), "{line}");
    assert_eq!(namespaces_of(child.id()).len(), 2, "{line}");
    (child, errors)
}

fn send_signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("not zero");
    kill_process(pid, signal).expect("the process is ours and lives");
}

#[test]
fn a_veth_testbed_is_made_measured_on_and_removed() {
    if !may_make_namespaces("a_veth_testbed_is_made_measured_on_and_removed") {
        return;
    }
    let _alone = cores();
    let child = bench("pingpong --on veth --seconds 0.05 --rounds 1 --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let process = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| line[name].as_str().expect("a word").to_owned();
        (word("subject"), word("link"))
    });
    let lines: Vec<_> = lines.collect();
    for (subject, link) in [
        ("dipole", "bpf/veth"),
        ("dipole", "udp/veth"),
        ("bare-bpf", "bpf/veth"),
        ("bare-udp-spin", "udp/veth"),
    ] {
        let wanted = (subject.to_owned(), link.to_owned());
        assert!(lines.contains(&wanted), "{wanted:?} of {lines:?}");
    }
    assert_eq!(namespaces_of(process), [""; 0]);
    assert_eq!(folders_of(process), [""; 0]);
}

#[test]
fn a_signal_ends_the_bench_its_sides_and_its_namespaces() {
    if !may_make_namespaces("a_signal_ends_the_bench_its_sides_and_its_namespaces") {
        return;
    }
    let _alone = cores();
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (mut child, mut errors) = start_on_veth();
        let process = child.id();
        send_signal(&child, signal);
        assert_eq!(child.wait().expect("it ends").code(), Some(status));
        assert_eq!(namespaces_of(process), [""; 0]);
        assert_eq!(folders_of(process), [""; 0]);
        // The sides share this pipe: it ends only when they have ended.
        errors.read_to_end(&mut Vec::new()).expect("readable");
    }
}

#[test]
fn what_a_killed_bench_left_is_swept_by_the_next() {
    if !may_make_namespaces("what_a_killed_bench_left_is_swept_by_the_next") {
        return;
    }
    let _alone = cores();
    let (mut child, mut errors) = start_on_veth();
    let process = child.id();
    send_signal(&child, Signal::KILL);
    child.wait().expect("it ends");
    errors.read_to_end(&mut Vec::new()).expect("readable");
    assert_eq!(
        namespaces_of(process).len(),
        2,
        "a killed program cannot clean up"
    );
    let next = bench("pingpong --on loopback --seconds 0.05 --rounds 1 --subjects bare-shm")
        .output()
        .expect("the program starts");
    assert!(next.status.success());
    assert_eq!(namespaces_of(process), [""; 0]);
    assert_eq!(folders_of(process), [""; 0]);
}
