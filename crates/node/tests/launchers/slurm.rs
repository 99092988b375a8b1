//! A private Slurm cluster on this machine: munged, slurmctld, and a slurmd per node name. All of
//! them end when this value is dropped.

use std::fmt::Write;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the following command in new mount and process namespaces, whose processes end with
/// `unshare`.
const APART: [&str; 6] = [
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

pub(crate) struct Cluster {
    nodes: usize,
    daemons: Vec<(String, Child)>,
    folder: TempDir,
}

/// Slurm's daemons need root, and node names that are not used elsewhere.
pub(crate) fn may_start() -> bool {
    let apart = ending_with_us().args(APART).arg("true").output();
    let may = rustix::process::geteuid().is_root() && apart.is_ok_and(|done| done.status.success());
    if !may {
        eprintln!("SKIPPED: Slurm's daemons need root and namespaces (unshare --mount --pid)");
    }
    may
}

impl Cluster {
    pub(crate) fn start(nodes: usize) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // Job steps must be able to reach the socket and the program's files.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let names: Vec<String> = (1..=nodes).map(|node| format!("n{node}")).collect();
        let system_hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let own_hosts = format!("127.0.0.1 localhost {}\n{system_hosts}", names.join(" "));
        std::fs::write(at("hosts"), own_hosts).unwrap();
        std::fs::write(at("slurm.conf"), configuration(folder.path(), &names)).unwrap();
        std::fs::write(at("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
        std::fs::write(at("key"), [0x5a; 64]).unwrap();
        std::fs::set_permissions(at("key"), Permissions::from_mode(0o600)).unwrap();
        std::fs::create_dir(at("user")).unwrap();
        std::fs::set_permissions(at("user"), Permissions::from_mode(0o700)).unwrap();
        let mut cluster = Cluster {
            nodes,
            daemons: Vec::new(),
            folder,
        };
        cluster.daemon("munged", &mut munged(cluster.folder()));
        let socket = cluster.folder().join("munge.socket");
        cluster.wait_until("munged answers", || socket.exists());
        let mut controller = ending_with_us();
        controller.args(APART).args(["slurmctld", "-D", "-c"]);
        cluster.daemon("slurmctld", &mut controller);
        for name in &names {
            let mut node = ending_with_us();
            // Root's jobs use another directory, so that none is left behind.
            node.args(APART).args(["sh", "-c"]).arg(format!(
                "mkdir -p -m 0700 /tmp/dipole-0 {at}/tmp-{name} && mount --bind {at}/user /tmp/dipole-0 && \
                 mount --bind {at}/hosts /etc/hosts && exec slurmd -D -N {name}",
                at = cluster.folder().display()
            ));
            cluster.daemon(&format!("slurmd-{name}"), &mut node);
        }
        cluster.wait_until("all nodes are idle", || {
            let mut list = Command::new("sinfo");
            list.args(["-h", "-N", "-o", "%N %t"]);
            let listed = cluster.with_environment(&mut list).output().unwrap();
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            listed
                .lines()
                .filter(|line| line.ends_with(" idle"))
                .count()
                == nodes
        });
        cluster
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `srun` with a time limit.
    pub(crate) fn srun(&self) -> Command {
        let mut command = super::clean("srun");
        self.with_environment(&mut command);
        command.args(["--time=2", "--kill-on-bad-exit", "--overcommit"]);
        command.arg(format!("--chdir={}", self.folder().display()));
        command
    }

    /// True if Slurm has the plugin for PMIx.
    pub(crate) fn has_pmix(&self) -> bool {
        let mut list = super::clean("srun");
        let listed = self.with_environment(list.arg("--mpi=list")).output();
        let listed = listed.unwrap();
        let said = [listed.stdout, listed.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        said.split_whitespace().any(|word| word == "pmix")
    }

    /// `sbatch` of a script with this text on three nodes, whose output goes to `out`.
    pub(crate) fn sbatch(&self, text: &str) -> Command {
        let script = self.folder().join("script");
        std::fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
        let mut command = super::clean("sbatch");
        self.with_environment(&mut command);
        command.args(["--time=2", "--overcommit", "-N3", "-n6", "--parsable"]);
        command.arg(format!("--chdir={}", self.folder().display()));
        command.arg(format!("--output={}", self.log("out").display()));
        command.arg("--wait").arg(script);
        command
    }

    /// Cancels all jobs.
    pub(crate) fn scancel(&self) {
        let mut command = super::clean("scancel");
        self.with_environment(command.arg("--user=root"));
        assert!(command.status().unwrap().success());
    }

    fn with_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("SLURM_CONF", self.folder().join("slurm.conf"))
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .stdin(Stdio::null())
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder().join(format!("{name}.out"))
    }

    fn daemon(&mut self, name: &str, command: &mut Command) {
        let log = std::fs::File::create(self.log(name)).unwrap();
        let child = self
            .with_environment(command)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemons.push((name.to_owned(), child));
    }

    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_so() {
            if started.elapsed() > PATIENCE {
                let mut said = String::new();
                for (name, _) in &self.daemons {
                    let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
                    let _ = writeln!(said, "{name}:\n{log}");
                }
                panic!(
                    "not within {PATIENCE:?}: {what} ({} nodes)\n{said}",
                    self.nodes
                );
            }
            // The daemons do not report when they are ready.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Slurmd first: its processes end with the first process of their namespace, which
        // `unshare` waits for.
        for (_, daemon) in self.daemons.iter_mut().rev() {
            let child = only_child(daemon.id());
            if child.is_none_or(|child| kill_process(child, Signal::KILL).is_err()) {
                let _ = daemon.kill();
            }
            let _ = daemon.wait();
        }
    }
}

fn only_child(process: u32) -> Option<Pid> {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(children).ok()?;
    Pid::from_raw(children.trim().parse().ok()?)
}

/// Starts another program that is killed when this process ends.
fn ending_with_us() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command
}

fn munged(folder: &Path) -> Command {
    let mut command = ending_with_us();
    command.args(["munged", "--foreground", "--force"]);
    for (option, file) in [
        ("key-file", "key"),
        ("socket", "munge.socket"),
        ("pid-file", "munged.pid"),
        ("seed-file", "munged.seed"),
        ("log-file", "munged.log"),
    ] {
        command.arg(format!("--{option}={}", folder.join(file).display()));
    }
    command
}

fn configuration(folder: &Path, names: &[String]) -> String {
    // All are open at once, so that their ports differ.
    let listeners: Vec<TcpListener> = (0..=names.len())
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let mut ports = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().port());
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let host = host.split('.').next().unwrap_or_default();
    let at = folder.display();
    let mut text = format!(
        "ClusterName=dipole\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={}\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={at}/munge.socket\n\
         CredType=cred/munge\n\
         StateSaveLocation={at}/state\n\
         SlurmdSpoolDir={at}/spool-%n\n\
         TmpFS={at}/tmp-%n\n\
         SlurmctldPidFile={at}/slurmctld.pid\n\
         SlurmdPidFile={at}/slurmd-%n.pid\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         SwitchType=switch/none\n\
         MpiDefault=none\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\n\
         SlurmdParameters=config_overrides\n\
         ReturnToService=2\n\
         InactiveLimit=0\n",
        ports.next().unwrap_or_default()
    );
    for (name, port) in names.iter().zip(ports) {
        let _ = writeln!(
            text,
            "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN"
        );
    }
    let _ = writeln!(
        text,
        "PartitionName=all Nodes={} Default=YES State=UP OverSubscribe=YES",
        names.join(",")
    );
    text
}
