//! libfabric's own programs with the provider of this build: `fi_info` lists it, and `fi_pingpong` runs over it,
//! through shared memory and over UDP.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dipole_testbed::c_programs::compile;

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
        std::os::unix::fs::symlink(library(), link).expect("a link");
        Some(Place { folder })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("FI_PROVIDER_PATH", self.folder.path())
            .env("DIPOLE_RUNTIME_DIR", self.folder.path().join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in ["DIPOLE_NID", "DIPOLE_HOSTS", "DIPOLE_LINK", "FI_PROVIDER"] {
            command.env_remove(name);
        }
        command
    }
}

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let deps = test.parent().expect("it lies in deps").to_owned();
    let here = deps.join("libdipole_fi.so");
    match here.exists() {
        true => here,
        false => deps
            .parent()
            .unwrap_or(Path::new(""))
            .join("libdipole_fi.so"),
    }
}

/// The output of a program that must end in time.
fn ended(mut child: Child) -> Output {
    let until = Instant::now() + LIMIT;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > until {
            child.kill().expect("a child can be killed");
            let output = child.wait_with_output().expect("what it said");
            panic!("it hangs: {output:?}");
        }
        sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("what it said")
}

#[test]
fn the_provider_is_listed_with_the_capabilities_that_mpi_requests() {
    let Some(place) = Place::new() else { return };
    let caps = "FI_TAGGED|FI_MSG|FI_RMA|FI_ATOMIC|FI_DIRECTED_RECV|FI_MULTI_RECV|FI_LOCAL_COMM|FI_REMOTE_COMM";
    let asked = ["-v", "-p", "dipole", "-t", "FI_EP_RDM", "-c", caps];
    let listed = ended(place.command("fi_info", &asked).spawn().expect("it starts"));
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success(), "{listed:?}");
    for said in [
        "prov_name: dipole",
        "FI_ORDER_SAS",
        "FI_THREAD_SAFE",
        "FI_MR_PROV_KEY",
        "cq_data_size: 8",
    ] {
        assert!(text.contains(said), "{said} in {text}");
    }
    let asked = ["-p", "dipole", "-t", "FI_EP_MSG"];
    let refused = ended(place.command("fi_info", &asked).spawn().expect("it starts"));
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn an_invalid_dipole_log_is_reported_once_and_nothing_is_logged_without_one() {
    let Some(place) = Place::new() else { return };
    let said = |setting| {
        let mut command = place.command("fi_info", &["-p", "dipole"]);
        command.env("DIPOLE_LOG", setting);
        let listed = ended(command.spawn().expect("it starts"));
        assert!(listed.status.success(), "{listed:?}");
        String::from_utf8_lossy(&listed.stderr).into_owned()
    };
    assert_eq!(said(""), "");
    let text = said("foo,,=");
    let wrong = "libdipole-fi: DIPOLE_LOG: found `foo,,=`";
    assert_eq!(text.matches(wrong).count(), 1, "{text}");
}

#[test]
fn pingpong_runs_over_every_link() {
    let Some(place) = Place::new() else { return };
    for (mode, link) in [("tagged", "auto"), ("msg", "auto"), ("tagged", "udp")] {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port().to_string();
        // Contents are compared (-c).
        let common = ["-p", "dipole", "-e", "rdm", "-m", mode, "-I", "20", "-c"];
        let side = |more: &[&str]| {
            let arguments = [&common, more].concat();
            let mut command = place.command("fi_pingpong", &arguments);
            command.env("DIPOLE_LINK", link).spawn().expect("it starts")
        };
        let server = side(&["-B", &port]);
        // The server does not report when it listens; a client that is too early is refused at once.
        let until = Instant::now() + LIMIT;
        let client = loop {
            sleep(Duration::from_millis(100));
            let client = ended(side(&["-P", &port, "127.0.0.1"]));
            if client.status.success() || Instant::now() > until {
                break client;
            }
        };
        let server = ended(server);
        assert!(client.status.success(), "{mode} {link}: {client:?}");
        assert!(server.status.success(), "{mode} {link}: {server:?}");
        let text = String::from_utf8_lossy(&client.stdout);
        let longest = text.lines().find(|line| line.starts_with("1m "));
        assert!(longest.is_some(), "{mode} {link}: {text}");
    }
}

/// Compiles a program of `tests/c` that uses only libfabric; `None`, with a message, if the headers of
/// libfabric are not installed.
fn compiled(place: &Place, name: &str) -> Option<PathBuf> {
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

/// Runs a program of `tests/c` over every link, also with packet loss.
fn check_program(name: &str) {
    let Some(place) = Place::new() else { return };
    let Some(program) = compiled(&place, name) else {
        return;
    };
    let program = program.to_str().expect("a path");
    for (link, fault) in [("auto", ""), ("udp", ""), ("udp", "drop=0.01,seed=3")] {
        let mut command = place.command(program, &[]);
        command.env("DIPOLE_LINK", link);
        if !fault.is_empty() {
            command.env("DIPOLE_FAULT", fault);
        }
        let done = ended(command.spawn().expect("it starts"));
        let text = String::from_utf8_lossy(&done.stdout);
        let said = format!("{name}: right");
        assert!(text.contains(&said), "{link} {fault}: {done:?}");
    }
}

#[test]
fn writes_with_data_and_atomic_operations_change_remote_memory() {
    check_program("remote");
}

#[test]
fn poll_and_epoll_wake_up_only_when_something_arrives() {
    check_program("descriptors");
}

#[test]
fn invalid_operations_fail_with_the_right_error() {
    check_program("failures");
}

#[test]
fn unsupported_calls_and_hints_are_logged_once() {
    let Some(place) = Place::new() else { return };
    let Some(program) = compiled(&place, "failures") else {
        return;
    };
    let mut command = place.command(program.to_str().expect("a path"), &[]);
    command.env("DIPOLE_LOG", "info");
    let done = ended(command.spawn().expect("it starts"));
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{done:?}");
    // Both processes call it.
    let said = "a program called scalable_ep, which this provider does not offer";
    assert_eq!(text.matches(said).count(), 2, "{text}");
    assert!(
        text.contains("not offered because a program requested automatic progress"),
        "{text}"
    );
}
