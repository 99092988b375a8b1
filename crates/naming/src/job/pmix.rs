//! A client of PMIx, the service of Open MPI, PRRTE and Slurm with which ranks exchange their
//! addresses.
//!
//! Only libpmix knows the way to the launcher's server, so it is loaded here. Its calls block without
//! a limit: they are made on a thread of their own, which is abandoned if a call does not return in
//! time. The connection stays open, because the launcher reports failed ranks and its own requests
//! (`reports.rs`). It is closed when this process exits: a launcher takes a process that ends with an
//! open one for a failed one.
//!
//! Launchers accept later programs of a rank, but some keep the texts of the first one. So the outcome
//! of the exchange is saved, as with PMI-1.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dipole_link::fork::incarnation;
use dipole_link::pmix::{Event, JOB_SIZE, LIBRARY, Library, PmixError, Session, at_exit};

use super::reports::{self, LauncherRequest, Report, report};
use super::service::{Connected, Exchange, Given, ServiceError, TIMEOUTS, Timeouts, WARN_AFTER};
use super::{JobError, Launcher, Lookup, MAX_RANKS, number};
use crate::threads;

const RANK: &str = "PMIX_RANK";
const NAMESPACE: &str = "PMIX_NAMESPACE";
/// The server sets one for each version of the protocol that it supports.
const SERVERS: [&str; 6] = [
    "PMIX_SERVER_URI41",
    "PMIX_SERVER_URI4",
    "PMIX_SERVER_URI3",
    "PMIX_SERVER_URI21",
    "PMIX_SERVER_URI2",
    "PMIX_SERVER_URI51",
];
/// A directory that the server creates for each job.
const DIRECTORY: &str = "PMIX_SERVER_TMPDIR";
/// Slurm's plugin gives its steps names with this beginning.
const SLURM_PREFIX: &str = "slurm.pmix.";
/// Longest wait for the server when this process exits.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Much longer than a card, and short enough for every server.
const MAX_VALUE_BYTES: usize = 4096;

/// True if the launcher offers the service.
pub(super) fn is_offered(get: Lookup<'_>) -> bool {
    get(RANK).is_some() && get(NAMESPACE).is_some() && server(get).is_some()
}

/// True if the variables certainly come from the launcher that started this process: Slurm has set
/// none of them.
pub(super) fn is_innermost(get: Lookup<'_>) -> bool {
    is_offered(get) && get(NAMESPACE).is_some_and(|name| !name.starts_with(SLURM_PREFIX))
}

/// True if Slurm offers the service to the tasks of this step. Tasks of a step without it may inherit
/// the variables of another one.
pub(super) fn is_of_slurm_step(get: Lookup<'_>) -> bool {
    let [job, step] = ["SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| get(name).unwrap_or_default());
    is_offered(get) && get(NAMESPACE) == Some(format!("{SLURM_PREFIX}{job}.{step}"))
}

fn server(get: Lookup<'_>) -> Option<String> {
    SERVERS.iter().find_map(|variable| get(variable))
}

/// The job's name, the server's address and the server's directory for the job.
pub(super) fn connection(get: Lookup<'_>) -> [String; 3] {
    [get(NAMESPACE), server(get), get(DIRECTORY)].map(Option::unwrap_or_default)
}

/// Rank of this process.
pub(super) fn rank(get: Lookup<'_>) -> Result<u32, JobError> {
    number(RANK, get(RANK).unwrap_or_default(), 0, MAX_RANKS - 1)
}

/// Work for the thread that calls the library.
type Work = Box<dyn FnOnce(&Session) + Send>;

/// The connection to the server.
pub(super) struct Client {
    work: Sender<Work>,
    closed: Receiver<Result<(), PmixError>>,
    timeouts: Timeouts,
    namespace: String,
}

impl Client {
    /// Connects to the server.
    pub(super) fn open(get: Lookup<'_>, given: Given) -> Result<Connected, JobError> {
        let (client, rank, size) = Client::connect(get, given, TIMEOUTS)?;
        Ok((Box::new(client), rank, size))
    }

    /// Connects to the server; returns rank and number of ranks as well.
    fn connect(
        get: Lookup<'_>,
        given: Given,
        timeouts: Timeouts,
    ) -> Result<(Client, u32, u32), JobError> {
        let library = Library::load(LIBRARY).map_err(refused)?;
        let ((work, closed), opening) = connect(library)?;
        let (namespace, rank) = received(&opening, "PMIx_Init", timeouts.reply)?
            .map_err(|error| unreachable(get, &error))?;
        let client = Client {
            work,
            closed,
            timeouts,
            namespace,
        };
        // Without its server, the library makes this process a job of its own.
        let expected_rank = self::rank(get)?;
        if get(NAMESPACE).as_ref() != Some(&client.namespace) || rank != expected_rank {
            let cause = format!(
                "libpmix takes this process for rank {rank} of `{}`, not for rank {expected_rank}",
                client.namespace
            );
            return Err(ServiceError::Unreachable {
                variable: NAMESPACE,
                value: get(NAMESPACE).unwrap_or_default(),
                cause,
            }
            .into());
        }
        let size = client.call("PMIx_Get", timeouts.reply, |session| {
            session.number(JOB_SIZE)
        })?;
        let is_given = given.size.is_none_or(|given| given == size);
        if !(1..=MAX_RANKS).contains(&size) || rank >= size || !is_given {
            let of_variables = match given.size {
                Some(given) if !is_given => format!(" while its variables count {given}"),
                _ => String::new(),
            };
            return Err(JobError::Disagreement {
                launcher: Launcher::Mpi,
                between: format!(
                    "its PMIx service counts {size} ranks for rank {rank}{of_variables}"
                ),
                advice: "do not pass on variables of one launcher to processes of another",
            });
        }
        Ok((client, rank, size))
    }

    /// Makes a call on the thread of the library.
    fn call<T: Send + 'static>(
        &self,
        request: &'static str,
        limit: Duration,
        call: impl FnOnce(&Session) -> Result<T, PmixError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        received(&self.begin(call), request, limit)?.map_err(refused)
    }

    /// Lets the thread of the library make a call; the result is received later.
    fn begin<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Session) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (result, results) = channel();
        // The receiver notices if the thread has ended.
        let _ = self.work.send(Box::new(move |session| {
            let _ = result.send(call(session));
        }));
        results
    }

    /// Waits until all ranks have come here.
    fn fence(&self, is_collecting: bool) -> Result<(), ServiceError> {
        const REQUEST: &str = "PMIx_Fence";
        let limit = self.timeouts.barrier;
        let early = WARN_AFTER.min(limit);
        let result = self.begin(move |session| session.fence(is_collecting));
        let mut ended = received(&result, REQUEST, early);
        if matches!(ended, Err(ServiceError::Silent { .. })) {
            tracing::warn!("waiting for the other ranks in the launcher's barrier");
            ended = received(&result, REQUEST, limit.saturating_sub(early));
        }
        match ended {
            Err(ServiceError::Silent { .. }) => Err(ServiceError::Barrier {
                seconds: limit.as_secs(),
            }),
            ended => ended?.map_err(refused),
        }
    }
}

/// The sender of work to the thread of a connection, and the result of its end.
type Connection = (Sender<Work>, Receiver<Result<(), PmixError>>);
/// The job's name and the own rank.
type Opened = Result<(String, u32), PmixError>;

/// Connects to the server on a thread of its own.
fn connect(library: Library) -> Result<(Connection, Receiver<Opened>), ServiceError> {
    let (work, works) = channel::<Work>();
    let (opened, opening) = channel();
    let (end, closed) = channel();
    threads::start("dipole-pmix", move || serve(library, &opened, &works, &end)).map_err(
        |cause| ServiceError::Io {
            request: "PMIx_Init",
            cause: cause.to_string(),
        },
    )?;
    Ok(((work, closed), opening))
}

/// The thread that calls the library, until the client is dropped.
fn serve(
    library: Library,
    opened: &Sender<Opened>,
    works: &Receiver<Work>,
    end: &Sender<Result<(), PmixError>>,
) {
    let session = match Session::open(library) {
        Ok(session) => session,
        Err(error) => {
            // The receiver has gone if it waited too long.
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok((session.namespace(), session.rank())));
    while let Ok(work) = works.recv() {
        work(&session);
    }
    let _ = end.send(session.close());
}

/// The result of a call, if it arrives in time.
fn received<T>(
    results: &Receiver<T>,
    request: &'static str,
    limit: Duration,
) -> Result<T, ServiceError> {
    results.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => ServiceError::Silent {
            request,
            seconds: limit.as_secs(),
        },
        RecvTimeoutError::Disconnected => ServiceError::Closed { request },
    })
}

fn unreachable(get: Lookup<'_>, error: &PmixError) -> ServiceError {
    let cause = match error {
        PmixError::Status { text, status, .. } => format!("PMIx_Init returned {text} ({status})"),
        other => format!("{other:?}"),
    };
    ServiceError::Unreachable {
        variable: NAMESPACE,
        value: get(NAMESPACE).unwrap_or_default(),
        cause,
    }
}

fn refused(error: PmixError) -> ServiceError {
    match error {
        PmixError::Library { cause } => ServiceError::Library { cause },
        PmixError::Version { found } => ServiceError::Version { found },
        PmixError::Status { call, status, text } => ServiceError::Io {
            request: call,
            cause: format!("{text} ({status})"),
        },
        PmixError::Data { call, key } => ServiceError::Unexpected {
            request: call,
            line: key,
            expected: "a value of the key's type",
        },
    }
}

impl Exchange for Client {
    fn job_name(&self) -> &str {
        &self.namespace
    }

    fn max_value_bytes(&self) -> usize {
        MAX_VALUE_BYTES
    }

    fn put(&mut self, round: u32, _rank: u32, value: &str) -> Result<(), ServiceError> {
        let (key, value) = (key(round), value.to_owned());
        self.call("PMIx_Commit", self.timeouts.reply, move |session| {
            session.put(&key, &value)?;
            session.commit()
        })
    }

    fn barrier(&mut self) -> Result<(), ServiceError> {
        self.fence(true)
    }

    fn get(&mut self, round: u32, rank: u32) -> Result<String, ServiceError> {
        let key = key(round);
        let got = self.begin(move |session| session.text(rank, &key));
        match received(&got, "PMIx_Get", self.timeouts.reply)? {
            Err(PmixError::Status { status, text, .. }) => Err(ServiceError::BusinessCard {
                rank,
                found: format!("{text} ({status})"),
                expected: "the addresses that it has published",
            }),
            got => got.map_err(refused),
        }
    }

    fn finish(&mut self) -> Result<(), ServiceError> {
        // Servers may fetch texts when a rank gets them, and not from a node whose ranks have ended.
        self.fence(false)?;
        let listen = self.begin(|session| session.listen(on_event));
        received(&listen, "PMIx_Register_event_handler", self.timeouts.reply)?;
        let work = std::mem::replace(&mut self.work, channel().0);
        let closed = std::mem::replace(&mut self.closed, channel().1);
        keep_open((work, closed));
        at_exit(at_exit_leave);
        Ok(())
    }
}

/// The connection while the program runs.
struct Open {
    work: Sender<Work>,
    closed: Receiver<Result<(), PmixError>>,
    /// The process that it belongs to. Forked and restored ones do not have the thread.
    process: (u32, u64),
}

static OPEN: Mutex<Option<Open>> = Mutex::new(None);

/// Closes the connection to the launcher, if there is one. A process that exits in an ordinary way does
/// so by itself. Returns whether there was one.
#[must_use]
pub fn leave_launcher() -> bool {
    let Some(open) = OPEN.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return false;
    };
    let Open {
        work,
        closed,
        process,
    } = open;
    if process != (std::process::id(), incarnation()) {
        return false;
    }
    // The thread closes the session when it cannot get any more work.
    drop(work);
    match received(&closed, "PMIx_Finalize", EXIT_TIMEOUT) {
        Ok(Ok(())) => {}
        // The launcher may have ended.
        failed => tracing::debug!(?failed, "the connection to the launcher was not closed"),
    }
    true
}

fn at_exit_leave() {
    let _was_open = leave_launcher();
}

/// Connects to the launcher again after [`leave_launcher`], only for its reports.
pub fn rejoin_launcher() {
    if let Err(cause) = rejoin() {
        tracing::warn!(?cause, "the launcher's reports are no longer received");
    }
}

fn rejoin() -> Result<(), ServiceError> {
    let library = Library::load(LIBRARY).map_err(refused)?;
    let (connection, opening) = connect(library)?;
    // The library may change the environment, which the program reads without a lock.
    received(&opening, "PMIx_Init", TIMEOUTS.reply)?.map_err(refused)?;
    reports::rejoin();
    let listen = Box::new(|session: &Session| session.listen(on_event));
    // The thread waits for work.
    let _ = connection.0.send(listen);
    keep_open(connection);
    Ok(())
}

fn keep_open((work, closed): Connection) {
    let process = (std::process::id(), incarnation());
    let open = Open {
        work,
        closed,
        process,
    };
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
}

/// Passes an event on.
fn on_event(event: Event) {
    match event {
        Event::Failed { rank } => {
            tracing::info!(rank, "the launcher reports that a rank has failed");
            report(Report::Failed(rank));
        }
        Event::Checkpoint => report(Report::Request(LauncherRequest::Checkpoint)),
        Event::Preempt => report(Report::Request(LauncherRequest::Preempt)),
        Event::ServerLost => tracing::warn!(
            "the launcher's daemon on this node has ended: failed ranks are noticed later"
        ),
    }
}

/// The key of a text in a round.
fn key(round: u32) -> String {
    format!("dipole{round}")
}
