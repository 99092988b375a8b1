//! Packets from unknown senders neither stop an agent nor make it send more than it receives.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| dipole_agent::receive_anything(bytes));
