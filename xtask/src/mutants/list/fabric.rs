//! Bugs of the libfabric provider: matching, arithmetic, names, descriptors.

use super::Mutant;
use crate::mutants::suite::Suite;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "last-receive-takes-message",
        effect: "of several receives that match a message, the one posted last takes it",
        file: "crates/fabric/src/matching.rs",
        suite: Suite::Unit("dipole-fabric", "matching"),
        snippet: "found.min_by_key(|&slot| table.number(slot))?;",
        replacement: "found.max_by_key(|&slot| table.number(slot))?;",
    },
    Mutant {
        name: "receive-from-any-source-skipped",
        effect: "receives from any source get no messages",
        file: "crates/fabric/src/matching.rs",
        suite: Suite::Unit("dipole-fabric", "matching"),
        snippet: "            table.list(None, hash),
        ];",
        replacement: "            table.list(Some(source), hash),
        ];",
    },
    Mutant {
        name: "token-of-earlier-receive",
        effect: "a token names the next receive in its slot",
        file: "crates/fabric/src/matching.rs",
        suite: Suite::Unit("dipole-fabric", "matching"),
        snippet: "entry.is_some_and(|entry| entry.number == number && entry.value.is_some())",
        replacement: "entry.is_some_and(|entry| entry.number >= number && entry.value.is_some())",
    },
    Mutant {
        name: "unexpected-message-copied",
        effect: "a message that came early is received twice",
        file: "crates/fabric/src/matching.rs",
        suite: Suite::Unit("dipole-fabric", "matching"),
        snippet: "        self.used -= 1;
        self.free.push(slot);",
        replacement: "        self.used -= 1;
        self.free.push(slot);
        self.next -= 1;",
    },
    Mutant {
        name: "slots-never-reused",
        effect: "the table of receives grows with each of them",
        file: "crates/fabric/src/matching.rs",
        suite: Suite::Unit("dipole-fabric", "matching"),
        snippet: "        self.free.push(slot);
",
        replacement: "        let _unused = slot;
",
    },
    Mutant {
        name: "order-lost-on-growth",
        effect: "messages that wait are lost when the tables grow",
        file: "crates/fabric/src/matching.rs",
        suite: Suite::Unit("dipole-fabric", "matching"),
        snippet: "            self.link(slot, lists);
            slot = next;",
        replacement: "            if slot % 2 == 0 {
                self.link(slot, lists);
            }
            slot = next;",
    },
    Mutant {
        name: "early-message-not-taken",
        effect: "a receive does not take a message that came before it",
        file: "crates/fabric/src/matching.rs",
        suite: Suite::Unit("dipole-fabric", "matching"),
        snippet: "        if let Some(message) = self.claim(&criteria) {",
        replacement: "        if let Some(message) = self.claim(&criteria).filter(|_| criteria.source.is_some()) {",
    },
    Mutant {
        name: "sums-saturate",
        effect: "sums of integers saturate",
        file: "crates/fabric/src/arithmetic.rs",
        suite: Suite::Unit("dipole-fabric", "arithmetic"),
        snippet: "FI_SUM => was.wrapping_add(operand),",
        replacement: "FI_SUM => was.saturating_add(operand),",
    },
    Mutant {
        name: "minimum-is-maximum",
        effect: "the minimum is the maximum",
        file: "crates/fabric/src/arithmetic.rs",
        suite: Suite::Unit("dipole-fabric", "arithmetic"),
        snippet: "FI_MIN => operand < was,",
        replacement: "FI_MIN => operand > was,",
    },
    Mutant {
        name: "swap-if-less-or-equal",
        effect: "a swap for lower values also swaps equal ones",
        file: "crates/fabric/src/arithmetic.rs",
        suite: Suite::Unit("dipole-fabric", "arithmetic"),
        snippet: "FI_CSWAP_LT => compared < was,",
        replacement: "FI_CSWAP_LT => compared <= was,",
    },
    Mutant {
        name: "unsigned-as-signed",
        effect: "unsigned bytes are compared as signed ones",
        file: "crates/fabric/src/arithmetic.rs",
        suite: Suite::Unit("dipole-fabric", "arithmetic"),
        snippet: "FI_UINT8 => integer!(u8),",
        replacement: "FI_UINT8 => integer!(i8),",
    },
    Mutant {
        name: "mask-inverted",
        effect: "a masked swap changes the bits outside the mask",
        file: "crates/fabric/src/arithmetic.rs",
        suite: Suite::Unit("dipole-fabric", "arithmetic"),
        snippet: "operand & compared | was & !compared,",
        replacement: "operand & !compared | was & compared,",
    },
    Mutant {
        name: "order-of-complex-numbers",
        effect: "comparisons of complex numbers are offered",
        file: "crates/fabric/src/arithmetic.rs",
        suite: Suite::Unit("dipole-fabric", "arithmetic"),
        snippet: "!is_of_bits && !is_of_order,",
        replacement: "!is_of_bits,",
    },
    Mutant {
        name: "logical-xor-as-or",
        effect: "the exclusive or of truth values is an or",
        file: "crates/fabric/src/arithmetic.rs",
        suite: Suite::Unit("dipole-fabric", "arithmetic"),
        snippet: "FI_LXOR => <$type>::from((was != 0) != (operand != 0)),",
        replacement: "FI_LXOR => <$type>::from((was != 0) | (operand != 0)),",
    },
    Mutant {
        name: "network-starved",
        effect: "the network is not polled while memory is",
        file: "crates/fabric/src/exchange/schedule.rs",
        suite: Suite::Unit("dipole-fabric", "schedule"),
        snippet: "!shares_memory || self.polls.is_multiple_of(POLLS_PER_NETWORK_POLL)",
        replacement: "!shares_memory",
    },
    Mutant {
        name: "clock-not-read-after-sleep",
        effect: "after a sleep the peers are not checked in time",
        file: "crates/fabric/src/exchange/schedule.rs",
        suite: Suite::Unit("dipole-fabric", "schedule"),
        snippet: "self.polls |= POLLS_PER_CHECK - 1;",
        replacement: "self.polls |= 1;",
    },
    Mutant {
        name: "batch-stays-full",
        effect: "a batch stays full after it has left",
        file: "crates/fabric/src/exchange/batch.rs",
        suite: Suite::Unit("dipole-fabric", "batch"),
        snippet: "        self.bytes = 0;
",
        replacement: "        self.bytes += 0;
",
    },
    Mutant {
        name: "damaged-name-accepted",
        effect: "a name with a wrong checksum is accepted",
        file: "crates/fabric/src/name.rs",
        suite: Suite::Unit("dipole-fabric", "name"),
        snippet: "raw.magic == MAGIC && raw.checksum.get() == checksum_of(bytes);",
        replacement: "raw.magic == MAGIC;",
    },
    Mutant {
        name: "ports-swapped",
        effect: "the ports of a name are swapped",
        file: "crates/fabric/src/name.rs",
        suite: Suite::Unit("dipole-fabric", "name"),
        snippet: "small: SocketAddr::new(ip, raw.small_port.get()),",
        replacement: "small: SocketAddr::new(ip, raw.bulk_port.get()),",
    },
    Mutant {
        name: "removed-name-found",
        effect: "a name that was removed is still found",
        file: "crates/fabric/src/av.rs",
        suite: Suite::Unit("dipole-fabric", "av"),
        snippet: "slot.name.get().filter(|_| !is_removed)",
        replacement: "slot.name.get().filter(|_| !is_removed || index > 0)",
    },
    Mutant {
        name: "descriptor-stays-readable",
        effect: "a descriptor stays readable after it was lowered",
        file: "crates/fabric/src/descriptor.rs",
        suite: Suite::Unit("dipole-fabric", "descriptor"),
        snippet: "let _empty = rustix::io::read(&self.event, &mut [0; 8]);",
        replacement: "let _unread = &self.event;",
    },
    Mutant {
        name: "timer-of-zero-disarmed",
        effect: "a timer of zero never expires",
        file: "crates/fabric/src/descriptor.rs",
        suite: Suite::Unit("dipole-fabric", "descriptor"),
        snippet: "after.map(|after| after.max(Duration::from_nanos(1)));",
        replacement: "after.map(|after| after.max(Duration::ZERO));",
    },
    Mutant {
        name: "number-of-two-bytes",
        effect: "numbers of messages wrap around after 16 bits",
        file: "crates/fabric/src/wire.rs",
        suite: Suite::Unit("dipole-fabric", "wire"),
        snippet: "number: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),",
        replacement: "number: u64::from_le_bytes([a, b, c & 0, d & 0, e & 0, f & 0, 0, 0]),",
    },
    Mutant {
        name: "unknown-kind-as-message",
        effect: "messages of unknown kinds are accepted",
        file: "crates/fabric/src/wire.rs",
        suite: Suite::Unit("dipole-fabric", "wire"),
        snippet: "            _ => return None,
        };
        let [a, b",
        replacement: "            _ => Kind::Message,
        };
        let [a, b",
    },
];
