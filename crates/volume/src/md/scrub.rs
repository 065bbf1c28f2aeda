//! Checking that P and Q fit the data, and making them fit.

use super::array::Raid6;
use super::parts::each_stripe;
use super::read::Failure;
use super::state::Assembly;
use crate::{BlockDevice, Error, ErrorKind, Result};
use bifolio_compute::cpu::pq;
use bifolio_io::Cancel;
use bifolio_kernels::raid6::{Loss, PIECE_BYTES, Verdict};
use std::sync::{Mutex, PoisonError};

/// Findings beyond so many are counted only.
const FINDINGS_MAX: usize = 1000;
/// Whether to stop is asked after so many stripes.
const BATCH_STRIPES: u64 = 16;

/// What is wrong with a piece of a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The stripe.
    pub stripe: u64,
    /// The first byte of the piece in its chunk.
    pub inside: u64,
    /// Bytes of the piece.
    pub len: u64,
    /// The member that is wrong; None: several are, and which cannot be told.
    pub member: Option<usize>,
    /// That member's name.
    pub name: Option<String>,
    /// What it holds there: `data`, `P` or `Q`; empty if it cannot be told.
    pub what: &'static str,
    /// The array's bytes that are wrong if it is data: the first one.
    pub offset: Option<u64>,
    /// It was put right.
    pub is_repaired: bool,
}

/// What a scrub found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Stripes looked at, with those in doubt.
    pub stripes: u64,
    /// Of these, stripes that were not compared: they were being written when power was lost, and the array was opened for
    /// reading only.
    pub in_doubt: u64,
    /// Pieces whose P and Q do not fit.
    pub wrong: u64,
    /// Pieces that were put right.
    pub repaired: u64,
    /// Pieces of which several members are wrong.
    pub unknown: u64,
    /// The first thousand of them.
    pub findings: Vec<Finding>,
}

impl ScrubReport {
    fn add(&mut self, findings: Vec<Finding>) {
        self.wrong += findings.len() as u64;
        self.repaired += findings.iter().filter(|finding| finding.is_repaired).count() as u64;
        self.unknown += findings.iter().filter(|finding| finding.member.is_none()).count() as u64;
        let room = FINDINGS_MAX - self.findings.len();
        self.findings.extend(findings.into_iter().take(room));
    }
}

impl Raid6 {
    /// Reads all and compares, naming for each piece of 4 KiB the member that is wrong. With `repair` that member is
    /// corrected; where several are wrong nothing is changed, as it cannot be told what was right.
    /// `progress` gets stripes done and in all.
    ///
    /// Of an array that was not closed cleanly and is open for reading only, the stripes that were being written are
    /// counted, and not compared: their P and Q are computed again when it is opened for writing.
    ///
    /// # Errors
    /// `BadState` if a member is missing or P and Q are in doubt anyway; `ReadOnly`; `Cancelled`; those of members that
    /// leave too few.
    pub fn scrub(&self, repair: bool, progress: &mut dyn FnMut(u64, u64), cancel: &Cancel) -> Result<ScrubReport> {
        if repair && self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, &self.name, "it was opened for reading only"));
        }
        if self.unsynced().is_some() {
            let detail = "its parity may be wrong, as it was not closed cleanly; resynchronise it first (`volume scrub \
                          --repair` does)";
            return Err(Error::new(ErrorKind::BadState, &self.name, detail));
        }
        self.check_whole(&self.state())?;
        let mut report = ScrubReport::default();
        while report.stripes < self.stripes {
            self.check_cancel(cancel, "the scrub", report.stripes)?;
            progress(report.stripes, self.stripes);
            let next = self.stripes.min(report.stripes + BATCH_STRIPES);
            let found = Mutex::new(vec![]);
            each_stripe(report.stripes..next, &|stripe| {
                if self.in_doubt.iter().any(|part| part.contains(&stripe)) {
                    return Ok(());
                }
                let findings = self.scrub_stripe(stripe, repair)?;
                found.lock().unwrap_or_else(PoisonError::into_inner).extend(findings);
                Ok(())
            })?;
            let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
            found.sort_by_key(|finding| (finding.stripe, finding.inside));
            report.add(found);
            let in_doubt =
                self.in_doubt.iter().map(|part| part.end.min(next).saturating_sub(part.start.max(report.stripes)));
            report.in_doubt += in_doubt.sum::<u64>();
            report.stripes = next;
        }
        if report.repaired > 0 {
            // What is said to be corrected stays so.
            self.flush()?;
        }
        progress(self.stripes, self.stripes);
        Ok(report)
    }

    /// Computes P and Q of all stripes that are in doubt from their data. What is there already is not written.
    ///
    /// # Errors
    /// `Cancelled`, after which it can go on; `ReadOnly`; `BadState` if a member is missing.
    pub fn resync(&self, progress: &mut dyn FnMut(u64, u64), cancel: &Cancel) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, &self.name, "it was opened for reading only"));
        }
        let Some(from) = self.unsynced() else { return Ok(()) };
        let mut done = from;
        while done < self.stripes {
            self.check_cancel(cancel, "the resynchronisation", done)?;
            progress(done, self.stripes);
            let next = self.stripes.min(done + BATCH_STRIPES);
            each_stripe(done..next, &|stripe| self.resync_stripe(stripe))?;
            done = next;
            self.state_mut().unsynced = Some(done);
        }
        progress(self.stripes, self.stripes);
        let mut state = self.state_mut();
        state.unsynced = None;
        state.is_dirty = false;
        state.commit(self.layout, self.log.as_ref())
    }

    fn check_cancel(&self, cancel: &Cancel, what: &str, stripe: u64) -> Result<()> {
        if !cancel.is_cancelled() {
            return Ok(());
        }
        let detail = format!("{what} was interrupted at stripe {stripe} of {}", self.stripes);
        Err(Error::new(ErrorKind::Cancelled, &self.name, detail))
    }

    pub(super) fn resync_stripe(&self, stripe: u64) -> Result<()> {
        self.with_whole_stripe(stripe, |state, members| {
            let data = self.layout.data();
            let chunk = self.layout.chunk_bytes() as usize;
            let (mut p, mut q) = (vec![0; chunk], vec![0; chunk]);
            let sources: Vec<&[u8]> = members[..data].iter().map(Vec::as_slice).collect();
            pq::generate(&sources, &mut p, &mut q);
            for (slot, right) in [(data, p), (data + 1, q)] {
                if members[slot] != right {
                    self.store(state, stripe, slot, 0, &right)?;
                }
            }
            Ok(())
        })
    }

    fn check_whole(&self, state: &Assembly) -> Result<()> {
        if !state.is_degraded() {
            return Ok(());
        }
        let detail = format!("members {:?} are missing; rebuild them first", state.missing());
        Err(Error::new(ErrorKind::BadState, &self.name, detail))
    }

    fn scrub_stripe(&self, stripe: u64, repair: bool) -> Result<Vec<Finding>> {
        self.with_whole_stripe(stripe, |state, members| {
            let slices: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
            let verdicts = pq::scrub(&slices);
            let mut findings = vec![];
            for (piece, verdict) in verdicts.into_iter().enumerate() {
                let inside = piece as u64 * PIECE_BYTES;
                let len = PIECE_BYTES.min(self.layout.chunk_bytes() - inside);
                let slot = match verdict {
                    Verdict::Clean => continue,
                    Verdict::Member(slot) => Some(slot as usize),
                    Verdict::Unknown => None,
                };
                if let (Some(slot), true) = (slot, repair) {
                    let range = inside as usize..(inside + len) as usize;
                    let mut parts: Vec<&mut [u8]> =
                        members.iter_mut().map(|member| &mut member[range.clone()]).collect();
                    pq::recover(&mut parts, Loss::one(slot as u32));
                    self.store(state, stripe, slot, inside, &members[slot][range])?;
                }
                findings.push(self.finding(state, stripe, (inside, len), slot, repair));
            }
            Ok(findings)
        })
    }

    fn finding(
        &self,
        state: &Assembly,
        stripe: u64,
        (inside, len): (u64, u64),
        slot: Option<usize>,
        repair: bool,
    ) -> Finding {
        let member = slot.map(|slot| self.layout.by_slot(stripe)[slot]);
        let name = member.and_then(|role| state.members[role].as_ref()).map(|member| member.device.name());
        let at = self.layout.member_offset(stripe) + inside;
        let data = self.layout.data();
        let what = match slot {
            None => "",
            Some(slot) if slot == data => "P",
            Some(slot) if slot == data + 1 => "Q",
            Some(_) => "data",
        };
        let offset = member.and_then(|member| self.layout.offset_of(member, at));
        Finding { stripe, inside, len, member, name, what, offset, is_repaired: repair && slot.is_some() }
    }

    fn store(&self, state: &Assembly, stripe: u64, slot: usize, inside: u64, bytes: &[u8]) -> Result<(), Failure> {
        let role = self.layout.by_slot(stripe)[slot];
        let Some(member) = &state.members[role] else { return Ok(()) };
        let at = member.superblock.data_offset + self.layout.member_offset(stripe) + inside;
        member.device.write(at, bytes).map_err(|error| Failure::Member(role, error.into()))
    }

    /// Does work on all members of a stripe, by slot, under its lock.
    fn with_whole_stripe<T>(
        &self,
        stripe: u64,
        mut work: impl FnMut(&Assembly, &mut Vec<Vec<u8>>) -> Result<T, Failure>,
    ) -> Result<T> {
        let _lock = self.lock(stripe..stripe + 1);
        loop {
            let failure = {
                let state = self.state();
                self.check_broken(&state)?;
                self.check_whole(&state)?;
                let all: Vec<usize> = (0..self.layout.members()).collect();
                let whole = 0..self.layout.chunk_bytes();
                let gathered = self.gather(&state, stripe, whole, &all);
                match gathered.and_then(|mut members| {
                    let done = work(&state, &mut members);
                    self.columns.give_back(members);
                    done
                }) {
                    Ok(done) => return Ok(done),
                    Err(failure) => failure,
                }
            };
            match failure {
                Failure::Member(role, error) => self.fail(vec![(role, error)])?,
                Failure::Final(error) => return Err(error),
            }
        }
    }
}
