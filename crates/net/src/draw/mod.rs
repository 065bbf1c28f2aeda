//! Drawings of graphs: boxes with ports, connections that lead down, and rates where they are known.

mod layout;

use std::fmt::Write;

use crate::lang::{Connection, Graph};
use layout::{BOX_HEIGHT, Layout, Place};

/// How wide a character is, about, in names (bold) and in configurations.
const NAME_WIDTH: f64 = 8.6;
const TEXT_WIDTH: f64 = 6.1;
/// As much of a class with its configuration is shown; the rest is in the tooltip.
const MAX_TEXT: usize = 30;
/// The least room for a port.
const PORT_WIDTH: f64 = 14.0;

const STYLE: &str = "text{font-family:ui-sans-serif,system-ui,sans-serif;text-anchor:middle}\
.n{font-size:13px;font-weight:600;fill:#1a202c}.c{font-size:11px;fill:#4a5568}.r{font-size:10px;fill:#2b6cb0;\
paint-order:stroke;stroke:#fff;stroke-width:3px}.b{fill:#f7fafc;stroke:#718096}.p{fill:#718096}\
.l{fill:none;stroke:#4a5568;stroke-opacity:.75}.a{fill:#4a5568}a:hover .b{stroke:#2b6cb0;stroke-width:2}";

/// What passes on a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    /// Packets a second.
    pub per_second: f64,
    /// Whether it is not known exactly.
    pub is_estimate: bool,
}

/// An SVG document that shows a graph. `rates` are those of the connections, in the graph's order; they are shown beside the
/// connections, which are wider where more passes. Each box links to `#element-NAME`.
pub fn graph_svg(graph: &Graph, rates: Option<&[Rate]>) -> String {
    let ports = graph.ports();
    let texts: Vec<_> = graph.elements.iter().map(|element| BoxText::new(&element.class, &element.config)).collect();
    let widths: Vec<_> = graph
        .elements
        .iter()
        .zip(&texts)
        .zip(&ports)
        .map(|((element, text), ports)| text.width(&element.name).max(f64::from(ports.0.max(ports.1)) * PORT_WIDTH))
        .collect();
    let layout = layout::layout(graph, &widths);
    let (width, height) = (layout.width.max(1.0), layout.height.max(1.0));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
         role=\"img\"><title>Configuration</title><style>{STYLE}</style>\
         <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"a\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n"
    );
    for (c, connection) in graph.connections.iter().enumerate() {
        let line = Line::new(connection, &layout, &ports, &layout.bends[c]);
        line.write(&mut out, rates.and_then(|rates| rates.get(c)).copied());
    }
    for (i, element) in graph.elements.iter().enumerate() {
        write_box(&mut out, &element.name, &texts[i], layout.boxes[i], ports[i]);
    }
    out.push_str("</svg>\n");
    out
}

/// What stands in a box below the name.
struct BoxText {
    short: String,
    full: String,
}

impl BoxText {
    fn new(class: &str, config: &str) -> Self {
        let config = config.split_whitespace().collect::<Vec<_>>().join(" ");
        let full = if config.is_empty() { class.to_string() } else { format!("{class}({config})") };
        let short = if full.chars().count() > MAX_TEXT {
            full.chars().take(MAX_TEXT - 1).chain(['…']).collect()
        } else {
            full.clone()
        };
        Self { short, full }
    }

    /// How wide the box has to be, below a name.
    fn width(&self, name: &str) -> f64 {
        let (name, text) = (name.chars().count() as f64 * NAME_WIDTH, self.short.chars().count() as f64 * TEXT_WIDTH);
        (name.max(text) + 20.0).max(56.0)
    }
}

fn write_box(out: &mut String, name: &str, text: &BoxText, place: Place, (inputs, outputs): (u32, u32)) {
    let Place { x, y, width } = place;
    let (name_text, left) = (escape(name), x - width / 2.0);
    let _ = write!(
        out,
        "<a href=\"#element-{name_text}\"><title>{name_text} :: {full}</title>\
         <rect class=\"b\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" rx=\"5\"/>\
         <text class=\"n\" x=\"{x:.1}\" y=\"{:.1}\">{name_text}</text><text class=\"c\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
        y + 19.0,
        y + 35.0,
        escape(&text.short),
        full = escape(&text.full),
    );
    for port in 0..inputs {
        let at = port_x(place, port, inputs);
        let _ = write!(out, "<path class=\"p\" d=\"M{:.1} {y:.1}h8l-4 5z\"/>", at - 4.0);
    }
    for port in 0..outputs {
        let at = port_x(place, port, outputs);
        let _ = write!(
            out,
            "<rect class=\"p\" x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"4\"/>",
            at - 3.0,
            y + BOX_HEIGHT - 4.0
        );
    }
    out.push_str("</a>\n");
}

fn port_x(place: Place, port: u32, count: u32) -> f64 {
    place.x - place.width / 2.0 + place.width * (f64::from(port) + 0.5) / f64::from(count)
}

/// A connection's way.
struct Line {
    points: Vec<(f64, f64)>,
    title: String,
}

impl Line {
    fn new(connection: &Connection, layout: &Layout, ports: &[(u32, u32)], bends: &[(f64, f64)]) -> Self {
        let &Connection { from, from_port, to, to_port, .. } = connection;
        let (source, sink) = (layout.boxes[from], layout.boxes[to]);
        let start = (port_x(source, from_port, ports[from].1), source.y + BOX_HEIGHT);
        let end = (port_x(sink, to_port, ports[to].0), sink.y - 1.0);
        let mut points = vec![start];
        if start.1 > end.1 {
            points.extend(way_up(source, sink, start, end, bends));
        } else {
            points.extend_from_slice(bends);
        }
        points.push(end);
        Self { points, title: format!("[{from_port}] -> [{to_port}]") }
    }

    fn write(&self, out: &mut String, rate: Option<Rate>) {
        let mut path = format!("M{:.1} {:.1}", self.points[0].0, self.points[0].1);
        for pair in self.points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let middle = f64::midpoint(y0, y1);
            let _ = write!(path, "C{x0:.1} {middle:.1} {x1:.1} {middle:.1} {x1:.1} {y1:.1}");
        }
        let width =
            rate.map(|rate| rate.per_second).filter(|rate| *rate > 1.0).map_or(1.2, |rate| 1.2 + rate.log10() * 0.6);
        let _ = writeln!(
            out,
            "<path class=\"l\" stroke-width=\"{width:.1}\" marker-end=\"url(#arrow)\" d=\"{path}\"><title>{}</title></path>",
            escape(&self.title)
        );
        if let Some(rate) = rate {
            let ((x0, y0), (x1, y1)) = (self.points[0], self.points[1]);
            let (x, y) = (f64::midpoint(x0, x1), f64::midpoint(y0, y1) + 3.0);
            let _ = writeln!(out, "<text class=\"r\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", rate.text());
        }
    }
}

/// The way of a connection that leads up: out below its box, up beside it, and into the other one from above.
fn way_up(source: Place, sink: Place, start: (f64, f64), end: (f64, f64), bends: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (below, above) = (start.1 + 12.0, end.1 - 12.0);
    let beside = |place: Place, x: f64| {
        let half = place.width / 2.0 + 10.0;
        if x < place.x { place.x - half } else { place.x + half }
    };
    let outer = source.x.max(sink.x) + source.width.max(sink.width) / 2.0 + 10.0;
    let first = bends.first().map_or(outer, |bend| beside(source, bend.0));
    let last = bends.last().map_or(outer, |bend| beside(sink, bend.0));
    let mut points = vec![(start.0, below), (first, below)];
    if !bends.is_empty() {
        points.push((first, source.y - 4.0));
        points.extend_from_slice(bends);
        points.push((last, sink.y + BOX_HEIGHT + 4.0));
    }
    points.extend([(last, above), (end.0, above)]);
    points
}

impl Rate {
    /// With three digits, a unit, and a mark where it is an estimate: `~12.3k/s`.
    fn text(self) -> String {
        let about = if self.is_estimate { "~" } else { "" };
        format!("{about}{}/s", short(self.per_second))
    }
}

/// A number with about three digits and the letter of a power of a thousand: `12.3k`.
pub fn short(number: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    // What would be rounded up to four digits has the next unit.
    let mut unit = 0;
    let mut value = number;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        _ if value < 9.995 => 2,
        _ if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", UNITS[unit])
}

/// A text as it stands in HTML and SVG, in quotes too.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // What XML has no characters for.
            c if c.is_control() && !matches!(c, '\n' | '\t' | '\r') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Log;
    use crate::lang::{AnyClass, Globals, parse};

    fn draw(text: &str, rates: Option<&[Rate]>) -> String {
        graph_svg(&parse(text, "f", &Globals::new(), &AnyClass, &mut Log::new()).unwrap(), rates)
    }

    #[test]
    fn every_element_has_a_box_and_every_connection_a_line() {
        let svg = draw("a :: X(\"<1>\", 2) -> b :: Y -> b; a [1] -> c :: Z [2] -> a; Q", None);
        assert_eq!(svg.matches("<rect class=\"b\"").count(), 4);
        assert_eq!(svg.matches("<path class=\"l\"").count(), 4);
        assert_eq!(svg.matches("<rect class=\"p\"").count(), 2 + 1 + 3);
        assert!(svg.contains("a :: X(&quot;&lt;1&gt;&quot;, 2)"));
        assert!(!svg.contains("class=\"r\""));
        assert!(draw("", None).starts_with("<svg"));
    }

    #[test]
    fn rates_stand_beside_connections() {
        let rates = [(12_345.0, false), (0.0, true)].map(|(per_second, is_estimate)| Rate { per_second, is_estimate });
        let svg = draw("a :: X -> b :: Y -> c :: Z", Some(&rates));
        assert!(svg.contains(">12.3k/s<") && svg.contains(">~0/s<"), "{svg}");
        let texts =
            [0.0, 999.4, 999.7, 1000.0, 1_234.0, 9_996.0, 99_990.0, 999_700.0, 12_000_000.0, 5e12, 5e15].map(short);
        assert_eq!(texts, ["0", "999", "1.00k", "1.00k", "1.23k", "10.0k", "100k", "1.00M", "12.0M", "5.00T", "5000T"]);
    }

    #[test]
    fn large_graphs_are_drawn() {
        let chain: String = (0..3000)
            .map(|i| format!("a{i} :: X; "))
            .chain((1..3000).map(|i| format!("a{} -> a{i}; a0 -> a{i};", i - 1)))
            .collect();
        assert_eq!(draw(&chain, None).matches("<rect class=\"b\"").count(), 3000);
    }
}
