//! `dipole-lab migration`: a solver on nodes on which others compute, with and without migration.
//!
//! The nodes have a part of a core each. Others begin and end to compute there at times that are drawn
//! from a seed, the same for each column. A job that starts on random nodes is compared with one that
//! starts on the best nodes, and with two more of these: one is saved every two minutes, the other
//! compares its hosts every two minutes, and moves. All times are shorter than those of the thesis by the
//! same factor.
//!
//! # Source
//! `bsp-protocols-thesis`, §8.4, table 8.1 and figure 8.5.

mod background;
mod nodes;

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_bench::output::{Output, Record};
use dipole_launch::load::NodeLoad;
use dipole_testbed::Testbed;
use dipole_testbed::c_programs::{include_dir, link_options};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use background::{Change, draw_changes};
use nodes::Nodes;

/// Seconds between two checkpoints or comparisons in the thesis.
const PERIOD_S: u32 = 120;
/// How long the load of the nodes is visible before a job starts, in seconds of the thesis.
const BEFORE_S: u32 = 300;
/// How long a job may take.
const JOB_TIMEOUT: Duration = Duration::from_secs(1800);
/// Parts of a core of the nodes: a few fast ones and some slower ones, as in figure 8.5.
const PARTS: [f64; 6] = [0.30, 0.25, 0.20, 0.20, 0.15, 0.15];
/// The solver: pentadiagonal systems in three dimensions.
const SOLVER: &str = "examples/bsp/nas/sp.c";

/// Execution times of a solver on busy nodes, with and without migration: table 8.1 of the thesis
///
/// Needs root, for namespaces and control groups, a C compiler, and `dipole` and `libbsp.so` next to
/// this program.
#[derive(Args, Debug)]
pub(crate) struct MigrationArgs {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "2,4",
          value_parser = clap::value_parser!(u32).range(1..=6))]
    ranks: Vec<u32>,
    /// Size of the solver's problem: S, W or A
    #[arg(long, default_value = "A")]
    class: String,
    /// Duration of a minute of the thesis, in seconds
    #[arg(long, default_value_t = 1.0)]
    minute: f64,
    /// Seed of the work of others, and of the random nodes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A small problem with two ranks, to see that everything works
    #[arg(long)]
    quick: bool,
}

/// How a job is started; the columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Column {
    Random,
    Best,
    Checkpoints,
    Migration,
}

const COLUMNS: [Column; 4] = [
    Column::Random,
    Column::Best,
    Column::Checkpoints,
    Column::Migration,
];

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Random => "random nodes",
            Column::Best => "best nodes",
            Column::Checkpoints => "best, saved every 2 min",
            Column::Migration => "best, migration",
        }
    }
}

/// Times of the thesis in seconds, for the columns.
fn thesis(ranks: u32) -> Option<[Option<u32>; 4]> {
    match ranks {
        2 => Some([Some(3255), Some(623), Some(841), Some(658)]),
        4 => Some([Some(3855), Some(1155), Some(1916), Some(1092)]),
        8 => Some([Some(2968), Some(1161), None, None]),
        _ => None,
    }
}

/// A cell of the table.
#[derive(Clone, Debug, Serialize)]
struct MigrationRow {
    bench: &'static str,
    ranks: u32,
    column: Column,
    /// Nodes on which the job started.
    nodes: Vec<u32>,
    seconds: f64,
    /// The time as a multiple of that of a job on the best nodes.
    of_best: f64,
    thesis_seconds: Option<u32>,
    thesis_of_best: Option<f64>,
    /// Moves of ranks.
    moves: usize,
    seed: u64,
}

impl Record for MigrationRow {
    const HEADINGS: &'static str = "p|job|nodes|time s|of best|thesis s|of best|moves";
    const LABELS: usize = 3;

    fn cells(&self) -> Vec<String> {
        let nodes: Vec<String> = self.nodes.iter().map(ToString::to_string).collect();
        let number = |it: Option<String>| it.unwrap_or_else(|| "-".to_owned());
        vec![
            self.ranks.to_string(),
            self.column.name().to_owned(),
            nodes.join(" "),
            format!("{:.1}", self.seconds),
            format!("{:.2}", self.of_best),
            number(self.thesis_seconds.map(|it| it.to_string())),
            number(self.thesis_of_best.map(|it| format!("{it:.2}"))),
            self.moves.to_string(),
        ]
    }
}

/// A node before the first job, for figure 8.5.
#[derive(Clone, Debug, Serialize)]
struct PowerRow {
    bench: &'static str,
    node: u32,
    peak_mflops: u32,
    load: f64,
    idle_mflops: f64,
}

impl Record for PowerRow {
    const HEADINGS: &'static str = "node|peak Mflop/s|load|idle Mflop/s|figure 8.5";
    const LABELS: usize = 1;

    fn cells(&self) -> Vec<String> {
        // A sign for each 20 Mflop/s: idle ones, then busy ones.
        let signs =
            (1..=self.peak_mflops / 20).map(|at| match f64::from(at * 20) <= self.idle_mflops {
                true => '#',
                false => '.',
            });
        vec![
            self.node.to_string(),
            self.peak_mflops.to_string(),
            format!("{:.2}", self.load),
            format!("{:.0}", self.idle_mflops),
            signs.collect(),
        ]
    }
}

/// Runs the jobs and prints the results. False if a job failed.
pub(crate) fn execute(
    args: &MigrationArgs,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    if let Some(why) = Testbed::why_not() {
        output.remark(&format!("the measurement is left out: {why}"))?;
        return Ok(true);
    }
    let (ranks, class) = match args.quick {
        true => (vec![2], "S".to_owned()),
        false => (args.ranks.clone(), args.class.clone()),
    };
    let folder = tempfile::tempdir()?;
    let solver = compile(folder.path())?;
    let second = Duration::try_from_secs_f64(args.minute / 60.0)?;
    let changes = draw_changes(args.seed, PARTS.len(), JOB_TIMEOUT, second);
    let mut nodes = Nodes::new(&PARTS, &sibling("dipole")?, second)?;
    nodes.start_agents()?;
    let mut lab = Lab {
        nodes,
        changes,
        solver,
        class,
        second,
        seed: args.seed,
        results: folder.path().to_owned(),
    };
    lab.print_power(output)?;
    let mut rows = Vec::new();
    for ranks in ranks {
        let mut best_seconds = None;
        let mut of_ranks: Vec<MigrationRow> = Vec::new();
        for column in COLUMNS {
            let row = lab.measure(ranks, column)?;
            // A job takes minutes.
            eprintln!(
                "{ranks} ranks, {}: {:.1} s, {} moves",
                column.name(),
                row.seconds,
                row.moves
            );
            if column == Column::Best {
                best_seconds = Some(row.seconds);
            }
            of_ranks.push(row);
        }
        for row in &mut of_ranks {
            row.of_best = best_seconds.map_or(1.0, |best| row.seconds / best);
        }
        rows.extend(of_ranks);
    }
    output.print_records("", &rows, AFTER)?;
    Ok(true)
}

const AFTER: &str = "\nof best: the time as a multiple of that of the job on the best nodes\n\
                     thesis: table 8.1, an electro-magnetics code on workstations, other sizes\n";

/// The path of a file next to this program.
fn sibling(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let path = std::env::current_exe()?.with_file_name(name);
    match path.exists() {
        true => Ok(path),
        false => Err(format!("{} does not exist; build the workspace", path.display()).into()),
    }
}

/// Compiles the solver; returns the program.
fn compile(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let library = sibling("libbsp.so")?;
    for name in ["libbsp.so", "libbsp.so.0"] {
        std::os::unix::fs::symlink(&library, folder.join(name))?;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(SOLVER);
    let program = folder.join("solver");
    let output = Command::new("cc")
        .args(["-std=c99", "-O3", "-I"])
        .arg(include_dir())
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(link_options(folder, "bsp"))
        .arg("-lm")
        .output()?;
    match output.status.success() {
        true => Ok(program),
        false => Err(format!("{SOLVER}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The nodes, the work of others on them, and the solver.
struct Lab {
    nodes: Nodes,
    changes: Vec<Change>,
    solver: PathBuf,
    class: String,
    second: Duration,
    seed: u64,
    /// Folder for hosts files and checkpoints.
    results: PathBuf,
}

impl Lab {
    /// Prints the speed of each node, and the part of it that is idle at the start.
    fn print_power(&self, output: &mut Output<'_>) -> Result<(), Box<dyn Error>> {
        let background = self.nodes.begin_background(&self.changes)?;
        std::thread::sleep(self.second * BEFORE_S);
        let loads = self.nodes.loads();
        drop(background);
        let rows: Vec<PowerRow> = loads.iter().map(power).collect();
        output.remark(&self.nodes.testbed().description())?;
        output.print_records("", &rows, "\n")?;
        Ok(())
    }

    /// Runs a job.
    fn measure(&mut self, ranks: u32, column: Column) -> Result<MigrationRow, Box<dyn Error>> {
        let background = self.nodes.begin_background(&self.changes)?;
        // The agents exchange their tables.
        std::thread::sleep(self.second * BEFORE_S);
        let mut order: Vec<u32> = self.nodes.loads().iter().map(|load| load.node.0).collect();
        if column == Column::Random {
            order.sort_unstable();
            order.shuffle(&mut StdRng::seed_from_u64(self.seed ^ u64::from(ranks)));
        }
        let hosts = self.hosts(&order)?;
        let checkpoints = self.results.join(format!("checkpoints-{ranks}-{column:?}"));
        let period = (self.second * PERIOD_S).as_secs_f64();
        let mut command = self.nodes.testbed().command(1, sibling("dipole")?);
        command.args(["--json", "run", "-n", &ranks.to_string(), "--hosts"]);
        command
            .arg(hosts)
            .arg("--rsh")
            .arg(self.nodes.testbed().remote_shell());
        command.args(["--timeout", &JOB_TIMEOUT.as_secs().to_string()]);
        match column {
            Column::Random | Column::Best => {}
            Column::Checkpoints => {
                command.arg("--checkpoint-every").arg(format!("{period}s"));
                command.arg("--checkpoint-dir").arg(&checkpoints);
            }
            Column::Migration => {
                command.arg("--migrate-every").arg(period.to_string());
                command.arg("--checkpoint-dir").arg(&checkpoints);
            }
        }
        command
            .arg(&self.solver)
            .arg(&self.class)
            .stdin(Stdio::null());
        let begun = Instant::now();
        let output = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = output.wait_with_output()?;
        let seconds = begun.elapsed().as_secs_f64();
        drop(background);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() || !text.contains("VERIFICATION SUCCESSFUL") {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!(
                "{ranks} ranks, {column:?}: {}\n{text}\n{errors}",
                output.status
            )
            .into());
        }
        let known = thesis(ranks);
        let at = COLUMNS.iter().position(|one| *one == column).unwrap_or(0);
        let thesis_seconds = known.and_then(|times| times[at]);
        let thesis_best = known.and_then(|times| times[1]);
        let of_best = |(one, best): (u32, u32)| f64::from(one) / f64::from(best);
        Ok(MigrationRow {
            bench: "migration",
            ranks,
            column,
            nodes: order.into_iter().take(ranks as usize).collect(),
            seconds,
            of_best: 1.0,
            thesis_seconds,
            thesis_of_best: thesis_seconds.zip(thesis_best).map(of_best),
            moves: text.matches("\"event\":\"migrated\"").count(),
            seed: self.seed,
        })
    }

    /// A hosts file with the nodes in an order.
    fn hosts(&self, order: &[u32]) -> io::Result<PathBuf> {
        let text = fs::read_to_string(self.nodes.testbed().hosts_file())?;
        let line = |node: &u32| {
            let is_of = |line: &&str| line.split(' ').next() == Some(&node.to_string());
            text.lines().find(is_of).map(|line| format!("{line}\n"))
        };
        let file = self.results.join("hosts");
        fs::write(&file, order.iter().filter_map(line).collect::<String>())?;
        Ok(file)
    }
}

fn power(load: &NodeLoad) -> PowerRow {
    PowerRow {
        bench: "power",
        node: load.node.0,
        peak_mflops: load.cores * load.speed,
        load: load.load,
        idle_mflops: load.idle_speed(),
    }
}
