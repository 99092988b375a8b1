//! The bugs, as data.

/// One bug: a snippet that occurs once in a file, and what to write instead.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// What the machine does wrong then.
    pub(crate) effect: &'static str,
    /// Relative to the root of the workspace.
    pub(crate) file: &'static str,
    snippet: &'static str,
    replacement: &'static str,
}

pub(crate) const MUTANTS: [Mutant; 14] = [
    Mutant {
        name: "tail-repeats-off",
        effect: "a tail that was lost is never sent again",
        file: "crates/proto/src/session/recover.rs",
        snippet: "for piece in [first, last] {
            let stale",
        replacement: "for piece in [first, last].into_iter().take(0) {
            let stale",
    },
    Mutant {
        name: "hole-repeats-off",
        effect: "units that are asked for count as lost, but are not sent again",
        file: "crates/proto/src/send.rs",
        snippet: "self.repeats.push_back(piece.unit);",
        replacement: "let _forgotten = piece.unit;",
    },
    Mutant {
        name: "duplicates-accepted",
        effect: "a unit that came before is taken again",
        file: "crates/proto/src/session/receive.rs",
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
        snippet: "if need > self.limit || self.is_ending() {",
        replacement: "if need == u64::MAX || self.is_ending() {",
    },
    Mutant {
        name: "credit-wish-once",
        effect: "a lost wish for credit is not repeated",
        file: "crates/proto/src/session/recover.rs",
        snippet: "self.channel.wants_due = self.channel.is_wanting();",
        replacement: "self.channel.wants_due = false;",
    },
    Mutant {
        name: "reserve-for-others",
        effect: "the pool's reserve is open to all units but the next in sequence",
        file: "crates/proto/src/session/receive.rs",
        snippet: "shared.pool.admit(cost, unit == self.units.next())",
        replacement: "shared.pool.admit(cost, unit != self.units.next())",
    },
    Mutant {
        name: "released-too-early",
        effect: "the slot after the last acknowledged one is given back as well",
        file: "crates/proto/src/session/receive.rs",
        snippet: "self.units_arrived(unit_next.min(self.window.top()), shared);",
        replacement: "self.units_arrived((unit_next + 1).min(self.window.top()), shared);",
    },
    Mutant {
        name: "holes-forgotten",
        effect: "the receiver never misses what came before",
        file: "crates/proto/src/session/receive.rs",
        snippet: "let floor = number.saturating_sub(u64::from(header.settled));
        if !header.flags.has(Flags::UNIT) {",
        replacement: "let floor = number;
        if !header.flags.has(Flags::UNIT) {",
    },
    Mutant {
        name: "order-unchecked",
        effect: "a message is handed over though an earlier one is missing",
        file: "crates/proto/src/channel/incoming.rs",
        snippet: "if sequence == self.next && whole && self.pending.is_empty() {",
        replacement: "if sequence >= self.next && whole && self.pending.is_empty() {",
    },
    Mutant {
        name: "unanswered-lanes-used",
        effect: "data go to addresses that have never answered",
        file: "crates/proto/src/session/transmit.rs",
        snippet: "lane.reach.is_proven() && Some(lane.id) != avoided",
        replacement: "lane.reach.may_lead_there() && Some(lane.id) != avoided",
    },
    Mutant {
        name: "old-news-as-news",
        effect: "an acknowledgement that says again what was known makes a dead lane look alive",
        file: "crates/proto/src/session/receive.rs",
        snippet: "if from < to && lane.out.is_news(to) {",
        replacement: "if from < to {",
    },
    Mutant {
        name: "parts-not-sent",
        effect: "a unit that is too long for its path is cut, but its parts stay",
        file: "crates/proto/src/send.rs",
        snippet: "self.cuts.iter().take(MAX_CUT)",
        replacement: "self.cuts.iter().take(0)",
    },
    Mutant {
        name: "parts-misjoined",
        effect: "the parts of a unit are put together from behind",
        file: "crates/proto/src/parts.rs",
        snippet: "            for (index, known) in assembly.parts.iter().enumerate() {",
        replacement: "            for (index, known) in assembly.parts.iter().enumerate().rev() {",
    },
    Mutant {
        name: "proof-unchecked",
        effect: "whoever carries a proof gets a session, right or wrong",
        file: "crates/proto/src/machine/packets.rs",
        snippet: "let refusal = if keyed != packet.header.flags.has(Flags::PROVEN) || keyed && !proven {",
        replacement: "let refusal = if keyed != packet.header.flags.has(Flags::PROVEN) {",
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
        for mutant in &MUTANTS {
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
