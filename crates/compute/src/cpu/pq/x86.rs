//! The loops on vectors, written once for both widths by a macro: what differs is a handful of
//! operations, and how a product by a constant is made.
//!
//! Loads and stores need no alignment. Q takes four vectors at a time, as each doubling waits for the
//! one before it.

use super::{Loops, portable};
use bifolio_kernels::raid6::field;
use std::arch::x86_64::{
    __m256i, __m512i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512,
    _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};

/// 32 bytes at a time; made only where the processor has AVX2.
pub(super) struct Avx2;
/// 64 bytes at a time; made only where the processor has AVX-512BW and GFNI.
pub(super) struct Avx512Gfni;

macro_rules! loops {
    ($module:ident, $level:ty, $features:literal, $width:literal) => {
        impl Loops for $level {
            fn horner(&self, sources: &[Option<&[u8]>], p: &mut [u8], q: &mut [u8]) {
                // SAFETY: the type exists only where the features do; all slices are of one length.
                let done = unsafe { $module::horner(sources, p, q) };
                portable::tail_horner(sources, p, q, done);
            }

            fn sum(&self, sources: &[&[u8]], sum: &mut [u8]) {
                // SAFETY: as above.
                let done = unsafe { $module::sum(sources, sum) };
                portable::tail_sum(sources, sum, done);
            }

            fn change(&self, p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
                // SAFETY: as above.
                let done = unsafe { $module::change(p, q, factor, old, new) };
                portable::tail_change(p, q, factor, old, new, done);
            }

            fn solve(&self, target: &mut [u8], other: &[u8], factor: u8) {
                // SAFETY: as above.
                let done = unsafe { $module::solve(target, other, factor) };
                portable::tail_solve(target, other, factor, done);
            }

            fn add_product(&self, target: &mut [u8], other: &[u8], factor: u8) {
                // SAFETY: as above.
                let done = unsafe { $module::add_product(target, other, factor) };
                portable::tail_add_product(target, other, factor, done);
            }
        }

        /// Each function returns how many bytes it has done, a multiple of the width.
        mod $module {
            use super::vectors::$module::{add, double, load, product, store, table, zero};

            const WIDTH: usize = $width;

            /// # Safety
            /// The processor has the features; slices are of one length.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn horner(sources: &[Option<&[u8]>], p: &mut [u8], q: &mut [u8]) -> usize {
                // SAFETY: the caller's promise.
                unsafe {
                    let done = horner_by::<4>(sources, p, q, 0);
                    horner_by::<1>(sources, p, q, done)
                }
            }

            /// # Safety
            /// As for [`horner`].
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn horner_by<const N: usize>(
                sources: &[Option<&[u8]>],
                p: &mut [u8],
                q: &mut [u8],
                from: usize,
            ) -> usize {
                let end = from + (p.len() - from) / (N * WIDTH) * (N * WIDTH);
                for at in (from..end).step_by(N * WIDTH) {
                    // SAFETY: `at + N * WIDTH` is within all slices, which are of one length.
                    unsafe {
                        let (mut of_p, mut of_q) = ([zero(); N], [zero(); N]);
                        for source in sources.iter().rev() {
                            for i in 0..N {
                                of_q[i] = double(of_q[i]);
                            }
                            let Some(source) = source else { continue };
                            let source = source.as_ptr().add(at);
                            for i in 0..N {
                                let data = load(source.add(i * WIDTH));
                                of_p[i] = add(of_p[i], data);
                                of_q[i] = add(of_q[i], data);
                            }
                        }
                        for i in 0..N {
                            store(p.as_mut_ptr().add(at + i * WIDTH), of_p[i]);
                            store(q.as_mut_ptr().add(at + i * WIDTH), of_q[i]);
                        }
                    }
                }
                end
            }

            /// # Safety
            /// As for [`horner`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn sum(sources: &[&[u8]], sum: &mut [u8]) -> usize {
                let end = sum.len() / (4 * WIDTH) * (4 * WIDTH);
                for at in (0..end).step_by(4 * WIDTH) {
                    // SAFETY: as in `horner_by`.
                    unsafe {
                        let mut total = [zero(); 4];
                        for source in sources {
                            for (i, total) in total.iter_mut().enumerate() {
                                *total = add(*total, load(source.as_ptr().add(at + i * WIDTH)));
                            }
                        }
                        for (i, total) in total.into_iter().enumerate() {
                            store(sum.as_mut_ptr().add(at + i * WIDTH), total);
                        }
                    }
                }
                end
            }

            /// # Safety
            /// As for [`horner`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn change(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) -> usize {
                let end = p.len() / WIDTH * WIDTH;
                // SAFETY: as in `horner_by`.
                unsafe {
                    let table = table(factor);
                    for at in (0..end).step_by(WIDTH) {
                        let (p, q) = (p.as_mut_ptr().add(at), q.as_mut_ptr().add(at));
                        let change = add(load(old.as_ptr().add(at)), load(new.as_ptr().add(at)));
                        store(p, add(load(p), change));
                        store(q, add(load(q), product(change, &table)));
                    }
                }
                end
            }

            /// # Safety
            /// As for [`horner`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn solve(target: &mut [u8], other: &[u8], factor: u8) -> usize {
                let end = target.len() / WIDTH * WIDTH;
                // SAFETY: as in `horner_by`.
                unsafe {
                    let table = table(factor);
                    for at in (0..end).step_by(WIDTH) {
                        let target = target.as_mut_ptr().add(at);
                        store(target, product(add(load(target), load(other.as_ptr().add(at))), &table));
                    }
                }
                end
            }

            /// # Safety
            /// As for [`horner`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn add_product(target: &mut [u8], other: &[u8], factor: u8) -> usize {
                let end = target.len() / WIDTH * WIDTH;
                // SAFETY: as in `horner_by`.
                unsafe {
                    let table = table(factor);
                    for at in (0..end).step_by(WIDTH) {
                        let target = target.as_mut_ptr().add(at);
                        store(target, add(load(target), product(load(other.as_ptr().add(at)), &table)));
                    }
                }
                end
            }
        }
    };
}

mod vectors;

loops!(avx2, Avx2, "avx2", 32);
loops!(avx512, Avx512Gfni, "avx512f,avx512bw,gfni", 64);
