//! Tables of calibration results: times in microseconds, confidence intervals in percent.

use std::fmt::{self, Display};

use dipole_model::CopyCost;
use dipole_model::MedianInterval;

use super::{Link, parameters};
use crate::output::new_table;
use crate::statistics::as_float;
use crate::work::{Carrier, name_of};
use dipole_page::byte_size;

pub(super) fn of_link(link: &Link, copies: &[CopyCost]) -> String {
    let (found, name) = (&link.found, name_of(link.carrier));
    let limit = Limit { link, copies };
    let mut short = new_table("bytes|trip|+-%|O_s|O_r|U_r|L|+-%|>=|g_s|g_r|>=", 1);
    for one in &found.short {
        short.add_row([
            byte_size(one.bytes),
            us(one.trip_ns),
            reach(one.trip_ns),
            us(one.o_s_ns),
            us(one.o_r_ns),
            us(one.u_r_ns),
            us(one.l_ns),
            // Relative to the trip, because L itself may be close to 0.
            percent((one.l_ns.high - one.l_ns.low) / 2.0 / one.trip_ns.median),
            limit.latency(one.bytes),
            us(one.g_s_ns),
            us(one.g_r_ns),
            limit.gap(one.bytes),
        ]);
    }
    let mut long = new_table("bytes|trip|+-%|O_r + U_r|g_s|g_r|+-%|>=|bound by", 1);
    for one in &found.long {
        let regime = found.predict(one.bytes).map(|it| it.regime);
        long.add_row([
            byte_size(one.bytes),
            us(one.trip_ns),
            reach(one.trip_ns),
            us(one.work_ns),
            us(one.g_s_ns),
            us(one.g_r_ns),
            reach(one.g_r_ns),
            limit.gap(found.fragment_bytes),
            match regime {
                Some(dipole_model::Regime::ReceiverBound) => "receiver".to_owned(),
                _ => "network".to_owned(),
            },
        ]);
    }
    let mut phases = new_table("bytes|start-up|send|net|delivery|trip", 1);
    let startup = found.short.first().map_or(0.0, |one| one.o_s_ns.median);
    for one in &found.short {
        phases.add_row([
            byte_size(one.bytes),
            in_us(startup),
            in_us(one.o_s_ns.median - startup),
            us(one.l_ns),
            in_us(one.o_r_ns.median + one.u_r_ns.median),
            us(one.trip_ns),
        ]);
    }
    let (far, all) = parameters::outliers(&link.rounds);
    format!(
        "\n{name} ({}): parameters in us, medians of {} rounds; +-: half the 95 % interval, of L by the \
         trip\n{short}\nmessages of several fragments of {}: us for each fragment\n{long}\n\
         four phases, us: start-up is O_s of the shortest, send what the length adds to it, net is L, \
         delivery\nO_r + U_r\n{phases}\n{limit}\n{far} of {all} samples are above 3 times their median; none is \
         left out",
        found.place,
        found.rounds,
        byte_size(found.fragment_bytes),
    )
}

/// The limits next to measured parameters: the time of a message on the wire, or within a node that of
/// one copy.
struct Limit<'a> {
    link: &'a Link,
    copies: &'a [CopyCost],
}

impl Limit<'_> {
    /// Least latency. Within a node the receiver may start before the sender has returned.
    fn latency(&self, bytes: usize) -> String {
        match self.link.found.wire {
            Some(wire) => in_us(wire.latency_ns(bytes)),
            None => "-".to_owned(),
        }
    }

    /// Least gap between messages.
    fn gap(&self, bytes: usize) -> String {
        let ns = match (self.link.found.wire, self.link.carrier) {
            (Some(wire), _) => Some(wire.gap_ns(bytes)),
            (None, Carrier::Shm) => self.copy_ns(bytes),
            (None, _) => None,
        };
        ns.map_or_else(|| "-".to_owned(), in_us)
    }

    /// Time of one copy in the fastest cache that holds both ends.
    fn copy_ns(&self, bytes: usize) -> Option<f64> {
        let holds = |one: &&CopyCost| one.bytes >= bytes;
        let cost = self.copies.iter().find(holds).or(self.copies.last())?;
        Some(as_float(bytes as u64) * cost.ns_per_byte.median)
    }
}

impl Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.link.found.wire, self.link.carrier) {
            (Some(wire), _) => write!(
                f,
                ">=: the limit of a network of {} Mbit/s, MTU {}, delay {} us",
                wire.mbit,
                wire.mtu_bytes,
                in_us(wire.delay_ns)
            ),
            (None, Carrier::Shm) => write!(f, ">=: the time of one copy in memory"),
            (None, _) => write!(
                f,
                ">=: unknown, because this network has no speed of its own (calibrate --rate-mbit \
                 or --job)"
            ),
        }
    }
}

pub(super) fn of_copies(copies: &[CopyCost]) -> String {
    let mut table = new_table("memcpy within|bytes|ns/byte|GB/s|+-%", 1);
    for one in copies {
        table.add_row([
            one.level.clone(),
            byte_size(one.bytes),
            format!("{:.4}", one.ns_per_byte.median),
            format!("{:.1}", 1.0 / one.ns_per_byte.median),
            reach(one.ns_per_byte),
        ]);
    }
    format!("\n{table}")
}

fn us(ns: MedianInterval) -> String {
    in_us(ns.median)
}

fn in_us(ns: f64) -> String {
    format!("{:.2}", ns * 1e-3)
}

fn reach(of: MedianInterval) -> String {
    percent((of.high - of.low) / 2.0 / of.median.abs().max(as_float(1) * 1e-9))
}

fn percent(share: f64) -> String {
    format!("{:.0}", 100.0 * share)
}
