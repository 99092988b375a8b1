//! Machines whose addresses are not all of use to others: bridges, VPNs, overlays, IPv6 only, names
//! that lead to 127.0.1.1. Programs find the right ones, or report what to set.

use std::fs;
use std::process::{Child, Output, Stdio};

use super::nodes::Nodes;
use super::{all_to_all, assert_all_right, pmi_server};

#[test]
fn bridges_and_vpns_of_some_nodes_are_not_used() {
    let Some(nodes) = Nodes::new(3, 2) else {
        return;
    };
    for node in 1..=3 {
        for (device, address) in [("docker0", "172.17.0.1/16"), ("virbr0", "192.168.122.1/24")] {
            nodes.ip(node, &format!("link add {device} type bridge"));
            nodes.ip(node, &format!("addr add {address} dev {device}"));
            nodes.ip(node, &format!("link set {device} up"));
        }
        // A device with the default route that leads nowhere, on two of the nodes.
        if node < 3 {
            nodes.ip(node, "link add vpn type veth peer name vpn-end");
            nodes.ip(node, "link set vpn-end up");
            nodes.ip(node, &format!("addr add 10.8.0.{node}/24 dev vpn"));
            nodes.ip(node, "link set vpn up");
            nodes.ip(node, "route add default dev vpn");
        }
    }
    // One network has two of three nodes.
    nodes.ip(2, "link set net0 down");
    assert_all_right(&pmi_server::run(&nodes, &all_to_all(), &[]), 3);
}

#[test]
fn nodes_with_addresses_of_their_own_are_reached_by_routes() {
    let Some(nodes) = Nodes::new(3, 1) else {
        return;
    };
    for node in 1..=3 {
        nodes.ip(node, &format!("addr del 10.0.0.{node}/24 dev net0"));
        nodes.ip(node, &format!("addr add 10.244.{node}.1/32 dev lo"));
        nodes.ip(node, &format!("addr add 192.168.{node}.1/24 dev net0"));
        for other in (1..=3).filter(|other| *other != node) {
            let source = format!("src 10.244.{node}.1");
            nodes.ip(
                node,
                &format!("route add 10.244.{other}.1/32 dev net0 {source}"),
            );
        }
    }
    assert_all_right(&pmi_server::run(&nodes, &all_to_all(), &[]), 3);
}

#[test]
fn nodes_with_ipv6_only_find_each_other() {
    let Some(nodes) = Nodes::new(3, 1) else {
        return;
    };
    for node in 1..=3 {
        nodes.ip(node, &format!("addr del 10.0.0.{node}/24 dev net0"));
        nodes.ip(node, &format!("addr add fd00::{node}/64 dev net0 nodad"));
    }
    assert_all_right(&pmi_server::run(&nodes, &all_to_all(), &[]), 3);
}

#[test]
fn without_a_route_the_error_names_the_nodes_and_what_to_set() {
    let Some(nodes) = Nodes::new(2, 2) else {
        return;
    };
    nodes.ip(1, "link set net1 down");
    nodes.ip(2, "link set net0 down");
    let output = pmi_server::run(&nodes, &all_to_all(), &[]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    // The example prints the debug format of its error.
    let error = "NoRoute { from: \"n1 (10.0.0.1)\", to: \"n2 (10.1.0.2)\" }";
    assert_eq!(said.matches(error).count(), 2, "{said}");
    let output = pmi_server::run(&nodes, &all_to_all(), &[("DIPOLE_BIND", "10.7.0.0/24")]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    let error = "Bad { variable: \"DIPOLE_BIND\", found: \"10.7.0.0/24\"";
    assert_eq!(said.matches(error).count(), 2, "{said}");
}

/// Runs a program as pods of an indexed job, whose names lead to the nodes.
fn pods(nodes: &Nodes) -> Output {
    let program = all_to_all();
    let pod = |node: u32| {
        let mut command = nodes.command(node, &program);
        command
            .env("JOB_COMPLETION_INDEX", (node - 1).to_string())
            .env("DIPOLE_SIZE", nodes.count().to_string())
            .env("DIPOLE_PEERS_PATTERN", "n{+1}")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("a pod")
    };
    let pods: Vec<Child> = (1..=nodes.count()).map(pod).collect();
    let outputs = pods
        .into_iter()
        .map(|pod| pod.wait_with_output().expect("its end"));
    let all = outputs.reduce(|mut all, output| {
        assert!(output.status.success(), "{output:?}");
        all.stdout.extend(&output.stdout);
        all
    });
    all.expect("a pod")
}

#[test]
fn own_names_that_lead_to_loopback_and_names_with_ipv6_only_are_resolved() {
    let Some(nodes) = Nodes::new(3, 1) else {
        return;
    };
    let listed = |of: &dyn Fn(u32, u32) -> String| {
        for node in 1..=3 {
            let lines = (1..=3).map(|other| format!("{} n{other}\n", of(node, other)));
            let text: String = std::iter::once("127.0.0.1 localhost\n".to_owned())
                .chain(lines)
                .collect();
            fs::write(nodes.etc_hosts(node), text).expect("a file");
        }
    };
    listed(&|node, other| match node == other {
        true => "127.0.1.1".to_owned(),
        false => format!("10.0.0.{other}"),
    });
    assert_all_right(&pods(&nodes), 3);
    for node in 1..=3 {
        nodes.ip(node, &format!("addr add fd00::{node}/64 dev net0 nodad"));
    }
    // Debian writes 127.0.1.1 for the own name even if all others have IPv6 only.
    listed(&|node, other| match node == other {
        true => "127.0.1.1".to_owned(),
        false => format!("fd00::{other}"),
    });
    assert_all_right(&pods(&nodes), 3);
}
