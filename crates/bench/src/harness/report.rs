//! What a benchmark hands back: all that it was to measure, or what it had when it was interrupted.

use super::page;
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Said first of results that are partial.
const PARTIAL: &str = "partial: the benchmark was interrupted; this is what it had measured by then";

/// Results of a benchmark, for people.
pub trait Report: Serialize {
    /// As text.
    fn text(&self) -> String;
}

/// Results that can be drawn.
pub trait Page: Report {
    /// The page's title.
    const TITLE: &'static str;

    /// What stands on the page, in HTML, with plots beside their tables.
    fn body(&self) -> std::result::Result<String, Box<dyn std::error::Error>>;
}

/// Results, and whether they are all that there should be.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured<R> {
    /// The benchmark was interrupted.
    pub partial: bool,
    /// What was measured until then.
    #[serde(flatten)]
    pub results: R,
}

impl<R: Report> Measured<R> {
    /// Results of measuring that has `ended` well, or by an interruption after it had measured something.
    pub fn new(ended: Result<()>, has_measured: bool, results: impl FnOnce() -> R) -> Result<Self> {
        let partial = match ended {
            Ok(()) => false,
            Err(error) if error.kind() == ErrorKind::Interrupted && has_measured => true,
            Err(error) => return Err(error),
        };
        Ok(Self { partial, results: results() })
    }

    /// As text.
    pub fn text(&self) -> String {
        let text = self.results.text();
        if self.partial { format!("{PARTIAL}\n{text}") } else { text }
    }
}

impl<R: Page> Measured<R> {
    /// As one self-contained HTML page.
    pub fn page(&self) -> Result<String> {
        let body = self.results.body();
        let body = body.map_err(|error| Error::failed("", format!("drawing the report failed: {error}")))?;
        let note = if self.partial { format!("<p><b>{}</b></p>\n", page::escape(PARTIAL)) } else { String::new() };
        Ok(page::document(R::TITLE, &format!("{note}{body}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize)]
    struct Rows {
        rows: Vec<u32>,
    }

    impl Report for Rows {
        fn text(&self) -> String {
            format!("{} rows\n", self.rows.len())
        }
    }

    impl Page for Rows {
        const TITLE: &'static str = "rows";

        fn body(&self) -> std::result::Result<String, Box<dyn std::error::Error>> {
            Ok("<p>rows</p>".to_owned())
        }
    }

    #[test]
    fn an_interruption_leaves_what_was_measured_and_says_so() {
        let rows = || Rows { rows: vec![1, 2] };
        let whole = Measured::new(Ok(()), true, rows).unwrap();
        assert!(!whole.partial && whole.text() == "2 rows\n" && !whole.page().unwrap().contains("interrupted"));
        let part = Measured::new(Err(Error::interrupted()), true, rows).unwrap();
        assert!(part.partial && part.text().starts_with("partial: ") && part.text().ends_with("2 rows\n"));
        assert!(part.page().unwrap().contains("interrupted"));
        let nothing = Measured::new(Err(Error::interrupted()), false, rows).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::Interrupted);
        let failed = Measured::new(Err(Error::failed("x", "reading failed")), true, rows).unwrap_err();
        assert_eq!(failed.to_string(), "x: reading failed");
    }
}
