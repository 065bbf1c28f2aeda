//! Vectors: sums, doubling, and products by a constant.

/// AVX2: doubling by a comparison, products by two tables of nibbles.
pub(super) mod avx2 {
    use super::super::{
        __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_cmpgt_epi8,
        _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64,
        _mm256_storeu_si256, _mm256_xor_si256, field,
    };

    /// Products of the 16 low and of the 16 high nibbles.
    pub(in super::super) type Table = [__m256i; 2];

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) fn zero() -> __m256i {
        _mm256_setzero_si256()
    }

    /// # Safety
    /// 32 bytes can be read.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    /// # Safety
    /// 32 bytes can be written.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) unsafe fn store(to: *mut u8, vector: __m256i) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) fn add(a: __m256i, b: __m256i) -> __m256i {
        _mm256_xor_si256(a, b)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) fn double(a: __m256i) -> __m256i {
        let tops = _mm256_cmpgt_epi8(_mm256_setzero_si256(), a);
        _mm256_xor_si256(_mm256_add_epi8(a, a), _mm256_and_si256(tops, _mm256_set1_epi8(0x1d)))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) fn table(factor: u8) -> Table {
        let low: [u8; 16] = std::array::from_fn(|nibble| field::times(factor, nibble as u8));
        let high: [u8; 16] = std::array::from_fn(|nibble| field::times(factor, (nibble as u8) << 4));
        // SAFETY: both arrays have the 16 bytes that are read.
        [low, high].map(|table| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) }))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) fn product(a: __m256i, [low, high]: &Table) -> __m256i {
        let mask = _mm256_set1_epi8(0x0f);
        let of_low = _mm256_shuffle_epi8(*low, _mm256_and_si256(a, mask));
        let of_high = _mm256_shuffle_epi8(*high, _mm256_and_si256(_mm256_srli_epi64::<4>(a), mask));
        _mm256_xor_si256(of_low, of_high)
    }
}

/// AVX-512 with GFNI: a product by a constant is a matrix of bits times each byte.
pub(super) mod avx512 {
    use super::super::{
        __m512i, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_setzero_si512,
        _mm512_storeu_si512, _mm512_xor_si512, field,
    };

    /// The matrix, once for each eight bytes.
    pub(in super::super) type Table = __m512i;

    /// Row `i` from the top gives bit `7 - i`: those bits of a byte whose products have it.
    const fn matrix(products: [u8; 8]) -> i64 {
        let mut matrix = 0_u64;
        let mut bit = 0;
        while bit < 8 {
            let (mut row, mut of) = (0_u64, 0);
            while of < 8 {
                row |= ((products[of] as u64 >> bit) & 1) << of;
                of += 1;
            }
            matrix |= row << (8 * (7 - bit));
            bit += 1;
        }
        matrix as i64
    }

    const DOUBLING: i64 = matrix([2, 4, 8, 16, 32, 64, 128, 0x1d]);

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn zero() -> __m512i {
        _mm512_setzero_si512()
    }

    /// # Safety
    /// 64 bytes can be read.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    /// # Safety
    /// 64 bytes can be written.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) unsafe fn store(to: *mut u8, vector: __m512i) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_xor_si512(a, b)
    }

    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    #[inline]
    pub(in super::super) fn double(a: __m512i) -> __m512i {
        _mm512_gf2p8affine_epi64_epi8::<0>(a, _mm512_set1_epi64(DOUBLING))
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn table(factor: u8) -> Table {
        _mm512_set1_epi64(matrix(std::array::from_fn(|bit| field::times(factor, 1 << bit))))
    }

    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    #[inline]
    pub(in super::super) fn product(a: __m512i, table: &Table) -> __m512i {
        _mm512_gf2p8affine_epi64_epi8::<0>(a, *table)
    }
}
