//! Arithmetic on ranges: of pages by their numbers, of frames, and of bytes.

use std::ops::Range;

/// Numbers that follow each other, as ranges.
pub(crate) fn runs(numbers: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

/// A range in pieces of at most `most`.
pub(crate) fn chunks(run: &Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let run = run.clone();
    (run.start..run.end).step_by(most as usize).map(move |start| start..run.end.min(start + most))
}

/// What two ranges have in common; it may be empty.
pub(crate) fn intersection(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// What is left of a range without others.
pub(crate) fn without(range: &Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let cut = |left: Vec<Range<u64>>, other: &Range<u64>| {
        let pieces = |part: Range<u64>| {
            [part.start..part.end.min(other.start), part.start.max(other.end)..part.end]
                .into_iter()
                .filter(|piece| !piece.is_empty())
        };
        left.into_iter().flat_map(pieces).collect()
    };
    others.iter().fold(vec![range.clone()], cut)
}

/// The first number of a range that none of the others has.
pub(crate) fn first_missing(range: &Range<u64>, others: &[Range<u64>]) -> Option<u64> {
    let mut at = range.start;
    while at < range.end {
        match others.iter().filter(|other| other.contains(&at)).map(|other| other.end).max() {
            Some(end) => at = end,
            None => return Some(at),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_chunks_have_every_number_once() {
        assert_eq!(runs([1, 2, 3, 7, 9, 10]), [1..4, 7..8, 9..11]);
        assert_eq!(runs([]), []);
        assert_eq!(chunks(&(3..10), 3).collect::<Vec<_>>(), [3..6, 6..9, 9..10]);
        assert_eq!(chunks(&(3..3), 3).count(), 0);
    }

    #[test]
    fn what_is_left_of_a_range_is_outside_of_all_others() {
        assert_eq!(without(&(2..9), &[]), [2..9]);
        assert_eq!(without(&(2..9), &[4..5, 7..8]), [2..4, 5..7, 8..9]);
        assert_eq!(without(&(2..9), &[0..3, 8..20]), [3..8]);
        assert_eq!(without(&(2..9), &[9..10, 0..2]), [2..9]);
        assert_eq!(without(&(2..9), &[0..5, 5..9]), vec![]);
    }

    #[test]
    fn what_is_missing_of_a_range_is_found() {
        let all = [0..10, 20..30, 8..20];
        assert_eq!(first_missing(&(0..30), &all), None);
        assert_eq!(first_missing(&(3..9), &all), None);
        assert_eq!(first_missing(&(3..31), &all), Some(30));
        assert_eq!(first_missing(&(5..12), &all[..2]), Some(10));
        assert_eq!(first_missing(&(5..6), &[]), Some(5));
    }
}
