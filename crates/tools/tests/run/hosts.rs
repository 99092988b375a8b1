//! Jobs on hosts that are reached through a remote shell.

use super::*;

#[test]
fn two_hosts_reached_through_a_remote_shell_share_the_ranks_and_the_hosts_file() {
    let folder = tempfile::tempdir().unwrap();
    let rsh = script(folder.path(), "echo Welcome to $1; cd /; exec sh -c \"$2\"");
    let text = "1 127.0.0.1 slots=2 ssh=first\n5 127.0.0.1 port=7500 slots=2 ssh=second\n";
    let hosts = hosts_file(folder.path(), text);
    let output = run(&[
        "-n",
        "3",
        "--tag",
        "--rsh",
        rsh.to_str().unwrap(),
        "--hosts",
        &hosts,
        "sh",
        "-c",
        "echo $DIPOLE_NID $DIPOLE_RANKS $(sort $DIPOLE_HOSTS | tail -n 1)",
    ]);
    assert_eq!(status(&output), 0, "{}", err(&output));
    let last = "5 127.0.0.1 port=7500 slots=2 ssh=second";
    let expected = [
        format!("[0] 1 1x2,5 {last}"),
        format!("[1] 1 1x2,5 {last}"),
        format!("[2] 5 1x2,5 {last}"),
    ];
    assert_eq!(lines(&output), expected.into());
}

#[test]
fn hosts_that_fail_or_hang_are_skipped_and_their_ranks_go_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("hanging");
    let rsh = script(
        folder.path(),
        &format!(
            "case $1 in\nrefuses) echo no route >&2; exit 255;;\n\
             hangs) sleep 1000 & echo $$ $! >{}; wait;;\nesac\nexec sh -c \"$2\"",
            pids.display()
        ),
    );
    let text = "1 127.0.0.1 ssh=refuses\n2 127.0.0.1 port=2 ssh=hangs slots=2\n\
                3 127.0.0.1 port=3 ssh=works\n4 127.0.0.1 port=4 ssh=works\n";
    let hosts = hosts_file(folder.path(), text);
    let started = Instant::now();
    let output = run(&[
        "-n",
        "3",
        "--oversubscribe",
        "--start-timeout",
        "3",
        "--rsh",
        rsh.to_str().unwrap(),
        "--hosts",
        &hosts,
        "sh",
        "-c",
        "echo $DIPOLE_RANK $DIPOLE_NID",
    ]);
    assert_eq!(status(&output), 0, "{}", err(&output));
    let expected = ["0 3", "1 3", "2 4"].map(str::to_owned);
    assert_eq!(lines(&output), expected.into());
    let said = err(&output);
    for wanted in [
        "node 1 (127.0.0.1) skipped: `dipole` did not start there",
        "node 1 (127.0.0.1): no route",
        "node 2 (127.0.0.1) skipped: no answer within 3 s",
        "waiting for node 2 (127.0.0.1) (no answer for ",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(started.elapsed() < PATIENCE);
    for process in std::fs::read_to_string(pids).unwrap().split_whitespace() {
        assert_gone(process.parse().unwrap());
    }
}

#[test]
fn a_launcher_killed_while_a_remote_shell_hangs_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    // A pipe as the event: opening it waits for the script.
    rustix::fs::mkfifoat(rustix::fs::CWD, &pids, rustix::fs::Mode::RWXU).unwrap();
    let rsh = script(
        folder.path(),
        &format!("sleep 1000 & echo $$ $! >{}; wait", pids.display()),
    );
    let hosts = hosts_file(folder.path(), "1 127.0.0.1\n");
    let job = Job::start(
        dipole()
            .args(["run", "-n", "1", "--hosts", &hosts, "--rsh"])
            .arg(rsh)
            .arg("true"),
    );
    let hanging = std::fs::read_to_string(pids).unwrap();
    job.signal(Signal::KILL);
    for process in hanging.split_whitespace() {
        assert_gone(process.parse().unwrap());
    }
}

#[test]
fn it_is_an_error_if_no_host_answers() {
    let folder = tempfile::tempdir().unwrap();
    let rsh = script(folder.path(), "exit 255");
    let hosts = hosts_file(folder.path(), "1 127.0.0.1\n2 127.0.0.2\n");
    let output = run(&[
        "-n",
        "2",
        "--hosts",
        &hosts,
        "--rsh",
        rsh.to_str().unwrap(),
        "true",
    ]);
    assert_eq!(status(&output), 1);
    assert!(
        err(&output).contains("none of the 2 hosts accepted the job"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_broken_hosts_file_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = hosts_file(folder.path(), "1 127.0.0.1\n2 127.0.0.300\n");
    let output = run(&["-n", "2", "--hosts", &hosts, "true"]);
    assert_eq!(status(&output), 1);
    let wanted = format!("{hosts}:2: found `127.0.0.300`, expected an IPv4 or IPv6 address");
    assert!(err(&output).contains(&wanted), "{}", err(&output));
    let output = run(&["-n", "2", "--hosts", "/nowhere/hosts", "true"]);
    assert_eq!(status(&output), 1);
    assert!(err(&output).contains("cannot read the hosts file /nowhere/hosts"));
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [
        &["-n", "0", "true"][..],
        &["-n", "65537", "true"],
        &["true"],
        &["-n", "1"],
    ] {
        assert_eq!(status(&run(arguments)), 2, "{arguments:?}");
    }
}

#[test]
fn the_cluster_key_reaches_only_the_ranks_on_all_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let made = dipole().args(["key", "new"]).arg(&key).output().unwrap();
    assert_eq!(status(&made), 0, "{}", err(&made));
    let fingerprint = out(&made).trim().to_owned();
    let digits = std::fs::read_to_string(&key).unwrap();
    let commands = folder.path().join("commands");
    let rsh = script(
        folder.path(),
        &format!(
            "echo \"$*\" >>{0}; env >>{0}; unset DIPOLE_KEY; exec sh -c \"$2\"",
            commands.display()
        ),
    );
    let text = "1 127.0.0.1 ssh=first\n5 127.0.0.1 port=7500 ssh=second\n";
    let hosts = hosts_file(folder.path(), text);
    let look = format!(
        "echo $DIPOLE_NID $({} key show $DIPOLE_KEY) $(stat -L -c %a $DIPOLE_KEY) \
         $(env | grep -c {})",
        env!("CARGO_BIN_EXE_dipole"),
        digits.trim()
    );
    // The command line of the shell contains the key only because this test needs it.
    let rank = folder.path().join("look");
    std::fs::write(&rank, look).unwrap();
    let arguments = [
        "run",
        "-n",
        "2",
        "--rsh",
        rsh.to_str().unwrap(),
        "--hosts",
        &hosts,
    ];
    let output = dipole()
        .args(arguments)
        .arg("sh")
        .arg(&rank)
        .env("DIPOLE_KEY", &key)
        .output()
        .unwrap();
    assert_eq!(status(&output), 0, "{}", err(&output));
    let expected = [1, 5].map(|node| format!("{node} {fingerprint} 600 0"));
    assert_eq!(lines(&output), expected.into());
    let seen = std::fs::read_to_string(&commands).unwrap();
    assert!(seen.contains("guard") && !seen.contains(digits.trim()));

    // Other users could read it, so nothing starts.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = dipole()
        .args(["run", "-n", "1", "true"])
        .env("DIPOLE_KEY", &key)
        .output()
        .unwrap();
    assert_eq!(status(&output), 1);
    assert!(err(&output).contains("DIPOLE_KEY") && err(&output).contains("chmod 600"));
}
