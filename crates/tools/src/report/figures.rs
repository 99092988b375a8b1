//! The figures of a report.

use dipole_model::Profile;
use dipole_model::{Machine, MedianInterval, PointToPoint};
use dipole_page::{Chart, Curve, Point, Scale, behind, digits};

use super::tables;

const BYTES: (Scale, &str) = (Scale::Bytes, "message size, bytes");
/// Upper end of the predictions that are drawn.
const LONGEST: usize = 4 << 20;

/// Titles and HTML of all sections that have data.
pub(super) fn sections(profiles: &[Profile]) -> Vec<(String, String)> {
    let mut sections = Vec::new();
    let messages = [
        latency(profiles).html(&behind(&tables::messages(profiles).html())),
        throughput(profiles).html(&behind(&tables::messages(profiles).html())),
        gap(profiles).html(&behind(&tables::gaps(profiles).html())),
    ];
    sections.push(("Single messages".to_owned(), messages.concat()));
    let phases: String = profiles.iter().map(phases).collect();
    sections.push(("The four phases of a short message".to_owned(), phases));
    for (one_node, title) in [
        (true, "Supersteps, all ranks on one node"),
        (false, "Supersteps, each rank on its own node"),
    ] {
        let charts = [
            cost(profiles, one_node, true),
            cost(profiles, one_node, false),
        ];
        let numbers = behind(&tables::costs(profiles).html());
        let html: String = charts.iter().map(|chart| chart.html(&numbers)).collect();
        sections.push((title.to_owned(), html));
    }
    for (title, table) in [
        ("Parameters of supersteps", tables::costs(profiles)),
        ("Copies by level of memory", tables::copies(profiles)),
    ] {
        let is_empty = table.rows.is_empty();
        sections.push((
            title.to_owned(),
            if is_empty {
                String::new()
            } else {
                table.html()
            },
        ));
    }
    sections.push(("Pacing".to_owned(), pacing(profiles)));
    sections.retain(|(_, html)| !html.is_empty());
    sections
}

/// The colour of a link.
fn family(link: &str) -> &'static str {
    match link {
        "shm" => "shm",
        "udp" => "udp",
        "bpf" => "dipole",
        _ => "tcp",
    }
}

fn models(profiles: &[Profile]) -> impl Iterator<Item = (&Profile, &PointToPoint)> {
    let all = profiles.iter();
    all.filter_map(|profile| Some((profile, profile.point_to_point.as_ref()?)))
}

fn float(count: usize) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
    let float = count as f64;
    float
}

/// One-way times by message length, both measured and predicted.
fn trips(model: &PointToPoint) -> Vec<(usize, MedianInterval, &'static str)> {
    let short = model.short.iter().map(|one| (one.bytes, one.trip_ns));
    let long = model.long.iter().map(|one| (one.bytes, one.trip_ns));
    let measured: Vec<(usize, MedianInterval)> = short.chain(long).collect();
    let lengths = (0..=LONGEST.trailing_zeros()).map(|power| 1_usize << power);
    let between = lengths.filter(|bytes| measured.iter().all(|(known, _)| known != bytes));
    let between = between.filter_map(|bytes| Some((bytes, model.predict(bytes)?.ns, "predicted")));
    let measured = measured.iter().map(|(bytes, ns)| (*bytes, *ns, "measured"));
    let mut trips: Vec<_> = measured.chain(between).collect();
    trips.sort_by_key(|(bytes, ..)| *bytes);
    trips
}

fn latency(profiles: &[Profile]) -> Chart {
    Chart {
        id: "latency".into(),
        title: "One message, one way".into(),
        text: "Both sides spin. Lengths that were not measured are predicted by the model from those that were; \
               the mark says which. Less is better.",
        x: BYTES,
        y: (Scale::Number, "one-way time, µs"),
        curves: by_trips(profiles, |_, ns| ns * 1e-3, "µs"),
    }
}

fn throughput(profiles: &[Profile]) -> Chart {
    Chart {
        id: "end-to-end".into(),
        title: "End-to-end throughput".into(),
        text: "Length by one-way time: one message at a time. More is better.",
        x: BYTES,
        y: (Scale::Number, "end-to-end throughput, GB/s"),
        curves: by_trips(profiles, |bytes, ns| float(bytes) / ns, "GB/s"),
    }
}

fn by_trips(profiles: &[Profile], of: impl Fn(usize, f64) -> f64, unit: &str) -> Vec<Curve> {
    let curves = models(profiles).map(|(profile, model)| Curve {
        end: None,
        name: format!("{} ({})", profile.link, model.place),
        family: family(&profile.link),
        points: trips(model)
            .into_iter()
            .filter(|(_, ns, _)| ns.low > 0.0 && ns.median > 0.0)
            .map(|(bytes, ns, how)| {
                let (one, other) = (of(bytes, ns.low), of(bytes, ns.high));
                let y = of(bytes, ns.median);
                Point {
                    x: float(bytes),
                    y,
                    spread: Some((one.min(other), one.max(other))),
                    note: format!(
                        "{}, {bytes} bytes, {how}: {} {unit}",
                        profile.link,
                        digits(y)
                    ),
                }
            })
            .collect(),
    });
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

fn gap(profiles: &[Profile]) -> Chart {
    let curves = models(profiles).map(|(profile, model)| {
        let points = model.short.iter().filter(|short| short.g_r_ns.median > 0.0);
        Curve {
            end: None,
            name: profile.link.clone(),
            family: family(&profile.link),
            points: points
                .map(|short| Point {
                    x: float(short.bytes),
                    y: short.g_r_ns.median,
                    spread: Some((short.g_r_ns.low.max(1e-3), short.g_r_ns.high.max(1e-3))),
                    note: format!(
                        "{}, {} bytes: g_r {} ns, g_s {} ns",
                        profile.link,
                        short.bytes,
                        digits(short.g_r_ns.median),
                        digits(short.g_s_ns.median)
                    ),
                })
                .collect(),
        }
    });
    Chart {
        id: "gap".into(),
        title: "Receive gap".into(),
        text: "From one message of a burst to the next, where they arrive: g_r. Less is better.",
        x: BYTES,
        y: (Scale::Number, "gap, ns"),
        curves: curves.filter(|curve| !curve.points.is_empty()).collect(),
    }
}

/// O_s, L, O_r and U_r of a link by length.
fn phases(profile: &Profile) -> String {
    let Some(model) = &profile.point_to_point else {
        return String::new();
    };
    type Phase = fn(&dipole_model::Short) -> MedianInterval;
    let phases: [(&str, &str, Phase); 4] = [
        ("O_s, the call that sends", "dipole", |short| short.o_s_ns),
        ("L, the network", "udp", |short| short.l_ns),
        ("O_r, taking it from the link", "tcp", |short| short.o_r_ns),
        ("U_r, the call that receives", "unix", |short| short.u_r_ns),
    ];
    let curves = phases.into_iter().map(|(name, family, of)| Curve {
        end: None,
        name: name.to_owned(),
        family,
        points: model
            .short
            .iter()
            .map(|short| {
                let phase = of(short);
                Point {
                    x: float(short.bytes),
                    y: phase.median,
                    spread: Some((phase.low, phase.high)),
                    note: format!("{name}, {} bytes: {} ns", short.bytes, digits(phase.median)),
                }
            })
            .collect(),
    });
    Chart {
        id: format!("phases-{}", profile.link),
        title: format!("Phases by {} ({})", profile.link, model.place),
        text: "Their sum is the one-way time of a message of one fragment. L is below 0 where the receiver begins \
               before the sender's call has returned.",
        x: BYTES,
        y: (Scale::Linear, "time, ns"),
        curves: curves.collect(),
    }
    .html(&behind(&tables::messages(std::slice::from_ref(profile)).html()))
}

/// l or g by number of ranks: measured points, and the fitted line.
fn cost(profiles: &[Profile], one_node: bool, is_l: bool) -> Chart {
    let curves = profiles.iter().filter_map(|profile| {
        let machine = Machine::of(&profile.cost, one_node);
        let most = machine.measured().max().filter(|most| *most > 1)?;
        let points = (2..=most * 2).filter_map(|p| {
            let parameters = machine.at(p)?;
            let is_measured = machine.measured().any(|known| known == p);
            let own = profile
                .cost
                .iter()
                .find(|cost| cost.p == p && cost.nodes == if one_node { 1 } else { p });
            let (y, unit, spread) = match is_l {
                true => (
                    parameters.l_ns * 1e-3,
                    "µs",
                    own.map(|cost| cost.l_ci_ns * 1e-3),
                ),
                false => (
                    parameters.g_ns_per_byte,
                    "ns/byte",
                    own.map(|cost| cost.g_sd),
                ),
            };
            (y > 0.0).then(|| Point {
                x: f64::from(p),
                y,
                spread: spread.map(|by| ((y - by).max(y * 0.1), y + by)),
                note: format!(
                    "{}, {p} ranks: {} {unit}, {}",
                    profile.link,
                    digits(y),
                    if is_measured {
                        "measured"
                    } else {
                        "on the line"
                    }
                ),
            })
        });
        Some(Curve {
            name: profile.link.clone(),
            family: family(&profile.link),
            points: points.collect(),
            end: None,
        })
    });
    let place = if one_node { "node" } else { "nodes" };
    let (title, text, unit) = match is_l {
        true => (
            "l, an empty superstep",
            "Bars of what was measured: 95 % confidence intervals; marks without are on the line through it.",
            "l, µs",
        ),
        false => (
            "g, a byte of a long total exchange",
            "Bars of what was measured: standard deviations; marks without are on the line through it.",
            "g, ns/byte",
        ),
    };
    Chart {
        id: format!("{}-{place}", if is_l { "l" } else { "g" }),
        title: title.into(),
        text,
        x: (Scale::Linear, "ranks"),
        y: (Scale::Number, unit),
        curves: curves.filter(|curve| !curve.points.is_empty()).collect(),
    }
}

fn pacing(profiles: &[Profile]) -> String {
    let rows: Vec<Vec<String>> = profiles
        .iter()
        .filter_map(|profile| {
            let pacing = profile.pacing.as_ref()?;
            let slots = match &pacing.slots {
                Some(slots) => serde_json::to_string(slots).unwrap_or_default(),
                None => "no slots: they gained nothing".to_owned(),
            };
            Some(vec![
                profile.link.clone(),
                pacing.processes.to_string(),
                slots,
                digits(pacing.g_ns_per_byte),
                digits(pacing.unpaced_g_ns_per_byte),
            ])
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => dipole_page::table(
            &["link", "processes", "slots", "g, ns/byte", "without pacing"],
            &rows,
        ),
    }
}
