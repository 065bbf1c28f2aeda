//! LUKS volumes against cryptsetup and QEMU, against an array, and against damage.

use crate::support::{CHEAP_ARGON2, CHEAP_PBKDF2, Draw, Place, SECRET, run, text};
use bifolio_block::ErrorKind as BlockKind;
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts;
use bifolio_testing::{command, has};
use bifolio_volume::{BlockDevice, ErrorKind, FormatOptions, Load, Luks, Pbkdf, RoutedFile, Unlock};
use std::path::Path;
use std::sync::Arc;

const MIB: usize = 1 << 20;
const CHEAP: Pbkdf = Pbkdf { time_ms: 0, iterations: Some(4), memory_kib: 32, threads: 1 };

fn options(key_bits: u32, sector_bytes: u32) -> FormatOptions {
    FormatOptions { key_bits, sector_bytes, pbkdf: CHEAP, label: Some("test".into()) }
}

/// Whether libcryptsetup is there; without it nothing here can run.
fn can_run() -> bool {
    has("cryptsetup")
}

fn file(path: &Path) -> Arc<dyn Load> {
    Arc::new(RoutedFile::open(path, true).unwrap())
}

fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0xa5; device.geometry().size as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// A device in memory with a new volume on it.
fn formatted(key_bits: u32, sector_bytes: u32) -> (Arc<FaultyDevice>, Luks) {
    let inner = Arc::new(FaultyDevice::new("image", vec![0x5a; 17 * MIB]));
    let luks = Luks::format(inner.clone(), SECRET, &options(key_bits, sector_bytes)).unwrap();
    (inner, luks)
}

#[test]
fn volumes_of_cryptsetup_are_read_and_written() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    for sector in ["512", "4096"] {
        let place = Place::new();
        let mut plain = draw.bytes(MIB + 4096);
        let options = [&CHEAP_ARGON2[..], &["--type", "luks2", "--sector-size", sector]].concat();
        let image = place.encrypted_by_cryptsetup("image", &plain, &options);
        let luks = Luks::open(file(&image), SECRET).unwrap();
        let info = luks.info();
        assert_eq!((info.version, info.key_bits, info.header_note.as_deref()), (2, 512, None));
        assert_eq!(info.sector_bytes, Some(sector.parse().unwrap()));
        assert_eq!(info.keyslots[0].pbkdf, "argon2id");
        let mut read = vec![0; plain.len()];
        luks.read(0, &mut read).unwrap();
        assert!(read == plain, "sectors of {sector}");

        let (at, change) = (4097, draw.bytes(300_001));
        luks.write(at, &change).unwrap();
        luks.flush().unwrap();
        plain[at as usize..at as usize + change.len()].copy_from_slice(&change);
        drop(luks);
        let decrypted = place.decrypted_by_cryptsetup(&image, &[]);
        assert!(decrypted[..plain.len()] == plain, "what was written to sectors of {sector}");
    }
}

#[test]
fn our_volumes_are_opened_and_decrypted_by_cryptsetup() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    for (key_bits, sector) in [(256, 512), (512, 512), (512, 4096), (256, 4096)] {
        let place = Place::new();
        let image = place.empty("image", 17 * MIB as u64);
        let luks = Luks::format(file(&image), SECRET, &options(key_bits, sector)).unwrap();
        let plain = draw.bytes(luks.geometry().size as usize);
        luks.write(0, &plain).unwrap();
        let uuid = luks.info().uuid.clone();
        drop(luks);
        let (key, path) = (place.text("key"), text(&image));
        run("cryptsetup", &["open", "--test-passphrase", "--key-file", &key, &path]);
        let dump = String::from_utf8(run("cryptsetup", &["luksDump", &path]).stdout).unwrap();
        assert!(dump.contains(&uuid) && dump.contains("test") && dump.contains(&format!("sector: {sector}")), "{dump}");
        let decrypted = place.decrypted_by_cryptsetup(&image, &[]);
        assert!(decrypted[..plain.len()] == plain, "{key_bits} bits, sectors of {sector}");
    }
}

/// cryptsetup cannot encrypt LUKS1 without the kernel; its volume key and the kernel's oracle stand in for it.
#[test]
fn a_luks1_volume_of_cryptsetup_has_the_bytes_of_the_oracle() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    let place = Place::new();
    let image = place.empty("image", 4 * MIB as u64);
    let (key_file, volume_key, path) = (place.text("key"), place.text("volume-key"), text(&image));
    run("cryptsetup", &[&["luksFormat", "-q", "--type", "luks1"], &CHEAP_PBKDF2[..], &[&path, &key_file]].concat());
    let dump =
        ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &volume_key, "--key-file", &key_file, &path];
    run("cryptsetup", &dump);
    let key = std::fs::read(&volume_key).unwrap();
    let luks = Luks::open(file(&image), SECRET).unwrap();
    assert_eq!((luks.info().version, luks.key().as_slice()), (1, &key[..]));
    let plain = draw.bytes(luks.geometry().size as usize);
    luks.write(0, &plain).unwrap();
    let mut stored = std::fs::read(&image).unwrap().split_off(luks.payload_offset() as usize);
    aes_xts::oracle(Direction::Decrypt, &key, luks.sectors_at(0), &mut stored);
    assert!(stored == plain);
}

#[test]
fn volumes_of_qemu_are_read_and_written() {
    if !can_run() || !has("qemu-img") || !has("qemu-io") {
        return;
    }
    let mut draw = Draw::afresh();
    let place = Place::new();
    let (image, key) = (place.path("image"), place.text("key"));
    let secret = format!("secret,id=key,file={key}");
    if !made_by_qemu(&image, &secret) {
        println!("the header is cryptsetup's: QEMU could not measure how quickly it iterates on this busy machine");
        let empty = text(&place.empty("image", 5 * MIB as u64));
        run("cryptsetup", &[&["luksFormat", "-q", "--type", "luks1"], &CHEAP_PBKDF2[..], &[&empty, &key]].concat());
    }
    let options = format!("driver=luks,key-secret=key,file.filename={}", text(&image));
    let qemu_io = |script: &[&str]| {
        let commands: Vec<&str> = script.iter().flat_map(|command| ["-c", command]).collect();
        run("qemu-io", &[&["--object", &secret, "--image-opts", &options][..], &commands].concat())
    };
    qemu_io(&["write -P 0x17 0 3M", "write -P 0x42 512 1536", "write -P 0x99 2097152 4096"]);
    let mut expected = vec![0x17; 3 * MIB];
    expected[512..2048].fill(0x42);
    expected[2 * MIB..2 * MIB + 4096].fill(0x99);
    let luks = Luks::open(file(&image), SECRET).unwrap();
    let mut start = vec![0; expected.len()];
    luks.read(0, &mut start).unwrap();
    assert!(start == expected);

    let (byte, at) = (draw.next_u64() as u8, draw.below(MIB as u64) * 2 + 1);
    luks.write(at, &vec![byte; 70_000]).unwrap();
    drop(luks);
    let read = format!("read -v {} {}", at / 512 * 512, 512);
    let dump = String::from_utf8(qemu_io(&[&read]).stdout).unwrap();
    let last = dump.lines().rfind(|line| line.starts_with('0')).unwrap();
    assert!(last.contains(&format!(" {byte:02x} ")), "{dump}");
    let aligned = at.next_multiple_of(512);
    qemu_io(&[&format!("read -P {byte} {aligned} {}", 512 * 130)]);
}

/// Makes a LUKS1 volume of 3 MiB. QEMU counts CPU time in coarse steps, and gives up where it finds that it took none.
fn made_by_qemu(image: &Path, secret: &str) -> bool {
    let create = ["create", "-q", "--object", secret, "-f", "luks", "-o", "key-secret=key,iter-time=50"];
    let tries = 0..4;
    tries.into_iter().any(|_| {
        let output = command("qemu-img").args(create).args([&text(image), "3M"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("accurate CPU usage"), "{said}");
        output.status.success()
    })
}

#[test]
fn any_range_reads_and_writes_as_an_array_does() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    for (key_bits, sector) in [(256, 512), (512, 512), (512, 1024), (512, 4096)] {
        let (inner, luks) = formatted(key_bits, sector);
        let size = luks.geometry().size;
        let mut oracle = content(&luks);
        for _ in 0..300 {
            let at = draw.below(size + 1);
            // Often at a sector, often at the end of one, seldom long.
            let at = if draw.below(3) == 0 { at / 512 * 512 } else { at };
            let len_max = [1, 600, 9000, 300_000, size][draw.below(5) as usize].min(size - at);
            let len = draw.below(len_max + 1) as usize;
            let range = at as usize..at as usize + len;
            if draw.below(2) == 0 {
                let data = draw.bytes(len);
                luks.write(at, &data).unwrap();
                oracle[range].copy_from_slice(&data);
            } else {
                let mut read = vec![0xee; len];
                luks.read(at, &mut read).unwrap();
                assert!(read == oracle[range], "{len} bytes at {at}, sectors of {sector}");
            }
        }
        assert!(content(&luks) == oracle);
        for (at, len) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (0, size + 1)] {
            let mut buffer = vec![0; len as usize];
            assert_eq!(luks.read(at, &mut buffer).unwrap_err().kind(), BlockKind::BadRange);
            assert_eq!(luks.write(at, &buffer).unwrap_err().kind(), BlockKind::BadRange);
        }
        // What is below is what the oracle encrypts.
        let mut stored = inner.content().split_off(luks.payload_offset() as usize);
        aes_xts::oracle(Direction::Decrypt, luks.key(), luks.sectors_at(0), &mut stored[..size as usize]);
        assert!(stored[..size as usize] == oracle);
    }
}

/// Neighbours within one sector would lose each other's bytes if a write of part of a sector did not have it alone.
#[test]
fn threads_that_write_parts_of_the_same_sectors_lose_nothing() {
    if !can_run() {
        return;
    }
    let (_, luks) = formatted(512, 4096);
    let mut start = Draw::afresh();
    let rounds = 200;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (luks, mut draw) = (&luks, Draw::from_seed(start.next_u64()));
            scope.spawn(move || {
                // Thread t owns bytes t, t + 4, ... of every block of 1,000: no range is shared, every sector is.
                for round in 0..rounds {
                    for block in 0..12 {
                        let at = block * 1000 + thread * 250;
                        let value = vec![(round ^ thread) as u8; 250];
                        luks.write(at, &value).unwrap();
                        let mut back = vec![0; 250];
                        luks.read(at, &mut back).unwrap();
                        assert!(back == value, "thread {thread}, round {round}, block {block}");
                    }
                    let mut other = vec![0; 12_000];
                    luks.read(draw.below(12_000), &mut other).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_wrong_passphrase_is_said_and_nothing_is_written_by_opening() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 512);
    drop(luks);
    let (before, requests) = (inner.content(), inner.requests());
    for wrong in [&b""[..], b"correct", b"correct horse\n"] {
        let error = Luks::open(inner.clone(), wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
        assert!(!error.to_string().contains("horse"), "{error}");
    }
    let luks = Luks::open(inner.clone(), SECRET).unwrap();
    assert!(!format!("{luks:?}").contains("key"), "{luks:?}");
    assert!(inner.content() == before);
    assert_eq!(inner.requests(), requests, "not even a flush");
}

#[test]
fn one_copy_of_the_header_is_enough_and_two_damaged_ones_are_an_error() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    let plain = content(&luks);
    drop(luks);
    let intact = inner.content();
    let damage = |places: &[(usize, usize)]| {
        let mut bytes = intact.clone();
        for (at, len) in places {
            bytes[*at..at + len].iter_mut().for_each(|byte| *byte = !*byte);
        }
        Arc::new(FaultyDevice::new("image", bytes))
    };
    // The magic, the version, the size of the metadata, the checksum, the JSON, and all of it.
    let parts = [(0, 6), (6, 2), (8, 8), (448, 8), (4096, 100), (0, 0x4000)];
    for (at, len) in parts {
        for (copy, other, which) in [(0, 0x4000, "first"), (0x4000, 0, "second")] {
            let device = damage(&[(at + copy, len)]);
            let before = device.content();
            let luks = Luks::open(device.clone(), SECRET).unwrap_or_else(|error| panic!("{at} {copy}: {error}"));
            let note = luks.info().header_note.clone().unwrap_or_else(|| panic!("nothing said: {at} {copy}"));
            assert!(note.contains(&format!("the {which} copy")), "{at} {copy}: {note}");
            assert!(content(&luks) == plain);
            assert!(device.content() == before, "repaired in memory only");
            if at == 4096 {
                let both = damage(&[(at + copy, len), (at + other, len)]);
                let error = Luks::open(both, SECRET).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            }
        }
    }
    let none = damage(&[(0, 0x8000)]);
    assert_eq!(Luks::open(none, SECRET).unwrap_err().kind(), ErrorKind::NotAVolume);
}

#[test]
fn an_image_that_was_cut_is_said_with_its_sizes() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    let payload = luks.payload_offset() as usize;
    drop(luks);
    let bytes = inner.content();
    for len in [512, 4096, 0x6000, 0x8000, 0x9000, MIB, payload - 512, payload] {
        let cut = Arc::new(FaultyDevice::new("image", bytes[..len].to_vec()));
        let error = Luks::open(cut, SECRET).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{len}: {error}");
        assert!(error.to_string().contains(&len.to_string()), "{len}: {error}");
    }
    let shorter = Arc::new(FaultyDevice::new("image", bytes[..payload + 4096].to_vec()));
    assert_eq!(Luks::open(shorter, SECRET).unwrap().geometry().size, 4096);
}

/// Headers are someone else's bytes: nothing in them may make us panic, hang or ask for all memory. Checksums would
/// stop most changes at the door, so the library's checksum of what was changed is made right again in half the cases.
#[test]
fn mutated_headers_are_errors_or_open() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    let (inner, luks) = formatted(512, 4096);
    drop(luks);
    let intact = inner.content();
    let mut opened = 0;
    for case in 0..100 {
        let mut bytes = intact.clone();
        let copies: &[usize] = [&[0, 0x4000][..], &[0], &[0x4000]][draw.below(3) as usize];
        for _ in 0..=draw.below(3) {
            mutate(&mut bytes, copies, &mut draw);
        }
        if draw.below(2) == 0 {
            for copy in copies {
                sign(&mut bytes, *copy);
            }
        }
        let started = std::time::Instant::now();
        match Luks::open(Arc::new(FaultyDevice::new("image", bytes)), SECRET) {
            Ok(luks) => {
                opened += 1;
                let size = luks.geometry().size;
                luks.read(size.saturating_sub(1), &mut [0]).unwrap();
            }
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Damaged | ErrorKind::WrongKey | ErrorKind::Unsupported | ErrorKind::NotAVolume
                ),
                "case {case}: {:?} {error}",
                error.kind()
            ),
        }
        // No bound of time is promised; a minute is a hang.
        assert!(started.elapsed().as_secs() < 60, "case {case}");
    }
    println!("{opened} of 100 mutated headers opened");
}

/// LUKS1 has no checksum: every change reaches the library.
#[test]
fn mutated_luks1_headers_are_errors_or_open() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    let place = Place::new();
    let image = text(&place.empty("image", 3 * MIB as u64));
    let key = place.text("key");
    run("cryptsetup", &[&["luksFormat", "-q", "--type", "luks1"], &CHEAP_PBKDF2[..], &[&image, &key]].concat());
    let intact = std::fs::read(&image).unwrap();
    // The digest's iterations, and each keyslot's: anything in between would only take its time.
    let iterations: Vec<usize> = [164].into_iter().chain((0..8).map(|slot| 208 + 48 * slot + 4)).collect();
    let (mut opened, mut refused) = (0, 0);
    for case in 0..200 {
        let mut bytes = intact.clone();
        // Half of them in what keyslots and sizes are described by.
        let at = if draw.below(2) == 0 { draw.below(592) } else { 104 + draw.below(152) } as usize;
        match iterations.iter().find(|field| (**field..**field + 4).contains(&at)) {
            Some(field) => bytes[*field] = 0xff,
            None => bytes[at] = draw.next_u64() as u8,
        }
        match Luks::open(Arc::new(FaultyDevice::new("image", bytes)), SECRET) {
            Ok(luks) => {
                opened += 1;
                let size = luks.geometry().size;
                luks.read(size.saturating_sub(1), &mut [0]).unwrap();
            }
            Err(error) => {
                refused += 1;
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Damaged | ErrorKind::WrongKey | ErrorKind::Unsupported | ErrorKind::NotAVolume
                    ),
                    "case {case}, byte {at}: {:?} {error}",
                    error.kind()
                );
            }
        }
    }
    println!("{opened} of {} mutated headers opened", opened + refused);
    assert!(opened > 0 && refused > 0, "both have to happen in so many");
}

/// Changes one field, byte or number in the given copies.
fn mutate(bytes: &mut [u8], copies: &[usize], draw: &mut Draw) {
    const HOSTILE: [&str; 10] =
        ["0", "1", "-1", "4294967295", "4294967296", "18446744073709551615", "9223372036854775807", "512", "3", "{}"];
    let json_len = bytes[0x1000..0x4000].iter().position(|byte| *byte == 0).unwrap();
    let kind = draw.below(3);
    let at = match kind {
        0 => draw.below(512) as usize,
        _ => 0x1000 + draw.below(json_len as u64) as usize,
    };
    let (byte, number) = (draw.next_u64() as u8, HOSTILE[draw.below(10) as usize]);
    for copy in copies {
        let header = &mut bytes[*copy..copy + 0x4000];
        if kind < 2 {
            header[at] = byte;
            continue;
        }
        // The next number in the JSON becomes another one; what follows moves.
        let mut json = header[0x1000..0x1000 + json_len].to_vec();
        let from = at - 0x1000;
        let Some(start) = json[from..].iter().position(u8::is_ascii_digit).map(|i| from + i) else { continue };
        let len = json[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        json.splice(start..start + len, number.bytes());
        json.resize(0x3000, 0);
        header[0x1000..].copy_from_slice(&json);
    }
}

/// Makes the checksum of a copy of the header right.
fn sign(bytes: &mut [u8], copy: usize) {
    use sha2::Digest;
    let header = &mut bytes[copy..copy + 0x4000];
    header[448..512].fill(0);
    let digest = sha2::Sha256::digest(&*header);
    header[448..480].copy_from_slice(&digest);
}

/// The header with a change to its JSON, in both copies.
fn with_json(bytes: &[u8], from: &str, to: &str) -> Arc<FaultyDevice> {
    let mut bytes = bytes.to_vec();
    for copy in [0, 0x4000] {
        let json = &bytes[copy + 0x1000..copy + 0x4000];
        let json = std::str::from_utf8(json).unwrap().trim_end_matches('\0').to_owned();
        assert!(json.contains(from), "{from} in {json}");
        let mut changed = json.replacen(from, to, 1).into_bytes();
        changed.resize(0x3000, 0);
        bytes[copy + 0x1000..copy + 0x4000].copy_from_slice(&changed);
        sign(&mut bytes, copy);
    }
    Arc::new(FaultyDevice::new("image", bytes))
}

/// Symptom: digest iterations of -1, 4294967295.0, 4e9 or a string ran for minutes past the guard on costs. Cause: what
/// was no whole number counted as 0, and the library reads it in its own way.
#[test]
fn numbers_of_a_header_that_are_not_whole_and_in_range_are_refused_before_any_work() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    drop(luks);
    let bytes = inner.content();
    for (from, to) in [
        (r#""iterations":1000"#, r#""iterations":-1"#),
        (r#""iterations":1000"#, r#""iterations":4294967295.0"#),
        (r#""iterations":1000"#, r#""iterations":4e9"#),
        (r#""iterations":1000"#, r#""iterations":"4000000000""#),
        (r#""iterations":1000"#, r#""iterations":0"#),
        (r#""time":4"#, r#""time":-1"#),
        (r#""time":4"#, r#""time":4.0"#),
        (r#""memory":32"#, r#""memory":"32""#),
        (r#""cpus":1"#, r#""cpus":1.5"#),
        (r#""stripes":4000"#, r#""stripes":-4000"#),
    ] {
        // Whatever may cost anything: nothing of it is tried.
        let any = Unlock { any_cost: true, ..Unlock::default() };
        let error = Luks::open_with(with_json(&bytes, from, to), SECRET, any).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{to}: {error}");
        let field = from.trim_start_matches('"').split('"').next().unwrap();
        assert!(error.to_string().contains(field), "{to}: {error}");
        assert!(Luks::info_of(&*with_json(&bytes, from, to)).is_err(), "{to}");
    }
}

/// Symptom: "Invalid argument" for most damaged headers. Cause: the library says no more.
#[test]
fn damaged_headers_are_described() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    drop(luks);
    let bytes = inner.content();
    let said = |device: Arc<FaultyDevice>| {
        let error = Luks::open(device, SECRET).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(!error.to_string().contains("Invalid argument"), "{error}");
        error.to_string()
    };
    for (at, word) in [(448, "checksum"), (4096, "checksum"), (8, "size"), (260, "offset field")] {
        let mut bytes = bytes.clone();
        for copy in [0, 0x4000] {
            bytes[copy + at] ^= 0x10;
        }
        let said = said(Arc::new(FaultyDevice::new("image", bytes)));
        assert!(said.contains("the first copy (at byte 0)") && said.contains(word), "{at}: {said}");
    }
    for (from, to, word) in [
        (r#""keyslots":{"#, r#""keyslots":["#, "its JSON is damaged"),
        (r#""json_size":"12288""#, r#""json_size":"4096""#, "config.json_size"),
        (r#""segments":{"0""#, r#""segments":{"zero""#, "segments"),
        (r#""size":"dynamic""#, r#""size":"many""#, "segments.0.size"),
        (r#""offset":"32768""#, r#""offset":"512""#, "keyslots.0.area"),
    ] {
        let said = said(with_json(&bytes, from, to));
        assert!(said.contains(word) && said.contains("copy"), "{to}: {said}");
    }
}

/// Symptom: an image that was cut within its first sector was read as 0 bytes, with success.
#[test]
fn an_image_cut_within_its_first_sector_is_an_error() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    let payload = luks.payload_offset() as usize;
    drop(luks);
    for more in [512, 4096 - 512] {
        let cut = Arc::new(FaultyDevice::new("image", inner.content()[..payload + more].to_vec()));
        let error = Luks::open(cut, SECRET).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("truncated within the first sector of 4096 bytes"), "{error}");
    }
}

/// Symptom: stale superblocks of md at the end of what was formatted made the new volume a member of an array.
#[test]
fn a_new_volume_is_all_that_is_found_afterwards() {
    if !can_run() {
        return;
    }
    let size = 17 * MIB;
    let mut content = vec![0; size];
    let at = ((size / 512 - 16) & !7) * 512;
    content[at..at + 8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
    content[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let inner = Arc::new(FaultyDevice::new("image", content));
    let names = |device: &FaultyDevice| {
        let found = bifolio_volume::signatures::look(device).unwrap();
        found.iter().map(|found| found.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&inner), ["ext2", "md"]);
    Luks::format(inner.clone(), SECRET, &options(512, 4096)).unwrap();
    assert_eq!(names(&inner), ["luks"]);
}

#[test]
fn what_is_cancelled_before_it_began_changes_nothing() {
    if !can_run() {
        return;
    }
    let inner = Arc::new(FaultyDevice::new("image", vec![0x5a; 17 * MIB]));
    let cancel = bifolio_io::Cancel::default();
    cancel.cancel();
    // So long that it is given up: seconds, where an answer takes milliseconds.
    let slow = Pbkdf { iterations: Some(1 << 20), memory_kib: 32, ..CHEAP };
    let options = FormatOptions { pbkdf: slow, ..options(512, 4096) };
    let error = Luks::format_until(inner.clone(), SECRET, &options, Some(&cancel)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(inner.content().iter().all(|byte| *byte == 0x5a));
}

#[test]
fn keyslots_that_would_cost_hours_or_all_memory_are_refused_before_they_are_tried() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    drop(luks);
    let bytes = inner.content();
    for (from, to, word) in [
        (r#""memory":32"#, r#""memory":4194305"#, "memory"),
        (r#""time":4"#, r#""time":2147483647"#, "iterations"),
        (r#""iterations":1000"#, r#""iterations":4000000000"#, "digest"),
    ] {
        let error = Luks::open(with_json(&bytes, from, to), SECRET).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    // Allowed, they are tried: these cost little more than usual.
    let changed = with_json(&bytes, r#""time":4"#, r#""time":5"#);
    let any = Unlock { any_cost: true, ..Unlock::default() };
    assert_eq!(Luks::open_with(changed, SECRET, any).unwrap_err().kind(), ErrorKind::WrongKey);
}

#[test]
fn layouts_that_are_not_implemented_are_named() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    drop(luks);
    let bytes = inner.content();
    let integrity = r#""integrity":{"type":"hmac(sha256)","journal_encryption":"none","journal_integrity":"none"},"#;
    for (from, to, word) in [
        (r#""encryption":"aes-xts-plain64","sector"#, r#""encryption":"serpent-xts-plain64","sector"#, "serpent"),
        (
            r#""encryption":"aes-xts-plain64","sector"#,
            &format!("{integrity}\"encryption\":\"aes-xts-plain64\",\"sector"),
            "hmac",
        ),
        (r#""config":{"#, r#""config":{"requirements":{"mandatory":["from-the-future"]},"#, "from-the-future"),
    ] {
        let device = with_json(&bytes, from, to);
        let error = Luks::open(device.clone(), SECRET).unwrap_err();
        assert!(error.to_string().contains(word), "{word}: {error}");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let info = Luks::info_of(&*device).unwrap();
        assert!(info.unsupported.unwrap().contains(word));
    }
}

#[test]
fn a_volume_that_is_being_encrypted_anew_is_refused_with_advice() {
    if !can_run() {
        return;
    }
    let place = Place::new();
    let image = place.empty("image", 33 * MIB as u64);
    drop(Luks::format(file(&image), SECRET, &options(512, 4096)).unwrap());
    let (path, key) = (text(&image), place.text("key"));
    let begin = ["reencrypt", "--init-only", "-q", "--force-offline-reencrypt", "--key-file", &key];
    run("cryptsetup", &[&begin[..], &CHEAP_ARGON2, &[&path]].concat());
    let error = Luks::open(file(&image), SECRET).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("re-encryption is under way"), "{error}");
}

#[test]
fn a_volume_of_cbc_is_refused_by_name() {
    if !can_run() {
        return;
    }
    let place = Place::new();
    let image = text(&place.empty("image", 18 * MIB as u64));
    let key = place.text("key");
    let cbc = ["luksFormat", "-q", "--cipher", "aes-cbc-essiv:sha256", "--key-size", "256"];
    run("cryptsetup", &[&cbc[..], &CHEAP_ARGON2, &[&image, &key]].concat());
    let error = Luks::open(file(Path::new(&image)), SECRET).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("aes-cbc-essiv:sha256"), "{error}");
}

#[test]
fn several_keyslots_are_tried_and_unbound_ones_are_not() {
    if !can_run() {
        return;
    }
    let place = Place::new();
    let image = place.empty("image", 17 * MIB as u64);
    drop(Luks::format(file(&image), SECRET, &options(512, 4096)).unwrap());
    let (path, key) = (text(&image), place.text("key"));
    std::fs::write(place.path("second"), "another").unwrap();
    std::fs::write(place.path("unbound"), "of another key").unwrap();
    let (second, unbound) = (place.text("second"), place.text("unbound"));
    let add = ["luksAddKey", "-q", "--key-file", &key];
    run("cryptsetup", &[&add[..], &CHEAP_ARGON2, &[&path, &second]].concat());
    let other = [&add[..2], &["--unbound", "--key-size", "512"], &CHEAP_ARGON2, &[&path, &unbound]].concat();
    run("cryptsetup", &other);
    let keys: Vec<_> =
        [SECRET, b"another"].map(|secret| Luks::open(file(&image), secret).unwrap().key().to_vec()).into();
    assert_eq!(keys[0], keys[1]);
    let error = Luks::open(file(&image), b"of another key").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    let info = Luks::info_of(&*file(&image)).unwrap();
    assert_eq!(info.keyslots.iter().map(|slot| slot.is_unbound).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn errors_from_below_come_up_and_the_volume_goes_on_after_them() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    let before = content(&luks);
    let data = vec![1; 3 * 4096];
    inner.set_faults(Faults { is_full: true, ..Faults::default() });
    assert_eq!(luks.write(100, &data).unwrap_err().kind(), BlockKind::NoSpace);
    inner.set_faults(Faults { reads_fail: true, ..Faults::default() });
    assert_eq!(luks.read(0, &mut [0; 512]).unwrap_err().kind(), BlockKind::Read);
    // The rest of a sector cannot be kept if it cannot be read.
    assert_eq!(luks.write(100, &[1]).unwrap_err().kind(), BlockKind::Read);
    inner.set_faults(Faults { flushes_fail: true, ..Faults::default() });
    assert_eq!(luks.flush().unwrap_err().kind(), BlockKind::Write);
    inner.set_faults(Faults::default());
    assert!(content(&luks) == before);
    luks.write(100, &data).unwrap();
    assert!(content(&luks)[100..][..data.len()] == data);
}

#[test]
fn what_was_flushed_survives_a_loss_of_power() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    let (inner, luks) = formatted(512, 512);
    let kept = draw.bytes(10_000);
    luks.write(1000, &kept).unwrap();
    luks.flush().unwrap();
    luks.write(20_000, &kept).unwrap();
    drop(luks);
    let after = Arc::new(inner.after_power_loss(|_| draw.below(2) == 0));
    let luks = Luks::open(after, SECRET).unwrap();
    assert!(content(&luks)[1000..11_000] == kept);
}

#[test]
fn a_format_that_loses_power_leaves_an_old_volume_or_none_or_the_new_one() {
    if !can_run() {
        return;
    }
    let mut draw = Draw::afresh();
    for power in 0..8 {
        let inner = Arc::new(FaultyDevice::new("image", vec![0; 17 * MIB]));
        drop(Luks::format(inner.clone(), b"old", &options(512, 512)).unwrap());
        inner.set_faults(Faults { power_for: Some(power), ..Faults::default() });
        let formatted = Luks::format(inner.clone(), SECRET, &options(512, 512)).map(drop);
        // Six writes and flushes; without power the header is not read back either.
        assert_eq!(formatted.is_ok(), power >= 7);
        let survives = draw.below(3);
        let after = Arc::new(inner.after_power_loss(|number| survives == 0 || (survives == 1 && number % 2 == 0)));
        let opens = |secret| Luks::open(after.clone(), secret).map(drop).map_err(|error| error.kind());
        match (opens(b"old"), opens(SECRET)) {
            (Ok(()), Err(ErrorKind::WrongKey)) => assert!(power <= 1),
            (Err(ErrorKind::WrongKey), Ok(())) => assert!(power >= 5),
            (Err(ErrorKind::NotAVolume | ErrorKind::Damaged), Err(ErrorKind::NotAVolume | ErrorKind::Damaged)) => {}
            other => panic!("power for {power}: {other:?}"),
        }
    }
}

#[test]
fn devices_that_cannot_hold_a_volume_are_refused() {
    if !can_run() {
        return;
    }
    let kind = |len: usize, options: &FormatOptions| {
        let inner = Arc::new(FaultyDevice::new("image", vec![7; len]));
        let kind = Luks::format(inner.clone(), SECRET, options).unwrap_err().kind();
        assert!(inner.content().iter().all(|byte| *byte == 7), "nothing was written");
        kind
    };
    assert_eq!(kind(16 * MIB, &options(512, 512)), ErrorKind::BadRange);
    assert_eq!(kind(17 * MIB + 512, &options(512, 4096)), ErrorKind::BadUse);
    assert_eq!(kind(17 * MIB, &options(384, 512)), ErrorKind::BadUse);
    assert_eq!(kind(17 * MIB, &options(512, 8192)), ErrorKind::BadUse);
    let full = Arc::new(FaultyDevice::new("image", vec![7; 17 * MIB]));
    full.set_faults(Faults { is_full: true, ..Faults::default() });
    let error = Luks::format(full, SECRET, &options(512, 512)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let label = Some("x".repeat(48));
    assert_eq!(kind(17 * MIB, &FormatOptions { label, ..options(512, 512) }), ErrorKind::BadUse);
}

#[test]
fn discards_go_below_only_where_asked_and_never_touch_neighbours() {
    if !can_run() {
        return;
    }
    let (inner, luks) = formatted(512, 4096);
    let data = vec![9; 5 * 4096];
    luks.write(0, &data).unwrap();
    luks.discard(100, 3 * 4096).unwrap();
    assert!(content(&luks)[..data.len()] == data);
    drop(luks);
    let luks = Luks::open_with(inner, SECRET, Unlock { discard: true, ..Unlock::default() }).unwrap();
    luks.discard(100, 3 * 4096).unwrap();
    let after = content(&luks);
    assert!(after[..4096] == data[..4096] && after[3 * 4096..5 * 4096] == data[3 * 4096..]);
    assert!(after[4096..3 * 4096] != data[4096..3 * 4096]);
}
