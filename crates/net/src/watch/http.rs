//! What a client asks for, and the answer: as much of HTTP as a scraper or a browser needs. Each answer ends its connection.

/// The longest request, in bytes; one that is longer is refused.
pub const MOST_BYTES: usize = 8 << 10;

/// What there is to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// `/`: a page with a drawing, for a browser.
    Page,
    /// `/metrics`: metrics for Prometheus.
    Metrics,
    /// `/graph.svg`: a drawing of the graph, with rates.
    Graph,
}

/// What a request says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// More of it is to come.
    More,
    /// It asks for this, or for what would be said of it alone.
    For {
        /// For what.
        view: View,
        /// Whether without the content.
        is_head: bool,
    },
    /// It is refused with this code.
    Refused(u16),
}

/// Reads a request, of which there may be more to come.
pub fn parse(input: &[u8]) -> Request {
    let Some(end) = end(&input[..input.len().min(MOST_BYTES)]) else {
        return if input.len() >= MOST_BYTES { Request::Refused(431) } else { Request::More };
    };
    let line = input[..end].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words: Vec<_> = line.trim_ascii_end().split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Request::Refused(400) };
    if !version.starts_with(b"HTTP/1.") || !target.starts_with(b"/") {
        return Request::Refused(400);
    }
    if !matches!(method, b"GET" | b"HEAD") {
        return Request::Refused(405);
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let view = match path {
        b"/" => View::Page,
        b"/metrics" => View::Metrics,
        b"/graph.svg" => View::Graph,
        _ => return Request::Refused(404),
    };
    Request::For { view, is_head: method == b"HEAD" }
}

/// Where the request's head ends: after an empty line.
fn end(input: &[u8]) -> Option<usize> {
    let breaks = input.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let is_end = |at: &usize| input[at + 1..].starts_with(b"\n") || input[at + 1..].starts_with(b"\r\n");
    breaks.into_iter().find(is_end)
}

/// The head of an answer whose content has this length.
pub fn head(code: u16, kind: &str, len: usize) -> Vec<u8> {
    let allow = if code == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {code} {}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nCache-Control: no-store\r\n\
         {allow}Connection: close\r\n\r\n",
        reason(code)
    )
    .into_bytes()
}

/// What a code means.
pub fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        _ => "Bad Request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wants(view: View, is_head: bool) -> Request {
        Request::For { view, is_head }
    }

    #[test]
    fn requests_are_understood() {
        for (text, request) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", wants(View::Metrics, false)),
            ("GET /metrics?debug=1 HTTP/1.0\n\n", wants(View::Metrics, false)),
            ("HEAD /graph.svg HTTP/1.1\r\n\r\nmore", wants(View::Graph, true)),
            ("GET / HTTP/1.1\r\n\r\n", wants(View::Page, false)),
            ("", Request::More),
            ("GET /metrics HTTP/1.1\r\n", Request::More),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", Request::More),
            ("POST /metrics HTTP/1.1\r\n\r\n", Request::Refused(405)),
            ("GET /else HTTP/1.1\r\n\r\n", Request::Refused(404)),
            ("GET /metrics/../metrics HTTP/1.1\r\n\r\n", Request::Refused(404)),
            ("GET /metrics\r\n\r\n", Request::Refused(400)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Request::Refused(400)),
            ("GET http://x/metrics HTTP/1.1\r\n\r\n", Request::Refused(400)),
            ("GET /metrics HTTP/2\r\n\r\n", Request::Refused(400)),
            ("\n\n", Request::Refused(400)),
        ] {
            assert_eq!(parse(text.as_bytes()), request, "{text:?}");
        }
    }

    #[test]
    fn a_request_that_does_not_end_is_refused() {
        let long = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &[b'x'; MOST_BYTES]].concat();
        assert_eq!(parse(&long[..MOST_BYTES - 1]), Request::More);
        assert_eq!(parse(&long[..MOST_BYTES]), Request::Refused(431));
        let late = [&long[..], b"\r\n\r\n"].concat();
        assert_eq!(parse(&late), Request::Refused(431));
    }

    proptest! {
        #[test]
        fn what_came_in_pieces_means_what_it_means_in_one(
            text in r"(GET|HEAD|PUT|)( |  )(/|/metrics|/graph.svg|x)( HTTP/1.1|)(\r\n|\n)(a: b(\r\n|\n)){0,3}(\r\n|\n|)",
        ) {
            let whole = parse(text.as_bytes());
            let pieces = (0..text.len()).map(|end| parse(&text.as_bytes()[..end])).find(|request| *request != Request::More);
            prop_assert_eq!(pieces.unwrap_or(whole), whole);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes);
        }
    }
}
