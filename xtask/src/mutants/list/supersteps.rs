//! Bugs of the runtime of supersteps.

use super::Mutant;
use crate::mutants::suite::Suite;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "supersteps-puts-before-answers",
        effect: "results of a rank's gets overwrite what other ranks put there",
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
        effect: "gets read data of puts of the same superstep",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "        let own_answers = self.answer_all(&own, &came, epoch)?;",
        replacement: "        self.apply_local(&own, epoch)?;
        let own_answers = self.answer_all(&own, &came, epoch)?;",
    },
    Mutant {
        name: "supersteps-both-arenas-cleared",
        effect: "memory is returned to the system while other ranks read it",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "            self.arenas[epoch as usize % 2].clear(&mates.window);",
        replacement: "            for arena in &mut self.arenas {
                arena.clear(&mates.window);
            }",
    },
    Mutant {
        name: "supersteps-other-arena-cleared",
        effect: "records overwrite data that other ranks still read",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "self.arenas[epoch as usize % 2].clear(&mates.window);",
        replacement: "self.arenas[(epoch as usize + 1) % 2].clear(&mates.window);",
    },
    Mutant {
        name: "supersteps-no-rank-finishes",
        effect: "a rank exits while other ranks copy its memory",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "        if self.exchange.knowledge().has_pulls() {",
        replacement: "        if self.exchange.knowledge().has_pulls() && epoch == 0 {",
    },
    Mutant {
        name: "supersteps-answers-unawaited",
        effect: "results of local ranks are read before they have been written",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "            self.wait_for(mate, (Milestone::Answered, epoch), None)?;",
        replacement: "            self.wait_for(mate, (Milestone::Arrived, epoch), None)?;",
    },
    Mutant {
        name: "supersteps-parcels-incomplete",
        effect: "a rank reads for other ranks before all of their gets have arrived",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "        self.pump(|process| process.is_complete())?;",
        replacement: "        self.pump(|_| true)?;",
    },
    Mutant {
        name: "supersteps-queue-kept",
        effect: "unread messages stay in the queue",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "        self.queue.clear();",
        replacement: "        let _kept = &self.queue;",
    },
    Mutant {
        name: "supersteps-parcels-kept",
        effect: "records of a superstep are applied again in the next one",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "        self.local.fill(LocalParcel::default());",
        replacement: "        let _kept = &self.local;",
    },
    Mutant {
        name: "supersteps-first-chunk-is-all",
        effect: "a parcel counts as complete after its first chunk",
        file: "crates/bsp/src/superstep/exchange.rs",
        suite: Suite::Supersteps,
        snippet: "self.total == Some(self.came)",
        replacement: "self.total.is_some()",
    },
    Mutant {
        name: "supersteps-counts-kept",
        effect: "parcels of a superstep count for the next one",
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
        effect: "only gets without a copy report that memory is read",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Supersteps,
        snippet: "let pulls = self.is_pulled || !self.pulls.is_empty();",
        replacement: "let pulls = !self.pulls.is_empty();",
    },
    Mutant {
        name: "supersteps-placed-early",
        effect: "bytes are written while their owner is still in the previous superstep",
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
        effect: "a rank exits while its memory is still read",
        file: "crates/bsp/src/process/sync/transmit.rs",
        suite: Suite::Supersteps,
        snippet: "        Ok(!self.is_placing())",
        replacement: "        Ok(true)",
    },
    Mutant {
        name: "supersteps-kept-too-late",
        effect: "results of gets overwrite data that has not been read yet",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Supersteps,
        snippet: "if direct.iter().any(|(.., is_ready)| !is_ready) {",
        replacement: "if direct.iter().any(|(.., is_ready)| !is_ready) && epoch == 0 {",
    },
    Mutant {
        name: "supersteps-last-message-stays",
        effect: "a rank waits for another message after the last one",
        file: "crates/bsp/src/process/sync/transmit.rs",
        suite: Suite::Supersteps,
        snippet: "            if has_waited && is_sent {",
        replacement: "            if has_waited && is_sent && self.size == 0 {",
    },
];
