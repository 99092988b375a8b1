//! Process 1 of the cluster: builds the testbed, runs the program, applies the plan and reports.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_testbed::{Faults, Testbed};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::arguments::{Request, Shape};
use crate::enclosure;
use crate::error::ChaosError;
use crate::observer::Sample;
use crate::plan::{Action, Event, Plan};
use crate::program;
use crate::report::{self, Entry};
use crate::target::{self, Ranks};

/// How often due events and the program are checked.
const TICK: Duration = Duration::from_millis(5);
/// How often the ranks are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Changes until this long after the end of a fault are attributed to it.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How long the program may take to end after a signal before it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// The plan begins after this time even if not all ranks have started.
const LONGEST_START: Duration = Duration::from_secs(10);
/// Status of a program that took too long.
const TIMED_OUT: u8 = 124;

/// Arguments of the hidden command.
#[derive(Args, Debug)]
pub struct ClusterArgs {
    /// Process id of `dipole chaos`
    #[arg(long)]
    parent: u32,
    /// The command line of `dipole chaos`, as JSON
    #[arg(long)]
    request: String,
}

/// Runs a cluster to the end of its program; returns the program's status.
///
/// # Errors
/// The cluster cannot be created, or the program cannot be started.
pub fn cluster(args: &ClusterArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let request: Request = serde_json::from_str(&args.request)?;
    let folder = enclosure::settle(args.parent)?;
    let signals = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let number = usize::try_from(signal)?;
        signal_hook::flag::register_usize(signal, Arc::clone(&signals), number)
            .map_err(ChaosError::Signals)?;
    }
    let Request { args, json } = &request;
    let shape = args.shape()?;
    let plan = Plan::draw(args.seed.unwrap_or(0), &args.faults, &shape)?;
    // A file that cannot be written must be known before the run.
    let file = args.report.as_deref().map(report::create).transpose()?;
    if args.faults.clock.is_some()
        && let Some(why) = program::why_no_clocks()
    {
        return Err(ChaosError::Clock(why).into());
    }
    let testbed = Testbed::builder()
        .nodes(shape.nodes)
        .networks(shape.networks)
        .slots(program::slots(&shape))
        .faults(plan.packets)
        .enclosed(folder)
        .build()?;
    let mut command = program::command(&testbed, args, &shape, &plan.clocks)?;
    let name = args
        .command
        .first()
        .map(|word| word.to_string_lossy().into_owned());
    let child = command.spawn();
    let child = child.map_err(|cause| enclosure::start_error(&name.unwrap_or_default(), cause))?;
    let mut run = Run::new(&testbed, &plan, &shape, child);
    if args.once {
        // It may start no ranks.
        run.begun = Some(Instant::now());
    }
    let ended = run.wait_for_program(args.timeout, &signals)?;
    let status = run.finish(ended);
    let out: &mut dyn Write = match &file {
        Some(file) => &mut &*file,
        None => &mut std::io::stderr(),
    };
    if let Err(cause) = report::write_timeline(&plan, &shape, &run.entries, *json, out) {
        // The status of the program matters more than a report that has no reader.
        eprintln!("dipole chaos: cannot write the timeline: {cause}");
    }
    Ok(ExitCode::from(status))
}

/// A change of the cluster that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin(usize),
    /// The event is undone.
    End(usize),
    /// Its consequences have been seen.
    Close(usize),
    /// The network recovers.
    Calm,
}

/// An event that has begun.
struct Open {
    entry: usize,
    before: Sample,
    stopped: Vec<Pid>,
    is_open: bool,
}

struct Run<'a> {
    testbed: &'a Testbed,
    plan: &'a Plan,
    shape: &'a Shape,
    launched: Instant,
    /// When the plan began: once all ranks had started. `None` before.
    begun: Option<Instant>,
    child: Child,
    /// In descending order of time, so that the next is the last.
    steps: Vec<(Duration, Step)>,
    /// One for each event of the plan.
    open: Vec<Option<Open>>,
    ranks: Ranks,
    /// Ranks that have started.
    started: BTreeSet<u32>,
    /// Time since the launch.
    looked: Duration,
    start: Sample,
    entries: Vec<Entry>,
    /// A signal or time limit has been passed on to the program at this time since the launch.
    ending: Option<Duration>,
    timed_out: bool,
}

impl<'a> Run<'a> {
    fn new(testbed: &'a Testbed, plan: &'a Plan, shape: &'a Shape, child: Child) -> Run<'a> {
        let mut steps = vec![(plan.duration, Step::Calm)];
        for (index, event) in plan.events.iter().enumerate() {
            let end = event.at + event.lasts;
            steps.push((event.at, Step::Begin(index)));
            steps.push((end, Step::End(index)));
            steps.push((end + AFTERMATH, Step::Close(index)));
        }
        // Stable, and reversed, so that an event begins before it ends.
        steps.reverse();
        steps.sort_by_key(|step| std::cmp::Reverse(step.0));
        Run {
            testbed,
            plan,
            shape,
            launched: Instant::now(),
            begun: None,
            child,
            steps,
            open: plan.events.iter().map(|_| None).collect(),
            ranks: Ranks::new(),
            started: BTreeSet::new(),
            looked: Duration::ZERO,
            start: Sample::take(testbed),
            entries: Vec::new(),
            ending: None,
            timed_out: false,
        }
    }

    fn wait_for_program(
        &mut self,
        timeout: Option<Duration>,
        signals: &AtomicUsize,
    ) -> Result<ExitStatus, ChaosError> {
        loop {
            let since_launch = self.launched.elapsed();
            let ended = self.child.try_wait();
            let ended = ended.map_err(|cause| enclosure::start_error("the program", cause))?;
            if let Some(ended) = ended {
                return Ok(ended);
            }
            if since_launch > self.looked + LOOK_EVERY {
                self.looked = since_launch;
                self.look();
            }
            if self.begun.is_none() && (self.have_all_started() || since_launch > LONGEST_START) {
                self.begun = Some(Instant::now());
            }
            while let Some(step) = self.next_step() {
                self.apply(step)?;
            }
            if self.ending.is_none() {
                let signal = signals.swap(0, Ordering::Relaxed);
                let is_late = timeout.is_some_and(|timeout| since_launch >= timeout);
                self.timed_out = is_late && signal == 0;
                let signal = i32::try_from(signal).ok().and_then(Signal::from_named_raw);
                if signal.is_some() || is_late {
                    self.ending = Some(since_launch);
                    self.end_program(signal);
                }
            } else if (self.ending).is_some_and(|begun| since_launch > begun + GRACE) {
                // Everything in the namespaces ends with this process.
                let _may_have_ended = self.child.kill();
            }
            thread::sleep(TICK);
        }
    }

    /// Time since the plan began; zero before.
    fn plan_time(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    fn have_all_started(&self) -> bool {
        (0..self.shape.ranks).all(|rank| self.started.contains(&rank))
    }

    /// Takes the next step that is due.
    fn next_step(&mut self) -> Option<Step> {
        let elapsed = self.begun?.elapsed();
        let due = self.steps.pop_if(|(at, _)| *at <= elapsed);
        due.map(|(_, step)| step)
    }

    /// Asks the program to end. Stopped ranks could not, so they continue.
    fn end_program(&mut self, received: Option<Signal>) {
        for open in self.open.iter().flatten() {
            target::signal(&open.stopped, Signal::CONT);
        }
        let (why, signal) = match received {
            Some(signal) => (format!("by signal {}", signal.as_raw()), signal),
            None => (
                "because its time is over (--timeout)".to_owned(),
                Signal::TERM,
            ),
        };
        self.note("terminated", "program".into(), why);
        target::signal(&[Pid::from_child(&self.child)], signal);
    }

    fn note(&mut self, event: &'static str, target: String, detail: String) {
        let at = self.launched.elapsed();
        self.entries.push(Entry::new(at, event, target, detail));
    }

    fn apply(&mut self, step: Step) -> Result<(), ChaosError> {
        match step {
            Step::Calm => {
                self.testbed.set_faults(Faults::default())?;
                if self.plan.has_packet_faults() {
                    self.note("calm", "network".into(), "no more faults".into());
                    let noticed = Sample::take(self.testbed).since(&self.start);
                    self.entries.last_mut().expect("just noted").noticed = noticed;
                }
            }
            Step::Begin(index) => self.begin(index)?,
            Step::End(index) => {
                let action = self.plan.events[index].action;
                match (action, &self.open[index]) {
                    (Action::Pause { .. }, Some(open)) => {
                        target::signal(&open.stopped, Signal::CONT);
                    }
                    (_, Some(_)) => self.set_path(index, true)?,
                    (_, None) => {}
                }
            }
            Step::Close(index) => self.close(index),
        }
        Ok(())
    }

    /// Interrupts the path of an event or restores it, unless another event still interrupts it.
    fn set_path(&self, index: usize, works: bool) -> Result<(), ChaosError> {
        let Event { action, .. } = self.plan.events[index];
        let now = self.plan_time();
        let others = self.plan.events.iter().enumerate();
        let mut others = others.filter(|(other, event)| *other != index && event.action == action);
        let is_held = others.any(|(_, event)| event.at <= now && now < event.at + event.lasts);
        if works && is_held {
            return Ok(());
        }
        match action {
            Action::Cut { node, network } => self.testbed.set_cut(node, network, !works)?,
            Action::Unplug { node, network } => self.testbed.set_interface(node, network, works)?,
            Action::Pause { .. } | Action::Kill { .. } => {}
        }
        Ok(())
    }

    fn begin(&mut self, index: usize) -> Result<(), ChaosError> {
        let event = &self.plan.events[index];
        let before = Sample::take(self.testbed);
        let mut entry = Entry {
            at_ms: report::milliseconds(self.launched.elapsed()),
            ..report::planned(event)
        };
        let mut stopped = Vec::new();
        match event.action {
            Action::Cut { .. } | Action::Unplug { .. } => self.set_path(index, false)?,
            Action::Pause { rank } | Action::Kill { rank } => {
                let found = target::ranks(&self.ranks).remove(&rank).unwrap_or_default();
                let is_pause = matches!(event.action, Action::Pause { .. });
                let signal = if is_pause { Signal::STOP } else { Signal::KILL };
                let sent = target::signal(&found, signal);
                if sent == 0 {
                    entry.detail = "did not happen: the rank does not run".into();
                } else if is_pause {
                    stopped = found;
                } else {
                    let first = found[0].as_raw_nonzero();
                    entry.detail = format!("process {first} and {} more", sent - 1);
                    if sent == 1 {
                        entry.detail = format!("process {first}");
                    }
                }
            }
        }
        self.entries.push(entry);
        self.open[index] = Some(Open {
            entry: self.entries.len() - 1,
            before,
            stopped,
            is_open: true,
        });
        Ok(())
    }

    /// Adds what was noticed of an event to its line.
    fn close(&mut self, index: usize) {
        if let Some(open) = &mut self.open[index]
            && std::mem::take(&mut open.is_open)
        {
            let noticed = Sample::take(self.testbed).since(&open.before);
            self.entries[open.entry].noticed = noticed;
        }
    }

    /// Notes the ranks that have started or ended.
    fn look(&mut self) {
        let ranks = target::ranks(&self.ranks);
        let known = std::mem::replace(&mut self.ranks, ranks);
        for rank in 0..self.shape.ranks {
            let (was, is) = (known.get(&rank), self.ranks.get(&rank));
            let event = match (was, is) {
                (None, Some(_)) => "started",
                (Some(_), None) => "ended",
                // Another program runs as this rank, after a restart.
                (Some(was), Some(is)) if !is.contains(&was[0]) => "restarted",
                _ => continue,
            };
            if event == "started" {
                self.started.insert(rank);
            }
            let target = format!("rank {rank}");
            self.note(event, target, String::new());
        }
    }

    /// Completes the timeline; returns the status.
    fn finish(&mut self, ended: ExitStatus) -> u8 {
        self.look();
        for index in 0..self.plan.events.len() {
            self.close(index);
        }
        let status = enclosure::status(ended);
        let detail = match ended.signal() {
            Some(signal) => format!("by signal {signal}"),
            None => format!("with status {status}"),
        };
        self.note("ended", "program".into(), detail);
        let noticed = Sample::take(self.testbed).since(&self.start);
        self.entries.last_mut().expect("just noted").noticed = noticed;
        for (event, open) in self.plan.events.iter().zip(&self.open) {
            if open.is_none() {
                let mut entry = report::planned(event);
                entry.detail = "did not happen: the program had ended".into();
                self.entries.push(entry);
            }
        }
        if self.timed_out { TIMED_OUT } else { status }
    }
}
