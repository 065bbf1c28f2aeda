//! Makes arrays for Linux to assemble: `md_members FOLDER` writes a folder for each, with `member-N` and the
//! SHA-256 of the content. Arrays that are there already are written to. Used by `tests/fixtures/make-md.sh`.

use bifolio_io::Cancel;
use bifolio_kernels::digest::{Digest, oracle};
use bifolio_kernels::known_answer::Draw;
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, Load, RoutedFile};
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DATA_OFFSET: u64 = 1 << 20;

/// What happens to an array after it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    Closed,
    /// Another part is written, and it is never closed.
    Unclean,
    /// A member is left out, others are written.
    Degraded,
    /// Then a new one is rebuilt in its place.
    Rebuilt,
    /// Closed while a rebuild was interrupted.
    HalfRebuilt,
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: md_members FOLDER")?);
    let mut draw = Draw::afresh();
    for entry in std::fs::read_dir(&folder)? {
        write_to_another(&entry?.path(), &mut draw)?;
    }
    for rotation in Rotation::ALL {
        make(&folder.join(rotation.name()), rotation, (5, 4096, 21), Story::Closed, &mut draw)?;
    }
    make(&folder.join("large-chunks"), Rotation::LeftSymmetric, (4, 512 << 10, 5), Story::Closed, &mut draw)?;
    make(&folder.join("many-members"), Rotation::RightAsymmetric, (11, 16384, 9), Story::Closed, &mut draw)?;
    for (name, story) in [
        ("unclean", Story::Unclean),
        ("degraded", Story::Degraded),
        ("rebuilt", Story::Rebuilt),
        ("half-rebuilt", Story::HalfRebuilt),
    ] {
        make(&folder.join(name), Rotation::LeftSymmetric, (5, 65536, 20), story, &mut draw)?;
    }
    Ok(())
}

fn make(
    folder: &Path,
    rotation: Rotation,
    (members, chunk, stripes): (usize, u64, u64),
    story: Story,
    draw: &mut Draw,
) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let size = DATA_OFFSET + chunk * stripes;
    let blank = |i: usize| -> Result<Arc<dyn Load>, Box<dyn Error>> {
        let path = folder.join(format!("member-{i:02}"));
        std::fs::File::create(&path)?.set_len(size)?;
        Ok(Arc::new(RoutedFile::open(path, true)?))
    };
    let all: Vec<Arc<dyn Load>> = (0..members).map(blank).collect::<Result<_, _>>()?;
    let options = CreateOptions { name: "ours".to_owned(), content: Content::Zeroes, ..CreateOptions::default() };
    let mut array = Raid6::create(all.clone(), chunk, rotation, &options)?;
    write_some(&array, draw, 40)?;
    if matches!(story, Story::Degraded | Story::Rebuilt | Story::HalfRebuilt) {
        array.close()?;
        array = Raid6::assemble(all[1..].to_vec(), true)?;
        write_some(&array, draw, 20)?;
    }
    let cancel = Cancel::default();
    match story {
        Story::Rebuilt => array.rebuild(blank(0)?, &mut |_, _| {}, &cancel)?,
        Story::HalfRebuilt => {
            cancel.cancel();
            let _ = array.rebuild(blank(0)?, &mut |_, _| {}, &cancel);
            write_some(&array, draw, 20)?;
        }
        _ => {}
    }
    note_content(folder, &array)?;
    match story {
        Story::Unclean => {
            array.flush()?;
            std::mem::forget(array);
        }
        _ => array.close()?,
    }
    Ok(())
}

/// An array that is there.
fn write_to_another(folder: &Path, draw: &mut Draw) -> Result<(), Box<dyn Error>> {
    let members = std::fs::read_dir(folder)?
        .map(|entry| -> Result<Arc<dyn Load>, Box<dyn Error>> { Ok(Arc::new(RoutedFile::open(entry?.path(), true)?)) });
    let array = Raid6::assemble(members.collect::<Result<_, _>>()?, true)?;
    write_some(&array, draw, 20)?;
    note_content(folder, &array)?;
    Ok(array.close()?)
}

fn note_content(folder: &Path, array: &Raid6) -> Result<(), Box<dyn Error>> {
    let mut content = vec![0; array.geometry().size as usize];
    array.read(0, &mut content)?;
    let sum = oracle(Digest::Sha256, &content).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    Ok(std::fs::write(folder.join("sha256"), sum)?)
}

fn write_some(array: &Raid6, draw: &mut Draw, times: usize) -> bifolio_volume::Result<()> {
    let size = array.geometry().size;
    array.write(0, &draw.bytes(size as usize))?;
    for _ in 0..times {
        let offset = draw.below(size);
        let len = 1 + draw.below((size - offset).min(100_000));
        array.write(offset, &draw.bytes(len as usize))?;
    }
    Ok(())
}
