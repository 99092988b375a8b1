//! Any bytes from a broker or a client are refused, or have the same meaning after they are decoded
//! and encoded again.

#![cfg_attr(fuzzing, no_main)]

use dipole_bpf::grant::wire::{Reply, Request};
use dipole_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    if let Ok(reply) = Reply::decode(bytes) {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
});
