//! The rate of P and Q on one core, beside Intel's ISA-L in the same run, where `libisal.so.2` is installed.
//!
//! ```text
//! cargo run --release -p bifolio-compute --example pq_rates
//! ```

use bifolio_compute::cpu::pq::{Level, Pq};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::raid6::Loss;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Members of a stripe, P and Q included.
const MEMBERS: usize = 10;
const CHUNK: usize = 64 << 10;
/// All are timed in turn, so that a change of the clock rate meets all.
const ROUNDS: usize = 41;
const ROUND: Duration = Duration::from_millis(20);

type PqGen = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;
type Work<'a> = Box<dyn FnMut(&mut [&mut [u8]]) + 'a>;

fn main() {
    let mut draw = Draw::afresh();
    println!("{MEMBERS} members of {CHUNK} bytes, {ROUNDS} rounds, seed {}; GB of data per second", draw.seed());
    // One region with ISA-L's alignment, of which the members are parts.
    let mut memory = draw.bytes(MEMBERS * CHUNK + 4096);
    let skip = memory.as_ptr().align_offset(4096);
    let mut members: Vec<&mut [u8]> = memory[skip..][..MEMBERS * CHUNK].chunks_exact_mut(CHUNK).collect();

    // SAFETY: the library's initialisers only look at the processor.
    let library = unsafe { libloading::Library::new("libisal.so.2") };
    // SAFETY: this is the function's type in its header.
    let isal = library.as_ref().ok().and_then(|library| unsafe { library.get::<PqGen>(b"pq_gen\0") }.ok());
    let mut works: Vec<(String, Work<'_>)> = vec![];
    match isal {
        Some(isal) => {
            works.push(("ISA-L pq_gen".to_owned(), Box::new(move |members| generate_by_isal(*isal, members))));
        }
        None => println!("skipped: ISA-L, as libisal.so.2 cannot be loaded"),
    }
    for level in Level::available() {
        works.push((format!("generate, {level:?}"), Box::new(move |members| generate(Pq::at(level), members))));
        for (name, loss) in [("one data member", Loss::one(3)), ("two data members", Loss::two(2, 5))] {
            let recover = move |members: &mut [&mut [u8]]| Pq::at(level).recover(members, loss);
            works.push((format!("recover {name}, {level:?}"), Box::new(recover)));
        }
    }
    let mut rates = vec![vec![]; works.len()];
    for _ in 0..ROUNDS {
        for ((_, work), rates) in works.iter_mut().zip(&mut rates) {
            rates.push(rate(&mut members, work));
        }
    }
    for ((name, _), rates) in works.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let [low, middle, high] = [ROUNDS / 10, ROUNDS / 2, ROUNDS - 1 - ROUNDS / 10].map(|at| rates[at]);
        println!("{name:40} {middle:7.2}  ({low:.2} to {high:.2})");
    }
}

fn generate_by_isal(pq_gen: PqGen, members: &mut [&mut [u8]]) {
    let mut array: Vec<*mut c_void> = members.iter_mut().map(|member| member.as_mut_ptr().cast()).collect();
    // SAFETY: as many aligned buffers of that length.
    let refused = unsafe { pq_gen(MEMBERS as c_int, CHUNK as c_int, array.as_mut_ptr()) };
    assert_eq!(refused, 0, "ISA-L refuses the buffers");
}

fn generate(pq: Pq, members: &mut [&mut [u8]]) {
    let (data, parity) = members.split_at_mut(MEMBERS - 2);
    let data: Vec<&[u8]> = data.iter().map(|chunk| &**chunk).collect();
    let [p, q] = parity else { unreachable!("P and Q are left") };
    pq.generate(&data, p, q);
}

/// GB of data chunks per second.
fn rate(members: &mut [&mut [u8]], work: &mut Work<'_>) -> f64 {
    work(members);
    let started = Instant::now();
    let mut times = 0_usize;
    while started.elapsed() < ROUND {
        for _ in 0..20 {
            work(black_box(members));
        }
        times += 20;
    }
    (times * (MEMBERS - 2) * CHUNK) as f64 / started.elapsed().as_secs_f64() / 1e9
}
