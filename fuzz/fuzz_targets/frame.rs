//! A UDP packet is found only in a frame that contains one, and frames are parsed as they were
//! written.

#![cfg_attr(fuzzing, no_main)]

use std::net::SocketAddr;

use dipole_bpf::headers::{Ethernet, Template, read_udp};
use dipole_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((_, payload)) = read_udp(bytes) {
        assert!(payload.start <= payload.end && payload.end <= bytes.len());
    }
    let ethernet = Ethernet {
        destination: [1; 6],
        source: [2; 6],
    };
    let payload = &bytes[..bytes.len().min(9000)];
    for [from, to] in [
        [
            SocketAddr::from(([10, 0, 0, 1], 7)),
            SocketAddr::from(([10, 0, 0, 2], 9)),
        ],
        [
            SocketAddr::from(([1, 0, 0, 0, 0, 0, 0, 1], 7)),
            SocketAddr::from(([1, 0, 0, 0, 0, 0, 0, 2], 9)),
        ],
    ] {
        let template = Template::new(&ethernet, from, to, 64).expect("of one version");
        let mut frame = template.finish(1, payload)[..template.bytes()].to_vec();
        frame.extend_from_slice(payload);
        let (sender, place) = read_udp(&frame).expect("what was written");
        assert_eq!((sender, &frame[place]), (from, payload));
    }
});
