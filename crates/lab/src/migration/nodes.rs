//! Nodes with a part of a core each, on which others compute, and their agents.
//!
//! A node is a network namespace and a control group, whose quota is the speed of the node. All
//! processes of the node share it. Its agent finds a `/proc/loadavg` of the node, and one core.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dipole_launch::load::NodeLoad;
use dipole_testbed::Testbed;

use super::background::{Average, Change};

/// Speed of a core in Mflop/s that agents report, times the node's part of a core.
const CORE_SPEED: f64 = 2000.0;
/// Period of the quota. The kernel takes no quota below 1 ms.
const PERIOD_US: u32 = 10_000;
/// How often processes are counted for load averages.
const COUNT_EVERY: Duration = Duration::from_millis(100);
/// Time constant of load averages, in seconds of the thesis.
const AVERAGE_S: u32 = 300;
/// How long the agents may take to exchange their first tables.
const AGENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The control groups of all nodes.
struct Groups {
    folder: PathBuf,
    is_second: bool,
}

impl Groups {
    /// In version 1 or 2 of control groups, whichever has the controller of processors.
    fn new(nodes: u32) -> io::Result<Groups> {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let is_second = controllers.split_whitespace().any(|name| name == "cpu");
        let root = if is_second {
            root.to_owned()
        } else {
            root.join("cpu")
        };
        let folder = root.join(format!("dipole-lab-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let groups = Groups { folder, is_second };
        // For the scheduler a group is like one process, but this one has `nodes` of them at least.
        if is_second {
            fs::write(groups.folder.join("cgroup.subtree_control"), "+cpu")?;
            fs::write(groups.folder.join("cpu.weight"), (100 * nodes).to_string())?;
        } else {
            fs::write(groups.folder.join("cpu.shares"), (1024 * nodes).to_string())?;
        }
        Ok(groups)
    }

    /// Adds a node with a part of a core.
    fn add(&self, name: &str, part: f64) -> io::Result<()> {
        let folder = self.folder.join(name);
        fs::create_dir(&folder)?;
        let quota = (f64::from(PERIOD_US) * part).round();
        if self.is_second {
            return fs::write(folder.join("cpu.max"), format!("{quota} {PERIOD_US}"));
        }
        fs::write(folder.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
        fs::write(folder.join("cpu.cfs_quota_us"), format!("{quota}"))
    }

    /// The folder as processes in network namespaces reach it: `ip netns exec` mounts another `/sys`.
    fn folder_from_nodes(&self) -> String {
        format!("/proc/{}/root{}", std::process::id(), self.folder.display())
    }

    /// Number of processes of a node that run or want to.
    fn running(&self, name: &str) -> usize {
        let processes = fs::read_to_string(self.folder.join(name).join("cgroup.procs"));
        let processes = processes.unwrap_or_default();
        let runs = |process: &&str| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned());
            state.is_some_and(|rest| rest.starts_with('R'))
        };
        processes.lines().filter(runs).count()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Processes that were just killed may still be there.
        for _ in 0..100 {
            for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
                let _stays = fs::remove_dir(entry.path());
            }
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Processes that are killed when this is dropped.
#[derive(Default)]
struct Children(Vec<Child>);

impl Children {
    fn shrink(&mut self, count: usize) {
        while self.0.len() > count {
            if let Some(mut child) = self.0.pop() {
                let _gone = child.kill();
                let _gone = child.wait();
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// The nodes with their agents, and a remote shell that leads to them.
pub(super) struct Nodes {
    // Dropped first, so that the groups are empty.
    agents: Children,
    testbed: Testbed,
    groups: Arc<Groups>,
    parts: Vec<f64>,
    dipole: PathBuf,
    /// The length of a second of the thesis.
    scale: Duration,
    averages: Arc<Mutex<Vec<Average>>>,
}

impl Nodes {
    /// Nodes with these parts of a core, and agents once [`start_agents`](Self::start_agents) is called.
    pub(super) fn new(
        parts: &[f64],
        dipole: &Path,
        scale: Duration,
    ) -> Result<Nodes, Box<dyn std::error::Error>> {
        let count = u32::try_from(parts.len())?;
        let testbed = Testbed::builder().nodes(count).build()?;
        let groups = Groups::new(count).map_err(|cause| {
            format!("cannot create control groups for processors in /sys/fs/cgroup: {cause}")
        })?;
        for (node, part) in (1..).zip(parts) {
            groups.add(&testbed.node(node).namespace, *part)?;
        }
        let shell = format!(
            "#!/bin/sh\ndest=$1\nshift\necho $$ > {}/$dest/cgroup.procs || exit 1\n\
             exec ip netns exec \"$dest\" sh -c \"$*\"\n",
            groups.folder_from_nodes()
        );
        fs::write(testbed.remote_shell(), shell)?;
        // The number of processors that the agents find.
        fs::write(
            testbed.folder().join("stat"),
            "cpu  0 0 0 0\ncpu0 0 0 0 0\n",
        )?;
        let average = Average::new(0, scale * AVERAGE_S);
        let nodes = Nodes {
            agents: Children::default(),
            testbed,
            groups: Arc::new(groups),
            parts: parts.to_vec(),
            dipole: dipole.to_owned(),
            scale,
            averages: Arc::new(Mutex::new(vec![average; parts.len()])),
        };
        nodes.write_averages()?;
        Ok(nodes)
    }

    pub(super) fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    fn name(&self, index: usize) -> &str {
        &self.testbed.node(number(index)).namespace
    }

    fn average_file(&self, index: usize) -> PathBuf {
        self.testbed.folder().join(format!("loadavg-{index}"))
    }

    fn write_averages(&self) -> io::Result<()> {
        let averages = self.averages.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, average) in averages.iter().enumerate() {
            fs::write(self.average_file(index), average.line())?;
        }
        Ok(())
    }

    /// Starts the agents; returns when the first one has the rows of all nodes.
    pub(super) fn start_agents(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let stat = self.testbed.folder().join("stat");
        let seconds = |thesis: u32| (self.scale * thesis).as_secs_f64().max(0.1);
        let every = format!("{:.2}-{:.2}", seconds(180), seconds(300));
        for (index, part) in self.parts.iter().enumerate() {
            let speed = (CORE_SPEED * part).round().max(1.0);
            let mut command = self.testbed.command(number(index), "sh");
            // `ip netns exec` gives each process mounts of its own.
            let script = "mount --bind \"$1\" /proc/loadavg && mount --bind \"$2\" /proc/stat && \
                          shift 2 && exec \"$@\"";
            command
                .args(["-c", script, "sh"])
                .arg(self.average_file(index))
                .arg(&stat)
                .arg(&self.dipole)
                .args([
                    "agent",
                    "--load-every",
                    &every,
                    "--speed",
                    &speed.to_string(),
                ])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            self.agents.0.push(command.spawn()?);
        }
        let begun = Instant::now();
        while self.loads().len() < self.parts.len() {
            if begun.elapsed() > AGENT_TIMEOUT {
                return Err("the agents have not exchanged their loads within a minute".into());
            }
            thread::sleep(COUNT_EVERY);
        }
        Ok(())
    }

    /// The table of the first agent, best node first.
    pub(super) fn loads(&self) -> Vec<NodeLoad> {
        let mut command = self.testbed.command(1, &self.dipole);
        let output = command.args(["--json", "load"]).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let rows = text.lines().map(serde_json::from_str);
        rows.collect::<Result<_, _>>().unwrap_or_default()
    }

    /// Lets others compute from now on, until the result is dropped. Load averages begin as after a
    /// long time with the first state.
    pub(super) fn begin_background(&self, changes: &[Change]) -> io::Result<BackgroundLoad> {
        {
            let mut averages = self.averages.lock().unwrap_or_else(PoisonError::into_inner);
            for change in changes.iter().filter(|change| change.at.is_zero()) {
                let constant = self.scale * AVERAGE_S;
                averages[change.node] = Average::new(change.processes, constant);
            }
        }
        self.write_averages()?;
        let stop = Arc::new(AtomicBool::new(false));
        let names: Vec<String> = (0..self.parts.len())
            .map(|index| self.name(index).to_owned())
            .collect();
        let files = (0..self.parts.len()).map(|index| self.average_file(index));
        let work = Work {
            stop: Arc::clone(&stop),
            groups: Arc::clone(&self.groups),
            averages: Arc::clone(&self.averages),
            files: files.collect(),
            names,
            changes: changes.to_vec(),
        };
        let thread = thread::spawn(move || work.run());
        Ok(BackgroundLoad {
            stop,
            thread: Some(thread),
        })
    }
}

/// The number of a node in the testbed.
fn number(index: usize) -> u32 {
    u32::try_from(index + 1).unwrap_or(u32::MAX)
}

/// The work of others, which ends when this is dropped.
pub(super) struct BackgroundLoad {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for BackgroundLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Starts and ends the processes of others, and writes the load averages.
struct Work {
    stop: Arc<AtomicBool>,
    groups: Arc<Groups>,
    averages: Arc<Mutex<Vec<Average>>>,
    files: Vec<PathBuf>,
    names: Vec<String>,
    changes: Vec<Change>,
}

impl Work {
    fn run(self) {
        let begun = Instant::now();
        let mut others: Vec<Children> = self.names.iter().map(|_| Children::default()).collect();
        let mut changes = self.changes.iter().peekable();
        let mut counted = begun;
        while !self.stop.load(Ordering::Relaxed) {
            while let Some(change) = changes.next_if(|change| change.at <= begun.elapsed()) {
                self.set(&mut others[change.node], change);
            }
            thread::sleep(COUNT_EVERY);
            let passed = counted.elapsed();
            counted += passed;
            let mut averages = self.averages.lock().unwrap_or_else(PoisonError::into_inner);
            for ((average, name), file) in averages.iter_mut().zip(&self.names).zip(&self.files) {
                average.add(self.groups.running(name), passed);
                // The next one will do if this one cannot be written.
                let _lost = fs::write(file, average.line());
            }
        }
    }

    fn set(&self, others: &mut Children, change: &Change) {
        let count = change.processes as usize;
        others.shrink(count);
        let name = &self.names[change.node];
        let group = format!("{}/{name}/cgroup.procs", self.groups.folder_from_nodes());
        while others.0.len() < count {
            // In the node's namespace, so that the testbed ends it if this program is killed.
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", name, "sh", "-c"])
                .arg("echo $$ > \"$0\" && while :; do :; done")
                .arg(&group)
                .stdin(Stdio::null());
            let Ok(child) = command.spawn() else { return };
            others.0.push(child);
        }
    }
}
