//! Messages between the launcher and the shim of a host.
//!
//! The shim first writes [`BANNER`], which separates its messages from the output of a login shell.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use crate::binding::Binding;
use crate::load::NodeLoad;
use dipole_checkpoint::ImageName;
use rustix::process::WaitStatus;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// First output of a shim.
pub(super) const BANNER: &[u8] = b"\ndipole-shim 11\n";
/// Written before the banner when the host is reached through an agent that has proven the key.
pub(super) const BY_AGENT: &[u8] = b"\ndipole-agent\n";
const LENGTH_BYTES: usize = 4;
/// Longer than any hosts file with a command line.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The table of loads that the agent of a host has, or why it cannot be read.
pub(super) type LoadTable = Result<Vec<NodeLoad>, String>;

/// Keys and values that ranks have put.
pub(super) type Entries = Vec<(String, String)>;

/// The first message of a shim.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) pid: u32,
    /// Maximum number of ranks, if its node's owner has set a limit.
    pub(super) max_ranks: Option<u32>,
}

impl Hello {
    /// Why the launcher cannot use the shim, if it has another version.
    pub(super) fn wrong_version(&self) -> Option<String> {
        let own = env!("CARGO_PKG_VERSION");
        (self.version != own).then(|| format!("its dipole is version {}, not {own}", self.version))
    }
}

/// Start message for a shim.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) ranks: Vec<RankStart>,
    /// The programs, each with its arguments.
    pub(super) commands: Vec<Vec<OsString>>,
    /// Cores that ranks are bound to.
    pub(super) binding: Binding,
    /// Variables that are the same for all ranks of the host.
    pub(super) environment: BTreeMap<String, OsString>,
    pub(super) directory: PathBuf,
    /// Start nothing if the directory does not exist; otherwise use the home directory instead.
    pub(super) directory_required: bool,
    /// Text of the hosts file, because hosts may not share a file system.
    pub(super) hosts: Option<String>,
    /// The cluster key, unless the agent has it.
    pub(super) key: Option<Secret>,
    /// Ranks use the key file of the agent that started this shim.
    pub(super) uses_agent_key: bool,
    pub(super) pmi: PmiJob,
    /// The ranks continue from these instead of starting their programs.
    pub(super) images: Option<Images>,
    /// Images are kept in memory here, and copied to other hosts.
    pub(super) in_memory: Option<HostImages>,
}

/// A complete set of images.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Images {
    /// Folder of the job's checkpoints.
    pub(super) folder: PathBuf,
    pub(super) set: u64,
    pub(super) size: u32,
}

/// The images of a host, as the launcher wants them kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HostImages {
    /// Folder in memory for own images and copies.
    pub(super) folder: PathBuf,
    /// The endpoint of each host's keeper.
    pub(super) endpoint: u32,
    /// Proves that a message comes from this job.
    pub(super) token: Secret,
    /// The ranks of this host.
    pub(super) ranks: Vec<u32>,
    /// The hosts that get copies.
    pub(super) peers: Vec<u32>,
    /// Images that the ranks continue from and that are on other hosts.
    pub(super) fetches: Vec<(u32, ImageName)>,
    /// How fast images are sent.
    pub(super) bytes_per_second: u64,
}

/// The facts that ranks learn about their job by PMI.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PmiJob {
    pub(super) size: u32,
    /// The node of each rank, as clients parse it.
    pub(super) mapping: String,
}

impl PmiJob {
    /// A job whose rank r is on `nodes[r]`.
    pub(super) fn new<N: PartialEq>(nodes: &[N]) -> PmiJob {
        let mut known: Vec<&N> = Vec::new();
        let blocks = nodes.chunk_by(|one, other| one == other).map(|block| {
            let index = known.iter().position(|node| *node == &block[0]);
            let index = index.unwrap_or_else(|| {
                known.push(&block[0]);
                known.len() - 1
            });
            format!(",({index},1,{})", block.len())
        });
        let mapping = format!("(vector{})", blocks.collect::<String>());
        PmiJob {
            size: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            mapping,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankStart {
    pub(super) rank: u32,
    /// Index of its program.
    pub(super) program: u32,
    pub(super) local: LocalRank,
}

/// The position of a rank among the ranks of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LocalRank {
    pub(super) index: u32,
    /// Number of ranks on the host.
    pub(super) count: u32,
}

/// The digits of a cluster key for another host; never printed.
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
    /// The process exited with this code.
    Code(u8),
    /// Signal that killed it.
    Signal(u8),
}

impl From<WaitStatus> for Ending {
    fn from(status: WaitStatus) -> Ending {
        let small = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Ending::Code(small(code)),
            (None, Some(signal)) => Ending::Signal(small(signal)),
            (None, None) => Ending::Code(u8::MAX),
        }
    }
}

impl Ending {
    /// Its exit status as shells report it.
    pub(crate) fn status(self) -> u8 {
        match self {
            Ending::Code(code) => code,
            Ending::Signal(signal) => signal.saturating_add(128),
        }
    }
}

/// Message from launcher to shim.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToShim {
    Start(Box<Start>),
    /// Bytes for the standard input of rank 0.
    Input(#[serde(with = "serde_bytes")] Vec<u8>),
    InputEnd,
    Signal(i32),
    /// End all processes: SIGTERM, then SIGKILL after this time.
    End {
        grace_ms: u32,
    },
    /// The cluster key of the start message has changed.
    Key(Secret),
    /// All ranks are in a PMI barrier, and this is what they have put before it.
    PmiBarrier(Entries),
    /// Report the images in this folder.
    ReportImages {
        folder: PathBuf,
    },
    /// Remove images that no rank needs.
    RemoveImages(Vec<ImageName>),
    /// Checkpoints at intervals wait, or no longer.
    HoldCheckpoints(bool),
    /// No rank starts here any more: keep the images in memory for a restart, or remove them.
    EndImages {
        are_kept: bool,
    },
    /// Read the table of loads of this node's agent.
    Load {
        node: u32,
        /// Runtime directory of the node, if the hosts file has it.
        runtime_dir: Option<PathBuf>,
    },
}

/// Message from shim to launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToLauncher {
    /// Always the first message and the first variant, so that versions can be compared.
    Hello(Hello),
    Started {
        rank: u32,
        pid: u32,
    },
    Output {
        rank: u32,
        stream: Stream,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    Exited {
        rank: u32,
        ending: Ending,
    },
    /// One of the two outputs of a rank has ended.
    OutputEnded {
        rank: u32,
    },
    /// Rank 0 has read this many bytes of its input.
    InputTaken(u32),
    /// All ranks of this host are in a PMI barrier, and this is what they have put before it.
    PmiBarrier(Entries),
    /// A rank has called MPI_Abort.
    PmiAbort {
        rank: u32,
        status: u8,
    },
    /// The images in memory here, and the number of sets that are still to be copied.
    Images {
        images: Vec<ImageName>,
        backlog: u32,
    },
    /// The images for the ranks of this host could not be fetched, so none was started.
    NotFetched(String),
    /// The reply to [`ToShim::Load`].
    Load(LoadTable),
    /// A warning of the shim itself.
    Warning(String),
    /// No process is left on this host.
    Done,
    /// No rank was started; the reason, and the exit status for it.
    Refused {
        reason: String,
        status: u8,
    },
}

/// An output of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// Reads up to and including the banner; true if [`BY_AGENT`] preceded it.
pub(super) fn skip_to_banner(from: &mut impl BufRead) -> io::Result<bool> {
    const MAX_BYTES: usize = 1 << 16;
    let mut by_agent = false;
    // The shell's output may lack a final line break; the banner begins with one.
    let mut window = std::collections::VecDeque::with_capacity(BANNER.len());
    for byte in from.take(MAX_BYTES as u64).bytes() {
        if window.len() == BANNER.len() {
            window.pop_front();
        }
        window.push_back(byte?);
        by_agent |= window
            .iter()
            .rev()
            .zip(BY_AGENT.iter().rev())
            .all(|(a, b)| a == b)
            && window.len() >= BY_AGENT.len();
        if window.iter().eq(BANNER) {
            return Ok(by_agent);
        }
    }
    Err(io::Error::other(
        "`dipole` did not start there; is it installed (--dipole PATH), and does the login work?",
    ))
}

/// Writes a message: its length (4 bytes, little endian), then the message encoded with postcard.
pub(super) fn write(message: &impl Serialize, to: &mut impl Write) -> io::Result<()> {
    // The length is filled in at the end.
    let mut bytes =
        postcard::to_extend(message, vec![0; LENGTH_BYTES]).map_err(io::Error::other)?;
    let length = bytes.len() - LENGTH_BYTES;
    let length = u32::try_from(length)
        .ok()
        .filter(|_| length <= MAX_MESSAGE_BYTES)
        .ok_or_else(|| io::Error::other("a message of more than 64 MiB"))?;
    bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads the next message; `None` at the end of the stream.
pub(super) fn read<M: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<M>> {
    while let Err(cause) = from.fill_buf() {
        if cause.kind() != io::ErrorKind::Interrupted {
            return Err(cause);
        }
    }
    if from.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut length = [0; LENGTH_BYTES];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_lists_blocks_of_ranks_by_node() {
        let mapping = |nodes: &[u32]| PmiJob::new(nodes).mapping;
        assert_eq!(mapping(&[1, 1, 1]), "(vector,(0,1,3))");
        assert_eq!(mapping(&[4, 4, 2, 4]), "(vector,(0,1,2),(1,1,1),(0,1,1))");
        assert_eq!(PmiJob::new(&[7, 8]).size, 2);
    }

    #[test]
    fn messages_read_back_as_written_and_a_cut_one_is_an_error() {
        let mut bytes = Vec::new();
        let ending = Ending::Signal(9);
        write(&ToLauncher::Exited { rank: 7, ending }, &mut bytes).unwrap();
        let output = ToLauncher::Output {
            rank: 1,
            stream: Stream::Stderr,
            bytes: b"x\ny".to_vec(),
        };
        write(&output, &mut bytes).unwrap();
        let mut from = &bytes[..];
        let first = read::<ToLauncher>(&mut from).unwrap().unwrap();
        assert!(matches!(first, ToLauncher::Exited { rank: 7, ending: e } if e == ending));
        let second = read::<ToLauncher>(&mut from).unwrap().unwrap();
        assert!(matches!(
            second,
            ToLauncher::Output { rank: 1, stream: Stream::Stderr, bytes } if bytes == b"x\ny"
        ));
        assert!(read::<ToLauncher>(&mut from).unwrap().is_none());
        let cut = bytes.len() - 1;
        let mut from = &bytes[..cut];
        read::<ToLauncher>(&mut from).unwrap();
        assert!(read::<ToLauncher>(&mut from).is_err());
    }

    #[test]
    fn the_banner_is_found_after_output_of_a_login_shell() {
        let mut stream = b"Welcome!\n\ndipole-shi\ndipole-shim".to_vec();
        stream.extend_from_slice(BANNER);
        stream.extend_from_slice(b"rest");
        let mut from = &stream[..];
        assert!(!skip_to_banner(&mut from).unwrap());
        assert_eq!(from, b"rest");
        let carried = [b"Welcome!", BY_AGENT, b"dipole: a warning", BANNER, b"rest"].concat();
        let mut from = &carried[..];
        assert!(skip_to_banner(&mut from).unwrap());
        assert_eq!(from, b"rest");
        assert!(skip_to_banner(&mut &b"sh: dipole: not found\n"[..]).is_err());
    }
}
