//! Pages: one HTML file with everything in it.

use std::fmt::Write;

const STYLE: &str = "
:root { color: #2b3138; background: #f4f6f8; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .8rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 0 0 .6rem; } p { margin: .3rem 0; } .quiet { color: #5d6772; font-size: .9rem; }
.card { background: #fff; border: 1px solid #e3e7ec; border-radius: 10px; padding: 18px 20px; margin: 0 0 18px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 18px; }
.pair .card { margin: 0; } .pair + .card, .card + .pair { margin-top: 18px; }
svg { width: 100%; height: auto; display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; font-size: .88rem; color: #5d6772; margin: 0 0 .4rem; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.legend i.limit { height: 0; width: 18px; border-top: 2px dashed #111; border-radius: 0; vertical-align: 4px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid #eef1f4; }
th { color: #5d6772; font-weight: 600; white-space: normal; vertical-align: bottom; border-bottom: 2px solid #e3e7ec; } .name { text-align: left; }
tr.auto { font-weight: 650; } tr.auto td.name:nth-child(5) { color: #d63c4a; } tr.bound { color: #8a949e; }
tr.first td { border-top: 1px solid #ccd3da; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 1rem 0 0; font-size: .9rem; }
dt { color: #5d6772; } dd { margin: 0; overflow-wrap: anywhere; }
";

/// A whole page.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

/// A plot or a table in a frame, with its title and legend above it.
pub fn card(title: &str, legend: &str, content: &str) -> String {
    format!("<div class=\"card\">\n<h3>{}</h3>\n{legend}{content}\n</div>\n", escape(title))
}

/// What the colours of a plot stand for: a name and a colour as CSS writes it for each.
pub fn legend<'a>(colours: impl IntoIterator<Item = (&'a str, String)>, limit: Option<&str>) -> String {
    let mut text = String::new();
    for (name, colour) in colours {
        let _ = write!(text, "<span><i style=\"background:{colour}\"></i>{}</span>", escape(name));
    }
    if let Some(limit) = limit {
        let _ = write!(text, "<span><i class=\"limit\"></i>{}</span>", escape(limit));
    }
    format!("<div class=\"legend\">{text}</div>\n")
}

/// Small print, one paragraph a line.
pub fn quiet<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    lines.into_iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "<p class=\"quiet\">{}</p>", escape(line));
        text
    })
}

/// Text that is no markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
