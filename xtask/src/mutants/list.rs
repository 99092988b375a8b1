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
                return Err(Drop::Duplicate);
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
        snippet: "if sequence == self.next && whole && self.pending.is_empty() {",
        replacement: "if sequence >= self.next && whole && self.pending.is_empty() {",
    },
    Mutant {
        name: "unanswered-lanes-used",
        effect: "data go to addresses that have never answered",
        file: "crates/proto/src/session/transmit.rs",
        suite: Suite::Simulator,
        snippet: "lane.reach.is_proven() && Some(lane.id) != avoided",
        replacement: "lane.reach.may_lead_there() && Some(lane.id) != avoided",
    },
    Mutant {
        name: "old-news-as-news",
        effect: "an acknowledgement that says again what was known makes a dead lane look alive",
        file: "crates/proto/src/session/receive.rs",
        suite: Suite::Simulator,
        snippet: "if from < to && lane.out.is_news(to) {",
        replacement: "if from < to {",
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
        snippet: "let refusal = if keyed != packet.header.flags.has(Flags::PROVEN) || keyed && !proven {",
        replacement: "let refusal = if keyed != packet.header.flags.has(Flags::PROVEN) {",
    },
    Mutant {
        name: "credit-given-back-twice",
        effect: "a message that an application gives back counts twice",
        file: "crates/proto/src/channel/incoming.rs",
        suite: Suite::Simulator,
        snippet: "        self.consumed += charge(total);
        if let Some(index)",
        replacement: "        self.consumed += 2 * charge(total);
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
    fn every_snippet_occurs_exactly_once_in_the_protocol() {
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
