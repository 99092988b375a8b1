//! Trace files that no program has written: showing them must do no harm.

use dipole_bsp::trace::{Clocks, Frame, Header, Module, Site, State, Step, TraceFile, file_name};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::files::read;
use super::*;

/// Would be markup in a page.
const MARKUP: &str = "<script>&\"'";
/// Escape sequence that would clear a terminal.
const ESCAPE: &str = "\u{1b}[2J\u{7}";

fn number(random: &mut StdRng) -> u64 {
    match random.random_range(0..5) {
        0 => 0,
        1 => u64::MAX,
        2 => random.random_range(0..1000),
        3 => 1 << random.random_range(0..64),
        _ => random.random(),
    }
}

fn peers(random: &mut StdRng) -> Vec<(u32, u64)> {
    let count = random.random_range(0..4);
    let rank = |random: &mut StdRng| match random.random() {
        true => random.random_range(0..4),
        false => random.random(),
    };
    (0..count).map(|_| (rank(random), number(random))).collect()
}

fn step(random: &mut StdRng, epoch: u32) -> Step {
    Step {
        epoch,
        site: 0,
        stack: random.random_range(0..3),
        began_ns: number(random),
        entered_ns: number(random),
        pack_ns: number(random),
        barrier_ns: number(random),
        exchange_ns: number(random),
        apply_ns: number(random),
        cpu_ns: random.random::<bool>().then(|| number(random)),
        preemptions: random.random(),
        sleeps: random.random(),
        repeats: random.random(),
        duplicates: random.random(),
        ack_requests: random.random(),
        stalls: random.random(),
        put: peers(random),
        get: peers(random),
        waits: peers(random),
    }
}

/// Files of a run that can be parsed, with impossible numbers.
fn run(random: &mut StdRng) -> Vec<TraceFile> {
    let size = random.random_range(1..5);
    let first = *[0, 1, u32::MAX - 3]
        .get(random.random_range(0..3))
        .expect("one");
    let files = (0..size).map(|rank| TraceFile {
        header: Header {
            state: State::Open,
            rank,
            size,
            nodes: random.random_range(1..=size),
            leader: random.random_range(0..=rank),
            first,
            run: 5,
            begun_ns: number(random),
            begun_unix_ns: number(random),
            link: "udp".to_owned(),
            host: MARKUP.to_owned(),
            cores: (0..random.random_range(0..3)).collect(),
            quota: random.random_range(0..3),
        },
        sites: vec![Site {
            call: MARKUP.to_owned(),
            file: MARKUP.to_owned(),
            line: u32::MAX,
        }],
        modules: vec![Module {
            path: format!("/nowhere/{MARKUP}"),
            bytes: number(random),
            written_s: i64::MIN,
        }],
        stacks: vec![
            vec![
                Frame {
                    module: random.random_range(0..2),
                    offset: number(random),
                };
                3
            ];
            2
        ],
        steps: (0..=3).map(|epoch| step(random, first + epoch)).collect(),
        is_wrapped: true,
        damaged_blocks: usize::MAX,
    });
    files.collect()
}

/// Everything that is derived from files; returns the terminal output.
fn show(files: &[TraceFile]) -> (String, String) {
    let run = Run::of(files);
    let clocks = Clocks::of(files);
    let summary = summarise(&run, clocks.as_ref());
    let page = page::html(&run, &summary);
    if let Some(clocks) = &clocks {
        perfetto::write(files, clocks, &mut Vec::new()).expect("memory takes all");
    }
    let mut shown = Vec::new();
    assert!(print(&summary, &mut shown).is_ok(), "memory takes all");
    (page, String::from_utf8(shown).expect("text"))
}

#[test]
fn numbers_of_any_size_are_summed_and_shown() {
    for seed in 0..2000 {
        let files = run(&mut StdRng::seed_from_u64(seed));
        let shown = std::panic::catch_unwind(|| show(&files));
        let (page, _) = shown.unwrap_or_else(|_| panic!("seed {seed}"));
        assert!(!page.contains(MARKUP), "seed {seed}");
        assert!(page.contains("&lt;script&gt;"), "seed {seed}");
    }
}

/// A file with one superstep, byte by byte.
fn bytes(rank: u32, link: &str, text: &str) -> Vec<u8> {
    const SITES_AT: usize = 4096;
    const STACKS_AT: usize = SITES_AT + (64 << 10);
    const BLOCKS_AT: usize = STACKS_AT + (192 << 10);
    let word = |number: usize| u32::try_from(number).expect("short").to_le_bytes();
    let mut bytes = b"DPLTRACE".to_vec();
    for number in [3, 1, rank, 1, 1, 0, 0, 5] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([0; 16]);
    for text in [link, text] {
        let mut field = text.as_bytes().to_vec();
        field.resize(64, 0);
        bytes.extend(field);
    }
    bytes.resize(SITES_AT, 0);
    let call = [&word(text.len())[..], text.as_bytes(), &word(0)].concat();
    bytes.extend(word(4 + call.len()));
    bytes.extend(word(0));
    bytes.extend(call);
    bytes.resize(STACKS_AT, 0);
    let module = Module {
        path: text.to_owned(),
        bytes: 0,
        written_s: 0,
    };
    let frame = Frame {
        module: 0,
        offset: 7,
    };
    // Entries begin with their kind: 0 for a module, 1 for a stack.
    let entries = postcard::to_stdvec(&((0_u8, module), (1_u8, vec![frame]))).expect("a vector");
    bytes.extend(word(entries.len()));
    bytes.extend(entries);
    bytes.resize(BLOCKS_AT, 0);
    // A record: epoch, site, stack, seven times, six counts and three empty lists.
    let mut record = [word(0), word(0), word(1)].concat();
    record.resize(12 + 56 + 24 + 12, 0);
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend((record.len() as u64 + 4).to_le_bytes());
    bytes.extend(word(record.len()));
    bytes.extend(record);
    bytes
}

#[test]
fn texts_of_a_file_do_nothing_to_a_terminal_and_name_no_other_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(file_name(0));
    std::fs::write(&file, bytes(0, "udp", ESCAPE)).expect("ours");
    let files = [read(&file).expect("a trace")];
    assert!(load(folder.path()).is_ok());
    let (_, shown) = show(&files);
    assert!(shown.contains("\u{fffd}[2J"), "{shown}");
    assert!(
        !shown.replace('\n', "").contains(char::is_control),
        "{shown:?}"
    );
    for link in ["../../etc/passwd", "udp/../..", ESCAPE] {
        std::fs::write(&file, bytes(0, link, "")).expect("ours");
        let why = read(&file).expect_err("refused");
        assert!(why.contains("its header is damaged"), "{why}");
    }
}

#[test]
fn what_is_no_file_of_a_rank_is_refused_and_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let why = || read(&at("rank-0.trace")).expect_err("refused");
    // Reading must not wait for the end of a device.
    std::os::unix::fs::symlink("/dev/zero", at("rank-0.trace")).expect("ours");
    assert!(why().contains("not a regular file"), "{}", why());
    std::fs::remove_file(at("rank-0.trace")).expect("ours");
    // A file of this size cannot be a trace, so it must not be read.
    let huge = std::fs::File::create(at("rank-0.trace")).expect("ours");
    huge.set_len(1 << 40).expect("without blocks");
    assert!(why().contains("longer than"), "{}", why());
    std::fs::write(at("rank-0.trace"), bytes(0, "udp", "")).expect("ours");
    std::fs::write(at("rank-00.trace"), bytes(0, "udp", "")).expect("ours");
    assert!(load(folder.path()).is_err(), "a rank has one file");
    std::fs::remove_file(at("rank-00.trace")).expect("ours");
    assert!(load(folder.path()).is_ok());
}
