//! Runs mpi4py's own tests, each module separately and with a time limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::library::{Library, Transport, provider};
use super::prepare;
use crate::command::{Failure, at};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The library.
    #[arg(long, value_enum, default_value = "openmpi5")]
    library: Library,
    /// Number of ranks, all on this node. DIPOLE_LINK selects the link.
    #[arg(long, default_value_t = 2)]
    ranks: u32,
    /// Seconds after which a module is considered hung.
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// Use the library's own TCP transport instead, to see which failures are the library's.
    #[arg(long)]
    tcp: bool,
    /// An installed libdipole-fi.so to use instead of building one.
    #[arg(long, value_name = "FILE")]
    provider: Option<PathBuf>,
    /// Test modules, such as p2p_buf; all by default.
    modules: Vec<String>,
}

/// Runs the tests; fails if any module fails.
pub(super) fn suite(arguments: &Arguments) -> Result<(), Failure> {
    let tests = prepare::tests();
    if !tests.exists() {
        let missing = "mpi4py's tests are missing; run `cargo xtask mpi prepare`";
        return Err(Failure::Text(missing.to_owned()));
    }
    let provider = provider(arguments.provider.as_deref())?;
    let modules = match arguments.modules.is_empty() {
        false => arguments.modules.clone(),
        true => all(&tests)?,
    };
    println!("{}, {} ranks", arguments.library.name(), arguments.ranks);
    let mut failed = Vec::new();
    for module in &modules {
        let began = Instant::now();
        let (result, output) = one(arguments, &provider, &tests, module)?;
        let ran = output.lines().find(|line| line.starts_with("Ran "));
        let took = began.elapsed().as_secs();
        println!("{module:16} {result:10} {took:4} s  {}", ran.unwrap_or(""));
        if result != "ok" {
            let log = provider.join(format!("{module}.log"));
            fs::write(&log, output).map_err(at(&log))?;
            println!("{:16} see {}", "", log.display());
            failed.push(module.as_str());
        }
    }
    if failed.is_empty() {
        println!("all {} modules passed", modules.len());
        return Ok(());
    }
    let (bad, all) = (failed.len(), modules.len());
    Err(Failure::Text(format!(
        "{bad} of {all} modules failed: {}",
        failed.join(", ")
    )))
}

fn all(tests: &Path) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(tests).map_err(at(tests))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            Some(name.strip_prefix("test_")?.strip_suffix(".py")?.to_owned())
        })
        .collect();
    names.sort();
    Ok(names)
}

/// Runs a module; returns how it ended and its output.
fn one(
    arguments: &Arguments,
    provider: &Path,
    tests: &Path,
    module: &str,
) -> Result<(&'static str, String), Failure> {
    let (python, variable) = arguments.library.python();
    let transport = if arguments.tcp {
        Transport::Tcp
    } else {
        Transport::Dipole
    };
    let mut command = arguments.library.launcher(transport, provider);
    if module == "ulfm" && transport == Transport::Dipole {
        command.envs(arguments.library.ulfm().iter().copied());
    }
    let output = provider.join("output");
    let file = fs::File::create(&output).map_err(at(&output))?;
    let copy = file.try_clone().map_err(at(&output))?;
    command
        .args(["-n", &arguments.ranks.to_string()])
        .arg(&python)
        .args(["main.py", "-q", &format!("test_{module}")])
        .envs(variable)
        .current_dir(tests)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy);
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn();
    let child = child.map_err(|cause| Failure::Start { program, cause })?;
    let result = ended(child, Duration::from_secs(arguments.limit));
    let bytes = fs::read(&output).map_err(at(&output))?;
    Ok((result, String::from_utf8_lossy(&bytes).into_owned()))
}

fn ended(mut child: Child, limit: Duration) -> &'static str {
    let until = Instant::now() + limit;
    let mut result = None;
    while result.is_none() && Instant::now() < until {
        result = child.try_wait().ok().flatten();
        std::thread::sleep(Duration::from_millis(20));
    }
    match result {
        Some(status) if status.success() => "ok",
        Some(_) => "failed",
        None => {
            // A launcher that gets SIGTERM ends its ranks.
            let terminated = Command::new("kill").arg(child.id().to_string()).status();
            std::thread::sleep(Duration::from_secs(if terminated.is_ok() { 5 } else { 0 }));
            let _ended_already = child.kill();
            let _status = child.wait();
            "hangs"
        }
    }
}
