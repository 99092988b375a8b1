//! Forwarding logic of the switch: the output port, the faults and the held frames. It does no I/O
//! and reads no clock. It holds at most [`MOST_HELD`] frames.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::damage::{self, Station};
use crate::fault::{FaultCounters, Faults};

/// Limit of held frames. Beyond it, frames are forwarded immediately.
const MOST_HELD: usize = 4096;

/// A reordered frame that no other frame overtakes is sent after this time.
const REORDER_TIMEOUT: Duration = Duration::from_millis(10);

/// Index of an interface of the switch.
pub(crate) type Port = usize;

/// Writes a frame to a port; false if that failed.
pub(crate) type Send<'a> = dyn FnMut(Port, &[u8]) -> bool + 'a;

pub(crate) struct Forwarder {
    faults: Faults,
    network: u32,
    ports: usize,
    stations: HashMap<Station, Port>,
    counters: FaultCounters,
    held: Vec<Held>,
    /// Ports that neither send nor receive.
    cut: Vec<bool>,
}

struct Held {
    due: Instant,
    /// How many more frames may overtake this one. A delayed frame waits for its time only.
    overtakers: Option<u32>,
    to: Vec<Port>,
    copies: u32,
    bytes: Vec<u8>,
}

impl Forwarder {
    pub(crate) fn new(faults: Faults, network: u32, ports: usize) -> Self {
        Self {
            faults,
            network,
            ports,
            stations: HashMap::new(),
            counters: FaultCounters::default(),
            held: Vec::new(),
            cut: vec![false; ports],
        }
    }

    /// Replaces the probabilities. Frames that are held keep their fate.
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Cuts a port off, or connects it again. A frame that is held for the port is lost if the port
    /// is still cut off when the frame is due.
    pub(crate) fn set_cut(&mut self, port: Port, cut: bool) {
        self.cut[port] = cut;
    }

    pub(crate) fn counters(&self) -> FaultCounters {
        FaultCounters {
            held: u64::try_from(self.held.len()).unwrap_or(u64::MAX),
            ..self.counters
        }
    }

    /// Returns when the next held frame must be sent at the latest.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.due).min()
    }

    /// Processes a received frame.
    pub(crate) fn accept(
        &mut self,
        from: Port,
        frame: &mut [u8],
        now: Instant,
        send: &mut Send<'_>,
    ) {
        let Some((destination, source)) = damage::stations(frame) else {
            return;
        };
        if !damage::is_group(source) {
            self.stations.insert(source, from);
        }
        let mut to = match self.stations.get(&destination) {
            Some(&port) if port == from => return,
            Some(&port) => vec![port],
            None => (0..self.ports).filter(|&port| port != from).collect(),
        };
        to.retain(|&port| !self.cut[port]);
        if self.cut[from] || to.is_empty() {
            self.counters.cut += 1;
            return;
        }
        if damage::is_group(destination) || !damage::is_ip(frame) {
            self.counters.spared += 1;
            for port in to {
                send(port, frame);
            }
            return;
        }
        let fate = self.faults.fate(self.network, self.counters.frames);
        self.counters.frames += 1;
        if fate.drop {
            self.counters.dropped += 1;
            return;
        }
        if let Some(choice) = fate.corrupt
            && damage::damage(frame, choice)
        {
            self.counters.corrupted += 1;
        }
        self.counters.repeated += u64::from(fate.repeat);
        let copies = 1 + u32::from(fate.repeat);
        let (due, overtakers) = if fate.delay {
            (now + self.faults.delay_time, None)
        } else {
            (now + REORDER_TIMEOUT, Some(fate.overtakers))
        };
        if overtakers == Some(0) || self.held.len() >= MOST_HELD {
            self.deliver(&to, frame, copies, send);
            self.pass(&to, send);
            return;
        }
        self.counters.delayed += u64::from(fate.delay);
        self.counters.reordered += u64::from(!fate.delay);
        self.held.push(Held {
            due,
            overtakers,
            to,
            copies,
            bytes: frame.to_vec(),
        });
    }

    /// Sends the held frames that are due.
    pub(crate) fn release_due(&mut self, now: Instant, send: &mut Send<'_>) {
        self.release(|held| held.due <= now, send);
    }

    /// Counts a frame to these ports as overtaking the frames held for them.
    fn pass(&mut self, to: &[Port], send: &mut Send<'_>) {
        for held in &mut self.held {
            if let Some(overtakers) = &mut held.overtakers
                && held.to.iter().any(|port| to.contains(port))
            {
                *overtakers = overtakers.saturating_sub(1);
            }
        }
        self.release(|held| held.overtakers == Some(0), send);
    }

    fn release(&mut self, may_go: impl Fn(&Held) -> bool, send: &mut Send<'_>) {
        let mut at = 0;
        while at < self.held.len() {
            if may_go(&self.held[at]) {
                let held = self.held.remove(at);
                self.deliver(&held.to, &held.bytes, held.copies, send);
            } else {
                at += 1;
            }
        }
    }

    fn deliver(&mut self, to: &[Port], frame: &[u8], copies: u32, send: &mut Send<'_>) {
        for _ in 0..copies {
            // A frame flooded to several ports still counts once.
            let mut arrived = false;
            for &port in to {
                arrived |= !self.cut[port] && send(port, frame);
            }
            self.counters.delivered += u64::from(arrived);
            self.counters.undelivered += u64::from(!arrived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 frame with a mark in its last byte.
    fn frame(to: u8, from: u8, mark: u8) -> Vec<u8> {
        let mut frame = vec![0; 60];
        (frame[5], frame[11]) = (to, from);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[59] = mark;
        frame
    }

    fn run(faults: Faults, count: u8) -> (Vec<(Port, u8)>, FaultCounters) {
        let (mut switch, now) = (Forwarder::new(faults, 0, 3), Instant::now());
        let mut sent = Vec::new();
        let mut send = |port: Port, frame: &[u8]| {
            sent.push((port, frame[59]));
            true
        };
        let mut greeting = frame(0xff, 1, 0);
        greeting[0] = 0xff;
        switch.accept(1, &mut greeting, now, &mut send);
        for mark in 1..=count {
            switch.accept(0, &mut frame(1, 9, mark), now, &mut send);
        }
        while let Some(due) = switch.next_due() {
            switch.release_due(due, &mut send);
        }
        (sent.split_off(2), switch.counters())
    }

    #[test]
    fn frames_to_a_known_station_use_one_port_and_stay_in_order() {
        let (sent, counters) = run(Faults::default(), 5);
        assert_eq!(sent, (1..=5).map(|mark| (1, mark)).collect::<Vec<_>>());
        assert_eq!(
            (counters.frames, counters.delivered, counters.spared),
            (5, 5, 1)
        );
    }

    #[test]
    fn held_frames_are_overtaken_and_none_is_lost() {
        let faults = Faults {
            reorder: 0.3,
            repeat: 0.1,
            delay: 0.1,
            seed: 3,
            ..Faults::default()
        };
        let (sent, counters) = run(faults, 200);
        assert!(counters.reordered > 20 && counters.repeated > 5 && counters.delayed > 5);
        assert_eq!(counters.delivered, 200 + counters.repeated);
        assert_eq!(counters.held, 0);
        assert!(!sent.is_sorted());
        let mut marks: Vec<u8> = sent.iter().map(|(_, mark)| *mark).collect();
        marks.sort_unstable();
        marks.dedup();
        assert_eq!(marks, (1..=200).collect::<Vec<_>>());
    }

    #[test]
    fn a_port_that_is_cut_off_neither_sends_nor_receives() {
        let (mut switch, now) = (Forwarder::new(Faults::default(), 0, 3), Instant::now());
        let mut sent = Vec::new();
        let mut send = |port: Port, frame: &[u8]| {
            sent.push((port, frame[59]));
            true
        };
        // Each node is known by a frame to all.
        for node in 0..3 {
            let mut greeting = frame(0xff, node, 0);
            greeting[0] = 0xff;
            switch.accept(node.into(), &mut greeting, now, &mut send);
        }
        switch.set_cut(1, true);
        switch.accept(0, &mut frame(1, 0, 1), now, &mut send);
        switch.accept(1, &mut frame(2, 1, 2), now, &mut send);
        switch.accept(0, &mut frame(2, 0, 3), now, &mut send);
        switch.set_cut(1, false);
        switch.accept(0, &mut frame(1, 0, 4), now, &mut send);
        assert_eq!(switch.counters().cut, 2);
        assert_eq!(sent[6..], [(2, 3), (1, 4)]);
    }

    #[test]
    fn failed_writes_are_counted() {
        let mut switch = Forwarder::new(Faults::default(), 0, 2);
        switch.accept(0, &mut frame(1, 9, 0), Instant::now(), &mut |_, _| false);
        assert_eq!(switch.counters().undelivered, 1);
        assert_eq!(switch.counters().delivered, 0);
    }
}
