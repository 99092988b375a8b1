//! Installed MPI libraries: compilers and launchers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// MPI library that runs the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    OpenMpi,
    Mpich,
}

/// Ranks without shared memory, each in its own network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Network namespace of each rank.
    pub(crate) namespaces: Vec<OsString>,
    /// Their subnet, such as `10.0.0.0/24`, and the interface in each.
    pub(crate) subnet: &'static str,
    pub(crate) interface: &'static str,
}

/// How to start ranks.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) ranks: u32,
    /// Use shared memory instead of TCP.
    pub(crate) is_local: bool,
    /// There are more ranks than cores, so waiting ranks yield.
    pub(crate) gives_way: bool,
    pub(crate) network: Option<Network>,
}

impl Library {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Library::OpenMpi => "open-mpi",
            Library::Mpich => "mpich",
        }
    }

    /// Names of the Debian packages.
    pub(crate) fn packages(self) -> &'static str {
        match self {
            Library::OpenMpi => "openmpi-bin, libopenmpi-dev",
            Library::Mpich => "mpich, libmpich-dev",
        }
    }

    fn launcher(self) -> &'static str {
        match self {
            Library::OpenMpi => "mpirun.openmpi",
            Library::Mpich => "mpiexec.mpich",
        }
    }

    fn compiler(self) -> &'static str {
        match self {
            Library::OpenMpi => "mpicc.openmpi",
            Library::Mpich => "mpicc.mpich",
        }
    }

    /// Compiles a program and checks that the launcher exists. The error is the reason for a failure.
    pub(crate) fn compile(
        self,
        source: &Path,
        program: &Path,
        libraries: &[&str],
    ) -> Result<PathBuf, String> {
        let compiled = compile(self.compiler(), source, program, libraries)?;
        let launcher = self.launcher();
        let version = Command::new(launcher).arg("--version").output();
        version.map_err(|cause| format!("{launcher} cannot be started: {cause}"))?;
        Ok(compiled)
    }

    /// Returns the command line that starts a program, and additional environment variables.
    pub(crate) fn command(
        self,
        start: &Start,
        work: &[OsString],
    ) -> (Vec<OsString>, Vec<(&'static str, String)>) {
        let mut words: Vec<OsString> = vec![self.launcher().into()];
        let environment = match self {
            Library::OpenMpi => {
                words.extend(open_mpi_options(start).into_iter().map(OsString::from));
                open_mpi_environment(start)
            }
            Library::Mpich => mpich_environment(start),
        };
        match &start.network {
            None => {
                words.extend(["-n".into(), start.ranks.to_string().into()]);
                words.extend_from_slice(work);
            }
            Some(network) => {
                for (rank, namespace) in network.namespaces.iter().enumerate() {
                    if rank > 0 {
                        words.push(":".into());
                    }
                    words.extend(["-n", "1", "ip", "netns", "exec"].map(OsString::from));
                    words.push(namespace.clone());
                    words.extend_from_slice(work);
                }
            }
        }
        (words, environment)
    }
}

fn open_mpi_options(start: &Start) -> Vec<&'static str> {
    let btl = if start.is_local {
        "vader,self"
    } else {
        "tcp,self"
    };
    let mut options = vec!["--bind-to", "none", "--oversubscribe"];
    options.extend(["--mca", "pml", "ob1", "--mca", "btl", btl]);
    if !start.is_local {
        // Otherwise puts would use memory that all ranks of a machine share.
        options.extend(["--mca", "osc", "pt2pt"]);
    }
    let gives_way = if start.gives_way { "1" } else { "0" };
    options.extend(["--mca", "mpi_yield_when_idle", gives_way]);
    if !start.is_local {
        // On one node that is the loopback interface, which it excludes by default.
        let network = start.network.as_ref();
        let subnet = network.map_or("127.0.0.0/8", |network| network.subnet);
        options.extend(["--mca", "btl_tcp_if_include", subnet]);
    }
    options
}

fn open_mpi_environment(start: &Start) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
    ];
    // Its daemon must be reachable from the other namespaces.
    if let Some(network) = &start.network {
        for remote in [
            "PMIX_MCA_ptl_base_remote_connections",
            "PMIX_MCA_ptl_tcp_remote_connections",
        ] {
            environment.push((remote, "1".to_owned()));
        }
        for only in [
            "PMIX_MCA_ptl_base_if_include",
            "PMIX_MCA_ptl_tcp_if_include",
        ] {
            environment.push((only, network.subnet.to_owned()));
        }
    }
    environment
}

fn mpich_environment(start: &Start) -> Vec<(&'static str, String)> {
    if start.is_local {
        return Vec::new();
    }
    let mut environment = vec![
        ("MPIR_CVAR_NOLOCAL", "1".to_owned()),
        ("UCX_TLS", "tcp,self".to_owned()),
        ("FI_PROVIDER", "tcp".to_owned()),
    ];
    if let Some(network) = &start.network {
        environment.push(("UCX_NET_DEVICES", network.interface.to_owned()));
    }
    environment
}

/// Compiles a C program. The error is the reason for a failure.
pub(crate) fn compile(
    compiler: &str,
    source: &Path,
    program: &Path,
    libraries: &[&str],
) -> Result<PathBuf, String> {
    let compiled = Command::new(compiler)
        .args(["-O3", "-o"])
        .args([program, source])
        .args(libraries.iter().map(|library| format!("-l{library}")))
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| format!("{compiler} cannot be started: {cause}"))?;
    if compiled.status.success() {
        return Ok(program.to_owned());
    }
    let words = String::from_utf8_lossy(&compiled.stderr);
    let first = words
        .lines()
        .find(|line| line.contains("error") || line.contains("cannot find"));
    let first = first.unwrap_or("it printed nothing");
    Err(format!("{compiler} compiles nothing: {first}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(library: Library, start: &Start) -> (String, Vec<(&'static str, String)>) {
        let (words, environment) = library.command(start, &["work".into()]);
        let words: Vec<String> = words
            .into_iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        (words.join(" "), environment)
    }

    #[test]
    fn ranks_of_namespaces_are_one_command_each_and_those_of_a_node_one_together() {
        let here = Start {
            ranks: 3,
            is_local: true,
            gives_way: false,
            network: None,
        };
        let (words, environment) = text(Library::Mpich, &here);
        assert_eq!(words, "mpiexec.mpich -n 3 work");
        assert!(environment.is_empty(), "{environment:?}");
        let apart = Start {
            ranks: 2,
            is_local: false,
            network: Some(Network {
                namespaces: vec!["a".into(), "b".into()],
                subnet: "10.9.0.0/24",
                interface: "wire",
            }),
            ..here
        };
        let (words, environment) = text(Library::OpenMpi, &apart);
        assert!(
            words.ends_with("-n 1 ip netns exec a work : -n 1 ip netns exec b work"),
            "{words}"
        );
        assert!(words.contains("btl_tcp_if_include 10.9.0.0/24"), "{words}");
        let known = ("PMIX_MCA_ptl_tcp_if_include", "10.9.0.0/24".to_owned());
        assert!(environment.contains(&known), "{environment:?}");
    }

    #[test]
    fn a_compiler_that_is_missing_or_finds_an_error_is_named_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("a.c");
        std::fs::write(&source, "int main(void) { return wrong; }").expect("a file");
        let program = folder.path().join("a");
        let missing = compile("dipole-no-compiler", &source, &program, &[]);
        let missing = missing.expect_err("no such program");
        assert!(
            missing.contains("dipole-no-compiler cannot be started"),
            "{missing}"
        );
        if Command::new("cc").arg("--version").output().is_ok() {
            let wrong = compile("cc", &source, &program, &[]).expect_err("it is wrong");
            assert!(wrong.contains("wrong"), "{wrong}");
        }
    }
}
