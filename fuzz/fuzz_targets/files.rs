//! Files written by users or received from other nodes are refused, or parsed and written again
//! without a change: lines of hosts files, and keys.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;
use dipole_naming::hosts::Hosts;
use dipole_naming::key::ClusterKey;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(hosts) = Hosts::parse(text) {
        let lines: String = hosts.iter().map(|host| host.line() + "\n").collect();
        let again = Hosts::parse(&lines).expect("what was written");
        assert!(hosts.iter().eq(again.iter()), "{lines}");
    }
    if let Some(key) = ClusterKey::parse(text) {
        assert!(ClusterKey::parse(&key.text()) == Some(key));
    }
});
