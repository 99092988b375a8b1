//! Tasks beyond cargo: long test campaigns, injected bugs, fuzzing, Miri, the model checker with
//! wider bounds, clusters in network namespaces, installation and packages.

mod campaign;
mod cluster;
mod command;
mod fuzz;
mod install;
mod mpi;
mod mutants;
mod nightly;
mod package;
mod target;
mod wheel;

use std::process::ExitCode;

use campaign::{Campaign, campaign};
use clap::{Parser, Subcommand};
use command::{Failure, cargo, run};

#[derive(Parser)]
#[command(about, bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the cluster simulator over many seeds.
    Simulate {
        /// Number of seeds.
        #[arg(long, default_value_t = 20_000)]
        seeds: u64,
        /// First seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Start at a seed derived from the hash of the commit, and use the build of the tests.
        #[arg(long, conflicts_with = "from")]
        fresh: bool,
    },
    /// Inject bugs into a copy of the workspace; its tests must find each of them.
    Mutants(mutants::Arguments),
    /// Run every fuzzer.
    Fuzz(Time),
    /// Repeat the tests of attackers and other users against members, agents, rings and records.
    Attack(Time),
    /// Repeat traffic: simulated clusters, and one of namespaces whose links fail.
    Soak(Time),
    /// Repeat the tests that kill or stop processes, ranks, agents and members of groups.
    Kill(Time),
    /// Run the tests of shared memory under Miri.
    Miri,
    /// Run the model checker.
    Model {
        /// Explore further; the test's module comment explains the number.
        #[arg(long, default_value_t = 0)]
        bound: u64,
    },
    /// Create a cluster in network namespaces of this machine (needs root) and run a command on it.
    Cluster(cluster::Arguments),
    /// Build and install program, libraries, header, manual pages and completions.
    Install(install::Arguments),
    /// Remove the files that `install` installed.
    Uninstall(install::Place),
    /// Fetch MPI libraries, run mpi4py's tests, and compare kernels with TCP, over the libfabric
    /// provider.
    #[command(subcommand)]
    Mpi(mpi::Task),
    /// Build a Debian package with the files that `install` installs.
    Package(package::Options),
    /// Build a Python wheel with the module and the files that `install` installs.
    Wheel(wheel::Arguments),
    /// Lint everything for aarch64.
    Portable,
}

#[derive(clap::Args)]
struct Time {
    /// Total duration.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Simulate { seeds, from, fresh } => simulate(seeds, from, fresh),
        Task::Mutants(arguments) => mutants::mutants(&arguments),
        Task::Fuzz(time) => fuzz::fuzz(time.minutes),
        Task::Attack(time) => campaign(Campaign::Attack, time.minutes),
        Task::Soak(time) => campaign(Campaign::Soak, time.minutes),
        Task::Kill(time) => campaign(Campaign::Kill, time.minutes),
        Task::Miri => nightly::miri(),
        Task::Model { bound } => model(bound),
        Task::Cluster(arguments) => cluster::cluster(&arguments),
        Task::Install(arguments) => install::install(&arguments),
        Task::Uninstall(place) => install::uninstall(&place),
        Task::Mpi(task) => mpi::mpi(&task),
        Task::Package(arguments) => package::package(&arguments),
        Task::Portable => target::check(),
        Task::Wheel(arguments) => wheel::wheel(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Fresh seeds start above those of every test run.
const FIRST_FRESH: u64 = 1_000_000;

fn simulate(seeds: u64, from: u64, fresh: bool) -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["test", "--locked", "--test", "simulation"]);
    let from = if fresh {
        let from = FIRST_FRESH + mutants::commit_number()?;
        println!("fresh seeds from {from} on");
        // With the features of all other tests, so that nothing is built again.
        command.arg("--workspace");
        from
    } else {
        command.args(["--release", "-p", "dipole-node"]);
        from
    };
    run(command
        .args(["--", "seeds_violate_no_rule", "--nocapture"])
        .env("DIPOLE_SEEDS", seeds.to_string())
        .env("DIPOLE_SEED_FROM", from.to_string()))
}

fn model(bound: u64) -> Result<(), Failure> {
    for tests in [&["--test", "model_check"][..], &["--lib", "grants::model"]] {
        let mut command = cargo();
        command
            .args(["test", "--release", "-p", "dipole-proto"])
            .args(tests)
            .args(["--", "--nocapture"])
            .env("DIPOLE_MODEL_BOUND", bound.to_string());
        run(&mut command)?;
    }
    Ok(())
}
