//! What the beds of this process have made and what must go again: with its bed,
//! with this process, or, of processes that were killed, with the next bed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::BedError;
use crate::names;
use crate::namespace;

#[derive(Debug)]
struct Belongings {
    bed: u32,
    namespaces: Vec<String>,
    folder: Option<PathBuf>,
}

#[derive(Debug)]
struct All {
    beds: Vec<Belongings>,
    /// How many there have been: the number of the next.
    made: u32,
    watching: bool,
}

static ALL: Mutex<All> = Mutex::new(All {
    beds: Vec::new(),
    made: 0,
    watching: false,
});

/// A number for a new bed, whose belongings are removed when a signal comes.
pub(crate) fn register() -> Result<u32, BedError> {
    let mut all = lock();
    if !all.watching {
        clean_up_on_signals().map_err(BedError::Signals)?;
        all.watching = true;
    }
    let bed = all.made;
    all.made += 1;
    all.beds.push(Belongings {
        bed,
        namespaces: Vec::new(),
        folder: None,
    });
    Ok(bed)
}

/// Makes a namespace that belongs to this bed.
pub(crate) fn make_namespace(bed: u32, name: &str) -> Result<(), BedError> {
    // Held while it is made: a signal waits until it can remove the whole.
    let mut all = lock();
    // One of our own process id that is not ours is a dead program's.
    remove_namespace(name);
    let belongings = find(&mut all, bed);
    belongings.namespaces.push(name.to_owned());
    namespace::ip(&format!("netns add {name}"))
}

/// Makes the folder of this bed.
pub(crate) fn make_folder(bed: u32) -> Result<PathBuf, BedError> {
    let mut all = lock();
    let path = names::folder(bed);
    let _may_not_exist = fs::remove_dir_all(&path);
    find(&mut all, bed).folder = Some(path.clone());
    match fs::create_dir(&path) {
        Ok(()) => Ok(path),
        Err(cause) => Err(BedError::Folder { path, cause }),
    }
}

/// Removes all that belongs to a bed, with the processes in it.
pub(crate) fn remove(bed: u32) {
    let mut all = lock();
    if let Some(at) = all.beds.iter().position(|belongings| belongings.bed == bed) {
        take_away(all.beds.swap_remove(at));
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

fn find(all: &mut All, bed: u32) -> &mut Belongings {
    let mut beds = all.beds.iter_mut();
    beds.find(|belongings| belongings.bed == bed)
        .expect("a bed is registered until it is removed")
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
        eprintln!("dipole-bed: the namespace {name} stays: {error}");
    }
    if let Err(error) = killed {
        eprintln!("dipole-bed: processes of the namespace {name} may live on: {error}");
    }
}

/// Removes on SIGINT, SIGTERM and SIGHUP, then ends the program.
fn clean_up_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new()
        .name("bed signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Kept locked to the end, so that nothing is made anew meanwhile.
                let mut all = lock();
                for belongings in all.beds.drain(..) {
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
