//! Longest-prefix tables: from an IPv4 address to a gateway and an output.
//!
//! ```text
//!   route     a route, where it leads, and its text
//!   table     what all tables can do
//!   commands  what configurations and handlers ask of a table
//!   linear    every route is looked at
//!   radix     16, 8 and 8 bits, each node as its runs of equal answers
//!   direct    24 bits in one array, 8 bits for the prefixes that are longer
//!   range     16 bits, then a tree of the places where the answer changes
//!
//!   compiled  what the last three share: a list of routes, from which what packets read is made
//!   slots     the list, in Click's order         index   the list by prefix
//!   hops      gateways and outputs, once each    lines   memory that grows under readers
//!   epoch     when memory may be used again
//!   image     the direct table's arrays for a device, and what changed in them
//! ```
//!
//! Packets and updates do not wait for each other. An update takes the table's lock, and changes what packets read by
//! single atomic stores; a lookup takes no lock, and sees each address as before or as after an update.
//!
//! What a lookup touches, with 900,000 routes of the internet (90 % of addresses end at step 2):
//!
//! | table  | step 1                | step 2                    | step 3                       | memory |
//! |--------|-----------------------|---------------------------|------------------------------|--------|
//! | radix  | 4 bytes of 256 KiB    | 4 + 4 bytes, 1 or 2 lines | the same, past 24 bits alone | 9 MiB  |
//! | direct | 2 bytes of 32 MiB     | 2 bytes, past 24 bits     | -                            | 33 MiB |
//! | range  | 8 bytes of 512 KiB    | 5 words of a line         | the same, past 16 ranges     | 6 MiB  |
//!
//! Each ends with 8 bytes of the list of gateways, which is small where the routes have few.

mod commands;
mod compiled;
mod direct;
mod epoch;
mod hops;
mod image;
mod index;
mod linear;
mod lines;
mod radix;
mod range;
mod route;
mod slots;
mod table;
#[cfg(test)]
mod tests;

pub use commands::{Commands, Verb};
pub use image::{Buffer, DirectImage, DirectMirror, DirectUpdate, Write};
pub use linear::LinearTable;
pub use route::{Names, NextHop, NoNames, Route};
pub use table::{Edit, Refusal, Table};

use compiled::Compiled;

macro_rules! table {
    ($(#[$doc:meta])* $name:ident, $layout:ty) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name(Compiled<$layout>);

        impl Table for $name {
            fn edit(&self) -> Box<dyn Edit + '_> {
                self.0.edit()
            }

            #[inline]
            fn lookup(&self, address: u32) -> NextHop {
                self.0.lookup(address)
            }

            fn lookup_batch(&self, addresses: &[u32], hops: &mut [NextHop]) {
                self.0.lookup_batch(addresses, hops);
            }
        }
    };
}

table!(
    /// A trie of 16, 8 and 8 bits, whose nodes are as small as their answers are few. Takes any number of routes.
    RadixTable,
    radix::Radix
);
table!(
    /// An answer for each 24 bits, and for each address where prefixes are longer. 33 MiB, 32,767 different next hops, and
    /// 32,768 places with longer prefixes.
    DirectTable,
    direct::Direct
);
table!(
    /// For each 16 bits, the addresses at which the answer changes, in order. The smallest one; an update makes all of a
    /// place again, which has up to 65,536 addresses.
    RangeTable,
    range::Range
);

impl DirectTable {
    /// The table's arrays for a device, and what to keep of them for [`update`](Self::update). The error: a route's output
    /// has a number that a device cannot tell.
    pub fn image(&self) -> Result<(DirectMirror, DirectImage), String> {
        image::whole(&self.0)
    }

    /// What has to be written on a device so that it has the table as it is now, and what is to be kept of it when all is
    /// written. The error is that of [`image`](Self::image); the device's table is as old as it was then, and the next call
    /// makes up for it.
    pub fn update(&self, mirror: &DirectMirror) -> Result<(DirectMirror, DirectUpdate), String> {
        image::update(&self.0, mirror)
    }
}
