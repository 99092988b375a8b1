//! Bugs of the protocol.

use super::Mutant;
use crate::mutants::suite::Suite;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "train-counts-one-unit",
        effect: "of the units of a train, only the first counts as arrived",
        file: "crates/proto/src/session/trains.rs",
        suite: Suite::Protocol("prediction"),
        snippet: "self.units.append(count);",
        replacement: "self.units.append(1);",
    },
    Mutant {
        name: "train-with-gaps",
        effect: "packets belong to a train whatever their packet and unit numbers",
        file: "crates/proto/src/wire/train.rs",
        suite: Suite::Unit("dipole-proto", "train"),
        snippet: "self.0[1..].iter().zip(&other.0[1..])",
        replacement: "self.0[2..].iter().zip(&other.0[2..])",
    },
    Mutant {
        name: "train-forgets-last",
        effect: "flags that only later packets of a train have are ignored",
        file: "crates/proto/src/session/trains.rs",
        suite: Suite::Protocol("prediction"),
        snippet: "            flags: train.flags,
",
        replacement: "",
    },
    Mutant {
        name: "absence-unnoticed",
        effect: "a process off its core never grants wide windows",
        file: "crates/proto/src/grants.rs",
        suite: Suite::Unit("dipole-proto", "grants"),
        snippet: "self.wide_until = now.after(WIDE_NS);",
        replacement: "let _unused = now.after(WIDE_NS);",
    },
    Mutant {
        name: "tail-repeats-off",
        effect: "a lost tail is never retransmitted",
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Simulator,
        snippet: "for piece in [first, last] {
            let stale",
        replacement: "for piece in [first, last].into_iter().take(0) {
            let stale",
    },
    Mutant {
        name: "hole-repeats-off",
        effect: "requested units count as lost, but are not retransmitted",
        file: "crates/proto/src/send.rs",
        suite: Suite::Simulator,
        snippet: "self.repeats.push_back(piece.unit);",
        replacement: "let _forgotten = piece.unit;",
    },
    Mutant {
        name: "duplicates-accepted",
        effect: "a duplicate unit is accepted",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "            Arrival::Duplicate => {
                lane.incoming.record(number, floor);
                return Err(DropReason::Duplicate);
            }",
        replacement: "            Arrival::Duplicate => {}",
    },
    Mutant {
        name: "credit-unchecked",
        effect: "messages are started without credit",
        file: "crates/proto/src/channel/outgoing.rs",
        suite: Suite::Simulator,
        snippet: "if need > self.limit || self.is_ending() {",
        replacement: "if need == u64::MAX || self.is_ending() {",
    },
    Mutant {
        name: "credit-request-once",
        effect: "a lost credit request is not repeated",
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Simulator,
        snippet: "self.channel.credit_requests_due = self.channel.needs_credit();",
        replacement: "self.channel.credit_requests_due = false;",
    },
    Mutant {
        name: "window-told-once",
        effect: "a lost window update is not repeated",
        file: "crates/proto/src/session/transmit.rs",
        suite: Suite::Simulator,
        snippet: "if small_change && !shared.grants.is_limited() || bytes.len() < 8 {",
        replacement: "if small_change || bytes.len() < 8 {",
    },
    Mutant {
        name: "reserve-for-others",
        effect: "the pool's reserve is used for all units except the next in sequence",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "shared.pool.admit(cost, unit == self.units.next())",
        replacement: "shared.pool.admit(cost, unit != self.units.next())",
    },
    Mutant {
        name: "released-too-early",
        effect: "the slot after the last acknowledged one is released as well",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "self.units_arrived(next.min(self.window.top()), shared);",
        replacement: "self.units_arrived((next + 1).min(self.window.top()), shared);",
    },
    Mutant {
        name: "holes-forgotten",
        effect: "the receiver never detects earlier missing units",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "let floor = number.saturating_sub(u64::from(header.settled));
        if !header.flags.has(Flags::UNIT) {",
        replacement: "let floor = number;
        if !header.flags.has(Flags::UNIT) {",
    },
    Mutant {
        name: "order-unchecked",
        effect: "a message is delivered although an earlier one is missing",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "if piece.sequence == self.next && whole && self.pending.is_empty() {",
        replacement: "if piece.sequence >= self.next && whole && self.pending.is_empty() {",
    },
    Mutant {
        name: "unanswered-lanes-used",
        effect: "data is sent to addresses that have never responded",
        file: "crates/proto/src/session/lane_choice.rs",
        suite: Suite::Simulator,
        snippet: "lane.path.is_proven() && !(detour.is_some()",
        replacement: "lane.path.may_lead_there() && !(detour.is_some()",
    },
    Mutant {
        name: "detours-by-one-lane",
        effect: "if all lanes are suspect, retransmissions use the first one, even if it is dead",
        file: "crates/proto/src/session/lane_choice.rs",
        suite: Suite::Simulator,
        snippet: "let first = before.map_or(first, |index| index + 1);",
        replacement: "let _piece = before;",
    },
    Mutant {
        name: "old-news-as-news",
        effect: "a duplicate acknowledgement makes a dead lane look alive",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "if lane.out.record_acknowledged(to) {",
        replacement: "if lane.out.record_acknowledged(to) || from < to {",
    },
    Mutant {
        name: "absence-as-dead-lane",
        effect: "a peer that does not run for a while loses the lane that was waited for",
        file: "crates/proto/src/lane.rs",
        suite: Suite::Protocol("paths"),
        snippet: "self.count >= MAX_LANE_TIMEOUTS && self.elsewhere.is_some_and(known)",
        replacement: "self.count >= MAX_LANE_TIMEOUTS || self.elsewhere.is_some_and(known)",
    },
    Mutant {
        name: "one-lane-after-the-other",
        effect: "a peer that has responded on one lane has no time left to respond on another",
        file: "crates/proto/src/lane.rs",
        suite: Suite::Protocol("paths"),
        snippet: "let known = |at: Instant| at < self.before;",
        replacement: "let known = |at: Instant| at <= self.latest;",
    },
    Mutant {
        name: "late-news-ignored",
        effect: "a packet that arrives after its retransmission on another lane does not count for its own lane",
        file: "crates/proto/src/lane.rs",
        suite: Suite::Unit("dipole-proto", "is_not_news"),
        snippet: "let news = end > self.arrived;",
        replacement: "let news = end > self.arrived && end > self.floor;",
    },
    Mutant {
        name: "parts-not-sent",
        effect: "a unit that is too long for its path is split, but its old parts stay",
        file: "crates/proto/src/send.rs",
        suite: Suite::Simulator,
        snippet: "self.cuts.iter().take(MAX_CUT)",
        replacement: "self.cuts.iter().take(0)",
    },
    Mutant {
        name: "parts-misjoined",
        effect: "the parts of a unit are joined in reverse order",
        file: "crates/proto/src/parts.rs",
        suite: Suite::Simulator,
        snippet: "            for (index, known) in assembly.parts.iter().enumerate() {",
        replacement: "            for (index, known) in assembly.parts.iter().enumerate().rev() {",
    },
    Mutant {
        name: "proof-unchecked",
        effect: "any proof opens a session, even an invalid one",
        file: "crates/proto/src/machine/packets.rs",
        suite: Suite::Simulator,
        snippet: "let refusal = if keyed != packet.header().flags.has(Flags::PROVEN) || keyed && !proven {",
        replacement: "let refusal = if keyed != packet.header().flags.has(Flags::PROVEN) {",
    },
    Mutant {
        name: "requests-overtake",
        effect: "a credit request that overtakes messages counts for all of them together",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "            && self.consumed >= self.charged_by_peer
",
        replacement: "",
    },
    Mutant {
        name: "requests-of-earlier-incarnations",
        effect: "a late credit request of an ended edge counts for its next incarnation",
        file: "crates/proto/src/channel/granting.rs",
        suite: Suite::Protocol("pipes"),
        snippet: "        if edge.key() != key {",
        replacement: "        if edge.key().ends() != key.ends() {",
    },
    Mutant {
        name: "lives-fill-the-pool",
        effect: "each incarnation of an edge gets its first credit despite unread messages of earlier ones",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Protocol("delivery"),
        snippet: " || unread + next_life > room",
        replacement: "",
    },
    Mutant {
        name: "silent-while-an-edge-ends",
        effect: "a peer with an edge that has unread messages counts as silent",
        file: "crates/proto/src/channel/mod.rs",
        suite: Suite::Protocol("delivery"),
        snippet: "edge.is_ending() == is_ending",
        replacement: "edge.is_ending() == is_ending || !is_ending",
    },
    Mutant {
        name: "credit-given-back-twice",
        effect: "a message that the application returns counts twice",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "        self.consumed += charge;
        if let Some(index)",
        replacement: "        self.consumed += 2 * charge;
        if let Some(index)",
    },
    Mutant {
        name: "edges-never-forgotten",
        effect: "a receiver that has read everything of an ended edge does not report it",
        file: "crates/proto/src/pipe.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "Notice::Forgotten { key } => self.queue_keyed(PipeKind::Forgotten, key, 0),",
        replacement: "Notice::Forgotten { .. } => {}",
    },
    Mutant {
        name: "notices-wait-for-no-frame",
        effect: "a session whose notices found no free frame is not polled again",
        file: "crates/proto/src/machine.rs",
        suite: Suite::Simulator,
        snippet: "self.turn_left == 0 || session.has_notice();",
        replacement: "self.turn_left == 0;",
    },
    Mutant {
        name: "taken-untold",
        effect: "acceptance of a long message is not reported",
        file: "crates/proto/src/pipe/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "        self.channel.filled(edge, sequence, now, shared);
        self.answer(PipeKind::OfferDone, number, sequence);
    }

    /// The message offered under",
        replacement: "        self.channel.filled(edge, sequence, now, shared);
    }

    /// The message offered under",
    },
    Mutant {
        name: "credit-twice-on-close",
        effect: "an endpoint closed with unread messages returns credit twice",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "self.consumed = self.charged - waiting;",
        replacement: "self.consumed += self.charged - waiting;",
    },
    Mutant {
        name: "hand-over-forgotten",
        effect: "packets in flight on an abandoned lane stay there until their own timeouts",
        file: "crates/proto/src/session/paths.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "        self.window.abandon_lane(id);
",
        replacement: "",
    },
    Mutant {
        name: "ack-requests-repeat-at-once",
        effect: "requested packets are retransmitted although they were sent less than a round trip ago",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "let fresh = self.retransmission.round_trip.smoothed_ns().unwrap_or(0);",
        replacement: "let fresh = 0;",
    },
    Mutant {
        name: "tail-without-back-off",
        effect: "an unanswered tail is retransmitted with the same short pause forever",
        file: "crates/proto/src/session/retransmission.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "self.tail.again(now, config.max_timeout_ns);",
        replacement: "self.tail.start(now, self.tail.pause_ns.min(config.max_timeout_ns));",
    },
    Mutant {
        name: "holes-go-back-n",
        effect: "everything sent after a lost packet is retransmitted with it",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "        for number in from.max(lane.out.floor())..to.min(lane.out.next()) {
            let flight",
        replacement: "        for number in from.max(lane.out.floor())..lane.out.next().max(to) {
            let flight",
    },
    Mutant {
        name: "asked-once",
        effect: "a silent peer is probed only once, although packets may be lost",
        file: "crates/proto/src/session/liveness.rs",
        suite: Suite::Protocol("crowd"),
        snippet: "            true => config.max_timeout_ns,
",
        replacement: "            true => rest_ns,
",
    },
    Mutant {
        name: "watch-ignored",
        effect: "a watched peer is not probed sooner than others",
        file: "crates/proto/src/session.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "self.liveness.is_watched()
            || self.channel.awaits_pieces()",
        replacement: "self.channel.awaits_pieces()",
    },
    Mutant {
        name: "absence-oldest_flight_lane-on-the-peer",
        effect: "a process that was not stepped takes its own silence for its peer's",
        file: "crates/proto/src/session/liveness.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "*since = since.after(absence_ns).min(now);",
        replacement: "*since = (*since).min(now);",
    },
    Mutant {
        name: "unit-not-widened",
        effect: "truncated unit numbers are not extended to 64 bits",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "let unit = widen(header.unit, self.units.next());
        match self.units",
        replacement: "let unit = u64::from(header.unit);
        match self.units",
    },
    Mutant {
        name: "number-not-widened",
        effect: "truncated packet numbers are not extended to 64 bits",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "let number = widen(header.number, lane.incoming.next());
        let floor = number.saturating_sub(u64::from(header.settled));
        if !",
        replacement: "let number = u64::from(header.number);
        let floor = number.saturating_sub(u64::from(header.settled));
        if !",
    },
    Mutant {
        name: "sequence-not-widened",
        effect: "truncated message numbers are not extended to 64 bits",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Simulator,
        snippet: "edge.map_or(sequence.into(), |edge| widen(sequence, edge.next()))",
        replacement: "edge.map_or(sequence.into(), |_| sequence.into())",
    },
    Mutant {
        name: "edges-end-early",
        effect: "an edge is forgotten although its last message has not arrived",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "self.end.is_some_and(|end| self.next >= end)",
        replacement: "self.end.is_some_and(|end| self.next + 1 >= end)",
    },
    Mutant {
        name: "refusal-untold-by-memory",
        effect: "a process of the same node is not notified that a message was refused",
        file: "crates/proto/src/pipe.rs",
        suite: Suite::Protocol("pipes"),
        snippet: "                    self.queue
                        .push_back(PipeRecord::new(tag, &[ends_to_word(key)]));
",
        replacement: "                    let _untold = (tag, key);
",
    },
    Mutant {
        name: "credit-lost-on-close",
        effect: "an endpoint closed with unread messages keeps their credit",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "self.consumed = self.charged - waiting;",
        replacement: "let _lost = waiting;",
    },
    Mutant {
        name: "old-credit-lowers",
        effect: "a credit grant that was overtaken revokes a later one",
        file: "crates/proto/src/channel/outgoing.rs",
        suite: Suite::Simulator,
        snippet: "self.limit = self.limit.max(limit);",
        replacement: "self.limit = limit;",
    },
    Mutant {
        name: "hello-taken-again",
        effect: "a replayed handshake opens a session",
        file: "crates/proto/src/machine/packets.rs",
        suite: Suite::Protocol("membership"),
        snippet: "_ if keyed && !self.cookies.spend(now, hello.cookie) => {",
        replacement: "_ if keyed && !self.cookies.spend(now, hello.cookie) && now.0 == 0 => {",
    },
    Mutant {
        name: "refused-offers-unanswered",
        effect: "a long message without a reader keeps its sender's memory",
        file: "crates/proto/src/pipe/incoming.rs",
        suite: Suite::Simulator,
        snippet: "                self.answer(PipeKind::OfferDone, number, sequence);
            }
        }",
        replacement: "            }
        }",
    },
    Mutant {
        name: "ack-requests-off",
        effect: "missing packets are not requested",
        file: "crates/proto/src/session/requests.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "        self.is_ack_due = true;
        self.ack.again",
        replacement: "        self.ack.again",
    },
    Mutant {
        name: "run-out-of-order",
        effect: "a packet of messages is accepted although an earlier one is missing",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "sequence == self.next
            && self.pending.is_empty()
            && charge",
        replacement: "sequence >= self.next
            && self.pending.is_empty()
            && charge",
    },
    Mutant {
        name: "run-counted-once",
        effect: "only one of several messages in a packet is numbered",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Simulator,
        snippet: "edge.take_next(count.into(), charge);",
        replacement: "edge.take_next(u64::from(count.min(1)), charge);",
    },
    Mutant {
        name: "alone-without-deadline",
        effect: "no retransmission is scheduled for a message that was sent alone",
        file: "crates/proto/src/machine.rs",
        suite: Suite::Protocol("prediction"),
        snippet: "self.timers.arm(session_index(peer), deadline);
        self.wake(peer);
        Some(transmit)",
        replacement: "let _forgotten = deadline;
        self.wake(peer);
        Some(transmit)",
    },
    Mutant {
        name: "run-charged-once",
        effect: "only one of several messages in a packet is charged its overhead",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Simulator,
        snippet: "u64::from(run.count) * charge(0)",
        replacement: "u64::from(run.count.min(1)) * charge(0)",
    },
    Mutant {
        name: "read-at-once-unconsumed",
        effect: "the space of a message that is delivered at once is never granted again",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "self.charged += charge;
        self.consumed += charge;",
        replacement: "self.charged += charge;",
    },
    Mutant {
        name: "last-piece-as-any",
        effect: "the part that completes a message takes the fast path and is not delivered",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Protocol("prediction"),
        snippet: "piece.total.checked_sub(got + 1)? / length",
        replacement: "piece.total.checked_sub(got)? / length",
    },
    Mutant {
        name: "bounds-unchecked",
        effect: "an operation beyond the end of a region is not refused as such",
        file: "crates/proto/src/region.rs",
        suite: Suite::Simulator,
        snippet: "if end.is_none_or(|end| end > self.length) {",
        replacement: "if end.is_none_or(|end| end > u64::MAX - self.length) {",
    },
    Mutant {
        name: "operations-dropped-with-endpoint",
        effect: "an operation that has begun when its endpoint closes is never answered",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "partial.discard = !partial.operation;",
        replacement: "partial.discard = true;",
    },
    Mutant {
        name: "room-of-operations-lost",
        effect: "when an endpoint closes, the space of running operations is released twice",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "let freed = self.held.saturating_sub(kept);",
        replacement: "let freed = self.held.saturating_sub(kept * 0);",
    },
    Mutant {
        name: "pieces-of-a-put-as-message",
        effect: "a put that cannot be fetched arrives in parts that count as those of a message",
        file: "crates/proto/src/pipe/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "let operation = self.channel.is_operation(edge, sequence);",
        replacement: "let operation = false;",
    },
    Mutant {
        name: "keys-of-the-living-wiped",
        effect: "keys are dropped before the goodbye that they authenticate",
        file: "crates/proto/src/machine.rs",
        suite: Suite::Protocol("membership"),
        snippet: "match self.outbox.front() {
            None => self.ended.pop(),
            Some(_) => None,
        }",
        replacement: "self.ended.pop()",
    },
    Mutant {
        name: "withdrawn-keys-live-on",
        effect: "sessions opened with a key outlive it",
        file: "crates/proto/src/machine.rs",
        suite: Suite::Protocol("membership"),
        snippet: "session.keys.renewal = Some(Renewal {",
        replacement: "let _unasked = Some(Renewal {",
    },
    Mutant {
        name: "renewal-by-any-peer",
        effect: "a man in the middle passes for a member",
        file: "crates/proto/src/machine/packets.rs",
        suite: Suite::Protocol("membership"),
        snippet: ".filter(|_| is_peer);",
        replacement: ".filter(|_| is_peer || true);",
    },
    Mutant {
        name: "welcome-of-earlier",
        effect: "a welcome answers every hello",
        file: "crates/proto/src/machine/packets.rs",
        suite: Suite::Protocol("membership"),
        snippet: "if keyed && welcome.cookie != cookie {",
        replacement: "if keyed && welcome.cookie == !cookie {",
    },
];
