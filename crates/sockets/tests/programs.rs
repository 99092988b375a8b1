//! Unmodified Debian programs, within a node and between two: with the library, and with one end
//! without it, restarted or killed. `DIPOLE_SOCKETS_ALL=1` adds PostgreSQL, Go and Java, which take
//! longer.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LIMIT, Place, ended_within, finished, has, library, two_nodes};
use dipole_testbed::{Testbed, free_port};

/// Ends that use the library: server, client.
const ENDS: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

/// Where the two ends of a program run.
struct World {
    place: Place,
    testbed: Option<Testbed>,
}

/// A program that is killed at the end of the test.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Clone, Copy)]
enum End {
    Server = 2,
    Client = 1,
}

impl World {
    /// Calls `test` with both ends on one node, and with each on a node of its own.
    fn each(test: impl Fn(&World)) {
        let mut testbeds = vec![None];
        testbeds.extend(two_nodes().map(Some));
        for testbed in testbeds {
            let place = Place::new();
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(place.folder.path(), mode).expect("it is ours");
            test(&World { place, testbed });
        }
    }

    fn command(&self, end: End, program: &str, with: bool) -> Command {
        let Some(testbed) = &self.testbed else {
            return self.place.command(program, with);
        };
        let mut command = testbed.command(end as u32, "env");
        if with {
            command.arg(format!("LD_PRELOAD={}", library().display()));
        }
        command
            .arg(program)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn address(&self) -> String {
        let own = |testbed: &Testbed| testbed.node(2).addresses[0];
        let address = self.testbed.as_ref().map_or(Ipv4Addr::LOCALHOST, own);
        address.to_string()
    }

    fn at_server<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.testbed {
            Some(testbed) => testbed.inside(2, work).expect("the namespace is there"),
            None => work(),
        }
    }

    /// A port that is free now.
    fn port(&self) -> String {
        self.at_server(|| free_port("0.0.0.0")).to_string()
    }

    /// Starts a server and waits until it listens.
    fn serve(&self, command: &mut Command, port: &str) -> Killed {
        let log = self.path("server-log");
        let log = std::fs::File::create(&log).expect("a file");
        let errors = log.try_clone().expect("the same file");
        let server = command.stdout(log).stderr(errors).spawn();
        let mut server = Killed(server.expect("the server starts"));
        let begun = Instant::now();
        while !self.at_server(|| listens(port)) {
            let ended = server.0.try_wait().expect("it was started");
            let late = begun.elapsed() > LIMIT;
            if ended.is_some() || late {
                let said = std::fs::read_to_string(self.path("server-log"));
                panic!("it does not listen: {ended:?} {}", said.unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.folder.path().join(name)
    }

    fn text_path(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Runs a client, which must succeed, and returns its output.
    fn run(&self, with: bool, program: &str, words: &[&str]) -> String {
        let mut command = self.command(End::Client, program, with);
        let output = finished(command.args(words).spawn().expect("the client starts"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Creates a file of some MB with varying bytes.
    fn file(&self, name: &str) -> Vec<u8> {
        let bytes: Vec<u8> = (0_u32..750_000)
            .flat_map(|word| word.wrapping_mul(0x9E37_79B9).to_le_bytes())
            .collect();
        std::fs::write(self.path(name), &bytes).expect("a file");
        bytes
    }

    fn assert_same(&self, name: &str, bytes: &[u8]) {
        let got = std::fs::read(self.path(name)).expect("the copy");
        assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    }
}

/// True if a socket listens in this thread's namespace; connecting would disturb the test.
fn listens(port: &str) -> bool {
    const LISTEN: &str = "0A";
    let port: u16 = port.parse().expect("a port");
    let own = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|file| {
        let path = format!("/proc/thread-self/net/{file}");
        let all = std::fs::read_to_string(path).unwrap_or_default();
        all.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1).is_some_and(|at| at.ends_with(&own)) && words.get(3) == Some(&LISTEN)
        })
    })
}

fn all_wanted() -> bool {
    let wanted = std::env::var_os("DIPOLE_SOCKETS_ALL").is_some();
    if !wanted {
        eprintln!("SKIPPED: it takes longer; DIPOLE_SOCKETS_ALL=1 tries it");
    }
    wanted
}

#[test]
fn iperf3_moves_all_its_bytes() {
    if !has(&["iperf3"]) {
        return;
    }
    World::each(|world| {
        for (server_with, client_with) in ENDS {
            let port = world.port();
            let mut server = world.command(End::Server, "iperf3", server_with);
            let _server = world.serve(server.args(["-s", "-p", &port]), &port);
            let words = [
                "-c",
                &world.address(),
                "-p",
                &port,
                "-n",
                "40M",
                "-l",
                "512K",
                "-J",
            ];
            for more in [&[][..], &["-R"], &["-P", "2"]] {
                let all = [&words[..], more].concat();
                let begun = Instant::now();
                let report = loop {
                    let mut client = world.command(End::Client, "iperf3", client_with);
                    let client = client.args(&all).spawn().expect("the client starts");
                    let ended = ended_within(client, LIMIT);
                    let report = String::from_utf8_lossy(&ended.stdout).into_owned();
                    // It notifies its client that a test is over before it accepts another one.
                    let busy = report.contains("the server is busy running a test");
                    assert!(!busy || begun.elapsed() < LIMIT, "{report}");
                    if !busy {
                        assert!(ended.status.success(), "{report}");
                        break report;
                    }
                    std::thread::sleep(Duration::from_millis(50));
                };
                let sums: Vec<u64> = report
                    .split("\"bytes\":")
                    .skip(1)
                    .filter_map(|rest| rest.trim_start().split(',').next()?.parse().ok())
                    .collect();
                // The last two are the sums of bytes sent and received.
                let [.., sent, received] = sums[..] else {
                    panic!("{report}");
                };
                // The test ends when all data is sent; data in flight is not counted.
                let whole = sent >= 40 << 20 && received > 4 << 20 && received <= sent;
                assert!(whole, "{sent}, {received}");
                assert!(!report.contains("\"error\""), "{report}");
            }
        }
    });
}

fn configure_nginx(world: &World, port: &str) {
    let folder = world.text_path("");
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let configuration = format!(
        "{user} daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr;
        events {{ worker_connections 64; }}
        http {{
            access_log off; client_body_temp_path {folder}/body;
            proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
            output_buffers 2 512k;
            server {{
                listen {port}; root {folder};
                location / {{ sendfile off; }}
                location /sent/ {{ alias {folder}/; sendfile on; }}
                location /slow/ {{ alias {folder}/; limit_rate 100k; }}
            }}
        }}"
    );
    std::fs::write(world.path("nginx.conf"), configuration).expect("a file");
}

#[test]
fn nginx_serves_curl_and_wrk() {
    if !has(&["nginx", "curl", "wrk"]) {
        return;
    }
    World::each(|world| {
        let bytes = world.file("file");
        std::fs::write(world.path("small"), "small\n").expect("a file");
        for (server_with, client_with) in ENDS {
            let port = world.port();
            configure_nginx(world, &port);
            let start = || {
                let mut server = world.command(End::Server, "nginx", server_with);
                server.args(["-e", "stderr", "-c", &world.text_path("nginx.conf")]);
                world.serve(&mut server, &port)
            };
            let mut server = start();
            let base = format!("http://{}:{port}", world.address());
            let copy = world.text_path("copy");
            let get = |path: &str| {
                let url = format!("{base}/{path}");
                world.run(client_with, "curl", &["-sSf", "-o", &copy, &url]);
            };
            for path in ["file", "sent/file"] {
                get(path);
                world.assert_same("copy", &bytes);
            }
            for path in ["file", "small"] {
                let url = format!("{base}/{path}");
                let words = ["-t1", "-c8", "-d1s", &url];
                let report = world.run(client_with, "wrk", &words);
                let bad = ["Socket errors", "Non-2xx"].map(|word| report.contains(word));
                assert!(
                    bad == [false; 2] && report.contains("requests in"),
                    "{report}"
                );
            }
            // Kill master and worker in the middle of an answer, and start them again.
            std::fs::remove_file(&copy).expect("it was there");
            let mut slow = world.command(End::Client, "curl", client_with);
            slow.args(["-sS", "-o", &copy, &format!("{base}/slow/file")]);
            let slow = slow.spawn().expect("curl starts");
            let partly = Instant::now();
            while std::fs::metadata(&copy).map_or(0, |copy| copy.len()) == 0 {
                assert!(partly.elapsed() < LIMIT, "nothing came");
                std::thread::sleep(Duration::from_millis(20));
            }
            let master = server.0.id().to_string();
            let workers = Command::new("pgrep").args(["-P", &master]).output();
            let workers = String::from_utf8(workers.expect("pgrep starts").stdout);
            // The master first, which would start other workers.
            server.kill();
            for worker in workers.expect("numbers").split_whitespace() {
                let _ = Command::new("kill").args(["-9", worker]).status();
            }
            let output = slow.wait_with_output().expect("curl ends");
            assert!(
                !output.status.success(),
                "an answer without its end was taken"
            );
            server = start();
            get("file");
            world.assert_same("copy", &bytes);
            let master = server.0.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &master]).status();
            let _ = server.0.wait();
        }
    });
}

#[test]
fn a_proxy_that_splices_passes_everything_on() {
    if !has(&["nginx", "curl", "haproxy"]) {
        return;
    }
    World::each(|world| {
        let bytes = world.file("file");
        for (server_with, client_with) in ENDS {
            let (port, behind) = (world.port(), world.port());
            configure_nginx(world, &behind);
            let mut server = world.command(End::Server, "nginx", server_with);
            server.args(["-e", "stderr", "-c", &world.text_path("nginx.conf")]);
            let mut server = world.serve(&mut server, &behind);
            let configuration = format!(
                "global\n maxconn 100\ndefaults\n mode tcp\n timeout connect 5s\n \
                 timeout client 60s\n timeout server 60s\n option splice-auto\nlisten all\n \
                 bind :{port}\n server one {}:{behind}\n",
                world.address()
            );
            std::fs::write(world.path("haproxy.cfg"), configuration).expect("a file");
            let mut proxy = world.command(End::Server, "haproxy", server_with);
            proxy.args(["-db", "-f", &world.text_path("haproxy.cfg")]);
            let _proxy = world.serve(&mut proxy, &port);
            let (url, copy) = (
                format!("http://{}:{port}/file", world.address()),
                world.text_path("copy"),
            );
            for _ in 0..5 {
                world.run(client_with, "curl", &["-sSf", "-o", &copy, &url]);
                world.assert_same("copy", &bytes);
            }
            // Killed, it would leave its workers behind.
            let master = server.0.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &master]).status();
            let _ = server.0.wait();
        }
    });
}

#[test]
fn redis_keeps_its_data_over_a_restart() {
    if !has(&["redis-server", "redis-cli", "redis-benchmark"]) {
        return;
    }
    World::each(|world| {
        for (server_with, client_with) in ENDS {
            let (port, address) = (world.port(), world.address());
            let start = || {
                let mut server = world.command(End::Server, "redis-server", server_with);
                server.args([
                    "--port",
                    &port,
                    "--bind",
                    &address,
                    "--protected-mode",
                    "no",
                ]);
                server.args(["--dir", &world.text_path(""), "--save", ""]);
                // By default a write to the file waits until an earlier one is on disk, after the answer.
                server.args(["--appendonly", "yes", "--appendfsync", "no"]);
                world.serve(&mut server, &port)
            };
            let mut server = start();
            let ask = |words: &[&str]| {
                let all = [&["-h", &address, "-p", &port][..], words].concat();
                world.run(client_with, "redis-cli", &all)
            };
            let load = [
                "-t", "set,get", "-d", "200000", "-n", "150", "-c", "4", "-q",
            ];
            let all = [&["-h", &address, "-p", &port][..], &load].concat();
            world.run(client_with, "redis-benchmark", &all);
            assert_eq!(ask(&["strlen", "key:__rand_int__"]).trim(), "200000");
            assert_eq!(ask(&["set", "kept", "value"]).trim(), "OK");
            // Acknowledged writes are in the append-only file, since the kernel kept running.
            server.kill();
            let _server = start();
            assert_eq!(ask(&["get", "kept"]).trim(), "value");
            let _ = std::fs::remove_dir_all(world.path("appendonlydir"));
        }
    });
}

#[test]
fn ssh_scp_and_rsync_copy_files() {
    if !has(&["ssh", "scp", "rsync", "ssh-keygen", "/usr/sbin/sshd"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: sshd needs root");
        return;
    }
    std::fs::create_dir_all("/run/sshd").expect("where sshd separates privileges");
    World::each(|world| {
        let bytes = world.file("file");
        for name in ["host", "user"] {
            let words = [
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-f",
                &world.text_path(name),
            ];
            let made = Command::new("ssh-keygen").args(words).status();
            assert!(made.expect("ssh-keygen starts").success());
        }
        for (server_with, client_with) in ENDS {
            let (port, address) = (world.port(), world.address());
            let mut server = world.command(End::Server, "/usr/sbin/sshd", server_with);
            server.args(["-D", "-e", "-f", "/dev/null", "-p", &port]);
            server.args(["-h", &world.text_path("host"), "-o", "UsePAM=no"]);
            let keys = world.text_path("user.pub");
            server.args(["-o", "Subsystem=sftp internal-sftp"]);
            server.args([
                "-o",
                &format!("AuthorizedKeysFile={keys}"),
                "-o",
                "StrictModes=no",
            ]);
            server.args(["-o", "PermitRootLogin=yes", "-o", "MaxStartups=100"]);
            let _server = world.serve(&mut server, &port);
            let options = format!(
                "-i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes -F /dev/null",
                world.text_path("user")
            );
            let words: Vec<&str> = options.split(' ').collect();
            let to = format!("root@{address}");
            let original = world.text_path("file");
            let all = [&words[..], &["-p", &port, &to, "cat", &original]].concat();
            let mut ssh = world.command(End::Client, "ssh", client_with);
            let output = finished(ssh.args(&all).spawn().expect("ssh starts"));
            assert!(
                output.stdout == bytes,
                "{} bytes by ssh",
                output.stdout.len()
            );
            let from = format!("{to}:{}", world.text_path("file"));
            let copy = world.text_path("by-scp");
            let all = [&words[..], &["-P", &port, &from, &copy]].concat();
            world.run(client_with, "scp", &all);
            world.assert_same("by-scp", &bytes);
            let shell = format!("ssh -p {port} {options}");
            let target = format!("{to}:{}", world.text_path("by-rsync"));
            world.run(
                client_with,
                "rsync",
                &["-e", &shell, &world.text_path("file"), &target],
            );
            world.assert_same("by-rsync", &bytes);
            for name in ["by-scp", "by-rsync"] {
                std::fs::remove_file(world.path(name)).expect("it was there");
            }
        }
    });
}

#[test]
fn python_requests_are_answered() {
    const CLIENT: &str = "
import hashlib, requests, sys
session = requests.Session()
for _ in range(5):
    answer = session.get(sys.argv[1] + '/file')
    assert answer.status_code == 200
    print(hashlib.sha256(answer.content).hexdigest())
";
    let python = "/usr/bin/python3";
    let there = Command::new(python)
        .args(["-c", "import requests"])
        .output();
    if !there.is_ok_and(|there| there.status.success()) {
        eprintln!("SKIPPED: python3-requests is not installed");
        return;
    }
    World::each(|world| {
        world.file("file");
        for (server_with, client_with) in ENDS {
            let port = world.port();
            let mut server = world.command(End::Server, python, server_with);
            server.args(["-m", "http.server", "-d", &world.text_path(""), &port]);
            let _server = world.serve(&mut server, &port);
            let base = format!("http://{}:{port}", world.address());
            let got = world.run(client_with, python, &["-c", CLIENT, &base]);
            let wanted = world.run(false, "sha256sum", &[&world.text_path("file")]);
            let wanted = wanted.split(' ').next().expect("a sum");
            assert_eq!(got.trim(), [wanted; 5].join("\n"));
        }
    });
}

/// Directory of the programs of the newest PostgreSQL, or an empty string.
fn postgres_programs() -> String {
    let find = "ls -d /usr/lib/postgresql/*/bin | tail -1";
    let found = Command::new("sh")
        .args(["-c", find])
        .output()
        .expect("a shell");
    String::from_utf8_lossy(&found.stdout).trim().to_owned()
}

#[test]
fn postgres_counts_right_under_pgbench() {
    let programs = postgres_programs();
    if !all_wanted() || !has(&["pgbench", "psql", "runuser", &format!("{programs}/initdb")]) {
        return;
    }
    World::each(|world| {
        // It refuses to run as root, and loads the library as another user.
        let copy = world.text_path("libdipole_sockets.so");
        std::fs::copy(library(), &copy).expect("a copy");
        let data = world.text_path("data");
        let sockets = world.text_path("sockets");
        for folder in [&data, &sockets] {
            std::fs::create_dir(folder).expect("a folder");
            let owned = Command::new("chown").args(["postgres", folder]).status();
            assert!(owned.expect("chown starts").success());
        }
        let as_postgres = |end, with: bool, program: &str| {
            let mut command = world.command(end, "runuser", false);
            let preload = if with { &copy } else { "" };
            let preload = format!("LD_PRELOAD={preload}");
            let meeting = format!("DIPOLE_RUNTIME_DIR={sockets}");
            let words = ["-u", "postgres", "--", "env", &preload, &meeting, program];
            command.args(words);
            command
        };
        let run = |with: bool, program: &str, words: &[&str]| {
            let mut command = as_postgres(End::Client, with, program);
            let output = finished(command.args(words).spawn().expect("it starts"));
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        let words = ["-A", "trust", "-N", "-D", &data];
        run(false, &format!("{programs}/initdb"), &words);
        std::fs::write(format!("{data}/pg_hba.conf"), "host all all all trust\n").expect("a file");
        for (server_with, client_with) in ENDS {
            let (port, address) = (world.port(), world.address());
            let start = || {
                let program = format!("{programs}/postgres");
                let mut server = as_postgres(End::Server, server_with, &program);
                server.args(["-D", &data, "-p", &port, "-k", &sockets, "-h", &address]);
                let server = world.serve(&mut server, &port);
                // It listens before it has recovered from the crash.
                let until =
                    format!("until pg_isready -q -h {address} -p {port}; do sleep 0.1; done");
                run(false, "sh", &["-c", &until]);
                server
            };
            let stop = |how: &str| {
                let words = ["-D", &data, "stop", "-m", how];
                run(false, &format!("{programs}/pg_ctl"), &words)
            };
            let server = start();
            let base = ["-h", &address, "-p", &port];
            let bench = |words: &[&str]| {
                let all = [&base[..], words, &["postgres"]].concat();
                run(client_with, "pgbench", &all)
            };
            bench(&["-q", "-i", "-s", "1"]);
            let report = bench(&["-c", "4", "-t", "50"]);
            assert!(report.contains("actually processed: 200/200"), "{report}");
            let query = |text: &str| {
                let all = [&base[..], &["-At", "-c", text, "postgres"]].concat();
                run(client_with, "psql", &all)
            };
            assert_eq!(query("select count(*) from pgbench_history"), "200");
            let long = query("select repeat('0123456789', 100000)");
            assert_eq!(long, "0123456789".repeat(100_000));
            // Kill it and start it again.
            stop("immediate");
            drop(server);
            let server = start();
            assert_eq!(query("select count(*) from pgbench_history"), "200");
            stop("fast");
            drop(server);
        }
    });
}

/// Serves the directory and fetches the file with programs in one language, and with curl.
fn serves_and_fetches(world: &World, program: &str, before: &[&str]) {
    let bytes = world.file("file");
    for (server_with, client_with) in ENDS {
        let port = world.port();
        let mut server = world.command(End::Server, program, server_with);
        server
            .args(before)
            .args(["serve", &port, &world.text_path("file")]);
        let _server = world.serve(&mut server, &port);
        let url = format!("http://{}:{port}/", world.address());
        let copy = world.text_path("copy");
        for _ in 0..3 {
            let words = [before, &["fetch", &url, &copy]].concat();
            world.run(client_with, program, &words);
            world.assert_same("copy", &bytes);
            world.run(client_with, "curl", &["-sSf", "-o", &copy, &url]);
            world.assert_same("copy", &bytes);
        }
    }
}

#[test]
fn a_go_program_works_though_it_never_uses_the_library() {
    if !all_wanted() || !has(&["go", "curl"]) {
        return;
    }
    World::each(|world| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go/web.go");
        let program = world.text_path("web");
        let built = Command::new("go")
            .args(["build", "-o", &program, source])
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=mod")
            .output()
            .expect("go starts");
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{said}");
        serves_and_fetches(world, &program, &[]);
    });
}

#[test]
fn a_java_program_works() {
    if !all_wanted() || !has(&["java", "curl"]) {
        return;
    }
    World::each(|world| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/java/Web.java");
        serves_and_fetches(world, "java", &[source]);
    });
}
