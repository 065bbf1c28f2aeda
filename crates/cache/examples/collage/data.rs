//! The data set and the input, from a seed.
//!
//! A record of the data set is a page of 4 KiB: a histogram of 64 bins for each of three channels (u16), and
//! from byte 512 on the 32 by 32 pixels of a tile. Records lie in the order of their buckets. A bucket is a range
//! of mean colours: a hash by which similar tiles meet, and of which neighbours have similar numbers. The index
//! says where each bucket begins.

use std::io::Write;
use std::ops::Range;
use std::path::Path;

pub(crate) const RECORD_BYTES: u64 = 4096;
pub(crate) const PIXELS_AT: usize = 512;
pub(crate) const PIXEL_BYTES: usize = 3 * 32 * 32;
pub(crate) const BINS: usize = 64;
pub(crate) const HISTOGRAM_BYTES: usize = 3 * BINS * 2;

/// A data set's shape.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    /// Bits of a mean colour, for each channel.
    pub(crate) bits: u32,
    /// By bucket, the first record; and the end of the last.
    pub(crate) first: Vec<u32>,
}

/// A stream of pseudo-random numbers (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }
}

impl Index {
    /// For so many records: 32 or more in a bucket, and buckets enough that a quarter of them can be chosen.
    pub(crate) fn new(records: u64) -> Self {
        let bits = (2..=5).rev().find(|bits| (32_u64 << (3 * bits)) <= records).unwrap_or(2);
        let buckets = 1_u64 << (3 * bits);
        Self { bits, first: (0..=buckets).map(|bucket| (bucket * records / buckets) as u32).collect() }
    }

    pub(crate) fn buckets(&self) -> u64 {
        self.first.len() as u64 - 1
    }

    pub(crate) fn records_of(&self, bucket: u64) -> Range<u64> {
        u64::from(self.first[bucket as usize])..u64::from(self.first[bucket as usize + 1])
    }

    /// The bucket of some pixels: the bits of their mean colour, those of the channels in turn.
    pub(crate) fn bucket_of(&self, pixels: &[u8]) -> u64 {
        let mean = |channel: usize| {
            let sum: u32 = pixels.iter().skip(channel).step_by(3).map(|value| u32::from(*value)).sum();
            u64::from(sum) * 3 / PIXEL_BYTES as u64
        };
        let means = [mean(0), mean(1), mean(2)];
        let bits = (0..self.bits).flat_map(|bit| means.map(|mean| mean >> (7 - bit) & 1));
        bits.fold(0, |bucket, bit| bucket << 1 | bit)
    }

    /// Some pixels of a bucket: a colour of it with noise that leaves the mean inside.
    fn draw(&self, random: &mut Random, bucket: u64, pixels: &mut [u8]) {
        let width = 256_i64 >> self.bits;
        let colour = [2, 1, 0].map(|channel| {
            let bits = (0..self.bits).fold(0, |value, bit| value | (bucket >> (3 * bit + channel) & 1) << bit);
            bits as i64 * width + width / 4 + random.below(width as u64 / 2) as i64
        });
        let spread = 8 + random.below(40) as i64;
        // Nothing is clipped, which would move the mean.
        let channels = colour.map(|colour| (colour, spread.min(colour).min(255 - colour)));
        let (mut word, mut left) = (0, 0);
        for (value, (colour, spread)) in pixels.iter_mut().zip(channels.into_iter().cycle()) {
            if left == 0 {
                // A number has ten values of six bits.
                (word, left) = (random.word(), 10);
            }
            let noise = ((word & 63) as i64 * 2 - 63) * spread / 64;
            *value = (colour + noise) as u8;
            (word, left) = (word >> 6, left - 1);
        }
    }
}

pub(crate) fn histogram(pixels: &[u8]) -> [u16; 3 * BINS] {
    let mut bins = [0; 3 * BINS];
    for (value, channel) in pixels.iter().zip([0, 1, 2].into_iter().cycle()) {
        bins[channel * BINS + usize::from(*value) / 4] += 1;
    }
    bins
}

/// Writes the data set: by several threads, as it may be long.
pub(crate) fn write(path: &Path, index: &Index, seed: u64) -> std::io::Result<()> {
    let threads = std::thread::available_parallelism()?.get() as u64;
    std::fs::File::create(path)?;
    let share = |thread: u64| -> std::io::Result<()> {
        let mut file = std::fs::File::options().write(true).open(path)?;
        let buckets = thread * index.buckets() / threads..(thread + 1) * index.buckets() / threads;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(index.records_of(buckets.start).start * RECORD_BYTES))?;
        for bucket in buckets {
            let mut random = Random::new(seed, bucket);
            let mut records = vec![];
            for _ in index.records_of(bucket) {
                let mut record = [0; RECORD_BYTES as usize];
                let pixels = &mut record[PIXELS_AT..PIXELS_AT + PIXEL_BYTES];
                index.draw(&mut random, bucket, pixels);
                let bins = histogram(pixels);
                record.iter_mut().zip(bins.into_iter().flat_map(u16::to_le_bytes)).for_each(|(to, byte)| *to = byte);
                records.extend(record);
            }
            file.write_all(&records)?;
        }
        file.sync_all()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || share(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

/// The input, block by block: a picture has some ranges of colours, which are a quarter of all.
pub(crate) fn input(index: &Index, seed: u64) -> Vec<u8> {
    const RANGES: u64 = 64;
    let mut random = Random::new(seed, u64::MAX);
    let mut ranges: Vec<u64> = (0..RANGES).collect();
    for i in (1..RANGES).rev() {
        ranges.swap(i as usize, random.below(i + 1) as usize);
    }
    let of_range = index.buckets() / RANGES;
    let blocks = (index.buckets() / 2).max(2048);
    let mut pixels = vec![0; blocks as usize * PIXEL_BYTES];
    for (number, block) in pixels.chunks_mut(PIXEL_BYTES).enumerate() {
        // Every chosen bucket is needed by some block; then at random, as pictures are.
        let bucket = match number as u64 {
            number if number < of_range * RANGES / 4 => {
                ranges[(number / of_range) as usize] * of_range + number % of_range
            }
            _ => ranges[random.below(RANGES / 4) as usize] * of_range + random.below(of_range),
        };
        index.draw(&mut random, bucket, block);
    }
    pixels
}
