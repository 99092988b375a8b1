//! Obstacles to the preload library in a program, found before it runs.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionTable};
use object::{Endianness, ReadCache, ReadRef};

/// The kernel follows as many interpreters of scripts.
const MAX_SCRIPTS: usize = 5;
/// The kernel reads as much of a script's first line.
const FIRST_LINE_BYTES: u64 = 256;

/// Reasons why a program uses only plain TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It is linked statically, so no loader reads `LD_PRELOAD`.
    Static,
    /// The loader is that of musl or another C library.
    OtherLibrary { loader: String },
    /// The sanitizer's library refuses to start after another one.
    AddressSanitizer { library: String },
    /// Go makes system calls itself.
    Go,
}

impl Obstacle {
    /// True if the program would not start with the library.
    pub(super) fn is_fatal(&self) -> bool {
        match self {
            Obstacle::OtherLibrary { .. } | Obstacle::AddressSanitizer { .. } => true,
            Obstacle::Static | Obstacle::Go => false,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => write!(f, "is statically linked, so it loads no library"),
            Obstacle::OtherLibrary { loader } if loader.contains("musl") => {
                write!(f, "uses musl ({loader}), and the library needs glibc")
            }
            Obstacle::OtherLibrary { loader } => {
                write!(f, "is loaded by {loader}, and the library needs glibc")
            }
            Obstacle::AddressSanitizer { library } => write!(
                f,
                "is built with AddressSanitizer ({library}), which must be loaded before any other library"
            ),
            Obstacle::Go => write!(f, "is a Go program, which makes system calls itself"),
        }
    }
}

/// Finds the obstacle of a program named on the command line, or of the interpreter of a script. `None` if
/// there is not one, or the program cannot be read.
pub(super) fn obstacle(program: &OsStr) -> Option<Obstacle> {
    let mut path = find(program)?;
    for _ in 0..MAX_SCRIPTS {
        let file = File::open(&path).ok()?;
        match script_interpreter(&file) {
            Some(interpreter) => path = find(&interpreter)?,
            None => return obstacle_of(file),
        }
    }
    None
}

/// The path that `execvp` runs.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let folders = std::env::var_os("PATH")?;
    let is_program = |path: &PathBuf| {
        let found = path.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(is_program)
}

/// The program that runs a script; with `env NAME`, the one of that name.
fn script_interpreter(file: &File) -> Option<OsString> {
    let mut line = Vec::new();
    file.take(FIRST_LINE_BYTES).read_to_end(&mut line).ok()?;
    let line = line
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let interpreter = words.next()?;
    let named = words.next().filter(|word| !word.starts_with(b"-"));
    let is_env = Path::new(OsStr::from_bytes(interpreter)).file_name() == Some(OsStr::new("env"));
    let found = named.filter(|_| is_env).unwrap_or(interpreter);
    Some(OsString::from_vec(found.to_vec()))
}

fn obstacle_of(file: File) -> Option<Obstacle> {
    let data = &ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut loader = None;
    for segment in header.program_headers(endian, data).ok()? {
        if let Ok(Some(found)) = segment.interpreter(endian, data) {
            loader = Some(String::from_utf8_lossy(found).into_owned());
        }
    }
    let Some(loader) = loader else {
        return Some(Obstacle::Static);
    };
    let name = loader.rsplit('/').next().unwrap_or_default();
    if !["ld-linux", "ld64.so", "ld.so"]
        .iter()
        .any(|glibc| name.starts_with(glibc))
    {
        return Some(Obstacle::OtherLibrary { loader });
    }
    let sections = header.sections(endian, data).ok()?;
    if let Some(library) = needed(&sections, endian, data)
        .into_iter()
        .find(|library| library.starts_with("libasan.") || library.starts_with("libclang_rt.asan"))
    {
        return Some(Obstacle::AddressSanitizer { library });
    }
    let is_go = sections
        .section_by_name(endian, b".note.go.buildid")
        .is_some();
    is_go.then_some(Obstacle::Go)
}

/// Names of the libraries that a program needs.
fn needed<'a, R: ReadRef<'a>>(
    sections: &SectionTable<'a, FileHeader64<Endianness>, R>,
    endian: Endianness,
    data: R,
) -> Vec<String> {
    let Ok(table) = sections.dynamic_table(endian, data) else {
        return Vec::new();
    };
    table
        .iter()
        .filter(|entry| entry.tag == DT_NEEDED)
        .filter_map(|entry| table.string(entry).ok())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_script_is_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = |text: &str| {
            let path = folder.path().join("script");
            std::fs::write(&path, text).expect("a file");
            let file = File::open(path).expect("it is there");
            script_interpreter(&file)
        };
        assert_eq!(script("#!/bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(script("#! /usr/bin/env python3\n"), Some("python3".into()));
        assert_eq!(
            script("#!/usr/bin/env -S python3 -u"),
            Some("/usr/bin/env".into())
        );
        assert_eq!(script("\x7fELF"), None);
        assert_eq!(script("#!"), None);
        // It runs itself for ever.
        let path = folder.path().join("script");
        let text = format!("#!{}\n", path.display());
        assert!(script(&text).is_some());
        assert_eq!(obstacle(path.as_os_str()), None);
    }

    #[test]
    fn programs_of_glibc_have_no_obstacle_and_others_are_left_to_exec() {
        let own = std::env::current_exe().expect("a test has a path");
        assert_eq!(obstacle(own.as_os_str()), None);
        assert_eq!(obstacle(OsStr::new("sh")), None);
        assert_eq!(obstacle(OsStr::new("/no/such/program")), None);
        assert_eq!(obstacle(OsStr::new("/etc/passwd")), None);
    }
}
