//! The CPU paths against the kernels' oracles, which are other code.

use bifolio_compute::cpu::{BadTag, Ctr, Gcm, Xts};
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::{self, IvUnit, Sectors};
use bifolio_kernels::{aes_ctr, aes_gcm};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn xts_is_the_oracles(
        key in prop_oneof![vec(any::<u8>(), 32), vec(any::<u8>(), 64)],
        sector_log in 9_u32..13,
        first_iv in any::<u64>(),
        large in any::<bool>(),
        seed in vec(any::<u8>(), 1..200),
        count in 1_usize..4,
    ) {
        let iv_unit = if large { IvUnit::Sector } else { IvUnit::Bytes512 };
        let sectors = Sectors { bytes: 1 << sector_log, first_iv, iv_unit };
        let plain: Vec<u8> = seed.iter().copied().cycle().take(count << sector_log).collect();
        let mut expected = plain.clone();
        aes_xts::oracle(Direction::Encrypt, &key, sectors, &mut expected);
        let xts = Xts::new(&key).unwrap();
        let mut data = plain.clone();
        xts.encrypt(sectors, &mut data).unwrap();
        prop_assert_eq!(&data, &expected);
        xts.decrypt(sectors, &mut data).unwrap();
        prop_assert_eq!(&data, &plain);
        prop_assert!(xts.encrypt(sectors, &mut data[1..]).is_err());
    }

    #[test]
    fn ctr_is_the_oracles(
        key in prop_oneof![vec(any::<u8>(), 16), vec(any::<u8>(), 24), vec(any::<u8>(), 32)],
        counter in any::<[u8; 16]>(),
        data in vec(any::<u8>(), 0..5000),
    ) {
        let (mut expected, mut data) = (data.clone(), data);
        aes_ctr::oracle(&key, counter, &mut expected);
        Ctr::new(&key).unwrap().apply(&counter, &mut data);
        prop_assert_eq!(data, expected);
    }

    #[test]
    fn gcm_is_the_oracles_and_finds_changes(
        key in prop_oneof![vec(any::<u8>(), 16), vec(any::<u8>(), 24), vec(any::<u8>(), 32)],
        nonce in prop_oneof![vec(any::<u8>(), 12), vec(any::<u8>(), 16)],
        aad in vec(any::<u8>(), 0..32),
        plain in vec(any::<u8>(), 0..5000),
        bit in any::<prop::sample::Index>(),
    ) {
        let mut expected = plain.clone();
        let expected_tag = aes_gcm::oracle_encrypt(&key, &nonce, &aad, &mut expected);
        let gcm = Gcm::new(&key).unwrap();
        let mut data = plain.clone();
        let tag = gcm.encrypt(&nonce, &aad, &mut data);
        prop_assert_eq!(&data, &expected);
        prop_assert_eq!(tag, expected_tag);
        let mut back = data.clone();
        prop_assert_eq!(gcm.decrypt(&nonce, &aad, &mut back, &tag), Ok(()));
        prop_assert_eq!(&back, &plain);
        let (mut changed, mut changed_tag) = (data.clone(), tag);
        let at = bit.index((data.len() + tag.len()) * 8);
        match changed.get_mut(at / 8) {
            Some(byte) => *byte ^= 1 << (at % 8),
            None => changed_tag[at / 8 - data.len()] ^= 1 << (at % 8),
        }
        prop_assert_eq!(gcm.decrypt(&nonce, &aad, &mut changed, &changed_tag), Err(BadTag));
        prop_assert!(changed.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn keys_of_other_lengths_are_refused() {
    assert_eq!(Xts::new(&[1; 48]).unwrap_err().to_string(), "a key has 32 or 64 bytes, not 48");
    assert!(Xts::new(&[1; 64]).unwrap_err().to_string().contains("halves"));
    assert!(Ctr::new(&[1; 64]).is_err() && Gcm::new(&[]).is_err());
}
