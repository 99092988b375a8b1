//! Programs that one process attached and another takes over.

#![allow(missing_docs, reason = "tests")]

mod testbed;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dipole_bpf::hook::{AllowedSource, Guard, Hook, attached, create_ring};
use dipole_testbed::Testbed;
use testbed::{interface, make};

fn copies<const N: usize>(files: [BorrowedFd<'_>; N]) -> [OwnedFd; N] {
    files.map(|file| file.try_clone_to_owned().expect("a descriptor"))
}

#[test]
fn attached_programs_are_taken_over_with_all_rings_and_go_with_the_last_descriptor() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let interface = interface(&testbed, 1, "net0");
    let done = testbed.inside(1, || {
        let hook = Hook::attach(&interface).expect("root may");
        let guard = Guard::attach(&interface).expect("root may");
        let ring = create_ring(1 << 16).expect("root may");
        let mut entered = Vec::new();
        for (at, port) in (1..).zip([1_u16, 80, 65_535]) {
            for ip in [[10, 0, 0, at].into(), testbed::six(0, at.into())] {
                hook.add(ip, port, ring.as_fd()).expect("there is room");
                entered.push((ip, port));
            }
        }
        entered.sort_unstable();
        let allowed = AllowedSource {
            mac: [2; 6],
            address: [10, 0, 0, 1].into(),
            ports: [1, 1],
        };
        guard.allow(7, &allowed).expect("there is room");
        let kept = (copies(hook.descriptors()), copies(guard.descriptors()));
        drop((hook, guard));
        assert_eq!(attached(&interface).expect("root may").len(), 2);
        let (hook, guard) = (
            Hook::from_descriptors(&interface, kept.0).expect("the same"),
            Guard::from_descriptors(&interface, kept.1).expect("the same"),
        );
        let mut found = hook.entries().expect("the kernel lists them");
        found.sort_unstable();
        assert_eq!(found, entered);
        for (ip, port) in found {
            hook.remove(ip, port).expect("it is there");
        }
        assert_eq!(hook.entries().expect("the kernel lists them"), []);
        let mut mixed = copies(hook.descriptors());
        mixed.reverse();
        assert!(Hook::from_descriptors(&interface, mixed).is_err());
        drop((hook, guard));
        assert_eq!(attached(&interface).expect("root may"), []);
    });
    done.expect("the node");
}
