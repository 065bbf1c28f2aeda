//! Which of the members at hand make up the array. Pure: it decides by superblocks and names alone.

use super::superblock::{Refusal, Role, Superblock};
use crate::{Error, ErrorKind, Result};

/// A member that was given and is not used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The member's name.
    pub member: String,
    /// Why, as a sentence without its full stop.
    pub reason: String,
}

/// The members of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// The number of the given member for each role.
    pub(super) by_role: Vec<Option<usize>>,
    /// The given member whose superblock is the newest.
    pub(super) freshest: usize,
    pub(super) left_out: Vec<LeftOut>,
}

/// Chooses among what was found on each given member.
pub(super) fn choose(given: &[(String, Result<Superblock, Refusal>)]) -> Result<Choice> {
    let mut left_out = vec![];
    let mut leave_out =
        |member: usize, reason: String| left_out.push(LeftOut { member: given[member].0.clone(), reason });
    let mut valid: Vec<(usize, &Superblock)> = vec![];
    for (i, (name, found)) in given.iter().enumerate() {
        match found {
            Ok(superblock) => valid.push((i, superblock)),
            Err(Refusal::Unsupported(why)) => return Err(Error::new(ErrorKind::Unsupported, name, why.clone())),
            Err(Refusal::NotThere) => leave_out(i, "it has no md superblock".to_owned()),
            Err(Refusal::Damaged(why)) => leave_out(i, format!("its superblock is damaged: {why}")),
        }
    }
    // Of several with the same events, the one that was written last.
    let Some(&(freshest, newest)) = valid.iter().max_by_key(|(_, superblock)| superblock.events) else {
        let name = given.first().map_or("RAID-6", |(name, _)| name);
        let why: Vec<_> = left_out.iter().map(|left| format!("{}: {}", left.member, left.reason)).collect();
        let detail = format!("none of the members given has an md superblock that can be read ({})", why.join("; "));
        return Err(Error::new(ErrorKind::NotAVolume, name, detail));
    };
    check_together(given, &valid, newest)?;
    let mut by_role: Vec<Option<usize>> = vec![None; newest.layout.members()];
    for (i, superblock) in valid {
        let known = newest.roles.get(superblock.number as usize).copied().unwrap_or(Role::Faulty);
        // Superblocks are written one after the other, and data only when all are: one step behind is not stale.
        let is_stale = superblock.events.saturating_add(1) < newest.events;
        let (old, new) = (superblock.events, newest.events);
        let fell_behind = || format!("it is out of date: its event count is {old}, that of the others {new}");
        match known {
            _ if is_stale => leave_out(i, fell_behind()),
            _ if superblock.is_behind => leave_out(i, "its recovery by a bitmap did not finish".to_owned()),
            Role::Active(role) if superblock.role() == known => {
                let place = &mut by_role[usize::from(role)];
                if let Some(other) = place {
                    let detail = format!("it has the same role in the array as {}: {role}", given[*other].0);
                    return Err(Error::new(ErrorKind::BadMembers, &given[i].0, detail));
                }
                *place = Some(i);
            }
            Role::Active(_) | Role::Faulty if old < new => leave_out(i, fell_behind()),
            Role::Active(_) | Role::Faulty => leave_out(i, "the other members record it as failed".to_owned()),
            Role::Spare => leave_out(i, "it is a spare".to_owned()),
            Role::Journal => leave_out(i, "it is a journal".to_owned()),
        }
    }
    Ok(Choice { by_role, freshest, left_out })
}

/// Refuses members that cannot be of one array.
fn check_together(
    given: &[(String, Result<Superblock, Refusal>)],
    valid: &[(usize, &Superblock)],
    newest: &Superblock,
) -> Result<()> {
    let bad = |i: usize, detail: String| Err(Error::new(ErrorKind::BadMembers, &given[i].0, detail));
    // The array that most are of: the odd one out is the one to name.
    let of = |array: [u8; 16]| valid.iter().filter(|(_, superblock)| superblock.array == array).count();
    let most =
        valid.iter().map(|(_, superblock)| superblock.array).max_by_key(|array| of(*array)).unwrap_or(newest.array);
    for &(i, superblock) in valid {
        if superblock.array != most {
            let (own, others) = (uuid(superblock.array), uuid(most));
            return bad(i, format!("it is a member of the array {own}, and the others are of {others}"));
        }
    }
    for (at, &(i, superblock)) in valid.iter().enumerate() {
        if let Some((other, _)) = valid[..at].iter().find(|(_, other)| other.device == superblock.device) {
            return bad(i, format!("it is the same member as {}, or a copy of it", given[*other].0));
        }
        let same_shape = superblock.layout == newest.layout && superblock.used_bytes == newest.used_bytes;
        if !same_shape {
            return bad(i, "its superblock gives the array another geometry than the others".to_owned());
        }
        if superblock.events == newest.events && !agree(&superblock.roles, &newest.roles) {
            let detail = "it and other members were written separately, and each side records the other as failed; assemble only the side whose data is wanted";
            return bad(i, detail.to_owned());
        }
    }
    Ok(())
}

/// Whether two tables say the same of every device; what is beyond the end of one has failed.
fn agree(a: &[Role], b: &[Role]) -> bool {
    let of = |roles: &[Role], i: usize| match roles.get(i) {
        Some(Role::Active(role)) => Some(*role),
        _ => None,
    };
    (0..a.len().max(b.len())).all(|i| of(a, i) == of(b, i))
}

/// As mdadm writes it.
pub(super) fn uuid(bytes: [u8; 16]) -> String {
    let (words, _) = bytes.as_chunks::<4>();
    let words: Vec<String> = words.iter().map(|word| format!("{:08x}", u32::from_be_bytes(*word))).collect();
    words.join(":")
}
