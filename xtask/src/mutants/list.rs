//! The bugs, as data.

use super::suite::Suite;

/// One bug: a snippet that occurs once in a file, and what to write instead.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// What the machine does wrong then.
    pub(crate) effect: &'static str,
    /// Relative to the root of the workspace.
    pub(crate) file: &'static str,
    /// What finds it.
    pub(crate) suite: Suite,
    snippet: &'static str,
    replacement: &'static str,
}

pub(crate) const MUTANTS: &[Mutant] = &[
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
        snippet: "self.channel.wants_due = self.channel.is_wanting();",
        replacement: "self.channel.wants_due = false;",
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
        file: "crates/proto/src/session/transmit.rs",
        suite: Suite::Simulator,
        snippet: "lane.reach.is_proven() && !(detour",
        replacement: "lane.reach.may_lead_there() && !(detour",
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
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Protocol("paths"),
        snippet: "if lane.out.is_marked(to) {",
        replacement: "if to > 0 {",
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
        suite: Suite::Protocol("paths"),
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
        file: "crates/proto/src/channel/receiving.rs",
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
        effect: "a long message that is taken is not said to be",
        file: "crates/proto/src/pipe.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "        self.channel.filled(edge, sequence, now, shared);
        self.answer(PipeKind::Taken, number, sequence);
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
        name: "prods-repeat-at-once",
        effect: "whoever is asked repeats what left less than a round trip ago",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "let fresh = self.trip.smoothed_ns().unwrap_or(0);",
        replacement: "let fresh = 0;",
    },
    Mutant {
        name: "tail-without-back-off",
        effect: "a tail that nothing answers is repeated at the same short pause for ever",
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "self.tail.again(now, shared.config.max_timeout_ns);",
        replacement: "self.tail.start(now, self.tail.pause_ns);",
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
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Protocol("crowd"),
        snippet: "            true => shared.config.max_timeout_ns,
",
        replacement: "            true => rest_ns,
",
    },
    Mutant {
        name: "watch-ignored",
        effect: "a watched peer is asked no sooner than others",
        file: "crates/proto/src/session.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "self.watched || self.channel.awaits_pieces()",
        replacement: "self.channel.awaits_pieces()",
    },
    Mutant {
        name: "absence-blamed-on-the-peer",
        effect: "a process that was not stepped takes its own silence for its peer's",
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Protocol("recovery"),
        snippet: "*asked = asked.after(absence_ns).min(now);",
        replacement: "*asked = (*asked).min(now);",
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
        name: "assemblies-kept-on-close",
        effect: "the pieces of a message to an endpoint that was closed are kept",
        file: "crates/node/src/engine/dispatch.rs",
        suite: Suite::Simulator,
        snippet: "        self.assemblies.retain(|assembly| assembly.target != target);
        self.unreliable
",
        replacement: "        self.unreliable
",
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
        file: "crates/proto/src/pipe.rs",
        suite: Suite::Simulator,
        snippet: "                self.answer(PipeKind::Taken, number, sequence);
            }
        }",
        replacement: "            }
        }",
    },
    Mutant {
        name: "prods-off",
        effect: "what is missing is not asked for",
        file: "crates/proto/src/session/recover.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "            self.prod_due = true;
            self.ask(now);
            self.prod.again",
        replacement: "            self.ask(now);
            self.prod.again",
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
        name: "pieces-before-announcement",
        effect: "pieces of a long message overtake the record that announces it",
        file: "crates/node/src/engine/shared_memory/long.rs",
        suite: Suite::Simulator,
        snippet: "let may_go = is_next && !machine.has_queued_records(id.0.peer);",
        replacement: "let may_go = is_next;",
    },
    Mutant {
        name: "read-past-inbox",
        effect: "a message is handed to its reader before others that wait to be read",
        file: "crates/node/src/engine/shared_memory.rs",
        suite: Suite::Simulator,
        snippet: "if !state.inbox.is_empty() {
        return None;",
        replacement: "if state.inbox.len() > 1000 {
        return None;",
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
        name: "announced-beside-offer",
        effect: "a long message comes in pieces while an earlier one's may be asked for",
        file: "crates/node/src/engine/shared_memory/long.rs",
        suite: Suite::Simulator,
        snippet: "*other == edge && message.streamed.is_none()",
        replacement: "*other == edge && message.streamed.is_none() && message.length == 0",
    },
    Mutant {
        name: "withdrawn-without-copy",
        effect: "what lies in memory of a reader who left is lost",
        file: "crates/node/src/engine/receives.rs",
        suite: Suite::Simulator,
        snippet: "    let copied = memory.read(0, buffer.bytes_mut());",
        replacement: "    let copied = memory.read(0, &mut buffer.bytes_mut()[..0]);",
    },
    Mutant {
        name: "kept-once",
        effect: "a long message whose sender does not wait goes on only once",
        file: "crates/node/src/engine/send.rs",
        suite: Suite::Simulator,
        snippet: "            !is_open || rest.show(go_on).unwrap_or(true)",
        replacement: "            rest.show(go_on).unwrap_or(true) | true",
    },
    Mutant {
        name: "put-piece-at-start",
        effect: "each piece of a put is written to where the put begins",
        file: "crates/node/src/engine/operations.rs",
        suite: Suite::Simulator,
        snippet: "let at = place_in(operation.offset, at as u64);",
        replacement: "let at = place_in(operation.offset, at as u64 * 0);",
    },
    Mutant {
        name: "region-outlives-endpoint",
        effect: "operations change memory of an endpoint that was closed",
        file: "crates/node/src/engine/operations.rs",
        suite: Suite::Simulator,
        snippet: "        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys {",
        replacement: "        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys.into_iter().take(0) {",
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
        name: "answer-of-a-get-forgets-its-place",
        effect: "pieces of an answer are written over each other",
        file: "crates/node/src/engine/operations/requests.rs",
        suite: Suite::Simulator,
        snippet: "        pending.place.fill(at, length, write)",
        replacement: "        pending.place.fill(at.min(0), length, write)",
    },
    Mutant {
        name: "credit-of-answers-lost",
        effect: "the credit of an answered question is never given back",
        file: "crates/node/src/engine/operations/answers.rs",
        suite: Suite::Simulator,
        snippet: "                    self.core.operations.consumed.extend(answer.charge);",
        replacement: "                    let _kept = answer.charge;",
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
        file: "crates/proto/src/pipe.rs",
        suite: Suite::Protocol("model_check"),
        snippet: "let operation = self.channel.is_operation(edge, sequence);",
        replacement: "let operation = false;",
    },
    Mutant {
        name: "supersteps-puts-before-answers",
        effect: "what a rank has got is written over what others put there",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "        self.take_local_answers(epoch)?;
        self.take_remote_answers()?;
        self.apply_local(&own, epoch)?;",
        replacement: "        self.apply_local(&own, epoch)?;
        self.take_local_answers(epoch)?;
        self.take_remote_answers()?;",
    },
    Mutant {
        name: "supersteps-puts-before-reads",
        effect: "what was put is there when gets read",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "        let own_answers = self.answer_all(&own, &came, epoch)?;",
        replacement: "        self.apply_local(&own, epoch)?;
        let own_answers = self.answer_all(&own, &came, epoch)?;",
    },
    Mutant {
        name: "supersteps-both-arenas-cleared",
        effect: "memory goes back to the system while others read it",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "            self.arenas[epoch as usize % 2].clear(&mates.window);",
        replacement: "            for arena in &mut self.arenas {
                arena.clear(&mates.window);
            }",
    },
    Mutant {
        name: "supersteps-other-arena-cleared",
        effect: "records are written where others still read",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "self.arenas[epoch as usize % 2].clear(&mates.window);",
        replacement: "self.arenas[(epoch as usize + 1) % 2].clear(&mates.window);",
    },
    Mutant {
        name: "supersteps-nobody-finishes",
        effect: "a rank leaves while others copy its memory",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "        if self.exchange.knowledge().has_pulls() {",
        replacement: "        if self.exchange.knowledge().has_pulls() && epoch == 0 {",
    },
    Mutant {
        name: "supersteps-answers-unawaited",
        effect: "answers of ranks of the node are taken before they are there",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "            self.wait_for(mate, (Milestone::Answered, epoch), None)?;",
        replacement: "            self.wait_for(mate, (Milestone::Arrived, epoch), None)?;",
    },
    Mutant {
        name: "supersteps-parcels-incomplete",
        effect: "a rank reads for others before all of their gets have come",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "        self.pump(|process| process.is_complete())?;",
        replacement: "        self.pump(|_| true)?;",
    },
    Mutant {
        name: "supersteps-queue-kept",
        effect: "messages that were not taken stay in the queue",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "        self.queue.clear();",
        replacement: "        let _kept = &self.queue;",
    },
    Mutant {
        name: "supersteps-parcels-kept",
        effect: "records of a superstep are applied again in the next",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "        self.local.fill(LocalParcel::default());",
        replacement: "        let _kept = &self.local;",
    },
    Mutant {
        name: "supersteps-first-chunk-is-all",
        effect: "a parcel counts as complete with its first chunk",
        file: "crates/bsp/src/superstep/exchange.rs",
        suite: Suite::Supersteps,
        snippet: "self.total == Some(self.came)",
        replacement: "self.total.is_some()",
    },
    Mutant {
        name: "supersteps-counts-kept",
        effect: "parcels of a superstep count for the next",
        file: "crates/bsp/src/superstep/exchange.rs",
        suite: Suite::Supersteps,
        snippet: "        self.parcels.fill(Count::default());",
        replacement: "        let _kept = &self.parcels;",
    },
    Mutant {
        name: "supersteps-chunks-unlinked",
        effect: "only the first chunk of records in shared memory is found",
        file: "crates/bsp/src/local/arena.rs",
        suite: Suite::Supersteps,
        snippet: "_ => window.word(self.chunk).store(at as u64, Ordering::Relaxed),",
        replacement: "_ => {}",
    },
    Mutant {
        name: "supersteps-pullers-only",
        effect: "only who gets without a copy says that memory is read",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "let pulls = self.is_pulled || !self.pulls.is_empty();",
        replacement: "let pulls = !self.pulls.is_empty();",
    },
    Mutant {
        name: "supersteps-placed-early",
        effect: "bytes are written where their owner is still in the superstep before",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "        self.send_parcels();
",
        replacement: "        self.send_parcels();
        self.exchange.place_all();
",
    },
    Mutant {
        name: "supersteps-lent-memory-left",
        effect: "a rank leaves while its memory is still read",
        file: "crates/bsp/src/process/sync/transmit.rs",
        suite: Suite::Supersteps,
        snippet: "        Ok(!self.is_placing())",
        replacement: "        Ok(true)",
    },
    Mutant {
        name: "supersteps-kept-too-late",
        effect: "what is got is placed where others have not been read yet",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "if direct.iter().any(|(.., is_ready)| !is_ready) {",
        replacement: "if direct.iter().any(|(.., is_ready)| !is_ready) && epoch == 0 {",
    },
    Mutant {
        name: "supersteps-last-message-stays",
        effect: "a rank whose last message has gone waits for another",
        file: "crates/bsp/src/process/sync/transmit.rs",
        suite: Suite::Supersteps,
        snippet: "            if has_waited && is_sent {",
        replacement: "            if has_waited && is_sent && self.size == 0 {",
    },
    Mutant {
        name: "tag-unchecked",
        effect: "packets are taken whatever their tag is",
        file: "crates/node/src/engine/trailer/session.rs",
        suite: Suite::Unit("dipole-node", "trailer"),
        snippet: "opened.map_err(|_| DropReason::Forged)?;",
        replacement: "let _forged = opened;",
    },
    Mutant {
        name: "replays-taken",
        effect: "a packet that was taken before is taken again",
        file: "crates/node/src/engine/trailer/session.rs",
        suite: Suite::Unit("dipole-node", "trailer"),
        snippet: "if !incoming.window.is_new(counter) {",
        replacement: "if counter == u64::MAX {",
    },
    Mutant {
        name: "keys-never-change",
        effect: "a direction keeps its first key",
        file: "crates/node/src/engine/trailer/session.rs",
        suite: Suite::Unit("dipole-node", "trailer"),
        snippet: "if counter != 0 && counter.trailing_zeros() >= PACKET_BITS {",
        replacement: "if counter == u64::MAX {",
    },
    Mutant {
        name: "keys-left-behind",
        effect: "keys of a session outlive it",
        file: "crates/node/src/engine/trailer/session.rs",
        suite: Suite::Unit("dipole-node", "trailer"),
        snippet: "self.sessions[index as usize] = None;",
        replacement: "let _kept = index;",
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
        snippet: "session.renewal = Some(Renewal {",
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

impl Mutant {
    /// The source with the bug in it.
    ///
    /// # Errors
    /// What to do when the snippet does not occur exactly once.
    pub(crate) fn mutate(&self, source: &str) -> Result<String, String> {
        match source.matches(self.snippet).count() {
            1 => Ok(source.replacen(self.snippet, self.replacement, 1)),
            count => Err(format!(
                "mutant {}: its snippet occurs {count} times in {}, not once; \
                 fit it to the code in xtask/src/mutants/list.rs",
                self.name, self.file
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_snippet_occurs_exactly_once() {
        for mutant in MUTANTS {
            let path = crate::command::root().join(mutant.file);
            let source = std::fs::read_to_string(path).expect("the file of a mutant");
            let mutated = mutant.mutate(&source);
            assert!(
                mutated.is_ok_and(|mutated| mutated != source),
                "{}",
                mutant.name
            );
        }
    }

    #[test]
    fn names_are_unique_and_a_missing_snippet_is_told() {
        for (index, mutant) in MUTANTS.iter().enumerate() {
            assert!(
                MUTANTS[..index]
                    .iter()
                    .all(|other| other.name != mutant.name)
            );
            let error = mutant.mutate("fn main() {}").expect_err("no snippet there");
            assert!(error.contains(mutant.name) && error.contains("0 times"));
        }
    }
}
