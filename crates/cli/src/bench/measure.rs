//! From a benchmark to what is printed of it.

use crate::exit::Failure;
use crate::global::Global;
use crate::progress::Progress;
use bifolio_bench::{Measured, Page, Report, Result, Session};
use bifolio_io::Cancel;
use std::path::Path;

/// Runs a benchmark with a bar, and prints what it has measured: if it was interrupted what it had by then, and the
/// exit code says so.
pub(super) fn measure<R: Report>(
    global: &Global,
    cancel: &Cancel,
    run: impl FnOnce(&Session) -> Result<Measured<R>>,
) -> Result<(), Failure> {
    let measured = with_progress(cancel, run)?;
    print(global, &measured)
}

/// The same, with a page where one was asked for.
pub(super) fn measure_and_draw<R: Page>(
    global: &Global,
    cancel: &Cancel,
    page: Option<&Path>,
    run: impl FnOnce(&Session) -> Result<Measured<R>>,
) -> Result<(), Failure> {
    measure_and_plot(global, cancel, page.map(|out| (out, Measured::page)), run)
}

/// The same with what `draw` makes of it, in a file.
pub(super) fn measure_and_plot<R: Report>(
    global: &Global,
    cancel: &Cancel,
    drawing: Option<(&Path, impl Fn(&Measured<R>) -> Result<String>)>,
    run: impl FnOnce(&Session) -> Result<Measured<R>>,
) -> Result<(), Failure> {
    let measured = with_progress(cancel, run)?;
    if let Some((out, draw)) = drawing {
        write_drawing(out, draw(&measured)?)?;
    }
    print(global, &measured)
}

/// Writes a report or a figure.
pub(super) fn write_drawing(out: &Path, drawing: String) -> Result<(), Failure> {
    std::fs::write(out, drawing)
        .map_err(|error| Failure::failed(format!("{}: writing the report failed: {error}", out.display())))
}

fn with_progress<R>(cancel: &Cancel, run: impl FnOnce(&Session) -> Result<R>) -> Result<R> {
    let session = Session::new(cancel.clone());
    let _progress = Progress::of_session(&session);
    run(&session)
}

fn print<R: Report>(global: &Global, measured: &Measured<R>) -> Result<(), Failure> {
    global.answer(measured, || measured.text())?;
    if measured.partial { Err(Failure::interrupted_in_part()) } else { Ok(()) }
}
