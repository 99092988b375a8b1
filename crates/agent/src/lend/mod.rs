//! Lending rings, and sockets for raw frames, to processes without privileges: an agent with
//! capabilities does so as far as the administrator's file allows.
//!
//! [`cards`] is that file, [`desk`] the thread that hears whoever asks, [`guests`] what bounds a
//! user, [`book`] what is lent to whom, [`programs`] the kernel's part, [`held`] what still
//! exists of what was handed out, [`addresses`] which card has which address.

mod addresses;
mod book;
mod cards;
mod desk;
mod guests;
mod held;
mod programs;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dipole_bpf::loan::{DEFAULT_PATH, channel};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use book::Book;
use cards::{Cards, CardsError};
use desk::Desk;
pub(super) use programs::Kept;

/// Names the socket, for the agent and for those who ask it.
const VARIABLE: &str = "DIPOLE_LENDER";

/// Why nothing is lent.
#[derive(Debug)]
pub(super) enum LendError {
    Cards(CardsError),
    /// The agent was told to lend and cannot.
    Unable {
        missing: Vec<&'static str>,
    },
    /// Somebody lends there already.
    Taken {
        path: PathBuf,
    },
    System {
        doing: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

impl fmt::Display for LendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LendError::Cards(error) => error.fmt(f),
            LendError::Unable { missing } => write!(
                f,
                "to lend cards an agent needs {}: run it as root or as a service with \
                 AmbientCapabilities, or without --cards",
                missing.join(", ")
            ),
            LendError::Taken { path } => write!(
                f,
                "another agent lends cards at {}: end it, or set {VARIABLE} to another path for \
                 this one and those who shall ask it",
                path.display()
            ),
            LendError::System { doing, path, cause } => {
                write!(f, "{doing} {}: {cause}", path.display())
            }
        }
    }
}

impl From<CardsError> for LendError {
    fn from(error: CardsError) -> LendError {
        LendError::Cards(error)
    }
}

/// What is lent now.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct LendStatus {
    /// Where it is asked for.
    pub(super) socket: String,
    pub(super) cards: Vec<CardStatus>,
    /// Rings that exist, those included whose loans have ended.
    pub(super) rings: u32,
    /// Questions refused.
    pub(super) refused: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CardStatus {
    pub(super) name: String,
    /// Where the program is attached, if it is.
    pub(super) attached: Option<String>,
    pub(super) users: Vec<UserStatus>,
    /// Packets for rings that are lent, by what became of them, since the program was attached.
    pub(super) counters: BTreeMap<String, u64>,
    /// Frames of lent sockets that were dropped.
    pub(super) refused_frames: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct UserStatus {
    pub(super) uid: u32,
    pub(super) rings: u32,
    pub(super) bytes: u64,
    pub(super) senders: u32,
}

/// Lends until it is dropped.
pub(super) struct Lender {
    book: Arc<Mutex<Book>>,
    path: PathBuf,
    /// Its thread ends when this is closed.
    _end: UnixStream,
}

impl Lender {
    /// Begins to lend, if there is a file that says what, and this process can. A file that
    /// nobody asked for binds no agent that could not lend anyway.
    pub(super) fn start(given: Option<&Path>, kept: Kept) -> Result<Option<Lender>, LendError> {
        let Some((file, asked_for)) = cards::place(given) else {
            kept.forget();
            return Ok(None);
        };
        let missing = missing();
        if !missing.is_empty() && asked_for {
            return Err(LendError::Unable { missing });
        }
        if !missing.is_empty() {
            let file = file.display();
            tracing::debug!(%file, "no cards are lent: this agent has no capabilities");
            return Ok(None);
        }
        let rules = Cards::load(&file)?;
        let path = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let path = path.map_or_else(|| PathBuf::from(DEFAULT_PATH), PathBuf::from);
        match Lender::open(&path, rules, kept) {
            Err(error @ LendError::Taken { .. }) if !asked_for => {
                tracing::warn!("no cards are lent: {error}");
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    fn open(path: &Path, rules: Cards, kept: Kept) -> Result<Lender, LendError> {
        let system = |doing| {
            move |cause| LendError::System {
                doing,
                path: path.to_owned(),
                cause,
            }
        };
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.exists() {
            let open_to_all = Permissions::from_mode(0o755);
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::set_permissions(folder, open_to_all))
                .map_err(system("making the directory of"))?;
        }
        if channel::connect(path).is_ok() {
            return Err(LendError::Taken {
                path: path.to_owned(),
            });
        }
        // Nobody answers there: a dead agent's.
        let _may_not_exist = std::fs::remove_file(path);
        let listener = channel::listen(path).map_err(system("listening at"))?;
        let book = Book::open(rules, kept, Instant::now()).map_err(system("lending cards at"))?;
        let book = Arc::new(Mutex::new(book));
        let begun = UnixStream::pair().and_then(|(end, seen)| {
            let desk = Desk::new(listener, seen, Arc::clone(&book))?;
            let thread = std::thread::Builder::new().name("dipole-lender".to_owned());
            thread.spawn(move || {
                if let Err(cause) = desk.run() {
                    tracing::error!(event = "failed", %cause, "no cards are lent any more");
                }
            })?;
            Ok(end)
        });
        let end = begun.map_err(system("lending cards at"))?;
        tracing::info!(event = "lends", path = %path.display(), "cards are lent");
        Ok(Lender {
            book,
            path: path.to_owned(),
            _end: end,
        })
    }

    pub(super) fn status(&self) -> LendStatus {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.status(self.path.display().to_string())
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// Capabilities without which nothing can be lent.
fn missing() -> Vec<&'static str> {
    let has =
        rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let wanted = [
        ("CAP_BPF", CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_NET_RAW", CapabilitySet::NET_RAW),
    ];
    let lacking = wanted.iter().filter(|(_, any)| !has.intersects(*any));
    lacking.map(|(name, _)| *name).collect()
}
