//! What the testbeds of this process have made and what must go again: with its testbed,
//! with this process, or, of processes that were killed, with the next testbed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::TestbedError;
use crate::names;
use crate::namespace;

#[derive(Debug)]
struct Belongings {
    testbed: u32,
    namespaces: Vec<String>,
    folder: Option<PathBuf>,
}

#[derive(Debug)]
struct All {
    testbeds: Vec<Belongings>,
    /// How many there have been: the number of the next.
    made: u32,
    watching: bool,
}

static ALL: Mutex<All> = Mutex::new(All {
    testbeds: Vec::new(),
    made: 0,
    watching: false,
});

/// A number for a new testbed, whose belongings are removed when a signal comes.
pub(crate) fn register() -> Result<u32, TestbedError> {
    let mut all = lock();
    if !all.watching {
        clean_up_on_signals().map_err(TestbedError::Signals)?;
        all.watching = true;
    }
    let testbed = all.made;
    all.made += 1;
    all.testbeds.push(Belongings {
        testbed,
        namespaces: Vec::new(),
        folder: None,
    });
    Ok(testbed)
}

/// Makes a namespace that belongs to this testbed.
pub(crate) fn make_namespace(testbed: u32, name: &str) -> Result<(), TestbedError> {
    // Held while it is made: a signal waits until it can remove the whole.
    let mut all = lock();
    // One of our own process id that is not ours is a dead program's.
    remove_namespace(name);
    let belongings = find(&mut all, testbed);
    belongings.namespaces.push(name.to_owned());
    namespace::ip(&format!("netns add {name}"))
}

/// Makes the folder of this testbed.
pub(crate) fn make_folder(testbed: u32) -> Result<PathBuf, TestbedError> {
    let mut all = lock();
    let path = names::folder(testbed);
    let _may_not_exist = fs::remove_dir_all(&path);
    find(&mut all, testbed).folder = Some(path.clone());
    match fs::create_dir(&path) {
        Ok(()) => Ok(path),
        Err(cause) => Err(TestbedError::Folder { path, cause }),
    }
}

/// Removes all that belongs to a testbed, with the processes in it.
pub(crate) fn remove(testbed: u32) {
    let mut all = lock();
    if let Some(at) = all
        .testbeds
        .iter()
        .position(|belongings| belongings.testbed == testbed)
    {
        take_away(all.testbeds.swap_remove(at));
    }
}

/// Removes what killed processes have left.
pub(crate) fn sweep() {
    let _one_at_a_time = lock();
    for name in names_in(Path::new(names::NAMESPACES)) {
        if names::namespace_owner(&name).is_some_and(is_dead) {
            remove_namespace(&name);
        }
    }
    let folder = std::env::temp_dir();
    for name in names_in(&folder) {
        if names::folder_owner(&name).is_some_and(is_dead) {
            // Another user's is not ours to remove, and not in our way.
            let _may_not_be_ours = fs::remove_dir_all(folder.join(name));
        }
    }
}

fn find(all: &mut All, testbed: u32) -> &mut Belongings {
    let mut testbeds = all.testbeds.iter_mut();
    testbeds
        .find(|belongings| belongings.testbed == testbed)
        .expect("a testbed is registered until it is removed")
}

fn take_away(belongings: Belongings) {
    for name in &belongings.namespaces {
        remove_namespace(name);
    }
    if let Some(folder) = belongings.folder {
        let _may_be_gone = fs::remove_dir_all(folder);
    }
}

fn remove_namespace(name: &str) {
    let path = names::path(name);
    if !path.exists() {
        return;
    }
    // A namespace lives as long as a process is in it, named or not.
    let killed = namespace::kill_all(name);
    let deleted = namespace::ip(&format!("netns delete {name}"));
    if let Err(error) = deleted
        && path.exists()
    {
        eprintln!("dipole-testbed: the namespace {name} stays: {error}");
    }
    if let Err(error) = killed {
        eprintln!("dipole-testbed: processes of the namespace {name} may live on: {error}");
    }
}

/// Removes on SIGINT, SIGTERM and SIGHUP, then ends the program.
fn clean_up_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new()
        .name("testbed signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Kept locked to the end, so that nothing is made anew meanwhile.
                let mut all = lock();
                for belongings in all.testbeds.drain(..) {
                    take_away(belongings);
                }
                std::process::exit(128 + signal);
            }
        })?;
    Ok(())
}

fn lock() -> MutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn is_dead(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}
