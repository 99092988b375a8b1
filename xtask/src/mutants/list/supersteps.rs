//! Bugs of the runtime of supersteps.

use super::Mutant;
use crate::mutants::suite::Suite;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "supersteps-puts-before-replies",
        effect: "results of a rank's gets overwrite what other ranks put there",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.write_replies(&own_replies, epoch)?;",
        replacement: "        for from in 0..self.size {
            self.apply_local(from, &own, epoch)?;
        }
        self.write_replies(&own_replies, epoch)?;",
    },
    Mutant {
        name: "supersteps-puts-before-reads",
        effect: "gets read data of puts of the same superstep",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        let own_replies = self.reply_to_own(&own)?;",
        replacement: "        for from in 0..self.size {
            self.apply_local(from, &own, epoch)?;
        }
        let own_replies = self.reply_to_own(&own)?;",
    },
    Mutant {
        name: "supersteps-order-reversed",
        effect: "the lowest of several ranks that put to the same bytes remains",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        for rank in 0..self.size {",
        replacement: "        for rank in (0..self.size).rev() {",
    },
    Mutant {
        name: "supersteps-both-arenas-cleared",
        effect: "memory is returned to the system while other ranks read it",
        file: "crates/bsp/src/process/shared_memory.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.arenas[self.current].clear(&self.ranks.window);",
        replacement: "        for arena in &mut self.arenas {
            arena.clear(&self.ranks.window);
        }",
    },
    Mutant {
        name: "supersteps-other-arena-cleared",
        effect: "records overwrite data that other ranks still read",
        file: "crates/bsp/src/process/shared_memory.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "self.arenas[self.current].clear(&self.ranks.window);",
        replacement: "self.arenas[self.current ^ 1].clear(&self.ranks.window);",
    },
    Mutant {
        name: "supersteps-no-rank-finishes",
        effect: "a rank exits while other ranks copy its memory",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        if self.exchange.summary().has_pulls() {",
        replacement: "        if self.exchange.summary().has_pulls() && epoch == 0 {",
    },
    Mutant {
        name: "supersteps-replies-unawaited",
        effect: "results of local ranks are read before they have been written",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.wait_for(Event::new(local_rank, SyncPhase::Replied, epoch), None)?;",
        replacement: "        self.wait_for(Event::new(local_rank, SyncPhase::Arrived, epoch), None)?;",
    },
    Mutant {
        name: "supersteps-records-incomplete",
        effect: "a rank reads for other ranks before all of their gets have arrived",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.pump(|process| process.has_all_records())?;",
        replacement: "        self.pump(|_| true)?;",
    },
    Mutant {
        name: "supersteps-queue-kept",
        effect: "unread messages stay in the queue",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.queue.clear();",
        replacement: "        let _kept = &self.queue;",
    },
    Mutant {
        name: "supersteps-records-kept",
        effect: "records of a superstep are applied again in the next one",
        file: "crates/bsp/src/process/shared_memory.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.buffers.fill(LocalRecordBuffer::default());",
        replacement: "        let _kept = &self.buffers;",
    },
    Mutant {
        name: "supersteps-first-chunk-is-all",
        effect: "records count as complete after their first chunk",
        file: "crates/bsp/src/superstep/inbox.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "self.total == Some(self.received)",
        replacement: "self.total.is_some()",
    },
    Mutant {
        name: "supersteps-counts-kept",
        effect: "chunks of a superstep count for the next one",
        file: "crates/bsp/src/superstep/inbox.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.records.counts.fill(ChunkCount::default());",
        replacement: "        let _kept = &self.records.counts;",
    },
    Mutant {
        name: "supersteps-chunks-unlinked",
        effect: "only the first chunk of records in shared memory is found",
        file: "crates/bsp/src/local/arena.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "_ => window.word(self.chunk).store(at as u64, Ordering::Relaxed),",
        replacement: "_ => {}",
    },
    Mutant {
        name: "supersteps-pullers-only",
        effect: "only gets without a copy report that memory is read",
        file: "crates/bsp/src/process/pending.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "self.is_pulled || !self.pulls.is_empty()",
        replacement: "!self.pulls.is_empty()",
    },
    Mutant {
        name: "supersteps-writes-early",
        effect: "bytes are written while their owner is still in the previous superstep",
        file: "crates/bsp/src/process/sync.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        self.send_records();
",
        replacement: "        self.send_records();
        self.exchange.start_remote_writes();
",
    },
    Mutant {
        name: "supersteps-program-memory-left",
        effect: "a rank exits while its memory is still read",
        file: "crates/bsp/src/process/sync/transmit.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "        Ok(!self.has_pending_writes())",
        replacement: "        Ok(true)",
    },
    Mutant {
        name: "supersteps-replies-not-held",
        effect: "results of gets overwrite data that has not been read yet",
        file: "crates/bsp/src/process/sync/gets.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "if theirs.written.iter().any(|reply| !reply.is_ready) {",
        replacement: "if theirs.written.iter().any(|reply| !reply.is_ready) && self.size == 0 {",
    },
    Mutant {
        name: "supersteps-last-message-stays",
        effect: "a rank waits for another message after the last one",
        file: "crates/bsp/src/process/sync/transmit.rs",
        suite: Suite::Test("dipole-bsp", "threads", ""),
        snippet: "            if had_unsent && is_sent {",
        replacement: "            if had_unsent && is_sent && self.size == 0 {",
    },
];
