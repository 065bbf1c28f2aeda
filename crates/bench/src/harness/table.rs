//! Tables, for terminals and for pages.

use super::page::escape;
use bifolio_block::printable;
use std::borrow::Cow;
use std::fmt::Write;

/// A head, rows of cells, and which columns hold names and not numbers.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    names: Vec<usize>,
}

impl Table {
    /// A table without rows. Columns in `names` are left-aligned, numbers are right-aligned.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>, names: &[usize]) -> Self {
        Self { rows: vec![head.into_iter().map(Into::into).collect()], names: names.to_vec() }
    }

    /// Adds a row.
    pub fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The same with more rows.
    #[must_use]
    pub fn with(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// For terminals.
    pub fn text(&self) -> String {
        columns(&self.rows, &self.names)
    }

    /// For pages.
    pub fn html(&self) -> String {
        self.html_with(|_, _| String::new())
    }

    /// The same; rows below the head get the classes that `class` says for their number and cells.
    pub fn html_with(&self, class: impl Fn(usize, &[String]) -> String) -> String {
        let mut text = String::from("<div class=\"scroll\"><table>\n");
        for (number, row) in self.rows.iter().enumerate() {
            let (tag, class) = match number {
                0 => ("th", String::new()),
                number => ("td", class(number - 1, row)),
            };
            let class = if class.is_empty() { class } else { format!(" class=\"{class}\"") };
            let _ = write!(text, "<tr{class}>");
            for (column, cell) in row.iter().enumerate() {
                let name = if self.names.contains(&column) { " class=\"name\"" } else { "" };
                let _ = write!(text, "<{tag}{name}>{}</{tag}>", escape(cell));
            }
            text.push_str("</tr>\n");
        }
        text + "</table></div>\n"
    }
}

/// Lays rows out in columns; cells are printable. Columns named in `left` are left-aligned, numbers are right-aligned.
pub fn columns(rows: &[Vec<String>], left: &[usize]) -> String {
    let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let pad = |(column, cell): (usize, &Cow<'_, str>)| {
            let fill = " ".repeat(widths[column] - cell.chars().count());
            if left.contains(&column) { format!("{cell}{fill}") } else { format!("{fill}{cell}") }
        };
        let line = row.iter().enumerate().map(pad).collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A ratio with three digits; nothing of none.
pub fn ratio(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_aligned_and_numbers_right_aligned() {
        let table = Table::new(["a", "1"], &[0]).with([vec!["bcd".to_owned(), "23".to_owned()]]);
        assert_eq!(table.text(), "a     1\nbcd  23\n");
    }

    #[test]
    fn a_cell_ends_no_line_and_reaches_no_terminal() {
        let rows = [["label", "a\n\u{1b}[2J"], ["x", "y"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows, &[0, 1]), "label  a\\n\\u{1b}[2J\nx      y\n");
    }

    #[test]
    fn a_cell_is_no_markup() {
        let table = Table::new(["<way>", "n"], &[0]).with([vec!["a&b".to_owned(), "1".to_owned()]]);
        let html = table.html_with(|row, cells| format!("{row}-{}", cells.len()));
        assert!(html.contains("<th class=\"name\">&lt;way&gt;</th><th>n</th>"), "{html}");
        assert!(html.contains("<tr class=\"0-2\"><td class=\"name\">a&amp;b</td><td>1</td>"), "{html}");
    }
}
