//! Bugs of the protocol.

use super::Mutant;
use crate::mutants::suite::Suite;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "tail-repeats-off",
        effect: "a tail that was lost is never sent again",
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Simulator,
        snippet: "for piece in [first, last] {
            let stale",
        replacement: "for piece in [first, last].into_iter().take(0) {
            let stale",
    },
    Mutant {
        name: "hole-repeats-off",
        effect: "units that are asked for count as lost, but are not sent again",
        file: "crates/proto/src/send.rs",
        suite: Suite::Simulator,
        snippet: "self.repeats.push_back(piece.unit);",
        replacement: "let _forgotten = piece.unit;",
    },
    Mutant {
        name: "duplicates-accepted",
        effect: "a unit that came before is taken again",
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
        effect: "messages begin without credit",
        file: "crates/proto/src/channel/outgoing.rs",
        suite: Suite::Simulator,
        snippet: "if need > self.limit || self.is_ending() {",
        replacement: "if need == u64::MAX || self.is_ending() {",
    },
    Mutant {
        name: "credit-wish-once",
        effect: "a lost wish for credit is not repeated",
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Simulator,
        snippet: "self.channel.credit_requests_due = self.channel.needs_credit();",
        replacement: "self.channel.credit_requests_due = false;",
    },
    Mutant {
        name: "window-told-once",
        effect: "a window that was lost is not told again",
        file: "crates/proto/src/session/transmit.rs",
        suite: Suite::Simulator,
        snippet: "if small_change && !shared.grants.is_limited() || bytes.len() < 8 {",
        replacement: "if small_change || bytes.len() < 8 {",
    },
    Mutant {
        name: "reserve-for-others",
        effect: "the pool's reserve is open to all units but the next in sequence",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "shared.pool.admit(cost, unit == self.units.next())",
        replacement: "shared.pool.admit(cost, unit != self.units.next())",
    },
    Mutant {
        name: "released-too-early",
        effect: "the slot after the last acknowledged one is given back as well",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "self.units_arrived(unit_next.min(self.window.top()), shared);",
        replacement: "self.units_arrived((unit_next + 1).min(self.window.top()), shared);",
    },
    Mutant {
        name: "holes-forgotten",
        effect: "the receiver never misses what came before",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "let floor = number.saturating_sub(u64::from(header.settled));
        if !header.flags.has(Flags::UNIT) {",
        replacement: "let floor = number;
        if !header.flags.has(Flags::UNIT) {",
    },
    Mutant {
        name: "order-unchecked",
        effect: "a message is handed over though an earlier one is missing",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "if piece.sequence == self.next && whole && self.pending.is_empty() {",
        replacement: "if piece.sequence >= self.next && whole && self.pending.is_empty() {",
    },
    Mutant {
        name: "unanswered-lanes-used",
        effect: "data go to addresses that have never answered",
        file: "crates/proto/src/session/lane_choice.rs",
        suite: Suite::Simulator,
        snippet: "lane.path.is_proven() && !(detour.is_some()",
        replacement: "lane.path.may_lead_there() && !(detour.is_some()",
    },
    Mutant {
        name: "detours-by-one-lane",
        effect: "where all lanes are suspect, repeats go by the first of them, dead or not",
        file: "crates/proto/src/session/lane_choice.rs",
        suite: Suite::Simulator,
        snippet: "let first = before.map_or(first, |index| index + 1);",
        replacement: "let _piece = before;",
    },
    Mutant {
        name: "old-news-as-news",
        effect: "an acknowledgement that says again what was known makes a dead lane look alive",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "if lane.out.is_news(to) {",
        replacement: "if lane.out.is_news(to) || from < to {",
    },
    Mutant {
        name: "absence-as-dead-lane",
        effect: "a peer that does not run for a while has lost the lane that was waited for",
        file: "crates/proto/src/lane.rs",
        suite: Suite::Protocol("paths"),
        snippet: "self.count >= MAX_LANE_TIMEOUTS && self.elsewhere.is_some_and(known)",
        replacement: "self.count >= MAX_LANE_TIMEOUTS || self.elsewhere.is_some_and(known)",
    },
    Mutant {
        name: "one-lane-after-the-other",
        effect: "a peer that has answered by one lane has no time left to answer by another",
        file: "crates/proto/src/lane.rs",
        suite: Suite::Protocol("paths"),
        snippet: "let known = |at: Instant| at < self.before;",
        replacement: "let known = |at: Instant| at <= self.latest;",
    },
    Mutant {
        name: "late-news-ignored",
        effect: "what was repeated by another lane and arrives all the same does not speak for its own",
        file: "crates/proto/src/lane.rs",
        suite: Suite::Unit("dipole-proto", "is_not_news"),
        snippet: "let news = end > self.arrived;",
        replacement: "let news = end > self.arrived && end > self.floor;",
    },
    Mutant {
        name: "parts-not-sent",
        effect: "a unit that is too long for its path is cut, but its parts stay",
        file: "crates/proto/src/send.rs",
        suite: Suite::Simulator,
        snippet: "self.cuts.iter().take(MAX_CUT)",
        replacement: "self.cuts.iter().take(0)",
    },
    Mutant {
        name: "parts-misjoined",
        effect: "the parts of a unit are put together from behind",
        file: "crates/proto/src/parts.rs",
        suite: Suite::Simulator,
        snippet: "            for (index, known) in assembly.parts.iter().enumerate() {",
        replacement: "            for (index, known) in assembly.parts.iter().enumerate().rev() {",
    },
    Mutant {
        name: "proof-unchecked",
        effect: "whoever carries a proof gets a session, right or wrong",
        file: "crates/proto/src/machine/packets.rs",
        suite: Suite::Simulator,
        snippet: "let refusal = if keyed != packet.header().flags.has(Flags::PROVEN) || keyed && !proven {",
        replacement: "let refusal = if keyed != packet.header().flags.has(Flags::PROVEN) {",
    },
    Mutant {
        name: "wishes-overtake",
        effect: "a wish that overtakes messages counts as one for all of them together",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "            && self.consumed >= self.begun
",
        replacement: "",
    },
    Mutant {
        name: "wishes-of-earlier-lives",
        effect: "a late wish of an edge that ended counts for its next life",
        file: "crates/proto/src/channel/granting.rs",
        suite: Suite::Protocol("pipes"),
        snippet: "        if edge.key() != key {",
        replacement: "        if edge.key().ends() != key.ends() {",
    },
    Mutant {
        name: "lives-fill-the-pool",
        effect: "each life of an edge gets its first credit whatever lies unread of those before",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Protocol("delivery"),
        snippet: " || unread + next_life > room",
        replacement: "",
    },
    Mutant {
        name: "silent-while-an-edge-ends",
        effect: "a peer that keeps an edge of which messages lie unread counts as silent",
        file: "crates/proto/src/channel/mod.rs",
        suite: Suite::Protocol("delivery"),
        snippet: "edge.is_ending() == is_ending",
        replacement: "edge.is_ending() == is_ending || !is_ending",
    },
    Mutant {
        name: "credit-given-back-twice",
        effect: "a message that an application gives back counts twice",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "        self.consumed += charge;
        if let Some(index)",
        replacement: "        self.consumed += 2 * charge;
        if let Some(index)",
    },
    Mutant {
        name: "edges-never-forgotten",
        effect: "who has read all of an edge that ended does not say so",
        file: "crates/proto/src/pipe.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "Notice::Forgotten { key } => self.queue_keyed(PipeKind::Forgotten, key, 0),",
        replacement: "Notice::Forgotten { .. } => {}",
    },
    Mutant {
        name: "notices-wait-for-no-frame",
        effect: "a session whose notices found no frame free is not asked again",
        file: "crates/proto/src/machine.rs",
        suite: Suite::Simulator,
        snippet: "self.turn_left == 0 || session.has_notice();",
        replacement: "self.turn_left == 0;",
    },
    Mutant {
        name: "taken-untold",
        effect: "a long message that is taken is not reported as taken",
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
        effect: "an endpoint that is closed unread gives its senders their credit back twice",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "self.consumed = self.charged - waiting;",
        replacement: "self.consumed += self.charged - waiting;",
    },
    Mutant {
        name: "hand-over-forgotten",
        effect: "what flies on a lane that was given up stays there until its own time-outs",
        file: "crates/proto/src/session/paths.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "        self.window.abandon_lane(id);
",
        replacement: "",
    },
    Mutant {
        name: "ack-requests-repeat-at-once",
        effect: "whoever is asked repeats what left less than a round trip ago",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "let fresh = self.retransmission.round_trip.smoothed_ns().unwrap_or(0);",
        replacement: "let fresh = 0;",
    },
    Mutant {
        name: "tail-without-back-off",
        effect: "a tail that nothing answers is repeated at the same short pause for ever",
        file: "crates/proto/src/session/retransmission.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "self.tail.again(now, config.max_timeout_ns);",
        replacement: "self.tail.start(now, self.tail.pause_ns.min(config.max_timeout_ns));",
    },
    Mutant {
        name: "holes-go-back-n",
        effect: "all that was sent after a lost packet is repeated with it",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "        for number in from.max(lane.out.floor())..to.min(lane.out.next()) {
            let flight",
        replacement: "        for number in from.max(lane.out.floor())..lane.out.next().max(to) {
            let flight",
    },
    Mutant {
        name: "asked-once",
        effect: "a silent peer is asked once whether it lives, though packets are lost",
        file: "crates/proto/src/session/liveness.rs",
        suite: Suite::Protocol("crowd"),
        snippet: "            true => config.max_timeout_ns,
",
        replacement: "            true => rest_ns,
",
    },
    Mutant {
        name: "watch-ignored",
        effect: "a watched peer is asked no sooner than others",
        file: "crates/proto/src/session.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "self.liveness.is_watched()
            || self.channel.awaits_pieces()",
        replacement: "self.channel.awaits_pieces()",
    },
    Mutant {
        name: "absence-blamed-on-the-peer",
        effect: "a process that was not stepped takes its own silence for its peer's",
        file: "crates/proto/src/session/liveness.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "*since = since.after(absence_ns).min(now);",
        replacement: "*since = (*since).min(now);",
    },
    Mutant {
        name: "one-more-acknowledged",
        effect: "an implied acknowledgement covers one unit more",
        file: "crates/proto/src/session.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "self.units_arrived(unit, shared);",
        replacement: "self.units_arrived(unit + 1, shared);",
    },
    Mutant {
        name: "unit-not-widened",
        effect: "numbers of units are taken for all of what they are the low 32 bits of",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "let unit = widen(header.unit, self.units.next());
        match self.units",
        replacement: "let unit = u64::from(header.unit);
        match self.units",
    },
    Mutant {
        name: "number-not-widened",
        effect: "packet numbers are taken for all of what they are the low 32 bits of",
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
        effect: "numbers of messages are taken for all of what they are the low 32 bits of",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Simulator,
        snippet: "edge.map_or(sequence.into(), |edge| widen(sequence, edge.next()))",
        replacement: "edge.map_or(sequence.into(), |_| sequence.into())",
    },
    Mutant {
        name: "edges-end-early",
        effect: "an edge is forgotten though its last message has not come",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "self.end.is_some_and(|end| self.next >= end)",
        replacement: "self.end.is_some_and(|end| self.next + 1 >= end)",
    },
    Mutant {
        name: "refusal-untold-by-memory",
        effect: "a process of the same node is not told that a message was refused",
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
        effect: "an endpoint that is closed unread keeps the credit of what it held",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "self.consumed = self.charged - waiting;",
        replacement: "let _lost = waiting;",
    },
    Mutant {
        name: "old-credit-lowers",
        effect: "a grant that was overtaken takes back what a later one gave",
        file: "crates/proto/src/channel/outgoing.rs",
        suite: Suite::Simulator,
        snippet: "self.limit = self.limit.max(limit);",
        replacement: "self.limit = limit;",
    },
    Mutant {
        name: "hello-taken-again",
        effect: "a handshake that was recorded opens a session again",
        file: "crates/proto/src/machine/packets.rs",
        suite: Suite::Protocol("membership"),
        snippet: "_ if keyed && !self.cookies.spend(now, hello.cookie) => {",
        replacement: "_ if keyed && !self.cookies.spend(now, hello.cookie) && now.0 == 0 => {",
    },
    Mutant {
        name: "refused-offers-unanswered",
        effect: "a long message that nobody takes keeps its sender's memory",
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
        effect: "what is missing is not asked for",
        file: "crates/proto/src/session/requests.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "        self.is_ack_due = true;
        self.ack.again",
        replacement: "        self.ack.again",
    },
    Mutant {
        name: "run-out-of-order",
        effect: "a packet of messages is taken though one before it is missing",
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
        effect: "of several messages taken with a packet only one is numbered",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Simulator,
        snippet: "edge.take_next(count.into(), charge);",
        replacement: "edge.take_next(u64::from(count.min(1)), charge);",
    },
    Mutant {
        name: "alone-without-deadline",
        effect: "for a message that left alone no repeat is planned",
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
        effect: "of several messages taken with a packet only one is charged its overhead",
        file: "crates/proto/src/channel/receiving.rs",
        suite: Suite::Simulator,
        snippet: "u64::from(run.count) * charge(0)",
        replacement: "u64::from(run.count.min(1)) * charge(0)",
    },
    Mutant {
        name: "read-at-once-unconsumed",
        effect: "the room of a message that its reader has at once is never granted again",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "self.charged += charge;
        self.consumed += charge;",
        replacement: "self.charged += charge;",
    },
    Mutant {
        name: "last-piece-as-any",
        effect: "the piece that makes a message whole is taken by the short way: nobody gets it",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Protocol("prediction"),
        snippet: "wanted && partial.total == total && partial.got + length < total",
        replacement: "wanted && partial.total == total && partial.got + length <= total",
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
        effect: "when an endpoint closes, the room of operations that go on is given back twice",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "let freed = self.held.saturating_sub(kept);",
        replacement: "let freed = self.held.saturating_sub(kept * 0);",
    },
    Mutant {
        name: "pieces-of-a-put-as-message",
        effect: "a put that cannot be fetched comes in pieces that count as a message's",
        file: "crates/proto/src/pipe/incoming.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "let operation = self.channel.is_operation(edge, sequence);",
        replacement: "let operation = false;",
    },
    Mutant {
        name: "keys-of-the-living-wiped",
        effect: "keys go before the goodbye that they close",
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
        name: "renewal-by-anybody",
        effect: "who stood between two members passes for one",
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
