//! System calls that fail as if a resource had run out, in programs that know nothing of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::c_programs::{STRICT, compile};
use crate::pair::Folder;

/// A resource whose allocation fails once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Descriptors: EMFILE.
    Descriptors,
    /// Threads and processes: EAGAIN.
    Threads,
    /// Shared mappings: ENOMEM.
    Mappings,
    /// Room in files and directories: ENOSPC.
    Files,
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Resource::Descriptors => "descriptors",
            Resource::Threads => "threads",
            Resource::Mappings => "mappings",
            Resource::Files => "files",
        }
    }

    /// True if a text names this shortage.
    #[must_use]
    pub fn is_named(self, text: &str) -> bool {
        let names: &[&str] = match self {
            // The second is the loader's.
            Resource::Descriptors => &[
                "os error 24",
                "Error 24",
                "Too many open files",
                "no free descriptors",
            ],
            Resource::Threads => &["os error 11", "Resource temporarily unavailable"],
            Resource::Mappings => &["os error 12", "Cannot allocate memory"],
            Resource::Files => &["os error 28", "No space left on device"],
        };
        names.iter().any(|name| text.contains(name))
    }
}

/// The calls that are counted.
#[derive(Clone, Copy, Debug)]
pub enum Counted<'a> {
    /// Those of processes that run this program.
    Program(&'a Path),
    /// Those of processes that run this program and whose first argument contains this word.
    Command(&'a Path, &'a str),
    /// Those that are made while this file exists.
    While(&'a Path),
}

/// The tool that makes one call of a program fail.
#[derive(Debug)]
pub struct FailingCalls(Folder);

impl FailingCalls {
    /// Compiles the tool.
    ///
    /// # Panics
    /// If the C compiler fails, or the temporary directory cannot be written.
    #[must_use]
    pub fn new() -> FailingCalls {
        let folder = Folder::create().expect("the temporary directory can be written");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/fail_calls.c");
        let program = folder.path().join("fail_calls");
        compile("cc", &source, &program, &STRICT, &[]);
        FailingCalls(folder)
    }

    /// The words before a command in which the nth counted call fails, from 1 on; 0 for none.
    #[must_use]
    pub fn words(&self, resource: Resource, nth: u64, counted: Counted<'_>) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.0.path().join("fail_calls").into()];
        match counted {
            Counted::Program(path) => words.extend(["-e".into(), path.into()]),
            Counted::Command(path, word) => {
                words.extend(["-e".into(), path.into(), "-a".into(), word.into()]);
            }
            Counted::While(path) => words.extend(["-w".into(), path.into()]),
        }
        words.extend([
            resource.name().into(),
            nth.to_string().into(),
            self.report().into(),
        ]);
        words
    }

    /// The number of calls that the last command has made. All its processes have ended.
    ///
    /// # Panics
    /// If no command has ended.
    #[must_use]
    pub fn count(&self) -> u64 {
        let text = std::fs::read_to_string(self.report()).expect("a command has ended");
        text.trim().parse().expect("a number")
    }

    fn report(&self) -> PathBuf {
        self.0.path().join("calls")
    }
}

impl Default for FailingCalls {
    fn default() -> Self {
        FailingCalls::new()
    }
}
