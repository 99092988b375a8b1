//! The macro that defines a fuzzer.
//!
//! `cargo fuzz` sets `--cfg fuzzing`, which selects the macro of libFuzzer. Without it a fuzzer is a
//! program that runs inputs from files, which needs neither nightly nor libFuzzer:
//! `cargo run -p dipole-fuzz --bin header fuzz/artifacts/header/crash-...`.

#[cfg(fuzzing)]
pub use libfuzzer_sys::fuzz_target;

/// Defines a program that runs a fuzzer's body once for each file named in its arguments.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        fn main() -> std::io::Result<()> {
            $crate::for_each_file(|$bytes: &[u8]| $body)
        }
    };
}

/// Calls `body` with the content of each file named in the arguments of the program.
///
/// # Errors
/// A file that cannot be read, or no file.
#[cfg(not(fuzzing))]
pub fn for_each_file(body: impl Fn(&[u8])) -> std::io::Result<()> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        return Err(std::io::Error::other(
            "no input: name at least one file, for example from fuzz/artifacts",
        ));
    }
    for file in files {
        let name = file.display().to_string();
        let bytes = std::fs::read(&file)
            .map_err(|cause| std::io::Error::other(format!("cannot read {name}: {cause}")))?;
        println!("{name}: {} bytes", bytes.len());
        body(&bytes);
    }
    Ok(())
}
