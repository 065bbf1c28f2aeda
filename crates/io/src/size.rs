//! Sizes on the command line: `4096`, `4K`, `64KiB`, `2g`. Units are powers of 1024.

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Reads a size; the message says what is wrong with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let bad = || format!("\"{text}\" is not a size: write bytes, or a number with K, M, G or T (powers of 1024)");
    let shift = shift_of(unit).ok_or_else(bad)?;
    if number.is_empty() {
        return Err(bad());
    }
    let too_large = || format!("{text} is more than 64 bits can count");
    let number: u64 = number.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

fn shift_of(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(0);
    }
    let shift = UNITS.into_iter().find(|(letter, _)| unit.starts_with(*letter)).map(|(_, shift)| shift)?;
    ["", "B", "IB"].contains(&&unit[1..]).then_some(shift)
}

/// The shortest text that [`parse`] reads back as exactly this size.
pub fn exact(bytes: u64) -> String {
    let unit = UNITS.into_iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(letter, shift)| format!("{}{letter}", bytes >> shift))
}

/// For people: three digits or so, with a binary unit.
pub fn human(bytes: u64) -> String {
    match UNITS.into_iter().find(|(_, shift)| bytes >= 1 << shift) {
        None => format!("{bytes} B"),
        Some((letter, shift)) => {
            let value = bytes as f64 / (1_u64 << shift) as f64;
            let digits = usize::from(value < 100.0 && value.fract() > 0.0);
            format!("{value:.digits$} {letter}iB")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_size_survives_being_written_and_read(bytes in any::<u64>(), shift in 0_u32..64) {
            let bytes = bytes >> shift << (shift / 2);
            prop_assert_eq!(parse(&exact(bytes)), Ok(bytes));
        }

        #[test]
        fn units_multiply_or_overflow_and_garbage_never_panics(number in any::<u64>(), text in "\\PC{0,12}", unit in 0_usize..4) {
            let (letter, shift) = UNITS[unit];
            let expected = number.checked_mul(1 << shift);
            for suffix in ["", "B", "iB", "ib"] {
                prop_assert_eq!(parse(&format!("{number}{letter}{suffix}")).ok(), expected);
                prop_assert_eq!(parse(&format!("{number}{}{suffix}", letter.to_ascii_lowercase())).ok(), expected);
            }
            let _ = parse(&text);
        }
    }

    #[test]
    fn half_sizes_are_refused_with_the_right_spelling() {
        for text in ["", "K", "-1", "+1", "1.5G", "1 K", "4Q", "4KK", "4KBi", "0x10"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("K, M, G or T"), "{text}: {error}");
        }
        assert!(parse("16777216T").unwrap_err().contains("64 bits"));
        assert!(parse("99999999999999999999").unwrap_err().contains("64 bits"));
    }

    #[test]
    fn people_see_three_digits() {
        assert_eq!([0, 1023, 1024, 1536, 150 << 30].map(human), ["0 B", "1023 B", "1 KiB", "1.5 KiB", "150 GiB"]);
    }
}
