//! What the kernel computes.

/// Flag of a page: the file lacks some byte of what was folded.
pub const AHEAD: u32 = 1;

/// Flag of a page: some byte of the device differed from the twin's, so changes of its own remain.
pub const OWN_CHANGED: u32 = 2;

/// Flag of a page: some byte that a donor has released found another there than its base, and not the same.
pub const LOST: u32 = 4;

/// One page. Where one memory is several of these, those that are read are copies of it as it was before.
#[derive(Debug)]
pub struct Page<'a> {
    /// As the device has it.
    pub current: &'a mut [u8],
    /// Its latest release or fetch.
    pub twin: Option<&'a mut [u8]>,
    /// Becomes what the file has.
    pub base: Option<&'a mut [u8]>,
    /// Home's.
    pub content: &'a [u8],
    /// What the file has, if that is not home's content.
    pub origin: Option<&'a [u8]>,
    /// The twin and the base of each donor.
    pub donors: &'a [(&'a [u8], &'a [u8])],
}

/// What the kernel computes for one page, with any number of donors; the flags are returned.
///
/// # Panics
/// If not all are as long as the content.
pub fn oracle(mut page: Page<'_>) -> u32 {
    let len = page.content.len();
    let lens = [Some(page.current.len()), page.twin.as_deref().map(<[u8]>::len), page.base.as_deref().map(<[u8]>::len)];
    let donors = page.donors.iter().flat_map(|(twin, base)| [twin.len(), base.len()]);
    let lens = lens.into_iter().chain([page.origin.map(<[u8]>::len)]).flatten().chain(donors);
    assert!(lens.into_iter().all(|other| other == len), "all copies of a page have one length");
    let mut flags = 0;
    for i in 0..len {
        let mut folded = page.content[i];
        let origin = page.origin.map_or(folded, |origin| origin[i]);
        for (twin, base) in page.donors {
            let is_released = twin[i] != base[i];
            if is_released && folded == base[i] {
                folded = twin[i];
            } else if is_released && folded != twin[i] {
                flags |= LOST;
            }
        }
        if folded != origin {
            flags |= AHEAD;
        }
        let twin = page.twin.as_deref_mut().map(|twin| &mut twin[i]);
        if twin.as_deref().is_some_and(|twin| page.current[i] != *twin) {
            flags |= OWN_CHANGED;
        } else {
            page.current[i] = folded;
        }
        if let Some(twin) = twin {
            *twin = folded;
        }
        if let Some(base) = page.base.as_deref_mut() {
            base[i] = origin;
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge;
    use proptest::prelude::*;

    /// Current, twin, base and flags of a page with a twin, after it.
    fn folded(
        (current, twin): (&[u8], &[u8]),
        (content, origin): (&[u8], Option<&[u8]>),
        donors: &[(&[u8], &[u8])],
    ) -> (Vec<u8>, Vec<u8>, Vec<u8>, u32) {
        let (mut current, mut twin, mut base) = (current.to_vec(), twin.to_vec(), vec![0xa5; content.len()]);
        let page =
            Page { current: &mut current, twin: Some(&mut twin), base: Some(&mut base), content, origin, donors };
        let flags = oracle(page);
        (current, twin, base, flags)
    }

    /// What donors make of content.
    fn scratch(content: &[u8], donors: &[(&[u8], &[u8])]) -> (Vec<u8>, u32) {
        let mut current = vec![0xa5; content.len()];
        let flags = oracle(Page { current: &mut current, twin: None, base: None, content, origin: None, donors });
        (current, flags)
    }

    #[test]
    fn devices_that_wrote_different_bytes_meet_and_the_own_one_stays_on_top() {
        let donors: &[(&[u8], &[u8])] = &[(b"Aaaaa", b"aaaaa"), (b"aBaaa", b"aaaaa")];
        let found = folded((b"aaXaa", b"aaaaa"), (b"aaaaH", Some(b"aaaaa")), donors);
        assert_eq!(found, (b"ABXaH".to_vec(), b"ABaaH".to_vec(), b"aaaaa".to_vec(), AHEAD | OWN_CHANGED));
    }

    #[test]
    fn a_released_byte_that_finds_another_than_its_base_is_lost_and_one_that_finds_itself_is_not() {
        assert_eq!(scratch(b"c", &[(b"X", b"a")]), (b"c".to_vec(), LOST));
        assert_eq!(scratch(b"X", &[(b"X", b"a")]), (b"X".to_vec(), 0));
        assert_eq!(scratch(b"a", &[(b"X", b"a"), (b"Y", b"a")]), (b"X".to_vec(), AHEAD | LOST));
        assert_eq!(scratch(b"a", &[(b"X", b"a"), (b"Y", b"X")]), (b"Y".to_vec(), AHEAD));
        assert_eq!(scratch(b"c", &[(b"a", b"a")]), (b"c".to_vec(), 0));
    }

    /// The one that acquires has released as well: after it, its twin is ahead of its base by that.
    #[test]
    fn what_the_page_itself_has_released_is_a_donor_like_others() {
        let donors: &[(&[u8], &[u8])] = &[(b"aB", b"aa"), (b"Ra", b"aa")];
        let found = folded((b"Ra", b"Ra"), (b"aa", None), donors);
        assert_eq!(found, (b"RB".to_vec(), b"RB".to_vec(), b"aa".to_vec(), AHEAD));
    }

    #[test]
    fn a_page_without_a_twin_is_written_over_and_what_is_missing_is_not_written() {
        let mut current = b"???".to_vec();
        let page =
            Page { current: &mut current, twin: None, base: None, content: b"abc", origin: Some(b"abx"), donors: &[] };
        assert_eq!((oracle(page), &current[..]), (AHEAD, &b"abc"[..]));
        assert_eq!(scratch(b"", &[]), (vec![], 0));
    }

    #[test]
    #[should_panic(expected = "one length")]
    fn copies_of_different_lengths_are_refused() {
        scratch(b"ab", &[(b"ab", b"a")]);
    }

    /// Bytes of a page and of four donors, few values, so that they meet.
    type Column = ((u8, u8, u8, u8), [(u8, u8); 4]);

    fn columns() -> impl Strategy<Value = Vec<Column>> {
        let value = 0..3_u8;
        let donor = (value.clone(), value.clone());
        let page = (value.clone(), value.clone(), value.clone(), value);
        prop::collection::vec((page, prop::array::uniform4(donor)), 0..100)
    }

    fn column(bytes: &[Column], pick: impl Fn(&Column) -> u8) -> Vec<u8> {
        bytes.iter().map(pick).collect()
    }

    proptest! {
        #[test]
        fn without_donors_it_is_the_merge(bytes in columns()) {
            let [current, twin, content, origin] =
                [column(&bytes, |b| b.0.0), column(&bytes, |b| b.0.1), column(&bytes, |b| b.0.2), column(&bytes, |b| b.0.3)];
            let (mut merged, mut merged_twin) = (current.clone(), twin.clone());
            let flags = merge::oracle(&mut merged, &mut merged_twin, &content);
            let ahead = if content == origin { 0 } else { AHEAD };
            let own = if flags & merge::OWN_CHANGED == 0 { 0 } else { OWN_CHANGED };
            let found = folded((&current, &twin), (&content, Some(&origin)), &[]);
            prop_assert_eq!(found, (merged, merged_twin, origin, ahead | own));
        }

        #[test]
        fn many_donors_are_folded_by_several_launches(bytes in columns(), at in 0..=4_usize) {
            let donors: Vec<_> =
                (0..4).map(|i| (column(&bytes, |b| b.1[i].0), column(&bytes, |b| b.1[i].1))).collect();
            let donors: Vec<_> = donors.iter().map(|(twin, base)| (&twin[..], &base[..])).collect();
            let [current, twin, content] =
                [column(&bytes, |b| b.0.0), column(&bytes, |b| b.0.1), column(&bytes, |b| b.0.2)];
            let at_once = folded((&current, &twin), (&content, None), &donors);
            let (between, lost) = scratch(&content, &donors[..at]);
            let mut found = folded((&current, &twin), (&between, Some(&content)), &donors[at..]);
            found.3 |= lost & LOST;
            prop_assert_eq!(found, at_once);
        }

        #[test]
        fn the_flags_say_what_happened(bytes in columns()) {
            let donors: Vec<_> =
                (0..4).map(|i| (column(&bytes, |b| b.1[i].0), column(&bytes, |b| b.1[i].1))).collect();
            let donors: Vec<_> = donors.iter().map(|(twin, base)| (&twin[..], &base[..])).collect();
            let [current, twin, content, origin] =
                [column(&bytes, |b| b.0.0), column(&bytes, |b| b.0.1), column(&bytes, |b| b.0.2), column(&bytes, |b| b.0.3)];
            let (_, after, base, flags) = folded((&current, &twin), (&content, Some(&origin)), &donors);
            prop_assert_eq!(flags & AHEAD != 0, after != base);
            prop_assert_eq!(flags & OWN_CHANGED != 0, current != twin);
            // Without the flag, everything released was there once it was its turn.
            let (mut seen, mut is_lost) = (content.clone(), false);
            for &(twin, base) in &donors {
                seen = scratch(&seen, &[(twin, base)]).0;
                is_lost |= (0..seen.len()).any(|i| twin[i] != base[i] && seen[i] != twin[i]);
            }
            prop_assert_eq!(flags & LOST != 0, is_lost);
            prop_assert_eq!(seen, after);
        }
    }
}
