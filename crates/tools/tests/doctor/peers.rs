//! Two machines as network namespaces. Needs root; skipped with a message otherwise.

use std::io::Write;
use std::process::Stdio;

use crate::testbed::{Report, Testbed, once_answered};

#[test]
fn a_healthy_pair_is_reported_as_healthy() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    let _receiver = testbed.receiver();
    let report = testbed.report_once_answered();
    report.expect_nothing_broken();
    report.expect(
        "own address",
        "node 1",
        "good",
        &["10.98.0.1 is on a device"],
    );
    report.expect("link", "eth0", "good", &["up, with 10.98.0.1"]);
    report.expect("mtu", "eth0", "good", &["1500", "9000"]);
    report.expect("device", "eth0", "good", &["virtual"]);
    report.expect("route", "node 2", "good", &["leave from 10.98.0.1"]);
    report.expect(
        "directory",
        "node 2",
        "good",
        &["node 2 answers at 10.98.0.2:7411"],
    );
    report.expect(
        "packet size",
        "node 2",
        "good",
        &["packets of 1500 bytes get through"],
    );
    assert!(report.find("round trip", "node 2").is_some());
    report.expect("busy polling", "node 2", "good", &["not to be had"]);
}

#[test]
fn a_firewall_that_passes_only_the_directory_is_detected() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    let _receiver = testbed.receiver();
    let report = testbed.report_once_answered();
    report.expect("data ports", "node 2", "good", &["packets reach"]);
    // Like a firewall: packets to other ports are dropped, before the rule that delivers to this
    // machine, which comes first unless it is moved.
    testbed.ip(2, "rule add pref 10 lookup local");
    testbed.ip(2, "rule del pref 0");
    testbed.ip(
        2,
        "rule add pref 1 iif eth0 ipproto udp dport 7412-65534 blackhole",
    );
    let report = testbed.report();
    let words = ["port 7411 is reached", "other ports of node 2 vanish"];
    report.expect("data ports", "node 2", "broken", &words);

    // It passes a few more ports, which processes then use, and replies to queries.
    let ports = ("DIPOLE_PORTS", "7412-7511");
    let told = ["packets reach ports 7412-7511", "these and port 7411"];
    for rule in [
        "rule del pref 1",
        "rule add pref 2 iif eth0 ipproto udp dport 7512-65534 blackhole",
        "rule add pref 1 iif eth0 ipproto udp sport 7411 lookup local",
    ] {
        testbed.ip(2, rule);
    }
    let report = testbed.report_with(&[ports]);
    report.expect("data ports", "node 2", "good", &told);
    let hosts = testbed.hosts();
    let transfer = |machine: usize, words: &[&str]| {
        let mut command = testbed.dipole(machine);
        command.args(words).arg("--hosts").arg(&hosts);
        command.args(["--nid", &machine.to_string()]);
        command.env(ports.0, ports.1);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let receiver = transfer(2, &["recv", "2:8"]);
    let sender = transfer(1, &["send", "2:8"]);
    // This much fits into a pipe.
    let sent = vec![7; 50_000];
    sender
        .stdin
        .as_ref()
        .expect("a pipe")
        .write_all(&sent)
        .expect("a reader");
    let sender = sender.wait_with_output().expect("it ends");
    let receiver = receiver.wait_with_output().expect("it ends");
    assert!(sender.status.success() && receiver.stdout == sent);
}

#[test]
fn different_mtus_are_detected_from_both_ends() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    testbed.ip(2, "link set eth0 mtu 1200");
    let receiver = testbed.receiver();
    let report = testbed.report_once_answered();
    report.expect_nothing_broken();
    let words = [
        "packets of 1500 bytes do not get through, the longest that do have 1200",
        "the device of node 2 takes 1200, which both sides will use",
        "ip link set DEVICE mtu 1500",
    ];
    report.expect("packet size", "node 2", "slow", &words);
    // The shorter end does not lose packets, but sees which one is longer.
    drop(receiver);
    testbed.ip(2, "link set eth0 mtu 1500");
    testbed.ip(1, "link set eth0 mtu 1200");
    let _receiver = testbed.receiver();
    let report = testbed.report_once_answered();
    report.expect(
        "mtu",
        "eth0",
        "slow",
        &[
            "1200: shorter than Ethernet's 1500",
            "ip link set eth0 mtu 1500",
        ],
    );
    report.expect(
        "packet size",
        "node 2",
        "good",
        &["packets of 1200 bytes get through"],
    );
}

#[test]
fn a_device_in_between_that_drops_long_packets_is_detected() {
    let Some(testbed) = Testbed::make(true) else {
        return;
    };
    let _receiver = testbed.receiver();
    let report = testbed.report_once_answered();
    report.expect(
        "packet size",
        "node 2",
        "good",
        &["packets of 1500 bytes get through"],
    );
    testbed.ip(3, "link set portb mtu 1000");
    let report = testbed.report_once_answered();
    assert_eq!(report.status, 1);
    let words = [
        "packets of 1500 bytes do not get through",
        "the MTU of a device in between is smaller",
        "or lower both ends: `ip link set DEVICE mtu 100",
    ];
    report.expect("packet size", "node 2", "broken", &words);
}

#[test]
fn a_route_with_a_smaller_path_mtu_is_detected() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    let _receiver = testbed.receiver();
    testbed.ip(1, "route add 10.98.0.2/32 dev eth0 mtu lock 1000");
    let report = testbed.report_once_answered();
    assert_eq!(report.status, 1);
    let words = [
        "packets of 1500 bytes do not get through, the longest that do have 1000",
        "the path takes 1000, says this machine's route or a router",
        "ip route get 10.98.0.2",
    ];
    report.expect("packet size", "node 2", "broken", &words);
}

#[test]
fn a_silent_node_is_distinguished_from_one_without_processes() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    let report = testbed.report();
    let start = "dipole recv 2:7 --nid 2";
    report.expect("directory", "node 2", "unknown", &["the host is up", start]);
    // The kernel there replies for it, and it is unknown whether messages arrive.
    report.expect("data ports", "node 2", "good", &["packets reach ports"]);
    assert_eq!(report.status, 3, "{report:#?}");
    testbed.ip(2, "rule add pref 10 lookup local");
    testbed.ip(2, "rule del pref 0");
    testbed.ip(
        2,
        "rule add pref 1 iif eth0 ipproto udp dport 7412-65534 blackhole",
    );
    let report = testbed.report();
    let words = ["port 7411 is reached", "other ports of node 2 vanish"];
    report.expect("data ports", "node 2", "broken", &words);
    assert_eq!(report.status, 1);
    testbed.ip(2, "rule del pref 1");
    let _receiver = testbed.receiver();
    testbed.report_once_answered();
    // Like a firewall: packets from node 1 get no reply.
    testbed.ip(2, "route add blackhole 10.98.0.1/32");
    let report = testbed.report();
    assert_eq!(report.status, 1);
    let words = [
        "no answer at all from 10.98.0.2:7411",
        "firewall",
        "ping 10.98.0.2",
        start,
    ];
    report.expect("directory", "node 2", "broken", &words);
}

#[test]
fn a_directory_port_that_a_firewall_rejects_is_not_healthy() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    let _receiver = testbed.receiver();
    testbed.report_once_answered().expect_nothing_broken();
    if !testbed.nft(
        2,
        "table ip t { chain c { type filter hook input priority 0; udp dport 7411 reject; }; }",
    ) {
        eprintln!("SKIPPED: `nft` makes no rules here");
        return;
    }
    let report = testbed.report();
    let words = ["a firewall rejects port 7411", "let UDP to port 7411 pass"];
    report.expect("directory", "node 2", "unknown", &words);
    assert_eq!(report.status, 3, "{report:#?}");
}

#[test]
fn a_missing_route_and_a_detour_are_detected() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    testbed.ip(1, "route add prohibit 10.98.0.2/32");
    let report = testbed.report();
    assert_eq!(report.status, 1);
    let words = ["not found", "ip route get"];
    report.expect("route", "node 2", "broken", &words);
    testbed.ip(1, "route del prohibit 10.98.0.2/32");
    testbed.ip(1, "addr add 10.98.0.9/24 dev eth0");
    testbed.ip(1, "route add 10.98.0.2/32 dev eth0 src 10.98.0.9");
    let report = testbed.report();
    let words = [
        "would send from 10.98.0.9, not from 10.98.0.1",
        "ip route get",
    ];
    report.expect("route", "node 2", "slow", &words);
}

#[test]
fn a_wrong_own_address_a_dead_link_and_a_bridge_are_detected() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    testbed.write_hosts("1 10.98.0.7\n2 10.98.0.2\n");
    let report = testbed.report();
    assert_eq!(report.status, 1);
    let words = ["10.98.0.7 is on no device of this machine, which has 10.98.0.1 on eth0"];
    report.expect("own address", "node 1", "broken", &words);
    testbed.write_hosts("1 10.98.0.1\n2 10.98.0.2\n");
    testbed.ip(2, "link set eth0 down");
    let report = testbed.report();
    assert_eq!(report.status, 1);
    report.expect("link", "eth0", "broken", &["no carrier", "check the cable"]);
    testbed.ip(1, "link set eth0 down");
    report_down(&testbed);
    testbed.ip(1, "link add br0 type bridge");
    testbed.ip(1, "addr add 10.97.0.1/24 dev br0");
    testbed.ip(1, "link set br0 up");
    testbed.write_hosts("1 10.97.0.1\n");
    let report = testbed.report();
    report.expect("device", "br0", "slow", &["a bridge", "host networking"]);
}

fn report_down(testbed: &Testbed) {
    let report = testbed.report();
    report.expect(
        "link",
        "eth0",
        "broken",
        &["is down", "ip link set eth0 up"],
    );
    report.expect("route", "node 2", "broken", &["not found"]);
}

#[test]
fn a_node_with_another_key_or_none_is_distinguished_from_a_member() {
    let Some(testbed) = Testbed::make(false) else {
        return;
    };
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        let file = testbed.directory.path().join(name);
        let made = dipole_node::ClusterKey::random().expect("random bytes");
        made.save(&file).expect("a file of our own");
        file
    });
    let fingerprint = dipole_node::ClusterKey::load(&ours)
        .expect("just made")
        .fingerprint();
    let report = |key: Option<&std::path::PathBuf>| {
        let mut command = testbed.dipole(1);
        command.args(["--json", "doctor", "--timeout", "0.5", "--hosts"]);
        command.arg(testbed.hosts());
        if let Some(key) = key {
            command.env("DIPOLE_KEY", key);
        }
        Report::of(&mut command)
    };
    let receiver = testbed.receiver_with(Some(&ours));
    let well = once_answered(|| report(Some(&ours)), "node 2");
    well.expect_nothing_broken();
    well.expect(
        "cluster key",
        "this machine",
        "good",
        &[&fingerprint, "mode 0600"],
    );
    well.expect(
        "packet size",
        "node 2",
        "good",
        &["packets of 1500 bytes get through"],
    );
    let other = report(Some(&theirs));
    assert_eq!(other.status, 1);
    other.expect(
        "wrong key",
        "node 2",
        "broken",
        &["another cluster key", "dipole key show"],
    );
    let none = report(None);
    none.expect(
        "wrong key",
        "node 2",
        "broken",
        &["this process has none", "DIPOLE_KEY"],
    );
    none.expect(
        "cluster key",
        "this machine",
        "unknown",
        &["any host that can send UDP"],
    );
    drop(receiver);
    let _receiver = testbed.receiver_with(None);
    testbed.report_once_answered();
    let lonely = report(Some(&ours));
    let words = [
        "it has no cluster key, this process has one",
        &fingerprint,
        "set DIPOLE_KEY there",
    ];
    lonely.expect("wrong key", "node 2", "broken", &words);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&ours, mode).expect("our own file");
    let open = report(Some(&ours));
    open.expect(
        "cluster key",
        "this machine",
        "broken",
        &["mode 0644", "chmod 600"],
    );
}
