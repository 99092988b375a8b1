//! The ingress program in the kernel follows its rules, as on the interpreter.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::drain::{Deposit, Drain};
use super::*;
use crate::layout::RECORD_HEADER_BYTES;
use crate::program::assembler::{Assembler, Reg};
use crate::program::dispatch::{PASSED, TAKEN};
use crate::program::model::{self, Around, Fate, MAC, PORT, fate, our_address};

const RING_BYTES: u32 = 1 << 20;

/// The loaded program, not attached, with one ring for both of our addresses.
struct Bench {
    parts: Parts,
    drain: Drain,
    /// Expected counters.
    counted: [u64; Reason::ALL.len()],
}

/// `None`, with a message, if programs cannot be loaded.
fn bench() -> Option<Bench> {
    let interface = InterfaceId {
        index: model::INTERFACE,
        name: "lo".to_owned(),
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the kernel's part is not run because loading programs needs root");
        return None;
    }
    let parts = prepare(&interface).unwrap_or_else(|error| panic!("{error}"));
    let ring = create_ring(RING_BYTES).unwrap();
    for version in [4, 6] {
        let key = maps::key(our_address(version), model::INTERFACE, PORT);
        parts.full.set(&key, &[0; 8]).unwrap();
        parts.rings.set_map(&key, ring.as_fd()).unwrap();
    }
    Some(Bench {
        parts,
        drain: Drain::open(ring.as_fd()),
        counted: [0; Reason::ALL.len()],
    })
}

impl Bench {
    fn run(&self, frame: &[u8], merged: bool, repeat: u32) -> io::Result<sys::TestRun> {
        let mut context = Vec::new();
        if merged {
            // struct __sk_buff with its gso_size.
            context = vec![0; 192];
            context[176..180].copy_from_slice(&100_u32.to_ne_bytes());
        }
        sys::test_run(self.parts.program.as_fd(), frame, &context, repeat)
    }

    fn is_ours(key: &[u8; maps::KEY_BYTES]) -> bool {
        [4, 6]
            .map(|version| maps::key(our_address(version), model::INTERFACE, PORT))
            .contains(key)
    }

    /// Checks one packet. False if the kernel does not run the program on such a frame.
    fn check(&mut self, frame: &[u8], around: Around) -> bool {
        let around = Around {
            // The kernel derives it from the address, and test runs have no VLAN tag.
            other_host: frame.get(..6).is_some_and(|to| to != MAC),
            tagged: false,
            merged: around.merged,
        };
        let Ok(run) = self.run(frame, around.merged, 1) else {
            return false;
        };
        let mut wanted = (PASSED, Vec::new());
        match fate(frame, around, Self::is_ours) {
            None => {}
            Some(Fate::Refused(reason, _)) => self.counted[reason as usize] += 1,
            Some(Fate::Taken {
                source,
                port,
                version,
                payload,
                class,
                ..
            }) => {
                self.counted[Reason::Deposited as usize] += 1;
                let reserved = RECORD_HEADER_BYTES + class;
                let deposit = Deposit {
                    source,
                    port,
                    version,
                    payload,
                    reserved,
                };
                wanted = (TAKEN, vec![deposit]);
            }
        }
        assert_eq!(
            (run.returned.cast_signed(), self.drain.take()),
            wanted,
            "{frame:?}"
        );
        true
    }

    fn check_counters(&self) {
        let found = Reason::ALL.map(|reason| self.parts.counters.sum(reason as u32).unwrap());
        assert_eq!(found, self.counted);
    }
}

#[test]
fn the_kernel_agrees_on_every_sample() {
    let Some(mut bench) = bench() else { return };
    for (what, frame, around) in model::samples() {
        let ran = bench.check(&frame, around);
        eprintln!("{what}: {}", if ran { "agrees" } else { "not run" });
        // Test runs take no longer frames, and need whole IP headers.
        assert!(ran || frame.len() > 3_000 || frame.len() < 54, "{what}");
    }
    bench.check_counters();
}

#[test]
fn the_kernel_agrees_on_damaged_packets() {
    let Some(mut bench) = bench() else { return };
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    });
    let around = any::<bool>().prop_map(|merged| Around {
        merged,
        ..Around::default()
    });
    let cases = (model::damaged_packet(), around);
    let ran = std::cell::Cell::new(0);
    let bench = std::cell::RefCell::new(&mut bench);
    let outcome = runner.run(&cases, |(frame, around)| {
        let checked = bench.borrow_mut().check(&frame, around);
        ran.set(ran.get() + u32::from(checked));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(ran.get() > 150, "only {} runs", ran.get());
    bench.borrow().check_counters();
}

#[test]
fn a_full_ring_lets_packets_pass_and_counts_them() {
    let Some(mut bench) = bench() else { return };
    let frame = model::packet(4, 1400, 0);
    let returned = |bench: &Bench| bench.run(&frame, false, 1).unwrap().returned.cast_signed();
    let mut taken = 0;
    while returned(&bench) == TAKEN {
        taken += 1;
        assert!(taken < 1_000);
    }
    assert_eq!(returned(&bench), PASSED);
    assert_eq!(bench.drain.take().len(), taken);
    assert_eq!(returned(&bench), TAKEN);
    let count = |reason: Reason| bench.parts.counters.sum(reason as u32).unwrap();
    assert_eq!(count(Reason::Full), 2);
    assert_eq!(count(Reason::Deposited), taken as u64 + 1);
    let key = maps::key(our_address(4), model::INTERFACE, PORT);
    let full = bench.parts.full.look_up(&key).unwrap();
    assert_eq!(full, Some(2_u64.to_ne_bytes().to_vec()));
}

/// Cost of a test run with a program that does nothing.
fn floor_ns() -> u32 {
    let mut code = Assembler::default();
    code.set(Reg::R0, PASSED);
    code.exit();
    let code = code.finish().linked(&[]);
    let program = sys::load(AttachKind::TcxIngress, "nothing", &code).unwrap();
    loop {
        match sys::test_run(program.as_fd(), &model::packet(4, 64, 0), &[], 100_000) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            run => return run.unwrap().duration_ns,
        }
    }
}

/// Reports the measured time; asserts nothing about speed.
#[test]
fn time_in_the_program_is_reported() {
    let Some(mut bench) = bench() else { return };
    let mut tcp = model::packet(4, 1400, 0);
    tcp[23] = 6;
    let mut other = model::packet(4, 64, 0);
    other[36] = 99;
    let arp = [&other[..12], &[8, 6], &other[14..]].concat();
    eprintln!("nothing: {} ns", floor_ns());
    let mut report = |what: &str, frame: &[u8], runs: u32, times: u32| {
        let (mut sum, mut count) = (0, 0);
        for _ in 0..times {
            let run = bench.run(frame, false, runs);
            bench.drain.take();
            let run = match run {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other,
            };
            let Ok(run) = run else {
                eprintln!("{what}: not run");
                return;
            };
            count += 1;
            sum += run.duration_ns;
        }
        eprintln!("{what}: {} ns", sum / count.max(1));
    };
    report("foreign ARP", &arp, 100_000, 5);
    report("foreign TCP", &tcp, 100_000, 5);
    report("foreign UDP", &other, 100_000, 5);
    for (payload, runs) in [(64, 6_000), (1400, 600), (3000, 240), (8900, 100)] {
        let frame = model::packet(4, payload, 0);
        report(&format!("taken, {payload} B"), &frame, runs, 30);
    }
    assert!(bench.parts.counters.sum(0).unwrap() > 0);
}
