//! The file of a calibration: plain lines, believed only if its owner may be.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::SplitWhitespace;

use super::{Calibration, CardFacts, Figure, Receive, Send, SocketBy};
use crate::CardId;

/// Where calibrations lie, below the runtime directory.
pub const FOLDER: &str = "cards";

const FIRST_LINE: &str = "dipole calibration 1";
/// Far more than a calibration has.
const MOST_BYTES: u64 = 16 << 10;
/// No figure is that high.
const MOST_NS: u64 = 1_000_000_000;
const MOST_FRAME_BYTES: usize = 65_535;

/// Why a calibration is not used.
#[derive(Debug)]
pub enum FileError {
    /// It cannot be read or written.
    System {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Somebody else could have written it.
    Owner {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
        /// Its mode.
        mode: u32,
    },
    /// It is no calibration.
    Spoilt {
        /// Which.
        path: PathBuf,
        /// The number of the first line that is wrong.
        line: usize,
    },
    /// It was made of another card, or on another kernel.
    Changed {
        /// Which.
        path: PathBuf,
        /// What has changed.
        what: &'static str,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::System { path, cause } => write!(f, "{}: {cause}", path.display()),
            FileError::Owner { path, uid, mode } => write!(
                f,
                "{} is not believed: it is of user {uid}, mode {mode:o}, and must be a plain file \
                 of this user or root that nobody else can write",
                path.display()
            ),
            FileError::Spoilt { path, line } => {
                write!(f, "{} is spoilt in line {line}", path.display())
            }
            FileError::Changed { path, what } => write!(
                f,
                "{} does not hold any more: another {what}",
                path.display()
            ),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FileError::System { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The file of a card. A name that could lead elsewhere has none.
fn place(folder: &Path, card: &str) -> io::Result<PathBuf> {
    let is_plain = !card.is_empty() && !card.starts_with('.') && !card.contains(['/', '\0']);
    match is_plain {
        true => Ok(folder.join(card)),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Makes a folder that everybody may read, whatever the mask for new files says.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)?;
    std::fs::set_permissions(folder, Permissions::from_mode(0o755))
}

impl Calibration {
    /// The calibration of a card in a folder; `None` if there is none.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn load(folder: &Path, card: &CardId) -> Result<Option<Calibration>, FileError> {
        let failed = |cause| FileError::System {
            path: folder.join(&card.name),
            cause,
        };
        let path = place(folder, &card.name).map_err(failed)?;
        let opened = std::fs::OpenOptions::new()
            .read(true)
            // Neither led elsewhere nor kept waiting.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(failed(cause)),
        };
        let found = file.metadata().map_err(failed)?;
        let own = rustix::process::geteuid().as_raw();
        let is_trusted = found.uid() == 0 || found.uid() == own;
        if !found.is_file() || !is_trusted || found.mode() & 0o022 != 0 {
            return Err(FileError::Owner {
                path,
                uid: found.uid(),
                mode: found.mode() & 0o7777,
            });
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        let read = parse(&String::from_utf8_lossy(&bytes));
        let calibration = read.map_err(|line| FileError::Spoilt {
            path: path.clone(),
            line,
        })?;
        let now = CardFacts::of(card).map_err(failed)?;
        match calibration.facts.differs(&now) {
            Some(what) => Err(FileError::Changed { path, what }),
            None => Ok(Some(calibration)),
        }
    }

    /// Puts it into a folder, whole or not at all; everybody may read it.
    ///
    /// # Errors
    /// [`FileError::System`].
    pub fn save(&self, folder: &Path) -> Result<PathBuf, FileError> {
        let failed = |cause| FileError::System {
            path: folder.join(&self.facts.name),
            cause,
        };
        let path = place(folder, &self.facts.name).map_err(failed)?;
        make_folder(folder).map_err(failed)?;
        let new = folder.join(format!(".{}.{}", self.facts.name, std::process::id()));
        let write = || -> io::Result<()> {
            // What a process of this number has left.
            let _may_not_exist = std::fs::remove_file(&new);
            let mut file = File::create_new(&new)?;
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(self.to_string().as_bytes())?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|cause| {
            let _may_not_exist = std::fs::remove_file(&new);
            failed(cause)
        })?;
        Ok(path)
    }
}

impl fmt::Display for Calibration {
    /// As it stands in the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = &self.facts;
        let mac = facts.mac.map(|byte| format!("{byte:02x}")).join(":");
        writeln!(f, "{FIRST_LINE}")?;
        writeln!(f, "card {}", facts.name)?;
        writeln!(f, "mac {mac}")?;
        writeln!(f, "mtu {}", facts.mtu)?;
        writeln!(f, "driver {}", facts.driver)?;
        writeln!(f, "queues {}", facts.queues.unwrap_or(0))?;
        writeln!(f, "kernel {}", facts.kernel)?;
        writeln!(f, "made {}", self.made_s)?;
        writeln!(f, "socket-by {}", self.socket_by.name())?;
        let mut list = |what: &str, way: &str, count: usize, figure: &Figure| {
            let Figure {
                median_ns,
                spread_ns,
            } = figure;
            writeln!(f, "{what} {way} {count} {median_ns} {spread_ns}")
        };
        for ((way, bytes), figure) in &self.sends {
            list("send", way.name(), *bytes, figure)?;
        }
        for ((way, frames), figure) in &self.runs {
            list("run", way.name(), *frames, figure)?;
        }
        for ((place, bytes), figure) in &self.receives {
            list("receive", place.name(), *bytes, figure)?;
        }
        Ok(())
    }
}

/// Reads what [`Calibration`] prints as; or the number of the first line that is wrong, which
/// is the one after the last if something is missing.
fn parse(text: &str) -> Result<Calibration, usize> {
    let mut lines = text.lines().zip(1..);
    let mut fact = |key: &'static str| -> Result<(&str, usize), usize> {
        let (line, number) = lines.next().ok_or(text.lines().count() + 1)?;
        let value = line.strip_prefix(key).ok_or(number)?;
        Ok((value, number))
    };
    let (rest, number) = fact(FIRST_LINE)?;
    if !rest.is_empty() {
        return Err(number);
    }
    let facts = CardFacts {
        name: fact("card ")?.0.to_owned(),
        mac: within(fact("mac ")?, mac)?,
        mtu: within(fact("mtu ")?, |text| {
            text.parse().ok().filter(|mtu| *mtu <= MOST_FRAME_BYTES)
        })?,
        driver: fact("driver ")?.0.to_owned(),
        queues: within(fact("queues ")?, |text| text.parse().ok()).map(|count: u32| {
            // 0 is "unknown".
            Some(count).filter(|count| *count > 0)
        })?,
        kernel: fact("kernel ")?.0.to_owned(),
    };
    let mut calibration = Calibration {
        facts,
        made_s: within(fact("made ")?, |text| text.parse().ok())?,
        socket_by: within(fact("socket-by ")?, |text| {
            SocketBy::ALL.into_iter().find(|one| one.name() == text)
        })?,
        sends: BTreeMap::new(),
        runs: BTreeMap::new(),
        receives: BTreeMap::new(),
    };
    for (line, number) in lines {
        calibration.take_in(line).ok_or(number)?;
    }
    Ok(calibration)
}

fn within<T>((text, number): (&str, usize), read: impl Fn(&str) -> Option<T>) -> Result<T, usize> {
    read(text).ok_or(number)
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = text.split(':').map(|byte| match byte.len() {
        2 => u8::from_str_radix(byte, 16).ok(),
        _ => None,
    });
    let mut mac = [0; 6];
    for place in &mut mac {
        *place = bytes.next()??;
    }
    bytes.next().is_none().then_some(mac)
}

impl Calibration {
    /// A line with a figure.
    fn take_in(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let (what, way) = (words.next()?, words.next()?);
        let send = Send::ALL.into_iter().find(|one| one.name() == way);
        let receive = Receive::ALL.into_iter().find(|one| one.name() == way);
        let (count, figure) = figure(&mut words)?;
        let former = match what {
            "send" => self.sends.insert((send?, count), figure),
            "run" => self.runs.insert((send?, count), figure),
            "receive" => self.receives.insert((receive?, count), figure),
            _ => return None,
        };
        // Nothing is told twice.
        former.is_none().then_some(())
    }
}

fn figure(words: &mut SplitWhitespace<'_>) -> Option<(usize, Figure)> {
    let mut number = || words.next()?.parse::<u64>().ok();
    let count = usize::try_from(number()?).ok()?;
    let (median_ns, spread_ns) = (number()?, number()?);
    let is_sane = count <= MOST_FRAME_BYTES && median_ns <= MOST_NS && spread_ns <= MOST_NS;
    let figure = Figure {
        median_ns,
        spread_ns,
    };
    (is_sane && words.next().is_none()).then_some((count, figure))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::calibrate) fn sample() -> Calibration {
        let figure = |median_ns| Figure {
            median_ns,
            spread_ns: 17,
        };
        Calibration {
            facts: CardFacts {
                name: "eth0".to_owned(),
                mac: [2, 0, 0, 0xab, 0, 1],
                mtu: 1500,
                driver: "veth".to_owned(),
                queues: Some(4),
                kernel: "6.18.0 of somebody".to_owned(),
            },
            made_s: 1_790_000_000,
            socket_by: SocketBy::Pair,
            sends: BTreeMap::from([
                ((Send::AfPacket, 64), figure(2400)),
                ((Send::Socket, 64), figure(3500)),
            ]),
            runs: BTreeMap::from([
                ((Send::AfPacket, 1), figure(2500)),
                ((Send::Socket, 8), figure(4600)),
            ]),
            receives: BTreeMap::from([((Receive::AfXdp, 64), figure(5000))]),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut written = sample();
        assert_eq!(parse(&written.to_string()), Ok(written.clone()));
        written.facts.queues = None;
        written.facts.driver.clear();
        written.receives.clear();
        assert_eq!(parse(&written.to_string()), Ok(written));
    }

    #[test]
    fn what_is_wrong_is_refused_by_line() {
        let whole = sample().to_string();
        let changed = |from: &str, to: &str| {
            assert!(whole.contains(from), "{from}");
            parse(&whole.replace(from, to)).map(drop)
        };
        assert_eq!(parse("").map(drop), Err(1));
        assert_eq!(changed("calibration 1", "calibration 11"), Err(1));
        assert_eq!(changed("02:00", "02:0"), Err(3));
        assert_eq!(changed("ab:00:01", "ab:00:01:00"), Err(3));
        assert_eq!(changed("mtu 1500", "mtu 70000"), Err(4));
        assert_eq!(changed("queues 4", "queues -4"), Err(6));
        assert_eq!(changed("private pair", "hearsay"), Err(9));
        assert_eq!(
            changed("send af-packet 64 2400", "send tcx 64 2400"),
            Err(10)
        );
        assert_eq!(changed("64 2400 17", "64 2400"), Err(10));
        assert_eq!(changed("64 2400 17", "64 2400 17 1"), Err(10));
        assert_eq!(changed("64 2400 17", "64 9999999999 17"), Err(10));
        assert_eq!(changed("send socket", "send af-packet"), Err(11));
        let first: String = whole
            .lines()
            .take(5)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(parse(&first).map(drop), Err(6));
    }

    #[test]
    fn a_name_that_leads_elsewhere_has_no_file() {
        for name in ["", ".", "..", ".x", "a/b", "../x"] {
            assert!(place(Path::new("/x"), name).is_err(), "{name}");
        }
        assert!(place(Path::new("/x"), "eth0.100").is_ok());
    }

    #[test]
    fn only_files_that_nobody_else_can_write_are_believed() {
        let folder = tempfile::tempdir().unwrap();
        let card = CardId {
            index: 1,
            name: "lo".to_owned(),
        };
        assert!(matches!(Calibration::load(folder.path(), &card), Ok(None)));
        let mut written = sample();
        written.facts.name = "lo".to_owned();
        let path = written.save(folder.path()).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o644);
        std::fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        let refused = Calibration::load(folder.path(), &card).unwrap_err();
        assert!(
            matches!(refused, FileError::Owner { mode: 0o664, .. }),
            "{refused}"
        );
        let elsewhere = folder.path().join("elsewhere");
        std::fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let refused = Calibration::load(folder.path(), &card).unwrap_err();
        assert!(matches!(refused, FileError::System { .. }), "{refused}");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let refused = Calibration::load(folder.path(), &card).unwrap_err();
        assert!(matches!(refused, FileError::Owner { .. }), "{refused}");
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, b"\xff\xfe nonsense").unwrap();
        let refused = Calibration::load(folder.path(), &card).unwrap_err();
        assert!(
            matches!(refused, FileError::Spoilt { line: 1, .. }),
            "{refused}"
        );
    }

    proptest! {
        #[test]
        fn no_content_is_read_as_what_it_does_not_say(text in ".{0,2000}") {
            prop_assert!(parse(&text).is_err());
        }

        /// Lines of a whole file, damaged: what is read says what the text does.
        #[test]
        fn a_damaged_file_is_refused_or_reads_as_it_stands(
            damage in proptest::collection::vec((0..1000_usize, any::<char>()), 1..4),
            cut in 0..1000_usize,
        ) {
            let mut text: Vec<char> = sample().to_string().chars().collect();
            for (at, new) in damage {
                if let Some(place) = text.get_mut(at) {
                    *place = new;
                }
            }
            text.truncate(cut);
            let text: String = text.into_iter().collect();
            if let Ok(read) = parse(&text) {
                prop_assert_eq!(parse(&read.to_string()), Ok(read));
            }
        }

        #[test]
        fn figures_without_end_or_sense_do_not_overflow_choices(
            lines in proptest::collection::vec(
                (0..3_usize, 0..3_usize, 0..10_usize, any::<u64>(), any::<u64>()), 0..40),
        ) {
            let mut text = sample().to_string();
            for (what, way, count, median, spread) in lines {
                let what = ["send", "run", "receive"][what];
                let way = ["af-packet", "af-xdp", "socket"][way];
                text += &format!("{what} {way} {count} {median} {spread}\n");
            }
            if let Ok(read) = parse(&text) {
                let choices = read.choices();
                prop_assert!(choices.raw_run_frames <= 8);
            }
        }
    }
}
