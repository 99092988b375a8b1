//! Counters of this user's processes in the text format of Prometheus.

mod help;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use dipole_node::registry::{ProcessReport, RegistryError, report};
use dipole_node::{GAUGES, NodeId};

/// Maximum number of processes listed; the others are only counted.
const MAX_PROCESSES: usize = 1000;
/// Maximum length of a command in labels.
const COMMAND_CHARS: usize = 80;
/// The values of one metric, each with the suffix of its name and its labels.
struct Family {
    kind: &'static str,
    help: String,
    values: Vec<(&'static str, String, String)>,
}

/// All metrics by name.
#[derive(Default)]
struct Families(BTreeMap<String, Family>);

impl Families {
    fn add(&mut self, metric: Metric, labels: String, value: impl ToString) {
        let Metric {
            name,
            suffix,
            kind,
            help,
        } = metric;
        let family = self.0.entry(name).or_insert_with(|| Family {
            kind,
            help,
            values: Vec::new(),
        });
        family.values.push((suffix, labels, value.to_string()));
    }
}

/// Name and kind of a metric.
struct Metric {
    name: String,
    suffix: &'static str,
    kind: &'static str,
    help: String,
}

impl Metric {
    fn gauge(name: &str, help: &str) -> Metric {
        Metric::of(name, "", "gauge", help)
    }

    fn of(name: &str, suffix: &'static str, kind: &'static str, help: &str) -> Metric {
        Metric {
            name: name.to_owned(),
            suffix,
            kind,
            help: help.to_owned(),
        }
    }
}

/// Counters of all live processes in a runtime directory.
///
/// # Errors
/// The directory cannot be read, or a live process's file is damaged.
pub fn metrics(runtime_dir: &Path) -> Result<String, RegistryError> {
    let mut nodes: Vec<u32> = Vec::new();
    for entry in std::fs::read_dir(runtime_dir)
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let node = name.to_str().and_then(|name| name.strip_prefix("node-"));
        nodes.extend(node.and_then(|number| number.parse::<u32>().ok()));
    }
    nodes.sort_unstable();
    let mut found = Vec::new();
    for node in nodes.into_iter().map(NodeId) {
        let living = report(runtime_dir, node)?.into_iter();
        let living = living.filter(|report| report.owner.is_some());
        found.extend(living.map(|report| (node, report)));
    }
    Ok(text(&found))
}

fn text(found: &[(NodeId, ProcessReport)]) -> String {
    let mut families = Families::default();
    let build = format!(
        "version=\"{}\",commit=\"{}\"",
        env!("CARGO_PKG_VERSION"),
        env!("SOURCE_COMMIT")
    );
    let help = "version and commit of the program that serves these metrics";
    families.add(Metric::gauge("dipole_build_info", help), build, 1);
    let processes = Metric::gauge("dipole_processes", "processes with a node of Dipole");
    families.add(processes, String::new(), found.len());
    let help = "processes whose counters are left out here, since there are so many";
    let omitted = found.len().saturating_sub(MAX_PROCESSES);
    let metric = Metric::gauge("dipole_processes_omitted", help);
    families.add(metric, String::new(), omitted);
    for (node, report) in found.iter().take(MAX_PROCESSES) {
        add_process(&mut families, *node, report);
    }
    let mut text = String::new();
    for (name, Family { kind, help, values }) in families.0 {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _fits = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (suffix, labels, value) in values {
            let _fits = match labels.is_empty() {
                true => writeln!(text, "{name}{suffix} {value}"),
                false => writeln!(text, "{name}{suffix}{{{labels}}} {value}"),
            };
        }
    }
    text
}

fn add_process(families: &mut Families, node: NodeId, report: &ProcessReport) {
    let command = report.owner.as_ref().map_or("", |owner| &owner.command);
    let who = format!(
        "node=\"{node}\",pid=\"{}\",command=\"{}\"",
        report.pid().unwrap_or(0),
        escape(command)
    );
    let endpoints = Metric::gauge("dipole_endpoints", "open endpoints");
    families.add(endpoints, who.clone(), report.endpoints.len());
    let counters = report.counters.as_ref();
    for (name, value) in counters.map_or(&[][..], |counters| &counters.values) {
        add_value(families, &who, name, *value);
    }
    let mut links: BTreeMap<&str, u64> = BTreeMap::new();
    for link in &report.links {
        *links.entry(&link.link).or_default() += 1;
    }
    for (link, peers) in links {
        let labels = format!("{who},link=\"{}\"", escape(link));
        let metric = Metric::gauge(
            "dipole_peers",
            "processes to which this one has a connection, by link",
        );
        families.add(metric, labels, peers);
    }
}

/// Adds a value of `dipole stats`. Some become labels of a common metric.
fn add_value(families: &mut Families, who: &str, name: &str, value: u64) {
    let waits = |suffix| {
        let help = "how long calls waited that did not succeed at once";
        Metric::of("dipole_wait_seconds", suffix, "histogram", help)
    };
    if let Some(reason) = name.strip_prefix("dropped: ") {
        let help = "packets, or records in them, dropped on arrival, by reason";
        let metric = Metric::of("dipole_packets_dropped_total", "", "counter", help);
        let labels = format!("{who},reason=\"{}\"", escape(reason));
        families.add(metric, labels, value);
    } else if let Some(limit) = name.strip_prefix("waits up to: ") {
        let limit = escape(limit.trim_end_matches(" s"));
        families.add(waits("_bucket"), format!("{who},le=\"{limit}\""), value);
    } else if name == "waits" {
        families.add(waits("_count"), who.to_owned(), value);
    } else if name == "wait nanoseconds" {
        let (seconds, rest) = (value / 1_000_000_000, value % 1_000_000_000);
        let sum = format!("{seconds}.{rest:09}");
        families.add(waits("_sum"), who.to_owned(), sum);
    } else if name == "start time in seconds" {
        let help = "when the process opened its node, in seconds since 1970";
        let metric = Metric::gauge("dipole_start_time_seconds", help);
        families.add(metric, who.to_owned(), value);
    } else if matches!(name, "network peers" | "shared-memory peers") {
        // `dipole_peers` counts the same peers, by link.
    } else if GAUGES.contains(&name) {
        let metric = Metric::gauge(&key(name), help::of(name));
        families.add(metric, who.to_owned(), value);
    } else {
        let metric = Metric::of(&(key(name) + "_total"), "", "counter", help::of(name));
        families.add(metric, who.to_owned(), value);
    }
}

/// Converts the name of a counter to a valid metric name.
fn key(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    format!("dipole_{}", words.join("_").to_ascii_lowercase())
}

/// Truncates and escapes a text for a label value.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars().take(COMMAND_CHARS) {
        match c {
            '\\' => escaped += "\\\\",
            '"' => escaped += "\\\"",
            '\n' => escaped += "\\n",
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use dipole_node::registry::Counters;
    use proptest::prelude::*;

    use super::*;

    fn process(pid: u32, values: &[(&str, u64)]) -> (NodeId, ProcessReport) {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        let report = ProcessReport {
            incarnation: u64::from(pid),
            owner: None,
            endpoints: Vec::new(),
            counters: Some(Counters {
                pid,
                values: values.collect(),
            }),
            links: Vec::new(),
        };
        (NodeId(1), report)
    }

    /// Checks that every line is valid and belongs to the family above it.
    fn check(text: &str) {
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().expect("a name");
                let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
                assert!(family.chars().all(legal), "{line}");
            } else if !line.starts_with("# HELP ") {
                let (before, value) = line.rsplit_once(' ').expect("a value");
                value.parse::<f64>().expect("a number");
                let labels = before.strip_prefix(family).expect("of its family");
                let suffixes = ["_bucket", "_sum", "_count"];
                let suffix = suffixes.iter().find_map(|it| labels.strip_prefix(it));
                let labels = suffix.unwrap_or(labels);
                assert!(
                    labels.is_empty() || labels.starts_with('{') && labels.ends_with("\"}"),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn counters_have_the_names_and_labels_of_prometheus() {
        let found = [
            process(
                7,
                &[("units repeated", 3), ("dropped: forged", 1), ("edges", 2)],
            ),
            process(8, &[("units repeated", 4)]),
        ];
        let text = text(&found);
        check(&text);
        for line in [
            "dipole_processes 2",
            "# TYPE dipole_units_repeated_total counter",
            "dipole_units_repeated_total{node=\"1\",pid=\"7\",command=\"\"} 3",
            "dipole_units_repeated_total{node=\"1\",pid=\"8\",command=\"\"} 4",
            "dipole_packets_dropped_total{node=\"1\",pid=\"7\",command=\"\",reason=\"forged\"} 1",
            "# TYPE dipole_edges gauge",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} in {text}");
        }
        assert_eq!(
            text.matches("# TYPE dipole_units_repeated_total").count(),
            1
        );
    }

    #[test]
    fn many_processes_are_bounded_and_counted() {
        let found: Vec<_> = (0..1500).map(|pid| process(pid, &[("edges", 1)])).collect();
        let text = text(&found);
        assert_eq!(text.matches("dipole_edges{").count(), MAX_PROCESSES);
        assert!(text.contains("dipole_processes 1500\n"));
        assert!(text.contains("dipole_processes_omitted 500\n"));
    }

    proptest! {
        #[test]
        fn lines_are_whole_with_any_name_of_a_counter(name in ".*", value: u64) {
            check(&text(&[process(7, &[(&name, value)])]));
        }

        #[test]
        fn no_command_breaks_out_of_its_label(command in ".*") {
            let escaped = escape(&command);
            let mut rest = escaped.chars();
            while let Some(c) = rest.next() {
                prop_assert!(c != '"' && !c.is_control());
                if c == '\\' {
                    let next = rest.next();
                    prop_assert!(matches!(next, Some('\\' | '"' | 'n')), "{escaped}");
                }
            }
        }
    }
}
