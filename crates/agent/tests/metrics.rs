//! The metrics of a process that uses every link, the page that explains them, and the dashboard.

#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;

use dipole_bpf::BpfStats;
use dipole_node::registry::{LinkUse, Ports, Registry, ReportFiles};
use dipole_node::{GAUGES, NodeId, ShmStats, Stats};

/// Names of all counters, and the metrics of a process that has them.
fn all_metrics() -> (Vec<String>, String) {
    let stats = Stats {
        local: Some(ShmStats::default()),
        bpf: Some(BpfStats::default()),
        started_s: 1_700_000_000,
        shortages: Some(0),
        ..Stats::default()
    };
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = directory.path().join("dipole");
    let registry = Registry::open(&runtime, NodeId(1)).expect("a registry");
    let address = "127.0.0.1:9".parse().expect("an address");
    let ports = Ports {
        small: address,
        bulk: address,
        incarnation: 77,
    };
    let _registration = registry.register(ports).expect("registered");
    let files = ReportFiles::new(&registry, 77);
    let mut values = stats.values();
    // Those of the layer above.
    let is_own = |name: &str| stats.values().iter().any(|(own, _)| own == name);
    let others = GAUGES.into_iter().filter(|name| !is_own(name));
    values.extend(others.map(|name| (name.to_owned(), 0)));
    files.write_counters(values.clone()).expect("written");
    let link = LinkUse {
        node: NodeId(2),
        incarnation: 1,
        link: "udp".to_owned(),
        paths: String::new(),
        check: "crc32c".to_owned(),
        why: String::new(),
    };
    files.write_links(&[link]).expect("written");
    let text = dipole_agent::metrics(&runtime).expect("readable");
    let names = values.into_iter().map(|(name, _)| name).collect();
    (names, text)
}

/// The labels of the process.
fn labels(text: &str) -> &str {
    let mut lines = text.lines();
    let edges = lines.find_map(|line| line.strip_prefix("dipole_edges{"));
    let (labels, _) = edges
        .expect("it is listed")
        .split_once("} ")
        .expect("a value");
    labels
}

/// Words of a text that begin like a metric.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("dipole_")).collect()
}

fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).expect("it is in the sources")
}

#[test]
fn waits_are_a_histogram_and_the_start_is_a_time() {
    let (_, text) = all_metrics();
    let who = labels(&text);
    for line in [
        "# TYPE dipole_wait_seconds histogram".to_owned(),
        format!("dipole_wait_seconds_bucket{{{who},le=\"0.001\"}} 0"),
        format!("dipole_wait_seconds_bucket{{{who},le=\"+Inf\"}} 0"),
        format!("dipole_wait_seconds_sum{{{who}}} 0.000000000"),
        format!("dipole_wait_seconds_count{{{who}}} 0"),
        format!("dipole_start_time_seconds{{{who}}} 1700000000"),
        format!("dipole_peers{{{who},link=\"udp\"}} 1"),
    ] {
        assert!(text.lines().any(|known| known == line), "{line} in {text}");
    }
    assert!(text.contains("dipole_build_info{version=\""), "{text}");
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let (_, text) = all_metrics();
    let dashboard = file("docs/admin/grafana.json");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).expect("it is JSON");
    let panels = parsed["panels"].as_array().expect("it has panels");
    let mut expressions = 0;
    for target in panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array())
        .flatten()
    {
        let expression = target["expr"].as_str().expect("it has a query");
        let names = metric_names(expression);
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            let is_known = |line: &str| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            };
            assert!(text.lines().any(is_known), "{name} in {expression}");
        }
        expressions += 1;
    }
    assert!(expressions >= 10, "{expressions} queries");
}

#[test]
fn help_explains_each_metric_and_no_peer_is_counted_twice() {
    let (_, text) = all_metrics();
    let mut count = 0;
    for help in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, text) = help.split_once(' ').expect("a text");
        let bare = name.strip_suffix("_total").unwrap_or(name);
        let words = text.replace([' ', '-'], "_");
        assert_ne!(format!("dipole_{words}"), bare);
        assert!(text.contains(' '), "{help}");
        count += 1;
    }
    assert!(count > 40, "{count} metrics");
    let of_peers = text.lines().filter(|line| line.starts_with("# TYPE "));
    let of_peers: Vec<_> = of_peers.filter(|line| line.contains("peers")).collect();
    assert_eq!(of_peers, ["# TYPE dipole_peers gauge"]);
}

#[test]
fn every_counter_is_explained_by_all_its_names() {
    let (names, text) = all_metrics();
    let page = file("docs/reference/counters.md");
    for name in names {
        let name = match name.split_once(": ") {
            Some((prefix, _)) => format!("{prefix}: "),
            None => format!("`{name}`"),
        };
        assert!(page.contains(&name), "{name} is missing");
    }
    for family in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = family.split(' ').next().expect("a name");
        let is_named = metric_names(&page).contains(name);
        assert!(is_named, "{name} is missing");
    }
    let header = file("include/dipole.h");
    let (_, members) = header.split_once("struct dp_stats {").expect("it is there");
    let (members, _) = members.split_once("};").expect("it ends");
    for line in members
        .lines()
        .filter_map(|line| line.trim().strip_prefix("uint64_t "))
    {
        let member = line.split(';').next().expect("a name");
        assert!(page.contains(&format!("`{member}`")), "{member} is missing");
    }
    for reason in dipole_node::drop_reasons() {
        assert!(page.contains(&format!("`{reason}`")), "{reason} is missing");
    }
}
