//! Removes namespaces and folders: with their testbed, when this process ends or, after it was
//! killed, when another process makes a testbed.

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
struct Cleanup {
    testbed: u32,
    namespaces: Vec<String>,
    folder: Option<PathBuf>,
}

#[derive(Debug)]
struct Registry {
    testbeds: Vec<Cleanup>,
    /// Number of testbeds so far, which is the number of the next one.
    created: u32,
    handles_signals: bool,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    testbeds: Vec::new(),
    created: 0,
    handles_signals: false,
});

/// Assigns a number to a new testbed and, with `on_signals`, makes sure that signals clean it up.
pub(crate) fn register(on_signals: bool) -> Result<u32, TestbedError> {
    let mut registry = lock();
    if on_signals && !registry.handles_signals {
        clean_up_on_signals().map_err(TestbedError::Signals)?;
        registry.handles_signals = true;
    }
    let testbed = registry.created;
    registry.created += 1;
    registry.testbeds.push(Cleanup {
        testbed,
        namespaces: Vec::new(),
        folder: None,
    });
    Ok(testbed)
}

/// Creates a namespace that is removed with this testbed.
pub(crate) fn create_namespace(testbed: u32, name: &str) -> Result<(), TestbedError> {
    // Stay locked while the namespace is created: a signal must wait until it can remove all of it.
    let mut registry = lock();
    // A namespace with our process id that we have not created was left by a killed process.
    remove_namespace(name);
    let cleanup = find(&mut registry, testbed);
    cleanup.namespaces.push(name.to_owned());
    namespace::ip(&format!("netns add {name}"))
}

/// Creates a folder in `parent`, by default the temporary directory.
pub(crate) fn create_folder(
    testbed: u32,
    parent: Option<PathBuf>,
) -> Result<PathBuf, TestbedError> {
    let mut registry = lock();
    let parent = parent.unwrap_or_else(std::env::temp_dir);
    let path = parent.join(names::folder(testbed));
    let _may_not_exist = fs::remove_dir_all(&path);
    find(&mut registry, testbed).folder = Some(path.clone());
    match fs::create_dir(&path) {
        Ok(()) => Ok(path),
        Err(cause) => Err(TestbedError::Folder { path, cause }),
    }
}

/// Removes everything that belongs to a testbed, including the processes in its namespaces.
pub(crate) fn remove(testbed: u32) {
    let mut registry = lock();
    if let Some(at) = registry
        .testbeds
        .iter()
        .position(|cleanup| cleanup.testbed == testbed)
    {
        remove_all(registry.testbeds.swap_remove(at));
    }
}

/// Removes namespaces and folders of killed processes.
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
            // Folders of other users cannot be removed and do no harm.
            let _may_not_be_ours = fs::remove_dir_all(folder.join(name));
        }
    }
}

fn find(registry: &mut Registry, testbed: u32) -> &mut Cleanup {
    let mut testbeds = registry.testbeds.iter_mut();
    testbeds
        .find(|cleanup| cleanup.testbed == testbed)
        .expect("a testbed is registered until it is removed")
}

fn remove_all(cleanup: Cleanup) {
    for name in &cleanup.namespaces {
        remove_namespace(name);
    }
    if let Some(folder) = cleanup.folder {
        let _may_be_gone = fs::remove_dir_all(folder);
    }
}

fn remove_namespace(name: &str) {
    let path = names::path(name);
    if !path.exists() {
        return;
    }
    // A namespace exists while a process is in it, even without a name.
    let killed = namespace::kill_all(name);
    let deleted = namespace::ip(&format!("netns delete {name}"));
    if let Err(error) = deleted
        && path.exists()
    {
        eprintln!("dipole-testbed: cannot remove the namespace {name}: {error}");
    }
    if let Err(error) = killed {
        eprintln!("dipole-testbed: cannot kill the processes in the namespace {name}: {error}");
    }
}

/// On SIGINT, SIGTERM and SIGHUP, removes everything and exits.
fn clean_up_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new()
        .name("testbed signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Stay locked until the process ends, so that no other thread creates anything.
                let mut registry = lock();
                for cleanup in registry.testbeds.drain(..) {
                    remove_all(cleanup);
                }
                std::process::exit(128 + signal);
            }
        })?;
    Ok(())
}

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
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
