//! Computes the parameters of one contender from the output of its ranks.

use dipole_model::Contention;
use serde::Serialize;

use super::Link;
use crate::bsp::sample::{Metric, Packets, RankOutput, Sample};
use crate::estimate::Estimate;
use crate::statistics::as_float;

/// Contender, ranks and placement of a measurement.
pub struct Configuration {
    pub subject: &'static str,
    pub p: u32,
    pub nodes: u32,
    pub link: Link,
    pub testbed: &'static str,
    pub is_bound: bool,
}

/// Parameters of one contender with one number of ranks on one link. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `dipole` or the name of another contender.
    pub subject: &'static str,
    pub p: u32,
    pub nodes: u32,
    pub link: String,
    /// The network of the link: `veth`, `loopback`, or none (`node`).
    pub testbed: &'static str,
    /// Each rank is pinned to a core.
    pub is_bound: bool,
    /// Speed of a rank while all ranks compute.
    pub s_mflops: f64,
    /// Time of an empty superstep: the median of batches.
    pub l_ns: f64,
    /// Half the width of the 95 % confidence interval of `l_ns`.
    pub l_ci_ns: f64,
    /// Time of the longest total exchange beyond the fastest empty superstep, per byte of h: the
    /// median for the faster call.
    pub g_ns_per_byte: f64,
    /// Standard deviation of `g_ns_per_byte` between supersteps.
    pub g_sd: f64,
    /// l and g in operations of the processor: l s, and g s per byte.
    pub l_flops: f64,
    pub g_flops_per_byte: f64,
    /// l / g: the h for which the transfer takes as long as an empty superstep. `None` if transfers
    /// took no longer than an empty superstep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_h_bytes: Option<f64>,
    pub call: String,
    /// Empty supersteps, timed one by one.
    pub sync_p50_ns: f64,
    pub sync_p99_ns: f64,
    /// Time of a superstep in which each rank puts 8 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub put_ns: Option<f64>,
    /// Time per byte of copies of the same h by all ranks: the limit within a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_ns_per_byte: Option<f64>,
    /// One-way time of a bare datagram between two nodes: the limit between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_ns: Option<f64>,
    pub empty: Vec<Empty>,
    pub relations: Vec<Relation>,
    /// Total exchanges by order of destinations.
    pub orders: Vec<Ordered>,
    pub spray: Vec<Spray>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<Packets>,
}

/// Empty supersteps with one of the calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Empty {
    pub call: String,
    pub ns: Estimate,
}

/// Supersteps of one pattern, h and call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Relation {
    pub pattern: Metric,
    pub call: String,
    /// The largest h, if it varies.
    pub h_bytes: usize,
    /// Time of a superstep.
    pub ns: Estimate,
    /// Time beyond the fastest empty superstep, per byte of h.
    pub g_ns_per_byte: Estimate,
}

/// Total exchanges of messages of one length in one order of destinations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ordered {
    pub order: String,
    pub message_bytes: usize,
    /// Time of a superstep.
    pub ns: Estimate,
}

/// A burst of messages and its return: half of the time, divided by the number of messages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spray {
    pub call: String,
    pub size_bytes: usize,
    pub messages: usize,
    pub ns: Estimate,
}

impl Row {
    /// Computes the parameters. `None` if an essential sample is missing.
    pub fn of(output: &[RankOutput], configuration: &Configuration) -> Option<Row> {
        let &Configuration {
            subject,
            p,
            nodes,
            link,
            testbed,
            is_bound,
        } = configuration;
        let samples = Samples::of(output);
        let sync = samples.first(Metric::Sync)?;
        let l = Estimate::of(sync.ns.iter().copied())?;
        let each = Estimate::of(samples.first(Metric::EachSync)?.ns.iter().copied())?;
        let flops = Estimate::of(samples.all(Metric::Flops).flat_map(|one| one.ns.clone()))?;
        let s_mflops = 1e3 / flops.median;
        let median = |what| {
            let sample = samples.first(what)?;
            Some(Estimate::of(sample.ns.iter().copied())?.median)
        };
        let patterns = [
            Metric::Exchange,
            Metric::Gather,
            Metric::Scatter,
            Metric::Random,
        ];
        let all = patterns.into_iter().flat_map(|what| samples.all(what));
        let relations: Vec<Relation> = all.filter_map(|one| relation(one, &samples)).collect();
        let longest = relations
            .iter()
            .filter(|one| one.pattern == Metric::Exchange);
        let longest_h = longest.clone().map(|one| one.h_bytes).max()?;
        let best = longest
            .filter(|one| one.h_bytes == longest_h)
            .min_by(|a, b| a.g_ns_per_byte.median.total_cmp(&b.g_ns_per_byte.median))?;
        let g = best.g_ns_per_byte;
        Some(Row {
            subject,
            p,
            nodes,
            link: link.name(),
            testbed,
            is_bound,
            s_mflops,
            l_ns: l.median,
            l_ci_ns: l.margin(),
            g_ns_per_byte: g.median,
            g_sd: g.sd,
            l_flops: l.median * s_mflops * 1e-3,
            g_flops_per_byte: g.median * s_mflops * 1e-3,
            half_h_bytes: (g.median > 0.0).then(|| l.median / g.median),
            call: best.call.clone(),
            sync_p50_ns: each.median,
            sync_p99_ns: each.p99,
            put_ns: median(Metric::Put),
            copy_ns_per_byte: samples.first(Metric::Copy).and_then(|copy| {
                let bytes = as_float(copy.bytes as u64);
                Some(Estimate::of(copy.ns.iter().copied())?.median / bytes)
            }),
            one_way_ns: median(Metric::OneWay),
            empty: empty(&samples),
            orders: orders(&samples),
            spray: bursts(&samples),
            packets: samples.packets,
            relations,
        })
    }

    /// Returns the cost of relations with and without contention, by the call that is fastest for the
    /// exchange. `None` if one was not measured.
    pub fn contention(&self) -> Option<Contention> {
        let of = |pattern| {
            let same = self.relations.iter();
            let same = same.filter(|one| one.pattern == pattern && one.call == self.call);
            let longest = same.max_by_key(|one| one.h_bytes)?;
            Some(longest.g_ns_per_byte.median)
        };
        Some(Contention {
            one_to_many: of(Metric::Scatter)?,
            many_to_one: of(Metric::Gather)?,
            exchange: self.g_ns_per_byte,
        })
    }
}

/// Returns the empty supersteps by call.
fn empty(samples: &Samples) -> Vec<Empty> {
    let all = samples.all(Metric::Sync).filter_map(|one| {
        Some(Empty {
            call: one.call.clone(),
            ns: Estimate::of(one.ns.iter().copied())?,
        })
    });
    all.collect()
}

/// Returns the total exchanges by order of destinations.
fn orders(samples: &Samples) -> Vec<Ordered> {
    let all = samples.all(Metric::Ordered).filter_map(|one| {
        Some(Ordered {
            order: one.call.clone(),
            message_bytes: one.bytes,
            ns: Estimate::of(one.ns.iter().copied())?,
        })
    });
    all.collect()
}

/// Returns the bursts by length and number of messages.
fn bursts(samples: &Samples) -> Vec<Spray> {
    let all = samples.all(Metric::Spray).filter_map(|one| {
        let each = 2.0 * as_float(one.messages as u64);
        Some(Spray {
            call: one.call.clone(),
            size_bytes: one.bytes,
            messages: one.messages,
            ns: Estimate::of(one.ns.iter().map(|ns| ns / each))?,
        })
    });
    all.collect()
}

/// Returns the time of a relation, and what each byte adds. `None` if an empty superstep is missing.
fn relation(sample: &Sample, samples: &Samples) -> Option<Relation> {
    // Subtract the fastest empty superstep of the same call: with a stall among them, long
    // supersteps would seem to cost nothing.
    let empty = [Metric::Sync, Metric::EachSync].into_iter();
    let empty = empty.flat_map(|what| samples.all(what));
    let same = empty.clone().filter(|one| one.call == sample.call);
    let least = |ns: f64, one: &Sample| one.ns.iter().copied().fold(ns, f64::min);
    // Empty supersteps are the same for unbuffered puts.
    let l_ns = match same.fold(f64::INFINITY, least) {
        ns if ns.is_finite() => ns,
        _ => empty.fold(f64::INFINITY, least),
    };
    let h = |index: usize| match sample.h.get(index) {
        Some(h) => h.max(1.0),
        None => as_float(sample.bytes as u64),
    };
    let by_h = sample.ns.iter().enumerate();
    let by_h = by_h.map(|(index, ns)| (ns - l_ns).max(0.0) / h(index));
    let largest = sample.h.iter().copied().fold(0.0, f64::max);
    Some(Relation {
        pattern: sample.what,
        call: sample.call.clone(),
        h_bytes: match sample.h.is_empty() {
            true => sample.bytes,
            false => super::rank::whole(largest),
        },
        ns: Estimate::of(sample.ns.iter().copied())?,
        g_ns_per_byte: Estimate::of(by_h)?,
    })
}

/// Samples of all rounds, with samples of the same measurement joined.
struct Samples {
    samples: Vec<Sample>,
    packets: Option<Packets>,
}

impl Samples {
    fn of(told: &[RankOutput]) -> Samples {
        let mut samples: Vec<Sample> = Vec::new();
        let mut packets: Option<Packets> = None;
        for told in told {
            match told {
                RankOutput::Packets { packets: some } => {
                    let so_far = packets.unwrap_or_default();
                    packets = Some(so_far.combined(*some, u64::saturating_add));
                }
                RankOutput::Sample(sample) => {
                    let is_same = |one: &&mut Sample| {
                        (one.what, &one.call, one.bytes, one.messages, one.rank)
                            == (
                                sample.what,
                                &sample.call,
                                sample.bytes,
                                sample.messages,
                                sample.rank,
                            )
                    };
                    match samples.iter_mut().find(is_same) {
                        Some(one) => {
                            one.ns.extend(&sample.ns);
                            one.h.extend(&sample.h);
                        }
                        None => samples.push(sample.clone()),
                    }
                }
            }
        }
        Samples { samples, packets }
    }

    fn all(&self, what: Metric) -> impl Iterator<Item = &Sample> + Clone {
        self.samples.iter().filter(move |one| one.what == what)
    }

    fn first(&self, what: Metric) -> Option<&Sample> {
        self.all(what).next()
    }
}

/// Copies the limits from Dipole's row to those of other contenders in the same run.
pub(super) fn complete(rows: &mut [Row]) {
    let own: Vec<Row> = (rows.iter())
        .filter(|row| row.subject == "dipole")
        .cloned()
        .collect();
    for row in rows.iter_mut().filter(|row| row.subject != "dipole") {
        let beside = |own: &&Row| (own.p, own.testbed) == (row.p, row.testbed);
        if let Some(own) = own.iter().find(beside) {
            (row.copy_ns_per_byte, row.one_way_ns) = (own.copy_ns_per_byte, own.one_way_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(what: Metric, call: &str, bytes: usize, ns: &[f64]) -> RankOutput {
        RankOutput::Sample(Sample {
            what,
            call: call.to_owned(),
            rank: 0,
            bytes,
            messages: 2,
            ns: ns.to_vec(),
            h: Vec::new(),
        })
    }

    fn told() -> Vec<RankOutput> {
        let packets = Packets {
            sent: 10,
            units: 8,
            ..Packets::default()
        };
        let mut told = vec![
            sample(Metric::Flops, "put", 0, &[0.5; 8]),
            sample(Metric::Sync, "put", 0, &[90.0, 100.0, 100.0, 110.0]),
            sample(Metric::Sync, "put", 0, &[100.0; 4]),
            sample(Metric::EachSync, "put", 0, &[120.0; 8]),
            sample(Metric::Exchange, "put", 10, &[300.0; 8]),
            sample(Metric::Exchange, "put", 1000, &[2090.0; 8]),
            sample(Metric::Exchange, "hpput", 1000, &[1090.0; 8]),
            sample(Metric::Ordered, "latin-square", 64, &[500.0; 4]),
            sample(Metric::Ordered, "destination", 64, &[900.0; 8]),
            sample(Metric::Ordered, "latin-square", 64, &[700.0; 4]),
            sample(Metric::Spray, "put", 4, &[800.0; 8]),
        ];
        told.extend([
            RankOutput::Packets { packets },
            RankOutput::Packets { packets },
        ]);
        told.push(RankOutput::Sample(Sample {
            what: Metric::Random,
            call: "put".into(),
            rank: 0,
            bytes: 1000,
            messages: 0,
            ns: vec![290.0, 1090.0],
            h: vec![100.0, 500.0],
        }));
        told
    }

    fn row(told: &[RankOutput]) -> Option<Row> {
        let configuration = Configuration {
            subject: "dipole",
            p: 2,
            nodes: 1,
            link: Link::Shm,
            testbed: "node",
            is_bound: true,
        };
        Row::of(told, &configuration)
    }

    #[test]
    fn s_l_and_g_come_from_all_rounds_and_g_from_the_better_call_with_the_longest_h() {
        let row = row(&told()).expect("a row");
        assert_eq!((row.s_mflops, row.l_ns, row.l_ci_ns), (2000.0, 100.0, 10.0));
        assert_eq!((row.g_ns_per_byte, &*row.call), (1.0, "hpput"));
        assert_eq!((row.l_flops, row.half_h_bytes), (200.0, Some(100.0)));
        assert_eq!(row.spray[0].ns.median, 200.0);
        let orders: Vec<_> = (row.orders.iter())
            .map(|one| (&*one.order, one.message_bytes, one.ns.median))
            .collect();
        assert_eq!(
            orders,
            [("latin-square", 64, 600.0), ("destination", 64, 900.0)]
        );
        assert_eq!(row.packets.expect("told").sent, 20);
        let random = row.relations.last().expect("relations");
        assert_eq!((random.pattern, random.h_bytes), (Metric::Random, 500));
        assert_eq!(random.g_ns_per_byte.median, 2.0);
    }

    #[test]
    fn a_line_of_json_has_what_readers_look_for() {
        let row = row(&told()).expect("a row");
        let line = serde_json::to_value(row).expect("JSON");
        for field in [
            "p",
            "nodes",
            "s_mflops",
            "l_ns",
            "l_ci_ns",
            "g_ns_per_byte",
            "g_sd",
        ] {
            assert!(line[field].is_number(), "{field}: {line}");
        }
        assert_eq!(
            (&line["link"], &line["subject"]),
            (&"shm".into(), &"dipole".into())
        );
        assert_eq!(line["relations"][0]["pattern"], "exchange");
    }

    #[test]
    fn ranks_that_did_not_finish_make_no_row() {
        let told = told();
        assert_eq!(row(&told[..3]), None);
        assert_eq!(row(&[]), None);
    }

    #[test]
    fn peers_get_the_limits_of_the_same_run_and_place() {
        let own = row(&told()).expect("a row");
        let own = Row {
            copy_ns_per_byte: Some(0.5),
            ..own
        };
        let peer = |p, testbed| Row {
            subject: "mpich",
            copy_ns_per_byte: None,
            p,
            testbed,
            ..own.clone()
        };
        let mut rows = vec![
            own.clone(),
            peer(2, "node"),
            peer(2, "veth"),
            peer(4, "node"),
        ];
        complete(&mut rows);
        let limits: Vec<_> = rows.iter().map(|row| row.copy_ns_per_byte).collect();
        assert_eq!(limits, [Some(0.5), Some(0.5), None, None]);
    }
}
