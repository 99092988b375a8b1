//! Nodes for other launchers: network namespaces with host names and runtime directories of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dipole_testbed::Testbed;
use rustix::process::Pid;

use super::clean;

/// Nodes `n1`, `n2`, ... at 10.0.0.1, 10.0.0.2, ...
pub(crate) struct Nodes {
    testbed: Testbed,
    enter: PathBuf,
    shell: PathBuf,
}

impl Nodes {
    /// Creates nodes with interfaces on this many networks; `None` where that is not possible, after
    /// a message.
    pub(crate) fn new(nodes: u32, networks: u32) -> Option<Nodes> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let uts = Command::new("unshare").args(["--uts", "true"]).status();
        if !uts.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: unshare --uts does not work (Debian: util-linux)");
            return None;
        }
        let testbed = Testbed::builder().nodes(nodes).networks(networks);
        let testbed = testbed.build().expect("a testbed");
        let folder = testbed.folder();
        let names = (1..=nodes).map(|node| format!("10.0.0.{node} n{node}\n"));
        let names: String = std::iter::once("127.0.0.1 localhost\n".to_owned())
            .chain(names)
            .collect();
        for node in 1..=nodes {
            fs::write(folder.join(format!("hosts-{node}")), &names).expect("a file");
            let user = folder.join(format!("user-{node}"));
            fs::create_dir(&user).expect("a folder");
            fs::set_permissions(&user, fs::Permissions::from_mode(0o700)).expect("its mode");
        }
        let name = &testbed.node(1).namespace;
        let prefix = name.strip_suffix('1').expect("the number of the node");
        let at = folder.display();
        // `ip netns exec` has made a mount namespace.
        let enter = format!(
            "#!/bin/sh\nnode=$1; shift\n\
             exec ip netns exec {prefix}$node unshare --uts sh -c '\n\
             hostname n$0 && mkdir -p -m 0700 /tmp/dipole-0 &&\n\
             mount --bind {at}/hosts-$0 /etc/hosts &&\n\
             mount --bind {at}/user-$0 /tmp/dipole-0 && exec \"$@\"' $node \"$@\"\n"
        );
        // Called like ssh, with options; the destination is a name or an address.
        let shell = format!(
            "#!/bin/sh\nwhile case $1 in -*) true;; *) false;; esac; do shift; done\n\
             dest=${{1##*.}}; shift\nexec {at}/enter ${{dest#n}} sh -c \"$*\"\n"
        );
        fs::create_dir(folder.join("bin")).expect("a folder");
        let script = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
            path
        };
        let (enter, shell) = (script("enter", enter), script("shell", shell));
        Some(Nodes {
            testbed,
            enter,
            shell,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.testbed.folder()
    }

    pub(crate) fn count(&self) -> u32 {
        self.testbed.nodes()
    }

    /// The file of host names of a node.
    pub(crate) fn etc_hosts(&self, node: u32) -> PathBuf {
        self.folder().join(format!("hosts-{node}"))
    }

    /// A program on a node, without variables of Dipole and of launchers.
    pub(crate) fn command(&self, node: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = clean(&self.enter);
        command.arg(node.to_string()).arg(program);
        command
    }

    /// A script that is called like ssh.
    pub(crate) fn remote_shell(&self) -> &Path {
        &self.shell
    }

    /// A script for a node, with this text.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        path
    }

    /// A search path with the programs that stand in for others.
    pub(crate) fn path_with_stand_ins(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}/bin:{path}", self.folder().display())
    }

    /// Adds a stand-in for ssh.
    pub(crate) fn add_ssh(&self) {
        let ssh = self.folder().join("bin/ssh");
        std::os::unix::fs::symlink(&self.shell, ssh).expect("a link");
    }

    /// The processes in the namespace of a node.
    pub(crate) fn processes(&self, node: u32) -> Vec<Pid> {
        let namespace = &self.testbed.node(node).namespace;
        let listed = Command::new("ip")
            .args(["netns", "pids", namespace])
            .output();
        let listed = listed.expect("ip runs").stdout;
        let listed = String::from_utf8_lossy(&listed);
        let numbers = listed.lines().filter_map(|line| line.trim().parse().ok());
        numbers.filter_map(Pid::from_raw).collect()
    }

    /// Runs `ip` with these words in the namespace of a node.
    pub(crate) fn ip(&self, node: u32, words: &str) {
        let namespace = &self.testbed.node(node).namespace;
        let mut command = Command::new("ip");
        command.args(["-n", namespace]).args(words.split(' '));
        assert!(command.status().expect("ip runs").success(), "{words}");
    }
}
