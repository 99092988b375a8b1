//! Manual pages, the end of `--help`, and shell completions, from the command-line definitions and
//! from [`notes()`].

mod notes;

use std::io::Write;
use std::process::ExitCode;

use clap::Command;

use crate::output::Failure;
use notes::{Notes, notes};

/// Prints the completions of a shell.
pub(crate) fn completions(
    shell: clap_complete::Shell,
    mut command: Command,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "dipole", &mut text);
    out.write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Appends examples and exit statuses to the help of a command and its subcommands.
pub(crate) fn with_notes(command: Command) -> Command {
    fn noted(command: Command, name: &str) -> Command {
        let text = help(&notes(name));
        let command = match command.is_hide_set() {
            true => command,
            false => command.after_help(text),
        };
        command.mut_subcommands(|sub| {
            let name = format!("{name}-{}", sub.get_name());
            noted(sub, &name)
        })
    }
    noted(command, "dipole")
}

fn help(notes: &Notes) -> String {
    let mut text = "Examples:\n".to_owned();
    for (line, what) in &notes.examples {
        text += &format!("  {line}\n      {what}\n");
    }
    text += "\nExit status:\n";
    for (status, meaning) in &notes.status {
        text += &format!("  {status:5} {meaning}\n");
    }
    text + &format!("\nEnvironment: {}; dipole(7)", notes.environment.join(", "))
}

/// Prints the manual page of the program, and of each visible command and subcommand.
pub(crate) fn pages(command: Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    // The command `help` has no page.
    let mut command = without_help(command);
    command.build();
    page(&command, "dipole", None, out)?;
    Ok(ExitCode::SUCCESS)
}

fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

/// Date of the last review of the pages.
const DATE: &str = "2026-11-25";

fn page(
    command: &Command,
    name: &str,
    parent: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    writeln!(out, "\u{1}{name}.1")?;
    let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let commands: Vec<(String, &Command)> = commands
        .map(|sub| (format!("{name}-{}", sub.get_name()), sub))
        .collect();
    let source = format!("Dipole {}", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(command.clone().name(name.to_owned()))
        .manual("Dipole")
        .date(DATE)
        .source(source);
    let mut told = Vec::new();
    man.render_title(&mut told)?;
    man.render_name_section(&mut told)?;
    man.render_synopsis_section(&mut told)?;
    man.render_description_section(&mut told)?;
    man.render_options_section(&mut told)?;
    if !commands.is_empty() {
        man.render_subcommands_section(&mut told)?;
    }
    // An empty line is a paragraph; checkers warn about line breaks around it.
    let told = String::from_utf8(told)?.replace(".br\n\n.br\n", ".sp\n");
    write!(out, "{told}")?;
    let notes = notes(name);
    writeln!(out, ".SH \"EXIT STATUS\"")?;
    for (status, meaning) in &notes.status {
        writeln!(out, ".TP\n{}\n{}", roff(status), roff(meaning))?;
    }
    writeln!(out, ".SH ENVIRONMENT")?;
    for variable in &notes.environment {
        writeln!(out, "{}", roff(variable))?;
        writeln!(out, ".br")?;
    }
    writeln!(out, "dipole(7) explains each of them.")?;
    writeln!(out, ".SH EXAMPLES")?;
    for (line, what) in &notes.examples {
        writeln!(out, ".TP\n{}\n{}", roff(line), roff(what))?;
    }
    let see = parent
        .into_iter()
        .chain(notes.see.iter().map(String::as_str));
    let mut see: Vec<String> = see.map(|name| format!("{}(1)", roff(name))).collect();
    see.push("dipole(7)".to_owned());
    writeln!(out, ".SH \"SEE ALSO\"\n{}", see.join(", "))?;
    for (below, sub) in commands {
        page(sub, &below, Some(name), out)?;
    }
    Ok(())
}

/// Escapes a line of text for roff.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    fn all_pages() -> Vec<(String, String)> {
        let mut text = Vec::new();
        pages(crate::Arguments::command(), &mut text).unwrap_or_else(|_| panic!("a vector"));
        let text = String::from_utf8(text).expect("UTF-8");
        let pages = text.split('\u{1}').skip(1);
        pages
            .map(|page| page.split_once('\n').expect("a name"))
            .map(|(name, page)| (name.to_owned(), page.to_owned()))
            .collect()
    }

    #[test]
    fn every_page_has_all_sections_and_cites_only_pages_that_are_there() {
        let pages = all_pages();
        let names: BTreeSet<String> = pages
            .iter()
            .map(|(name, _)| name.replace(".1", "(1)"))
            .collect();
        for (name, page) in &pages {
            for section in ["\"EXIT STATUS\"", "ENVIRONMENT", "EXAMPLES", "\"SEE ALSO\""] {
                assert!(
                    page.contains(&format!(".SH {section}\n")),
                    "{name}: {section}"
                );
            }
            let plain = page.replace("\\-", "-");
            let cited = plain
                .split(|c: char| c.is_whitespace() || c == ',')
                .filter(|word| word.ends_with("(1)") && word.starts_with("dipole"));
            for word in cited {
                assert!(names.contains(word), "{name} cites {word}");
            }
        }
    }

    #[test]
    fn help_ends_with_examples_and_statuses() {
        let mut command = with_notes(crate::Arguments::command());
        let recv = command.find_subcommand_mut("recv").expect("it is there");
        let text = recv.render_help().to_string();
        for words in [
            "Examples:\n  dipole recv",
            "Exit status:\n  0 ",
            "Environment: ",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn every_example_is_understood_and_every_variable_documented() {
        let documented = include_str!("../../../docs/man/dipole.7");
        for (name, _) in all_pages() {
            let notes = notes(name.trim_end_matches(".1"));
            for (line, _) in &notes.examples {
                let words = line.split_whitespace();
                let words: Vec<&str> = words.skip_while(|word| *word != "dipole").collect();
                let end = words
                    .iter()
                    .position(|word| matches!(*word, "|" | ">" | "<"));
                let words = &words[..end.unwrap_or(words.len())];
                let matched = crate::Arguments::command().try_get_matches_from(words);
                assert!(matched.is_ok(), "{name}: {line}: {:?}", matched.err());
            }
            for variable in &notes.environment {
                assert!(documented.contains(variable.as_str()), "{name}: {variable}");
            }
        }
    }
}
