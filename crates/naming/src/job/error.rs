//! Why the environment describes no job.

use std::fmt;

/// Who starts processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// A step of a Slurm job (`srun`).
    Slurm,
    /// `mpirun` or `mpiexec`.
    Mpi,
    /// A pod of an indexed Kubernetes job.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Slurm => "Slurm",
            Launcher::Mpi => "mpirun",
            Launcher::Kubernetes => "an indexed Kubernetes job",
        })
    }
}

/// Why the environment describes no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A variable is not set.
    #[error(
        "this process belongs to no job: {variable} is not set; start it with \
         `dipole run -n P PROGRAM`, srun or mpirun"
    )]
    Missing {
        /// Its name.
        variable: &'static str,
    },
    /// A variable's value cannot be used.
    #[error("{variable} is `{found}`, expected {expected}")]
    Bad {
        /// Its name.
        variable: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A launcher started this process but did not set every variable that is needed.
    #[error("{launcher} started this process but {variable} is not set; {advice}")]
    Lacking {
        /// Which launcher.
        launcher: Launcher,
        /// The variable that is not set.
        variable: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Two variables of a launcher, or the launcher and the hosts file, contradict each other.
    #[error("{launcher} started this process but {between}; {advice}")]
    Disagreement {
        /// Which launcher.
        launcher: Launcher,
        /// What contradicts what.
        between: String,
        /// What to do.
        advice: &'static str,
    },
    /// The hosts file that `DIPOLE_HOSTS` names is wrong or cannot be read.
    #[error("{cause}")]
    Hosts {
        /// What is wrong with it, and where.
        cause: String,
    },
    /// A node's name leads to no address.
    #[error(
        "no address of node `{name}` within {waited_s} s: {cause}; make the name \
         known to this machine (DNS or /etc/hosts), or give the nodes in a hosts file \
         (DIPOLE_HOSTS)"
    )]
    Unresolved {
        /// The name.
        name: String,
        /// How long it was tried.
        waited_s: u64,
        /// The operating system's error.
        cause: String,
    },
    /// The directory for what the job leaves on this node cannot be had.
    #[error("{cause}")]
    Directory {
        /// Which, and why.
        cause: String,
    },
}
