//! The machine that something is built for, with the compiler and tools for it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::command::{Failure, cargo, output_of, root, run};

/// The other processor that everything can be built for.
const PORTABLE_TO: &str = "aarch64-unknown-linux-gnu";

/// A machine to build for.
#[derive(Args, Clone, Default)]
pub(crate) struct Target {
    /// Rust's name of another machine to build for, such as aarch64-unknown-linux-gnu
    #[arg(long = "target", value_name = "TARGET")]
    name: Option<String>,
}

impl Target {
    /// Adds the options for this target, and the linker if the user has not set one.
    pub(crate) fn add_to(&self, cargo: &mut Command) {
        if let Some(name) = &self.name {
            cargo.args(["--target", name]);
            if let Err(variable) = self.variable("LINKER") {
                cargo.env(variable, self.prefixed("gcc"));
            }
        }
    }

    /// Folder of the results in cargo's target directory.
    pub(crate) fn folder(&self) -> &Path {
        Path::new(self.name.as_deref().unwrap_or(""))
    }

    /// The processor, as Rust and wheels name it.
    pub(crate) fn processor(&self) -> &str {
        let first = self.name.as_deref().and_then(|name| name.split('-').next());
        first.unwrap_or(std::env::consts::ARCH)
    }

    /// A tool of binutils.
    pub(crate) fn tool(&self, name: &str) -> Command {
        Command::new(self.prefixed(name))
    }

    /// A built program, in an emulator if it is for another machine.
    pub(crate) fn program(&self, path: &Path) -> Command {
        let Some(name) = &self.name else {
            return Command::new(path);
        };
        let runner = self.variable("RUNNER").unwrap_or_else(|_| {
            let libraries = name.replace("-unknown-", "-");
            format!("qemu-{} -L /usr/{libraries}", self.processor()).into()
        });
        let runner = runner.to_string_lossy();
        let mut words = runner.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(path);
        command
    }

    /// A variable by which cargo is configured for this target, or else its name.
    fn variable(&self, key: &str) -> Result<OsString, String> {
        let name = self.name.as_deref().unwrap_or("");
        let name = name.replace('-', "_").to_uppercase();
        let variable = format!("CARGO_TARGET_{name}_{key}");
        std::env::var_os(&variable).ok_or(variable)
    }

    /// The name of a GNU tool: that of another machine begins with its name, without the vendor.
    fn prefixed(&self, tool: &str) -> String {
        match &self.name {
            Some(name) => format!("{}-{tool}", name.replace("-unknown-", "-")),
            None => tool.to_owned(),
        }
    }
}

/// Checks that everything, including tests, compiles for another processor.
pub(crate) fn check() -> Result<(), Failure> {
    let installed = output_of(Command::new("rustup").args(["target", "list", "--installed"]));
    if installed.is_some_and(|names| !names.lines().any(|name| name == PORTABLE_TO)) {
        let advice = format!("the target is missing: rustup target add {PORTABLE_TO}");
        return Err(Failure::Text(advice));
    }
    let target = Target {
        name: Some(PORTABLE_TO.to_owned()),
    };
    let mut check = cargo();
    check.args(["clippy", "--locked", "--workspace", "--all-targets"]);
    target.add_to(&mut check);
    run(check.args(["--", "-D", "warnings"]).current_dir(root()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_another_machine_have_its_name() {
        let own = Target::default();
        assert_eq!(own.tool("strip").get_program(), "strip");
        assert_eq!(own.program(Path::new("/p")).get_program(), "/p");
        assert_eq!(own.processor(), std::env::consts::ARCH);
        let name = Some("riscv64gc-unknown-linux-gnu".to_owned());
        let other = Target { name };
        assert_eq!(
            other.tool("strip").get_program(),
            "riscv64gc-linux-gnu-strip"
        );
        assert_eq!(other.processor(), "riscv64gc");
        let mut cargo = Command::new("cargo");
        other.add_to(&mut cargo);
        let variable = "CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER";
        assert!(cargo.get_envs().any(|(name, _)| name == variable));
    }
}
