//! The program, its restored copies, and the test that starts them.

mod areas;
mod handler;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use dipole_checkpoint::{
    Chain, Identity, Outcome, Recorder, Store, Until, full_images_only, restore,
};

use areas::Areas;

/// Steps of a run, and between two images.
const STEPS: u64 = 600;
const BETWEEN: u64 = 30;
/// Runs of the test.
const SEEDS: u64 = 8;

pub(crate) fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["run", seed, folder, expected] => run(parse(seed), Some((folder, expected))),
        ["undisturbed", seed] => run(parse(seed), None),
        ["restore", image, digest] => continue_from(image, digest),
        // Arguments of other test programs, such as a filter.
        _ if words
            .iter()
            .any(|word| !word.starts_with('-') && !"random".contains(word)) => {}
        ["--list", ..] => {}
        _ => test(),
    }
}

fn parse(number: &str) -> u64 {
    number.parse().expect("a number")
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}

fn test() {
    let seeds = match std::env::var("DIPOLE_SEED") {
        Ok(seed) => parse(&seed)..parse(&seed) + 1,
        Err(_) => 1..SEEDS + 1,
    };
    for seed in seeds {
        let folder = tempfile::tempdir().expect("a folder");
        let seed = seed.to_string();
        let undisturbed = this_program().args(["undisturbed", &seed]).output();
        let undisturbed = undisturbed.expect("it starts");
        assert!(undisturbed.status.success(), "{undisturbed:?}");
        let expected = String::from_utf8(undisturbed.stdout).expect("a number");
        let mut command = this_program();
        command
            .args(["run", &seed])
            .arg(folder.path())
            .arg(expected.trim());
        let status = command.status().expect("it starts");
        assert!(status.success(), "DIPOLE_SEED={seed}: {status}");
    }
    println!("random memory: restored as it was");
}

/// Runs the program; with images, if a folder for them is given.
fn run(seed: u64, images: Option<(&str, &str)>) {
    // Those of the test would be saved, too.
    if images.is_some() {
        dipole_checkpoint::close_inherited(None);
    }
    let mut areas = Areas::new(seed);
    let Some((folder, expected)) = images else {
        (0..STEPS).for_each(|_| areas.step());
        println!("{:016x}", areas.digest());
        return;
    };
    handler::install();
    let _busy = threads(1, allocate_for_ever);
    let _idle = threads(2, std::thread::park);
    let store = Store::new(PathBuf::from(folder));
    let mut recorder = match seed % 4 {
        0 => Recorder::of_full_images(),
        _ => Recorder::default(),
    };
    let mut increments = 0;
    let mut number = 0;
    for step in 1..=STEPS {
        areas.step();
        if step % BETWEEN > 0 {
            continue;
        }
        number += 1;
        // Their stacks are kept by the C library.
        join(threads(number % 3, || ()));
        handler::begin(number);
        let (set, digest) = (number, areas.digest());
        let identity = Identity {
            set,
            rank: 0,
            size: 1,
        };
        // The next image may be taken before this one is complete.
        let until = match number % 3 {
            1 => Until::Begun,
            _ => Until::Written,
        };
        let taken = recorder.take(&store, identity, &[], "test", until);
        match taken.expect("an image") {
            Outcome::Continued if until == Until::Written => {
                let image = store.image(identity);
                increments += u32::from(image.to_string_lossy().contains("-after-"));
                let status = restored(&image, digest);
                assert!(status.success(), "image {set}: {status}");
            }
            Outcome::Continued => {}
            Outcome::Restored(environment) => {
                let [(name, digest)] = &environment[..] else {
                    panic!("one variable: {environment:?}");
                };
                assert_eq!(name, "DIGEST");
                assert_eq!(&format!("{:016x}", areas.digest()), digest, "image {set}");
                handler::check(set);
                (step..STEPS).for_each(|_| areas.step());
                join(threads(6, || ()));
                let ends_alike = format!("{:016x}", areas.digest()) == expected;
                assert!(ends_alike || areas::drops_files(seed), "image {set}");
                std::process::exit(0);
            }
        }
    }
    assert_eq!(format!("{:016x}", areas.digest()), expected);
    let tracks = !seed.is_multiple_of(4) && full_images_only().is_none();
    assert_eq!(
        increments > 5,
        tracks,
        "{increments} images of changes only"
    );
}

/// Starts a process that continues from an image.
fn restored(image: &Path, digest: u64) -> ExitStatus {
    let mut command = this_program();
    command
        .arg("restore")
        .arg(image)
        .arg(format!("{digest:016x}"));
    command.status().expect("it starts")
}

fn continue_from(image: &str, digest: &str) {
    let images = Chain::open(Path::new(image)).expect("intact images");
    let error = restore(images, &[("DIGEST".to_owned(), digest.to_owned())]);
    panic!("{error:?}");
}

/// Starts threads with names of those of the library.
fn threads(count: u64, run: fn()) -> Vec<JoinHandle<()>> {
    let start = |_| {
        let (ready, has_name) = channel();
        let thread = std::thread::Builder::new().name("dipole-test".to_owned());
        let thread = thread.spawn(move || {
            ready.send(()).expect("it waits");
            run();
        });
        has_name.recv().expect("a thread");
        thread.expect("a thread")
    };
    (0..count).map(start).collect()
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("it ends"));
}

/// Allocates like the threads of the library: the C library's state must be consistent in each image.
fn allocate_for_ever() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for round in 1_usize.. {
        kept.push(vec![7; round * 37 % 5000 + 1]);
        if kept.len() > 50 {
            kept.swap_remove(round * 13 % 50);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}
