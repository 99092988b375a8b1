//! HTML pages with figures and the tables behind them, in one file that needs neither a network nor
//! scripts and follows the reader's light or dark theme.
//!
//! A page also contains its data as `application/json`.

#![forbid(unsafe_code)]

mod chart;
mod scale;
mod table;

use serde::Serialize;

pub use chart::{Chart, Curve, Point};
pub use scale::{Axis, Scale, Tick, share};
pub use table::{behind, digits, table};

/// The style sheet of all pages.
pub const STYLE: &str = include_str!("style.css");

/// The head of a page.
#[derive(Clone, Copy, Debug)]
pub struct Heading<'a> {
    /// Title of the page.
    pub title: &'a str,
    /// Explanation of the page for readers.
    pub text: &'a str,
    /// Names and values that describe the origin of the data.
    pub facts: &'a [(&'a str, String)],
}

/// Returns a page with a head, HTML and the data behind it.
///
/// # Panics
/// The data cannot be written as JSON: they contain a map whose keys are not text.
#[must_use]
pub fn document(heading: Heading<'_>, body: &str, data: &impl Serialize) -> String {
    let Heading { title, text, facts } = heading;
    let mut header = format!(
        "<header><h1>{}</h1>\n<p>{}</p><dl>",
        escape(title),
        escape(text)
    );
    for (name, value) in facts {
        header += &format!("<dt>{name}</dt><dd>{}</dd>", escape(value));
    }
    header += "</dl></header>\n";
    // Prevents "</script>" in the data.
    let data = serde_json::to_string(data)
        .expect("plain data is JSON")
        .replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{header}{body}\
         <script type=\"application/json\" id=\"data\">{data}</script>\n</body>\n</html>\n",
        escape(title)
    )
}

/// Returns a section of a page with a title.
#[must_use]
pub fn section(title: &str, body: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{body}</section>\n", escape(title))
}

/// Formats a length in the largest unit in which it is a whole number, such as `64 KiB`.
#[must_use]
pub fn byte_size(bytes: impl TryInto<u64>) -> String {
    match bytes.try_into().unwrap_or(u64::MAX) {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Escapes text for HTML, also within quotes.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out_of_the_page() {
        assert_eq!(escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
        let heading = Heading {
            title: "<b>",
            text: "& so on",
            facts: &[("Command", "a <i>".to_owned())],
        };
        let page = document(heading, "", &"</script><script>");
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert!(!page.contains("<b>") && !page.contains("<i>"), "{page}");
    }

    #[test]
    fn lengths_have_the_largest_unit_in_which_they_are_whole() {
        assert_eq!(byte_size(0_u64), "0 B");
        assert_eq!(byte_size(1500_u64), "1500 B");
        assert_eq!(byte_size(64_usize << 10), "64 KiB");
        assert_eq!(byte_size(3_u64 << 20), "3 MiB");
    }
}
