//! When tables are exchanged, with which members, and in which packets.
//!
//! Every now and then a node sends its whole table to some random members. Each packet has the rows
//! of a range of node numbers. A member merges them and responds with the rows of that range that
//! it knows better, in one packet at most, so a member cannot cause more packets than it sends. A
//! lost packet costs the rows in it until the next exchange.
//!
//! Without a cluster key a member is believed only about itself, as in the rest of the membership:
//! then each table that is sent or accepted is a single row.

use std::time::Duration;

use dipole_launch::load::NodeLoad;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::table::{Figures, HOP_MS, Row, Table};

/// Time between knowing the first member and the first exchange, so that a new node soon has a
/// table.
const FIRST_AFTER: Duration = Duration::from_secs(1);
/// Maximum size of an encoded row: seven figures, the node and the age, as varints.
const MAX_ROW_BYTES: usize = 9 * 5;
/// Maximum size of the rest of a message.
const MAX_FRONT_BYTES: usize = 16;

/// A message between two agents about the load of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// All rows that the sender has of nodes with these numbers.
    Request {
        first: u32,
        last: u32,
        rows: Vec<Row>,
    },
    /// Fresher rows of nodes in the range of a request.
    Response { rows: Vec<Row> },
}

/// How often tables are exchanged, and with how many members at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Bounds of the time between two exchanges; it is drawn anew each time.
    pub(crate) min: Duration,
    pub(crate) max: Duration,
    pub(crate) peers: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            min: Duration::from_secs(180),
            max: Duration::from_secs(300),
            peers: 3,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Exchange {
    table: Table,
    timing: Timing,
    random: StdRng,
    /// `None` until a member is known.
    next: Option<Duration>,
    /// Members are believed about other nodes.
    trusts_members: bool,
    /// Maximum number of rows in a packet.
    packet_rows: usize,
}

impl Exchange {
    /// For the agent of node `own`. An encoded message has at most `max_bytes`.
    pub(crate) fn new(own: u32, seed: u64, trusts_members: bool, max_bytes: usize) -> Exchange {
        Exchange {
            table: Table::new(own),
            timing: Timing::default(),
            random: StdRng::seed_from_u64(seed),
            next: None,
            trusts_members,
            packet_rows: (max_bytes.saturating_sub(MAX_FRONT_BYTES) / MAX_ROW_BYTES).max(1),
        }
    }

    pub(crate) fn set_timing(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Sets the row of this node, measured now. Without it nothing is sent.
    pub(crate) fn set_own(&mut self, now: Duration, figures: Figures) {
        self.table.set_own(now, figures);
    }

    pub(crate) fn add_member(&mut self, now: Duration, node: u32) {
        self.table.add_member(node);
        self.next
            .get_or_insert(now + FIRST_AFTER.min(self.timing.min));
    }

    pub(crate) fn remove_member(&mut self, node: u32) {
        self.table.remove_member(node);
    }

    /// The table, by node.
    pub(crate) fn rows(&self, now: Duration) -> Vec<NodeLoad> {
        self.table.rows(now).map(|row| row.shown()).collect()
    }

    #[cfg(test)]
    pub(super) fn table_rows(&self, now: Duration) -> Vec<Row> {
        self.table.rows(now).collect()
    }

    /// When [`on_timer`](Self::on_timer) must be called.
    pub(crate) fn next_deadline(&self) -> Duration {
        self.next.unwrap_or(Duration::MAX)
    }

    /// Messages to send, each with its receiver, if an exchange is due.
    pub(crate) fn on_timer(&mut self, now: Duration) -> Vec<(u32, Message)> {
        if now < self.next_deadline() {
            return Vec::new();
        }
        let pause = self.random.random_range(self.timing.min..=self.timing.max);
        if !self.table.has_own() {
            // The first measurement takes a moment.
            self.next = Some(now + pause.min(FIRST_AFTER));
            return Vec::new();
        }
        self.next = Some(now + pause);
        let peers = self.draw_peers();
        let requests = self.requests(now);
        let to_each = |peer: u32| requests.iter().map(move |request| (peer, request.clone()));
        peers.into_iter().flat_map(to_each).collect()
    }

    /// Different random members.
    fn draw_peers(&mut self) -> Vec<u32> {
        let mut members: Vec<u32> = self.table.members().collect();
        let count = members.len().min(self.timing.peers as usize);
        for index in 0..count {
            let drawn = self.random.random_range(index..members.len());
            members.swap(index, drawn);
        }
        members.truncate(count);
        members
    }

    /// The whole table, divided so that a response fits into a packet if its sender knows the same
    /// members.
    fn requests(&self, now: Duration) -> Vec<Message> {
        if !self.trusts_members {
            let rows = self.table.row(now, self.table.own()).into_iter().collect();
            let (first, last) = (0, u32::MAX);
            return vec![Message::Request { first, last, rows }];
        }
        let nodes: Vec<u32> = self.table.nodes().collect();
        let mut first = 0;
        let parts = nodes.chunks(self.packet_rows);
        let count = parts.len();
        let requests = parts.enumerate().map(|(index, part)| {
            let last = match (index + 1 < count, part.last()) {
                (true, Some(last)) => *last,
                _ => u32::MAX,
            };
            let rows = part.iter().filter_map(|node| self.table.row(now, *node));
            let rows = rows.collect();
            let request = Message::Request { first, last, rows };
            first = last.saturating_add(1);
            request
        });
        requests.collect()
    }

    /// Merges the rows of a message; returns the response to a request, if there is one.
    pub(crate) fn on_message(
        &mut self,
        now: Duration,
        from: u32,
        message: &Message,
    ) -> Option<Message> {
        if !self.table.is_member(from) {
            return None;
        }
        let (Message::Request { rows, .. } | Message::Response { rows }) = message;
        let response = match message {
            Message::Request { first, last, rows } => {
                self.response(now, from, (*first, *last), rows)
            }
            Message::Response { .. } => None,
        };
        for row in rows.iter().take(self.packet_rows) {
            if self.trusts_members || row.node == from {
                self.table.merge(now, row);
            }
        }
        response
    }

    /// Rows in a range of nodes that the sender of a request lacks, or knows less well.
    fn response(
        &self,
        now: Duration,
        from: u32,
        (first, last): (u32, u32),
        known: &[Row],
    ) -> Option<Message> {
        let is_news = |row: &Row| {
            let mut same = known.iter().filter(|other| other.node == row.node);
            same.all(|other| row.age_ms.saturating_add(HOP_MS) < other.age_ms)
        };
        let is_wanted = |row: &Row| {
            let is_own = row.node == self.table.own();
            row.node != from && (is_own || self.trusts_members) && is_news(row)
        };
        let rows = self.table.rows_between(now, first, last);
        let mut rows: Vec<Row> = rows.filter(is_wanted).collect();
        // If the other node knows fewer members than this one, not all rows may fit.
        rows.sort_by_key(|row| row.age_ms);
        rows.truncate(self.packet_rows);
        (!rows.is_empty()).then_some(Message::Response { rows })
    }
}
