//! Flux on three namespaces as nodes, where it is installed. Debian has no package of it.

use std::fmt::Write;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use super::allocations::check;
use super::nodes::Nodes;
use super::{all_to_all, assert_all_right, is_installed};

/// How long the other brokers may take to end after the first.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes, if Flux is installed.
fn nodes() -> Option<Nodes> {
    if !is_installed("flux") {
        eprintln!("SKIPPED: flux is not installed (it is built from source)");
        return None;
    }
    Nodes::new(3, 1)
}

/// Runs a command as the initial program of an instance of Flux with three brokers.
fn flux(nodes: &Nodes, command: &[&str]) -> Output {
    let at = nodes.folder().display();
    let keys = nodes
        .command(1, "flux")
        .arg("keygen")
        .arg(format!("{at}/cert"))
        .status();
    assert!(keys.unwrap().success());
    let mut text = format!("[bootstrap]\ncurve_cert = \"{at}/cert\"\nhosts = [\n");
    for node in 1..=3 {
        let bind = format!("tcp://10.0.0.{node}:8050");
        let _ = writeln!(
            text,
            "{{ host = \"n{node}\", bind = \"{bind}\", connect = \"{bind}\" }},"
        );
    }
    text += "]\n[resource]\nnoverify = true\n[[resource.config]]\nhosts = \"n[1-3]\"\ncores = \"0-1\"\n";
    let config = nodes.folder().join("flux.toml");
    std::fs::write(&config, text).unwrap();
    let broker = |node| {
        let mut broker = nodes.command(node, "flux");
        broker.args(["broker", "--config-path"]).arg(&config);
        broker.env("PATH", nodes.path_with_stand_ins());
        broker
    };
    let others: Vec<Child> = [2, 3]
        .map(|node| broker(node).stdout(Stdio::null()).spawn().unwrap())
        .into();
    let output = broker(1).args(command).output().unwrap();
    let started = Instant::now();
    for mut other in others {
        while other.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "a broker does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    output
}

#[test]
fn tasks_of_a_flux_job_on_several_nodes_need_no_hosts_file() {
    let Some(nodes) = nodes() else { return };
    let program = all_to_all();
    let program = program.to_str().unwrap();
    let output = flux(&nodes, &["flux", "run", "-N3", "-n6", program]);
    assert_all_right(&output, 6);
    let twice = nodes.script("twice", &format!("{program} && {program}"));
    let twice = twice.to_str().unwrap();
    let output = flux(&nodes, &["flux", "run", "-N3", "-n4", twice]);
    assert_all_right(&output, 4);
}

#[test]
fn dipole_run_uses_the_nodes_of_a_flux_instance_and_reaches_them_by_ssh() {
    let Some(nodes) = nodes() else { return };
    nodes.add_ssh();
    check(&nodes, &|script| {
        flux(&nodes, &[script.to_str().expect("a path")])
    });
}
