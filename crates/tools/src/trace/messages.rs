//! Messages of recorded processes: the phases of one message at its sender and its receiver, on one
//! axis of time.
//!
//! # Source
//! Directed Point II §5.2, figures 6 and 7. The phases here are those that the protocol core sees.

mod journey;
pub(super) mod page;
mod trail;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use dipole_page::byte_size;
use dipole_record::{RecordingError, recordings};
use serde::Serialize;

use super::MOST_ROWS;
use super::run::float;
use crate::output::{Failure, columns, fit, table};
use journey::{Journey, Phase, PhaseName, Side, journeys};
use trail::Trail;

/// Columns of the axis on a terminal.
const AXIS: usize = 60;

/// An address as NODE:ENDPOINT.
type Place = (u32, u32);

/// A message, as FROM-TO/NUMBER on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageName {
    from: Place,
    to: Place,
    number: u32,
}

impl FromStr for MessageName {
    type Err = String;

    fn from_str(text: &str) -> Result<MessageName, String> {
        let place = |text: &str| {
            let (node, endpoint) = text.split_once(':')?;
            Some((node.parse().ok()?, endpoint.parse().ok()?))
        };
        let parsed = text.split_once('/').and_then(|(edge, number)| {
            let (from, to) = edge.split_once('-')?;
            Some(MessageName {
                from: place(from)?,
                to: place(to)?,
                number: number.parse().ok()?,
            })
        });
        parsed
            .ok_or_else(|| format!("{text} is not a message such as 1:8-2:7/266 (FROM-TO/NUMBER)"))
    }
}

/// One message, for people and programs.
#[derive(Clone, Debug, Serialize)]
struct Shown {
    from: String,
    to: String,
    number: u32,
    bytes: u64,
    total_ns: i64,
    retransmissions: u32,
    phases: Vec<Phase>,
    /// The most by which times of the receiver may be wrong. `None` if the clocks of two hosts could
    /// only be compared by the time of day.
    clock_error_ns: Option<u64>,
    same_host: bool,
}

/// All messages of an edge.
#[derive(Clone, Debug, Serialize)]
struct Edge {
    from: String,
    to: String,
    messages: usize,
    median_ns: i64,
    longest_ns: i64,
    /// Sum of each phase over all messages.
    phases: BTreeMap<PhaseName, i64>,
}

/// The messages of a directory.
#[derive(Debug, Serialize)]
pub(super) struct Messages {
    edges: Vec<Edge>,
    shown: Shown,
    notes: Vec<String>,
    #[serde(skip)]
    is_chosen: bool,
}

/// The messages of the recordings in a directory, and the one that is chosen or took longest. `None`
/// if nothing was recorded there.
pub(super) fn load(dir: &Path, chosen: Option<MessageName>) -> Result<Option<Messages>, Failure> {
    let found = match (recordings(dir), chosen) {
        (Ok((found, _)), _) => found,
        (Err(RecordingError::None(_)), None) => return Ok(None),
        (Err(cause), _) => return Err(cause.into()),
    };
    let trails: Vec<Trail> = found.into_iter().map(Trail::of).collect();
    let mut all: Vec<(usize, usize, Journey)> = Vec::new();
    for (at, from) in trails.iter().enumerate() {
        for (other, to) in trails.iter().enumerate() {
            all.extend(journeys(from, to).into_iter().map(|it| (at, other, it)));
        }
    }
    let node = |at: usize| trails[at].header.node;
    let name = |(from, to, it): &(usize, usize, Journey)| MessageName {
        from: (node(*from), it.key.ends.0),
        to: (node(*to), it.key.ends.1),
        number: it.key.number,
    };
    let slowest = all.iter().max_by_key(|(.., it)| it.total_ns());
    let shown = match chosen {
        None => slowest,
        Some(chosen) => all.iter().find(|it| name(it) == chosen),
    };
    let Some(shown) = shown else {
        return match chosen {
            None => Ok(None),
            Some(_) => Err(
                "both sides of this message are not in the recordings; `dipole replay` lists \
                            what they contain"
                    .into(),
            ),
        };
    };
    let notes = (trails.iter().filter(|trail| trail.is_damaged)).map(|trail| {
        let (node, pid) = (trail.header.node, trail.header.pid);
        format!("the recording of process {pid} on node {node} cannot be replayed to its end")
    });
    let (from, to, it) = shown;
    Ok(Some(Messages {
        shown: Shown {
            from: address(name(shown).from),
            to: address(name(shown).to),
            number: it.key.number,
            bytes: it.bytes,
            total_ns: it.total_ns(),
            retransmissions: it.repeats,
            phases: it.phases.clone(),
            clock_error_ns: it.error_ns,
            same_host: trails[*from].header.host == trails[*to].header.host,
        },
        notes: notes.collect(),
        is_chosen: chosen.is_some(),
        edges: edges(all.iter().map(|it| (name(it), &it.2))),
    }))
}

fn address((node, endpoint): Place) -> String {
    format!("{node}:{endpoint}")
}

/// The messages of each edge, those with the longest message first.
fn edges<'a>(all: impl Iterator<Item = (MessageName, &'a Journey)>) -> Vec<Edge> {
    let mut by_edge: BTreeMap<(Place, Place), Vec<&Journey>> = BTreeMap::new();
    for (name, it) in all {
        by_edge.entry((name.from, name.to)).or_default().push(it);
    }
    let edges = by_edge.into_iter().map(|((from, to), messages)| {
        let mut totals: Vec<i64> = messages.iter().map(|it| it.total_ns()).collect();
        totals.sort_unstable();
        let mut phases: BTreeMap<PhaseName, i64> = BTreeMap::new();
        for phase in messages.iter().flat_map(|it| &it.phases) {
            let sum = phases.entry(phase.name).or_default();
            *sum = sum.saturating_add(phase.ns());
        }
        Edge {
            from: address(from),
            to: address(to),
            messages: totals.len(),
            median_ns: totals[totals.len() / 2],
            longest_ns: totals[totals.len() - 1],
            phases,
        }
    });
    let mut edges: Vec<Edge> = edges.collect();
    edges.sort_by_key(|edge| std::cmp::Reverse(edge.longest_ns));
    edges
}

/// Prints the edges, and the shown message.
pub(super) fn print(messages: &Messages, out: &mut dyn Write) -> Result<(), Failure> {
    let mut rows = table([
        "from",
        "to",
        "messages",
        "median us",
        "longest us",
        "most of it",
    ]);
    for edge in messages.edges.iter().take(MOST_ROWS) {
        let most = edge.phases.iter().max_by_key(|(_, ns)| **ns);
        let sum: i64 = edge.phases.values().filter(|ns| **ns > 0).sum();
        let most = most.map(|(name, ns)| {
            let share = 100.0 * signed(*ns) / signed(sum.max(1));
            format!("{} ({share:.0} %)", name.name())
        });
        rows.add_row([
            edge.from.clone(),
            edge.to.clone(),
            edge.messages.to_string(),
            us(edge.median_ns),
            us(edge.longest_ns),
            most.unwrap_or_default(),
        ]);
    }
    writeln!(out, "{}", fit(&rows, columns()))?;
    let shown = &messages.shown;
    let which = match messages.is_chosen {
        true => "",
        false => ", the slowest",
    };
    writeln!(out, "{}{which}: {}", title(shown), summary(shown))?;
    let width = columns().map_or(AXIS, |columns| columns.saturating_sub(10).clamp(10, AXIS));
    for (name, side) in [
        ("sender", Side::Sender),
        ("network", Side::Network),
        ("receiver", Side::Receiver),
    ] {
        writeln!(out, "{name:>8} |{}|", bar(shown, side, width))?;
    }
    let mut rows = table(["phase", "at", "from us", "to us", "us", "the message"]);
    for phase in &shown.phases {
        let at = match phase.side {
            Side::Sender => shown.from.as_str(),
            Side::Network => "",
            Side::Receiver => shown.to.as_str(),
        };
        rows.add_row([
            phase.name.name(),
            at,
            &us(phase.from_ns),
            &us(phase.to_ns),
            &us(phase.ns()),
            phase.name.meaning(),
        ]);
    }
    writeln!(out, "{}", fit(&rows, columns()))?;
    if let Some(note) = clock_note(shown) {
        writeln!(out, "note: {note}")?;
    }
    for note in &messages.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn title(shown: &Shown) -> String {
    let Shown {
        from, to, number, ..
    } = shown;
    format!("message {from}-{to}/{number}")
}

fn summary(shown: &Shown) -> String {
    let repeats = match shown.retransmissions {
        0 => String::new(),
        1 => ", 1 packet sent again".to_owned(),
        many => format!(", {many} packets sent again"),
    };
    format!(
        "{}, {} us{repeats}",
        byte_size(shown.bytes),
        us(shown.total_ns)
    )
}

/// How far times of the two sides can be compared.
fn clock_note(shown: &Shown) -> Option<String> {
    match (shown.clock_error_ns, shown.same_host) {
        (Some(ns), _) => Some(format!(
            "the receiver's clock is compared by the packets in both directions, to {} us",
            us(i64::try_from(ns).unwrap_or(i64::MAX))
        )),
        (None, true) => None,
        (None, false) => Some(
            "packets do not bound the difference of the two hosts' clocks; they are compared by the time \
             of day"
                .to_owned(),
        ),
    }
}

/// The phases of one side as letters on the common axis; each phase has at least one.
fn bar(shown: &Shown, side: Side, width: usize) -> String {
    let mut letters = vec!['.'; width];
    let total = signed(shown.total_ns.max(1));
    let column = |ns: i64| {
        let share = (signed(ns) / total).clamp(0.0, 1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "between 0 and the width of a terminal"
        )]
        let column = (share * width as f64) as usize;
        column.min(width - 1)
    };
    for phase in shown.phases.iter().filter(|phase| phase.side == side) {
        let (from, to) = (column(phase.from_ns), column(phase.to_ns));
        let letter = phase.name.name().chars().next().unwrap_or(' ');
        letters[from..to.max(from + 1)].fill(letter);
    }
    letters.into_iter().collect()
}

/// Writes the page with the edges and the shown message.
pub(super) fn write_page(messages: &Messages, path: &Path) -> Result<(), Failure> {
    dipole_naming::files::write(path, page::html(messages).as_bytes())
        .map_err(|cause| super::cannot_write(path, &cause))
}

fn us(ns: i64) -> String {
    format!("{:.2}", signed(ns) / 1e3)
}

fn signed(ns: i64) -> f64 {
    match u64::try_from(ns) {
        Ok(ns) => float(ns),
        Err(_) => -float(ns.unsigned_abs()),
    }
}
