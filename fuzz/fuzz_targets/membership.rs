//! Packets from unknown senders neither stop an agent nor make it send more than it receives.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dipole_agent::receive_anything(bytes));
