//! The plan and the timeline, as text or JSON.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::arguments::Shape;
use crate::error::ChaosError;
use crate::plan::{Action, Event, Plan, Shown};

/// One line of the timeline.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    /// Milliseconds since the start of the program.
    pub(crate) at_ms: u64,
    pub(crate) event: &'static str,
    pub(crate) target: String,
    /// How long it lasts, or what came of it.
    pub(crate) detail: String,
    /// Counters that changed from its beginning to a second after its end.
    pub(crate) noticed: Vec<(&'static str, u64)>,
}

impl Entry {
    pub(crate) fn new(at: Duration, event: &'static str, target: String, detail: String) -> Entry {
        Entry {
            at_ms: milliseconds(at),
            event,
            target,
            detail,
            noticed: Vec::new(),
        }
    }
}

/// The first line: what is repeated with the seed.
#[derive(Serialize)]
struct Heading<'a> {
    event: &'static str,
    seed: u64,
    nodes: u32,
    networks: u32,
    ranks: u32,
    faults_ms: u64,
    packets: Packets,
    clocks_ms: &'a [u64],
}

/// Probabilities of faults of single packets.
#[derive(Serialize)]
struct Packets {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    corrupt: f64,
    delay: f64,
    delay_ms: f64,
}

pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Creates the file of the timeline.
pub(crate) fn create(path: &Path) -> Result<File, ChaosError> {
    dipole_naming::files::create(path).map_err(|cause| ChaosError::File {
        path: path.to_owned(),
        cause,
    })
}

/// The line of an event before it happens.
pub(crate) fn planned(event: &Event) -> Entry {
    let detail = match event.action {
        Action::Kill { .. } => String::new(),
        _ => format!("for {}", Shown(event.lasts)),
    };
    let (name, target) = (event.action.name(), event.action.target());
    Entry::new(event.at, name, target, detail)
}

fn write_heading(plan: &Plan, shape: &Shape, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let packets = &plan.packets;
    if json {
        let clocks: Vec<u64> = plan.clocks.iter().copied().map(milliseconds).collect();
        let heading = Heading {
            event: "plan",
            seed: plan.seed,
            nodes: shape.nodes,
            networks: shape.networks,
            ranks: shape.ranks,
            faults_ms: milliseconds(plan.duration),
            packets: Packets {
                loss: packets.drop,
                duplicate: packets.repeat,
                reorder: packets.reorder,
                corrupt: packets.corrupt,
                delay: packets.delay,
                delay_ms: packets.delay_time.as_secs_f64() * 1e3,
            },
            clocks_ms: &clocks,
        };
        return writeln!(out, "{}", line(&heading));
    }
    writeln!(
        out,
        "dipole chaos: seed {}, {} ranks on {} nodes, faults for {}",
        plan.seed,
        shape.ranks,
        shape.nodes,
        Shown(plan.duration)
    )?;
    if plan.has_packet_faults() {
        let percent = |probability: f64| format!("{} %", probability * 100.0);
        let mut parts = Vec::new();
        for (name, probability) in [
            ("lost", packets.drop),
            ("duplicated", packets.repeat),
            ("reordered", packets.reorder),
            ("corrupted", packets.corrupt),
        ] {
            if probability > 0.0 {
                parts.push(format!("{} {name}", percent(probability)));
            }
        }
        if packets.delay > 0.0 {
            let by = Shown(packets.delay_time);
            parts.push(format!("{} delayed by {by}", percent(packets.delay)));
        }
        writeln!(out, "packets: {}", parts.join(", "))?;
    }
    for (node, clock) in (1..).zip(&plan.clocks) {
        if !clock.is_zero() {
            writeln!(out, "node {node}: clock {} s ahead", clock.as_secs())?;
        }
    }
    Ok(())
}

/// Prints the plan.
pub(crate) fn write_plan(
    plan: &Plan,
    shape: &Shape,
    json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let entries: Vec<Entry> = plan.events.iter().map(planned).collect();
    write_timeline(plan, shape, &entries, json, out)
}

/// Prints the timeline.
pub(crate) fn write_timeline(
    plan: &Plan,
    shape: &Shape,
    entries: &[Entry],
    json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_heading(plan, shape, json, out)?;
    for entry in entries {
        if json {
            writeln!(out, "{}", line(entry))?;
            continue;
        }
        let at = Duration::from_millis(entry.at_ms).as_secs_f64();
        let words = format!("{} {}", entry.event, entry.detail);
        let mut text = format!("{:<16} {}", entry.target, words.trim_end());
        if !entry.noticed.is_empty() {
            let noticed = entry.noticed.iter();
            let noticed: Vec<String> = noticed
                .map(|(name, count)| format!("{name}: {count}"))
                .collect();
            text = format!("{text:<52} {}", noticed.join(", "));
        }
        writeln!(out, "{at:9.3} s  {text}")?;
    }
    Ok(())
}

fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it has text keys")
}
