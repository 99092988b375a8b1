//! `dipole top`: live view of local processes in the terminal.
//!
//! `sample` reads counters and computes rates between two samples, `screen` draws them. Supersteps come
//! from traces of running programs.

mod sample;
mod screen;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_naming::environment::default_runtime_dir;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::output::{Failure, columns, fit, json as line, table};
use sample::{Now, Sampler};
use screen::{Order, View};

/// Show local processes live
///
/// Messages and bytes per second of each process in both directions, retransmissions, and how it reaches its peers; below,
/// the edges of the selected process with their traffic. If an agent runs, also the load of all nodes
/// (see `dipole load`). With --trace also the supersteps of a program that runs with DIPOLE_TRACE. Keys:
/// arrows select a process, s sorts by another column, p pauses, q quits.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Seconds between two samples
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    every: f64,
    /// Sample once and print, even without a terminal
    #[arg(long)]
    once: bool,
    /// Directory with the traces of a running program
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
}

/// Shows it until a key ends it; with `--once` prints it, with `json` one object for each
/// process, traced rank and node.
pub(crate) fn execute(
    arguments: &TopArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let every = arguments.every;
    if !(0.1..=3600.0).contains(&every) {
        let text = format!("--every {every}: give seconds from 0.1 to 3600");
        return Err(Failure::with_status(2, text));
    }
    let every = Duration::from_secs_f64(every);
    let mut sampler = Sampler::new(default_runtime_dir(), arguments.trace.clone());
    if arguments.once {
        sampler.look()?;
        std::thread::sleep(every);
        let now = sampler.look()?;
        return print(&now, json, out);
    }
    if json {
        let text = "with --json say --once, too: live it is for people";
        return Err(Failure::with_status(2, text));
    }
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        let text =
            "standard output is not a terminal; `dipole top --once` prints what there is now";
        return Err(Failure::with_status(2, text));
    }
    let mut terminal =
        ratatui::try_init().map_err(|cause| format!("cannot use this terminal: {cause}"))?;
    let done = live(&mut terminal, &mut sampler, every);
    ratatui::restore();
    sampler.end();
    done
}

/// Draws and handles keys until one quits.
fn live(
    terminal: &mut ratatui::DefaultTerminal,
    sampler: &mut Sampler,
    every: Duration,
) -> Result<ExitCode, Failure> {
    let mut view = View::default();
    let mut now = sampler.look()?;
    // The first sample has no rates, so the second follows soon.
    let mut next = Instant::now() + every.min(Duration::from_millis(500));
    loop {
        view.keep_within(&now);
        terminal.draw(|frame| view.draw(&now, frame))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            // A terminal of another size is redrawn, like everything else.
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(ExitCode::SUCCESS),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(ExitCode::SUCCESS);
                    }
                    KeyCode::Down => view.step(1),
                    KeyCode::Up => view.step(-1),
                    KeyCode::PageDown => view.step(10),
                    KeyCode::PageUp => view.step(-10),
                    KeyCode::Char('s') => view.order = view.order.next(),
                    KeyCode::Char('p') => view.is_paused = !view.is_paused,
                    _ => {}
                }
            }
        }
        if Instant::now() >= next {
            next = Instant::now() + every;
            if !view.is_paused {
                now = sampler.look()?;
            }
        }
        view.order.sort(&mut now);
    }
}

fn print(now: &Now, json: bool, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if json {
        for process in &now.processes {
            writeln!(out, "{}", line(process))?;
        }
        for rank in &now.ranks {
            writeln!(out, "{}", line(rank))?;
        }
        for node in &now.nodes {
            writeln!(out, "{}", line(node))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = table(screen::headings(&screen::COLUMNS));
    let mut sorted = now.clone();
    Order::default().sort(&mut sorted);
    for process in &sorted.processes {
        rows.add_row(screen::cells(process));
    }
    writeln!(out, "{}", fit(&rows, columns()))?;
    let mut edges = table(screen::headings(&screen::EDGE_COLUMNS));
    for edge in sorted.processes.iter().flat_map(|process| &process.edges) {
        edges.add_row(screen::edge_cells(edge));
    }
    writeln!(out, "{}", fit(&edges, columns()))?;
    if !now.ranks.is_empty() {
        let mut ranks = table(screen::headings(&screen::RANK_COLUMNS));
        for rank in &now.ranks {
            ranks.add_row(screen::rank_cells(rank));
        }
        writeln!(out, "{}", fit(&ranks, columns()))?;
    }
    if !now.nodes.is_empty() {
        let mut nodes = table(screen::headings(&screen::NODE_COLUMNS));
        for node in &now.nodes {
            nodes.add_row(screen::node_cells(node));
        }
        writeln!(out, "{}", fit(&nodes, columns()))?;
    }
    Ok(ExitCode::SUCCESS)
}
