//! A headless browser that opens a page.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

pub(crate) fn browser(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = BROWSERS.iter().find_map(|name| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    });
    if found.is_none() {
        assert!(
            std::env::var_os("DIPOLE_REQUIRE_BROWSER").is_none_or(|value| value != "1"),
            "{test} needs one of {BROWSERS:?} and DIPOLE_REQUIRE_BROWSER=1 forbids to skip it"
        );
        eprintln!("SKIPPED {test}: it needs one of {BROWSERS:?}");
    }
    found
}

/// The page as the browser rendered it, and the browser's output.
pub(crate) struct Opened {
    pub(crate) dom: String,
    pub(crate) said: String,
}

pub(crate) fn open(browser: &Path, page: &Path, folder: &Path) -> Opened {
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        // Every request of the page must fail.
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        "--dump-dom",
    ]);
    let mut profile = std::ffi::OsString::from("--user-data-dir=");
    profile.push(folder.join("profile"));
    let mut address = std::ffi::OsString::from("file://");
    address.push(page);
    let output = command
        .arg(profile)
        .arg(address)
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{said}", output.status);
    Opened {
        dom: String::from_utf8(output.stdout).expect("text"),
        said,
    }
}

impl Opened {
    /// The browser reported nothing, and the page refers to nothing outside.
    pub(crate) fn check(&self) {
        // Messages about its own pages only depend on how busy the machine is.
        let lines = self.said.lines().filter(|line| !line.contains("chrome://"));
        for line in lines {
            let is_trouble = ["CONSOLE", "Uncaught", "ERR_"];
            let is_trouble = is_trouble.iter().any(|trouble| line.contains(trouble));
            assert!(!is_trouble, "{line}: {}", self.said);
        }
        for outside in ["http://", "https://", " src=", "@import", "url("] {
            assert!(!self.dom.contains(outside), "the page refers to {outside}");
        }
    }
}
