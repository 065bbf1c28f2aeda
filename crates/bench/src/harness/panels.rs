//! A figure that stands by itself: panels of curves beside each other, with one legend, as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

type Drawing<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed = Box<dyn std::error::Error>;

const FONT: &str = "system-ui, sans-serif";
const INK: RGBColor = RGBColor(0x33, 0x3a, 0x44);
const FAINT: RGBColor = RGBColor(0xe3, 0xe7, 0xec);
/// Colours that stay apart for the colour-blind.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x8f, 0xb8, 0xde),
    RGBColor(0x3d, 0x6f, 0xa5),
    RGBColor(0xd6, 0x3c, 0x4a),
    RGBColor(0xf2, 0xb1, 0x5c),
    RGBColor(0x5b, 0x8c, 0x5a),
    RGBColor(0x9a, 0x8f, 0xbf),
    RGBColor(0x8a, 0x5a, 0x44),
    RGBColor(0x77, 0x77, 0x77),
];
/// Panels in a row.
const COLUMNS: usize = 3;
const PANEL: (u32, u32) = (390, 280);
/// Lines of the legend, and what is above the panels.
const LINE: u32 = 20;
const HEAD: u32 = 40;

/// Values over steps that have names.
#[derive(Debug, Clone, Default)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// What the steps are.
    pub x_name: String,
    /// What the values are.
    pub y_name: String,
    /// The steps' names.
    pub steps: Vec<String>,
    /// Curves, each of which may lack steps.
    pub curves: Vec<Curve>,
    /// Values span orders of magnitude.
    pub is_logarithmic: bool,
}

/// A curve; curves of one name have one colour in all panels.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    /// In the legend.
    pub name: String,
    /// Steps and values; those that are not above 0 are left out.
    pub points: Vec<(usize, f64)>,
    /// Values of somebody else: crosses without a line.
    pub is_quoted: bool,
}

fn text(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// Draws panels below a title. What has no values is drawn without curves.
///
/// # Errors
/// The drawing's.
pub fn figure(title: &str, panels: &[Panel]) -> Result<String, Failed> {
    let mut names: Vec<(&str, bool)> = Vec::new();
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if !names.iter().any(|(name, _)| *name == curve.name) {
            names.push((&curve.name, curve.is_quoted));
        }
    }
    let columns = panels.len().clamp(1, COLUMNS);
    let rows = panels.len().div_ceil(columns).max(1);
    let width = PANEL.0 * columns as u32;
    let height = HEAD + PANEL.1 * rows as u32 + LINE * names.len() as u32 + 12;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let middle = text(17).pos(Pos::new(HPos::Center, VPos::Center));
        area.draw(&Text::new(title.to_owned(), (width as i32 / 2, HEAD as i32 / 2), middle))?;
        let (_, below) = area.split_vertically(HEAD);
        let (grid, legend) = below.split_vertically(PANEL.1 * rows as u32);
        for (cell, panel) in grid.split_evenly((rows, columns)).iter().zip(panels) {
            draw_panel(cell, panel, &names)?;
        }
        for (number, (name, is_quoted)) in names.iter().enumerate() {
            let (y, colour) = ((LINE as usize * number) as i32 + 8, COLOURS[number % COLOURS.len()]);
            if !is_quoted {
                legend.draw(&PathElement::new([(70, y), (94, y)], colour.stroke_width(2)))?;
            }
            draw_mark(&legend, (82, y), colour, *is_quoted)?;
            let left = text(13).pos(Pos::new(HPos::Left, VPos::Center));
            legend.draw(&Text::new((*name).to_owned(), (104, y), left))?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn draw_mark(area: &Drawing<'_>, at: (i32, i32), colour: RGBColor, is_quoted: bool) -> Result<(), Failed> {
    if is_quoted {
        area.draw(&Cross::new(at, 5, colour.stroke_width(3)))?;
    } else {
        area.draw(&Circle::new(at, 4, colour.filled()))?;
    }
    Ok(())
}

/// Where an axis begins and ends, as it is drawn: in logarithms where it is logarithmic.
fn span(panel: &Panel) -> Range<f64> {
    let values = || panel.curves.iter().flat_map(|curve| &curve.points).map(|(_, value)| *value).filter(|v| *v > 0.0);
    let highest = values().fold(0.0, f64::max);
    if highest <= 0.0 {
        return 0.0..1.0;
    }
    if panel.is_logarithmic {
        let lowest = values().fold(highest, f64::min);
        return lowest.log10().floor()..highest.log10().ceil().max(lowest.log10().floor() + 1.0);
    }
    0.0..highest * 1.12
}

fn draw_panel(area: &Drawing<'_>, panel: &Panel, names: &[(&str, bool)]) -> Result<(), Failed> {
    let (last, y) = (panel.steps.len().max(2) as f64 - 1.0, span(panel));
    let show = |value: f64| if panel.is_logarithmic { value.log10() } else { value };
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).margin_right(18).x_label_area_size(44).y_label_area_size(62);
    builder.caption(&panel.title, text(15));
    let mut chart = builder.build_cartesian_2d(-0.25..last + 0.25, y.clone())?;
    let value = |at: &f64| match panel.is_logarithmic {
        true if at.fract().abs() > 1e-6 => String::new(),
        true => short(10_f64.powf(*at)),
        false => short(*at),
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_labels(6).x_desc(&panel.x_name).y_desc(&panel.y_name);
    mesh.axis_desc_style(text(13)).y_label_style(text(12)).y_label_formatter(&value);
    mesh.light_line_style(TRANSPARENT).bold_line_style(FAINT).axis_style(FAINT).draw()?;
    for (step, name) in panel.steps.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(step as f64, y.start));
        area.draw(&Text::new(
            name.clone(),
            in_area(area, (x, y + 5)),
            text(12).pos(Pos::new(HPos::Center, VPos::Top)),
        ))?;
    }
    for curve in &panel.curves {
        let number = names.iter().position(|(name, _)| *name == curve.name).unwrap_or(0);
        let colour = COLOURS[number % COLOURS.len()];
        let there = curve.points.iter().filter(|(step, value)| *value > 0.0 && *step < panel.steps.len());
        let points: Vec<_> = there.map(|(step, value)| (*step as f64, show(*value))).collect();
        if !curve.is_quoted {
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        }
        for point in points {
            let at = in_area(area, chart.backend_coord(&point));
            draw_mark(area, at, colour, curve.is_quoted)?;
        }
    }
    Ok(())
}

/// A place of the whole figure, as an area counts it.
fn in_area(area: &Drawing<'_>, (x, y): (i32, i32)) -> (i32, i32) {
    let (left, top) = area.get_base_pixel();
    (x - left, y - top)
}

/// No more digits than it takes.
fn short(value: f64) -> String {
    if value >= 10.0 {
        return format!("{value:.0}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_nothing_and_of_zeroes_are_drawn() {
        assert!(figure("nothing", &[]).unwrap().contains("nothing"));
        let steps = vec!["64".to_owned()];
        for is_logarithmic in [false, true] {
            let empty = Panel { title: "empty".to_owned(), is_logarithmic, ..Panel::default() };
            let curve = Curve { name: "zero".to_owned(), points: vec![(0, 0.0), (7, 3.0)], ..Curve::default() };
            let zero = Panel { steps: steps.clone(), curves: vec![curve], is_logarithmic, ..Panel::default() };
            let svg = figure("two", &[empty, zero]).unwrap();
            assert!(svg.contains("empty") && svg.contains("zero") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn every_curve_is_in_the_legend_once() {
        let curve = |value| Curve { name: "device".to_owned(), points: vec![(0, value), (1, 3.0)], is_quoted: false };
        let steps = vec!["64".to_owned(), "128".to_owned()];
        let panel = |value| Panel { steps: steps.clone(), curves: vec![curve(value)], ..Panel::default() };
        let svg = figure("two", &[panel(1.0), panel(200.0)]).unwrap();
        assert_eq!(svg.matches("device").count(), 1, "{svg}");
        assert_eq!(svg.matches("128").count(), 2, "{svg}");
    }
}
