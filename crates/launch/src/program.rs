//! Checks that a program can be run, once for all ranks of a host.

use std::ffi::OsStr;
use std::fs::metadata;
use std::io;
use std::path::Path;

use rustix::fs::{Access, access};

/// Why a program cannot be started from a directory with this search path, with the exit status of
/// shells.
pub(super) fn why_not(
    program: &OsStr,
    directory: &Path,
    search: Option<&OsStr>,
) -> Option<(String, u8)> {
    let usable = |path: &Path| -> io::Result<()> {
        let path = directory.join(path);
        if metadata(&path)?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(access(&path, Access::EXEC_OK)?)
    };
    let mut tried = if program.as_encoded_bytes().contains(&b'/') {
        vec![usable(program.as_ref())]
    } else {
        let search = search.unwrap_or(OsStr::new("/bin:/usr/bin"));
        let paths = std::env::split_paths(search);
        paths.map(|path| usable(&path.join(program))).collect()
    };
    if tried.iter().any(Result::is_ok) {
        return None;
    }
    // "Permission denied" is more useful than "not found" in another directory.
    tried.sort_by_key(|one| matches!(one, Err(cause) if cause.kind() == io::ErrorKind::NotFound));
    let cause = match tried.into_iter().next() {
        Some(Err(cause)) => cause,
        _ => io::ErrorKind::NotFound.into(),
    };
    let status = if cause.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    let program = program.display();
    let advice = "is it there, and executable?";
    Some((
        format!("cannot start `{program}`: {cause}; {advice}"),
        status,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_as_a_shell_does() {
        let here = Path::new("/bin");
        let tried = |program: &str, search: &str| {
            why_not(program.as_ref(), here, Some(search.as_ref())).map(|(_, status)| status)
        };
        assert_eq!(tried("sh", "/nowhere:/bin"), None);
        assert_eq!(tried("./sh", ""), None);
        assert_eq!(tried("/bin/sh", ""), None);
        assert_eq!(tried("sh", "/nowhere"), Some(127));
        assert_eq!(tried("./nothing", "/bin"), Some(127));
        assert_eq!(tried("/etc", "/bin"), Some(126));
        let (text, status) = why_not("/etc".as_ref(), here, None).expect("no program");
        assert_eq!(status, 126);
        assert!(text.starts_with("cannot start `/etc`: "), "{text}");
    }
}
