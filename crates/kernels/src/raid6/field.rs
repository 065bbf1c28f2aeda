//! GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, whose powers of 2 are all its elements but 0.

/// Twice `a`.
pub fn double(a: u8) -> u8 {
    (a << 1) ^ (if a & 0x80 == 0 { 0 } else { 0x1d })
}

/// The product, bit by bit.
pub fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

/// 2 to the power of `exponent`.
pub fn power(exponent: u32) -> u8 {
    (0..exponent % 255).fold(1, |power, _| double(power))
}

/// What times `b` is `a`.
///
/// # Panics
/// If `b` is 0.
pub fn divide(a: u8, b: u8) -> u8 {
    assert_ne!(b, 0, "a divisor is not 0");
    // b^254 is 1 / b: the order of the group is 255.
    let inverse = (0..254).fold(1, |inverse, _| times(inverse, b));
    times(a, inverse)
}

/// All products of `factor`.
pub fn row(factor: u8) -> [u8; 256] {
    std::array::from_fn(|a| times(a as u8, factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field_generated_by_2() {
        let mut seen: Vec<_> = (0..255).map(power).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(1..=255));
        for a in 0..=255 {
            for b in 1..=255 {
                assert_eq!(divide(times(a, b), b), a);
                assert_eq!(times(a, b), times(b, a));
            }
            assert_eq!(times(a, 3), double(a) ^ a);
        }
    }
}
