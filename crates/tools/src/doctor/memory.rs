//! Checks resources that processes of this node share: the runtime directory, shared memory, and access to each
//! other's memory.

use std::io::{self, IoSliceMut};

use dipole_node::registry::Registry;
use dipole_node::{Config, Links, Node};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::CapabilitySet;

use super::finding::Finding;
use super::kernel::{may, read};

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let directory = runtime_directory(config);
    let usable = directory.verdict == super::finding::Verdict::Good;
    let mut findings = vec![directory];
    // Without the directory, the other checks would only repeat the error.
    if usable {
        findings.push(shared_memory(config));
        let scope = read("/proc/sys/kernel/yama/ptrace_scope");
        findings.push(one_copy(
            own_memory_is_read(),
            scope.as_deref(),
            may(CapabilitySet::SYS_PTRACE),
        ));
    }
    findings
}

/// Splits an error's text at its last semicolon into the fact and the advice.
fn split(error: &str) -> (&str, &str) {
    error.split_once("; ").unwrap_or((error, ""))
}

fn runtime_directory(config: &Config) -> Finding {
    const NAME: &str = "runtime directory";
    match Registry::open(&config.runtime_dir, config.node) {
        Ok(registry) => Finding::good(NAME, format!("{} is ours alone", registry.path().display())),
        Err(error) => {
            let text = error.to_string();
            let (fact, advice) = split(&text);
            let advice = match advice {
                "" => "set DIPOLE_RUNTIME_DIR to a directory of your own",
                advice => advice,
            };
            Finding::broken(NAME, fact, advice)
        }
    }
}

fn shared_memory(config: &Config) -> Finding {
    const NAME: &str = "shared memory";
    if let Err(cause) = seal() {
        return cannot_share(
            config.links,
            &format!("the kernel does not seal memory: {cause}"),
        );
    }
    let mut alone = Config::local(config.node, config.runtime_dir.clone());
    alone.links = Links::Shm;
    if let Err(error) = Node::open(alone) {
        return cannot_share(config.links, &error.to_string());
    }
    let packets = match config.links {
        Links::Udp => "DIPOLE_LINK=udp",
        Links::Bpf => "DIPOLE_LINK=bpf",
        Links::Auto if config.injects_into_link() => "DIPOLE_FAULT",
        Links::Auto if config.recordings.capture.is_some() => "DIPOLE_CAPTURE",
        Links::Auto | Links::Shm => {
            return Finding::good(NAME, "processes of this node use it");
        }
    };
    Finding::slow(
        NAME,
        format!("available, but {packets} is set: processes of this node use packets"),
        format!("unset {}", packets.split('=').next().unwrap_or(packets)),
    )
}

fn cannot_share(links: Links, why: &str) -> Finding {
    const NAME: &str = "shared memory";
    let (cause, advice) = split(why);
    let advice = match advice {
        "" => "Linux 5.1 or newer is needed; a container must allow memfd_create",
        advice => advice,
    };
    if links == Links::Shm {
        Finding::broken(NAME, format!("DIPOLE_LINK=shm, but {cause}"), advice)
    } else {
        let fact = format!("processes of this node use packets: {cause}");
        Finding::slow(NAME, fact, advice)
    }
}

/// Creates memory like the link does, with the latest seal that it uses.
fn seal() -> io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("dipole-doctor", flags)?;
    rustix::fs::ftruncate(&file, 4096)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(&file, seals)?)
}

/// Checks whether the system call for reading another process's memory is available.
fn own_memory_is_read() -> io::Result<()> {
    let source = [7_u8; 8];
    let mut copy = [0_u8; 8];
    let remote = RemoteIoVec {
        base: source.as_ptr().expose_provenance(),
        len: source.len(),
    };
    let read = process_vm_readv(
        nix::unistd::Pid::this(),
        &mut [IoSliceMut::new(&mut copy)],
        &[remote],
    )?;
    match read == source.len() && copy == source {
        true => Ok(()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn one_copy(call: io::Result<()>, scope: Option<&str>, privileged: bool) -> Finding {
    const NAME: &str = "one-copy reads";
    const TWO: &str = "long messages inside the node take two copies";
    if let Err(cause) = call {
        return Finding::slow(
            NAME,
            format!("process_vm_readv fails ({cause}): {TWO}"),
            "a container must allow that call (docker: `--cap-add SYS_PTRACE`)",
        );
    }
    let scope = scope.unwrap_or("0");
    match (scope, privileged) {
        ("0", _) => Finding::good(NAME, "long messages inside the node take one copy"),
        ("1" | "2", true) => Finding::good(
            NAME,
            format!("kernel.yama.ptrace_scope is {scope}, CAP_SYS_PTRACE overrides it: one copy"),
        ),
        ("1" | "2", false) => Finding::slow(
            NAME,
            format!("kernel.yama.ptrace_scope is {scope}: {TWO}"),
            "`sysctl -w kernel.yama.ptrace_scope=0`, if processes of a user may read each other",
        ),
        _ => Finding::slow(
            NAME,
            format!("kernel.yama.ptrace_scope is {scope}, which cannot be undone: {TWO}"),
            "start the machine with a smaller kernel.yama.ptrace_scope",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Broken, Good, Slow};
    use super::*;

    #[test]
    fn yama_decides_on_one_copy_unless_the_call_is_missing() {
        let of = |scope, privileged| one_copy(Ok(()), scope, privileged).verdict;
        assert_eq!(of(None, false), Good);
        assert_eq!(of(Some("0"), false), Good);
        assert_eq!(of(Some("1"), false), Slow);
        assert_eq!(of(Some("1"), true), Good);
        assert_eq!(of(Some("2"), true), Good);
        assert_eq!(of(Some("3"), true), Slow);
        let refused = one_copy(Err(io::ErrorKind::PermissionDenied.into()), None, true);
        assert_eq!(refused.verdict, Slow);
        assert!(refused.advice.contains("SYS_PTRACE"));
    }

    #[test]
    fn memory_that_cannot_be_shared_is_broken_only_if_it_is_insisted_on() {
        let found = cannot_share(Links::Auto, "no memory; buy some");
        assert_eq!((found.verdict, &found.advice[..]), (Slow, "buy some"));
        assert!(
            found.fact.contains("use packets: no memory"),
            "{}",
            found.fact
        );
        assert_eq!(cannot_share(Links::Shm, "no memory").verdict, Broken);
    }

    #[test]
    fn the_calls_work_on_the_machine_that_tests() {
        own_memory_is_read().expect("reading our own memory");
        seal().expect("sealed memory");
    }
}
