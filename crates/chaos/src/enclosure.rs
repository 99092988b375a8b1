//! Namespaces around the cluster, and the process outside that waits for it.
//!
//! The kernel kills everything in a PID namespace when its process 1 ends, and removes mounts and
//! network namespaces without processes. So nothing has to be cleaned up.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::Request;
use crate::error::ChaosError;

/// Name of the hidden command that becomes process 1.
const COMMAND: &str = "chaos-cluster";
/// Folder of named network namespaces (`ip netns`), which the cluster replaces by its own.
const NETNS: &str = "/run/netns";
/// Device of the interfaces of nodes.
const TUN: &str = "/dev/net/tun";

const USER_ADVICE: &str = "run as root, or let users create user namespaces (sysctl \
                           user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1, \
                           kernel.apparmor_restrict_unprivileged_userns=0); containers need \
                           --privileged";
const MOUNT_ADVICE: &str = "a container that hides parts of /proc, or AppArmor \
                            (kernel.apparmor_restrict_unprivileged_userns), forbids it; run outside \
                            of the container, or as root";

/// Runs a request in new namespaces; returns the status of the program.
pub(crate) fn run(request: &Request) -> Result<u8, ChaosError> {
    // With permissions missing, this is clearer than the error of the first node.
    let tun = OpenOptions::new().read(true).write(true).open(TUN);
    drop(tun.map_err(ChaosError::Tun)?);
    let text = serde_json::to_string(request).expect("a request has text keys");
    // A signal must reach the cluster instead of ending this process.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(ChaosError::Signals)?;
    enter()?;
    let own = std::env::current_exe().map_err(|cause| start_error("dipole", cause))?;
    let mut command = Command::new(own);
    command.arg0("dipole").arg(COMMAND);
    command.args(["--parent", &std::process::id().to_string()]);
    let child = command.arg("--request").arg(text).spawn();
    let child = child.map_err(|cause| start_error("dipole", cause))?;
    let ended = wait(child, &mut signals).map_err(|cause| start_error("dipole", cause))?;
    Ok(status(ended))
}

pub(crate) fn start_error(program: &str, cause: io::Error) -> ChaosError {
    ChaosError::Start {
        program: program.to_owned(),
        cause,
    }
}

/// The status that a shell reports.
pub(crate) fn status(ended: ExitStatus) -> u8 {
    let code = ended.code().or(ended.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
}

/// Enters new mount, PID and network namespaces, with a user namespace around them if this user needs one.
/// The next child is process 1 of the PID namespace; no threads can be started afterwards.
fn enter() -> Result<(), ChaosError> {
    // `ip netns` returns to its own network namespace, which this user must own.
    let namespaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET;
    let is_root = rustix::process::geteuid().is_root();
    // Root in a container may lack the capability, too.
    if is_root && unshare(namespaces).is_ok() {
        return Ok(());
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let failed = |doing| {
        move |cause| ChaosError::Namespaces {
            doing,
            cause,
            advice: USER_ADVICE,
        }
    };
    unshare(namespaces | CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| failed("entering a user namespace")(errno.into()))?;
    for (file, text) in [
        // The kernel demands this before a group can be mapped without privileges.
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {} 1", user.as_raw())),
        ("gid_map", format!("0 {} 1", group.as_raw())),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(failed("mapping this user to root in a user namespace"))?;
    }
    Ok(())
}

/// Waits for the cluster, and passes signals on to it.
fn wait(mut child: Child, signals: &mut Signals) -> io::Result<ExitStatus> {
    let cluster = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    loop {
        match poll(&mut [PollFd::new(&cluster, PollFlags::IN)], None) {
            Ok(_) => return child.wait(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for signal in signals.pending() {
            if let Some(signal) = Signal::from_named_raw(signal) {
                let _may_have_ended = pidfd_send_signal(&cluster, signal);
            }
        }
    }
}

/// Prepares process 1: it dies with its parent, and has its own /proc and network namespaces.
/// Returns a folder that is inside the namespaces.
pub(crate) fn settle(parent: u32) -> Result<PathBuf, ChaosError> {
    let failed = |doing, advice| {
        move |cause| ChaosError::Namespaces {
            doing,
            cause,
            advice,
        }
    };
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| failed("watching the parent process", USER_ADVICE)(errno.into()))?;
    // The parent may have died before. /proc still is that of the parent here.
    let facts = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !facts.contains(&format!("PPid:\t{parent}\n")) {
        let cause = io::Error::other("the process that started this one has ended");
        return Err(failed("starting the cluster", "start `dipole chaos`")(
            cause,
        ));
    }
    let make = |kind: &str, place: &str| {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(kind), place, Some(kind), flags, None::<&str>).map_err(io::Error::from)
    };
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(|errno| {
        failed("separating mounts from the machine's", MOUNT_ADVICE)(errno.into())
    })?;
    make("proc", "/proc").map_err(failed("mounting /proc", MOUNT_ADVICE))?;
    if fs::create_dir_all(NETNS).is_err() && !Path::new(NETNS).is_dir() {
        // Only root can create the folder in the machine's /run.
        make("tmpfs", "/run").map_err(failed("mounting an empty /run", MOUNT_ADVICE))?;
        fs::create_dir_all(NETNS).map_err(failed("creating /run/netns", MOUNT_ADVICE))?;
    }
    make("tmpfs", NETNS).map_err(failed("mounting an empty /run/netns", MOUNT_ADVICE))?;
    let folder = Path::new(NETNS).join("files");
    fs::create_dir(&folder).map_err(failed("creating a folder", MOUNT_ADVICE))?;
    Ok(folder)
}
