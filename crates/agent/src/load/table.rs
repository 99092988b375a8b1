//! The freshest known row of each node.
//!
//! A table has at most one row for each member and one for its own node; rows about other nodes are
//! refused. It compares the times at which rows were measured, on the clock of this node: the time
//! of arrival minus the age.

use std::collections::BTreeMap;
use std::time::Duration;

use dipole_launch::load::NodeLoad;
use dipole_naming::address::NodeId;
use serde::{Deserialize, Serialize};

/// Added to the age of a row on arrival: longer than a packet takes in a local network, so that a
/// row that is passed around does not get younger on its way.
pub(super) const HOP_MS: u32 = 10;
/// Maximum number of cores of a node.
const MAX_CORES: u32 = 1 << 16;
/// Maximum load average, in hundredths.
const MAX_LOAD: u32 = 100_000_000;
/// Maximum speed of a core in Mflop/s.
pub(crate) const MAX_SPEED: u32 = 1_000_000_000;

/// Load and size of a node, as measured there. Bounds are checked on receipt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Load average of five minutes, in hundredths.
    pub(crate) load: u32,
    pub(crate) cores: u32,
    /// Speed of a core in Mflop/s.
    pub(crate) speed: u32,
    /// Total memory in MiB.
    pub(crate) memory_mib: u32,
    /// Memory available without swapping, in MiB.
    pub(crate) available_mib: u32,
    /// Users who are logged in.
    pub(crate) users: u32,
    /// Running jobs that the node's agents have started.
    pub(crate) jobs: u32,
}

impl Figures {
    fn is_valid(&self) -> bool {
        (1..=MAX_CORES).contains(&self.cores)
            && self.load <= MAX_LOAD
            && (1..=MAX_SPEED).contains(&self.speed)
            && self.available_mib <= self.memory_mib
    }
}

/// A row as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32, Figures)")]
pub(crate) struct Row {
    pub(crate) node: u32,
    pub(crate) age_ms: u32,
    pub(crate) figures: Figures,
}

/// From the fields in the order in which postcard encodes them.
impl TryFrom<(u32, u32, Figures)> for Row {
    type Error = &'static str;

    fn try_from((node, age_ms, figures): (u32, u32, Figures)) -> Result<Row, Self::Error> {
        match node != 0 && figures.is_valid() {
            true => Ok(Row {
                node,
                age_ms,
                figures,
            }),
            false => Err("a row out of bounds"),
        }
    }
}

impl Row {
    /// The row for display and for placement.
    pub(crate) fn shown(&self) -> NodeLoad {
        let figures = self.figures;
        NodeLoad {
            node: NodeId(self.node),
            load: f64::from(figures.load) / 100.0,
            cores: figures.cores,
            speed: figures.speed,
            memory_mib: figures.memory_mib,
            available_mib: figures.available_mib,
            users: figures.users,
            jobs: figures.jobs,
            age_s: f64::from(self.age_ms) / 1000.0,
        }
    }
}

/// A row and the time at which it was measured, in milliseconds on the clock of this node. The
/// time may be before the start of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    measured_ms: i64,
    figures: Figures,
}

#[derive(Debug)]
pub(super) struct Table {
    own: u32,
    /// By node: this node and the members, with their rows if these are known.
    rows: BTreeMap<u32, Option<Entry>>,
}

fn milliseconds(now: Duration) -> i64 {
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

fn row_of(now: Duration, node: u32, entry: &Entry) -> Row {
    let age_ms = (milliseconds(now) - entry.measured_ms).max(0);
    Row {
        node,
        age_ms: u32::try_from(age_ms).unwrap_or(u32::MAX),
        figures: entry.figures,
    }
}

impl Table {
    pub(super) fn new(own: u32) -> Table {
        Table {
            own,
            rows: BTreeMap::from([(own, None)]),
        }
    }

    /// The number of this node.
    pub(super) fn own(&self) -> u32 {
        self.own
    }

    pub(super) fn add_member(&mut self, node: u32) {
        self.rows.entry(node).or_default();
    }

    /// Removes a member and its row.
    pub(super) fn remove_member(&mut self, node: u32) {
        if node != self.own {
            self.rows.remove(&node);
        }
    }

    /// Sets the row of this node, measured now.
    pub(super) fn set_own(&mut self, now: Duration, figures: Figures) {
        let measured_ms = milliseconds(now);
        self.rows.insert(
            self.own,
            Some(Entry {
                measured_ms,
                figures,
            }),
        );
    }

    pub(super) fn has_own(&self) -> bool {
        self.rows.get(&self.own).is_some_and(Option::is_some)
    }

    pub(super) fn is_member(&self, node: u32) -> bool {
        node != self.own && self.rows.contains_key(&node)
    }

    /// Numbers of this node and all members, in order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.rows.keys().copied()
    }

    /// The other members.
    pub(super) fn members(&self) -> impl Iterator<Item = u32> {
        self.nodes().filter(|node| *node != self.own)
    }

    /// Keeps a row that has arrived now, if it is about a member and fresher than the known one.
    pub(super) fn merge(&mut self, now: Duration, row: &Row) {
        if !self.is_member(row.node) {
            return;
        }
        let age_ms = row.age_ms.saturating_add(HOP_MS);
        let entry = Entry {
            measured_ms: milliseconds(now) - i64::from(age_ms),
            figures: row.figures,
        };
        let known = self.rows.entry(row.node).or_default();
        if known.is_none_or(|known| entry.measured_ms > known.measured_ms) {
            *known = Some(entry);
        }
    }

    /// The row of a node with its present age.
    pub(super) fn row(&self, now: Duration, node: u32) -> Option<Row> {
        let entry = self.rows.get(&node).copied().flatten()?;
        Some(row_of(now, node, &entry))
    }

    /// All rows, by node.
    pub(super) fn rows(&self, now: Duration) -> impl Iterator<Item = Row> {
        self.rows_between(now, 0, u32::MAX)
    }

    /// The rows of nodes with numbers from `first` to `last`.
    pub(super) fn rows_between(
        &self,
        now: Duration,
        first: u32,
        last: u32,
    ) -> impl Iterator<Item = Row> {
        let nodes = self.rows.range(first..);
        let nodes = nodes.take_while(move |(node, _)| **node <= last);
        nodes.filter_map(move |(node, entry)| Some(row_of(now, *node, entry.as_ref()?)))
    }
}
