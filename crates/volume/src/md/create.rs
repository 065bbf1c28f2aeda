//! Making an array.

use super::array::{Raid6, random_uuid};
use super::layout::{Layout, Rotation};
use super::state::{self, Member};
use super::superblock::{DEVICES_IN_SECTOR, DEVICES_MAX, Role, SECTOR, Superblock, Version};
use crate::{Error, ErrorKind, Load, Overwrite, Result, signatures};
use bifolio_block::BlockDevice;
use std::sync::Arc;

/// What the members hold before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Zeroes, as the caller knows: new files, or drives that were erased. P and Q fit then.
    Zeroes,
    /// Anything: P and Q are in doubt until [`Raid6::resync`] has computed them.
    Unknown,
}

/// Choices for a new array.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The array's name, at most 32 bytes.
    pub name: String,
    /// What the members hold.
    pub content: Content,
    /// What the members may lose.
    pub overwrite: Overwrite,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self { name: String::new(), content: Content::Unknown, overwrite: Overwrite::Nothing }
    }
}

/// Bytes before the data: what is not md's own is for the log.
fn data_offset(size: u64) -> u64 {
    match size {
        0x4000_0000.. => 32 << 20,
        0x400_0000.. => 4 << 20,
        _ => 1 << 20,
    }
}

impl Raid6 {
    /// Makes an array of members, whose places are their order here, and opens it for writing. It uses as much of
    /// each as the smallest has. Superblocks are of version 1.2.
    ///
    /// # Errors
    /// `BadUse` for shapes that md does not have and members that are too small; `Exists` where something would be lost
    /// that may not be (see [`signatures`]); those of writing.
    pub fn create(
        members: Vec<Arc<dyn Load>>,
        chunk_bytes: u64,
        rotation: Rotation,
        options: &CreateOptions,
    ) -> Result<Self> {
        let bad = |detail: String| Error::new(ErrorKind::BadUse, "RAID-6", detail);
        let layout = Layout::new(rotation, members.len(), chunk_bytes).map_err(bad)?;
        if options.name.len() > 32 {
            return Err(bad(format!("an array's name has at most 32 bytes, not {}", options.name.len())));
        }
        members.iter().try_for_each(|member| check_writable(&**member))?;
        let smallest = members.iter().map(|member| member.geometry().size).min().unwrap_or(0);
        let data_offset = data_offset(smallest);
        let used_bytes = smallest.saturating_sub(data_offset) / chunk_bytes * chunk_bytes;
        if used_bytes == 0 {
            let needed = data_offset + chunk_bytes;
            return Err(bad(format!("the smallest member has {smallest} bytes, and {needed} are needed at least")));
        }
        let devices: Vec<&dyn BlockDevice> = members.iter().map(|member| &**member as _).collect();
        signatures::check(&devices, &options.overwrite)?;
        devices.iter().try_for_each(|device| signatures::erase(*device, |_| true))?;
        let mut name = [0; 32];
        name[..options.name.len()].copy_from_slice(options.name.as_bytes());
        let now = state::now();
        // So that a superblock is one sector wherever possible, which no loss of power tears.
        let devices = if members.len() <= DEVICES_IN_SECTOR { DEVICES_IN_SECTOR } else { DEVICES_MAX.min(384) };
        let mut roles = vec![Role::Faulty; devices];
        for (role, place) in roles.iter_mut().enumerate().take(members.len()) {
            *place = Role::Active(role as u16);
        }
        let template = Superblock {
            version: Version::V1_2,
            array: random_uuid(),
            name,
            created: now,
            updated: now,
            layout,
            stripes: used_bytes / chunk_bytes,
            used_bytes,
            data_offset,
            data_bytes: 0,
            bitmap_sectors: 0,
            recovered_bytes: None,
            is_behind: false,
            number: 0,
            device: [0; 16],
            corrected: 0,
            flags: 0,
            bad_blocks: (0, 0, 0),
            events: 0,
            in_sync_bytes: None,
            roles,
        };
        let member = |(role, device): (usize, Arc<dyn Load>)| {
            let data_bytes = (device.geometry().size - data_offset) / SECTOR * SECTOR;
            let superblock = Superblock { number: role as u32, device: random_uuid(), data_bytes, ..template.clone() };
            Some(Member { device, superblock, is_partial: false, is_unstored: false })
        };
        let members = members.into_iter().enumerate().map(member).collect();
        let is_unknown = options.content == Content::Unknown;
        let array = Self::fresh(&template, members, is_unknown, is_unknown.then_some(0));
        {
            let mut state = array.state_mut();
            let committed = state.commit(layout, array.log.as_ref());
            // A member that fails here is no reason to begin a degraded array.
            if let (Ok(()), Some(failed)) = (&committed, state.failed.first()) {
                let detail = failed.reason.clone();
                return Err(Error::new(ErrorKind::Write, failed.member.clone(), detail));
            }
            committed?;
        }
        Ok(array)
    }
}

/// Refuses a device that cannot be written.
pub(super) fn check_writable(device: &dyn BlockDevice) -> Result<()> {
    if device.is_read_only() {
        return Err(Error::new(ErrorKind::ReadOnly, device.name(), "it was opened for reading only"));
    }
    Ok(())
}
