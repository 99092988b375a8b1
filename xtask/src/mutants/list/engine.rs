//! Bugs of the engine: how a node executes the decisions of the protocol.

use super::Mutant;
use crate::mutants::suite::Suite;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "held-frames-without-a-deadline",
        effect: "messages that wait for others in a packet leave only with the next call",
        file: "crates/engine/src/lib.rs",
        suite: Suite::Test("dipole-node", "memory", "messages::"),
        snippet: "self.core.packer.next_deadline(&self.core.machine, now),",
        replacement: "None,",
    },
    Mutant {
        name: "background-waits-for-others",
        effect: "a message in the background does not go on when unreliable ones return their frames",
        file: "crates/engine/src/lib.rs",
        suite: Suite::Test("dipole-node", "simulation", "background::"),
        snippet: "if !self.background_sends.is_empty() && self.free_frames() > free {",
        replacement: "if !self.background_sends.is_empty() && self.free_frames() > usize::MAX - free {",
    },
    Mutant {
        name: "refusals-end-with-their-edge",
        effect: "a refusal is forgotten when its edge is opened again or its process leaves",
        file: "crates/engine/src/core.rs",
        suite: Suite::Test("dipole-node", "api", "drains::"),
        snippet: "self.refusals.record(peer, ends, reason);",
        replacement: "let _ignored = (peer, ends, reason);",
    },
    Mutant {
        name: "assemblies-kept-on-close",
        effect: "the parts of a message to a closed endpoint are kept",
        file: "crates/engine/src/dispatch.rs",
        suite: Suite::Simulator,
        snippet: "        self.assemblies.retain(|assembly| assembly.target != target);
        self.unreliable
",
        replacement: "        self.unreliable
",
    },
    Mutant {
        name: "pieces-before-announcement",
        effect: "parts of a long message overtake the record that announces it",
        file: "crates/engine/src/shared_memory/long.rs",
        suite: Suite::Simulator,
        snippet: "let may_go = is_next && !machine.has_queued_records(id.0.peer);",
        replacement: "let may_go = is_next;",
    },
    Mutant {
        name: "read-past-inbox",
        effect: "a message is delivered before earlier unread ones",
        file: "crates/engine/src/shared_memory/arrivals.rs",
        suite: Suite::Simulator,
        snippet: "if !state.inbox.is_empty() {
        return None;",
        replacement: "if state.inbox.len() > 1000 {
        return None;",
    },
    Mutant {
        name: "announced-next-to-offer",
        effect: "a long message is sent in parts while those of an earlier one may be requested",
        file: "crates/engine/src/shared_memory/long.rs",
        suite: Suite::Test("dipole-node", "memory", "edges::"),
        snippet: "*other == edge && message.streamed.is_none()",
        replacement: "*other == edge && message.streamed.is_none() && message.length == 0",
    },
    Mutant {
        name: "withdrawn-without-copy",
        effect: "data in the memory of a reader that timed out is lost",
        file: "crates/engine/src/receives.rs",
        suite: Suite::Simulator,
        snippet: "    let copied = memory.read(0, buffer.bytes_mut());",
        replacement: "    let copied = memory.read(0, &mut buffer.bytes_mut()[..0]);",
    },
    Mutant {
        name: "kept-once",
        effect: "a long message of a non-blocking sender makes progress only once",
        file: "crates/engine/src/send.rs",
        suite: Suite::Simulator,
        snippet: "            !is_open || rest.with_bytes(go_on).unwrap_or(true)",
        replacement: "            rest.with_bytes(go_on).unwrap_or(true) | true",
    },
    Mutant {
        name: "put-piece-at-start",
        effect: "each part of a put is written to the start of the put",
        file: "crates/engine/src/operations.rs",
        suite: Suite::Simulator,
        snippet: "let at = memory_offset(operation.offset, at as u64);",
        replacement: "let at = memory_offset(operation.offset, at as u64 * 0);",
    },
    Mutant {
        name: "region-outlives-endpoint",
        effect: "operations change memory of a closed endpoint",
        file: "crates/engine/src/memory_operations.rs",
        suite: Suite::Simulator,
        snippet: "        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys {",
        replacement: "        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys.into_iter().take(0) {",
    },
    Mutant {
        name: "answer-of-a-get-forgets-its-place",
        effect: "parts of a reply overwrite each other",
        file: "crates/engine/src/operations/requests.rs",
        suite: Suite::Simulator,
        snippet: "        pending.place.fill(at, length, write)",
        replacement: "        pending.place.fill(at.min(0), length, write)",
    },
    Mutant {
        name: "credit-of-answers-lost",
        effect: "the credit of an answered request is never returned",
        file: "crates/engine/src/send_answers.rs",
        suite: Suite::Simulator,
        snippet: "                    self.core.operations.consumed.extend(answer.charge);",
        replacement: "                    let _kept = answer.charge;",
    },
    Mutant {
        name: "tag-unchecked",
        effect: "packets with any tag are accepted",
        file: "crates/engine/src/trailer/session.rs",
        suite: Suite::Unit("dipole-engine", "trailer"),
        snippet: "opened.map_err(|_| DropReason::Forged)?;",
        replacement: "let _forged = opened;",
    },
    Mutant {
        name: "damage-taken-for-forgery",
        effect: "a damaged packet with a tag is counted as forged",
        file: "crates/engine/src/trailer/session.rs",
        suite: Suite::Unit("dipole-engine", "trailer"),
        snippet: "DropReason::Forged if !is_whole(packet, length) => DropReason::Damaged,",
        replacement: "",
    },
    Mutant {
        name: "replays-taken",
        effect: "a duplicate packet is accepted",
        file: "crates/engine/src/trailer/session.rs",
        suite: Suite::Unit("dipole-engine", "trailer"),
        snippet: "if !incoming.window.is_new(counter) {",
        replacement: "if counter == u64::MAX {",
    },
    Mutant {
        name: "keys-never-change",
        effect: "a direction keeps its first key",
        file: "crates/engine/src/trailer/session.rs",
        suite: Suite::Unit("dipole-engine", "trailer"),
        snippet: "if counter != 0 && counter.trailing_zeros() >= PACKET_BITS {",
        replacement: "if counter == u64::MAX {",
    },
    Mutant {
        name: "keys-left-behind",
        effect: "keys of a session outlive it",
        file: "crates/engine/src/trailer/session.rs",
        suite: Suite::Unit("dipole-engine", "trailer"),
        snippet: "self.sessions[index as usize] = None;",
        replacement: "let _kept = index;",
    },
    Mutant {
        name: "answer-without-room-lost",
        effect: "the answer to a peer's memory operation is dropped if it finds no room",
        file: "crates/engine/src/send_answers.rs",
        suite: Suite::Test("dipole-node", "api", "try_again::"),
        snippet: "Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => break false,",
        replacement: "Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => {
                    answers.queue.pop_front();
                    break false;
                }",
    },
    Mutant {
        name: "answer-of-any-process",
        effect: "an answer of a process other than the target counts",
        file: "crates/engine/src/operations/requests.rs",
        suite: Suite::Unit("dipole-engine", "requests"),
        snippet: "pending.filter(|pending| pending.edge.peer == peer) else",
        replacement: "pending.filter(|pending| pending.edge.index == 0 || pending.edge.peer == peer) else",
    },
    Mutant {
        name: "operation-completed-twice",
        effect: "an operation completes again when its process ends or answers again",
        file: "crates/engine/src/operations/requests.rs",
        suite: Suite::Unit("dipole-engine", "requests"),
        snippet: "        if pending.result.is_some() {
            return None;",
        replacement: "        if pending.result.is_some() && pending.posted.is_none() {
            return None;",
    },
    Mutant {
        name: "operations-of-others-failed",
        effect: "the end of a process fails operations on others",
        file: "crates/engine/src/operations/requests.rs",
        suite: Suite::Unit("dipole-engine", "requests"),
        snippet: "it.result.is_none() && matches(it)",
        replacement: "it.result.is_none() && (matches(it) || it.posted.is_some())",
    },
];
