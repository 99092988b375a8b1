//! The control thread: file access and blocking work outside the engine's lock.
//!
//! The engine and the node's handles post commands without blocking, and the thread executes them
//! in order. It uses the registry and other nodes' directories, never packets. The queue is
//! unbounded, but each kind of command is posted at a bounded rate: a few times per second, or
//! once per endpoint or process.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use dipole_driver::Driver;
use dipole_engine::Command as EngineCommand;
use dipole_proto::PeerId;
use rustc_hash::FxHashMap;

use crate::address::EndpointId;
use crate::config::Config;
use crate::job::{Job, watch_failures};
use crate::key::ClusterKey;
use crate::links::LinkChoice;
use crate::liveness::LivenessProber;
use crate::owner::EndpointOwner;
use crate::process::ProcessState;
use crate::progress::ProgressThread;
use crate::registry::{EdgeStatsFile, Registry, ReportFiles};
use crate::report::Report;

/// Pause before the progress thread is started again when threads are short.
const THREAD_RETRY: Duration = Duration::from_millis(50);
/// Interval for checking the cluster key's file.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A command to the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// A command from the engine.
    Engine(EngineCommand),
    /// Watch for the last copy of this endpoint's descriptor being closed.
    Exported(Weak<EndpointOwner>),
    /// The launcher reports that this rank has failed.
    RankFailed(u32),
    /// Stops the thread.
    Stop,
}

/// The sending end of the command queue.
#[derive(Clone, Debug)]
pub(crate) struct Commands(Sender<Command>);

impl Commands {
    /// Posts a command without blocking. Returns false, and does nothing, after the thread has stopped.
    pub(crate) fn post(&self, command: Command) -> bool {
        // The thread stops only with its node, whose files are removed with it.
        self.0.send(command).is_ok()
    }
}

/// Handle of the control thread.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) commands: Commands,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    pub(crate) fn start(
        registry: &Registry,
        config: &Config,
        incarnation: u64,
        choice: LinkChoice,
        driver: &Arc<Driver<ProcessState>>,
        progress: &Arc<ProgressThread>,
    ) -> io::Result<Control> {
        let (sender, commands) = channel();
        let sender = Commands(sender);
        let files = ReportFiles::new(registry, incarnation);
        let mut control_thread = ControlThread {
            registry: registry.clone(),
            prober: LivenessProber::new(registry.clone(), config.hosts.clone()),
            statistics: Some(EdgeStatsFile::new(registry, incarnation)),
            report: Some(Report::new(files, registry.node(), choice)),
            key: config
                .key
                .as_ref()
                .map(|key| (key.clone(), key.withdrawals())),
            exported: FxHashMap::default(),
            driver: Arc::clone(driver),
            progress: Arc::clone(progress),
            lacks_progress: false,
        };
        control_thread.publish_counters();
        let thread = std::thread::Builder::new()
            .name("dipole-control".into())
            .spawn(move || control_thread.run(&commands))?;
        let posted = sender.clone();
        driver.with_last(|state, _| {
            let post = move |command| {
                posted.post(Command::Engine(command));
            };
            state.engine.set_control(post);
        });
        let posted = sender.clone();
        watch_failures(move |rank| posted.post(Command::RankFailed(rank)));
        Ok(Control {
            commands: sender,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Stops the thread and waits for it.
    pub(crate) fn stop(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            self.commands.post(Command::Stop);
            if thread.join().is_err() {
                tracing::error!("the control thread panicked");
            }
        }
    }
}

/// State of the control thread.
struct ControlThread {
    registry: Registry,
    prober: LivenessProber<PeerId>,
    /// `None` after a write error.
    statistics: Option<EdgeStatsFile>,
    /// `None` after a write error.
    report: Option<Report>,
    /// The cluster key, and how many of its withdrawals the engine has seen.
    key: Option<(ClusterKey, u64)>,
    exported: FxHashMap<EndpointId, Weak<EndpointOwner>>,
    driver: Arc<Driver<ProcessState>>,
    progress: Arc<ProgressThread>,
    /// The progress thread is needed, but threads were short.
    lacks_progress: bool,
}

impl ControlThread {
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let now_ns = self.driver.now().0;
            let at_ns = self.prober.next_deadline_ns();
            let probes_in = at_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
            let key_check_in = self.key.as_ref().map(|_| KEY_CHECK_INTERVAL);
            let retry_in = self.lacks_progress.then_some(THREAD_RETRY);
            let timeouts = [probes_in, key_check_in, retry_in];
            let command = match timeouts.into_iter().flatten().min() {
                None => commands.recv().map_err(RecvTimeoutError::from),
                Some(left) => commands.recv_timeout(left),
            };
            self.check_key();
            if self.lacks_progress {
                self.start_progress();
            }
            match command {
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => self.execute(command),
                Err(RecvTimeoutError::Timeout) => {
                    let driver = &self.driver;
                    let now_ns = driver.now().0;
                    self.prober.poll(now_ns, |peer, verdict| {
                        driver.with(|state, now| state.judge(now, peer, verdict));
                    });
                }
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Engine(command) => self.obey_engine(command),
            Command::Exported(owner) => {
                if let Some(id) = owner.upgrade().map(|owner| owner.id) {
                    self.exported.retain(|_, known| known.strong_count() > 0);
                    self.exported.insert(id, owner);
                }
            }
            Command::RankFailed(rank) => self.give_up_rank(rank),
            // `run` handles this command.
            Command::Stop => {}
        }
    }

    fn obey_engine(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::PublishStats => {
                self.publish_edges();
                self.publish_counters();
            }
            EngineCommand::Sweep => {
                if let Err(cause) = self.registry.sweep() {
                    tracing::warn!("cannot remove the files of a process that died: {cause}");
                }
            }
            EngineCommand::EndEndpoint(id) => {
                let owner = self.exported.remove(&id);
                if let Some(owner) = owner.and_then(|owner| owner.upgrade()) {
                    owner.end();
                }
            }
            EngineCommand::Suspect {
                peer,
                node,
                incarnation,
            } => {
                let now_ns = self.driver.now().0;
                let known = self.prober.suspect(peer, node, incarnation, now_ns);
                if let Some(verdict) = known {
                    self.driver
                        .with(|state, now| state.judge(now, peer, verdict));
                }
            }
            EngineCommand::StartProgressThread => {
                self.start_progress();
            }
        }
    }

    /// Ends the sessions with a rank of another node that has failed. Those of this node are noticed
    /// sooner, with all that they have sent.
    fn give_up_rank(&self, rank: u32) {
        let Ok(job) = Job::from_env() else {
            return;
        };
        if let Some(address) = job.addresses.get(rank as usize) {
            self.driver
                .with(|state, now| state.give_up_process(now, *address));
        }
    }

    /// Starts the progress thread; tries again later if threads are short.
    fn start_progress(&mut self) {
        let started = self.progress.start(&self.driver);
        let was_short = std::mem::replace(&mut self.lacks_progress, started.is_err());
        if let (Err(cause), false) = (started, was_short) {
            tracing::warn!(
                "peers must wait until this process makes a call or can start a thread: {cause}"
            );
        }
    }

    /// After a withdrawal of the cluster key, peers must prove their membership again.
    fn check_key(&mut self) {
        if let Some((key, known)) = &mut self.key
            && key.withdrawals() != *known
        {
            *known = key.withdrawals();
            self.driver.with(|state, now| state.renew_proofs(now));
        }
    }

    fn publish_edges(&mut self) {
        let Some(file) = self.statistics.as_mut().filter(|file| file.is_watched()) else {
            return;
        };
        let edges: Vec<_> = self.driver.with_last(|state, _| state.all_edges());
        if let Err(cause) = file.write(edges.into_iter()) {
            tracing::warn!("edge statistics are no longer published: {cause}");
            self.statistics = None;
        }
    }

    fn publish_counters(&mut self) {
        let Some(Err(cause)) = self.report.as_mut().map(|it| it.publish(&self.driver)) else {
            return;
        };
        tracing::warn!("`dipole stats` and `dipole links` will not show this process: {cause}");
        self.report = None;
    }
}
