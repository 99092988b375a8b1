//! libfabric's own programs with the provider of this build: `fi_info` lists it, and `fi_pingpong` runs over it,
//! through shared memory and over UDP.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dipole_testbed::c_programs::{Finished, Process, built_library, clean_command, compile};

/// A program that runs longer than this hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A folder with the provider under the name that libfabric looks for, and a registry.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// `None`, with a message, if libfabric's programs are not installed.
    fn new() -> Option<Place> {
        if Command::new("fi_info").arg("--version").output().is_err() {
            let required = std::env::var_os("DIPOLE_REQUIRE_LAUNCHERS");
            assert!(
                required.is_none_or(|value| value != "1"),
                "DIPOLE_REQUIRE_LAUNCHERS is set but fi_info is not installed (Debian: libfabric-bin)"
            );
            eprintln!("SKIPPED: fi_info is not installed (Debian: libfabric-bin)");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("libdipole-fi.so");
        std::os::unix::fs::symlink(built_library("libdipole_fi.so"), link).expect("a link");
        Some(Place { folder })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = clean_command(program, &["DIPOLE_", "FI_"]);
        command
            .args(arguments)
            .env("FI_PROVIDER_PATH", self.folder.path())
            .env("DIPOLE_RUNTIME_DIR", self.folder.path().join("run"))
            .stdin(Stdio::null());
        command
    }
}

/// Runs a program, which must end in time.
fn run(command: &mut Command) -> Finished {
    let done = Process::start(command).wait(LIMIT);
    assert!(!done.was_killed, "{command:?} hangs: {done:?}");
    done
}

#[test]
fn the_provider_is_listed_with_the_capabilities_that_mpi_requests() {
    let Some(place) = Place::new() else { return };
    let caps = "FI_TAGGED|FI_MSG|FI_RMA|FI_ATOMIC|FI_DIRECTED_RECV|FI_MULTI_RECV|FI_LOCAL_COMM|FI_REMOTE_COMM";
    let requested = ["-v", "-p", "dipole", "-t", "FI_EP_RDM", "-c", caps];
    let listed = run(&mut place.command("fi_info", &requested));
    let text = &listed.out;
    assert!(listed.status.success(), "{listed:?}");
    for property in [
        "prov_name: dipole",
        "FI_ORDER_SAS",
        "FI_THREAD_SAFE",
        "FI_MR_PROV_KEY",
        "cq_data_size: 8",
    ] {
        assert!(text.contains(property), "{property} in {text}");
    }
    let requested = ["-p", "dipole", "-t", "FI_EP_MSG"];
    let refused = run(&mut place.command("fi_info", &requested));
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn an_invalid_dipole_log_is_reported_once_and_nothing_is_logged_without_one() {
    let Some(place) = Place::new() else { return };
    let log = |setting| {
        let mut command = place.command("fi_info", &["-p", "dipole"]);
        command.env("DIPOLE_LOG", setting);
        let listed = run(&mut command);
        assert!(listed.status.success(), "{listed:?}");
        listed.err
    };
    assert_eq!(log(""), "");
    let text = log("foo,,=");
    let wrong = "libdipole-fi: DIPOLE_LOG: found `foo,,=`";
    assert_eq!(text.matches(wrong).count(), 1, "{text}");
}

#[test]
fn pingpong_runs_over_every_link() {
    let Some(place) = Place::new() else { return };
    for (mode, link) in [("tagged", "auto"), ("msg", "auto"), ("tagged", "udp")] {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port().to_string();
        // The option -c compares contents.
        let common = ["-p", "dipole", "-e", "rdm", "-m", mode, "-I", "20", "-c"];
        let side = |more: &[&str]| {
            let arguments = [&common, more].concat();
            let mut command = place.command("fi_pingpong", &arguments);
            command.env("DIPOLE_LINK", link);
            command
        };
        let server = Process::start(&mut side(&["-B", &port]));
        // The server does not report when it listens; a client that is too early is refused at once.
        let until = Instant::now() + LIMIT;
        let client = loop {
            sleep(Duration::from_millis(100));
            let client = run(&mut side(&["-P", &port, "127.0.0.1"]));
            if client.status.success() || Instant::now() > until {
                break client;
            }
        };
        let server = server.wait(LIMIT);
        assert!(client.status.success(), "{mode} {link}: {client:?}");
        assert!(server.status.success(), "{mode} {link}: {server:?}");
        let text = &client.out;
        let longest = text.lines().find(|line| line.starts_with("1m "));
        assert!(longest.is_some(), "{mode} {link}: {text}");
    }
}

/// Compiles a program of `tests/c` that uses only libfabric; `None`, with a message, if the headers of
/// libfabric are not installed.
fn compile_test(place: &Place, name: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/rdma/fi_atomic.h").exists() {
        let required = std::env::var_os("DIPOLE_REQUIRE_LAUNCHERS");
        assert!(
            required.is_none_or(|value| value != "1"),
            "the headers of libfabric are missing (Debian: libfabric-dev)"
        );
        eprintln!("SKIPPED: the headers of libfabric are missing (Debian: libfabric-dev)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = place.folder.path().join(name);
    let options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"];
    compile("cc", &source, &program, &options, &["-lfabric"]);
    Some(program)
}

/// Links, also with packet loss.
const LINKS: [(&str, &str); 3] = [("auto", ""), ("udp", ""), ("udp", "drop=0.01,seed=3")];
/// Links with resources that are short, for programs that then repeat calls.
const SHORTAGES: [(&str, &str); 2] = [
    ("auto", "credit=0.3,rings=0.3,posts=0.3,seed=4"),
    ("udp", "credit=0.3,frames=0.3,posts=0.3,link=0.3,seed=5"),
];

/// Runs a program of `tests/c` over links with faults.
fn check_program(name: &str, links: &[(&str, &str)]) {
    let Some(place) = Place::new() else { return };
    let Some(program) = compile_test(&place, name) else {
        return;
    };
    let program = program.to_str().expect("a path");
    for (link, fault) in links {
        let mut command = place.command(program, &[]);
        command.env("DIPOLE_LINK", link);
        if !fault.is_empty() {
            command.env("DIPOLE_FAULT", fault);
        }
        let done = run(&mut command);
        let success = format!("{name}: right");
        assert!(done.out.contains(&success), "{link} {fault}: {done:?}");
    }
}

#[test]
fn writes_with_data_and_atomic_operations_change_remote_memory() {
    check_program("remote", &LINKS);
    check_program("remote", &SHORTAGES);
}

#[test]
fn poll_and_epoll_wake_up_only_when_something_arrives() {
    check_program("descriptors", &LINKS);
}

#[test]
fn invalid_operations_fail_with_the_right_error() {
    check_program("failures", &LINKS);
}

#[test]
fn unsupported_calls_and_hints_are_logged_once() {
    let Some(place) = Place::new() else { return };
    let Some(program) = compile_test(&place, "failures") else {
        return;
    };
    let mut command = place.command(program.to_str().expect("a path"), &[]);
    command.env("DIPOLE_LOG", "info");
    let done = run(&mut command);
    let text = &done.err;
    assert!(done.status.success(), "{done:?}");
    // Both processes call `scalable_ep`.
    let message = "a program called scalable_ep, which this provider does not offer";
    assert_eq!(text.matches(message).count(), 2, "{text}");
    assert!(
        text.contains("not offered because a program requested automatic progress"),
        "{text}"
    );
}

#[test]
fn a_send_with_delivery_complete_completes_when_a_receive_has_the_message() {
    let Some(place) = Place::new() else { return };
    let Some(program) = compile_test(&place, "delivery") else {
        return;
    };
    let program = program.to_str().expect("a plain path");
    for link in ["auto", "udp"] {
        let mut command = place.command(program, &[]);
        let done = run(command.env("DIPOLE_LINK", link));
        assert!(done.status.success(), "{link}: {done:?}");
    }
}
