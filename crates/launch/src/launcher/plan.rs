//! Data that ranks need to start: common to a job, and specific to each host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use dipole_naming::environment::default_runtime_dir;
use dipole_naming::key::random_bytes;
use dipole_node::job::write_ranks;
use dipole_node::{ClusterKey, NodeId, variables};

use super::checkpoint::JobCheckpoints;
use super::memory::Kept;
use crate::binding::Binding;
use crate::guard::FOLDER;
use crate::host::Contact;
use crate::message::{Images, LocalRank, PmiJob, RankStart, Secret, Start};
use crate::{HostsFile, Program, RunArgs, RunError};

/// Variable with the number of earlier starts of a rank.
pub(super) const RESTARTS: &str = "DIPOLE_RESTARTS";

pub(super) struct Plan {
    /// Number of the job's links, and the first endpoint.
    job: (u64, u32),
    /// The programs with their arguments.
    commands: Vec<Vec<OsString>>,
    /// Program and position of each rank.
    ranks: Vec<RankStart>,
    pmi: PmiJob,
    binding: Binding,
    environment: BTreeMap<String, OsString>,
    directory: PathBuf,
    directory_required: bool,
    /// Text of the hosts file, if there is one.
    hosts: Option<String>,
    /// The cluster key, if ranks get it from here. It follows changes of its file.
    key: Option<ClusterKey>,
    /// The images that the ranks continue from.
    images: Option<Images>,
    /// Images are kept in the memory of the hosts.
    in_memory: Option<Kept>,
}

impl Plan {
    /// A new job whose rank r is on `nodes[r]`.
    pub(super) fn new(
        args: &RunArgs,
        hosts: &HostsFile,
        checkpoints: Option<&JobCheckpoints>,
        nodes: &[NodeId],
    ) -> Result<Plan, RunError> {
        let system = |doing| move |cause| RunError::System { doing, cause };
        let random: [u8; 8] = random_bytes().map_err(system("drawing a job number"))?;
        let id = u64::from_le_bytes(random);
        // Launchers use the upper half; two jobs at the same time get different parts of it.
        let base = 0x8000_0000 | (u32::from(u16::from_le_bytes([random[0], random[1]]) >> 1) << 16);
        let mut environment = given_environment(&args.environment);
        for (name, value) in [
            ("DIPOLE_JOB", id.to_string()),
            ("DIPOLE_JOB_BASE", base.to_string()),
            ("DIPOLE_SIZE", nodes.len().to_string()),
            ("DIPOLE_RANKS", write_ranks(nodes)),
        ] {
            environment.insert(name.to_owned(), value.into());
        }
        if let Some(checkpoints) = checkpoints {
            environment.extend(checkpoints.environment());
        }
        // A user who passes the variable on refers to a file that exists on each host.
        let key = hosts.key.clone();
        let key = key.filter(|_| !environment.contains_key(variables::KEY));
        Ok(Plan {
            job: (id, base),
            commands: args
                .programs
                .iter()
                .map(|one| one.command.clone())
                .collect(),
            ranks: positions(&args.programs, nodes),
            pmi: PmiJob::new(nodes),
            binding: args.binding,
            environment,
            directory: match &args.wdir {
                Some(given) => std::path::absolute(given),
                None => std::env::current_dir(),
            }
            .map_err(system("finding the directory"))?,
            directory_required: args.wdir.is_some(),
            hosts: hosts.text.clone(),
            key,
            images: checkpoints.and_then(JobCheckpoints::images),
            in_memory: checkpoints.and_then(|it| it.kept(base, nodes)),
        })
    }

    /// Number of the job's links, and the first endpoint.
    pub(super) fn job(&self) -> (u64, u32) {
        self.job
    }

    /// Lets the ranks that are started from now on continue from images.
    pub(super) fn set_images(&mut self, images: Option<Images>) {
        self.images = images;
    }

    /// The current content of the key file.
    pub(super) fn key(&self) -> Option<String> {
        self.key.as_ref().map(ClusterKey::text)
    }

    /// The start message for the shim of a host; `restarts` is the number of earlier starts.
    pub(super) fn start(&self, contact: &Contact, ranks: Vec<u32>, restarts: u32) -> Start {
        let host = &contact.host;
        let mut environment = self.environment.clone();
        let mut set = |name: &str, value: OsString| environment.insert(name.to_owned(), value);
        set("DIPOLE_NID", host.node.to_string().into());
        if restarts > 0 {
            set(RESTARTS, restarts.to_string().into());
        }
        let kept = self.in_memory.as_ref();
        let in_memory = kept.map(|kept| kept.on_host(host.node, &ranks));
        let mut images = self.images.clone();
        if let Some(here) = &in_memory {
            set(FOLDER, here.folder.clone().into());
            if let Some(images) = &mut images {
                images.folder.clone_from(&here.folder);
            }
        }
        if let Some(given) = &host.runtime_dir {
            set("DIPOLE_RUNTIME_DIR", given.to_string().into());
        } else if self.hosts.is_none() {
            set("DIPOLE_RUNTIME_DIR", default_runtime_dir().into());
        }
        Start {
            ranks: ranks
                .iter()
                .map(|rank| self.ranks[*rank as usize])
                .collect(),
            commands: self.commands.clone(),
            binding: self.binding,
            environment,
            directory: self.directory.clone(),
            directory_required: self.directory_required,
            hosts: self.hosts.clone(),
            // Ranks started by an agent use its key file: the call has proven that the agent holds
            // a key, but not that it holds both keys during a rotation.
            key: self.key().filter(|_| !contact.by_agent).map(Secret),
            uses_agent_key: contact.by_agent && self.key.is_some(),
            pmi: self.pmi.clone(),
            images,
            in_memory,
        }
    }
}

/// Program of each rank, and its position among the ranks of its node.
fn positions(programs: &[Program], nodes: &[NodeId]) -> Vec<RankStart> {
    let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
    let runs = (0..)
        .zip(programs)
        .flat_map(|(index, one)| std::iter::repeat_n(index, one.ranks as usize));
    let ranks = (0..).zip(nodes).zip(runs).map(|((rank, node), program)| {
        let count = counts.entry(*node).or_default();
        *count += 1;
        RankStart {
            rank,
            program,
            local: LocalRank {
                index: *count - 1,
                count: 0,
            },
        }
    });
    let mut ranks: Vec<RankStart> = ranks.collect();
    for (one, node) in ranks.iter_mut().zip(nodes) {
        one.local.count = counts[node];
    }
    ranks
}

/// Variables that refer to this machine, user or login and are not passed to other hosts.
const MACHINE_VARIABLES: [&str; 16] = [
    "HOME",
    "HOSTNAME",
    "LOGNAME",
    "MAIL",
    "OLDPWD",
    "PATH",
    "PWD",
    "SHELL",
    "SHLVL",
    "TERM",
    "TMPDIR",
    "TTY",
    "USER",
    "XAUTHORITY",
    "DISPLAY",
    "_",
];
/// Prefixes of further such variables.
const LOGIN_PREFIXES: [&str; 8] = [
    "SSH_",
    "XDG_",
    "DBUS_",
    "SYSTEMD_",
    "NOTIFY_",
    "LISTEN_",
    "INVOCATION_",
    "WAYLAND_",
];
/// Variables of Dipole that refer to this machine, without their prefix.
const MACHINE_OPTIONS: [&str; 6] = ["NID", "RUNTIME_DIR", "HOSTS", "BIND", "CAPTURE", "KEY"];

/// The environment of all ranks, however their host is reached: the environment of this process
/// without variables that refer to this machine, and the variables of `--env`.
fn given_environment(names: &[String]) -> BTreeMap<String, OsString> {
    let mut environment = BTreeMap::new();
    for given in names {
        match given.split_once('=') {
            Some((name, value)) => {
                environment.insert(name.to_owned(), OsString::from(value));
            }
            None => {
                if let Some(value) = std::env::var_os(given) {
                    environment.insert(given.clone(), value);
                }
            }
        }
    }
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else {
            continue;
        };
        if is_portable(&name) {
            environment.entry(name).or_insert(value);
        }
    }
    environment
}

fn is_portable(name: &str) -> bool {
    !match name.strip_prefix("DIPOLE_") {
        Some(rest) => MACHINE_OPTIONS.contains(&rest),
        None => {
            MACHINE_VARIABLES.contains(&name)
                || LOGIN_PREFIXES.iter().any(|login| name.starts_with(login))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_run_the_programs_in_order_and_know_their_places() {
        let program = |ranks| Program {
            ranks,
            command: Vec::new(),
        };
        let nodes = [1, 1, 2, 1].map(NodeId);
        let placed = super::positions(&[program(1), program(3)], &nodes);
        let position = |one: &RankStart| (one.program, (one.local.index, one.local.count));
        let positions: Vec<_> = placed.iter().map(position).collect();
        assert_eq!(
            positions,
            [(0, (0, 3)), (1, (1, 3)), (1, (0, 1)), (1, (2, 3))]
        );
        assert_eq!(placed[3].rank, 3);
    }

    #[test]
    fn what_means_something_else_on_another_machine_stays_here() {
        for name in ["FOO", "DIPOLE_LINK", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"] {
            assert!(is_portable(name), "{name}");
        }
        for name in [
            "HOME",
            "PATH",
            "DIPOLE_NID",
            "DIPOLE_KEY",
            "SSH_AUTH_SOCK",
            "_",
        ] {
            assert!(!is_portable(name), "{name}");
        }
    }
}
