//! Any handshake body is refused, or parsed as it was emitted.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;
use dipole_proto::wire::{BYE_BYTES, Bye, CHALLENGE_BYTES, Challenge, Hello, RESET_BYTES, Reset};

fuzz_target!(|bytes: &[u8]| {
    let mut again = [0; 512];
    if let Ok(hello) = Hello::parse(bytes) {
        assert!(!hello.lanes().is_empty() && hello.bytes() <= bytes.len());
        let length = hello.emit(&mut again);
        assert_eq!(Hello::parse(&again[..length]), Ok(hello));
    }
    if let Ok(challenge) = Challenge::parse(bytes) {
        assert_eq!(challenge.emit(&mut again), CHALLENGE_BYTES);
        assert_eq!(again[..CHALLENGE_BYTES], bytes[..CHALLENGE_BYTES]);
    }
    if let Ok(reset) = Reset::parse(bytes) {
        let length = reset.emit(&mut again);
        assert!(length == RESET_BYTES || reset.echo.is_some());
        assert_eq!(again[..length], bytes[..length]);
    }
    if let Ok(bye) = Bye::parse(bytes) {
        assert_eq!(bye.emit(&mut again), BYE_BYTES);
        assert_eq!(again[..BYE_BYTES], bytes[..BYE_BYTES]);
    }
});
