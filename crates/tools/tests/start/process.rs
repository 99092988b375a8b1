//! Agents as processes, on loopback or in the nodes of a testbed.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dipole_node::ClusterKey;
use dipole_testbed::free_port;
use tempfile::TempDir;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition is true.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn new_key(file: &Path) {
    ClusterKey::random()
        .expect("randomness")
        .save(file)
        .expect("a new file");
}

/// A process that ends with the test, and its standard error.
pub(crate) struct Process {
    pub(crate) child: Child,
    said: Arc<Mutex<String>>,
}

impl Process {
    /// Returns when it has printed a text.
    pub(crate) fn start(command: &mut Command, first: &str) -> Process {
        let process = Process::begin(command);
        process.says(first);
        process
    }

    pub(crate) fn begin(command: &mut Command) -> Process {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stderr = child.stderr.take().expect("a pipe");
        let said = Arc::new(Mutex::new(String::new()));
        std::thread::spawn({
            let said = Arc::clone(&said);
            move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    let mut said = said.lock().expect("no panic");
                    said.push_str(&line);
                    said.push('\n');
                }
            }
        });
        Process { child, said }
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("no panic").clone()
    }

    /// Waits until it has printed a text.
    pub(crate) fn says(&self, text: &str) {
        let begun = Instant::now();
        while !self.said().contains(text) {
            assert!(
                begun.elapsed() < PATIENCE,
                "never `{text}`: {}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Node 1 on loopback.
pub(crate) struct Node {
    pub(crate) folder: TempDir,
    pub(crate) address: SocketAddr,
}

impl Node {
    pub(crate) fn new() -> Node {
        let folder = tempfile::tempdir().expect("a directory");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port("127.0.0.1")));
        let text = format!("1 127.0.0.1 port={}\n", address.port());
        std::fs::write(folder.path().join("hosts"), text).expect("a file");
        new_key(&folder.path().join("key"));
        Node { folder, address }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).expect("our own directory");
        self.path(name)
    }

    pub(crate) fn dipole(&self, arguments: &[&str]) -> Command {
        let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DIPOLE_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env("DIPOLE_NID", "1")
            .env("DIPOLE_HOSTS", self.path("hosts"))
            .env("DIPOLE_RUNTIME_DIR", self.path("runtime"))
            .env("DIPOLE_KEY", self.path("key"))
            // Settings of the machine's user must not affect tests.
            .env("XDG_CONFIG_HOME", self.path("config"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn agent(&self, arguments: &[&str]) -> Process {
        let mut command = self.dipole(&["agent"]);
        command.args(arguments).env("DIPOLE_LOG", "info");
        Process::start(&mut command, "agent of node 1")
    }

    /// Requests a slot for one rank, with this key; returns the answer.
    pub(crate) fn call(&self, key: &str) -> String {
        said(&self.caller(key).output().expect("it runs"))
    }

    pub(crate) fn caller(&self, key: &str) -> Command {
        let mut command = self.dipole(&["reach", &self.address.to_string()]);
        command.args([
            "--node", "1", "--ranks", "3", "--job", "sort big", "--", "false",
        ]);
        command.env("DIPOLE_KEY", self.path(key));
        command
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let output = self
            .dipole(&["--json", "agent", "status"])
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the agent listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }
}

/// Returns the text of both output streams.
pub(crate) fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Returns when the peer has closed the connection; the result is what it sent before.
pub(crate) fn rest_of(mut stream: &TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionReset),
    }
    rest
}
