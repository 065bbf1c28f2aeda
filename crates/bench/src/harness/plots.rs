//! Plots of a report, as inline SVG.
//!
//! Colours stay apart for the colour-blind, and `auto` is the one that stands out.

use bifolio_io::size;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

type Drawing<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed = Box<dyn std::error::Error>;
type Drawn = Result<String, Failed>;

/// What the page is set in, too.
const FONT: &str = "system-ui, sans-serif";
const INK: RGBColor = RGBColor(0x33, 0x3a, 0x44);
const FAINT: RGBColor = RGBColor(0xe3, 0xe7, 0xec);
const LIMIT: RGBColor = RGBColor(0x11, 0x11, 0x11);

/// Bars beside each other, with what they have in common below them.
pub struct BarGroup {
    /// Below the bars.
    pub label: String,
    /// Engine and value.
    pub bars: Vec<(String, f64)>,
    /// A line across them.
    pub limit: Option<f64>,
}

/// One engine's values by request size, or by the cached percentage.
pub struct Series {
    /// The engine.
    pub engine: String,
    /// Bytes or percent, and value.
    pub points: Vec<(u64, f64)>,
}

/// What a plot of lines stands in. Values are given as they are drawn: logarithms where an axis is
/// logarithmic, because sizes belong at powers of two, which the crate's own logarithmic axes
/// cannot be told.
struct Frame<'a> {
    x: Range<f64>,
    y: Range<f64>,
    x_name: &'a str,
    y_name: &'a str,
    x_labels: usize,
    x_text: &'a dyn Fn(&f64) -> String,
    y_text: &'a dyn Fn(&f64) -> String,
    /// A dashed line across.
    limit: Option<f64>,
}

/// The colour of an engine, as CSS writes it.
pub fn colour_of(engine: &str) -> String {
    let RGBColor(red, green, blue) = colour(engine);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn colour(engine: &str) -> RGBColor {
    match engine {
        "cached" => RGBColor(0x8f, 0xb8, 0xde),
        "direct" => RGBColor(0x3d, 0x6f, 0xa5),
        "mapped" => RGBColor(0xf2, 0xb1, 0x5c),
        "p2p" => RGBColor(0x9a, 0x8f, 0xbf),
        _ => RGBColor(0xd6, 0x3c, 0x4a),
    }
}

fn text(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// Bars by group; values above the bars, limits as dashed lines across a group.
pub fn bars(unit: &str, groups: &[BarGroup]) -> Drawn {
    let count: usize = groups.iter().map(|group| group.bars.len() + 1).sum();
    let (width, height) = ((100 + count * 28).clamp(580, 1180) as u32, 300);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        draw_bars(&area, unit, groups)?;
        area.present()?;
    }
    Ok(scalable(&svg, width, height))
}

fn draw_bars(area: &Drawing<'_>, unit: &str, groups: &[BarGroup]) -> Result<(), Failed> {
    let values = groups.iter().flat_map(|group| group.bars.iter().map(|(_, value)| *value).chain(group.limit));
    let top = values.fold(0.0, f64::max).max(1e-6) * 1.14;
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).margin_top(16).x_label_area_size(34).y_label_area_size(64);
    let mut chart = builder.build_cartesian_2d(0.0..groups.len() as f64, 0.0..top)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_labels(6).y_desc(unit).axis_desc_style(text(13)).y_label_style(text(12));
    mesh.light_line_style(TRANSPARENT).bold_line_style(FAINT).axis_style(FAINT);
    mesh.y_label_formatter(&|value| short(*value)).draw()?;
    let mut labels = vec![];
    for (number, group) in groups.iter().enumerate() {
        let left = number as f64 + 0.12;
        let step = 0.76 / group.bars.len().max(1) as f64;
        for (place, (engine, value)) in group.bars.iter().enumerate() {
            let start = left + step * place as f64;
            let bar = [(start + step * 0.06, 0.0), (start + step * 0.94, *value)];
            chart.draw_series([Rectangle::new(bar, colour(engine).filled())])?;
            labels.push((chart.backend_coord(&(start + step / 2.0, *value)), brief(*value)));
        }
        if let Some(limit) = group.limit {
            let ends = [(number as f64 + 0.06, limit), (number as f64 + 0.94, limit)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, LIMIT.stroke_width(2)))?;
        }
        let (x, y) = chart.backend_coord(&(number as f64 + 0.5, 0.0));
        let below = text(13).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(group.label.clone(), (x, y + 10), below))?;
    }
    for ((x, y), label) in labels {
        // A limit may run behind the value: a little white keeps it readable.
        let half = 3 * label.len() as i32;
        area.draw(&Rectangle::new([(x - half, y - 14), (x + half, y - 2)], WHITE.mix(0.8).filled()))?;
        area.draw(&Text::new(label, (x, y - 3), text(11).pos(Pos::new(HPos::Center, VPos::Bottom))))?;
    }
    Ok(())
}

/// Rates by request size, both logarithmic.
pub fn lines(unit: &str, series: &[Series], limit: Option<f64>) -> Drawn {
    let limit = limit.filter(|limit| *limit > 0.0).map(f64::log10);
    let curves = curves(series, |bytes| (bytes as f64).log2(), |value| value.max(1e-12).log10());
    let x = span(curves.iter().flatten().map(|point| point.0));
    let y = span(points(series).map(|(_, value)| value.log10()).chain(limit));
    let decades_only = y.end - y.start > 1.2;
    let rates = |log: &f64| {
        if decades_only && log.fract().abs() > 1e-9 { String::new() } else { short(10_f64.powf(*log)) }
    };
    let frame = Frame {
        x_labels: labels_of_sizes(&x),
        x: x.start - 0.3..x.end + 0.3,
        y: y.start - 0.1..y.end + 0.15,
        x_name: "request",
        y_name: unit,
        x_text: &|log| size_of_log(*log),
        y_text: &rates,
        limit,
    };
    draw_curves(&frame, series, &curves)
}

/// Percentages of something that is 100 %, by request size.
pub fn percent_by_size(unit: &str, series: &[Series]) -> Drawn {
    let curves = curves(series, |bytes| (bytes as f64).log2(), |value| value);
    let x = span(curves.iter().flatten().map(|point| point.0));
    let top = points(series).map(|(_, value)| value).fold(100.0, f64::max);
    let frame = Frame {
        x_labels: labels_of_sizes(&x),
        x: x.start - 0.3..x.end + 0.3,
        y: 0.0..top * 1.08,
        x_name: "request",
        y_name: unit,
        x_text: &|log| size_of_log(*log),
        y_text: &|value| short(*value),
        limit: Some(100.0),
    };
    draw_curves(&frame, series, &curves)
}

/// Rates beside those of `auto`, by request size.
pub fn relative_by_size(series: &[Series]) -> Drawn {
    let curves = curves(series, |bytes| (bytes as f64).log2(), |value| value);
    let x = span(curves.iter().flatten().map(|point| point.0));
    let frame = Frame {
        x_labels: labels_of_sizes(&x),
        x: x.start - 0.3..x.end + 0.3,
        x_name: "request",
        x_text: &|log| size_of_log(*log),
        ..relative(series)
    };
    draw_curves(&frame, series, &curves)
}

/// Rates beside those of `auto`, by the cached percentage.
pub fn relative_by_share(series: &[Series]) -> Drawn {
    let percent = |value: &f64| format!("{value:.0} %");
    let frame =
        Frame { x: -2.0..102.0, x_labels: 11, x_name: "in the page cache", x_text: &percent, ..relative(series) };
    draw_curves(&frame, series, &curves(series, |percent| percent as f64, |value| value))
}

/// From nothing to a little above the quickest, and never less than what `auto` needs to be seen.
fn relative(series: &[Series]) -> Frame<'static> {
    let top = points(series).map(|(_, value)| value).fold(1.0, f64::max);
    Frame {
        x: 0.0..1.0,
        y: 0.0..top * 1.1,
        x_name: "",
        y_name: "throughput / that of auto",
        x_labels: 0,
        x_text: &|_| String::new(),
        y_text: &|value| short(*value),
        limit: None,
    }
}

fn size_of_log(log: f64) -> String {
    if log.fract() == 0.0 { size::exact(log.exp2() as u64) } else { String::new() }
}

fn labels_of_sizes(x: &Range<f64>) -> usize {
    ((x.end - x.start).round() as usize + 1).clamp(2, 15)
}

/// The points of all series that can be drawn.
fn points(series: &[Series]) -> impl Iterator<Item = (u64, f64)> {
    series.iter().flat_map(|series| series.points.iter().copied()).filter(|(_, value)| *value > 0.0)
}

fn curves(series: &[Series], x: impl Fn(u64) -> f64, y: impl Fn(f64) -> f64) -> Vec<Vec<(f64, f64)>> {
    let curve = |series: &Series| series.points.iter().map(|(at, value)| (x(*at), y(*value))).collect();
    series.iter().map(curve).collect()
}

/// The lowest and the highest; an empty range the wrong way round where there is nothing.
fn span(values: impl Iterator<Item = f64>) -> Range<f64> {
    values.fold(f64::MAX..f64::MIN, |span, value| span.start.min(value)..span.end.max(value))
}

fn draw_curves(frame: &Frame<'_>, series: &[Series], curves: &[Vec<(f64, f64)>]) -> Drawn {
    let (width, height) = (580, 320);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        if frame.x.start < frame.x.end && frame.y.start < frame.y.end {
            draw_in(&area, frame, series, curves)?;
        }
        area.present()?;
    }
    Ok(scalable(&svg, width, height))
}

fn draw_in(area: &Drawing<'_>, frame: &Frame<'_>, series: &[Series], curves: &[Vec<(f64, f64)>]) -> Result<(), Failed> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).margin_right(24).x_label_area_size(44).y_label_area_size(64);
    let mut chart = builder.build_cartesian_2d(frame.x.clone(), frame.y.clone())?;
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(frame.x_labels).y_labels(8).x_desc(frame.x_name).y_desc(frame.y_name);
    mesh.axis_desc_style(text(13)).label_style(text(12));
    mesh.light_line_style(TRANSPARENT).bold_line_style(FAINT).axis_style(FAINT);
    mesh.x_label_formatter(frame.x_text).y_label_formatter(frame.y_text).draw()?;
    if let Some(limit) = frame.limit {
        let ends = [(frame.x.start, limit), (frame.x.end, limit)];
        chart.draw_series(DashedLineSeries::new(ends, 6, 4, LIMIT.stroke_width(2)))?;
    }
    for (Series { engine, .. }, curve) in series.iter().zip(curves) {
        let width = if engine == "auto" { 3 } else { 2 };
        chart.draw_series(LineSeries::new(curve.iter().copied(), colour(engine).stroke_width(width)))?;
        chart.draw_series(curve.iter().map(|point| Circle::new(*point, 4, colour(engine).filled())))?;
    }
    Ok(())
}

/// For an axis: no more digits than it takes.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// For a bar: few enough digits to fit above it.
fn brief(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v <= 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Lets the page decide on the width.
fn scalable(svg: &str, width: u32, height: u32) -> String {
    let fixed = format!("<svg width=\"{width}\" height=\"{height}\"");
    svg.replacen(&fixed, &format!("<svg style=\"max-width:{width}px\" role=\"img\""), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_of_nothing_and_of_zeroes_are_drawn() {
        assert!(bars("GB/s", &[]).unwrap().contains("<svg style"));
        let group = BarGroup { label: "warm".to_owned(), bars: vec![("auto".to_owned(), 0.0)], limit: Some(0.0) };
        assert!(bars("GB/s", &[group]).unwrap().contains("warm"));
        assert!(lines("GB/s", &[], None).unwrap().contains("<svg style"));
        let series = Series { engine: "auto".to_owned(), points: vec![(4096, 0.5)] };
        let series = [series];
        assert!(lines("GB/s", &series, Some(2.0)).unwrap().contains("4K"));
        assert!(
            relative_by_size(&series).unwrap().contains("4K") && relative_by_size(&[]).unwrap().contains("<svg style")
        );
        let series = [Series { engine: "direct".to_owned(), points: vec![(0, 1.0), (100, 0.0)] }];
        assert!(relative_by_share(&series).unwrap().contains("50 %"));
        assert!(relative_by_share(&[]).unwrap().contains("100 %"));
    }
}
