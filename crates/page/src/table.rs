//! Tables and the numbers in them.

use super::escape;

/// Longer cells are sentences: left-aligned, with line breaks.
const WORDS: usize = 40;

/// Returns a table. The first cell of a row is its name.
#[must_use]
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let is_long = |cell: &str| cell.chars().count() > WORDS;
    // A heading has the alignment of its column.
    let has_words = |column: usize| {
        rows.iter()
            .any(|row| row.get(column).is_some_and(|cell| is_long(cell)))
    };
    let cells = |name: &str, cells: &[&str]| -> String {
        let cells = cells.iter().enumerate();
        cells
            .map(|(column, cell)| {
                let is_words = is_long(cell) || name == "th" && has_words(column);
                let name = if column == 0 { "th" } else { name };
                let class = match is_words {
                    true => " class=\"words\"",
                    false => "",
                };
                format!("<{name}{class}>{}</{name}>", escape(cell))
            })
            .collect()
    };
    let head = cells("th", headings);
    let body: String = rows
        .iter()
        .map(|row| {
            let row: Vec<&str> = row.iter().map(String::as_str).collect();
            format!("<tr>{}</tr>\n", cells("td", &row))
        })
        .collect();
    format!(
        "<div class=\"wide\"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )
}

/// Returns details that are shown on request: the numbers behind a figure.
#[must_use]
pub fn behind(html: &str) -> String {
    format!("<details><summary>Numbers behind this figure</summary>{html}</details>\n")
}

/// Formats with three significant digits, never with an exponent.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 => format!("{value:.3}"),
        size if size >= 0.01 => format!("{value:.4}"),
        _ => format!("{value:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [
            (1234.5, "1234"),
            (12.34, "12.3"),
            (3.456, "3.46"),
            (0.1234, "0.123"),
            (0.012_34, "0.0123"),
            (0.000_123, "0.000123"),
        ] {
            assert_eq!(digits(value), text);
        }
    }

    #[test]
    fn sentences_and_their_heading_stand_to_the_left() {
        let sentence = "a sentence ".repeat(9);
        let rows = [vec!["1".into(), "2".into()], vec!["3".into(), sentence]];
        let html = table(&["number", "reason"], &rows);
        let heading = "<th>number</th><th class=\"words\">reason</th>";
        assert!(
            html.contains(heading) && html.contains("<td>2</td>"),
            "{html}"
        );
        assert!(html.contains("<td class=\"words\">a sentence"), "{html}");
    }

    #[test]
    fn the_first_cell_of_each_row_names_it() {
        let html = table(&["name", "value"], &[vec!["a<b".into(), "1".into()]]);
        assert!(html.contains("<th>name</th><th>value</th>"), "{html}");
        assert!(
            html.contains("<tr><th>a&lt;b</th><td>1</td></tr>"),
            "{html}"
        );
    }
}
