//! What the launcher and the shim of a host say to each other.
//!
//! The shim first writes [`BANNER`], so that what a login shell prints before it
//! is told from it. Then both ways: kind (1 byte), number (4), length (4),
//! payload; little endian. The number is a rank unless the kind says otherwise.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a shim writes first.
pub(super) const BANNER: &[u8] = b"\ndipole-shim 1\n";
/// Longer than any hosts file with its command line.
const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// A shim introduces itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) pid: u32,
    /// How many ranks it starts, if its node's owner has set a limit.
    pub(super) most_ranks: Option<u32>,
}

/// Everything a shim must know to start its ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) ranks: Vec<u32>,
    /// The program and its arguments.
    pub(super) command: Vec<OsString>,
    /// The same for all ranks of the host.
    pub(super) environment: BTreeMap<String, OsString>,
    pub(super) directory: PathBuf,
    /// The text of the hosts file, for hosts that do not share a file system.
    pub(super) hosts: Option<String>,
    /// The cluster key.
    pub(super) key: Option<Secret>,
}

/// The digits of a cluster key, on their way to another host: never printed.
#[derive(Serialize, Deserialize)]
pub(super) struct Secret(pub(super) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// It returned this code.
    Code(u8),
    /// This signal ended it.
    Signal(u8),
}

impl Ending {
    /// The status as shells write it.
    pub(crate) fn status(self) -> u8 {
        match self {
            Ending::Code(code) => code,
            Ending::Signal(signal) => signal.saturating_add(128),
        }
    }
}

/// Launcher to shim.
#[derive(Debug)]
pub(super) enum Down {
    Start(Box<Start>),
    /// Bytes for the standard input of rank 0.
    Input(Vec<u8>),
    InputEnd,
    Signal(i32),
    /// End everything: SIGTERM, and SIGKILL after this long.
    End {
        grace_ms: u32,
    },
}

/// Shim to launcher.
#[derive(Debug)]
pub(super) enum Up {
    Hello(Hello),
    Started {
        rank: u32,
        pid: u32,
    },
    Output {
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    Exited {
        rank: u32,
        ending: Ending,
    },
    /// Rank 0 has taken this much of its input.
    InputTaken(u32),
    /// A complaint of the shim itself.
    Complaint(String),
    /// No process is left on this host.
    Done,
    /// Nobody starts a shim there; why.
    Refused(String),
}

/// Which of a rank's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Down {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Down::Start(start) => put(to, 1, 0, &serde_json::to_vec(start)?),
            Down::Input(bytes) => put(to, 2, 0, bytes),
            Down::InputEnd => put(to, 3, 0, &[]),
            Down::Signal(signal) => put(to, 4, signal.cast_unsigned(), &[]),
            Down::End { grace_ms } => put(to, 5, *grace_ms, &[]),
        }
    }

    /// The next message; `None` at the end of the stream.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Down>> {
        let Some((kind, number, payload)) = take(from)? else {
            return Ok(None);
        };
        Ok(Some(match kind {
            1 => Down::Start(Box::new(serde_json::from_slice(&payload)?)),
            2 => Down::Input(payload),
            3 => Down::InputEnd,
            4 => Down::Signal(number.cast_signed()),
            5 => Down::End { grace_ms: number },
            _ => return Err(unknown(kind)),
        }))
    }
}

impl Up {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Up::Hello(hello) => put(to, 16, 0, &serde_json::to_vec(hello)?),
            Up::Started { rank, pid } => put(to, 17, *rank, &pid.to_le_bytes()),
            Up::Output {
                rank,
                stream: Stream::Stdout,
                bytes,
            } => put(to, 18, *rank, bytes),
            Up::Output { rank, bytes, .. } => put(to, 19, *rank, bytes),
            Up::Exited { rank, ending } => put(to, 20, *rank, &serde_json::to_vec(ending)?),
            Up::InputTaken(count) => put(to, 21, *count, &[]),
            Up::Complaint(text) => put(to, 22, 0, text.as_bytes()),
            Up::Done => put(to, 23, 0, &[]),
            Up::Refused(reason) => put(to, 24, 0, reason.as_bytes()),
        }
    }

    /// The next message; `None` at the end of the stream.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Up>> {
        let Some((kind, number, payload)) = take(from)? else {
            return Ok(None);
        };
        Ok(Some(match kind {
            16 => Up::Hello(serde_json::from_slice(&payload)?),
            17 => Up::Started {
                rank: number,
                pid: u32::from_le_bytes(
                    payload
                        .try_into()
                        .map_err(|_| io::Error::other("a pid of another length than 4"))?,
                ),
            },
            18 => output(number, Stream::Stdout, payload),
            19 => output(number, Stream::Stderr, payload),
            20 => Up::Exited {
                rank: number,
                ending: serde_json::from_slice(&payload)?,
            },
            21 => Up::InputTaken(number),
            22 => Up::Complaint(String::from_utf8_lossy(&payload).into_owned()),
            23 => Up::Done,
            24 => Up::Refused(String::from_utf8_lossy(&payload).into_owned()),
            _ => return Err(unknown(kind)),
        }))
    }
}

fn output(rank: u32, stream: Stream, bytes: Vec<u8>) -> Up {
    Up::Output {
        rank,
        stream,
        bytes,
    }
}

fn unknown(kind: u8) -> io::Error {
    io::Error::other(format!("a message of unknown kind {kind}"))
}

/// Reads up to and including the banner.
pub(super) fn skip_to_banner(from: &mut impl BufRead) -> io::Result<()> {
    const MOST_BYTES: usize = 1 << 16;
    // What precedes may lack its last line break; the shim brings one along.
    let mut window = std::collections::VecDeque::with_capacity(BANNER.len());
    for byte in from.take(MOST_BYTES as u64).bytes() {
        if window.len() == BANNER.len() {
            window.pop_front();
        }
        window.push_back(byte?);
        if window.iter().eq(BANNER) {
            return Ok(());
        }
    }
    Err(io::Error::other(
        "its output ended, or went on for 64 KiB, without a word of `dipole`; is it installed \
         there (--dipole PATH)?",
    ))
}

fn put(to: &mut impl Write, kind: u8, number: u32, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_PAYLOAD_BYTES)
        .ok_or_else(|| io::Error::other("a message of more than 64 MiB"))?;
    let mut head = [kind, 0, 0, 0, 0, 0, 0, 0, 0];
    head[1..5].copy_from_slice(&number.to_le_bytes());
    head[5..].copy_from_slice(&length.to_le_bytes());
    to.write_all(&head)?;
    to.write_all(payload)?;
    to.flush()
}

fn take(from: &mut impl Read) -> io::Result<Option<(u8, u32, Vec<u8>)>> {
    let mut head = [0; 9];
    let first = loop {
        match from.read(&mut head[..1]) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..])?;
    let number = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    let length = u32::from_le_bytes([head[5], head[6], head[7], head[8]]) as usize;
    if length > MAX_PAYLOAD_BYTES {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok(Some((head[0], number, payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_as_written_and_a_cut_one_is_an_error() {
        let mut bytes = Vec::new();
        let ending = Ending::Signal(9);
        Up::Exited { rank: 7, ending }.write(&mut bytes).unwrap();
        Up::Output {
            rank: 1,
            stream: Stream::Stderr,
            bytes: b"x\ny".to_vec(),
        }
        .write(&mut bytes)
        .unwrap();
        let mut from = &bytes[..];
        let first = Up::read(&mut from).unwrap().unwrap();
        assert!(matches!(first, Up::Exited { rank: 7, ending: e } if e == ending));
        let second = Up::read(&mut from).unwrap().unwrap();
        assert!(matches!(
            second,
            Up::Output { rank: 1, stream: Stream::Stderr, bytes } if bytes == b"x\ny"
        ));
        assert!(Up::read(&mut from).unwrap().is_none());
        let cut = bytes.len() - 1;
        let mut from = &bytes[..cut];
        Up::read(&mut from).unwrap();
        assert!(Up::read(&mut from).is_err());
    }

    #[test]
    fn the_banner_is_found_behind_what_a_login_shell_says() {
        let mut stream = b"Welcome!\n\ndipole-shi\ndipole-shim".to_vec();
        stream.extend_from_slice(BANNER);
        stream.extend_from_slice(b"rest");
        let mut from = &stream[..];
        skip_to_banner(&mut from).unwrap();
        assert_eq!(from, b"rest");
        assert!(skip_to_banner(&mut &b"sh: dipole: not found\n"[..]).is_err());
    }
}
