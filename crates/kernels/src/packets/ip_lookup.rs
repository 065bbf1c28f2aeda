//! Longest-prefix lookup of IPv4 addresses in a table of two levels (DIR-24-8).
//!
//! The tables are buffers: level 1 with a u16 for each value of an address's upper 24 bits, which is a code, or with the
//! highest bit ([`LIST`]) the number of a list; level 2 with lists of 256 codes for the last 8 bits; next hops, see [`hop`], by
//! their codes, of which 0 is the default route's. All are little-endian. Addresses beyond the end of a table have no route.

use super::case::{self, Case, Layout};
use super::row_kernel::{Packet, RowKernel, check_output_word, check_slot, run_on_host, set_slot};
use super::rows::{NONE, PACKET_ROWS_H, PacketRows};
use crate::kernel::{KDEF_H, Kernel, Trial};
use crate::known_answer::Draw;
use crate::launch::bad;
use bifolio_device::{ModuleSource, Result};

/// In a code of level 1: the rest of it is the number of a list.
pub const LIST: u16 = 0x8000;
/// Bytes of a next hop.
pub const HOP_BYTES: u64 = 8;
/// The number of an output is below this; others count as no route.
pub const OUTPUTS: u32 = 255;

const MODULE: ModuleSource = ModuleSource {
    name: Lookup::KERNEL,
    source: include_str!("../cl/ip_lookup.cl"),
    headers: &[KDEF_H, PACKET_ROWS_H, ("ip_lookup.h", include_str!("../cl/ip_lookup.h"))],
    kernels: &[(Lookup::KERNEL, run_on_host::<Lookup>)],
};

/// The kernel; [`super::launch`] runs it with three tables: level 1, level 2, next hops.
#[derive(Debug)]
pub struct IpLookup;

impl Kernel for IpLookup {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        case::try_rows(trial, |draw, most| {
            let case = Case::draw(draw, Layout::Flow, most);
            draw_lookup(draw, case)
        })
    }
}

/// Its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lookup {
    /// Where the rows are.
    pub rows: PacketRows,
    /// The word with the address, as it lies in headers: of the input row (the network region's last word, for the
    /// destination), or of the output row.
    pub destination: u32,
    /// Whether it is a word of the output row.
    pub is_output: bool,
    /// A byte of the output row, for the number of the output.
    pub slot: u32,
    /// Its value for addresses without a route.
    pub miss: u32,
    /// The output word for the gateway, as it lies in headers, 0 where the route has none or there is no route; or [`NONE`].
    pub gateway: u32,
    /// How many codes there are in level 1: 2 to the power of 24 for all addresses.
    pub level1_codes: u32,
    /// How many codes there are in level 2.
    pub level2_codes: u32,
    /// How many next hops there are.
    pub hops: u32,
}

/// A next hop as its table has it: the gateway as in headers, 0 for none, and the number of an output, below
/// [`OUTPUTS`] unless there is no route.
pub fn hop(gateway: [u8; 4], output: u32) -> [u8; HOP_BYTES as usize] {
    let output = output.to_le_bytes();
    std::array::from_fn(|at| if at < 4 { gateway[at] } else { output[at - 4] })
}

fn code(table: &[u8], at: usize) -> Option<u16> {
    table.as_chunks().0.get(at).map(|code| u16::from_le_bytes(*code))
}

/// The next hop of an address whose first byte is in the highest bits; none where there is no route.
pub fn find(tables: [&[u8]; 3], address: u32) -> Option<([u8; 4], u32)> {
    let mut found = code(tables[0], (address >> 8) as usize).unwrap_or(0);
    if found & LIST != 0 {
        found = code(tables[1], usize::from(found & !LIST) * 256 + (address & 255) as usize).unwrap_or(0);
    }
    let (gateway, output) = tables[2].as_chunks::<8>().0.get(usize::from(found))?.split_first_chunk()?;
    let output = u32::from_le_bytes(*output.first_chunk()?);
    (output < OUTPUTS).then_some((*gateway, output))
}

impl RowKernel for Lookup {
    const KERNEL: &'static str = "ip_lookup";
    const TABLES: usize = 3;

    fn rows(&self) -> &PacketRows {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut PacketRows {
        &mut self.rows
    }

    fn words(&self) -> Vec<u32> {
        let Self { destination, is_output, slot, miss, gateway, level1_codes, level2_codes, hops, .. } = *self;
        vec![destination, u32::from(is_output), slot, miss, gateway, level1_codes, level2_codes, hops]
    }

    fn from_words(rows: PacketRows, words: &[u32]) -> Option<Self> {
        let [destination, is_output, slot, miss, gateway, level1_codes, level2_codes, hops] = *words else {
            return None;
        };
        let is_output = is_output != 0;
        Some(Self { rows, destination, is_output, slot, miss, gateway, level1_codes, level2_codes, hops })
    }

    fn table_bytes(&self) -> Vec<u64> {
        vec![u64::from(self.level1_codes) * 2, u64::from(self.level2_codes) * 2, u64::from(self.hops) * HOP_BYTES]
    }

    fn check(&self) -> Result<()> {
        let rows = &self.rows;
        let limit = if self.is_output { rows.output_words } else { rows.input_words };
        check_slot(rows, self.slot, &[self.miss])?;
        check_output_word(rows, self.gateway)?;
        if self.destination >= limit || self.gateway == self.slot / 4 {
            return Err(bad(format!(
                "no address is at word {} of {limit}, or a gateway where a slot is",
                self.destination
            )));
        }
        Ok(())
    }

    fn packet(&self, packet: &Packet<'_>, tables: &[&[u8]], output: &mut [u32]) {
        let row = if self.is_output { &*output } else { &packet.row };
        let address = u32::from_be_bytes(row[self.destination as usize].to_le_bytes());
        let found = find([tables[0], tables[1], tables[2]], address);
        set_slot(output, self.slot, found.map_or(self.miss, |(_, port)| port));
        if self.gateway != NONE {
            output[self.gateway as usize] = found.map_or(0, |(gateway, _)| u32::from_le_bytes(gateway));
        }
    }
}

/// Tables of some codes for the addresses that packets have, and for few others.
fn draw_lookup(draw: &mut Draw, case: Case) -> (Case, Lookup, Vec<Vec<u8>>) {
    let rows = case.rows;
    // Packets are sent to 10.{0,1}.0.x.
    let level1_codes = (10 << 16) + 1 + draw.below(400) as u32;
    let (lists, hops) = (1 + draw.below(4), 1 + draw.below(20));
    let any = |draw: &mut Draw| draw.below(hops + 2) as u16;
    let mut level1: Vec<u16> = vec![0; level1_codes as usize];
    for place in &mut level1[(10 << 16) - 8..] {
        *place = if draw.below(3) > 0 { LIST | draw.below(lists + 1) as u16 } else { any(draw) };
    }
    let level2: Vec<u16> = (0..lists * 256).map(|_| any(draw)).collect();
    let bytes = |codes: &[u16]| codes.iter().flat_map(|code| code.to_le_bytes()).collect::<Vec<u8>>();
    let place = |draw: &mut Draw| {
        let (gateway, output) = (draw.next_u64() as u32, draw.below(270) as u32);
        hop(gateway.to_le_bytes(), if output < 260 { output } else { u32::MAX })
    };
    let tables = vec![bytes(&level1), bytes(&level2), (0..hops).flat_map(|_| place(draw)).collect()];
    let is_output = draw.below(4) == 0;
    let destination = if is_output { draw.below(u64::from(rows.output_words)) as u32 } else { rows.network + 4 };
    let (slot, miss) = (draw.below(4) as u32, draw.below(256) as u32);
    let gateway = if rows.output_words > 1 && draw.below(2) == 0 { rows.output_words - 1 } else { NONE };
    let (level2_codes, hops) = (level2.len() as u32, hops as u32);
    let lookup = Lookup { rows, destination, is_output, slot, miss, gateway, level1_codes, level2_codes, hops };
    (case, lookup, tables)
}

#[cfg(test)]
mod tests {
    use super::super::row_kernel::{from_bytes, to_bytes};
    use super::*;

    #[test]
    fn an_address_is_found_in_the_first_level_or_in_a_list() {
        let bytes = |codes: &[u16]| codes.iter().flat_map(|code| code.to_le_bytes()).collect::<Vec<u8>>();
        let level1 = bytes(&[0, 2, LIST, LIST | 1, 3]);
        let mut list = [1; 256];
        list[7] = 0;
        let level2 = bytes(&list);
        let hops = [hop([9; 4], OUTPUTS), hop([1, 2, 3, 4], 254), hop([0; 4], 0)].concat();
        let found = |address| find([&level1, &level2, &hops], address);
        assert_eq!(found(0x0105), Some(([0; 4], 0)));
        assert_eq!(found(0x0206), Some(([1, 2, 3, 4], 254)));
        for (address, why) in [(0x05, "the default route"), (0x0207, "the same, from a list"), (0x0300, "no list")] {
            assert_eq!(found(address), None, "{why}");
        }
        assert_eq!((found(0x0400), found(0x0500)), (None, None), "no hop, and no code");
    }

    #[test]
    fn parameters_travel_and_wrong_ones_are_refused() {
        let mut right = Lookup {
            rows: PacketRows::new(1, 7, 2),
            destination: 6,
            is_output: false,
            slot: 3,
            miss: 255,
            gateway: 1,
            level1_codes: 1 << 24,
            level2_codes: 512,
            hops: 9,
        };
        assert_eq!(from_bytes(&to_bytes(&right)), Some(right));
        assert!(right.check().is_ok());
        assert_eq!(right.table_bytes(), [1 << 25, 1024, 72]);
        for (destination, slot, gateway, miss) in
            [(7, 3, 1, 255), (6, 8, 1, 255), (6, 4, 1, 255), (6, 3, 2, 255), (6, 3, 0, 1)]
        {
            let wrong = Lookup { destination, slot, miss, gateway, ..right };
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        right.is_output = true;
        assert!(right.check().is_err());
    }
}
