//! The first kernel over a batch: output rows get their first values.

use super::case::{self, Case, Layout};
use super::row_kernel::{Packet, RowKernel, run_on_host};
use super::rows::{NONE, PACKET_ROWS_H, PacketRows};
use crate::kernel::{KDEF_H, Kernel, Trial};
use bifolio_device::{ModuleSource, Result};

const MODULE: ModuleSource = ModuleSource {
    name: Begin::KERNEL,
    source: include_str!("../cl/packet_begin.cl"),
    headers: &[KDEF_H, PACKET_ROWS_H, ("packet_begin.h", include_str!("../cl/packet_begin.h"))],
    kernels: &[(Begin::KERNEL, run_on_host::<Begin>)],
};

/// The kernel; [`super::launch`] runs it.
#[derive(Debug)]
pub struct PacketBegin;

impl Kernel for PacketBegin {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        case::try_rows(trial, |draw, most| {
            let case = Case::draw(draw, Layout::Any, most);
            let params = Begin { rows: PacketRows { test: NONE, ..case.rows } };
            (case, params, Vec::new())
        })
    }
}

/// Its parameters. All packets take part, whatever the output rows have. Word 0 becomes the input word
/// [`PacketRows::annotations`], the word [`PacketRows::ttl`] that of the network header, every other one zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where the rows are.
    pub rows: PacketRows,
}

impl RowKernel for Begin {
    const KERNEL: &'static str = "packet_begin";
    const TABLES: usize = 0;
    const IS_FOR_ALL: bool = true;

    fn rows(&self) -> &PacketRows {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut PacketRows {
        &mut self.rows
    }

    fn words(&self) -> Vec<u32> {
        Vec::new()
    }

    fn from_words(rows: PacketRows, _: &[u32]) -> Option<Self> {
        Some(Self { rows })
    }

    fn table_bytes(&self) -> Vec<u64> {
        Vec::new()
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn packet(&self, packet: &Packet<'_>, _: &[&[u8]], output: &mut [u32]) {
        output.fill(0);
        if self.rows.annotations != NONE {
            output[0] = packet.row[self.rows.annotations as usize];
        }
        if self.rows.ttl != NONE {
            output[self.rows.ttl as usize] = packet.row[self.rows.network as usize + 2];
        }
    }
}
