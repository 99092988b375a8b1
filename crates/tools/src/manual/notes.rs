//! Examples, exit statuses and related pages of each command, from `notes.toml`.

use std::sync::OnceLock;

use serde::Deserialize;

/// The end of a command's page.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Notes {
    /// Names of the pages that end like this.
    pages: Vec<String>,
    /// Lines for a shell, with their effect.
    pub(super) examples: Vec<(String, String)>,
    /// Statuses with their meaning; completed from the common ones.
    #[serde(default)]
    pub(super) status: Vec<(String, String)>,
    /// Variables that the command reads; the common ones if empty.
    #[serde(default)]
    pub(super) environment: Vec<String>,
    /// Related pages of section 1.
    #[serde(default)]
    pub(super) see: Vec<String>,
}

/// The file: what all commands share, and the notes of each.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    status: Vec<(String, String)>,
    environment: Vec<String>,
    command: Vec<Notes>,
}

/// Position of a status on the page: by number, texts last.
fn place(status: &str) -> u32 {
    let number = status.split(',').next().unwrap_or_default();
    number.parse().unwrap_or(u32::MAX)
}

/// The notes of a command, by the name of its page; those of the program for hidden commands.
pub(super) fn notes(page: &str) -> Notes {
    static FILE: OnceLock<File> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        toml::from_str(include_str!("notes.toml")).expect("a test reads this file")
    });
    let is_page = |notes: &&Notes| notes.pages.iter().any(|name| name == page);
    let found = file.command.iter().find(is_page);
    let mut notes = found.unwrap_or(&file.command[0]).clone();
    for common in &file.status {
        if notes.status.iter().all(|(status, _)| *status != common.0) {
            notes.status.push(common.clone());
        }
    }
    notes.status.sort_by_key(|(status, _)| place(status));
    if notes.environment.is_empty() {
        notes.environment.clone_from(&file.environment);
    }
    notes
}
