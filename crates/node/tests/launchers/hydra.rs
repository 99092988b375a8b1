//! MPICH's `mpiexec.hydra` on four namespaces as nodes: the ranks exchange their addresses by PMI-1 and
//! have no hosts file.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dipole_testbed::built;

use super::nodes::Nodes;
use super::{all_to_all, assert_all_right, has_all, running};

/// How long ranks on other nodes may take to end after mpiexec.
const PATIENCE: Duration = Duration::from_secs(60);

/// `mpiexec.hydra` on node 1 for ranks on all nodes, which it reaches by a script instead of ssh.
fn mpiexec(nodes: &Nodes) -> Command {
    let mut command = nodes.command(1, "mpiexec.hydra");
    command.args(["-launcher", "ssh", "-launcher-exec"]);
    command.arg(nodes.remote_shell());
    command.args(["-localhost", "10.0.0.1"]);
    command.args(["-hosts", "10.0.0.1:2,10.0.0.2,10.0.0.3,10.0.0.4:2"]);
    command
}

/// Four nodes, if Hydra is installed.
fn nodes(networks: u32) -> Option<Nodes> {
    if !has_all(&["mpiexec.hydra"], "mpich") {
        return None;
    }
    Nodes::new(4, networks)
}

fn assert_runs(mut mpiexec: Command, program: &Path) {
    let output = mpiexec.args(["-n", "6"]).arg(program).output().unwrap();
    assert_all_right(&output, 6);
}

#[test]
fn ranks_of_hydra_on_several_nodes_need_no_hosts_file() {
    let Some(nodes) = nodes(1) else { return };
    let program = all_to_all();
    assert_runs(mpiexec(&nodes), &program);
    // More ranks than slots: the nodes are used in turn, so a node's ranks are not consecutive.
    let output = mpiexec(&nodes).args(["-n", "9"]).arg(&program).output();
    assert_all_right(&output.unwrap(), 9);
    let mut by_port = mpiexec(&nodes);
    by_port.arg("-pmi-port");
    assert_runs(by_port, &program);
    // A script with several programs: the launcher serves only the first one.
    let line = format!("{0} && {0}", program.display());
    let script = nodes.script("twice", &line);
    let output = mpiexec(&nodes).args(["-n", "6"]).arg(script).output();
    let output = output.unwrap();
    assert_all_right(&output, 6);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.lines().count(), 12, "{said}");
    // A job number and a runtime directory of the user's.
    let runtime = nodes.folder().join("runtime");
    let mut given = mpiexec(&nodes);
    given.args(["-genv", "DIPOLE_JOB", "17", "-genv", "DIPOLE_RUNTIME_DIR"]);
    given.arg(&runtime);
    assert_runs(given, &program);
    let output = mpiexec(&nodes)
        .args(["-n", "6"])
        .arg(built::example("prefix_sums"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "100000 numbers add up to 50393452\n", "{output:?}");
}

#[test]
fn ranks_of_hydra_choose_the_network_that_all_nodes_have() {
    let Some(nodes) = nodes(2) else { return };
    let program = all_to_all();
    for node in 1..=4 {
        // A bridge with the same address everywhere.
        nodes.ip(node, "link add docker0 type bridge");
        nodes.ip(node, "addr add 172.17.0.1/16 dev docker0");
        nodes.ip(node, "link set docker0 up");
    }
    nodes.ip(2, "link set net0 mtu 1400");
    let log = |mut command: Command| {
        command.args(["-n", "6", "-genv", "DIPOLE_LOG", "info"]);
        let output = command.arg(&program).output().unwrap();
        assert_all_right(&output, 6);
    };
    log(mpiexec(&nodes));
    for bind in ["10.1.0.0/24", "net1"] {
        let mut bound = mpiexec(&nodes);
        bound.args(["-genv", "DIPOLE_BIND", bind]);
        log(bound);
    }
}

#[test]
fn a_job_of_hydra_ends_with_a_rank_that_dies_before_its_addresses_are_known() {
    let Some(nodes) = nodes(1) else { return };
    let program = all_to_all().display().to_string();
    // Hydra does not end ranks on a node whose agent connects after a rank has died.
    let line = format!(
        "cd {}; : > started$PMI_RANK
        if [ $PMI_RANK = 4 ]; then
            until [ $(ls started? | wc -l) = 6 ]; do sleep 0.01; done
            kill -9 $$
        fi
        exec {program} 4{}",
        nodes.folder().display(),
        std::process::id()
    );
    let script = nodes.script("dying", &line);
    let mut command = mpiexec(&nodes);
    command.args(["-n", "6"]).arg(script).stdout(Stdio::null());
    let output = command.output().unwrap();
    assert!(!output.status.success());
    // The other nodes' processes may end after mpiexec.
    let left = format!("{program} 4{}", std::process::id());
    let started = Instant::now();
    while running(&left) > 0 {
        assert!(started.elapsed() < PATIENCE, "ranks are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}
