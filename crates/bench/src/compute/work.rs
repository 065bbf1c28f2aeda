//! The work that is measured: each service with random data of one size, and its right answers.

use crate::error::{Error, Result};
use bifolio_compute::cpu::pq;
use bifolio_compute::service::{
    AesCtr, AesGcm, AesXts, Data, Digests, Generate, Message, Output, Recover, Scrub, Service, Step,
};
use bifolio_compute::{Executor, Handle};
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::{self, IvUnit, Sectors};
use bifolio_kernels::digest::{self, Digest};
use bifolio_kernels::raid6::{self, Geometry};
use bifolio_kernels::{aes_ctr, aes_gcm};
use fastrand::Rng;
use serde::Serialize;
use std::str::FromStr;

/// A service that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// AES-256-XTS, decryption of 4 KiB sectors.
    Xts,
    /// AES-256-CTR.
    Ctr,
    /// AES-256-GCM, decryption of 4 KiB messages.
    Gcm,
    /// P and Q of eight data members.
    Raid6Generate,
    /// Two lost data members of eight.
    Raid6Recover,
    /// Verdicts on ten members.
    Raid6Scrub,
    /// SHA-256 of 4 KiB blocks.
    Sha256,
    /// CRC32C of 4 KiB blocks.
    Crc32c,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|kind| kind.name() == text);
        let names = Self::ALL.map(Self::name).join(", ");
        named.ok_or_else(|| format!("\"{text}\" is not a service: there are {names}"))
    }
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Xts,
        Self::Ctr,
        Self::Gcm,
        Self::Raid6Generate,
        Self::Raid6Recover,
        Self::Raid6Scrub,
        Self::Sha256,
        Self::Crc32c,
    ];

    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Xts => "xts",
            Self::Ctr => "ctr",
            Self::Gcm => "gcm",
            Self::Raid6Generate => "raid6-generate",
            Self::Raid6Recover => "raid6-recover",
            Self::Raid6Scrub => "raid6-scrub",
            Self::Sha256 => "sha256",
            Self::Crc32c => "crc32c",
        }
    }
}

/// One service with data of one size.
pub(super) trait Work {
    /// For requests.
    fn step(&self) -> Step;
    /// What is read.
    fn input(&self) -> &[u8];
    /// How it is written.
    fn output(&self) -> Output;
    /// The library on this thread: no executor.
    fn by_library(&mut self) -> Result<()>;
    /// The executor, which chooses.
    fn by_executor(&mut self) -> Result<()>;
    /// Output and results of the last run on host memory. What changes its data in place is found apart here.
    fn found(&self) -> (&[u8], &[u8]);
    /// Makes what the next run finds tell itself from what the last one did.
    fn poison(&mut self);
    /// Output and results as the oracle has them.
    fn answer(&self) -> (Vec<u8>, Vec<u8>);
}

struct Of<S: Service> {
    handle: Handle<S>,
    params: S::Params,
    input: Vec<u8>,
    output: Vec<u8>,
    results: Vec<u8>,
    shape: Output,
    oracle: Oracle<S>,
}

/// Input and parameters to output and results.
type Oracle<S> = Box<dyn Fn(&[u8], &<S as Service>::Params) -> (Vec<u8>, Vec<u8>)>;

impl<S: Service> Of<S> {
    fn boxed(handle: Handle<S>, params: S::Params, input: Vec<u8>, oracle: Oracle<S>) -> Result<Box<dyn Work>> {
        let shape = handle.service().shape(&params, input.len() as u64)?;
        let output = vec![0; shape.output.bytes(input.len() as u64) as usize];
        let results = vec![0; shape.results as usize];
        Ok(Box::new(Self { handle, params, input, output, results, shape: shape.output, oracle }))
    }

    fn data<'a>(shape: Output, input: &'a [u8], output: &'a mut [u8]) -> Data<'a> {
        match shape {
            Output::Nothing => Data::Read(input),
            Output::Same | Output::Apart(_) => Data::Apart(input, output),
        }
    }
}

impl<S: Service> Work for Of<S> {
    fn step(&self) -> Step {
        self.handle.step(self.params.clone())
    }

    fn input(&self) -> &[u8] {
        &self.input
    }

    fn output(&self) -> Output {
        self.shape
    }

    fn by_library(&mut self) -> Result<()> {
        let data = Self::data(self.shape, &self.input, &mut self.output);
        self.handle.service().on_cpu(&self.params, data, &mut self.results).map_err(Error::from)
    }

    fn by_executor(&mut self) -> Result<()> {
        let data = Self::data(self.shape, &self.input, &mut self.output);
        self.handle.run(&self.params, data, &mut self.results).map_err(Error::from)
    }

    fn found(&self) -> (&[u8], &[u8]) {
        (&self.output, &self.results)
    }

    fn poison(&mut self) {
        self.output.fill(0xdd);
        self.results.fill(0xdd);
    }

    fn answer(&self) -> (Vec<u8>, Vec<u8>) {
        (self.oracle)(&self.input, &self.params)
    }
}

/// So many bytes without a pattern.
pub(super) fn random_bytes(random: &mut Rng, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    random.fill(&mut bytes);
    bytes
}

/// Data members of the arrays.
const DATA: u32 = 8;

/// A stripe of so many bytes of data, or several of chunks of 64 KiB.
fn geometry(bytes: u64) -> Geometry {
    Geometry { data: DATA, chunk_bytes: (bytes / u64::from(DATA)).clamp(16, 64 << 10) }
}

/// A service with `bytes` of random data; for RAID-6 that is what the data members have.
pub(super) fn prepare(executor: &Executor, kind: Kind, bytes: u64, seed: u64) -> Result<Box<dyn Work>> {
    let mut random = Rng::with_seed(seed ^ bytes);
    let key = random_bytes(&mut random, 64);
    let kernels = executor.kernels();
    match kind {
        Kind::Xts => {
            let sector_bytes = bytes.clamp(512, 4096) as u32;
            let service = AesXts::new(kernels, &key, Direction::Decrypt, sector_bytes, IvUnit::Bytes512);
            let input = random_bytes(&mut random, bytes);
            let oracle = move |input: &[u8], first_iv: &u64| {
                let sectors = Sectors { bytes: sector_bytes, first_iv: *first_iv, iv_unit: IvUnit::Bytes512 };
                let mut output = input.to_vec();
                aes_xts::oracle(Direction::Decrypt, &key, sectors, &mut output);
                (output, vec![])
            };
            Of::boxed(executor.register(service?), 1 << 33, input, Box::new(oracle))
        }
        Kind::Ctr => {
            let service = AesCtr::new(kernels, &key[..32])?;
            let input = random_bytes(&mut random, bytes);
            let oracle = move |input: &[u8], counter: &[u8; 16]| {
                let mut output = input.to_vec();
                aes_ctr::oracle(&key[..32], *counter, &mut output);
                (output, vec![])
            };
            Of::boxed(executor.register(service), [5; 16], input, Box::new(oracle))
        }
        Kind::Gcm => gcm(executor, &key[..32], random_bytes(&mut random, bytes)),
        Kind::Raid6Generate => {
            let geometry = geometry(bytes);
            let service = Generate::new(kernels, geometry)?;
            let (params, input) = service.sample(bytes);
            let input = random_bytes(&mut random, input.len() as u64);
            let oracle = move |input: &[u8], (): &()| {
                let pq = |stripe: &[u8]| raid6::oracle_generate(&chunks(stripe, geometry)).concat();
                (stripes(input, geometry, DATA).flat_map(pq).collect(), vec![])
            };
            Of::boxed(executor.register(service), params, input, Box::new(oracle))
        }
        Kind::Raid6Recover => {
            let geometry = geometry(bytes);
            let service = Recover::new(kernels, geometry)?;
            let (losses, input) = service.sample(bytes / u64::from(DATA) * u64::from(geometry.members()));
            let input = random_bytes(&mut random, input.len() as u64);
            let oracle = move |input: &[u8], losses: &bifolio_compute::service::Stripes| {
                let lost = stripes(input, geometry, geometry.members()).zip(losses.items());
                let found = lost.flat_map(|(stripe, loss)| raid6::oracle_recover(&chunks(stripe, geometry), *loss));
                (found.flatten().collect(), vec![])
            };
            Of::boxed(executor.register(service), losses, input, Box::new(oracle))
        }
        Kind::Raid6Scrub => {
            let geometry = geometry(bytes);
            let service = Scrub::new(kernels, geometry)?;
            let (params, input) = service.sample(bytes / u64::from(DATA) * u64::from(geometry.members()));
            // A scrub mostly finds nothing.
            let mut input = random_bytes(&mut random, input.len() as u64);
            let chunk = geometry.chunk_bytes as usize;
            for stripe in input.chunks_exact_mut(chunk * geometry.members() as usize) {
                let (data, parity) = stripe.split_at_mut(chunk * DATA as usize);
                let (p, q) = parity.split_at_mut(chunk);
                pq::generate(&data.chunks_exact(chunk).collect::<Vec<_>>(), p, q);
            }
            let damaged = random.usize(0..input.len());
            input[damaged] ^= 1;
            let oracle = move |input: &[u8], (): &()| {
                let verdicts = |stripe: &[u8]| raid6::oracle_scrub(&chunks(stripe, geometry));
                let words = stripes(input, geometry, geometry.members()).flat_map(verdicts);
                (vec![], words.flat_map(|verdict| verdict.to_word().to_ne_bytes()).collect())
            };
            Of::boxed(executor.register(service), params, input, Box::new(oracle))
        }
        Kind::Sha256 => digests(executor, Digest::Sha256, random_bytes(&mut random, bytes)),
        Kind::Crc32c => digests(executor, Digest::Crc32c, random_bytes(&mut random, bytes)),
    }
}

fn chunks(stripe: &[u8], geometry: Geometry) -> Vec<&[u8]> {
    stripe.chunks_exact(geometry.chunk_bytes as usize).collect()
}

fn stripes(input: &[u8], geometry: Geometry, members: u32) -> impl Iterator<Item = &[u8]> {
    input.chunks_exact((u64::from(members) * geometry.chunk_bytes) as usize)
}

fn digests(executor: &Executor, digest: Digest, input: Vec<u8>) -> Result<Box<dyn Work>> {
    let service = Digests::new(executor.kernels(), digest)?;
    let blocks = Digests::blocks(input.len() as u64, 4096);
    let oracle = move |input: &[u8], _: &bifolio_compute::service::Blocks| {
        (vec![], input.chunks(4096).flat_map(|block| digest::oracle(digest, block)).collect())
    };
    Of::boxed(executor.register(service), blocks, input, Box::new(oracle))
}

/// Messages that were encrypted here, so that they pass.
fn gcm(executor: &Executor, key: &[u8], plain: Vec<u8>) -> Result<Box<dyn Work>> {
    let mut sealed = plain.clone();
    let seal = |(i, text): (usize, &mut [u8])| {
        let nonce = [&i.to_le_bytes()[..], &[7; 8]].concat();
        let aad = i.to_be_bytes().to_vec();
        let tag = aes_gcm::oracle_encrypt(key, &nonce, &aad, text);
        Message { at: i as u64 * 4096, len: text.len() as u64, nonce, aad, tag }
    };
    let messages: Vec<Message> = sealed.chunks_mut(4096).enumerate().map(seal).collect();
    let service = AesGcm::new(executor.kernels(), key, Direction::Decrypt)?;
    let oracle = move |_: &[u8], messages: &bifolio_compute::service::Messages| {
        (plain.clone(), 1_u32.to_ne_bytes().repeat(messages.items().len()))
    };
    Of::boxed(executor.register(service), messages.into(), sealed, Box::new(oracle))
}
