//! The user's program: how it is started on the cluster.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dipole_testbed::Testbed;

use crate::arguments::{ChaosArgs, Shape};
use crate::error::ChaosError;

/// Variables that let Open MPI start as root, which the program seems to be in a user namespace.
const ROOT_VARIABLES: [&str; 4] = [
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
];

/// Files in the folder of the testbed.
struct Files {
    /// Has a substitute for ssh.
    programs: PathBuf,
    /// Host files of Open MPI and MPICH.
    open_mpi: PathBuf,
    mpich: PathBuf,
}

/// The command that starts the program on the first node.
pub(crate) fn command(
    testbed: &Testbed,
    args: &ChaosArgs,
    shape: &Shape,
    clocks: &[Duration],
) -> Result<Command, ChaosError> {
    let files = write_files(testbed, shape, clocks)?;
    let shell = files.programs.join("ssh");
    let mut command = match args.command.split_first() {
        Some((program, rest)) if args.is_once() => {
            let mut command = testbed.command(1, program);
            command.args(rest);
            command
        }
        _ => {
            let own = std::env::current_exe()
                .map_err(|cause| crate::enclosure::start_error("dipole", cause))?;
            let mut command = testbed.command(1, own);
            command.args(["run", "-n", &shape.ranks.to_string(), "--hosts"]);
            command.arg(testbed.hosts_file()).arg("--rsh").arg(&shell);
            if let Some(action) = &args.on_loss {
                command.args(["--on-loss", action]);
            }
            command.args(&args.command);
            command
        }
    };
    set_variables(&mut command, testbed, &files);
    Ok(command)
}

/// Gives the program the user's variables, apart from those of the cluster.
fn set_variables(command: &mut Command, testbed: &Testbed, files: &Files) {
    let own: Vec<&str> = testbed.environment(1).map(|(name, _)| name).to_vec();
    for (name, value) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("DIPOLE_") && !own.contains(&&*text) {
            command.env(&name, value);
        }
    }
    match std::env::var_os("XDG_CONFIG_HOME") {
        Some(folder) => command.env("XDG_CONFIG_HOME", folder),
        None => command.env_remove("XDG_CONFIG_HOME"),
    };
    let usual = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut path = files.programs.clone().into_os_string();
    path.push(":");
    path.push(usual);
    command.env("PATH", path);
    command.env("OMPI_MCA_orte_default_hostfile", &files.open_mpi);
    command.env("PRTE_MCA_prte_default_hostfile", &files.open_mpi);
    command.env("HYDRA_HOST_FILE", &files.mpich);
    for name in ROOT_VARIABLES {
        command.env(name, "1");
    }
}

fn write_files(testbed: &Testbed, shape: &Shape, clocks: &[Duration]) -> Result<Files, ChaosError> {
    let folder = testbed.folder();
    let files = Files {
        programs: folder.join("bin"),
        open_mpi: folder.join("hosts.openmpi"),
        mpich: folder.join("hosts.mpich"),
    };
    let shell = files.programs.join("ssh");
    let (mut open_mpi, mut mpich) = (String::new(), String::new());
    let slots = slots(shape);
    for node in 1..=testbed.nodes() {
        let address = testbed.node(node).addresses[0];
        let _infallible = writeln!(open_mpi, "{address} slots={slots}");
        let _infallible = writeln!(mpich, "{address}:{slots}");
    }
    let write =
        |path: &Path, text: String| fs::write(path, text).map_err(|cause| failed(path, cause));
    fs::create_dir(&files.programs).map_err(|cause| failed(&files.programs, cause))?;
    write(&files.open_mpi, open_mpi)?;
    write(&files.mpich, mpich)?;
    write(&shell, remote_shell(testbed, clocks))?;
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755))
        .map_err(|cause| failed(&shell, cause))?;
    Ok(files)
}

fn failed(path: &Path, cause: std::io::Error) -> ChaosError {
    ChaosError::File {
        path: path.to_owned(),
        cause,
    }
}

/// Ranks per node.
pub(crate) fn slots(shape: &Shape) -> u32 {
    shape.ranks.div_ceil(shape.nodes)
}

/// A script that is used like ssh, with the address of a node or its namespace as destination.
fn remote_shell(testbed: &Testbed, clocks: &[Duration]) -> String {
    let mut text = "#!/bin/sh\n\
         # Runs a command on a node of this cluster. Options of ssh have no meaning here.\n\
         while :; do case $1 in -*) shift ;; *) break ;; esac; done\n\
         dest=${1#*@}\nshift\nclock=\ncase $dest in\n"
        .to_owned();
    for (node, clock) in (1..=testbed.nodes()).zip(clocks) {
        let place = testbed.node(node);
        let addresses: Vec<String> = place.addresses.iter().map(ToString::to_string).collect();
        let _infallible = writeln!(
            text,
            "{}|{})\n  space={}\n  export DIPOLE_NID={node} DIPOLE_RUNTIME_DIR={}",
            place.namespace,
            addresses.join("|"),
            place.namespace,
            place.runtime_dir.display()
        );
        if !clock.is_zero() {
            // `unshare` needs a child to enter.
            let seconds = clock.as_secs();
            let _infallible = writeln!(
                text,
                "  clock='unshare --fork --kill-child --time --monotonic {seconds} --boottime {seconds}'"
            );
        }
        text += "  ;;\n";
    }
    text += "*) echo \"dipole chaos: this cluster has no node $dest\" >&2; exit 255 ;;\nesac\n\
             exec ip netns exec \"$space\" $clock sh -c \"$*\"\n";
    text
}

/// Why nodes cannot have clocks of their own, if so.
pub(crate) fn why_no_clocks() -> Option<String> {
    if !Path::new("/proc/self/ns/time").exists() {
        return Some("this kernel has no time namespaces (Linux 5.6 with CONFIG_TIME_NS)".into());
    }
    let tried = Command::new("unshare")
        .args(["--fork", "--time", "--monotonic", "1", "true"])
        .output();
    match tried {
        Err(cause) => Some(format!("cannot run unshare (install util-linux): {cause}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Some(format!(
                "a time namespace cannot be entered: {}",
                text.trim()
            ))
        }
    }
}
