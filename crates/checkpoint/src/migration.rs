//! Notes that `dipole migrate`, the launcher and the ranks of a job leave for each other in the folder
//! of the job, while ranks move to other hosts.
//!
//! ```text
//! request    dipole migrate -> launcher    who moves where
//! order      launcher -> rank 0            the new places of all ranks
//! prepared   rank 0 -> launcher            the images of those that move are complete, or why not
//! arrived    a moved rank -> launcher      its process was restored, and waits
//! decision   launcher -> rank 0            they move, or all go on where they are
//! input      rank 0 -> launcher            what it has not read, if it moves itself
//! go         launcher -> moved ranks       their former processes have ended
//! answer     launcher -> dipole migrate    the outcome
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::{Store, StoreError, failed};

/// Variable with the number of the migration in which a rank is restored.
pub const MIGRATION: &str = "DIPOLE_MIGRATION";

/// A note; all but the first two belong to the migration with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// [`MigrationRequest`].
    Request,
    /// [`Order`].
    Order,
    /// [`Prepared`].
    Prepared(u64),
    /// `()`, from this rank.
    Arrived(u64, u32),
    /// `bool`.
    Decision(u64),
    /// `Vec<u8>`.
    Input(u64),
    /// `bool`: true.
    Go(u64),
    /// [`Answer`].
    Answer(u64),
}

impl Note {
    fn name(self) -> String {
        match self {
            Note::Request => "migration-request".to_owned(),
            Note::Order => "migration-order".to_owned(),
            Note::Prepared(number) => format!("migration-{number:x}-prepared"),
            Note::Arrived(number, rank) => format!("migration-{number:x}-arrived-{rank}"),
            Note::Decision(number) => format!("migration-{number:x}-decision"),
            Note::Input(number) => format!("migration-{number:x}-input"),
            Note::Go(number) => format!("migration-{number:x}-go"),
            Note::Answer(number) => format!("migration-{number:x}-answer"),
        }
    }
}

/// A request of `dipole migrate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationRequest {
    /// Random number of the migration.
    pub number: u64,
    /// Numbers, names or addresses of the hosts; if it is empty, the launcher selects hosts.
    pub to: Vec<String>,
    /// The ranks that move; if it is empty, all that are not on one of the hosts.
    pub ranks: Vec<u32>,
    /// How long it may take until the ranks move, in milliseconds.
    pub timeout_ms: u64,
}

/// Where the job goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Number of the migration.
    pub number: u64,
    /// Number of the job, for its new links.
    pub job: u64,
    /// First endpoint of the new links.
    pub base: u32,
    /// Node of each rank.
    pub nodes: Vec<u32>,
    /// The ranks that move.
    pub ranks: Vec<u32>,
}

/// The set with the images of all ranks that move, or the reason why it is incomplete.
pub type Prepared = Result<u64, String>;

/// A rank that has moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The rank.
    pub rank: u32,
    /// The host that it has left.
    pub from: String,
    /// The host where it is now.
    pub to: String,
}

/// The ranks that have moved, and how long the job stood still, in milliseconds; or the reason why
/// they stay.
pub type Answer = Result<(Vec<Moved>, u64), String>;

impl Store {
    fn note(&self, note: Note) -> PathBuf {
        self.folder().join(note.name())
    }

    /// Leaves a note. It appears as a whole.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written.
    pub fn leave(&self, note: Note, content: &impl Serialize) -> Result<(), StoreError> {
        let path = self.note(note);
        let written = path.with_extension(format!("{}", std::process::id()));
        let leave = || {
            let bytes = postcard::to_stdvec(content).map_err(io::Error::other)?;
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&written)?;
            file.write_all(&bytes)?;
            fs::rename(&written, &path)
        };
        leave().map_err(failed(&path))
    }

    /// Reads a note, if it is there.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self, note: Note) -> Option<T> {
        self.refresh();
        read(&self.note(note))
    }

    /// Reads and removes a note. Of several processes only one gets it.
    #[must_use]
    pub fn take_note<T: DeserializeOwned>(&self, note: Note) -> Option<T> {
        self.refresh();
        let path = self.note(note);
        // Only what was renamed is removed: not a note that is left between a look and a removal.
        let taken = path.with_extension(format!("{}-taken", std::process::id()));
        fs::rename(&path, &taken).ok()?;
        let content = read(&taken);
        let _removed = fs::remove_file(&taken);
        content
    }

    /// Lets a network file system compare what it remembers of the folder with the server.
    fn refresh(&self) {
        let _opened = File::open(self.folder());
    }

    /// Removes the notes of former migrations, which no rank needs once it takes part in the one with
    /// this number.
    pub fn remove_former_notes(&self, number: u64) {
        let present = format!("migration-{number:x}-");
        let is_former = |path: &Path| {
            // The stem is also that of a note which is being left or taken.
            let name = path.file_stem().map(|name| name.to_string_lossy());
            // `dipole migrate` removes the answer.
            name.is_some_and(|name| {
                name.starts_with("migration-")
                    && !name.starts_with(&present)
                    && !name.ends_with("-answer")
                    && name != Note::Request.name()
            })
        };
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|it| is_former(it)) {
            // What stays is removed with the job's folder.
            let _removed = fs::remove_file(path);
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    postcard::from_bytes(&fs::read(path).ok()?).ok()
}

/// Ends this process without the handlers of the program: its image goes on elsewhere, or later, with
/// all that they would write.
pub fn end_without_handlers(status: u8) -> ! {
    // SAFETY: the call never returns, and runs no code of the program.
    unsafe { libc::_exit(status.into()) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_note_is_taken_once_and_those_of_other_migrations_stay() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        assert_eq!(store.read::<bool>(Note::Decision(7)), None);
        store.leave(Note::Decision(7), &true).unwrap();
        store.leave(Note::Decision(8), &false).unwrap();
        assert_eq!(store.read(Note::Decision(7)), Some(true));
        assert_eq!(store.take_note(Note::Decision(7)), Some(true));
        assert_eq!(store.take_note::<bool>(Note::Decision(7)), None);
        store.leave(Note::Arrived(7, 3), &()).unwrap();
        store.leave(Note::Arrived(0x77, 3), &()).unwrap();
        store.leave(Note::Request, &9_u64).unwrap();
        let answer = Answer::Err("no".to_owned());
        store.leave(Note::Answer(8), &answer).unwrap();
        let half_left = store.note(Note::Request).with_extension("1");
        fs::write(&half_left, "").unwrap();
        store.remove_former_notes(7);
        assert!(half_left.exists());
        assert_eq!(store.read(Note::Arrived(7, 3)), Some(()));
        assert_eq!(store.read::<()>(Note::Arrived(0x77, 3)), None);
        assert_eq!(store.read::<bool>(Note::Decision(8)), None);
        assert_eq!(store.read(Note::Answer(8)), Some(answer));
        assert_eq!(store.read(Note::Request), Some(9_u64));
        assert!(store.sets().unwrap().is_empty());
    }

    #[test]
    fn a_note_that_is_left_while_another_process_looks_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(60);
                let mut taken = 0;
                while taken < 3000 && Instant::now() < deadline {
                    let Some(number) = store.take_note::<u32>(Note::Order) else {
                        continue;
                    };
                    assert_eq!(number, taken);
                    taken += 1;
                }
                taken
            });
            for number in 0..3000_u32 {
                store.leave(Note::Order, &number).unwrap();
                while store.note(Note::Order).exists() && !taker.is_finished() {
                    std::thread::yield_now();
                }
            }
            assert_eq!(taker.join().unwrap(), 3000);
        });
    }

    #[test]
    fn damaged_notes_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        fs::write(store.note(Note::Order), [0xff; 9]).unwrap();
        assert_eq!(store.take_note::<Order>(Note::Order), None);
        assert!(!store.note(Note::Order).exists());
    }
}
