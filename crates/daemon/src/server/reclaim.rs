//! Memory that others need. A thread looks at how much of each device is free; where that is less than it shall be, it
//!
//! 1. gives back what nobody uses and is elsewhere as well: spare frames, twins that can be made again, and the frames that
//!    were not used for longest. Nothing is written for it, and nothing that a file lacks is given up;
//! 2. has clients unmap what they have been shown and do not use;
//! 3. asks those who have acquired or pinned something to release it, the largest first, until that would be enough;
//! 4. disconnects those who have not done so in time, with an error that says why. What they have is released by that.
//!
//! As long as others need memory, the cache takes no more of it than leaves that much free. The next server begins anew.

use super::holding::Thing;
use super::pressure::{Holder, Recall, Step, asked, next};
use super::{IS_ENDING, Server, session};
use crate::fault::{self, Point, at};
use crate::protocol::{ToClient, encode_answer};
use crate::socket::Socket;
use bifolio_cache::Client;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How often is looked.
const LOOK_TIME: Duration = Duration::from_millis(100);

impl Server {
    /// Looks after memory that others need, as long as the server is there.
    pub(super) fn watch_memory(self: &Arc<Self>) {
        if self.options.free_bytes == 0 {
            return;
        }
        let server = Arc::downgrade(self);
        let look = move || {
            while let Some(server) = server.upgrade().filter(|_| !IS_ENDING.load(Ordering::Relaxed)) {
                (0..server.devices.len()).for_each(|device| server.reclaim(device));
                drop(server);
                thread::sleep(LOOK_TIME);
            }
        };
        if let Err(error) = thread::Builder::new().name("reclaim".into()).spawn(look) {
            super::say(&format!("no thread that looks after memory: {error}"));
        }
    }

    /// Looks at a device, and does what is to be done next.
    fn reclaim(&self, device: usize) {
        let target = self.options.free_bytes;
        let on = &self.reclaim.devices[device];
        let Some(free) = self.free_bytes(device) else { return };
        on.free_bytes.store(free, Ordering::Relaxed);
        self.cache.limit(device, free.saturating_sub(target));
        let missing = target.saturating_sub(free);
        self.detach_late(device, missing > 0);
        let (looks, is_hidden, asked_for) = {
            let pressure = on.pressure();
            // Nobody is looked for where nobody was asked.
            let holders = if pressure.recalls.is_empty() { vec![] } else { self.holders(device) };
            let asked = holders.into_iter().filter(|holder| pressure.recalls.contains_key(&holder.key()));
            (pressure.looks, pressure.is_hidden, asked.map(|holder| holder.bytes).sum())
        };
        match next(missing, looks, is_hidden, asked_for) {
            Step::Nothing => self.end_pressure(device),
            Step::Give(bytes) => {
                let given = self.cache.give_clean(device, bytes);
                on.reclaimed_bytes.fetch_add(given, Ordering::Relaxed);
                let mut pressure = on.pressure();
                pressure.looks = if given > 0 { 0 } else { pressure.looks.saturating_add(1) };
                drop(pressure);
                if given > 0 {
                    at(Point::Reclaimed);
                    self.say_reclaimed(device, free, given);
                }
            }
            Step::Hide => {
                let mut pressure = on.pressure();
                (pressure.looks, pressure.is_hidden) = (0, true);
                drop(pressure);
                for (client, number) in self.handles() {
                    self.tell(
                        client,
                        &ToClient::Recall { file: number, device, range: 0..0, within_ms: self.options.recall_ms },
                    );
                }
            }
            Step::Recall(bytes) => self.recall_memory(device, bytes),
        }
    }

    /// Bytes of a device that are free for anybody.
    fn free_bytes(&self, device: usize) -> Option<u64> {
        if let Some(bytes) = fault::free_bytes(device) {
            return Some(bytes);
        }
        let known = &self.devices[device];
        let own = known.memory().ok()?.free;
        // A host's device has a share of the machine's memory, of which others may have taken something.
        Some(if known.info().is_accelerator { own } else { own.min(available_bytes().unwrap_or(own)) })
    }

    /// Who has acquired or pinned something on a device.
    pub(super) fn holders(&self, device: usize) -> Vec<Holder> {
        let mut all = vec![];
        for thing in self.holding.things() {
            let Thing::Handle(client, number) = thing else { continue };
            let Some((_, [dev, inode, mark])) = self.holding.get(thing) else { continue };
            let Some(cached) = self.files().get(&(dev, inode)).map(|resident| resident.file.clone()) else { continue };
            let leases = cached.for_client(session::of_mark(mark).0).leases();
            let used: Vec<Range<u64>> = leases
                .into_iter()
                .filter(|(_, of, _, is_used)| *of == device && *is_used)
                .map(|(_, _, range, _)| range)
                .collect();
            let (start, end) = (used.iter().map(|range| range.start).min(), used.iter().map(|range| range.end).max());
            if let (Some(start), Some(end)) = (start, end) {
                let bytes = used.iter().map(|range| range.end - range.start).sum::<u64>().min(end - start);
                all.push(Holder { client, number, file: (dev, inode), device, range: start..end, bytes });
            }
        }
        all
    }

    /// Bytes that clients were asked to release and have not.
    pub(super) fn recalled_bytes(&self) -> BTreeMap<Client, u64> {
        let mut all = BTreeMap::new();
        for device in 0..self.devices.len() {
            let keys: Vec<_> = self.reclaim.devices[device].pressure().recalls.keys().copied().collect();
            let holders = if keys.is_empty() { vec![] } else { self.holders(device) };
            for holder in holders.into_iter().filter(|holder| keys.contains(&holder.key())) {
                *all.entry(holder.client).or_default() += holder.bytes;
            }
        }
        all
    }

    fn handles(&self) -> Vec<(Client, u64)> {
        let handle = |thing| if let Thing::Handle(client, number) = thing { Some((client, number)) } else { None };
        self.holding.things().into_iter().filter_map(handle).collect()
    }

    /// Asks for memory that is in use.
    fn recall_memory(&self, device: usize, bytes: u64) {
        let mut pressure = self.reclaim.devices[device].pressure();
        let others = |holder: &Holder| !pressure.recalls.contains_key(&holder.key());
        let holders = asked(self.holders(device).into_iter().filter(others).collect(), bytes);
        let within = Duration::from_millis(self.options.recall_ms);
        let until = Instant::now() + within;
        for holder in &holders {
            pressure.recalls.insert(holder.key(), Recall { range: holder.range.clone(), until });
        }
        // Whoever keeps something is looked for again when something changes.
        pressure.looks = 0;
        drop(pressure);
        for Holder { client, number, range, bytes, file, .. } in &holders {
            let (file, process) = (self.path(*file), self.process(*client));
            let id = self.devices[device].id();
            super::say(&format!(
                "{id}: other programs need memory, and process {process} has {bytes} bytes of {file}: it is asked to release them within {} s",
                within.as_secs_f64()
            ));
            let within_ms = self.options.recall_ms.max(1);
            self.tell(*client, &ToClient::Recall { file: *number, device, range: range.clone(), within_ms });
        }
        if !holders.is_empty() {
            at(Point::Recalled);
        }
    }

    /// Disconnects who has kept what he was asked for, or has acquired it again.
    fn detach_late(&self, device: usize, is_wanted: bool) {
        let now = Instant::now();
        let pressure = self.reclaim.devices[device].pressure();
        let is_late = |recall: &Recall| is_wanted && recall.until <= now;
        let late: Vec<_> = pressure.recalls.iter().filter(|(_, recall)| is_late(recall)).map(|(key, _)| *key).collect();
        drop(pressure);
        if late.is_empty() {
            return;
        }
        let holders = self.holders(device);
        for key in late {
            // Who has released is asked anew, if he acquires it again and memory is still wanted.
            let Some(recall) = self.reclaim.devices[device].pressure().recalls.remove(&key) else { continue };
            let meets = |range: &Range<u64>| range.start < recall.range.end && recall.range.start < range.end;
            match holders.iter().find(|holder| holder.key() == key && meets(&holder.range)) {
                Some(holder) => self.detach(holder),
                None => self.end_recall(device, key, recall.range),
            }
        }
    }

    fn detach(&self, Holder { client, file, device, bytes, .. }: &Holder) {
        let (path, process, id) = (self.path(*file), self.process(*client), self.devices[*device].id());
        let seconds = Duration::from_millis(self.options.recall_ms).as_secs_f64();
        super::say(&format!("process {process} has kept {bytes} bytes of {path} on {id}: it is disconnected"));
        let why = format!(
            "the daemon has disconnected this program: other programs need memory of {id}, and it has kept {bytes} bytes of {path} for {seconds} s after it was asked to release them. Release what is recalled, and connect again"
        );
        at(Point::Detaching);
        self.tell(*client, &ToClient::Gone { why });
        if let Some(connected) = self.sessions().get(client)
            && let Ok(socket) = connected.socket.try_clone()
        {
            Socket::of(socket).shut_down();
        }
    }

    /// Nobody needs memory any more: nothing is asked for.
    fn end_pressure(&self, device: usize) {
        let ended = std::mem::take(&mut *self.reclaim.devices[device].pressure());
        ended.recalls.into_iter().for_each(|(key, recall)| self.end_recall(device, key, recall.range));
    }

    fn end_recall(&self, device: usize, (client, file): (Client, u64), range: Range<u64>) {
        self.tell(client, &ToClient::Recall { file, device, range, within_ms: 0 });
    }

    /// Says something unasked, unless the client does not read.
    pub(super) fn tell(&self, client: Client, message: &ToClient) {
        let socket = self.sessions().get(&client).and_then(|connected| connected.socket.try_clone().ok());
        if let Some(socket) = socket {
            let _ = Socket::of(socket).send_now(&encode_answer(0, message));
        }
    }

    pub(super) fn process(&self, client: Client) -> u32 {
        self.sessions().get(&client).map_or(0, |connected| connected.usage.pid)
    }

    fn say_reclaimed(&self, device: usize, free: u64, given: u64) {
        let id = self.devices[device].id();
        tracing::info!("{id}: {free} bytes are free: {given} bytes that nobody uses are given back");
    }
}

/// What the system has for new programs.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
