//! C programs, compiled with the header and run as separate processes.

mod harness;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::Bench;
use rustix::process::Pid;

/// The last line of a program's output.
fn last(output: &str) -> &str {
    output.lines().last().unwrap_or("")
}

#[test]
fn hello_prints_its_message() {
    assert_eq!(Bench::new().example("hello", &[]), "first light\n");
}

#[test]
fn two_processes_exchange_messages_over_every_link() {
    let bench = Bench::new();
    let program = bench.compile("pingpong");
    for link in ["auto", "udp", "shm"] {
        let output = harness::run(
            bench
                .command(&program)
                .env("DIPOLE_LINK", link)
                .args(["2000", "64"]),
        );
        assert!(output.starts_with("2000 rounds of 64 bytes"), "{output}");
        println!("{link}: {output}");
    }
}

#[test]
fn ranks_write_and_read_one_tcp_stream() {
    let bench = Bench::new();
    for ranks in ["1", "2", "4"] {
        let output = bench.example("stream", &["500", ranks]);
        let wanted = format!("1000003 bytes there and back by {ranks} ranks\n");
        assert_eq!(output, wanted);
    }
}

#[test]
fn ranks_serve_a_tcp_client_over_two_stripes() {
    let bench = Bench::new();
    for ranks in ["1", "2", "4"] {
        let output = bench.example("stream_server", &["600", ranks]);
        let wanted = format!("1000003 bytes served in 2 stripes by {ranks} ranks\n");
        assert_eq!(output, wanted);
    }
}

#[test]
fn an_epoll_server_serves_many_clients_at_a_thousand_endpoints() {
    let bench = Bench::new();
    let server = bench.compile("epoll_server");
    let client = bench.compile("epoll_client");
    let mut server = bench.spawn(&server, &["1000", "1000", "8"]);
    server.wait_for("ready");
    let clients: Vec<_> = (1..=8)
        .map(|own| bench.spawn(&client, &[&own.to_string(), "1000", "1000", "50"]))
        .collect();
    for client in clients {
        assert_eq!(client.finish(), "50 rounds\n");
    }
    assert_eq!(server.finish(), "echoed 400 messages at 1000 endpoints\n");
}

#[test]
fn an_echo_server_is_not_delayed_by_clients_that_are_gone() {
    for link in ["shm", "udp"] {
        let bench = Bench::new();
        let (server, client) = (bench.compile("echo_server"), bench.compile("echo_client"));
        let command = |program: &std::path::Path, arguments: &[&str]| {
            let mut command = bench.command(program);
            command.env("DIPOLE_LINK", link).args(arguments);
            command
        };
        let mut server = bench.start(&mut command(&server, &["7"]));
        server.wait_for("ready");
        for _ in 0..4 {
            let gone: Vec<_> = (0..4)
                .map(|_| bench.start(&mut command(&client, &["7", "gone"])))
                .collect();
            // The client gives up after 10 s; connecting to one that is gone would take 30 s.
            assert_eq!(
                harness::run(&mut command(&client, &["7", "hello"])),
                "hello\n"
            );
            for client in gone {
                assert_eq!(client.finish(), "");
            }
        }
        assert_eq!(harness::run(&mut command(&client, &["7", "end"])), "");
        server.finish();
    }
}

#[test]
fn a_c_program_logs_only_what_dipole_log_selects() {
    let bench = Bench::new();
    let program = bench.compile("log");
    let output = |setting: Option<&str>| {
        let mut command = bench.command(&program);
        command.envs(setting.map(|it| ("DIPOLE_LOG", it)));
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(output(None), "");
    let text = output(Some("warn"));
    assert!(text.contains("WARN") && text.contains("1:7"), "{text}");
    assert!(!text.contains('\x1b'), "no colour in a pipe: {text:?}");
    let text = output(Some("foo,,="));
    assert!(
        text.starts_with("libdipole: DIPOLE_LOG: found `foo,,=`"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Number of sockets and of shared memory mappings of a process.
fn resources(pid: Pid) -> (usize, usize) {
    let folder = format!("/proc/{}", pid.as_raw_nonzero());
    let descriptors = std::fs::read_dir(format!("{folder}/fd")).expect("it runs");
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    // Duplicates refer to one socket.
    let sockets: BTreeSet<PathBuf> = links
        .filter(|it| it.to_string_lossy().starts_with("socket:"))
        .collect();
    let maps = std::fs::read_to_string(format!("{folder}/maps")).expect("it runs");
    let is_shared = |line: &&str| line.contains("memfd:dipole");
    (sockets.len(), maps.lines().filter(is_shared).count())
}

#[test]
fn an_echo_server_serves_a_thousand_clients_some_of_which_are_killed() {
    const PROCESSES: u32 = 20;
    // Some are killed after their own first echoes, others after the first echoes of all.
    let dies_early = |number: u32| number % 6 == 1;
    let dies_late = |number: u32| number % 6 == 4;
    // The UDP link keeps sockets connected to the eight peers it has recently sent most to.
    for (link, spare) in [("shm", 0), ("udp", 8)] {
        let bench = Bench::new();
        let (server, client) = (bench.compile("echo_server"), bench.compile("echo_clients"));
        let command = |program: &Path, arguments: &[&str]| {
            let mut command = bench.command(program);
            command.env("DIPOLE_LINK", link).args(arguments);
            command.stdin(Stdio::piped());
            command
        };
        let clients = |number: u32| {
            let first = (1000 + number * 50).to_string();
            bench.start(&mut command(&client, &["7", &first]))
        };
        let mut server = bench.start(&mut command(&server, &["7"]));
        server.wait_for("ready");
        let before = resources(server.program());

        let started: Vec<_> = (0..PROCESSES)
            .map(|number| (number, clients(number)))
            .collect();
        let (mut running, mut free) = (Vec::new(), Vec::new());
        for (number, mut process) in started {
            process.wait_for("up");
            if dies_early(number) {
                process.kill();
                free.push(number);
            } else {
                running.push((number, process));
            }
        }
        let mut living = Vec::new();
        for (number, process) in running {
            if dies_late(number) {
                process.kill();
                free.push(number);
            } else {
                living.push(process);
            }
        }
        // New clients reuse the numbers of killed ones.
        for number in free.into_iter().take(2) {
            let mut newcomers = clients(number);
            newcomers.wait_for("up");
            living.push(newcomers);
        }
        for mut process in living {
            process.end_input();
            assert_eq!(process.finish(), "heard everything\n", "{link}");
        }

        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let (sockets, memory) = resources(server.program());
            if sockets <= before.0 + spare && memory == before.1 {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{sockets} sockets and {memory} mappings are left, {before:?} before, {link}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let end = bench.compile("echo_client");
        assert_eq!(harness::run(&mut command(&end, &["7", "end"])), "");
        server.finish();
    }
}

#[test]
fn operations_posted_to_several_targets_complete_in_one_queue_even_if_one_target_is_gone() {
    let bench = Bench::new();
    let (server, client) = (bench.compile("queue_server"), bench.compile("edges"));
    for link in ["shm", "udp"] {
        let command = |program: &std::path::Path, arguments: &[&str]| {
            let mut command = bench.command(program);
            command.env("DIPOLE_LINK", link).args(arguments);
            command
        };
        let mut server = bench.start(&mut command(&server, &["21", "22"]));
        server.wait_for("ready");
        let output = harness::run(&mut command(&client, &["21", "22", "23"]));
        assert_eq!(
            output, "two replied, one is gone\ncancelled\nclosed\n",
            "{link}"
        );
        assert_eq!(server.finish(), "");
    }
}

#[test]
fn a_refused_region_operation_changes_nothing_and_returns_an_error() {
    let bench = Bench::new();
    let program = bench.compile("regions");
    for link in ["auto", "udp"] {
        let mut command = bench.command(&program);
        let output = harness::run(command.env("DIPOLE_LINK", link).arg("31"));
        assert_eq!(output, "", "{link}");
    }
}

#[test]
fn a_hash_table_in_several_processes_survives_the_death_of_one() {
    let bench = Bench::new();
    let program = bench.compile("hash_table");
    for link in ["shm", "udp"] {
        let mut command = bench.command(&program);
        let output = harness::run(command.env("DIPOLE_LINK", link).args(["41", "4", "300"]));
        assert_eq!(output, "4 processes, 300 keys each\n", "{link}");
    }
}

#[test]
fn a_port_runs_its_handler_for_another_process() {
    let bench = Bench::new();
    let program = bench.compile("port");
    for link in ["auto", "udp"] {
        let mut command = bench.command(&program);
        let output = harness::run(command.env("DIPOLE_LINK", link).arg("51"));
        assert_eq!(output, "1001 answers\n", "{link}");
    }
}

#[test]
fn messages_of_another_process_land_in_the_slots_of_a_port() {
    let bench = Bench::new();
    let program = bench.compile("port_slots");
    for link in ["auto", "udp"] {
        let mut command = bench.command(&program);
        let output = harness::run(command.env("DIPOLE_LINK", link).arg("55"));
        let expected = "167 in the handler, 333 by the worker, 1 outside\n";
        assert_eq!(output, expected, "{link}");
    }
}

#[test]
fn a_group_continues_without_a_killed_member() {
    let bench = Bench::new();
    let program = bench.compile("group");
    for link in ["shm", "udp"] {
        for size in ["2", "5"] {
            let mut command = bench.command(&program);
            let output = harness::run(command.env("DIPOLE_LINK", link).args(["61", size]));
            let others = size.parse::<u32>().expect("a number") - 1;
            assert_eq!(
                output,
                format!("{others} went on without rank 1\n"),
                "{link}"
            );
        }
    }
}

#[test]
fn a_counter_counts_completed_and_failed_operations() {
    let bench = Bench::new();
    let program = bench.compile("counter");
    for link in ["shm", "udp"] {
        let output = harness::run(bench.command(&program).env("DIPOLE_LINK", link));
        assert_eq!(output, "counted\ncancelled\nclosed\n", "{link}");
    }
}

#[test]
fn a_descriptor_works_in_poll_select_and_epoll() {
    assert_eq!(
        Bench::new().example("waiting", &[]),
        "poll\nselect\nepoll\n"
    );
}

#[test]
fn messages_go_through_read_and_write_of_a_descriptor_opened_for_it() {
    let output = Bench::new().example("plain_io", &[]);
    assert_eq!(output, "plain\nclosed\ncat\none direction\nfailure\n");
}

#[test]
fn a_signal_handler_ends_a_wait_unless_it_restarts_calls() {
    let output = Bench::new().example("signals", &[]);
    assert_eq!(output, "restarted\ninterrupted\n");
}

#[test]
fn a_descriptor_works_in_io_uring() {
    let output = Bench::new().example("uring", &[]);
    if output == "no io_uring\n" {
        println!("SKIPPED: the kernel has no io_uring for this user");
        return;
    }
    assert_eq!(output, "once\noften\n");
}

#[test]
fn threads_may_end_while_they_hold_messages_or_be_cancelled_in_a_call() {
    assert_eq!(
        Bench::new().example("dying", &[]),
        "200 threads went with a message\n200 threads were cancelled\n"
    );
}

#[test]
fn nonblocking_writes_fail_while_there_is_no_room() {
    let bench = Bench::new();
    let program = bench.compile("nonblocking");
    // Repeated, because a wake-up of the wrong thread is lost only in few runs.
    for _ in 0..50 {
        let output = harness::run(&mut bench.command(&program));
        assert_eq!(output, "20000 messages, refused now and then\n");
    }
}

#[test]
fn every_target_gets_a_copy() {
    assert_eq!(Bench::new().example("targets", &[]), "copies\n");
}

#[test]
fn a_thread_sends_while_another_receives_and_a_third_closes() {
    let output = Bench::new().example("threads", &[]);
    assert_eq!(output, "20000 messages to and fro\nclosed while waiting\n");
}

#[test]
fn duplicates_and_inherited_descriptors_behave_as_documented() {
    assert_eq!(Bench::new().example("fork_dup", &[]), "dup\nfork\nclose\n");
}

#[test]
fn messages_stay_in_place_until_they_are_released() {
    assert_eq!(Bench::new().example("zero_copy", &[]), "in place\n");
}

#[test]
fn messages_lie_in_the_pool_of_their_endpoint() {
    assert_eq!(Bench::new().example("pool", &[]), "within the pool\n");
}

#[test]
fn messages_sent_before_exit_arrive_over_every_link() {
    let bench = Bench::new();
    let program = bench.compile("exit");
    for link in ["udp", "shm"] {
        let output = harness::run(bench.command(&program).env("DIPOLE_LINK", link));
        assert_eq!(output, "all of it\n", "{link}");
    }
}

#[test]
fn a_program_can_be_linked_to_the_static_library() {
    let bench = Bench::new();
    let template = std::fs::read_to_string(harness::crate_dir().join("dipole.pc.in"))
        .expect("the template is there");
    let private = template
        .lines()
        .find_map(|line| line.strip_prefix("Libs.private: "))
        .expect("the libraries that the static library needs");
    let program = bench.path().join("static");
    // With the shared libraries of the system, and without any.
    for options in [&[][..], &["-static"]] {
        harness::run(
            std::process::Command::new("cc")
                .args(options)
                .arg("-I")
                .arg(harness::include_dir())
                .arg(harness::crate_dir().join("examples-c/hello.c"))
                .arg(harness::built_library("libdipole.a"))
                .args(private.split_whitespace())
                .arg("-o")
                .arg(&program),
        );
        assert_eq!(harness::run(&mut bench.command(&program)), "first light\n");
    }
}

#[test]
fn the_shared_library_has_the_soname_that_programs_need() {
    let facts = harness::run(
        std::process::Command::new("readelf")
            .arg("-d")
            .arg(harness::built_library("libdipole.so")),
    );
    assert!(
        facts.contains("Library soname: [libdipole.so.0]"),
        "{facts}"
    );
    assert!(facts.contains("NODELETE"), "{facts}");
}

#[test]
fn statistics_work_for_older_and_newer_programs() {
    assert_eq!(Bench::new().example("statistics", &[]), "counted\n");
}

#[test]
fn options_override_the_environment() {
    let bench = Bench::new();
    let registry = bench.path().join("other");
    let hosts = bench.path().join("hosts");
    std::fs::write(&hosts, "5 127.0.0.1 port=47500\n6 127.0.0.2 port=47600\n")
        .expect("a hosts file");
    let arguments = [registry.to_str().unwrap(), hosts.to_str().unwrap()];
    assert_eq!(bench.example("options", &arguments), "as told\n");
    assert!(registry.is_dir());
}

#[test]
fn every_mistake_has_a_number_and_a_text() {
    let output = Bench::new().example("errors", &[]);
    assert_eq!(output, "no mistake unnoticed\n");
}

#[test]
fn what_was_sent_to_addresses_can_be_waited_for_and_lengths_have_limits() {
    for link in ["shm", "udp"] {
        let bench = Bench::new();
        let program = bench.compile("drain");
        let output = harness::run(bench.command(&program).env("DIPOLE_LINK", link));
        assert_eq!(output, "all of it has arrived\n");
    }
}

#[test]
fn every_limit_has_a_number_and_a_text() {
    let output = Bench::new().example("limits", &[]);
    assert_eq!(output, "all limits have numbers\n");
}

#[test]
fn ranks_of_a_job_connect_to_each_other() {
    let bench = Bench::new();
    let program = bench.compile("job");
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let mut command = bench.command(&program);
            command
                .env("DIPOLE_RANK", rank.to_string())
                .env("DIPOLE_SIZE", "3")
                .env("DIPOLE_JOB", "1")
                .env("DIPOLE_JOB_BASE", "4294967200")
                .env("DIPOLE_RANKS", "1x3");
            std::thread::spawn(move || harness::run(&mut command))
        })
        .collect();
    for (rank, output) in ranks.into_iter().enumerate() {
        let before = (rank + 2) % 3;
        assert_eq!(
            output.join().expect("the rank succeeds"),
            format!("rank {rank} of 3 received from {before}\n")
        );
    }
}

#[test]
fn ten_thousand_endpoints_fit_into_one_process() {
    let output = Bench::new().example("many", &["10000"]);
    println!("{output}");
    assert_eq!(last(&output), "done");
}

#[test]
fn the_cluster_key_comes_from_the_environment_and_a_readable_one_is_refused() {
    let bench = Bench::new();
    let program = bench.compile("pingpong");
    let key = bench.path().join("key");
    let digits = "0123456789abcdef".repeat(4);
    std::fs::write(&key, digits).expect("a file of our own");
    let play = |mode: u32| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&key, mode).expect("our own file");
        let mut command = bench.command(&program);
        command.env("DIPOLE_KEY", &key).env("DIPOLE_LINK", "udp");
        command.args(["200", "64"]);
        command
    };
    assert!(harness::run(&mut play(0o600)).starts_with("200 rounds of 64 bytes"));
    let output = play(0o644).output().expect("the program starts");
    assert!(!output.status.success());
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.contains("DIPOLE_KEY") && output.contains("chmod 600"),
        "{output}"
    );
}
