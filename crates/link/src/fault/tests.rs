use super::*;
use std::time::Duration;

/// Takes at most `room` frames, and keeps them.
#[derive(Default)]
struct Sink {
    frames: Vec<Vec<u8>>,
    calls: usize,
    /// Room for this many more frames; `None` for no limit.
    room: Option<usize>,
}

impl Link for Sink {
    fn caps(&self) -> Caps {
        Caps {
            max_frame_bytes: 1472,
            receive_frames: 64,
            polls_per_syscall: 1,
            small_run_frames: 1,
            checks_frames: false,
        }
    }

    fn local(&self, _class: Class) -> SocketAddr {
        to()
    }

    fn send(&mut self, _now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        self.calls += 1;
        let count = self.room.map_or(batch.len(), |room| room.min(batch.len()));
        self.frames
            .extend(batch[..count].iter().map(|frame| frame.bytes.to_vec()));
        if let Some(room) = &mut self.room {
            *room -= count;
        }
        Ok(count)
    }

    fn poll(&mut self, _now_ns: u64, _class: Class) -> io::Result<usize> {
        Ok(0)
    }

    fn message(&self, index: usize) -> Incoming<'_> {
        panic!("message {index} of none")
    }
}

fn to() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7))
}

fn plan(text: &str) -> Plan {
    text.parse().unwrap()
}

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| number.to_be_bytes().repeat(4))
        .collect()
}

fn batch(frames: &[Vec<u8>]) -> Vec<Outgoing<'_>> {
    frames
        .iter()
        .map(|bytes| Outgoing::frame(Class::Bulk, to(), bytes))
        .collect()
}

#[test]
fn a_plan_without_faults_passes_a_batch_on_in_one_call() {
    let mut link = Fault::new(Sink::default(), Plan::default());
    let frames = numbered(100);
    assert_eq!(link.send(0, &batch(&frames)).unwrap(), 100);
    assert_eq!(link.inner().calls, 1);
    assert_eq!(link.inner().frames, frames);
    assert_eq!(link.stats(), FaultStats::default());
}

#[test]
fn frames_between_faults_are_passed_on_in_runs() {
    let mut link = Fault::new(Sink::default(), plan("drop=0.02,seed=3"));
    let frames = numbered(2000);
    assert_eq!(link.send(0, &batch(&frames)).unwrap(), 2000);
    let dropped = usize::try_from(link.stats().dropped).unwrap();
    assert!((20..=70).contains(&dropped), "{dropped}");
    assert_eq!(link.inner().frames.len(), 2000 - dropped);
    assert!(link.inner().calls <= dropped + 1);
    assert!(link.inner().frames.is_sorted());
}

#[test]
fn the_same_seed_affects_the_same_frames_and_another_seed_others() {
    let run = |seed: u64| {
        let text = format!("drop=0.1,delay=0.1:5us,repeat=0.1,reorder=0.1,corrupt=0.1,seed={seed}");
        let mut link = Fault::new(Sink::default(), plan(&text));
        let frames = numbered(1000);
        link.send(0, &batch(&frames)).unwrap();
        link.poll(10_000_000, Class::Bulk).unwrap();
        (link.inner().frames.clone(), link.stats())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn frames_of_one_entry_get_the_faults_of_single_ones() {
    let run = |together: usize| {
        let text = "drop=0.1,delay=0.1:5us,repeat=0.1,reorder=0.1,corrupt=0.1,seed=5";
        let mut link = Fault::new(Sink::default(), plan(text));
        let frames = numbered(1000).concat();
        let entries = frames.chunks(16 * together).map(|bytes| Outgoing {
            frame_bytes: 16,
            ..Outgoing::frame(Class::Bulk, to(), bytes)
        });
        let entries: Vec<Outgoing<'_>> = entries.collect();
        assert_eq!(link.send(0, &entries).unwrap(), 1000);
        link.poll(10_000_000, Class::Bulk).unwrap();
        (link.inner().frames.clone(), link.stats())
    };
    let single = run(1);
    assert!(single.1.corrupted > 0 && single.1.delayed > 0);
    for together in [2, 7, 1000] {
        assert_eq!(run(together), single, "{together} together");
    }
}

#[test]
fn a_link_that_takes_few_frames_at_a_time_changes_no_fault() {
    let text = "drop=0.1,repeat=0.05,corrupt=0.1,seed=11";
    let frames = numbered(500);
    let mut whole = Fault::new(Sink::default(), plan(text));
    whole.send(0, &batch(&frames)).unwrap();
    for room in 1..8 {
        let mut link = Fault::new(
            Sink {
                room: Some(0),
                ..Sink::default()
            },
            plan(text),
        );
        let mut rest = &batch(&frames)[..];
        let mut calls = 0;
        while !rest.is_empty() || !link.ready.is_empty() {
            link.inner.room = Some(room);
            let taken = link.send(0, rest).unwrap();
            rest = &rest[taken..];
            calls += 1;
            assert!(calls < 10_000, "no progress with room {room}");
        }
        assert_eq!(link.stats(), whole.stats(), "room {room}");
        // Only a repeated frame that found the link full may arrive later.
        let sorted = |link: &Fault<Sink>| {
            let mut frames = link.inner().frames.clone();
            frames.sort();
            frames
        };
        assert_eq!(sorted(&link), sorted(&whole), "room {room}");
    }
}

#[test]
fn every_fault_together_under_back_pressure_accounts_for_every_frame() {
    for seed in 0..200 {
        let text = format!("drop=0.1,delay=0.1:3us,repeat=0.1,reorder=0.1,seed={seed}");
        let mut link = Fault::new(
            Sink {
                room: Some(0),
                ..Sink::default()
            },
            plan(&text),
        );
        let frames = numbered(200);
        let all = batch(&frames);
        let mut rest = &all[..];
        let mut now_ns = 0;
        while !rest.is_empty() || link.next_deadline_ns().is_some() {
            link.inner.room = Some(3);
            now_ns += 100_000;
            let taken = link.send(now_ns, &rest[..rest.len().min(50)]).unwrap();
            rest = &rest[taken..];
            assert!(now_ns < 1_000_000_000, "no progress with seed {seed}");
        }
        let stats = link.stats();
        let expected = 200 - stats.dropped + stats.repeated;
        assert_eq!(
            link.inner().frames.len() as u64,
            expected,
            "seed {seed}: {stats:?}"
        );
    }
}

#[test]
fn a_delayed_frame_leaves_at_its_time() {
    let mut link = Fault::new(Sink::default(), plan("delay=1:50us"));
    let frames = numbered(2);
    assert_eq!(link.send(1000, &batch(&frames)).unwrap(), 2);
    assert_eq!(link.next_deadline_ns(), Some(51_000));
    link.poll(50_999, Class::Small).unwrap();
    assert!(link.inner().frames.is_empty());
    link.poll(51_000, Class::Small).unwrap();
    assert_eq!(link.inner().frames, frames);
    assert_eq!(link.next_deadline_ns(), None);
    assert_eq!(link.stats().delayed, 2);
}

#[test]
fn a_due_frame_waits_while_the_inner_link_is_full() {
    let mut link = Fault::new(
        Sink {
            room: Some(0),
            ..Sink::default()
        },
        plan("delay=1:50us"),
    );
    let frames = numbered(1);
    link.send(0, &batch(&frames)).unwrap();
    link.poll(50_000, Class::Small).unwrap();
    assert_eq!(link.next_deadline_ns(), Some(50_000));
    link.inner.room = Some(1);
    link.poll(60_000, Class::Small).unwrap();
    assert_eq!(link.inner().frames, frames);
    assert_eq!(link.next_deadline_ns(), None);
}

#[test]
fn repeated_frames_are_sent_twice() {
    let mut link = Fault::new(Sink::default(), plan("repeat=1"));
    let frames = numbered(3);
    link.send(0, &batch(&frames)).unwrap();
    let twice: Vec<_> = frames
        .iter()
        .flat_map(|frame| [frame.clone(), frame.clone()])
        .collect();
    assert_eq!(link.inner().frames, twice);
    assert_eq!(link.stats().repeated, 3);
}

#[test]
fn a_reordered_frame_is_overtaken_and_a_lone_one_leaves_after_the_timeout() {
    let mut link = Fault::new(Sink::default(), plan("reorder=0.2,seed=5"));
    let frames = numbered(300);
    link.send(0, &batch(&frames)).unwrap();
    link.poll(REORDER_TIMEOUT_NS, Class::Bulk).unwrap();
    let mut got = link.inner().frames.clone();
    assert!(link.stats().reordered > 20 && !got.is_sorted());
    got.sort();
    assert_eq!(got, frames);

    let mut lone = Fault::new(Sink::default(), plan("reorder=1"));
    lone.send(0, &batch(&frames[..1])).unwrap();
    assert_eq!(lone.next_deadline_ns(), Some(REORDER_TIMEOUT_NS));
    lone.poll(REORDER_TIMEOUT_NS, Class::Bulk).unwrap();
    assert_eq!(lone.inner().frames, frames[..1]);
}

#[test]
fn corrupted_frames_differ_from_what_was_sent() {
    let mut link = Fault::new(Sink::default(), plan("corrupt=1"));
    let frames = numbered(100);
    link.send(0, &batch(&frames)).unwrap();
    assert_eq!(link.stats().corrupted, 100);
    for (sent, got) in frames.iter().zip(&link.inner().frames) {
        assert_ne!(sent, got);
    }
}

#[test]
fn no_more_frames_are_held_than_the_bound() {
    let mut link = Fault::new(Sink::default(), plan("delay=1:1s"));
    let frames = numbered(5000);
    link.send(0, &batch(&frames)).unwrap();
    assert_eq!(link.stats().delayed, MAX_HELD_FRAMES as u64);
    assert_eq!(link.inner().frames.len(), 5000 - MAX_HELD_FRAMES);
    assert_eq!(link.plan.delay_time, Duration::from_secs(1));
}
