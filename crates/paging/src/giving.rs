//! How much device memory a cache may hold while others want some of it, too (pure).
//!
//! A share of the device is left to others. When less than that is free, what is missing is given back at once; when more is
//! free, the cache grows again after a while of calm, so that it does not take what another process is about to ask for.

/// How long free memory has to be plenty before some of it is taken.
const CALM_MS: u64 = 2000;

/// What is remembered from look to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Giving {
    /// When memory was last short.
    short_at_ms: Option<u64>,
}

/// What a look at the device has shown; in bytes, and chunks of `chunk_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// What nobody has.
    pub free_bytes: u64,
    /// What is left to others.
    pub left_bytes: u64,
    pub chunk_bytes: u64,
    /// Chunks that the cache has.
    pub present: u32,
}

impl Giving {
    /// How many chunks the cache may have now.
    pub(crate) fn allowed(&mut self, now_ms: u64, look: Look) -> u32 {
        let chunks = |bytes: u64| u32::try_from(bytes / look.chunk_bytes).unwrap_or(u32::MAX);
        if look.free_bytes < look.left_bytes {
            self.short_at_ms = Some(now_ms);
            let missing = (look.left_bytes - look.free_bytes).next_multiple_of(look.chunk_bytes);
            return look.present.saturating_sub(chunks(missing));
        }
        let is_calm = self.short_at_ms.is_none_or(|at| now_ms.saturating_sub(at) >= CALM_MS);
        // A chunk beyond the share stays free, or the next look would give one back again.
        let spare = (look.free_bytes - look.left_bytes).saturating_sub(look.chunk_bytes);
        look.present.saturating_add(if is_calm { chunks(spare) } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 2 << 20;

    #[test]
    fn what_is_missing_is_given_back_and_taken_again_after_a_calm() {
        let look =
            |free: u64, present| Look { free_bytes: free * CHUNK, left_bytes: 10 * CHUNK, chunk_bytes: CHUNK, present };
        let mut giving = Giving::default();
        assert_eq!(giving.allowed(0, look(20, 4)), 13);
        assert_eq!(giving.allowed(10, look(7, 13)), 10);
        assert_eq!(giving.allowed(20, look(0, 4)), 0, "it has no more than it has");
        assert_eq!(giving.allowed(1000, look(30, 2)), 2, "somebody may be about to ask");
        assert_eq!(giving.allowed(20 + CALM_MS, look(30, 2)), 21);
    }

    #[test]
    fn it_comes_to_rest_with_the_share_left_to_others() {
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..2000 {
            let total = draw.u64(1..100) * CHUNK;
            let (left, others) = (draw.u64(..total), draw.u64(..total));
            let (mut giving, target) = (Giving::default(), draw.u32(..100));
            let mut present = draw.u32(..=((total - others) / CHUNK) as u32);
            let free = |present: u32| total - others - u64::from(present) * CHUNK;
            for round in 0..3 {
                let look = Look { free_bytes: free(present), left_bytes: left, chunk_bytes: CHUNK, present };
                present = giving.allowed(round * 2 * CALM_MS, look).min(target);
            }
            let look = Look { free_bytes: free(present), left_bytes: left, chunk_bytes: CHUNK, present };
            assert_eq!(giving.allowed(100 * CALM_MS, look).min(target), present, "nothing changes any more");
            assert!(present == 0 || free(present) >= left, "{present} chunks");
        }
    }
}
