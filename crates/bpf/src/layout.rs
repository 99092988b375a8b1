//! The record that the kernel's program writes into a ring for each packet.
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | source address; an IPv4 address in the first four, the rest zero |
//! | 16..18 | source port, in network order |
//! | 18..20 | bytes of payload, in the machine's order |
//! | 20 | IP version: 4 or 6 |
//! | 21..24 | zero |
//! | 24.. | payload, then the unused rest of the size class |

/// Bytes before the payload of a record.
pub const RECORD_HEADER_BYTES: usize = 24;

/// Sizes of payload space: the verifier requires reservations of constant size, so a packet takes
/// the smallest class that holds it.
pub const CLASSES: [usize; 7] = [128, 256, 512, 1024, 1536, 4096, 9216];

/// Longest payload that is put into a ring; longer ones go to the socket.
pub const MAX_PAYLOAD_BYTES: usize = CLASSES[CLASSES.len() - 1];
