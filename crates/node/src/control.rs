//! The control thread: what touches files or waits, done outside the engine's lock.
//!
//! The engine and the handles of a node post commands, which never blocks; the thread
//! takes them in order. It knows the registry and nothing of packets. Commands wait in
//! an unbounded queue, but each kind is posted a bounded number of times: a few a
//! second, or once per endpoint or process.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use rustc_hash::FxHashMap;

use crate::address::EndpointId;
use crate::driver::Driver;
use crate::endpoint::EndpointOwner;
use crate::process::ProcessState;
use crate::registry::{EdgeStatsFile, Registry};

/// What the control thread is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Write the edges' statistics, if anybody watches.
    ShowEdges,
    /// Remove the files of processes that died.
    Sweep,
    /// This endpoint may be ended by the last copy of its descriptor being closed.
    Exported(Weak<EndpointOwner>),
    /// The last copy of its descriptor was closed.
    EndEndpoint(EndpointId),
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
        incarnation: u64,
        driver: &Arc<Driver<ProcessState>>,
    ) -> io::Result<Control> {
        let (sender, commands) = channel();
        let sender = Commands(sender);
        let server = Server {
            registry: registry.clone(),
            board: Some(EdgeStatsFile::new(registry, incarnation)),
            exported: FxHashMap::default(),
            driver: Arc::clone(driver),
        };
        let thread = std::thread::Builder::new()
            .name("dipole-control".into())
            .spawn(move || server.run(&commands))?;
        let posted = sender.clone();
        driver.with_last(|engine, _| engine.set_control(posted));
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
    /// None once it could not be written.
    board: Option<EdgeStatsFile>,
    exported: FxHashMap<EndpointId, Weak<EndpointOwner>>,
    driver: Arc<Driver<ProcessState>>,
}

impl Server {
    fn run(mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            match command {
                Command::ShowEdges => self.show_edges(),
                Command::Sweep => {
                    if let Err(cause) = self.registry.sweep() {
                        tracing::warn!("the files of a process that died are left: {cause}");
                    }
                }
                Command::Exported(owner) => {
                    if let Some(id) = owner.upgrade().map(|owner| owner.id) {
                        self.exported.retain(|_, known| known.strong_count() > 0);
                        self.exported.insert(id, owner);
                    }
                }
                Command::EndEndpoint(id) => {
                    let owner = self.exported.remove(&id);
                    if let Some(owner) = owner.and_then(|owner| owner.upgrade()) {
                        owner.end();
                    }
                }
                Command::Stop => return,
            }
        }
    }

    fn show_edges(&mut self) {
        let Some(board) = self.board.as_mut().filter(|board| board.is_watched()) else {
            return;
        };
        let edges: Vec<_> = self.driver.with_last(|state, _| state.all_edges());
        if let Err(cause) = board.write(edges.into_iter()) {
            tracing::warn!("edges are not shown to who watches: {cause}");
            self.board = None;
        }
    }
}
