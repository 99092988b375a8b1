//! Errors of environments that describe no valid job.

use std::fmt;

use super::service::ServiceError;

/// A program that starts processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// A step of a Slurm job (`srun`).
    Slurm,
    /// `mpirun` or `mpiexec`.
    Mpi,
    /// An instance of Flux.
    Flux,
    /// A pod of an indexed Kubernetes job.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Slurm => "Slurm",
            Launcher::Mpi => "mpirun",
            Launcher::Flux => "Flux",
            Launcher::Kubernetes => "an indexed Kubernetes job",
        })
    }
}

/// Why the environment describes no valid job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A variable is not set.
    #[error(
        "this process does not belong to a job: {variable} is not set; start it with \
         `dipole run -n P PROGRAM`, srun or mpirun"
    )]
    Missing {
        /// Name of the variable.
        variable: &'static str,
    },
    /// A variable's value cannot be used.
    #[error("{variable} is `{found}`, expected {expected}")]
    Bad {
        /// Name of the variable.
        variable: &'static str,
        /// Its invalid value.
        found: String,
        /// Description of the valid values.
        expected: String,
    },
    /// A launcher started this process but a variable is missing.
    #[error("{launcher} started this process but {variable} is not set; {advice}")]
    Lacking {
        /// Launcher that left the variable unset.
        launcher: Launcher,
        /// Name of the missing variable.
        variable: &'static str,
        /// Advice to the user.
        advice: &'static str,
    },
    /// Two variables of a launcher, or the launcher and the hosts file, contradict each other.
    #[error("{launcher} started this process but {between}; {advice}")]
    Disagreement {
        /// Launcher that set the variables.
        launcher: Launcher,
        /// The contradicting variables and their values.
        between: String,
        /// Advice to the user.
        advice: &'static str,
    },
    /// The ranks cannot exchange their addresses through the launcher.
    #[error(
        "the launcher's PMI service {0}; without it, name the nodes in a hosts file (DIPOLE_HOSTS)"
    )]
    Service(#[from] ServiceError),
    /// The nodes have no common network, and one has no route to another.
    #[error(
        "node {from} has no route to node {to}; set DIPOLE_BIND for all ranks to the job's \
         network (10.0.0.0/24) or to its interface (eth1), or add the route"
    )]
    NoRoute {
        /// The node without a route, with its addresses.
        from: String,
        /// The other node.
        to: String,
    },
    /// The hosts file that `DIPOLE_HOSTS` names is wrong or cannot be read.
    #[error("{cause}")]
    Hosts {
        /// The file and its fault.
        cause: String,
    },
    /// A node's name cannot be resolved.
    #[error(
        "no address of node `{name}` within {waited_s} s: {cause}; make the name \
         known to this machine (DNS or /etc/hosts), or give the nodes in a hosts file \
         (DIPOLE_HOSTS)"
    )]
    Unresolved {
        /// Name of the job.
        name: String,
        /// How long the process waited.
        waited_s: u64,
        /// The operating system's error.
        cause: String,
    },
    /// The job's runtime directory cannot be created.
    #[error("{cause}")]
    Directory {
        /// The directory and the error.
        cause: String,
    },
}
