//! Bugs of the fast path: its ring, headers, neighbours, grants.

use super::Mutant;
use crate::mutants::suite::Suite;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "unfinished-record-read",
        effect: "a record is read before the kernel has finished it",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit("dipole-bpf", "ring::model"),
        snippet: "if header & BUSY != 0 {
            return Ok(false);",
        replacement: "if header & BUSY != 0 && header & DISCARDED != 0 {
            return Ok(false);",
    },
    Mutant {
        name: "discarded-record-delivered",
        effect: "a record that the kernel has discarded is delivered",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "        if header & DISCARDED == 0 {",
        replacement: "        if header & BUSY == 0 {",
    },
    Mutant {
        name: "record-behind-written",
        effect: "a record longer than the bytes written is read",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "if whole > self.written.wrapping_sub(self.position) {",
        replacement: "if whole > self.memory.ring_bytes() as u64 {",
    },
    Mutant {
        name: "position-outside-ring",
        effect: "a position of the kernel outside the ring is believed",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "if unread > self.memory.ring_bytes() as u64 || !unread.is_multiple_of(8) {",
        replacement: "if !unread.is_multiple_of(8) {",
    },
    Mutant {
        name: "short-record-read",
        effect: "a record shorter than its header is read",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "        if length < RECORD_HEADER_BYTES {",
        replacement: "        if length == usize::MAX {",
    },
    Mutant {
        name: "sender-without-scope",
        effect: "link-local senders have no scope",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "                    true => self.scope_id,",
        replacement: "                    true => self.scope_id * 0,",
    },
    Mutant {
        name: "asleep-over-records",
        effect: "a reader sleeps although a record has arrived",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit("dipole-bpf", "ring::model"),
        snippet: "        if self.has_record() {
            self.disarm();",
        replacement: "        if self.has_record() && !self.asleep {
            self.disarm();",
    },
    Mutant {
        name: "kernel-not-told-of-sleep",
        effect: "the kernel does not wake a reader that sleeps",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit("dipole-bpf", "ring::model"),
        snippet: "            true => self.position,",
        replacement: "            true => self.position | AWAKE,",
    },
    Mutant {
        name: "positions-published-late",
        effect: "an awake reader returns no memory of the ring",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "unpublished < self.unpublished_bytes)",
        replacement: "unpublished < u64::MAX)",
    },
    Mutant {
        name: "positions-published-always",
        effect: "an awake reader publishes its position after each packet",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "unpublished < self.unpublished_bytes)",
        replacement: "unpublished < 1)",
    },
    Mutant {
        name: "packets-kept-while-reading",
        effect: "packets are returned to the kernel when they are read",
        file: "crates/bpf/src/ring.rs",
        suite: Suite::Unit(
            "dipole-bpf",
            "ring::tests::a_ ring::tests::an_ ring::tests::records ring::tests::packets ring::tests::ipv6",
        ),
        snippet: "        self.position += whole;
        Ok(true)",
        replacement: "        self.position += whole;
        self.give_back();
        Ok(true)",
    },
    Mutant {
        name: "checksum-of-zero",
        effect: "a checksum of zero is sent, which turns off the check",
        file: "crates/bpf/src/headers.rs",
        suite: Suite::Unit("dipole-bpf", "headers"),
        snippet: "            0 => u16::MAX,",
        replacement: "            0 => 0,",
    },
    Mutant {
        name: "length-in-checksum-once",
        effect: "the checksum counts the length once",
        file: "crates/bpf/src/headers.rs",
        suite: Suite::Unit("dipole-bpf", "headers"),
        snippet: "self.udp_sum + 2 * word(udp_length) + sum(payload);",
        replacement: "self.udp_sum + word(udp_length) + sum(payload);",
    },
    Mutant {
        name: "last-bytes-not-summed",
        effect: "the last bytes of a payload are not in its checksum",
        file: "crates/bpf/src/headers.rs",
        suite: Suite::Unit("dipole-bpf", "headers"),
        snippet: "    last[..rest.len()].copy_from_slice(rest);",
        replacement: "    last[..rest.len() / 2].copy_from_slice(&rest[..rest.len() / 2]);",
    },
    Mutant {
        name: "payload-behind-frame",
        effect: "the length of a packet may exceed its frame",
        file: "crates/bpf/src/headers.rs",
        suite: Suite::Unit("dipole-bpf", "headers"),
        snippet: "&& ip_end <= frame.len();",
        replacement: "&& (ip_end <= frame.len() || true);",
    },
    Mutant {
        name: "other-version-of-broker",
        effect: "messages of other versions of the broker are read",
        file: "crates/bpf/src/grant/wire.rs",
        suite: Suite::Unit("dipole-bpf", "grant::wire"),
        snippet: "        found => return Err(WireError::Version { found }),",
        replacement: "        found if found == 0 => return Err(WireError::Version { found }),
        _ => {}",
    },
    Mutant {
        name: "message-with-rest",
        effect: "bytes after a message of the broker are ignored",
        file: "crates/bpf/src/grant/wire.rs",
        suite: Suite::Unit("dipole-bpf", "grant::wire"),
        snippet: "        Ok((value, [])) if bytes.len() <= MAX_MESSAGE_BYTES => Ok(value),",
        replacement: "        Ok((value, _)) if bytes.len() <= MAX_MESSAGE_BYTES => Ok(value),",
    },
    Mutant {
        name: "long-text-of-broker",
        effect: "a text of the broker is cut within a character",
        file: "crates/bpf/src/grant/wire.rs",
        suite: Suite::Unit("dipole-bpf", "grant::wire"),
        snippet: "                while !refusal.text.is_char_boundary(end) {
                    end -= 1;
                }
                refusal.text.truncate(end);",
        replacement: "                end -= 1;
                let cut = String::from_utf8_lossy(&refusal.text.as_bytes()[..end]).into_owned();
                refusal.text = cut;",
    },
    Mutant {
        name: "failed-neighbour-used",
        effect: "frames go to a neighbour that does not answer",
        file: "crates/bpf/src/neighbours.rs",
        suite: Suite::Unit("dipole-bpf", "neighbours"),
        snippet: "let mac = neighbour.mac.filter(|_| is_valid)?;",
        replacement: "let mac = neighbour.mac.filter(|_| is_valid || true)?;",
    },
    Mutant {
        name: "frames-to-groups",
        effect: "frames go to a hardware address of a group",
        file: "crates/bpf/src/neighbours.rs",
        suite: Suite::Unit("dipole-bpf", "neighbours"),
        snippet: "(mac != [0; 6] && mac[0] & 1 == 0)",
        replacement: "(mac != [0; 6])",
    },
    Mutant {
        name: "shared-port-as-owned",
        effect: "a port that several sockets share counts as owned",
        file: "crates/bpf/src/grant/ownership.rs",
        suite: Suite::Unit("dipole-bpf", "ownership"),
        snippet: "        || sockopt::socket_reuseport(socket)?
",
        replacement: "        || (sockopt::socket_reuseport(socket)? && bound.port() == 0)
",
    },
    Mutant {
        name: "port-on-device-as-owned",
        effect: "a port on a bound device counts as owned",
        file: "crates/bpf/src/grant/ownership.rs",
        suite: Suite::Unit("dipole-bpf", "ownership"),
        snippet: "        || bound_device(socket).map_err(OwnershipError::System)? != 0",
        replacement: "        || bound_device(socket).map_err(OwnershipError::System)? < 0",
    },
    Mutant {
        name: "connected-socket-as-owner",
        effect: "a connected socket counts as owner of its port",
        file: "crates/bpf/src/grant/ownership.rs",
        suite: Suite::Unit("dipole-bpf", "ownership"),
        snippet: "        Ok(_) => return Err(OwnershipError::Connected),",
        replacement: "        Ok(_) => {}",
    },
    Mutant {
        name: "releasable-port-as-owned",
        effect: "a port that the kernel would release counts as owned",
        file: "crates/bpf/src/grant/ownership.rs",
        suite: Suite::Unit("dipole-bpf", "ownership"),
        snippet: "        Ok(_) | Err(OwnershipError::Unbound) => Err(OwnershipError::ReleasablePort),",
        replacement: "        Ok(_) | Err(OwnershipError::Unbound) => Ok(address),",
    },
    Mutant {
        name: "other-namespace-as-own",
        effect: "a socket of another network namespace proves ownership",
        file: "crates/bpf/src/grant/ownership.rs",
        suite: Suite::Unit("dipole-bpf", "ownership"),
        snippet: "    if namespace_cookie(socket).map_err(OwnershipError::System)? != here.0 {",
        replacement: "    if namespace_cookie(socket).map_err(OwnershipError::System)? == 0 && here.0 != 0 {",
    },
];
