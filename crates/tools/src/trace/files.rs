//! The files of a run's ranks.

use std::path::{Path, PathBuf};

use dipole_bsp::trace::{State, TraceFile, is_trace_name};

use crate::output::Failure;

/// Limit of a trace file, far above what a rank writes.
const MOST_BYTES: u64 = 1 << 30;

/// A directory holds trace files of BSP ranks.
pub(super) fn are_there(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.to_str().is_some_and(is_trace_name))
}

/// The files of a directory.
pub(crate) fn load(dir: &Path) -> Result<Vec<TraceFile>, Failure> {
    let place = dir.display();
    let mut files = Vec::new();
    for path in named(dir, is_trace_name)? {
        let file = read(&path).map_err(|cause| format!("{}: {cause}", path.display()))?;
        files.push(file);
    }
    if files.is_empty() {
        return Err(format!(
            "{place} has no traces (rank-0.trace, waits-HOST-PID.trace and so on); run a program with \
             DIPOLE_TRACE={place}"
        )
        .into());
    }
    files.sort_by_key(|file| file.header.rank);
    check(&files)?;
    Ok(files)
}

/// Paths in a directory whose file names match.
pub(super) fn named(dir: &Path, is_such: fn(&str) -> bool) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(dir)
        .map_err(|cause| format!("cannot read {}: {cause}", dir.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_such) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// A file of a rank.
pub(super) fn read(path: &Path) -> Result<TraceFile, String> {
    TraceFile::parse(&bytes(path)?).map_err(|cause| cause.to_string())
}

/// Reads a trace file.
pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    dipole_naming::files::read_bytes(path, MOST_BYTES)
        .map_err(|cause| format!("it cannot be read: {cause}"))
}

/// The files must belong to all ranks of one run.
pub(crate) fn check(files: &[TraceFile]) -> Result<(), Failure> {
    let head = &files[0].header;
    let key = |file: &TraceFile| (file.header.run, file.header.size);
    if let Some(other) = files.iter().find(|file| key(file) != key(&files[0])) {
        return Err(format!(
            "the files of ranks {} and {} are of different runs; empty the directory before each \
             run",
            head.rank, other.header.rank
        )
        .into());
    }
    let twice = files
        .windows(2)
        .find(|two| two[0].header.rank == two[1].header.rank);
    if let Some(two) = twice {
        return Err(format!(
            "rank {} has several files here; empty the directory before each run",
            two[0].header.rank
        )
        .into());
    }
    if files.len() != head.size as usize {
        let is_there = |rank: &u32| files.iter().any(|file| file.header.rank == *rank);
        let missing = (0..head.size).find(|rank| !is_there(rank)).unwrap_or(0);
        return Err(format!(
            "{} of {} ranks have a file here; rank {missing}'s is missing: copy the files of all \
             nodes into one directory",
            files.len(),
            head.size
        )
        .into());
    }
    Ok(())
}

/// Notes for the reader about the files.
pub(crate) fn notes(files: &[TraceFile]) -> Vec<String> {
    let mut notes = Vec::new();
    for TraceFile {
        header,
        is_wrapped,
        damaged_blocks,
        ..
    } in files
    {
        let rank = header.rank;
        match header.state {
            State::Ended => {}
            State::Open => notes.push(format!("rank {rank} has not ended: it runs, or was killed")),
            State::Aborted => notes.push(format!("rank {rank} ended by an error")),
        }
        if *is_wrapped {
            notes.push(format!(
                "of rank {rank} only the newest supersteps are kept"
            ));
        }
        if *damaged_blocks > 0 {
            notes.push(format!("the file of rank {rank} is cut short or damaged"));
        }
    }
    notes
}
