//! Images that are kept in the memory of this host, and the process that copies them.
//!
//! Until the launcher has decided what becomes of them, this shim does not end, although its ranks
//! have. If the launcher is gone, the images are removed.

use std::fs::{self, DirBuilder};
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;

use dipole_checkpoint::{ImageName, Store};
use dipole_naming::threads;
use rustix::fs::statvfs;
use rustix::process::{Pid, geteuid};

use super::{Event, HostRanks};
use crate::keeper::FromKeeper;
use crate::message::{self, HostImages, Start, ToLauncher, ToShim};

/// Less free memory than this is refused: it would be full after the first images.
const LEAST_BYTES: u64 = 128 << 20;

/// The images of this host.
pub(super) struct Kept {
    folder: PathBuf,
    keeper: Pid,
    /// Images are still fetched, and the ranks not started.
    is_fetching: bool,
    /// The decision of the launcher; `None` while images are needed.
    are_kept: Option<bool>,
}

/// The images in a folder, as a message.
pub(super) fn listed(folder: &Path) -> ToLauncher {
    let images = Store::new(folder.to_owned()).images();
    ToLauncher::Images {
        images: images.unwrap_or_default(),
        backlog: 0,
    }
}

/// Removes a folder with images. What cannot be removed is named.
pub(super) fn remove(folder: &Path) {
    match fs::remove_dir_all(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            eprintln!("images in {} cannot be removed: {cause}", folder.display());
        }
        _ => {}
    }
}

/// Creates the folder, which only this user may enter.
fn create(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    // Other users can write to the folder above it.
    let found = fs::symlink_metadata(folder)?;
    match found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(io::Error::other("it belongs to another user")),
    }
}

/// Fails if there is too little memory for images.
fn check_space(folder: &Path) -> io::Result<()> {
    let found = statvfs(folder)?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    match free >= LEAST_BYTES {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "it has {} MiB free, and images need at least {} MiB and as much as the ranks use; \
             make it larger (for a container: --shm-size), or use --checkpoint-dir with a folder \
             that all hosts reach",
            free >> 20,
            LEAST_BYTES >> 20
        ))),
    }
}

/// Prepares the folder for ranks that continue from the set `from`, or from the beginning.
fn prepare(folder: &Path, from: u64) -> io::Result<()> {
    create(folder)?;
    check_space(folder)?;
    let store = Store::new(folder.to_owned());
    let images = store.images().map_err(io::Error::other)?;
    // Former processes have left these. Nothing newer was complete.
    let is_old = |image: &ImageName| !image.is_complete() || image.set() > from;
    let old: Vec<ImageName> = images.into_iter().filter(is_old).collect();
    store.remove(&old).map_err(io::Error::other)?;
    store.hold(false).map_err(io::Error::other)
}

impl HostRanks {
    /// Starts the ranks, or first the process that fetches their images.
    pub(super) fn begin(&mut self, start: &mut Start, events: &Sender<Event>) -> io::Result<()> {
        self.prepare(start)?;
        let Some(images) = start.in_memory.take() else {
            return self.start(start);
        };
        let from = start.images.as_ref().map_or(0, |images| images.set);
        let (folder, is_fetching) = (images.folder.clone(), !images.fetches.is_empty());
        let prepared = prepare(&folder, from).and_then(|()| {
            let keeper = self.start_keeper(start, &images, events)?;
            Ok(Kept {
                folder: folder.clone(),
                keeper,
                is_fetching,
                are_kept: None,
            })
        });
        match prepared {
            Ok(kept) => self.images = Some(kept),
            Err(cause) => {
                remove(&folder);
                let folder = folder.display();
                let reason = format!("images cannot be kept in {folder}: {cause}");
                return Err(io::Error::other(reason));
            }
        }
        match is_fetching {
            true => Ok(()),
            false => self.start(start),
        }
    }

    /// Starts the process that copies images, and a thread that reads its messages.
    fn start_keeper(
        &self,
        start: &Start,
        images: &HostImages,
        events: &Sender<Event>,
    ) -> io::Result<Pid> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("keep-images")
            .args(["--parent", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let rank = images.ranks.first().copied().unwrap_or(0);
        self.set_environment(&mut command, start, rank);
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(io::Error::other(
                "the process that copies images has no input",
            ));
        };
        message::write(images, &mut stdin)?;
        let events = events.clone();
        threads::start("dipole-keeper", move || {
            // The keeper ends when this is closed.
            let _open = stdin;
            let mut from = BufReader::new(stdout);
            while let Ok(Some(message)) = message::read(&mut from) {
                let _ = events.send(Event::Keeper(message));
            }
        })?;
        Ok(pid)
    }

    /// True while images are fetched, or may be needed after a loss of other ranks.
    pub(super) fn needs_images(&self) -> bool {
        let images = self.images.as_ref();
        images.is_some_and(|images| images.are_kept.is_none())
    }

    /// Handles a command of the launcher for the images.
    pub(super) fn on_images(&mut self, command: ToShim) {
        let Some(images) = &mut self.images else {
            return;
        };
        let store = Store::new(images.folder.clone());
        let done = match command {
            ToShim::RemoveImages(unneeded) => store.remove(&unneeded),
            ToShim::HoldCheckpoints(waits) => store.hold(waits),
            ToShim::EndImages { are_kept } => {
                images.are_kept = Some(are_kept);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            let _ = self.outbox.send(ToLauncher::Warning(error.to_string()));
        }
    }

    /// Handles a message of the process that copies images.
    pub(super) fn on_keeper(&mut self, message: FromKeeper, start: &Start) {
        match message {
            FromKeeper::Forward(message) => {
                let _ = self.outbox.send(*message);
            }
            FromKeeper::Fetched(outcome) => self.on_fetched(outcome, start),
        }
    }

    /// Starts the ranks, whose images are here now.
    fn on_fetched(&mut self, outcome: Result<(), String>, start: &Start) {
        let Some(images) = self.images.as_mut().filter(|images| images.is_fetching) else {
            return;
        };
        images.is_fetching = false;
        let message = match outcome {
            Err(reason) => ToLauncher::NotFetched(reason),
            Ok(()) if images.are_kept.is_some() => return,
            Ok(()) => match self.start(start) {
                Ok(()) => return,
                Err(cause) => ToLauncher::Refused {
                    reason: format!("the ranks cannot be started: {cause}"),
                    status: 1,
                },
            },
        };
        let _ = self.outbox.send(message);
    }

    /// Reports the end of the process that copies images, unless everything ends.
    pub(super) fn note_keeper_end(&mut self, pid: Pid) {
        let Some(images) = self.images.as_mut().filter(|images| images.keeper == pid) else {
            return;
        };
        if images.are_kept.is_some() {
            return;
        }
        let message = match std::mem::take(&mut images.is_fetching) {
            true => ToLauncher::NotFetched("the process that fetches images has ended".to_owned()),
            false => ToLauncher::Warning(
                "the process that copies images has ended; new ones stay on this host only"
                    .to_owned(),
            ),
        };
        let _ = self.outbox.send(message);
    }

    /// Removes the images, unless the job is restarted.
    pub(super) fn end_images(&mut self) {
        if let Some(images) = self.images.take()
            && images.are_kept != Some(true)
        {
            remove(&images.folder);
        }
    }
}
