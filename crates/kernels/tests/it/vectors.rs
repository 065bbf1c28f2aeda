//! The oracles of the storage services against the standards' vectors.

use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::{self, IvUnit, Sectors};
use bifolio_kernels::{aes_ctr, aes_gcm};

/// IEEE 1619-2007, appendix B: the first blocks of vectors 4 (AES-128) and 10 (AES-256), whole data units of
/// 512 bytes.
#[test]
fn xts_gives_the_vectors_of_the_standard() {
    let plain: Vec<u8> = (0..512_usize).map(|at| at as u8).collect();
    let vectors = [
        ("2718281828459045235360287471352631415926535897932384626433832795", 0, "27a7479befa1d476489f308cd4cfa6e2"),
        (
            "2718281828459045235360287471352662497757247093699959574966967627\
             3141592653589793238462643383279502884197169399375105820974944592",
            0xff,
            "1c3b3a102f770386e4836c99e370cf9b",
        ),
    ];
    for (key, first_iv, head) in vectors {
        let (mut data, key) = (plain.clone(), hex(key));
        let sectors = Sectors { bytes: 512, first_iv, iv_unit: IvUnit::Sector };
        aes_xts::oracle(Direction::Encrypt, &key, sectors, &mut data);
        assert_eq!(data[..16], hex(head));
        aes_xts::oracle(Direction::Decrypt, &key, sectors, &mut data);
        assert!(data == plain);
    }
}

/// SP 800-38A, F.5.1 and F.5.5: the first blocks.
#[test]
fn ctr_gives_the_vectors_of_the_standard() {
    let vectors = [
        ("2b7e151628aed2a6abf7158809cf4f3c", "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"),
        (
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5",
        ),
    ];
    for (key, cipher) in vectors {
        let mut data = hex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51");
        let counter = hex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff").try_into().unwrap();
        aes_ctr::oracle(&hex(key), counter, &mut data);
        assert_eq!(data, hex(cipher));
    }
}

/// Test cases 4 and 13 of the specification of GCM that was submitted to NIST.
#[test]
fn gcm_gives_the_vectors_of_its_specification() {
    let plain = hex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
    let (key, nonce) = (hex("feffe9928665731c6d6a8f9467308308"), hex("cafebabefacedbaddecaf888"));
    let (aad, mut text) = (hex("feedfacedeadbeeffeedfacedeadbeefabaddad2"), plain.clone());
    let tag = aes_gcm::oracle_encrypt(&key, &nonce, &aad, &mut text);
    assert_eq!(tag.to_vec(), hex("5bc94fbc3221a5db94fae95ae7121a47"));
    assert_eq!(text[..16], hex("42831ec2217774244b7221b784d0d49c"));
    assert!(!aes_gcm::oracle_decrypt(&key, &nonce, &aad[1..], &mut text, tag));
    assert!(aes_gcm::oracle_decrypt(&key, &nonce, &aad, &mut text, tag) && text == plain);
    let tag = aes_gcm::oracle_encrypt(&[0; 32], &[0; 12], &[], &mut []);
    assert_eq!(tag.to_vec(), hex("530f8afbc74536b9a963b4f1c4cb738b"));
}

/// The specification's vectors have no nonce of 16 bytes; this one was made with OpenSSL 4.0.
#[test]
fn gcm_with_a_nonce_of_16_bytes_is_as_elsewhere() {
    let key: Vec<u8> = (0..32).collect();
    let (nonce, aad): (Vec<u8>, Vec<u8>) = ((16..32).collect(), (100..124).collect());
    let mut text: Vec<u8> = (0..50).collect();
    let tag = aes_gcm::oracle_encrypt(&key, &nonce, &aad, &mut text);
    text.extend(tag);
    let expected = "8a5b3863e3743da863029462bbad1f0ea09473cb241913da1219a6a044ea93494d0fa1b6e8b92ccb93afe23076f268b6d513\
                    813ffcda3e03ea7a801865a044ee95e1";
    assert_eq!(text, hex(expected));
}

fn hex(digits: &str) -> Vec<u8> {
    let digits: String = digits.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}
