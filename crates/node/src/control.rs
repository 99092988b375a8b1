//! The control thread: what touches files or waits, done outside the engine's lock.
//!
//! The engine and the handles of a node post commands, which never blocks; the thread
//! takes them in order. It knows the registry and other nodes' directories, and nothing of packets. Commands wait in
//! an unbounded queue, but each kind is posted a bounded number of times: a few a
//! second, or once per endpoint or process.

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
use crate::key::ClusterKey;
use crate::links::LinkChoice;
use crate::liveness::LivenessProber;
use crate::owner::EndpointOwner;
use crate::process::ProcessState;
use crate::progress::ProgressThread;
use crate::registry::{EdgeStatsFile, Registry, ReportFiles};
use crate::report::Report;

/// Between two looks at the cluster key's file while nothing else happens.
const KEY_LOOKS: Duration = Duration::from_secs(5);

/// What the control thread is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// By the engine.
    Engine(EngineCommand),
    /// This endpoint may be ended by the last copy of its descriptor being closed.
    Exported(Weak<EndpointOwner>),
    /// End the thread.
    Stop,
}

/// Where commands are posted.
#[derive(Clone, Debug)]
pub(crate) struct Commands(Sender<Command>);

impl Commands {
    /// Never blocks. After the thread's end nothing happens.
    pub(crate) fn post(&self, command: Command) {
        // The thread ends only with its node, whose files go with it.
        let _ended = self.0.send(command);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) commands: Commands,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Starts the thread.
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
        let mut server = Server {
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
        };
        server.show_counters();
        let thread = std::thread::Builder::new()
            .name("dipole-control".into())
            .spawn(move || server.run(&commands))?;
        let posted = sender.clone();
        driver.with_last(|state, _| {
            let post = move |command| posted.post(Command::Engine(command));
            state.engine.set_control(post);
        });
        Ok(Control {
            commands: sender,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Ends the thread and waits for its end.
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

/// What the thread owns.
struct Server {
    registry: Registry,
    prober: LivenessProber<PeerId>,
    /// None once it could not be written.
    statistics: Option<EdgeStatsFile>,
    /// None once it could not be written.
    report: Option<Report>,
    /// The cluster key, and how many withdrawals of it the engine knows.
    key: Option<(ClusterKey, u64)>,
    exported: FxHashMap<EndpointId, Weak<EndpointOwner>>,
    driver: Arc<Driver<ProcessState>>,
    progress: Arc<ProgressThread>,
}

impl Server {
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let now_ns = self.driver.now().0;
            let at_ns = self.prober.next_deadline_ns();
            let probes_in = at_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
            let looks_in = self.key.as_ref().map(|_| KEY_LOOKS);
            let command = match probes_in.into_iter().chain(looks_in).min() {
                None => commands.recv().map_err(RecvTimeoutError::from),
                Some(left) => commands.recv_timeout(left),
            };
            self.look_at_key();
            match command {
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => self.obey(command),
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

    fn obey(&mut self, command: Command) {
        match command {
            Command::Engine(command) => self.obey_engine(command),
            Command::Exported(owner) => {
                if let Some(id) = owner.upgrade().map(|owner| owner.id) {
                    self.exported.retain(|_, known| known.strong_count() > 0);
                    self.exported.insert(id, owner);
                }
            }
            // The loop's own.
            Command::Stop => {}
        }
    }

    fn obey_engine(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Show => {
                self.show_edges();
                self.show_counters();
            }
            EngineCommand::Sweep => {
                if let Err(cause) = self.registry.sweep() {
                    tracing::warn!("the files of a process that died are left: {cause}");
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
            EngineCommand::Serve => {
                if let Err(cause) = self.progress.start(&self.driver) {
                    tracing::warn!("peers wait until this process makes a call: {cause}");
                }
            }
        }
    }

    /// What peers have proven with a key that was withdrawn they must prove again.
    fn look_at_key(&mut self) {
        if let Some((key, known)) = &mut self.key
            && key.withdrawals() != *known
        {
            *known = key.withdrawals();
            self.driver.with(|state, now| state.renew_proofs(now));
        }
    }

    fn show_edges(&mut self) {
        let Some(file) = self.statistics.as_mut().filter(|file| file.is_watched()) else {
            return;
        };
        let edges: Vec<_> = self.driver.with_last(|state, _| state.all_edges());
        if let Err(cause) = file.write(edges.into_iter()) {
            tracing::warn!("edges are not shown to who watches: {cause}");
            self.statistics = None;
        }
    }

    fn show_counters(&mut self) {
        let Some(Err(cause)) = self.report.as_mut().map(|it| it.show(&self.driver)) else {
            return;
        };
        tracing::warn!("`dipole stats` and `dipole links` won't know of this process: {cause}");
        self.report = None;
    }
}
