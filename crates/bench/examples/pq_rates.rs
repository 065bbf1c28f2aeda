//! The rate of P and Q on one core, beside Intel's ISA-L in the same run, where `libisal.so.2` is installed.
//!
//! ```text
//! cargo run --release -p bifolio-bench --example pq_rates
//! ```

use bifolio_bench::Session;
use bifolio_bench::harness::rounds::{Time, Way, rates, rounds};
use bifolio_bench::harness::table::Table;
use bifolio_compute::cpu::pq::{Level, Pq};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::raid6::Loss;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Members of a stripe, P and Q included.
const MEMBERS: usize = 10;
const CHUNK: usize = 64 << 10;
/// For each way.
const TIME: Duration = Duration::from_millis(800);

type PqGen = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;
type Work<'a> = Box<dyn FnMut(&mut [&mut [u8]]) + 'a>;

fn main() -> bifolio_bench::Result<()> {
    let mut draw = Draw::afresh();
    println!("{MEMBERS} members of {CHUNK} bytes, {} rounds, seed {}; GB of data per second", rounds(), draw.seed());
    // One region with ISA-L's alignment, of which the members are parts.
    let mut memory = draw.bytes(MEMBERS * CHUNK + 4096);
    let skip = memory.as_ptr().align_offset(4096);
    let members: Vec<&mut [u8]> = memory[skip..][..MEMBERS * CHUNK].chunks_exact_mut(CHUNK).collect();

    // SAFETY: the library's initialisers only look at the processor.
    let library = unsafe { libloading::Library::new("libisal.so.2") };
    // SAFETY: this is the function's type in its header.
    let isal = library.as_ref().ok().and_then(|library| unsafe { library.get::<PqGen>(b"pq_gen\0") }.ok());
    let mut works: Vec<(String, Work<'_>)> = vec![];
    match isal {
        Some(isal) => {
            works.push(("ISA-L pq_gen".to_owned(), Box::new(move |members| generate_by_isal(*isal, members))));
        }
        None => println!("without ISA-L, as libisal.so.2 cannot be loaded"),
    }
    for level in Level::available() {
        works.push((format!("generate, {level:?}"), Box::new(move |members| generate(Pq::at(level), members))));
        for (name, loss) in [("one data member", Loss::one(3)), ("two data members", Loss::two(2, 5))] {
            let recover = move |members: &mut [&mut [u8]]| Pq::at(level).recover(members, loss);
            works.push((format!("recover {name}, {level:?}"), Box::new(recover)));
        }
    }
    let members = RefCell::new(members);
    let ways = works.iter_mut().map(|(_, work)| {
        let once = || {
            work(black_box(&mut members.borrow_mut()));
            Ok(())
        };
        Box::new(once) as Way<'_>
    });
    let mut ways: Vec<Way<'_>> = ways.collect();
    let time = Time { point: TIME, deadline: Instant::now() + Duration::from_secs(3600) };
    let found = rates(((MEMBERS - 2) * CHUNK) as u64, &mut ways, time, &Session::default())?;
    drop(ways);
    let mut table = Table::new(["way", "median", "slowest", "quickest"], &[0]);
    for ((name, _), rate) in works.iter().zip(found) {
        let Some(rate) = rate else { continue };
        let numbers = [rate.gb_per_s, rate.range_gb_per_s[0], rate.range_gb_per_s[1]].map(|rate| format!("{rate:.2}"));
        table.push([&[name.clone()][..], &numbers].concat());
    }
    print!("{}", table.text());
    Ok(())
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
