//! The effects of a fault that are visible from outside: counters of the switch, of the processes of Dipole and
//! of the kernel's TCP.

use std::collections::BTreeMap;

use dipole_naming::address::NodeId;
use dipole_naming::registry::report;
use dipole_testbed::{FaultCounters, Testbed};

/// Counters of processes that a fault changes, and their names in the timeline.
const COUNTERS: [(&str, &str); 5] = [
    ("units repeated", "units repeated"),
    ("ack requests", "acknowledgement requests"),
    ("probes", "probes"),
    ("lanes lost", "paths given up"),
    ("dropped: damaged", "damaged packets dropped"),
];

/// The counters at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    switch: FaultCounters,
    /// By node, incarnation and name. The files of a process that has ended disappear.
    processes: BTreeMap<(u32, u64, &'static str), u64>,
    /// Segments that each node's kernel has sent again.
    tcp: Vec<u64>,
}

impl Sample {
    /// Reads all counters. Processes write theirs a few times a second.
    pub(crate) fn take(testbed: &Testbed) -> Sample {
        let mut sample = Sample {
            switch: testbed.fault_counters(),
            ..Sample::default()
        };
        for node in 1..=testbed.nodes() {
            let folder = &testbed.node(node).runtime_dir;
            for process in report(folder, NodeId(node)).unwrap_or_default() {
                let values = process.counters.map(|counters| counters.values);
                for (name, value) in values.unwrap_or_default() {
                    let known = COUNTERS.iter().find(|(counter, _)| *counter == name);
                    if let Some((_, shown)) = known {
                        let key = (node, process.incarnation, *shown);
                        sample.processes.insert(key, value);
                    }
                }
            }
            let tcp = testbed.inside(node, || {
                std::fs::read_to_string("/proc/thread-self/net/snmp")
            });
            let tcp = tcp.ok().and_then(Result::ok);
            let repeated = tcp.and_then(|text| repeated_segments(&text));
            sample.tcp.push(repeated.unwrap_or(0));
        }
        sample
    }

    /// Changes since an earlier sample that are not zero, with their names.
    pub(crate) fn since(&self, before: &Sample) -> Vec<(&'static str, u64)> {
        let (now, then) = (&self.switch, &before.switch);
        let lost = |one: &FaultCounters| one.dropped + one.cut + one.undelivered;
        let mut found = vec![("packets lost", lost(now) - lost(then))];
        for (_, shown) in COUNTERS {
            let values = self
                .processes
                .iter()
                .filter(|((.., name), _)| *name == shown);
            let changes = values.map(|(key, value)| {
                let earlier = before.processes.get(key).copied();
                value.saturating_sub(earlier.unwrap_or(0))
            });
            found.push((shown, changes.sum()));
        }
        let tcp = self.tcp.iter().zip(&before.tcp);
        let repeated = tcp.map(|(now, then)| now.saturating_sub(*then)).sum();
        found.push(("TCP segments repeated", repeated));
        found.retain(|(_, count)| *count > 0);
        found
    }
}

/// Finds `RetransSegs` in the text of `/proc/net/snmp`, which has a line of names and one of values.
fn repeated_segments(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = pairs.find(|(name, _)| *name == "RetransSegs")?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_segments_are_found() {
        let text = "Ip: A B\nIp: 1 2\nTcp: InSegs RetransSegs OutRsts\nTcp: 5 17 0\nUdp: X\n";
        assert_eq!(repeated_segments(text), Some(17));
        assert_eq!(repeated_segments("Tcp: A\n"), None);
        assert_eq!(repeated_segments(""), None);
    }

    #[test]
    fn changes_are_summed_over_processes_and_zeros_are_left_out() {
        let key = |incarnation| (1, incarnation, "probes");
        let before = Sample {
            processes: BTreeMap::from([(key(1), 5), (key(2), 7)]),
            tcp: vec![1, 1],
            ..Sample::default()
        };
        let mut after = Sample {
            // The second process has ended, and a third has begun.
            processes: BTreeMap::from([(key(1), 8), (key(3), 2)]),
            tcp: vec![1, 3],
            ..Sample::default()
        };
        after.switch.cut = 4;
        let expected = [
            ("packets lost", 4),
            ("probes", 5),
            ("TCP segments repeated", 2),
        ];
        assert_eq!(after.since(&before), expected);
    }
}
