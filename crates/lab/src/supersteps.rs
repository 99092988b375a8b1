//! Supersteps of Dipole compared with MPI libraries, by `peers/superstep.c`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use dipole_bench::SuperstepsArgs;
use dipole_bench::bsp::job::{Contender, Job, JobError, Place};
use dipole_bench::bsp::{Link, measure};
use dipole_bench::output::Output;
use dipole_bench::testbed::{On, Testbed};

use crate::mpi::{Library, Network, Start};

/// Source of the program that the MPI libraries run.
const SOURCE: &str = include_str!("../peers/superstep.c");

/// Compare Dipole's supersteps with Open MPI and MPICH, whichever are installed
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    supersteps: SuperstepsArgs,
}

/// Runs the measurements and prints the results. False if a measurement failed.
pub(crate) fn execute(args: &Args, output: &mut Output<'_>) -> Result<bool, Box<dyn Error>> {
    let testbed = Testbed::create(On::Node)?;
    let mut others: Vec<Box<dyn Contender>> = Vec::new();
    for library in [Library::OpenMpi, Library::Mpich] {
        match Mpi::prepare(library, testbed.folder()) {
            Ok(mpi) => others.push(Box::new(mpi)),
            Err(absent) => output.remark(&absent)?,
        }
    }
    let (_, has_failed) = measure(&args.supersteps, &testbed, &others, &|_| Ok(()), output)?;
    Ok(!has_failed)
}

/// An installed MPI library and its compiled program.
struct Mpi {
    library: Library,
    program: PathBuf,
}

impl Mpi {
    /// Compiles the program into a folder, or returns a line with the reason why that is impossible.
    fn prepare(library: Library, folder: &Path) -> Result<Mpi, String> {
        let name = library.name();
        let source = folder.join("superstep.c");
        let written = std::fs::write(&source, SOURCE)
            .map_err(|cause| format!("cannot write {}: {cause}", source.display()));
        let program = written.and_then(|()| library.compile(&source, &folder.join(name), &[]));
        let program = program.map_err(|why| {
            let packages = library.packages();
            format!("{name} is left out: {why} (Debian has it in {packages})")
        })?;
        Ok(Mpi { library, program })
    }
}

impl Contender for Mpi {
    fn name(&self) -> &'static str {
        self.library.name()
    }

    fn command(&self, job: &Job<'_>) -> Result<Command, JobError> {
        let network = match job.place {
            Place::Here(_) => None,
            Place::Apart(testbed) => Some(Network {
                namespaces: (1..=job.ranks)
                    .map(|node| testbed.node(node).namespace.clone().into())
                    .collect(),
                subnet: "10.0.0.0/24",
                interface: "net0",
            }),
        };
        let start = Start {
            ranks: job.ranks,
            is_local: job.link == Link::Shm,
            gives_way: job.cores.is_empty(),
            network,
        };
        let work = [
            self.program.clone().into_os_string(),
            job.plan.seconds.to_string().into(),
            job.plan.samples.to_string().into(),
            job.plan.most_bytes.to_string().into(),
            match job.cores.is_empty() {
                true => "-".into(),
                false => job.cores_text().into(),
            },
        ];
        let (words, environment) = self.library.command(&start, &work);
        let mut command = match job.place {
            Place::Here(_) => Command::new(&words[0]),
            Place::Apart(testbed) => testbed.command(1, &words[0]),
        };
        command.args(&words[1..]).envs(environment);
        Ok(command)
    }
}
