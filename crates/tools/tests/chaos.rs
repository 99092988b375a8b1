//! `dipole chaos`: real programs in namespaces under faults. The tests that start a cluster need
//! root, iproute2 and /dev/net/tun, and print SKIPPED without them.

#![allow(missing_docs, reason = "tests")]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use dipole_testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process};

const DIPOLE: &str = env!("CARGO_BIN_EXE_dipole");

fn chaos(options: &str) -> Command {
    let mut command = dipole_testbed::isolated_command(DIPOLE);
    command.arg("chaos").args(options.split_whitespace());
    command.stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("it starts")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// True, with a message, if clusters cannot be created here.
fn skipped() -> bool {
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    let why = tun.err().map(|cause| format!("/dev/net/tun: {cause}"));
    let why = Testbed::why_not().or(why);
    if let Some(why) = &why {
        eprintln!("SKIPPED: {why}");
    }
    why.is_some()
}

/// The lines of a report in JSON.
fn events(report: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(report).expect("a report");
    let lines = text.lines().map(serde_json::from_str);
    lines.map(|line| line.expect("JSON")).collect()
}

#[test]
fn the_same_seed_prints_the_same_plan_and_needs_no_privileges() {
    let options =
        "--plan -n 4 --cut 3x200ms --unplug 1s --pause 2x1s --kill 2 --clock 1h --loss 1%";
    let plan = |seed: u32| {
        let output = run(&mut chaos(&format!("{options} --seed {seed}")));
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output)
    };
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
    assert_eq!(plan(7).matches(" cut for 200 ms").count(), 3, "{}", plan(7));
    assert!(plan(7).contains("packets: 1 % lost"), "{}", plan(7));
}

#[test]
fn wrong_usage_has_status_2_and_a_remedy() {
    for (options, remedy) in [
        ("", "give a program after --"),
        ("--loss 5 -- true", "0.01 or 1%"),
        ("--cut 5 -- true", "200ms"),
        ("--cut 11s -- true", "raise --for"),
        ("--kill 3 -- true", "more ranks (-n)"),
        ("--delay 5ms -- true", "10%:5ms"),
        ("--nodes 0 -- true", "1..=250"),
        (
            "--on-loss restart -- mpirun -n 2 true",
            "starts its own ranks",
        ),
    ] {
        let output = run(&mut chaos(options));
        assert_eq!(output.status.code(), Some(2), "{options}: {}", err(&output));
        assert!(err(&output).contains(remedy), "{options}: {}", err(&output));
    }
}

#[test]
fn missing_programs_and_files_are_named() {
    if skipped() {
        return;
    }
    let output = run(chaos("-- true").env("PATH", "/nowhere"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("install iproute2"),
        "{}",
        err(&output)
    );
    let output = run(&mut chaos("--report /nowhere/report -- true"));
    assert_eq!(output.status.code(), Some(1));
    let words = "dipole chaos: cannot write /nowhere/report";
    assert!(err(&output).contains(words), "{}", err(&output));
    let output = run(&mut chaos("-- /nowhere/program"));
    assert_eq!(output.status.code(), Some(127), "{}", err(&output));
}

#[test]
fn a_program_survives_and_its_output_and_status_are_its_own() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let report = folder.path().join("report");
    let ring = dipole_testbed::built::example("ring");
    let options = "--json chaos -n 4 --networks 2 --seed 7 --for 1s --loss 2% --reorder 2% \
                   --duplicate 1% --corrupt 1% --delay 5%:2ms --cut 2x100ms --unplug 100ms \
                   --pause 2x100ms --report";
    // The ring ends before the last fault, and rank 3 fails afterwards.
    let script = "\"$0\" && sleep 1.5 && exit $DIPOLE_RANK";
    let mut command = dipole_testbed::isolated_command(DIPOLE);
    command.args(options.split_whitespace()).arg(&report);
    command.args(["--", "sh", "-c", script]).arg(ring);
    let output = run(command.stdin(Stdio::null()));
    let status = output.status.code();
    assert!(matches!(status, Some(1..=3)), "{status:?} {}", err(&output));
    assert_eq!(out(&output).lines().count(), 1, "{}", out(&output));
    assert!(
        out(&output).contains("every token right"),
        "{}",
        out(&output)
    );
    let events = events(&report);
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!(events[0]["event"], "plan");
    assert_eq!(events[0]["seed"], 7);
    assert_eq!([count("cut"), count("unplug"), count("pause")], [2, 1, 2]);
    assert_eq!([count("calm"), count("started")], [1, 4]);
    let last = events.last().expect("the end");
    assert_eq!(last["target"], "program");
    let noticed = last["noticed"].as_array().expect("counters");
    assert!(noticed.iter().any(|one| one[0] == "packets lost"), "{last}");
}

#[test]
fn a_killed_rank_is_in_the_timeline_and_dipole_run_decides_what_follows() {
    if skipped() {
        return;
    }
    let options = "-n 2 --seed 3 --kill 1 --for 300ms";
    let output = run(chaos(options).args(["--", "sleep", "600"]));
    assert_eq!(output.status.code(), Some(137), "{}", err(&output));
    assert!(err(&output).contains("kill process "), "{}", err(&output));
    let script = "test \"$DIPOLE_RESTARTS\" && echo restarted; sleep 3";
    let mut restarted = chaos(options);
    restarted.args(["--on-loss", "restart", "--", "sh", "-c", script]);
    let output = run(&mut restarted);
    assert!(out(&output).contains("restarted"), "{}", err(&output));
}

#[test]
fn nodes_have_their_own_clocks() {
    if skipped() {
        return;
    }
    let script = "cut -d. -f1 /proc/uptime";
    let output = run(chaos("--seed 7 --clock 24h --").args(["sh", "-c", script]));
    if err(&output).contains("--clock is not possible here") {
        eprintln!("SKIPPED: {}", err(&output));
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let times: Vec<u64> = (out(&output).lines().map(str::parse))
        .map(|time| time.expect("a number"))
        .collect();
    let ahead = err(&output);
    let ahead = ahead.split("node 2: clock ").nth(1).expect("in the plan");
    let ahead: u64 = ahead
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .expect("seconds");
    let found = times[0].abs_diff(times[1]);
    assert!(found.abs_diff(ahead) < 30, "{times:?}, {ahead} s ahead");
}

/// Starts a program that prints a line and then waits; returns when it has printed it.
fn waiting(command: &mut Command) -> (Child, BufReader<ChildStdout>) {
    let script = "echo ready; sleep 600";
    command
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    (child, lines)
}

#[test]
fn nothing_is_left_after_a_kill_of_chaos_itself() {
    if skipped() {
        return;
    }
    let (mut child, mut lines) = waiting(&mut chaos("-n 3"));
    kill_process(Pid::from_child(&child), Signal::KILL).expect("it lives");
    child.wait().expect("ours");
    // The pipe ends when the last process that holds it has ended.
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("text");
    assert_eq!(rest.replace("ready\n", ""), "");
}

#[test]
fn a_signal_ends_the_program_and_the_timeline_is_printed() {
    if skipped() {
        return;
    }
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (child, _lines) = waiting(&mut chaos("-n 1 --pause 5s --seed 1"));
        kill_process(Pid::from_child(&child), signal).expect("it lives");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(status), "{}", err(&output));
        let words = format!("terminated by signal {}", signal.as_raw());
        assert!(err(&output).contains(&words), "{}", err(&output));
    }
    let output = run(chaos("--timeout 300ms -- sleep 600").stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(124), "{}", err(&output));
}

/// Runs a shell command that enters a user namespace; `None` if the kernel refuses those.
fn in_user_namespace(script: &str) -> Option<Output> {
    let mut unshare = dipole_testbed::isolated_command("unshare");
    unshare.args(["--user", "--map-root-user"]);
    let possible = run(unshare.arg("true"));
    if !possible.status.success() {
        eprintln!("SKIPPED: no user namespaces: {}", err(&possible));
        return None;
    }
    let mut command = dipole_testbed::isolated_command("sh");
    command.args(["-c", script, DIPOLE]).stdin(Stdio::null());
    Some(run(&mut command))
}

#[test]
fn a_user_without_privileges_gets_a_user_namespace_or_a_reason() {
    if skipped() {
        return;
    }
    let options = "chaos -n 2 --seed 1 --for 300ms --cut 100ms -- sh -c 'echo rank; sleep 0.5'";
    let script = format!("exec unshare --user --map-root-user \"$0\" {options}");
    let Some(output) = in_user_namespace(&script) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output), "rank\nrank\n");
    // An ordinary user may not open the device on this machine, but most machines allow it.
    let folder = tempfile::tempdir().expect("a directory");
    let (device, program) = (folder.path().join("tun"), folder.path().join("dipole"));
    std::fs::copy(DIPOLE, &program).expect("a copy that all users can read");
    let script = format!(
        "chmod 755 {place} && mknod {device} c 10 200 && chmod 666 {device} && \
         mount --bind {device} /dev/net/tun && \
         exec setpriv --reuid 12345 --regid 12345 --clear-groups {program} {options}",
        place = folder.path().display(),
        device = device.display(),
        program = program.display()
    );
    let mut command = dipole_testbed::isolated_command("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .env("TMPDIR", "/tmp");
    let output = run(command.stdin(Stdio::null()).current_dir("/"));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output), "rank\nrank\n");
    let script = script
        .replace("chmod 666", "chmod 600")
        .replace("mknod", "true mknod");
    let mut command = dipole_testbed::isolated_command("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let output = run(command.stdin(Stdio::null()).current_dir("/"));
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(
        err(&output).contains("chmod 666 /dev/net/tun"),
        "{}",
        err(&output)
    );
}

#[test]
fn mpirun_starts_its_ranks_on_all_nodes() {
    if skipped() {
        return;
    }
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("SKIPPED: mpirun is not installed (openmpi-bin)");
        return;
    }
    let script = "ip -brief -4 address show dev net0; sleep 1";
    let options = "--seed 1 --for 900ms --pause 100ms -- mpirun -n 4 sh -c";
    let output = run(chaos(options).arg(script));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    for address in ["10.0.0.1/24", "10.0.0.2/24"] {
        assert_eq!(out(&output).matches(address).count(), 2, "{}", out(&output));
    }
    assert!(
        err(&output).contains("pause for 100 ms"),
        "{}",
        err(&output)
    );
}
